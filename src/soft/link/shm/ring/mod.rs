//! A single-producer, single-consumer ring of messages in a memfd that both processes map writable.
//!
//! Entries are whole cache lines and never wrap. The consumer polls the first word of the line where the next entry will
//! begin; a small message is therefore one cache line that moves between two cores, with no index beside it. The line
//! behind the newest entry always belongs to the producer and its first word is zero.
//!
//! Native byte order throughout: both ends run on one machine.
mod consumer;
mod format;
mod producer;

pub use consumer::{Consumer, Peeked, PlainEntry, Watch};
pub use format::*;
pub use producer::{Producer, Slot};

use crate::sys::{errno::Errno, map::Mapping, memfd};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const DATA: usize = 4096;
const CONSUMED: usize = LINE;
const RUNG: usize = 2 * LINE;
const STARVED: usize = 3 * LINE;

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

    /// The words of `line`.
    #[inline(always)]
    fn words(&self, line: u32) -> &[AtomicU64; LINE / 8] {
        // SAFETY: a whole line inside the mapping, aligned.
        unsafe { &*self.line(line).cast() }
    }

    /// Word `index` of the entry at `line`.
    #[inline]
    fn word(&self, line: u32, index: usize) -> &AtomicU64 {
        debug_assert!(index < 2 * LINE / 8);
        // SAFETY: inside the mapping (extensions reach into a second line only where the entry has one); 8-aligned.
        unsafe { &*self.line(line).cast::<AtomicU64>().add(index) }
    }
}

#[cfg(test)]
mod tests;
