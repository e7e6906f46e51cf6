//! Mappings, of memfds and of nothing, none of which a forked child inherits; and of devices' memory, which it does.
use super::{errno::Errno, fork};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of a page. Asked once: the question costs fifty instructions.
pub fn page_size() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: sysconf only asks.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let size = usize::try_from(size).unwrap_or(4096);
            KNOWN.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
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

    fn place(len: usize, prot: i32, flags: i32, fd: RawFd, offset: libc::off_t) -> Result<Self, Errno> {
        let base = find(len, prot, flags, fd, offset)?;
        // SAFETY: the range was just mapped by us.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        Ok(Self { base, len, generation: fork::generation() })
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
            unmap(self.base, self.len);
        }
    }
}

/// A writable MAP_SHARED mapping of a device's memory. A forked child has it as well and may go on with it, as with those of
/// compiled providers.
#[derive(Debug)]
pub struct DeviceMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: as for `Mapping`.
unsafe impl Send for DeviceMapping {}
// SAFETY: as for `Mapping`.
unsafe impl Sync for DeviceMapping {}

impl DeviceMapping {
    /// Maps `len` bytes of `fd` from `offset` on. Errors are those of mmap(2).
    pub fn new(fd: RawFd, offset: u64, len: usize) -> Result<Self, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let base = map(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, offset)?;
        let mut mapping = Self { base, len };
        if is_taken(base, len) {
            mapping.move_away();
        }
        Ok(mapping)
    }

    /// To where nothing else is. It is moved since a device may let its memory be mapped but once; if that fails it stays.
    #[cold]
    fn move_away(&mut self) {
        let (prot, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        let Ok(place) = find(self.len, prot, flags, -1, 0) else { return };
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are ours, and nobody has an address of either yet; the one moved to is replaced.
        let moved =
            unsafe { libc::mremap(self.base.as_ptr().cast(), self.len, self.len, how, place.as_ptr()) };
        if moved == libc::MAP_FAILED {
            unmap(place, self.len);
        } else {
            self.base = place;
        }
    }

    /// The first byte; page aligned.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for DeviceMapping {
    fn drop(&mut self) {
        unmap(self.base, self.len);
    }
}

/// Maps where the kernel likes, but not where the application has registered memory and unmapped it since: peers may
/// still write there. What is refused is kept until a better place is found, so that the kernel does not offer it again.
fn find(len: usize, prot: i32, flags: i32, fd: RawFd, offset: libc::off_t) -> Result<NonNull<u8>, Errno> {
    let mut refused = Vec::new();
    let found = loop {
        match map(len, prot, flags, fd, offset) {
            Ok(base) if is_taken(base, len) && refused.len() < PLACES => refused.push(base),
            other => break other,
        }
    };
    refused.into_iter().for_each(|base| unmap(base, len));
    found
}

#[inline]
fn is_taken(base: NonNull<u8>, len: usize) -> bool {
    TAKEN.get().is_some_and(|taken| taken(base.as_ptr() as u64, len as u64))
}

fn map(len: usize, prot: i32, flags: i32, fd: RawFd, offset: libc::off_t) -> Result<NonNull<u8>, Errno> {
    // SAFETY: the kernel chooses a free range; nothing existing is touched.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, offset) };
    if base == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NonNull::new(base.cast()).ok_or(Errno::ENOMEM)
}

/// Of a range that `map` gave, which nobody uses any more.
fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the callers own the range.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memfd;

    #[test]
    fn a_devices_memory_moves_with_what_is_in_it() {
        let file = memfd::create(c"anyverbs-test", 8192).unwrap();
        let mut mapping = DeviceMapping::new(file.as_raw_fd(), 4096, 4096).unwrap();
        let before = mapping.base();
        // SAFETY: within the mapping.
        unsafe { before.write(7) };
        mapping.move_away();
        assert_ne!(mapping.base(), before);
        // SAFETY: within the mapping, where it is now.
        assert_eq!(unsafe { mapping.base().read() }, 7);
        assert!(!write_back(before, 4096), "the old place is still mapped");
    }
}
