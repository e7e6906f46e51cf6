//! Mappings, of memfds and of nothing. None of them is inherited by a forked child.
use super::{errno::Errno, fork};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: sysconf only asks.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Brings pages of mapped files to their files (msync(2)); false where that fails, as for memory that is not mapped.
pub fn write_back(page: *const u8, len: usize) -> bool {
    // SAFETY: msync changes no memory, whatever the range.
    unsafe { libc::msync(page.cast_mut().cast(), len, libc::MS_SYNC) == 0 }
}

/// Places that a mapping refuses before it takes what it gets.
const PLACES: usize = 16;

/// Whether an address range (start, bytes) is not ours to map, though nothing is mapped there.
pub type Taken = fn(u64, u64) -> bool;

static TAKEN: OnceLock<Taken> = OnceLock::new();

/// Says, once, which ranges mappings keep away from.
pub fn avoid(taken: Taken) {
    // The first one serves: there is only one that says so.
    let _ = TAKEN.set(taken);
}

/// A MAP_SHARED mapping with MADV_DONTFORK. Other processes may write it at any time: it is never a slice.
///
/// In a forked child the range is not mapped and must not be touched; dropping it there does nothing.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    generation: u32,
}

// SAFETY: a mapping is an address range; what is done with the bytes is the business of whoever gets the pointer.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, readable and, when asked, writable. Errors are those of mmap(2).
    pub fn shared(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, Errno> {
        Self::shared_at(fd, 0, len, writable)
    }

    /// `shared` from byte `offset` on, a multiple of the page size.
    pub fn shared_at(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EINVAL)?;
        Self::place(len, prot, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    /// Maps `len` zeroed bytes of this process's own, which take memory as they are touched. Errors are those of mmap(2).
    pub fn anonymous(len: usize) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::place(len, prot, flags, -1, 0)
    }

    /// Maps where the kernel likes, but not where the application has registered memory and unmapped it since: peers may
    /// still write there.
    fn place(len: usize, prot: i32, flags: i32, fd: RawFd, offset: libc::off_t) -> Result<Self, Errno> {
        let mut refused = Vec::new();
        loop {
            // SAFETY: the kernel chooses a free range; nothing existing is touched.
            let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, offset) };
            if base == libc::MAP_FAILED {
                return Err(Errno::last());
            }
            // SAFETY: the range was just mapped by us.
            unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
            let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::ENOMEM)?;
            let mapping = Self { base, len, generation: fork::generation() };
            let taken = TAKEN.get().is_some_and(|taken| taken(base.as_ptr() as u64, len as u64));
            if !taken || refused.len() == PLACES {
                return Ok(mapping);
            }
            // Kept until a better place is found, so that the kernel does not offer it again.
            refused.push(mapping);
        }
    }

    /// The first byte; page aligned.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The byte at `offset`, which is inside the mapping or just behind it.
    #[inline]
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len);
        // SAFETY: offset is within the mapped range, checked above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Its 64-bit words, for good: a writable mapping that is never unmapped. Not to be touched in a forked child.
    pub fn into_words(self) -> &'static [AtomicU64] {
        let (base, len) = (self.base.as_ptr().cast::<AtomicU64>(), self.len / 8);
        std::mem::forget(self);
        // SAFETY: page aligned and mapped for good, now that nobody can drop the value; any bytes are valid for atomics.
        unsafe { std::slice::from_raw_parts(base, len) }
    }

    /// Whether this process is the one that made it.
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: this value owns the range, and it is mapped in the process that made it.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}
