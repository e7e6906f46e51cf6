//! RoCEv2 datagrams on UDP port 4791: one socket for both families, addresses and TTL by control message.
//!
//! The socket is never connected and never fragments: only then is the IPv4 id 0, which the ICRC covers.
pub mod batch;
mod control;
pub mod datagrams;
pub mod flow;
mod groups;
mod lookout;
mod owed;
mod pace;
mod parting;
pub mod port;
mod route;
pub mod share;
mod sides;
mod work;

use self::groups::Memberships;
use self::route::Route;
use crate::soft::transport::Outbox;
use crate::soft::types::Mtu;
use crate::soft::wire::{IpUdp, UDP_PORT};
use crate::sys::{errno::Errno, fd, fork::ParentFd, log, uncancelled};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use batch::{Received, RxBatch};
pub(in crate::soft::link) use sides::op_of;

/// The hop limit where the application gave none.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// Bytes around the largest payload: UDP, BTH, RETH, ImmDt, ICRC.
const OVERHEAD: u32 = 8 + 12 + 16 + 4 + 4;

/// The most that a socket buffer is asked to hold; the kernel grants what it may.
const SOCKET_BUFFER: usize = 4 << 20;

/// What a packet takes of it beside its bytes; where it is not joined with others, up to its bytes once more.
const PACKET_OVERHEAD: usize = 1024;

/// The port of the discard service, RFC 863.
const DISCARD: u16 = 9;

/// Where a packet goes, and as whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The address of the GID that sends; of the same family as `dst`.
    pub src: IpAddr,
    /// The destination.
    pub dst: IpAddr,
    /// The interface, for link-local IPv6 destinations and groups; else 0.
    pub interface: u32,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
}

impl Path {
    /// A path with the default hop limit.
    pub const fn new(src: IpAddr, dst: IpAddr) -> Self {
        Self { src, dst, interface: 0, traffic_class: 0, hop_limit: DEFAULT_HOP_LIMIT }
    }

    /// The headers that the ICRC of a packet on this path covers.
    pub const fn ip_udp(&self) -> IpUdp {
        IpUdp::new(self.src, self.dst, UDP_PORT)
    }
}

/// The process's socket on the RoCEv2 port, which others may have bound as well (`share`); a forked child has none.
#[derive(Debug)]
pub struct Endpoint {
    socket: ParentFd,
    dual: bool,
    /// The kernel cuts datagrams into packets (GSO).
    segments: AtomicBool,
    /// What was sent since somebody looked whether the send buffer has room, as much of it as that may take; and after how much
    /// that is to be looked at again.
    unlooked: AtomicUsize,
    look_every: usize,
}

impl Endpoint {
    /// Binds the RoCEv2 port of this network namespace.
    ///
    /// # Errors
    /// EADDRINUSE when the kernel's soft-RoCE, or a program that does not share it, has it; whatever else the kernel
    /// answers.
    pub fn open() -> Result<Self, Errno> {
        let opened = Self::bind(UDP_PORT);
        if let Err(e) = opened {
            let who =
                if e == Errno::EADDRINUSE { ": the kernel's rdma_rxe or another program has it" } else { "" };
            // Whom it concerns, a call towards another host, hears of it again.
            log::log(
                log::Level::Warning,
                format_args!(
                    "urxe: UDP port {UDP_PORT} is not available ({e:?}){who}; only peers on this host can be reached"
                ),
            );
        }
        opened
    }

