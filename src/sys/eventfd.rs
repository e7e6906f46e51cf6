//! A counter that polls readable while it is not zero.
use super::{errno::Errno, fd, uncancelled};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// An eventfd, non-blocking and close-on-exec.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A counter of zero. EMFILE, ENFILE, ENOMEM as eventfd(2).
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: eventfd takes integers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Ok(Self(fd::adopt(fd)?))
    }

    /// Makes it readable.
    pub fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of ours; a full counter (EAGAIN) is readable already.
        unsafe { uncancelled::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable; whether it was readable.
    pub fn drain(&self) -> bool {
        let mut count = 0u64;
        // SAFETY: eight bytes of ours.
        unsafe { uncancelled::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(e: EventFd) -> Self {
        e.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_add_up_to_one_drain() {
        let e = EventFd::new().unwrap();
        assert!(!e.drain());
        e.signal();
        e.signal();
        assert!(e.drain() && !e.drain());
    }
}
