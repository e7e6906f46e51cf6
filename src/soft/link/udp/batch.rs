//! Many packets a system call: recvmmsg into buffers that are kept, sendmmsg from an outbox.
use super::Path;
use super::control::{self, Control, ROOM};
use crate::soft::transport::Outbox;
use crate::soft::wire::{IpUdp, MAX_DATAGRAM, UDP_PORT, icrc};
use crate::sys::errno::Errno;
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

/// What recvmmsg reads and writes beside the packets; its pointers stay within the box and into the slots.
struct Arrays {
    messages: [libc::mmsghdr; RX_BATCH],
    names: [libc::sockaddr_in6; RX_BATCH],
    controls: [Control; RX_BATCH],
    iovecs: [libc::iovec; RX_BATCH],
}

/// Buffers for one receive call.
pub struct RxBatch {
    bytes: Box<[u8]>,
    arrays: Box<Arrays>,
    slots: Vec<Option<Slot>>,
}

// SAFETY: the raw pointers lead into boxes that the value owns.
unsafe impl Send for RxBatch {}

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
        let mut bytes = vec![0; SLOT * RX_BATCH].into_boxed_slice();
        // SAFETY: zero is a valid value of these plain C structs.
        let mut arrays: Box<Arrays> = unsafe { Box::new(std::mem::zeroed()) };
        for (i, slot) in bytes.chunks_exact_mut(SLOT).enumerate() {
            let Arrays { messages, names, controls, iovecs } = &mut *arrays;
            iovecs[i] = control::iovec(slot);
            let header = &mut messages[i].msg_hdr;
            header.msg_iov = &raw mut iovecs[i];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_control = (&raw mut controls[i]).cast();
            rearm(header);
        }
        Self { bytes, arrays, slots: Vec::with_capacity(RX_BATCH) }
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
        let Arrays { messages, names, .. } = &mut *self.arrays;
        // SAFETY: every header points to a name, a control buffer and a slot in boxes that `self` owns.
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
            rearm(&mut messages[i].msg_hdr);
        }
        self.slots.len()
    }
}

/// Makes a header ready for the next packet.
fn rearm(header: &mut libc::msghdr) {
    header.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
    header.msg_controllen = ROOM as _;
}

/// Seals the datagrams of `out` and gives them to the kernel. What it does not take is lost, as on a wire.
pub(super) fn send(fd: RawFd, dual: bool, ip: &IpUdp, path: &Path, out: &mut Outbox) {
    let mut first = 0;
    while first < out.len() {
        first += send_some(fd, dual, ip, path, out, first);
    }
    out.clear();
}

/// Gives datagrams from `first` on to the kernel; how many are done with, at least one.
fn send_some(fd: RawFd, dual: bool, ip: &IpUdp, path: &Path, out: &mut Outbox, first: usize) -> usize {
    // Most calls send one packet: the arrays are then short.
    if out.len() - first < 4 {
        send_up_to::<4>(fd, dual, ip, path, out, first)
    } else {
        send_up_to::<TX_BATCH>(fd, dual, ip, path, out, first)
    }
}

fn send_up_to<const MOST: usize>(
    fd: RawFd,
    dual: bool,
    ip: &IpUdp,
    path: &Path,
    out: &mut Outbox,
    first: usize,
) -> usize {
    let n = (out.len() - first).min(MOST);
    // SAFETY: zero is a valid value of these plain C structs.
    let (mut messages, mut name): ([libc::mmsghdr; MOST], libc::sockaddr_in6) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut controls = Control([0; ROOM]);
    let mut iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST];
    let name_len = control::address(path, ip.dst_port, dual, &mut name);
    let control_len = control::write(&mut controls, path);
    for i in 0..n {
        let datagram = out.get_mut(first + i);
        icrc::seal(ip, datagram);
        iovecs[i] = control::iovec(datagram);
        let header = &mut messages[i].msg_hdr;
        header.msg_iov = &raw mut iovecs[i];
        header.msg_iovlen = 1;
        header.msg_namelen = name_len;
        header.msg_name = (&raw mut name).cast();
        header.msg_controllen = control_len as _;
        header.msg_control = (&raw mut controls).cast();
    }
    // SAFETY: every header points to the name, the control messages and bytes of `out`, which live beyond the call.
    let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), n as u32, libc::MSG_DONTWAIT) };
    match sent {
        1.. => sent as usize,
        // The socket's buffer is full: nothing else will fit.
        _ if Errno::last() == Errno::EAGAIN => out.len() - first,
        // This datagram cannot go (no route, too long, filtered); the next may.
        _ => 1,
    }
}