    fn bind(port: u16) -> Result<Self, Errno> {
        // Without IPv6 in the kernel, IPv4 alone.
        let (socket, dual) = match Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)) {
            Ok(socket) => (socket, true),
            Err(_) => (Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?, false),
        };
        socket.set_nonblocking(true)?;
        if dual {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        control::prepare(&socket, dual)?;
        control::coalesce(&socket);
        let segments = AtomicBool::new(wants_segments() && control::can_segment(&socket));
        // A short buffer only loses packets sooner.
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
        control::force_receive_buffer(&socket, SOCKET_BUFFER);
        // Half of it holds three times what goes out unlooked.
        let look_every = socket.send_buffer_size().unwrap_or(0) / 6;
        let any: IpAddr = if dual { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        socket.bind(&SockAddr::from(SocketAddr::new(any, port)))?;
        Ok(Self {
            socket: ParentFd::new(fd::lift(socket.into())?),
            dual,
            segments,
            unlooked: AtomicUsize::new(0),
            look_every,
        })
    }

    /// Binds the port anew, as the last one to do so, in place of the old socket, which is returned: packets may have come there
    /// meanwhile. `groups`: those that the old one is in.
    ///
    /// # Errors
    /// As of `open`; the old socket stays.
    fn renew(&self, groups: &Memberships) -> Result<ParentFd, Errno> {
        let new = Self::bind(UDP_PORT)?;
        groups.move_to(&new.as_fd());
        let old = ParentFd::new(self.as_fd().try_clone_to_owned().map_err(Errno::from)?);
        // SAFETY: both descriptors are open and owned here; the number stays with its owner.
        match unsafe { libc::dup3(new.fd(), self.fd(), libc::O_CLOEXEC) } {
            -1 => Err(Errno::last()),
            _ => Ok(old),
        }
    }

    /// What comes from now on goes to whoever bound the port before; what waits here can still be taken. The kernel gives a
    /// socket that is connected nothing but its peer's datagrams, and this peer sends none.
    fn step_back(&self) {
        let nobody: IpAddr = if self.dual { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        // Without a way there it stays where packets go, and what still comes is lost.
        let _ = SockRef::from(&self.as_fd()).connect(&SockAddr::from(SocketAddr::new(nobody, DISCARD)));
    }

    /// Readable when packets wait.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Half of the socket's send buffer is free, or was when a good part less had been sent: a burst will fit. To look takes as long as to copy
    /// a packet.
    pub fn has_room(&self) -> bool {
        if self.unlooked.load(Ordering::Relaxed) < self.look_every {
            return true;
        }
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLOUT, revents: 0 };
        let room = uncancelled::poll(&mut poll, 0) == 1;
        if room {
            self.unlooked.store(0, Ordering::Relaxed);
        }
        room
    }

    /// Packets wait.
    pub fn has_waiting(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        uncancelled::poll(&mut poll, 0) == 1
    }

    /// Takes waiting packets into `batch`, without blocking; how many.
    pub fn receive(&self, batch: &mut RxBatch) -> usize {
        batch.receive(self.fd())
    }

    /// Sends the datagrams of `out`, each sealed with its ICRC, and empties it. `join`: the kernel may get many as one.
    /// What it does not take is lost, as on a wire.
    pub fn send(&self, path: &Path, out: &mut Outbox, join: bool) {
        self.send_along(&self.route(path), out, join);
    }

    /// The same along a route that is known.
    #[inline]
    fn send_along(&self, route: &Route, out: &mut Outbox, join: bool) {
        // A lost count does no harm.
        let unlooked = self.unlooked.load(Ordering::Relaxed) + out.bytes() + out.len() * PACKET_OVERHEAD;
        self.unlooked.store(unlooked, Ordering::Relaxed);
        batch::send(self.sender(), route, out, join);
    }

    /// The route along `path`.
    fn route(&self, path: &Path) -> Route {
        Route::new(path, path.ip_udp(), self.dual)
    }

    /// The kernel takes many packets as one.
    fn joins(&self) -> bool {
        self.segments.load(Ordering::Relaxed)
    }

    fn sender(&self) -> batch::Sender<'_> {
        batch::Sender { fd: self.fd(), segments: &self.segments }
    }
}

/// `ANYVERBS_GSO=0`: packets leave one by one, as a capture on the sending host wants them.
fn wants_segments() -> bool {
    !crate::sys::settings::is_off("ANYVERBS_GSO")
}

