//! Device memory: ordinary memory of the library that the application reaches by copies and work requests only.
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::sys::errno::Errno;
use crate::sys::guard;
use crate::sys::log::explain;
use crate::sys::map::{Mapping, page_size};
use crate::sys::memfd;

/// Copies move whole words, as on devices that have such memory.
const WORD: usize = 4;

/// The device memory of one device.
#[derive(Debug)]
pub struct DmPool {
    used: Arc<AtomicU64>,
    size: u64,
}

impl DmPool {
    /// A pool of `size` bytes in whole pages.
    pub fn new(size: u64) -> Self {
        Self { used: Arc::default(), size }
    }

    /// Allocates `length` bytes, zeroed, aligned to `1 << log_align` and at least to a page.
    ///
    /// # Errors
    /// EINVAL: no bytes, more than the device has, or an alignment beyond a page. ENOMEM: the rest of the pool is too small.
    pub fn alloc(&self, length: u64, log_align: u32) -> Result<Arc<Dm>, Errno> {
        let page = page_size() as u64;
        if length == 0 || length > self.size {
            explain(format_args!("ibv_alloc_dm: length {length} is not between 1 and {}", self.size));
            return Err(Errno::EINVAL);
        }
        if log_align > page.trailing_zeros() {
            explain(format_args!(
                "ibv_alloc_dm: log_align_req {log_align} exceeds {}",
                page.trailing_zeros()
            ));
            return Err(Errno::EINVAL);
        }
        let taken = length.next_multiple_of(page);
        let used = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| (used + taken <= self.size).then_some(used + taken));
        if let Err(used) = used {
            explain(format_args!(
                "ibv_alloc_dm: length {length}, but only {} bytes are left",
                self.size - used
            ));
            return Err(Errno::ENOMEM);
        }
        let share = Share { used: self.used.clone(), taken };
        // Without a descriptor it cannot leave the process, which few want.
        let file = memfd::sealed(c"anyverbs-dm", taken as usize).ok();
        let memory = match &file {
            Some(file) => Mapping::shared(file.as_fd(), taken as usize, true),
            None => Mapping::anonymous(taken as usize),
        };
        let memory = memory.inspect_err(|e| {
            explain(format_args!("ibv_alloc_dm: no memory for {taken} bytes: {e:?}"));
        })?;
        Ok(Arc::new(Dm { memory, length: length as usize, file, _share: Some(share) }))
    }
}

/// An allocation of device memory. Regions registered on it keep it alive.
#[derive(Debug)]
pub struct Dm {
    memory: Mapping,
    length: usize,
    /// What is mapped, for other processes and as a dma-buf.
    file: Option<OwnedFd>,
    _share: Option<Share>,
}

#[derive(Debug)]
struct Share {
    used: Arc<AtomicU64>,
    taken: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.taken, Relaxed);
    }
}

impl Dm {
    /// Device memory of another process of this user, over its memory file.
    ///
    /// # Errors
    /// EPROTO where that is not what [`DmPool::alloc`] makes for `length` bytes; those of mmap(2).
    pub fn over(file: OwnedFd, length: u64) -> Result<Arc<Self>, Errno> {
        let length = usize::try_from(length).ok().filter(|n| *n > 0).ok_or(Errno::EPROTO)?;
        let taken = length.checked_next_multiple_of(page_size()).ok_or(Errno::EPROTO)?;
        memfd::check(file.as_fd(), taken)?;
        let memory = Mapping::shared(file.as_fd(), taken, true)?;
        Ok(Arc::new(Self { memory, length, file: Some(file), _share: None }))
    }

    /// The memory file, in whole pages; none where descriptors had run out.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes, as asked for.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// This process made it; a forked child does not have its parent's device memory.
    pub fn is_ours(&self) -> bool {
        self.memory.is_ours()
    }

    /// Host address of the first byte.
    pub fn base(&self) -> u64 {
        self.memory.base() as u64
    }

