//! A single-producer, single-consumer ring of messages in a memfd that both processes map writable.
//!
//! Entries are whole cache lines and never wrap. The consumer polls the first word of the line where the next entry will
//! begin; a small message is therefore one cache line that moves between two cores, with no index beside it. The line
//! behind the newest entry always belongs to the producer and its first word is zero.
//!
//! Native byte order throughout: both ends run on one machine.
mod consumer;
mod producer;

pub use consumer::{Consumer, Watch};
pub use producer::{Producer, Slot};

use crate::sys::{errno::Errno, map::Mapping, memfd};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a cache line, the unit of the ring.
pub const LINE: usize = 64;
/// Bytes of entries in a ring, unless asked otherwise.
pub const RING_BYTES: usize = 256 * 1024;
/// The least and the most that a peer's ring may have.
pub const RING_LIMITS: std::ops::RangeInclusive<usize> = 64 * 1024..=16 * 1024 * 1024;
/// The most payload that one entry carries; longer messages are several entries.
pub const MAX_PAYLOAD: usize = 16 * 1024;

const HEADER: usize = 32;
const DATA: usize = 4096;
const CONSUMED: usize = LINE;
const RUNG: usize = 2 * LINE;
const STARVED: usize = 3 * LINE;

/// `kind` of the entry that says: go on at the first line.
const WRAP: u8 = 0xff;
/// Bits of `flags` that say which extension follows the header; the others are the sender's.
const EXT_RDMA: u8 = 0x40;
const EXT_ATOMIC: u8 = 0x80;
/// The bits of [`Header::flags`] that the sender may use.
pub const USER_FLAGS: u8 = 0x3f;

/// The extension of an entry: what RETH and AtomicETH are on a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ext {
    /// None.
    #[default]
    None,
    /// 16 bytes.
    Rdma {
        /// Remote virtual address.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// For the sender's use.
        aux: u32,
    },
    /// 32 bytes.
    Atomic {
        /// Remote virtual address.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// For the sender's use.
        aux: u32,
        /// Swap or add operand.
        swap_add: u64,
        /// Compare operand.
        compare: u64,
    },
}

impl Ext {
    /// Bytes between header and payload.
    #[inline]
    pub const fn bytes(&self) -> usize {
        match self {
            Ext::None => 0,
            Ext::Rdma { .. } => 16,
            Ext::Atomic { .. } => 32,
        }
    }
}

/// What stands before the payload. Nothing but `flags` is interpreted by the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Kind of message; 0xff is the ring's own.
    pub kind: u8,
    /// Six bits ([`USER_FLAGS`]).
    pub flags: u8,
    /// Spare.
    pub spare: u16,
    /// Destination queue pair.
    pub dst_qpn: u32,
    /// Source queue pair.
    pub src_qpn: u32,
    /// Sequence number.
    pub seq: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Immediate data, or whatever the kind needs.
    pub imm: u32,
    /// RDMA or atomic extension.
    pub ext: Ext,
}

/// An entry as the consumer sees it: the header copied out and checked, the payload still in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The header; a peer wrote it, so its fields may hold anything.
    pub header: Header,
    /// First payload byte, valid for `len` bytes until [`Consumer::release`]. The peer may change them at any time.
    pub payload: NonNull<u8>,
    /// Payload bytes, at most [`MAX_PAYLOAD`].
    pub len: usize,
}

/// The mapped memory of a ring, and the words that may be touched without holding either end.
#[derive(Debug)]
pub struct Ring {
    map: Mapping,
    lines: u32,
}

impl Ring {
    /// A new ring of `bytes` of entries and the descriptor to send to the consumer.
    pub fn create(bytes: usize) -> Result<(Arc<Ring>, OwnedFd), Errno> {
        let fd = memfd::sealed(c"anyverbs-ring", DATA + bytes)?;
        let ring = Self::map(std::os::fd::AsFd::as_fd(&fd), bytes)?;
        Ok((ring, fd))
    }

    /// A ring that a peer created and said to have `bytes` of entries. EPROTO where that cannot be.
    pub fn attach(fd: BorrowedFd<'_>, bytes: usize) -> Result<Arc<Ring>, Errno> {
        if !RING_LIMITS.contains(&bytes) || !bytes.is_multiple_of(4096) {
            return Err(Errno::EPROTO);
        }
        memfd::check(fd, DATA + bytes)?;
        Self::map(fd, bytes)
    }

    fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<Arc<Ring>, Errno> {
        let map = Mapping::shared(fd, DATA + bytes, true)?;
        Ok(Arc::new(Self { map, lines: (bytes / LINE) as u32 }))
    }

    /// Writes `word` where the first entry begins.
    #[cfg(test)]
    pub(super) fn scribble(&self, word: u64) {
        self.word(0, 0).store(word, Ordering::Release);
    }

    /// Producer: whether a doorbell is still to be sent; the others in the meantime are spared.
    #[inline]
    pub fn start_ringing(&self) -> bool {
        self.word32(RUNG).swap(1, Ordering::AcqRel) == 0
    }

    /// Consumer: the doorbell has been heard. To be called before looking into the ring.
    pub fn stop_ringing(&self) {
        self.word32(RUNG).swap(0, Ordering::AcqRel);
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the offsets used are multiples of 64 within the first page of a mapping that lives as long as self.
        unsafe { &*self.map.base().add(offset).cast() }
    }

    #[inline]
    fn consumed(&self) -> &AtomicU64 {
        // SAFETY: as word32.
        unsafe { &*self.map.base().add(CONSUMED).cast() }
    }

    #[inline]
    fn line(&self, line: u32) -> *mut u8 {
        debug_assert!(line < self.lines);
        // SAFETY: the mapping is DATA + lines * LINE bytes and every caller's line is below `lines`.
        unsafe { self.map.base().add(DATA + line as usize * LINE) }
    }

    /// Asks the CPU to have `line` at hand soon.
    #[inline]
    fn prefetch(&self, line: u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program sees and cannot fault.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.line(line).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// Word `index` of the entry at `line`.
    #[inline]
    fn word(&self, line: u32, index: usize) -> &AtomicU64 {
        debug_assert!(index < 2 * LINE / 8);
        // SAFETY: inside the mapping (extensions reach into a second line only where the entry has one); 8-aligned.
        unsafe { &*self.line(line).cast::<AtomicU64>().add(index) }
    }
}

#[inline]
const fn lines_of(ext: usize, len: usize) -> u32 {
    ((HEADER + ext + len).div_ceil(LINE)) as u32
}

#[inline]
const fn next_stamp(stamp: u32) -> u32 {
    match stamp.wrapping_add(1) {
        0 => 1,
        n => n,
    }
}

#[inline]
const fn first_word(stamp: u32, kind: u8, flags: u8, spare: u16) -> u64 {
    stamp as u64 | (kind as u64) << 32 | (flags as u64) << 40 | (spare as u64) << 48
}

/// An entry and the line behind it fit beside a skipped end of the ring, so that an empty ring takes every entry.
const _: () = assert!(2 * lines_of(32, MAX_PAYLOAD) as usize + 2 <= *RING_LIMITS.start() / LINE * 7 / 8);
/// The longest header ends with the first line, so that reading it needs no check of its own.
const _: () = assert!(HEADER + 32 == LINE);

#[cfg(test)]
mod tests;
