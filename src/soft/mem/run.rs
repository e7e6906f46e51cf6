//! Runs of raw bytes: application memory, ring entries, packets. Others may write them at any time, so they are
//! copied, never borrowed as slices.
use std::marker::PhantomData;

use super::Span;
use crate::sys::guard::{self, Fault, Folded};

/// Bytes to copy from.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    ptr: *const u8,
    len: usize,
    lives: PhantomData<&'a ()>,
}

/// Bytes to copy to.
#[derive(Debug)]
pub struct RunMut<'a> {
    ptr: *mut u8,
    len: usize,
    lives: PhantomData<&'a ()>,
}

impl<'a> Run<'a> {
    /// # Safety
    /// `ptr..ptr+len` is an address range that this process may try to read while `'a` lasts; a fault is survived.
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// The bytes of a private slice.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), lives: PhantomData }
    }

    /// Bytes in the run.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, for system calls.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The first `n` bytes, or all if there are fewer, and the rest.
    pub fn split(self, n: usize) -> (Run<'a>, Run<'a>) {
        let n = n.min(self.len);
        let rest = Run { ptr: self.ptr.wrapping_add(n), len: self.len - n, lives: PhantomData };
        (Run { len: n, ..self }, rest)
    }
}

impl<'a> RunMut<'a> {
    /// # Safety
    /// `ptr..ptr+len` is an address range that this process may try to write while `'a` lasts; a fault is survived.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, lives: PhantomData }
    }

    /// The bytes of a private slice.
    pub fn of(bytes: &'a mut [u8]) -> Self {
        Self { ptr: bytes.as_mut_ptr(), len: bytes.len(), lives: PhantomData }
    }

    /// Bytes in the run.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, for system calls.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }

    /// Copies `src` to the front and keeps the rest; `src` is no longer than the run.
    pub fn fill(&mut self, src: Run<'_>) -> Result<(), Fault> {
        debug_assert!(src.len <= self.len);
        let n = src.len.min(self.len);
        // SAFETY: both runs may be accessed for their lengths, and `copy` survives faults.
        unsafe { guard::copy(self.ptr, src.ptr, n)? };
        self.ptr = self.ptr.wrapping_add(n);
        self.len -= n;
        Ok(())
    }
}

impl RunMut<'_> {
    /// As [`fill`](Self::fill); true if `folded` has been filled for as many bytes as the run has.
    #[inline]
    pub fn fill_folding(&mut self, src: Run<'_>, folded: &mut Folded) -> Result<bool, Fault> {
        if src.len != self.len {
            return self.fill(src).map(|()| false);
        }
        // SAFETY: both runs may be accessed for their lengths, and faults are survived.
        match unsafe { guard::copy_folding(self.ptr, src.ptr, self.len, folded) } {
            None => self.fill(src).map(|()| false),
            Some(copied) => {
                self.ptr = self.ptr.wrapping_add(self.len);
                self.len = 0;
                copied.map(|()| true)
            }
        }
    }
}

/// A 64-bit atomic operation, operands in host byte order.
#[derive(Clone, Copy, Debug)]
pub enum Access64 {
    #[allow(missing_docs)]
    FetchAdd(u64),
    #[allow(missing_docs)]
    CompareSwap { compare: u64, swap: u64 },
}

impl Span<'_> {
    /// The range, to copy from.
    #[inline]
    pub fn run(&self) -> Run<'_> {
        // SAFETY: a span is registered memory, which may be read and whose faults are survived.
        unsafe { Run::new(self.as_ptr(), self.len()) }
    }

    /// The range, to copy to.
    #[inline]
    pub fn run_mut(&self) -> RunMut<'_> {
        // SAFETY: a span is registered memory, which the application gave away for writing.
        unsafe { RunMut::new(self.as_ptr(), self.len()) }
    }

    /// Writes the first 8 bytes at once; `bytes` as they are to lie in memory.
    pub fn atomic_store(&self, bytes: u64) -> Result<(), Fault> {
        // No plain store survives a fault, and a failed compare-and-swap tells what to compare with.
        let mut seen = 0;
        loop {
            match self.compare_swap(seen, bytes)? {
                now if now == seen => return Ok(()),
                now => seen = now,
            }
        }
    }

    /// Brings the pages of the range to the file that stands behind them; true where there is none. False if it fails.
    pub fn persist(&self) -> bool {
        let page = crate::sys::map::page_size();
        let lead = self.as_ptr() as usize % page;
        crate::sys::map::write_back(self.as_ptr().wrapping_sub(lead), self.len() + lead)
    }

    /// Carries out an atomic on the first 8 bytes; gives the old value.
    pub fn atomic(&self, op: Access64) -> Result<u64, Fault> {
        match op {
            Access64::FetchAdd(add) => self.fetch_add(add),
            Access64::CompareSwap { compare, swap } => self.compare_swap(compare, swap),
        }
    }
}