/// The MTU of the route in bytes, IP header included.
///
/// # Errors
/// ENETUNREACH or EHOSTUNREACH when there is no route; EINVAL when the families differ.
pub fn route_mtu(path: &Path) -> Result<u32, Errno> {
    let end = |ip, port| match ip {
        IpAddr::V6(a) => SocketAddr::from(SocketAddrV6::new(a, port, 0, path.interface)),
        IpAddr::V4(_) => SocketAddr::new(ip, port),
    };
    if path.dst.is_ipv4() != path.src.is_ipv4() {
        return Err(Errno::EINVAL);
    }
    let socket = UdpSocket::bind(end(path.src, 0))?;
    socket.connect(end(path.dst, UDP_PORT))?;
    control::connected_mtu(&socket, path.dst.is_ipv6())
}

/// Whether packets of `mtu` payload bytes fit a route of `route_mtu` bytes.
pub fn fits(mtu: Mtu, route_mtu: u32, ipv6: bool) -> bool {
    mtu.bytes() + OVERHEAD + if ipv6 { 40 } else { 20 } <= route_mtu
}

/// The largest path MTU whose packets fit a route of `route_mtu` bytes.
pub fn largest_fitting(route_mtu: u32, ipv6: bool) -> Mtu {
    Mtu::fitting(route_mtu.saturating_sub(OVERHEAD + if ipv6 { 40 } else { 20 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::types::{Psn, Qpn};
    use crate::soft::wire::{Bth, Opcode, Operation, Packet, Transport, icrc};
    use crate::sys::{clock, seqpacket};

    fn wait_readable(endpoint: &Endpoint) {
        let mut poll = libc::pollfd { fd: endpoint.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one initialised pollfd.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 5000) }, 1, "no packet within five seconds");
    }

    /// Sends packets from one endpoint to another over loopback; the port is any, the ICRC is over the real one.
    fn exchange(dst: &str, src: &str) {
        let (dst, src): (IpAddr, IpAddr) = (dst.parse().unwrap(), src.parse().unwrap());
        let a = Endpoint::bind(0).unwrap();
        let b = Endpoint::bind(0).unwrap();
        let (from, to) = (control::local_port(&a.socket), control::local_port(&b.socket));
        let path = Path { traffic_class: 0x62, hop_limit: 33, ..Path::new(src, dst) };
        let ip = IpUdp { src, dst, src_port: from, dst_port: to };
        let mut tx = Outbox::new();
        for i in 0..40u32 {
            let packet = Packet::new(Bth::new(
                Opcode::new(Transport::Uc, Operation::SendOnly),
                Qpn(0x1001),
                Psn::new(i),
            ));
            let payload = i as usize * 25;
            tx.push(&packet, payload).fill(i as u8);
        }
        batch::send(a.sender(), &Route::new(&path, ip, a.dual), &mut tx, true);
        assert!(tx.is_empty());
        let mut rx = RxBatch::new().unwrap();
        let mut seen = 0u32;
        while seen < 40 {
            wait_readable(&b);
            b.receive(&mut rx);
            for Received { ip, traffic_class, hop_limit, datagram, .. } in rx.packets() {
                let ip = IpUdp { dst_port: to, ..ip };
                assert_eq!((ip.src, ip.dst, ip.src_port), (src, dst, from));
                assert_eq!((traffic_class, hop_limit), (0x62, 33));
                assert_eq!(icrc::check(&ip, datagram), icrc::Verdict::Exact);
                let (packet, payload) = Packet::parse(datagram).unwrap();
                assert_eq!(packet.bth.psn.get(), seen);
                assert!(
                    payload.len() == seen as usize * 25 && datagram[payload].iter().all(|&b| b == seen as u8)
                );
                seen += 1;
            }
        }
        assert_eq!(b.receive(&mut rx), 0);
    }

    /// It may hold the locks of QPs and of the port.
    #[test]
    fn a_thread_that_is_to_be_cancelled_goes_on_to_its_next_cancellation_point() {
        unsafe extern "C" {
            fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
            fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
        }
        const DISABLE: libc::c_int = 1;
        let lo = IpAddr::from([127, 0, 0, 1]);
        let (a, b) = (Endpoint::bind(0).unwrap(), Endpoint::bind(0).unwrap());
        let (from, dst_port) = (control::local_port(&a.socket), control::local_port(&b.socket));
        let ip = IpUdp { src: lo, dst: lo, src_port: from, dst_port };
        let name = format!("anyverbs-test-{:016x}", crate::sys::random::u64());
        let listener = seqpacket::listen(&name).unwrap();
        let (mut tx, mut rx, mut got) = (Outbox::new(), RxBatch::new().unwrap(), 0);
        let cancelled = || {
            // SAFETY: this thread lives, and the requests are for it alone.
            unsafe { pthread_cancel(libc::pthread_self()) };
            for n in [1, 40] {
                for i in 0..n {
                    let opcode = Opcode::new(Transport::Uc, Operation::SendOnly);
                    tx.push(&Packet::new(Bth::new(opcode, Qpn(0x1001), Psn::new(i))), 16);
                }
                batch::send(a.sender(), &Route::new(&Path::new(lo, lo), ip, a.dual), &mut tx, n > 1);
                assert!(a.has_room());
                let end = clock::now_ns() + 10_000_000_000;
                while got < n && clock::now_ns() < end {
                    b.receive(&mut rx);
                    got += rx.packets().count() as u32;
                }
            }
            let sock = seqpacket::connect(&name).unwrap();
            let peer = seqpacket::accept(listener.as_fd()).unwrap();
            // SAFETY: concerns this thread alone, whose end would take the request up.
            unsafe { pthread_setcancelstate(DISABLE, std::ptr::null_mut()) };
            (sock, peer)
        };
        std::thread::scope(|s| s.spawn(cancelled).join().unwrap());
        assert!(got >= 40, "{got}");
    }

    #[test]
    fn ipv4_packets_arrive_with_their_addresses_and_icrc() {
        exchange("127.0.0.1", "127.0.0.2");
    }

    #[test]
    fn ipv6_packets_arrive_with_their_addresses_and_icrc() {
        if UdpSocket::bind("[::1]:0").is_ok() {
            exchange("::1", "::1");
        }
    }

    #[test]
    fn unsendable_packets_are_lost_and_the_rest_goes_out() {
        let (a, b) = (Endpoint::bind(0).unwrap(), Endpoint::bind(0).unwrap());
        let lo: IpAddr = "127.0.0.1".parse().unwrap();
        let ip = IpUdp { dst_port: control::local_port(&b.socket), ..IpUdp::new(lo, lo, 1) };
        let packet =
            Packet::new(Bth::new(Opcode::new(Transport::Uc, Operation::SendOnly), Qpn(2), Psn::new(3)));
        let mut tx = Outbox::new();
        // Longer than any datagram: EMSGSIZE.
        tx.push(&packet, 70_000);
        tx.push(&packet, 8);
        batch::send(a.sender(), &Route::new(&Path::new(lo, lo), ip, a.dual), &mut tx, true);
        assert!(tx.is_empty());
        wait_readable(&b);
        let mut rx = RxBatch::new().unwrap();
        assert_eq!(b.receive(&mut rx), 1);
        assert_eq!(rx.packets().next().unwrap().datagram.len(), 24);
    }

    /// Packets of one size, cut by the kernel: as the next hop sees them, and as a socket that joins them again does.
    #[test]
    fn packets_that_the_kernel_cuts_have_the_icrc_of_their_ids() {
        for (src, dst) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
            let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
            let Ok(plain) = UdpSocket::bind((dst, 0)) else { continue };
            plain.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            let (a, b) = (Endpoint::bind(0).unwrap(), Endpoint::bind(0).unwrap());
            let could = a.segments.load(std::sync::atomic::Ordering::Relaxed);
            for port in [plain.local_addr().unwrap().port(), control::local_port(&b.socket)] {
                let ip = IpUdp { src, dst, src_port: control::local_port(&a.socket), dst_port: port };
                let mut tx = Outbox::new();
                for i in 0..100u32 {
                    let opcode = Opcode::new(Transport::Uc, Operation::SendMiddle);
                    let packet = Packet::new(Bth::new(opcode, Qpn(0x1001), Psn::new(i)));
                    tx.push(&packet, if i == 99 { 20 } else { 256 }).fill(i as u8);
                }
                batch::send(a.sender(), &Route::new(&Path::new(src, dst), ip, a.dual), &mut tx, true);
                let (mut seen, mut buffer, mut rx) = (0, [0; 512], RxBatch::new().unwrap());
                let mut see = |datagram: &[u8]| {
                    assert_ne!(icrc::check(&ip, datagram), icrc::Verdict::Bad, "packet {seen}");
                    assert_eq!(Packet::parse(datagram).unwrap().0.bth.psn.get(), seen);
                    seen += 1;
                    seen
                };
                if port == plain.local_addr().unwrap().port() {
                    loop {
                        let len = plain.recv(&mut buffer).unwrap();
                        if see(&buffer[..len]) == 100 {
                            break;
                        }
                    }
                    continue;
                }
                let mut got = 0;
                while got < 100 {
                    wait_readable(&b);
                    b.receive(&mut rx);
                    rx.packets().for_each(|p| got = see(p.datagram));
                }
            }
            assert_eq!(a.segments.load(std::sync::atomic::Ordering::Relaxed), could);
        }
    }

    #[test]
    fn a_port_that_is_not_shared_is_reported_and_a_shared_one_goes_to_the_last() {
        let taken = UdpSocket::bind("0.0.0.0:0").unwrap();
        assert_eq!(Endpoint::bind(control::local_port(&taken)).err(), Some(Errno::EADDRINUSE));
        let a = Endpoint::bind(0).unwrap();
        let port = control::local_port(&a.socket);
        let b = Endpoint::bind(port).unwrap();
        let mut rx = RxBatch::new().unwrap();
        let mut reaches = |to: &Endpoint, other: Option<&Endpoint>| {
            taken.send_to(&[0; 16], ("127.0.0.1", port)).unwrap();
            wait_readable(to);
            assert_eq!((to.receive(&mut rx), other.map_or(0, |o| o.receive(&mut rx))), (1, 0));
        };
        reaches(&b, Some(&a));
        drop(b);
        reaches(&a, None);
    }

    #[test]
    fn whoever_steps_back_keeps_what_waits_and_others_get_the_rest() {
        for to in ["127.0.0.1", "::1"] {
            let to: IpAddr = to.parse().unwrap();
            let Ok(sender) = UdpSocket::bind((to, 0)) else { continue };
            let first = Endpoint::bind(0).unwrap();
            let port = control::local_port(&first.socket);
            let last = Endpoint::bind(port).unwrap();
            let mut rx = RxBatch::new().unwrap();
            sender.send_to(&[1; 16], (to, port)).unwrap();
            wait_readable(&last);
            last.step_back();
            sender.send_to(&[2; 16], (to, port)).unwrap();
            wait_readable(&first);
            assert_eq!(first.receive(&mut rx), 1);
            assert_eq!(rx.packets().next().unwrap().datagram, [2; 16]);
            assert_eq!(last.receive(&mut rx), 1);
            assert_eq!(rx.packets().next().unwrap().datagram, [1; 16]);
            // And it can still answer.
            let ip = IpUdp { dst_port: sender.local_addr().unwrap().port(), ..IpUdp::new(to, to, port) };
            let mut tx = Outbox::new();
            let opcode = Opcode::new(Transport::Rc, Operation::Acknowledge);
            tx.push(&Packet::new(Bth::new(opcode, Qpn(2), Psn::new(3))), 0);
            batch::send(last.sender(), &Route::new(&Path::new(to, to), ip, last.dual), &mut tx, true);
            sender.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            assert!(sender.recv_from(&mut [0; 64]).unwrap().1.port() == port);
        }
    }

    #[test]
    fn loopback_carries_the_largest_mtu() {
        let lo: IpAddr = "127.0.0.1".parse().unwrap();
        let mtu = route_mtu(&Path::new(lo, lo)).unwrap();
        assert!(fits(Mtu::B4096, mtu, false), "loopback MTU is {mtu}");
        assert!(fits(Mtu::B1024, 1500, true) && !fits(Mtu::B2048, 1500, false));
        assert_eq!(largest_fitting(1500, false), Mtu::B1024);
        assert_eq!(largest_fitting(4160, false), Mtu::B4096);
    }
}