    /// Gives the memory back; the caller drops its reference on success.
    ///
    /// # Errors
    /// EBUSY while a region is registered on it.
    pub fn free(self: &Arc<Self>) -> Result<(), Errno> {
        if Arc::strong_count(self) > 1 {
            explain(format_args!(
                "ibv_free_dm: {} memory region(s) on it still exist",
                Arc::strong_count(self) - 1
            ));
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// `ibv_memcpy_to_dm`: copies `len` bytes of the application's memory to `offset`.
    ///
    /// # Errors
    /// EFAULT where the range does not lie in the device memory, or `src` is not there; EINVAL where it is not in words of 4 bytes.
    ///
    /// # Safety
    /// `src` must not be memory of Rust's that somebody else writes now.
    pub unsafe fn copy_to(&self, offset: u64, src: *const u8, len: usize) -> Result<(), Errno> {
        let at = self.part(offset, len, "ibv_memcpy_to_dm")?;
        // SAFETY: `part` lies in our mapping; the caller vouches for `src`.
        unsafe { guard::copy(at, src, len) }.map_err(|_| not_there("ibv_memcpy_to_dm", src, len))
    }

    /// `ibv_memcpy_from_dm`: copies `len` bytes at `offset` to the application's memory.
    ///
    /// # Errors
    /// EFAULT where the range does not lie in the device memory, or `dst` is not there; EINVAL where it is not in words of 4 bytes.
    ///
    /// # Safety
    /// The caller may write `len` bytes at `dst`.
    pub unsafe fn copy_from(&self, offset: u64, dst: *mut u8, len: usize) -> Result<(), Errno> {
        let at = self.part(offset, len, "ibv_memcpy_from_dm")?;
        // SAFETY: `part` lies in our mapping; the caller vouches for `dst`.
        unsafe { guard::copy(dst, at, len) }.map_err(|_| not_there("ibv_memcpy_from_dm", dst, len))
    }

    fn part(&self, offset: u64, len: usize, call: &str) -> Result<*mut u8, Errno> {
        let size = self.length;
        match usize::try_from(offset) {
            Ok(at) if at <= size && len <= size - at && self.memory.is_ours() => {
                if !(at | len).is_multiple_of(WORD) {
                    explain(format_args!(
                        "{call}: {len} bytes at {offset}: both must be multiples of {WORD}"
                    ));
                    return Err(Errno::EINVAL);
                }
                Ok(self.memory.at(at))
            }
            _ => {
                explain(format_args!(
                    "{call}: {len} bytes at {offset} exceed the {size} bytes of the device memory"
                ));
                Err(Errno::EFAULT)
            }
        }
    }
}

#[cold]
fn not_there(call: &str, at: *const u8, len: usize) -> Errno {
    explain(format_args!("{call}: the memory at {at:p}+{len} is not there"));
    Errno::EFAULT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_ranges_are_checked() {
        let dm = DmPool::new(1 << 16).alloc(100, 6).unwrap();
        assert!(dm.base().is_multiple_of(64));
        let mut back = [0u8; 4];
        // SAFETY: the buffers are as long as said.
        unsafe {
            dm.copy_to(96, b"abcd".as_ptr(), 4).unwrap();
            dm.copy_from(96, back.as_mut_ptr(), 4).unwrap();
            assert_eq!(dm.copy_to(97, b"abcd".as_ptr(), 4), Err(Errno::EFAULT));
            assert_eq!(dm.copy_to(3, b"abcd".as_ptr(), 4), Err(Errno::EINVAL));
            assert_eq!(dm.copy_from(4, back.as_mut_ptr(), 3), Err(Errno::EINVAL));
            assert_eq!(dm.copy_from(u64::MAX, back.as_mut_ptr(), 4), Err(Errno::EFAULT));
        }
        assert_eq!(&back, b"abcd");
    }

    #[test]
    fn the_pool_is_limited_and_refills() {
        let pool = DmPool::new(4 * page_size() as u64);
        assert_eq!(pool.alloc(0, 0).err(), Some(Errno::EINVAL));
        assert_eq!(pool.alloc(4 * page_size() as u64 + 1, 0).err(), Some(Errno::EINVAL));
        assert_eq!(pool.alloc(1, 40).err(), Some(Errno::EINVAL));
        let all: Vec<_> = (0..4).map(|_| pool.alloc(1, 0).unwrap()).collect();
        assert_eq!(pool.alloc(1, 0).err(), Some(Errno::ENOMEM));
        let held = all[0].clone();
        assert_eq!(held.free(), Err(Errno::EBUSY));
        drop(held);
        all[0].free().unwrap();
        drop(all);
        pool.alloc(4 * page_size() as u64, 0).unwrap();
    }
}
