//! The network interfaces, their addresses, which one the default route takes, and word of changes.
use std::ffi::CStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::*};

use super::errno::Errno;
use super::fork::ParentFd;

/// An interface as getifaddrs(3) shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Its number, from 1.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// Hardware address; zero where there is none of 6 bytes.
    pub mac: [u8; 6],
    /// Bytes of the largest IP packet; 0 if unknown.
    pub mtu: u32,
    /// Addresses that can be used: duplicate address detection is over.
    pub addresses: Vec<IpAddr>,
}

/// All interfaces of the calling thread's network namespace, by index.
///
/// # Errors
/// Those of getifaddrs(3).
pub fn list() -> Result<Vec<Interface>, Errno> {
    let unusable = unusable_ipv6(&fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default());
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` receives the list.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(Errno::last());
    }
    let mut next = head;
    // SAFETY: the list and what it points to are valid until freeifaddrs below.
    while let Some(item) = unsafe { next.as_ref() } {
        next = item.ifa_next;
        // SAFETY: the name is a C string in the list.
        let name = unsafe { CStr::from_ptr(item.ifa_name) }.to_string_lossy().into_owned();
        // An alias carries the label `eth0:1` on its address; the interface is the part before the colon.
        let name = name.split(':').next().unwrap_or_default().to_owned();
        let at = interfaces.iter().position(|i| i.name == name).unwrap_or_else(|| {
            interfaces.push(Interface { name, ..Interface::default() });
            interfaces.len() - 1
        });
        let interface = &mut interfaces[at];
        interface.up = item.ifa_flags & libc::IFF_UP as u32 != 0;
        interface.loopback = item.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
        // SAFETY: an address is null or a sockaddr of the size that its family says.
        let Some(address) = (unsafe { item.ifa_addr.as_ref() }) else { continue };
        match i32::from(address.sa_family) {
            libc::AF_INET => {
                // SAFETY: the family says that this is a sockaddr_in.
                let a = unsafe { &*item.ifa_addr.cast::<libc::sockaddr_in>() };
                interface.addresses.push(Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes()).into());
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that this is a sockaddr_in6.
                let a = unsafe { &*item.ifa_addr.cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                if !unusable.contains(&ip) {
                    interface.addresses.push(ip.into());
                }
            }
            libc::AF_PACKET => {
                // SAFETY: the family says that this is a sockaddr_ll.
                let a = unsafe { &*item.ifa_addr.cast::<libc::sockaddr_ll>() };
                interface.index = a.sll_ifindex as u32;
                if a.sll_halen == 6 {
                    interface.mac.copy_from_slice(&a.sll_addr[..6]);
                }
            }
            _ => {}
        }
    }
    // SAFETY: the list that getifaddrs made, freed once.
    unsafe { libc::freeifaddrs(head) };
    for interface in &mut interfaces {
        if interface.index == 0 {
            interface.index = index_of(&interface.name);
        }
    }
    read_mtus(&mut interfaces);
    interfaces.sort_by_key(|i| i.index);
    Ok(interfaces)
}

/// The name of the interface that the default route takes: IPv4's, else IPv6's; of several the one with the lowest metric.
pub fn default_route() -> Option<String> {
    let ipv4 = fs::read_to_string("/proc/thread-self/net/route").ok().and_then(|text| default_ipv4(&text));
    ipv4.or_else(|| {
        fs::read_to_string("/proc/thread-self/net/ipv6_route").ok().and_then(|text| default_ipv6(&text))
    })
}

/// Says whether interfaces, addresses or routes may have changed, at the price of one system call.
#[derive(Debug)]
pub struct Watch {
    socket: Option<ParentFd>,
    /// Without a socket: when a change was last assumed.
    last: AtomicU64,
}

/// How often a change is assumed where the kernel does not tell.
const BLIND_NS: u64 = 100_000_000;

impl Watch {
    /// Begins to watch; what happens from now on is seen.
    pub fn new() -> Self {
        Self { socket: subscribe().map(ParentFd::new), last: AtomicU64::new(super::clock::now_ns()) }
    }

    /// Whether anything happened since the last call.
    pub fn changed(&self) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|s| s.is_ours()) else {
            let now = super::clock::now_ns();
            let last = self.last.load(Relaxed);
            return now.wrapping_sub(last) > BLIND_NS
                && self.last.compare_exchange(last, now, Relaxed, Relaxed).is_ok();
        };
        let mut changed = false;
        let mut byte = 0u8;
        loop {
            // SAFETY: one byte into a local; the rest of the message is cut off.
            let n = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
            match n {
                0.. => changed = true,
                // Too much happened for the socket's buffer: that is a change as well.
                _ => match Errno::last().0 {
                    libc::ENOBUFS => changed = true,
                    libc::EINTR => {}
                    _ => return changed,
                },
            }
        }
    }

    /// Readable when something has happened.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(ParentFd::as_fd)
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

fn subscribe() -> Option<OwnedFd> {
    let groups =
        libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR | libc::RTMGRP_IPV4_ROUTE;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    let socket = super::fd::adopt(fd).ok()?;
    // SAFETY: zero is a valid sockaddr_nl.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = groups as u32;
    // SAFETY: the address has the length given.
    let bound =
        unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
    (bound == 0).then_some(socket)
}

/// The index of an interface; 0 where there is none of that name.
pub fn index_of(name: &str) -> u32 {
    // SAFETY: the argument is a C string.
    std::ffi::CString::new(name).map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) })
}

fn read_mtus(interfaces: &mut [Interface]) {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let Ok(socket) = super::fd::adopt(fd) else { return };
    for interface in interfaces {
        // SAFETY: zero is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(interface.name.bytes().take(libc::IFNAMSIZ - 1)) {
            *to = from as _;
        }
        // SAFETY: SIOCGIFMTU reads and writes an ifreq.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) } == 0 {
            // SAFETY: the kernel has filled this member.
            interface.mtu = unsafe { request.ifr_ifru.ifru_mtu } as u32;
        }
    }
}

/// IFA_F_TENTATIVE and IFA_F_DADFAILED.
const UNUSABLE: u32 = 0x40 | 0x08;

/// The addresses in if_inet6 that cannot be used yet, or never.
pub fn unusable_ipv6(text: &str) -> Vec<Ipv6Addr> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(4)?, 16).ok()?;
        let address = u128::from_str_radix(fields.first()?, 16).ok()?;
        (flags & UNUSABLE != 0).then(|| Ipv6Addr::from(address))
    };
    text.lines().filter_map(parse).collect()
}

/// The interface of the default route in /proc/net/route, the one with the lowest metric.
pub fn default_ipv4(text: &str) -> Option<String> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let up = u32::from_str_radix(fields.get(3)?, 16).ok()? & 1 != 0;
        let any = fields.get(1)? == &"00000000" && fields.get(7)? == &"00000000";
        (up && any).then_some((fields.get(6)?.parse::<u32>().ok()?, fields[0].to_owned()))
    };
    text.lines().skip(1).filter_map(parse).min_by_key(|r| r.0).map(|r| r.1)
}

/// The same of /proc/net/ipv6_route.
pub fn default_ipv6(text: &str) -> Option<String> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let any = fields.first()?.bytes().all(|b| b == b'0') && fields.get(1)? == &"00";
        let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
        // Up, and not the entry that rejects everything (RTF_REJECT).
        let usable = flags & 1 != 0 && flags & 0x200 == 0 && fields.get(9)? != &"lo";
        (any && usable).then_some((u32::from_str_radix(fields.get(5)?, 16).ok()?, fields.get(9)?.to_string()))
    };
    text.lines().filter_map(parse).min_by_key(|r| r.0).map(|r| r.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed_as_such() {
        let all = list().unwrap();
        let lo = all.iter().find(|i| i.name == "lo").unwrap();
        assert!(lo.loopback && lo.index != 0 && lo.mac == [0; 6]);
        if lo.up {
            assert!(lo.addresses.contains(&Ipv4Addr::LOCALHOST.into()) && lo.mtu >= 1280);
        }
    }

    #[test]
    fn a_quiet_network_shows_no_change() {
        let watch = Watch::new();
        // Another test or the machine may change something meanwhile, but not without end.
        assert!((0..1000).any(|_| !watch.changed()));
    }

    /// Runs `body` on a thread with a network namespace of its own; without the right to make one, not at all.
    fn in_own_network(body: fn()) {
        std::thread::spawn(move || {
            // SAFETY: only this thread's namespace changes.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
                body();
            }
        })
        .join()
        .unwrap();
    }

    fn ip(arguments: &str) -> bool {
        let run = std::process::Command::new("ip").args(arguments.split(' ')).status();
        run.is_ok_and(|s| s.success())
    }

    #[test]
    fn changes_are_seen_in_the_threads_own_network() {
        in_own_network(|| {
            let watch = Watch::new();
            assert!(!watch.changed() && default_route().is_none());
            assert!(list().unwrap().iter().all(|i| !i.up && i.addresses.is_empty()));
            if !ip("link add av0 mtu 4200 type veth peer name av1") {
                return;
            }
            assert!(watch.changed() && !watch.changed());
            assert!(ip("addr add 10.77.0.1/24 dev av0") && ip("link set av0 up") && ip("link set av1 up"));
            assert!(ip("route add default via 10.77.0.2"));
            assert!(watch.changed());
            let all = list().unwrap();
            let av0 = all.iter().find(|i| i.name == "av0").unwrap();
            assert_eq!((av0.up, av0.mtu, av0.loopback), (true, 4200, false));
            assert!(av0.mac != [0; 6] && av0.addresses.contains(&"10.77.0.1".parse().unwrap()));
            assert_eq!(default_route().as_deref(), Some("av0"));
        });
    }

    #[test]
    fn the_lowest_metric_wins() {
        let header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let text = format!(
            "{header}a\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
             b\t00000000\t010200C0\t0003\t0\t0\t50\t00000000\t0\t0\t0\n\
             c\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        );
        assert_eq!(default_ipv4(&text).as_deref(), Some("b"));
        assert_eq!(default_ipv4(header), None);
        let zero = "0".repeat(32);
        let line = |metric, flags, name| format!("{zero} 00 {zero} 00 {zero} {metric} 1 0 {flags} {name}\n");
        let text = line("ffffffff", "00200200", "lo")
            + &line("00000400", "00000003", "x")
            + &line("00000100", "00000003", "y");
        assert_eq!(default_ipv6(&text).as_deref(), Some("y"));
    }

    #[test]
    fn tentative_addresses_are_left_out() {
        let text = "fe800000000000000000000000000001 02 40 20 80 eth0\n\
                    fe800000000000000000000000000002 02 40 20 c0 eth0\n\
                    fd000000000000000000000000000003 02 40 00 88 eth0\n";
        assert_eq!(unusable_ipv6(text), ["fe80::2".parse::<Ipv6Addr>().unwrap(), "fd00::3".parse().unwrap()]);
    }
}
