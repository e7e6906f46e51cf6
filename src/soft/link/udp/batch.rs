//! Many packets a system call: recvmmsg into buffers that are kept, sendmmsg from an outbox; and many packets a datagram
//! where the kernel cuts (GSO) and joins (GRO) them.
use super::control::{self, Control, RX_ROOM, TX_ROOM};
use super::route::Route;
use crate::soft::transport::Outbox;
use crate::soft::wire::{IpUdp, MAX_DATAGRAM, Opcode, UDP_PORT};
use crate::sys::errno::Errno;
use crate::sys::map::Mapping;
use crate::sys::uncancelled;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Datagrams that one receive call takes at most.
const RX_BATCH: usize = 16;
/// Fewer where they are long: bytes that are still in the processor's cache when they are looked at.
const RX_BYTES: usize = 1 << 17;
/// Datagrams that one send call gives at most.
const TX_BATCH: usize = 32;
const FEW: usize = 4;
/// Room for one datagram, which may be many packets. Pages that none has reached take no memory.
const SLOT: usize = 1 << 16;
/// Packets that the kernel cuts one datagram into at most, by its oldest limit, and their bytes.
const SEGMENTS: usize = 64;
const SEGMENTS_BYTES: usize = 65_000;

/// A received packet, which lives until the next receive.
#[derive(Debug)]
pub struct Received<'a> {
    /// Addresses and ports.
    pub ip: IpUdp,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// Its place among the packets that came as one, which is its IPv4 id where the sender's kernel cut them.
    pub index: u16,
    /// The UDP payload: BTH to ICRC.
    pub datagram: &'a [u8],
}

impl Received<'_> {
    /// It answers a request of ours.
    pub(super) fn is_response(&self) -> bool {
        let opcode = self.datagram.first().and_then(|raw| Opcode::from_raw(*raw));
        opcode.is_some_and(|opcode| opcode.operation.is_response())
    }

    /// A router's queue was long (ECN's CE).
    pub fn is_marked(&self) -> bool {
        const ECN: u8 = 3;
        self.traffic_class & ECN == ECN
    }
}

/// What the packets of a datagram have in common.
struct Slot {
    ip: IpUdp,
    traffic_class: u8,
    hop_limit: u8,
}

/// A packet of a slot: where it is in all bytes, and its place in the slot.
#[derive(Clone, Copy)]
struct Piece {
    slot: u32,
    at: u32,
    len: u16,
    index: u16,
}

/// What recvmmsg reads and writes beside the packets; its pointers stay within the box and into the slots.
struct Arrays {
    messages: [libc::mmsghdr; RX_BATCH],
    names: [libc::sockaddr_in6; RX_BATCH],
    controls: [Control<RX_ROOM>; RX_BATCH],
    iovecs: [libc::iovec; RX_BATCH],
}

/// Buffers for one receive call.
pub struct RxBatch {
    /// Where no memory of the application is registered, even if it has unmapped it since.
    bytes: Mapping,
    arrays: Box<Arrays>,
    slots: Vec<Slot>,
    pieces: Vec<Piece>,
    /// Datagrams that the next call takes.
    most: usize,
    /// The last call got all that there was.
    drained: bool,
}

// SAFETY: the raw pointers lead into boxes that the value owns.
unsafe impl Send for RxBatch {}

impl std::fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RxBatch").field("packets", &self.pieces.len()).finish_non_exhaustive()
    }
}

impl RxBatch {
    /// Empty buffers. Errors are those of mmap(2).
    pub fn new() -> Result<Self, Errno> {
        let bytes = Mapping::anonymous(SLOT * RX_BATCH)?;
        // SAFETY: zero is a valid value of these plain C structs.
        let mut arrays: Box<Arrays> = unsafe { Box::new(std::mem::zeroed()) };
        for i in 0..RX_BATCH {
            let Arrays { messages, names, controls, iovecs } = &mut *arrays;
            iovecs[i] = libc::iovec { iov_base: bytes.at(i * SLOT).cast(), iov_len: SLOT };
            let header = &mut messages[i].msg_hdr;
            header.msg_iov = &raw mut iovecs[i];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_control = (&raw mut controls[i]).cast();
            rearm(header);
        }
        let (slots, pieces) = (Vec::with_capacity(RX_BATCH), Vec::with_capacity(RX_BATCH));
        Ok(Self { bytes, arrays, slots, pieces, most: 1, drained: true })
    }

