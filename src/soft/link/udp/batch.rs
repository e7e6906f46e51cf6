//! Many packets a system call: recvmmsg into buffers that are kept, sendmmsg from an outbox; and many packets a datagram
//! where the kernel cuts (GSO) and joins (GRO) them.
use super::Path;
use super::control::{self, Control, RX_ROOM, TX_ROOM};
use crate::soft::transport::Outbox;
use crate::soft::wire::{IpUdp, MAX_DATAGRAM, Opcode, UDP_PORT, icrc};
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

struct Slot {
    len: usize,
    /// Bytes of each packet in it but the last.
    segment: usize,
    ip: IpUdp,
    traffic_class: u8,
    hop_limit: u8,
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
    slots: Vec<Option<Slot>>,
    /// Datagrams that the next call takes.
    most: usize,
    /// The last call got all that there was.
    drained: bool,
}

// SAFETY: the raw pointers lead into boxes that the value owns.
unsafe impl Send for RxBatch {}

impl std::fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RxBatch").field("packets", &self.slots.len()).finish_non_exhaustive()
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
        Ok(Self { bytes, arrays, slots: Vec::with_capacity(RX_BATCH), most: 1, drained: true })
    }

    /// The packets of the last receive, in order. What is none of ours (too long, no destination known) is left out.
    pub fn packets(&self) -> impl Iterator<Item = Received<'_>> + Clone {
        // SAFETY: a private mapping of this length, which the kernel writes only within `receive`, that is not now.
        let bytes = unsafe { std::slice::from_raw_parts(self.bytes.base(), self.bytes.len()) };
        let slots = self.slots.iter().zip(bytes.chunks_exact(SLOT));
        let slots = slots.filter_map(|(slot, bytes)| slot.as_ref().map(|slot| (slot, &bytes[..slot.len])));
        let packets =
            slots.flat_map(|(slot, bytes)| bytes.chunks(slot.segment).zip(0..).map(move |b| (slot, b)));
        packets.filter(|(_, (bytes, _))| bytes.len() <= MAX_DATAGRAM).map(|(slot, (datagram, index))| {
            Received {
                ip: slot.ip,
                traffic_class: slot.traffic_class,
                hop_limit: slot.hop_limit,
                index,
                datagram,
            }
        })
    }

    pub(super) fn receive(&mut self, fd: RawFd) -> usize {
        self.slots.clear();
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
            let slot = match (control::sender(&names[i]), told.dst) {
                (Some(src), Some(dst)) if whole => Some(Slot {
                    len: messages[i].msg_len as usize,
                    segment: if told.segment > 0 { told.segment } else { SLOT },
                    ip: IpUdp { src: src.ip(), dst, src_port: src.port(), dst_port: UDP_PORT },
                    traffic_class: told.traffic_class,
                    hop_limit: told.hop_limit,
                }),
                _ => None,
            };
            self.slots.push(slot);
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
    pub dual: bool,
    /// The kernel cuts datagrams; cleared when it turns out that it cannot.
    pub segments: &'a AtomicBool,
}

/// Seals the datagrams of `out` and gives them to the kernel, those of one size as one where `join` allows. What it does
/// not take is lost, as on a wire.
pub(super) fn send(sender: Sender<'_>, ip: &IpUdp, path: &Path, out: &mut Outbox, join: bool) {
    let mut first = 0;
    while first < out.len() {
        let join = join && sender.segments.load(Ordering::Relaxed);
        let left = out.len() - first;
        // Most calls send few datagrams: the arrays are then short.
        first += if left == 1 || join && left == out.run(first, FEW, SEGMENTS_BYTES) {
            send_up_to::<1>(sender, ip, path, out, first, join)
        } else if join || left <= FEW {
            send_up_to::<FEW>(sender, ip, path, out, first, join)
        } else {
            send_up_to::<TX_BATCH>(sender, ip, path, out, first, join)
        };
    }
    out.clear();
}

/// Gives datagrams from `first` on to the kernel; how many are done with, at least one.
fn send_up_to<const MOST: usize>(
    sender: Sender<'_>,
    ip: &IpUdp,
    path: &Path,
    out: &mut Outbox,
    first: usize,
    join: bool,
) -> usize {
    // SAFETY: zero is a valid value of these plain C structs.
    let (mut messages, mut name): ([libc::mmsghdr; MOST], libc::sockaddr_in6) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut controls = [Control([0; TX_ROOM]); MOST];
    let mut iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST];
    // Datagrams that each message stands for.
    let mut counts = [0; MOST];
    let name_len = control::address(path, ip.dst_port, sender.dual, &mut name);
    let template_len = control::write(&mut controls[0], path);
    let (mut n, mut next) = (0, first);
    while n < MOST && next < out.len() {
        let count = if join { out.run(next, SEGMENTS, SEGMENTS_BYTES) } else { 1 };
        if !out.is_sealed() {
            for i in 0..count {
                // The kernel numbers what it cuts.
                icrc::seal_with_id(ip, i as u16, out.get_mut(next + i));
            }
        }
        if n > 0 {
            // What else the first one has stands behind.
            controls[n] = controls[0];
        }
        let mut control_len = template_len;
        if count > 1 {
            let size = out.get_mut(next).len();
            control::write_segment(&mut controls[n], &mut control_len, size);
        }
        iovecs[n] = control::iovec(out.span_mut(next, count));
        let header = &mut messages[n].msg_hdr;
        header.msg_iov = &raw mut iovecs[n];
        header.msg_iovlen = 1;
        header.msg_namelen = name_len;
        header.msg_name = (&raw mut name).cast();
        header.msg_controllen = control_len as _;
        header.msg_control = (&raw mut controls[n]).cast();
        counts[n] = count;
        (n, next) = (n + 1, next + count);
    }
    // SAFETY: every header points to the name, its control messages and bytes of `out`, which live beyond the call.
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
                any |= send_one(sender, ip, path, out, i);
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
fn send_one(sender: Sender<'_>, ip: &IpUdp, path: &Path, out: &mut Outbox, i: usize) -> bool {
    // SAFETY: zero is a valid value of these plain C structs.
    let (mut header, mut name): (libc::msghdr, libc::sockaddr_in6) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut control = Control([0; TX_ROOM]);
    let sealed = out.is_sealed();
    let datagram = out.get_mut(i);
    if !sealed {
        icrc::seal(ip, datagram);
    }
    let mut iovec = control::iovec(datagram);
    header.msg_iov = &raw mut iovec;
    header.msg_iovlen = 1;
    header.msg_namelen = control::address(path, ip.dst_port, sender.dual, &mut name);
    header.msg_name = (&raw mut name).cast();
    header.msg_controllen = control::write(&mut control, path) as _;
    header.msg_control = (&raw mut control).cast();
    // SAFETY: the header points to locals and to bytes of `out`, which live beyond the call.
    unsafe { uncancelled::sendmsg(sender.fd, &header, libc::MSG_DONTWAIT) >= 0 }
}
