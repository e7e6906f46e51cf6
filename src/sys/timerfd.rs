//! A deadline that polls readable.
use super::{errno::Errno, fd, uncancelled};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// A timerfd on CLOCK_MONOTONIC, non-blocking and close-on-exec.
#[derive(Debug)]
pub struct TimerFd(OwnedFd);

impl TimerFd {
    /// A timer that is not set.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: timerfd_create takes integers.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        Ok(Self(fd::adopt(fd)?))
    }

    /// Sets it to `at` (as [`super::clock::now_ns`]); a moment that has passed makes it readable at once.
    pub fn arm(&self, at: u64) {
        self.set(at.max(1));
    }

    /// Unsets it and makes it unreadable.
    pub fn disarm(&self) {
        self.set(0);
    }

    /// Makes it unreadable until it is set again; whether it had run out.
    pub fn drain(&self) -> bool {
        let mut count = 0u64;
        // SAFETY: eight bytes of ours.
        unsafe { uncancelled::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
    }

    fn set(&self, at: u64) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: (at / 1_000_000_000) as libc::time_t,
            tv_nsec: (at % 1_000_000_000) as libc::c_long,
        };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: `spec` is ours and lives through the call; the old value is not asked for.
        unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut())
        };
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{clock, epoll};

    #[test]
    fn a_deadline_in_the_past_is_readable_at_once_and_disarming_undoes_it() {
        let t = TimerFd::new().unwrap();
        assert!(!t.drain());
        t.arm(clock::now_ns());
        assert!(epoll::is_ready(t.as_fd(), epoll::IN, 1000));
        t.disarm();
        assert!(!epoll::is_ready(t.as_fd(), epoll::IN, 0));
        t.arm(1);
        assert!(epoll::is_ready(t.as_fd(), epoll::IN, 1000) && t.drain());
    }
}