    /// The packets of the last receive, in order. What is none of ours (too long, no destination known) is left out.
    #[inline]
    pub fn packets(&self) -> impl ExactSizeIterator<Item = Received<'_>> + Clone {
        // SAFETY: a private mapping of this length, which the kernel writes only within `receive`, that is not now.
        let bytes = unsafe { std::slice::from_raw_parts(self.bytes.base(), self.bytes.len()) };
        self.pieces.iter().map(|piece| {
            let slot = &self.slots[piece.slot as usize];
            Received {
                ip: slot.ip,
                traffic_class: slot.traffic_class,
                hop_limit: slot.hop_limit,
                index: piece.index,
                datagram: &bytes[piece.at as usize..][..usize::from(piece.len)],
            }
        })
    }

    pub(super) fn receive(&mut self, fd: RawFd) -> usize {
        self.slots.clear();
        self.pieces.clear();
        let Arrays { messages, names, .. } = &mut *self.arrays;
        let asked = self.most;
        let got = if asked == 1 {
            let first = &mut messages[0];
            // SAFETY: the header points to a name, a control buffer and a slot in boxes that `self` owns.
            let len = unsafe { uncancelled::recvmsg(fd, &mut first.msg_hdr, libc::MSG_DONTWAIT) };
            first.msg_len = len.max(0) as u32;
            usize::from(len >= 0)
        } else {
            // SAFETY: as above, of every header.
            let got = unsafe { uncancelled::recvmmsg(fd, messages.as_mut_ptr(), asked, libc::MSG_DONTWAIT) };
            got.max(0) as usize
        };
        self.drained = got < asked || asked == 1;
        if got == 0 {
            self.most = 1;
            return 0;
        }
        let mut bytes = 0;
        for i in 0..got {
            bytes += messages[i].msg_len as usize;
            let header = &messages[i].msg_hdr;
            let told = control::read(header);
            let whole = header.msg_flags & libc::MSG_TRUNC == 0;
            if let (Some(src), Some(dst)) = (control::sender(&names[i]), told.dst)
                && whole
            {
                let len = messages[i].msg_len as usize;
                let segment = if told.segment > 0 { told.segment } else { SLOT };
                let slot = self.slots.len() as u32;
                let (mut from, mut index) = (0, 0);
                while from < len {
                    let (at, len) = ((i * SLOT + from) as u32, segment.min(len - from));
                    if len <= MAX_DATAGRAM {
                        self.pieces.push(Piece { slot, at, len: len as u16, index });
                    }
                    from += len;
                    index = index.wrapping_add(1);
                }
                self.slots.push(Slot {
                    ip: IpUdp { src: src.ip(), dst, src_port: src.port(), dst_port: UDP_PORT },
                    traffic_class: told.traffic_class,
                    hop_limit: told.hop_limit,
                });
            }
            rearm(&mut messages[i].msg_hdr);
        }
        // One look more than there are datagrams takes as long as half of it.
        let most = if got < asked { got } else { 2 * asked };
        self.most = most.min(RX_BYTES * got / bytes.max(1)).clamp(1, RX_BATCH);
        got
    }

    /// Nothing was left when the last receive ended, or it is not worth a look.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }
}

/// Makes a header ready for the next packet.
fn rearm(header: &mut libc::msghdr) {
    header.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
    header.msg_controllen = RX_ROOM as _;
}

/// The socket that sends, and how.
#[derive(Clone, Copy)]
pub(super) struct Sender<'a> {
    pub fd: RawFd,
    /// The kernel cuts datagrams; cleared when it turns out that it cannot.
    pub segments: &'a AtomicBool,
}

/// Seals the datagrams of `out` and gives them to the kernel, those of one size as one where `join` allows. What it does
/// not take is lost, as on a wire.
pub(super) fn send(sender: Sender<'_>, route: &Route, out: &mut Outbox, join: bool) {
    let mut first = 0;
    while first < out.len() {
        let join = join && sender.segments.load(Ordering::Relaxed);
        let left = out.len() - first;
        // Most calls send few datagrams: the arrays are then short.
        first += if left == 1 {
            send_one(sender, route, out, first);
            1
        } else if join && left == out.run(first, FEW, SEGMENTS_BYTES) {
            send_up_to::<1>(sender, route, out, first, join)
        } else if join || left <= FEW {
            send_up_to::<FEW>(sender, route, out, first, join)
        } else {
            send_up_to::<TX_BATCH>(sender, route, out, first, join)
        };
    }
    out.clear();
}

