//! Many packets a system call: recvmmsg and sendmmsg over buffers that are kept.
use super::Path;
use super::control::{self, Control, ROOM};
use crate::soft::wire::{IpUdp, MAX_DATAGRAM, UDP_PORT, icrc};
use crate::sys::errno::Errno;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::RawFd;

/// Packets that one receive call takes at most.
pub const RX_BATCH: usize = 32;
/// Packets that one send call gives at most.
const TX_BATCH: usize = 64;
/// Room for one datagram; longer ones are no RoCEv2 and are dropped.
const SLOT: usize = MAX_DATAGRAM.next_multiple_of(64);

/// A received packet, which lives until the next receive.
#[derive(Debug)]
pub struct Received<'a> {
    /// Addresses and ports.
    pub ip: IpUdp,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// The UDP payload: BTH to ICRC.
    pub datagram: &'a [u8],
}

struct Slot {
    len: usize,
    ip: IpUdp,
    traffic_class: u8,
    hop_limit: u8,
}

/// Buffers for one receive call.
pub struct RxBatch {
    bytes: Box<[u8]>,
    slots: Vec<Option<Slot>>,
}

impl std::fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RxBatch").field("packets", &self.slots.len()).finish_non_exhaustive()
    }
}

impl Default for RxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl RxBatch {
    /// Empty buffers.
    pub fn new() -> Self {
        Self { bytes: vec![0; SLOT * RX_BATCH].into_boxed_slice(), slots: Vec::with_capacity(RX_BATCH) }
    }

    /// Packet `i` of the last receive; `None` when it was none of ours (too long, no destination known).
    pub fn get(&self, i: usize) -> Option<Received<'_>> {
        let slot = self.slots.get(i)?.as_ref()?;
        Some(Received {
            ip: slot.ip,
            traffic_class: slot.traffic_class,
            hop_limit: slot.hop_limit,
            datagram: &self.bytes[i * SLOT..i * SLOT + slot.len],
        })
    }

    pub(super) fn receive(&mut self, fd: RawFd) -> usize {
        self.slots.clear();
        // SAFETY: zero is a valid value of these plain C structs.
        let (mut messages, mut names): ([libc::mmsghdr; RX_BATCH], [libc::sockaddr_in6; RX_BATCH]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut controls = [Control([0; ROOM]); RX_BATCH];
        let mut iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RX_BATCH];
        for (i, slot) in self.bytes.chunks_exact_mut(SLOT).enumerate() {
            iovecs[i] = control::iovec(slot);
            let header = &mut messages[i].msg_hdr;
            header.msg_iov = &raw mut iovecs[i];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
            header.msg_control = (&raw mut controls[i]).cast();
            header.msg_controllen = ROOM as _;
        }
        // SAFETY: every header points to a name, a control buffer and a slot that live beyond the call.
        let got = unsafe {
            libc::recvmmsg(
                fd,
                messages.as_mut_ptr(),
                RX_BATCH as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        for i in 0..got.max(0) as usize {
            let header = &messages[i].msg_hdr;
            let told = control::read(header);
            let whole = header.msg_flags & libc::MSG_TRUNC == 0;
            let slot = match (control::sender(&names[i]), told.dst) {
                (Some(src), Some(dst)) if whole => Some(Slot {
                    len: messages[i].msg_len as usize,
                    ip: IpUdp { src: src.ip(), dst, src_port: src.port(), dst_port: UDP_PORT },
                    traffic_class: told.traffic_class,
                    hop_limit: told.hop_limit,
                }),
                _ => None,
            };
            self.slots.push(slot);
        }
        self.slots.len()
    }
}

/// Packets to be sent.
#[derive(Debug)]
pub struct TxBatch {
    bytes: Vec<u8>,
    packets: Vec<(Path, Range<usize>)>,
    ports: (u16, u16),
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::with_ports(UDP_PORT, UDP_PORT)
    }

    /// An empty batch from and to other ports than the standard one.
    pub(super) fn with_ports(src: u16, dst: u16) -> Self {
        Self { bytes: Vec::new(), packets: Vec::new(), ports: (src, dst) }
    }

    /// No packet waits.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Room for a datagram of `len` bytes on `path`; the caller fills it, except for the ICRC.
    pub fn push(&mut self, path: Path, len: usize) -> &mut [u8] {
        let at = self.bytes.len();
        self.bytes.resize(at + len, 0);
        self.packets.push((path, at..at + len));
        &mut self.bytes[at..]
    }

    /// Adds a copy of a datagram whose ICRC is yet to be computed.
    pub fn push_copy(&mut self, path: Path, datagram: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        self.packets.push((path, at..self.bytes.len()));
    }

    pub(super) fn send(&mut self, fd: RawFd, dual: bool) {
        for (path, range) in &self.packets {
            let ip = IpUdp { src_port: self.ports.0, dst_port: self.ports.1, ..path.ip_udp() };
            icrc::seal(&ip, &mut self.bytes[range.clone()]);
        }
        let mut first = 0;
        while first < self.packets.len() {
            first += send_some(fd, dual, self.ports.1, &self.packets[first..], &mut self.bytes);
        }
        self.packets.clear();
        self.bytes.clear();
    }
}

/// Gives the first of `packets` to the kernel; how many are done with, at least one.
fn send_some(fd: RawFd, dual: bool, port: u16, packets: &[(Path, Range<usize>)], bytes: &mut [u8]) -> usize {
    let n = packets.len().min(TX_BATCH);
    // SAFETY: zero is a valid value of these plain C structs.
    let (mut messages, mut names): ([libc::mmsghdr; TX_BATCH], [libc::sockaddr_in6; TX_BATCH]) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut controls = [Control([0; ROOM]); TX_BATCH];
    let mut iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; TX_BATCH];
    for (i, (path, range)) in packets[..n].iter().enumerate() {
        iovecs[i] = control::iovec(&mut bytes[range.clone()]);
        let header = &mut messages[i].msg_hdr;
        header.msg_iov = &raw mut iovecs[i];
        header.msg_iovlen = 1;
        header.msg_namelen = control::address(path, port, dual, &mut names[i]);
        header.msg_name = (&raw mut names[i]).cast();
        header.msg_controllen = control::write(&mut controls[i], path) as _;
        header.msg_control = (&raw mut controls[i]).cast();
    }
    // SAFETY: every header points to a name, control messages and bytes that live beyond the call.
    let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), n as u32, libc::MSG_DONTWAIT) };
    match sent {
        1.. => sent as usize,
        // The socket's buffer is full: nothing of this batch will fit.
        _ if Errno::last() == Errno::EAGAIN => packets.len(),
        // This packet cannot go (no route, too long, filtered); the next may.
        _ => 1,
    }
}

/// Both addresses are of one family, as every packet's must be.
pub fn same_family(path: &Path) -> bool {
    matches!((path.src, path.dst), (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)))
}
