//! Socket options and control messages: the addresses, TTL and TOS of single packets.
use super::{DEFAULT_HOP_LIMIT, Path};
use crate::sys::errno::Errno;
use libc::{c_int, c_void, cmsghdr};
use socket2::{SockRef, Socket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

/// Room for the control messages of a received packet: those of both families, for IPv4 on a dual-stack socket.
pub(super) const RX_ROOM: usize = 256;
/// And of one that is sent.
pub(super) const TX_ROOM: usize = 128;

/// Options of SOL_UDP (linux/udp.h): segmentation by the kernel, and its reverse.
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;
/// Of SOL_IPV6 (linux/in6.h): 0 leaves groups alone that only other sockets have joined.
const IPV6_MULTICAST_ALL: c_int = 29;

/// The two kinds of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// A buffer for control messages, aligned as the kernel's headers are.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control<const ROOM: usize>(pub [u8; ROOM]);

/// Sets the options that every packet needs, before the socket is bound.
pub(super) fn prepare(socket: &Socket, dual: bool) -> Result<(), Errno> {
    set(socket, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    set(socket, libc::SOL_IP, libc::IP_TTL, c_int::from(DEFAULT_HOP_LIMIT))?;
    set(socket, libc::SOL_IP, libc::IP_RECVTTL, 1)?;
    set(socket, libc::SOL_IP, libc::IP_RECVTOS, 1)?;
    set(socket, libc::SOL_IP, libc::IP_MULTICAST_LOOP, 0)?;
    set(socket, libc::SOL_IP, libc::IP_MULTICAST_ALL, 0)?;
    if dual {
        set(socket, libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS, c_int::from(DEFAULT_HOP_LIMIT))?;
        set(socket, libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        // Also where IPv4 packets go.
        set(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        set(socket, libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        set(socket, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        set(socket, libc::SOL_IPV6, libc::IPV6_MULTICAST_LOOP, 0)?;
        // Before Linux 4.20 datagrams to others' groups come in too, and find no member.
        let _ = set(socket, libc::SOL_IPV6, IPV6_MULTICAST_ALL, 0);
        // soft-RoCE sends UDP checksum 0 over IPv6 too.
        set(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    } else {
        set(socket, libc::SOL_IP, libc::IP_PKTINFO, 1)?;
    }
    Ok(())
}

/// Lets packets of one size that follow each other arrive as one; older kernels cannot.
pub(super) fn coalesce(socket: &Socket) {
    let _ = set(socket, libc::SOL_UDP, UDP_GRO, 1);
}

/// The kernel cuts one datagram into many of one size, if the message says so.
pub(super) fn can_segment(socket: &Socket) -> bool {
    set(socket, libc::SOL_UDP, UDP_SEGMENT, 0).is_ok()
}

/// Hears every group that any socket of this host is in.
pub(super) fn hear_all_groups(socket: &impl AsFd, family: Family) {
    let (level, name) = match family {
        Family::V4 => (libc::SOL_IP, libc::IP_MULTICAST_ALL),
        Family::V6 => (libc::SOL_IPV6, IPV6_MULTICAST_ALL),
    };
    let _ = set(&SockRef::from(socket), level, name, 1);
}

/// Asks for a receive buffer beyond the limit for ordinary users; refused without CAP_NET_ADMIN, which is no harm.
pub(super) fn force_receive_buffer(socket: &Socket, bytes: usize) {
    let _ = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes as c_int);
}

/// The path MTU that the kernel knows for a connected socket.
pub(super) fn connected_mtu(socket: &UdpSocket, ipv6: bool) -> Result<u32, Errno> {
    let (level, name) = if ipv6 { (libc::SOL_IPV6, libc::IPV6_MTU) } else { (libc::SOL_IP, libc::IP_MTU) };
    let mut mtu: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `mtu` and `len` are valid for the size given.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut mtu).cast(), &mut len) };
    if rc == 0 { Ok(mtu.max(0) as u32) } else { Err(Errno::last()) }
}

#[cfg(test)]
pub(super) fn local_port(socket: impl std::os::fd::AsFd) -> u16 {
    let socket = socket2::SockRef::from(&socket);
    socket.local_addr().ok().and_then(|a| a.as_socket()).map_or(0, |a| a.port())
}

fn set(socket: &Socket, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option value is a c_int that lives during the call.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// What the control messages of a received packet say; `None` fields were not there.
#[derive(Default)]
pub(super) struct Told {
    pub dst: Option<IpAddr>,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// The size of the packets that came as one, the last of which may be shorter; 0 for a single one.
    pub segment: usize,
}

/// Reads the control messages of a received packet.
pub(super) fn read(message: &libc::msghdr) -> Told {
    let mut told = Told::default();
    // SAFETY: msg_control and msg_controllen describe what recvmmsg wrote; the CMSG functions stay within it.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: `at` points to a whole header within the control buffer.
        let header = unsafe { *at };
        // SAFETY: the data follows the header.
        let data = unsafe { libc::CMSG_DATA(at) };
        let len = (header.cmsg_len as usize).saturating_sub(data as usize - at as usize);
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                if let Some(info) = value::<libc::in_pktinfo>(data, len) {
                    told.dst = Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                }
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(info) = value::<libc::in6_pktinfo>(data, len) {
                    let dst = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    told.dst = Some(dst.to_ipv4_mapped().map_or(dst.into(), Into::into));
                }
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                told.hop_limit = value::<c_int>(data, len).unwrap_or(0) as u8;
            }
            // A byte here, unlike on the way out.
            (libc::SOL_IP, libc::IP_TOS) => told.traffic_class = value::<u8>(data, len).unwrap_or(0),
            (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                told.traffic_class = value::<c_int>(data, len).unwrap_or(0) as u8;
            }
            (libc::SOL_UDP, UDP_GRO) => {
                told.segment = value::<c_int>(data, len).map_or(0, |n| n.max(0) as usize);
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR; `at` came from it.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    told
}

/// Plain data of a control message, if it is long enough.
fn value<T: Copy>(data: *const u8, len: usize) -> Option<T> {
    // SAFETY: `len` bytes of the message follow `data`; T is plain data of the kernel for which any bytes are valid.
    (len >= size_of::<T>()).then(|| unsafe { data.cast::<T>().read_unaligned() })
}

/// Writes the control messages of a packet on `path` into `buffer`; how many bytes.
pub(super) fn write(buffer: &mut Control<TX_ROOM>, path: &Path) -> usize {
    let mut used = 0;
    let hop_limit = c_int::from(if path.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { path.hop_limit });
    let traffic_class = c_int::from(path.traffic_class);
    // What the socket does anyway need not be said; to groups it does otherwise.
    let usual = matches!(path.hop_limit, 0 | DEFAULT_HOP_LIMIT) && !path.dst.is_multicast();
    let (limits, marks) = (!usual, path.traffic_class != 0);
    match path.src {
        IpAddr::V4(src) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: path.interface as c_int,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(src.octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            push(buffer, &mut used, libc::SOL_IP, libc::IP_PKTINFO, info);
            if limits {
                push(buffer, &mut used, libc::SOL_IP, libc::IP_TTL, hop_limit);
            }
            if marks {
                push(buffer, &mut used, libc::SOL_IP, libc::IP_TOS, traffic_class);
            }
        }
        IpAddr::V6(src) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: src.octets() },
                ipi6_ifindex: path.interface,
            };
            push(buffer, &mut used, libc::SOL_IPV6, libc::IPV6_PKTINFO, info);
            if limits {
                push(buffer, &mut used, libc::SOL_IPV6, libc::IPV6_HOPLIMIT, hop_limit);
            }
            if marks {
                push(buffer, &mut used, libc::SOL_IPV6, libc::IPV6_TCLASS, traffic_class);
            }
        }
    }
    used
}

/// Adds that the kernel is to cut the datagram into pieces of `size` bytes.
pub(super) fn write_segment(buffer: &mut Control<TX_ROOM>, used: &mut usize, size: usize) {
    push(buffer, used, libc::SOL_UDP, UDP_SEGMENT, size as u16);
}

fn push<T: Copy>(buffer: &mut Control<TX_ROOM>, used: &mut usize, level: c_int, kind: c_int, data: T) {
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
    let (space, len) = unsafe {
        (libc::CMSG_SPACE(size_of::<T>() as u32) as usize, libc::CMSG_LEN(size_of::<T>() as u32) as usize)
    };
    let Some(room) = buffer.0.get_mut(*used..*used + space) else { return };
    // SAFETY: zero is a valid cmsghdr.
    let mut header: cmsghdr = unsafe { std::mem::zeroed() };
    header.cmsg_level = level;
    header.cmsg_type = kind;
    header.cmsg_len = len as _;
    let at = room.as_mut_ptr();
    // SAFETY: `room` holds CMSG_SPACE bytes: a header, and the data at CMSG_LEN minus its size.
    unsafe {
        at.cast::<cmsghdr>().write_unaligned(header);
        at.add(len - size_of::<T>()).cast::<T>().write_unaligned(data);
    }
    *used += space;
}

/// A socket address as the kernel reads it: IPv4 stands mapped in a dual-stack socket.
pub(super) fn address(path: &Path, port: u16, dual: bool, out: &mut libc::sockaddr_in6) -> u32 {
    let ip = match path.dst {
        IpAddr::V4(a) if dual => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
        IpAddr::V4(a) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: port.to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_in is smaller than sockaddr_in6 and both are plain data.
            unsafe { (out as *mut libc::sockaddr_in6).cast::<libc::sockaddr_in>().write(v4) };
            return size_of::<libc::sockaddr_in>() as u32;
        }
    };
    *out = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
        sin6_scope_id: path.interface,
    };
    size_of::<libc::sockaddr_in6>() as u32
}

/// The sender that recvmmsg stored; `None` when it is no IP address.
pub(super) fn sender(name: &libc::sockaddr_in6) -> Option<SocketAddr> {
    match c_int::from(name.sin6_family) {
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let ip = ip.to_ipv4_mapped().map_or(ip.into(), IpAddr::V4);
            Some(SocketAddr::new(ip, u16::from_be(name.sin6_port)))
        }
        libc::AF_INET => {
            // SAFETY: the family says that a sockaddr_in, which is smaller, stands here.
            let v4 = unsafe { *(name as *const libc::sockaddr_in6).cast::<libc::sockaddr_in>() };
            Some(SocketAddr::new(
                Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into(),
                u16::from_be(v4.sin_port),
            ))
        }
        _ => None,
    }
}

/// An iovec over bytes that outlive the call it is used in.
pub(super) fn iovec(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: bytes.len() }
}