/// Gives datagrams from `first` on to the kernel; how many are done with, at least one.
fn send_up_to<const MOST: usize>(
    sender: Sender<'_>,
    route: &Route,
    out: &mut Outbox,
    first: usize,
    join: bool,
) -> usize {
    // SAFETY: zero is a valid value of this plain C struct.
    let mut messages: [libc::mmsghdr; MOST] = unsafe { std::mem::zeroed() };
    let mut controls = [Control([0; TX_ROOM]); MOST];
    let mut iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST];
    // Datagrams that each message stands for.
    let mut counts = [0; MOST];
    let (mut n, mut next) = (0, first);
    while n < MOST && next < out.len() {
        let count = if join { out.run(next, SEGMENTS, SEGMENTS_BYTES) } else { 1 };
        if !out.is_sealed() {
            for i in 0..count {
                // The kernel numbers what it cuts.
                out.seal_with_id(&route.ends, next + i, i as u16);
            }
        }
        iovecs[n] = control::iovec(out.span_mut(next, count));
        let header = &mut messages[n].msg_hdr;
        aim(header, route, &mut iovecs[n]);
        if count > 1 {
            let mut control_len = route.control_len;
            controls[n] = route.control;
            control::write_segment(&mut controls[n], &mut control_len, out.get_mut(next).len());
            header.msg_controllen = control_len as _;
            header.msg_control = (&raw mut controls[n]).cast();
        }
        counts[n] = count;
        (n, next) = (n + 1, next + count);
    }
    // SAFETY: every header points to a name, control messages and bytes of `out`, which live beyond the call.
    let sent = unsafe {
        match n {
            1 => match uncancelled::sendmsg(sender.fd, &messages[0].msg_hdr, libc::MSG_DONTWAIT) {
                0.. => 1,
                _ => -1,
            },
            _ => uncancelled::sendmmsg(sender.fd, messages.as_mut_ptr(), n, libc::MSG_DONTWAIT),
        }
    };
    match sent {
        1.. => counts[..sent as usize].iter().sum(),
        // The socket's buffer is full: nothing else will fit.
        _ if Errno::last() == Errno::EAGAIN => out.len() - first,
        // The way there may not be one where the kernel cuts: each by itself.
        _ if counts[0] > 1 => {
            let mut any = false;
            for i in first..first + counts[0] {
                any |= send_one(sender, route, out, i);
            }
            if any {
                sender.segments.store(false, Ordering::Relaxed);
            }
            counts[0]
        }
        // This datagram cannot go (no route, too long, filtered); the next may.
        _ => 1,
    }
}

/// Sends datagram `i` alone; true if the kernel took it.
#[inline]
fn send_one(sender: Sender<'_>, route: &Route, out: &mut Outbox, i: usize) -> bool {
    let sealed = out.is_sealed();
    let datagram = out.get_mut(i);
    if !sealed {
        route.ends.seal(0, datagram);
    }
    let mut iovec = control::iovec(datagram);
    // SAFETY: zero is a valid value of this plain C struct.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    aim(&mut header, route, &mut iovec);
    // SAFETY: the header points to the route, a local and bytes of `out`, which live beyond the call.
    unsafe { uncancelled::sendmsg(sender.fd, &header, libc::MSG_DONTWAIT) >= 0 }
}

/// Has a header, which is zero, lead the bytes of `iovec` along a route. The kernel only reads what it points to.
#[inline]
fn aim(header: &mut libc::msghdr, route: &Route, iovec: &mut libc::iovec) {
    header.msg_iov = iovec;
    header.msg_iovlen = 1;
    header.msg_namelen = route.name_len;
    header.msg_name = (&raw const route.name).cast_mut().cast();
    header.msg_controllen = route.control_len as _;
    header.msg_control = (&raw const route.control).cast_mut().cast();
}
