//! Three questions to the kernel's routing tables: which way to an address, whose MAC it is, what an interface is.
//!
//! Message formats: rtnetlink(7). Every call opens its own socket, so nothing is shared with a forked child.
use crate::sys::errno::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

/// How the kernel would send to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Interface index of the way out.
    pub interface: u32,
    /// The next hop, where the address is not on the link.
    pub gateway: Option<IpAddr>,
    /// The address is this host's own.
    pub local: bool,
}

/// What the link layer knows of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Link {
    /// Hardware address; zero on loopback and tunnels.
    pub mac: [u8; 6],
    /// 802.1Q identifier of a VLAN interface.
    pub vlan: Option<u16>,
}

/// The route to `to`; `from` and `interface` restrict it as they do for a packet of that source.
///
/// # Errors
/// ENETUNREACH, EHOSTUNREACH and whatever else the kernel answers.
pub fn route(to: IpAddr, from: Option<IpAddr>, interface: Option<u32>) -> Result<Route, Errno> {
    let mut request = Request::new(libc::RTM_GETROUTE, 0);
    let bits = address_bytes(&to).len() as u8 * 8;
    request.bytes.extend([family(&to), bits, from.map_or(0, |_| bits), 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    request.attribute(libc::RTA_DST, &address_bytes(&to));
    if let Some(from) = from {
        request.attribute(libc::RTA_SRC, &address_bytes(&from));
    }
    if let Some(index) = interface {
        request.attribute(libc::RTA_OIF, &index.to_ne_bytes());
    }
    let mut answer = None;
    request.ask(|body| {
        let mut route = Route { interface: 0, gateway: None, local: body.get(7) == Some(&libc::RTN_LOCAL) };
        for (kind, value) in Attributes(body.get(12..).unwrap_or(&[])) {
            match kind {
                libc::RTA_OIF => route.interface = word(value),
                libc::RTA_GATEWAY => route.gateway = address(value),
                _ => {}
            }
        }
        answer = Some(route);
    })?;
    answer.filter(|r| r.interface != 0).ok_or(Errno::EHOSTUNREACH)
}

/// The MAC address of `of` on an interface, if the kernel has it.
///
/// # Errors
/// What the kernel answers.
pub fn neighbour(interface: u32, of: IpAddr) -> Result<Option<[u8; 6]>, Errno> {
    let mut request = Request::new(libc::RTM_GETNEIGH, libc::NLM_F_DUMP as u16);
    request.bytes.extend([family(&of), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut found = None;
    request.ask(|body| {
        let usable =
            libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_PERMANENT;
        let (Some(index), Some(state)) = (body.get(4..8), body.get(8..10)) else { return };
        if word(index) != interface || u16::from_ne_bytes([state[0], state[1]]) & usable == 0 {
            return;
        }
        let (mut ours, mut mac) = (false, None);
        for (kind, value) in Attributes(body.get(12..).unwrap_or(&[])) {
            match kind {
                libc::NDA_DST => ours = address(value) == Some(of),
                libc::NDA_LLADDR => mac = value.try_into().ok(),
                _ => {}
            }
        }
        if ours {
            found = mac;
        }
    })?;
    Ok(found)
}

/// Hardware address and VLAN of an interface.
///
/// # Errors
/// ENODEV where there is no such interface.
pub fn link(interface: u32) -> Result<Link, Errno> {
    let mut request = Request::new(libc::RTM_GETLINK, 0);
    request.bytes.extend([0; 4]);
    request.bytes.extend(interface.to_ne_bytes());
    request.bytes.extend([0; 8]);
    let mut link = Link::default();
    request.ask(|body| {
        for (kind, value) in Attributes(body.get(16..).unwrap_or(&[])) {
            match kind {
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                IFLA_LINKINFO => link.vlan = vlan(value),
                _ => {}
            }
        }
    })?;
    Ok(link)
}

/// Makes the kernel look for the MAC address of `to`: a datagram to the discard port.
pub fn provoke(to: IpAddr, interface: u32) {
    let bind = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let Ok(socket) = std::net::UdpSocket::bind(bind) else { return };
    let target = match to {
        IpAddr::V4(a) => std::net::SocketAddr::from((a, 9)),
        IpAddr::V6(a) => std::net::SocketAddrV6::new(a, 9, 0, interface).into(),
    };
    let _ = socket.send_to(&[0], target);
}

const IFLA_ADDRESS: u16 = 1;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;

fn vlan(info: &[u8]) -> Option<u16> {
    let find = |in_: &[u8], kind| Attributes(in_).find(|&(k, _)| k == kind).map(|(_, v)| v.to_vec());
    find(info, IFLA_INFO_KIND).filter(|kind| kind.starts_with(b"vlan\0"))?;
    let id = find(&find(info, IFLA_INFO_DATA)?, IFLA_VLAN_ID)?;
    Some(u16::from_ne_bytes(id.get(..2)?.try_into().ok()?) & 0xfff)
}

fn family(address: &IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn address_bytes(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// `struct rtattr` after `struct rtattr`: kind and value.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);
    fn next(&mut self) -> Option<Self::Item> {
        let header = self.0.get(..4)?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get((len + 3) & !3..).unwrap_or(&[]);
        Some((kind, value))
    }
}

struct Request {
    bytes: Vec<u8>,
}

impl Request {
    const HEADER: usize = 16;

    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; Self::HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        Self { bytes }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Sends the request and hands the body of every answering message to `f`.
    fn ask(mut self, mut f: impl FnMut(&[u8])) -> Result<(), Errno> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        let dump = self.bytes[7] as i32 & (libc::NLM_F_DUMP >> 8) != 0;
        let socket = open()?;
        // SAFETY: the buffer has the length given.
        let sent = unsafe { libc::send(socket.as_raw_fd(), self.bytes.as_ptr().cast(), self.bytes.len(), 0) };
        if sent < 0 {
            return Err(Errno::last());
        }
        let mut buffer = vec![0u8; 32 << 10];
        loop {
            // SAFETY: the buffer has the length given.
            let n = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            if n < 0 {
                match Errno::last() {
                    Errno(libc::EINTR) => continue,
                    e => return Err(e),
                }
            }
            let mut rest = &buffer[..n as usize];
            while let Some(header) = rest.get(..Self::HEADER) {
                let len = word(header) as usize;
                let Some(body) = rest.get(Self::HEADER..len) else { return Err(Errno::EPROTO) };
                match i32::from(u16::from_ne_bytes([header[4], header[5]])) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return error(word(body) as i32),
                    _ => f(body),
                }
                if !dump {
                    return Ok(());
                }
                rest = rest.get((len + 3) & !3..).unwrap_or(&[]);
            }
        }
    }
}

fn error(code: i32) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(-code)) }
}

fn open() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    let socket = super::fd::adopt(fd)?;
    // The kernel answers at once; a second without an answer means that it never will.
    let patience = libc::timeval { tv_sec: 1, tv_usec: 0 };
    // SAFETY: the option's value is a timeval of the length given.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            size_of_val(&patience) as u32,
        );
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_has_no_mac() {
        let route = route(Ipv4Addr::LOCALHOST.into(), None, None).unwrap();
        assert!(route.local && route.gateway.is_none());
        assert_eq!(link(route.interface).unwrap(), Link::default());
        assert_eq!(neighbour(route.interface, "127.0.0.77".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn an_interface_that_is_not_there_is_enodev() {
        assert_eq!(link(0x7fff_fff0), Err(Errno::ENODEV));
    }

    #[test]
    fn attributes_of_a_cut_message_end_quietly() {
        let bytes = [8, 0, 1, 0, 9, 9, 9, 9, 200, 0, 2, 0, 1];
        assert_eq!(Attributes(&bytes).collect::<Vec<_>>(), [(1, &[9u8, 9, 9, 9][..])]);
    }
}
