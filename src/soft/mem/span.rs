//! A checked range of registered memory, and the copies into and out of it.
//!
//! The memory is the application's, which may change or unmap it at any time: there is never a slice of it, and every copy
//! may end in a [`Fault`].
use std::sync::atomic::{AtomicUsize, Ordering::*};

use crate::sys::guard::{self, Fault};

/// A range that may be used until this value is dropped: deregistration waits for it. It should live for one copy.
#[derive(Debug)]
pub struct Span<'t> {
    start: *mut u8,
    len: usize,
    held: Held<'t>,
}

/// What tells deregistration that a span lives.
#[derive(Debug)]
pub(super) enum Held<'t> {
    /// Nothing: there are no bytes.
    Free,
    /// Nothing: the bytes are those of a null region.
    Null,
    /// A word of a thread, to be cleared.
    Word(&'t AtomicUsize),
    /// A count of the region, to be lowered.
    Count(&'t AtomicUsize),
}

// SAFETY: a span is an address range and an atomic; both mean the same in every thread.
unsafe impl Send for Span<'_> {}

impl<'t> Span<'t> {
    /// No bytes, which need no key.
    pub const EMPTY: Span<'static> = Span { start: std::ptr::null_mut(), len: 0, held: Held::Free };

    #[inline]
    pub(super) fn new(start: u64, len: usize, held: Held<'t>) -> Self {
        Self { start: start as *mut u8, len, held }
    }

    /// A range of a null region, which has a length but no bytes: it reads as zeros, and what is written is gone.
    #[inline]
    pub fn is_null(&self) -> bool {
        matches!(self.held, Held::Null)
    }

    /// Host address of the first byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to `offset` of the range.
    ///
    /// # Errors
    /// [`Fault`] where the memory is not there or the bytes do not fit.
    #[inline]
    pub fn put(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        // SAFETY: the source is a slice.
        unsafe { self.put_raw(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies from `offset` of the range into `bytes`.
    ///
    /// # Errors
    /// [`Fault`] where the memory is not there or the range is too short; `bytes` may be partly overwritten.
    #[inline]
    pub fn get(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the destination is a slice borrowed by the caller.
        unsafe { self.get_raw(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `len` bytes from `src`, which may lie in memory that a peer changes, to `offset` of the range.
    ///
    /// # Errors
    /// [`Fault`] where either memory is not there or the bytes do not fit.
    ///
    /// # Safety
    /// `src` must not be memory of Rust's that somebody else writes now.
    #[inline]
    pub unsafe fn put_raw(&self, offset: usize, src: *const u8, len: usize) -> Result<(), Fault> {
        let dst = self.part(offset, len)?;
        // SAFETY: the range is registered memory, which the application gave away for writing.
        unsafe { guard::copy(dst, src, len) }
    }

    /// Copies `len` bytes from `offset` of the range to `dst`, which may lie in memory that a peer sees.
    ///
    /// # Errors
    /// [`Fault`] where either memory is not there or the range is too short.
    ///
    /// # Safety
    /// The caller may write `len` bytes at `dst`.
    #[inline]
    pub unsafe fn get_raw(&self, offset: usize, dst: *mut u8, len: usize) -> Result<(), Fault> {
        let src = self.part(offset, len)?;
        // SAFETY: the caller vouches for `dst`.
        unsafe { guard::copy(dst, src, len) }
    }

    /// Copies `len` bytes from `from_offset` of another range to `offset` of this one.
    ///
    /// # Errors
    /// [`Fault`] where either memory is not there or either range is too short.
    #[inline]
    pub fn put_span(
        &self,
        offset: usize,
        from: &Span<'_>,
        from_offset: usize,
        len: usize,
    ) -> Result<(), Fault> {
        let src = from.part(from_offset, len)?;
        // SAFETY: both ranges are registered memory, never Rust's own.
        unsafe { self.put_raw(offset, src, len) }
    }

    /// Adds to the 64-bit word at the start of the range, atomically for every CPU; returns the old value, host byte order.
    ///
    /// # Errors
    /// [`Fault`] where the range is shorter than 8 bytes, not aligned or not there.
    pub fn fetch_add(&self, add: u64) -> Result<u64, Fault> {
        let word = self.part(0, 8)?;
        // SAFETY: registered memory.
        unsafe { guard::fetch_add(word.cast(), add) }
    }

    /// Swaps the 64-bit word at the start of the range if it holds `expect`; returns the old value, host byte order.
    ///
    /// # Errors
    /// As for [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(&self, expect: u64, swap: u64) -> Result<u64, Fault> {
        let word = self.part(0, 8)?;
        // SAFETY: registered memory.
        unsafe { guard::compare_swap(word.cast(), expect, swap) }
    }

    #[inline]
    fn part(&self, offset: usize, len: usize) -> Result<*mut u8, Fault> {
        if offset <= self.len && len <= self.len - offset {
            Ok(self.start.wrapping_add(offset))
        } else {
            Err(Fault)
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        match self {
            Held::Free | Held::Null => {}
            Held::Word(word) => word.store(0, Release),
            Held::Count(count) => _ = count.fetch_sub(1, Release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_in_the_range() {
        let users = AtomicUsize::new(1);
        let mut memory = [0u8; 16];
        let span = Span::new(memory.as_mut_ptr() as u64, 8, Held::Count(&users));
        span.put(6, b"ab").unwrap();
        assert_eq!(span.put(7, b"ab"), Err(Fault));
        assert_eq!(span.put(usize::MAX, b"ab"), Err(Fault));
        span.put(8, b"").unwrap();
        let mut two = [0; 2];
        span.get(6, &mut two).unwrap();
        assert_eq!(&two, b"ab");
        assert_eq!(span.get(9, &mut []), Err(Fault));
        assert_eq!(span.put_span(0, &span, 6, 3), Err(Fault));
        span.put_span(0, &span, 6, 2).unwrap();
        drop(span);
        assert_eq!((&memory[..9], users.load(Relaxed)), (&b"ab\0\0\0\0ab\0"[..], 0));
    }

    #[test]
    fn atomics_return_the_old_value() {
        let users = AtomicUsize::new(2);
        let mut word = 40u64;
        let span = Span::new(&raw mut word as u64, 8, Held::Count(&users));
        assert_eq!(span.fetch_add(2), Ok(40));
        assert_eq!(span.compare_swap(42, 7), Ok(42));
        assert_eq!(span.compare_swap(42, 8), Ok(7));
        assert_eq!(Span::new(span.as_ptr() as u64, 7, Held::Count(&users)).fetch_add(1), Err(Fault));
        assert_eq!(Span::EMPTY.fetch_add(1), Err(Fault));
    }
}
