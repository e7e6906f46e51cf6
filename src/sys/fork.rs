//! Knowing that a fork happened, and closing in the child what only the parent may hold.
//!
//! A page with MADV_WIPEONFORK reads zero in a child, whatever locks were held at the fork and however the child was
//! made; a pthread_atfork handler closes the registered descriptors at once, where fork(3) made it.
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The generation of the process that loaded the library; its children have higher ones.
pub const FIRST_GENERATION: u32 = 1;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
static LAST: AtomicU32 = AtomicU32::new(FIRST_GENERATION);

/// A number that is the same during the life of one process and differs in a forked child. Two loads.
///
/// Whoever keeps mappings or descriptors remembers the generation they were made in, and leaves them alone in another.
#[inline]
pub fn generation() -> u32 {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: PAGE holds null or a page that is mapped for the life of the process.
        let generation = unsafe { (*page).load(Ordering::Relaxed) };
        if generation != 0 {
            return generation;
        }
    }
    find_generation()
}

/// Whether this process was forked from one that had already used this library.
pub fn is_child() -> bool {
    generation() != FIRST_GENERATION
}

#[cold]
fn find_generation() -> u32 {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return watch();
    }
    become_child(page)
}

/// Maps the page and installs the handler, once.
fn watch() -> u32 {
    let size = super::map::page_size();
    // SAFETY: a new private anonymous mapping; nothing existing is touched.
    let map = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if map == libc::MAP_FAILED {
        // Without the page only the handler's count tells; a process this short of memory will not get far.
        return LAST.load(Ordering::Acquire);
    }
    let page: *mut AtomicU32 = map.cast();
    // SAFETY: the page was just mapped, writable and aligned; MADV_WIPEONFORK touches only this page.
    unsafe {
        libc::madvise(map, size, libc::MADV_WIPEONFORK);
        (*page).store(LAST.load(Ordering::Acquire), Ordering::Release);
    }
    match PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: the handler is a function of this library, which is never unloaded (-z nodelete).
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
        Err(_) => {
            // SAFETY: this page lost the race and nobody else knows its address.
            unsafe { libc::munmap(map, size) };
        }
    }
    generation()
}

extern "C" fn in_child() {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return;
    }
    // Kernels before 4.14 do not wipe the page.
    // SAFETY: PAGE is mapped for the life of the process, and in its children.
    unsafe { (*page).store(0, Ordering::Release) };
    become_child(page);
}

/// Async-signal-safe: atomics and close(2) only.
fn become_child(page: *mut AtomicU32) -> u32 {
    let next = LAST.load(Ordering::Acquire).wrapping_add(1).max(FIRST_GENERATION + 1);
    // SAFETY: PAGE is mapped for the life of the process, and in its children.
    match unsafe { (*page).compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire) } {
        Ok(_) => {
            LAST.store(next, Ordering::Release);
            close_registered();
            next
        }
        Err(current) => current,
    }
}

const CHUNK: usize = 256;

/// Descriptors to close in a child, as fd + 1; 0 is a free place. Chunks are never freed.
struct Chunk {
    places: [AtomicI32; CHUNK],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Self {
        Self { places: [const { AtomicI32::new(0) }; CHUNK], next: AtomicPtr::new(ptr::null_mut()) }
    }
}

static REGISTERED: Chunk = Chunk::new();

fn close_registered() {
    let mut chunk = &REGISTERED;
    loop {
        for place in &chunk.places {
            let fd = place.swap(0, Ordering::AcqRel) - 1;
            if fd >= 0 {
                // SAFETY: registered descriptors are owned by a `ParentFd`, which leaves them alone in a child.
                unsafe { libc::close(fd) };
            }
        }
        // SAFETY: chunks are leaked, hence valid once published.
        match unsafe { chunk.next.load(Ordering::Acquire).as_ref() } {
            Some(next) => chunk = next,
            None => return,
        }
    }
}

fn register(fd: RawFd) -> &'static AtomicI32 {
    let mut chunk = &REGISTERED;
    loop {
        for place in &chunk.places {
            if place.compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return place;
            }
        }
        let mut next = chunk.next.load(Ordering::Acquire);
        if next.is_null() {
            let new = Box::into_raw(Box::new(Chunk::new()));
            match chunk.next.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => next = new,
                Err(other) => {
                    next = other;
                    // SAFETY: `new` lost the race and nobody else knows it.
                    drop(unsafe { Box::from_raw(new) });
                }
            }
        }
        // SAFETY: chunks are leaked, hence valid once published.
        chunk = unsafe { &*next };
    }
}

/// A descriptor that a forked child closes at once: sockets whose end another process watches, and listeners.
///
/// Dropping it in a child does nothing, since the number may by then belong to somebody else.
#[derive(Debug)]
pub struct ParentFd {
    fd: RawFd,
    place: &'static AtomicI32,
    generation: u32,
}

impl ParentFd {
    /// Takes over `fd`.
    pub fn new(fd: OwnedFd) -> Self {
        let generation = generation();
        let fd = fd.into_raw_fd();
        Self { fd, place: register(fd), generation }
    }

    /// Whether this process is the one that made it.
    pub fn is_ours(&self) -> bool {
        self.generation == generation()
    }
}

impl AsRawFd for ParentFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

impl AsFd for ParentFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` lives in the process that made it.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for ParentFd {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // Unregistered first: a fork in between leaks it to the child, the other order closes a stranger's there.
        self.place.store(0, Ordering::Release);
        // SAFETY: this value owns the descriptor and is going away.
        drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{eventfd::EventFd, pidfd};

    /// Runs `child` in a forked process; true when it returned true.
    fn in_fork(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs only the closure, which allocates nothing, and leaves by _exit.
        match unsafe { libc::fork() } {
            // SAFETY: _exit never returns and runs no handlers.
            0 => unsafe { libc::_exit(if child() { 0 } else { 1 }) },
            pid => pidfd::wait_exit(pid) == Some(0),
        }
    }

    #[test]
    fn a_child_sees_another_generation_and_the_parent_does_not() {
        let before = generation();
        assert!(in_fork(|| generation() == before + 1 && generation() == before + 1));
        assert_eq!(generation(), before);
    }

    #[test]
    fn a_grandchild_differs_from_the_child() {
        let before = generation();
        assert!(in_fork(|| {
            let child = generation();
            child != before && in_fork(|| generation() != child && generation() != before)
        }));
    }

    #[test]
    fn registered_descriptors_are_closed_in_the_child_only() {
        let fd = ParentFd::new(EventFd::new().unwrap().into());
        let raw = fd.as_raw_fd();
        // SAFETY: fcntl(F_GETFD) only asks.
        let is_open = |raw| unsafe { libc::fcntl(raw, libc::F_GETFD) } >= 0;
        assert!(in_fork(|| !is_open(raw)));
        assert!(is_open(raw));
        assert!(in_fork(|| {
            drop(fd);
            true
        }));
    }
}
