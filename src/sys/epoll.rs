//! Waiting for descriptors.
use super::{errno::Errno, fd, uncancelled};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Readable.
pub const IN: u32 = libc::EPOLLIN as u32;
/// Writable.
pub const OUT: u32 = libc::EPOLLOUT as u32;
/// Error; always reported.
pub const ERR: u32 = libc::EPOLLERR as u32;
/// Hang-up; always reported.
pub const HUP: u32 = libc::EPOLLHUP as u32;
/// The other side has shut down its sending half.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Report changes only.
pub const EDGE: u32 = libc::EPOLLET as u32;

/// What [`Epoll::wait`] fills in.
pub type Event = libc::epoll_event;

/// An empty event, to make the array for [`Epoll::wait`] of.
pub const NO_EVENT: Event = Event { events: 0, u64: 0 };

/// An epoll descriptor, close-on-exec.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set. EMFILE, ENFILE, ENOMEM as epoll_create1(2).
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: epoll_create1 takes an int.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        Ok(Self(fd::adopt(fd)?))
    }

    /// Watches `fd` for `events`; `token` comes back in the event's `u64`.
    pub fn add(&self, fd: BorrowedFd<'_>, events: u32, token: u64) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    /// Changes what `fd` is watched for.
    pub fn modify(&self, fd: BorrowedFd<'_>, events: u32, token: u64) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    /// Stops watching `fd`; needed before closing it, since a forked child's copy would keep it in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits at most `timeout_ms` (-1: for ever) and returns the events; none after a signal.
    ///
    /// # Errors
    /// EBADF or EINVAL where somebody else has closed the descriptor: there will never be an event again.
    pub fn wait<'a>(&self, events: &'a mut [Event], timeout_ms: i32) -> Result<&'a [Event], Errno> {
        let max = events.len().min(i32::MAX as usize) as i32;
        // SAFETY: the kernel writes at most `max` events into the array.
        let n = unsafe { uncancelled::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), max, timeout_ms) };
        match usize::try_from(n) {
            Ok(n) => Ok(&events[..n]),
            Err(_) => match Errno::last() {
                Errno::EINTR => Ok(&[]),
                e => Err(e),
            },
        }
    }

    fn control(&self, op: i32, fd: BorrowedFd<'_>, events: u32, token: u64) -> Result<(), Errno> {
        let mut event = Event { events, u64: token };
        // SAFETY: `event` is ours and lives through the call.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Which of `events`, and of ERR and HUP, hold for `fd` now or within `timeout_ms` (poll(2)).
pub fn poll(fd: BorrowedFd<'_>, events: u32, timeout_ms: i32) -> u32 {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events: events as i16, revents: 0 };
    match uncancelled::poll(&mut p, timeout_ms) {
        1 => u32::from(p.revents as u16),
        _ => 0,
    }
}

/// Reads one record of the kernel's, and waits for it where the descriptor blocks. A cancelled thread ends here, as in
/// `wait_cancellable`.
///
/// # Errors
/// read(2)'s: EAGAIN where the descriptor does not block, EINTR after a signal, EIO where the device is gone; EIO for half a record.
#[inline(never)]
pub fn read_cancellable<const N: usize>(fd: RawFd, record: &mut [u64; N]) -> Result<(), Errno> {
    // As in `wait_cancellable`.
    #[cfg(panic = "unwind")]
    unsafe extern "C-unwind" {
        fn read(fd: libc::c_int, to: *mut libc::c_void, len: usize) -> isize;
    }
    #[cfg(not(panic = "unwind"))]
    use libc::read;
    let size = size_of_val(record);
    // SAFETY: the record has the size that is told.
    match unsafe { read(fd, record.as_mut_ptr().cast(), size) } {
        n if n < 0 => Err(Errno::last()),
        n if n as usize == size => Ok(()),
        _ => Err(Errno::EIO),
    }
}

/// Waits until one of `fds` is readable (-1: none); false when a signal came. A cancelled thread ends here (pthread_cancel(3)) and unwinds
/// through the callers, which must have nothing to clean up and no fence against panics.
#[inline(never)]
pub fn wait_cancellable(fds: [RawFd; 2]) -> bool {
    // Declared here, since libc says that it never unwinds; where panics abort nothing else may, either, and a call
    // without a landing pad lets the unwinding pass.
    #[cfg(panic = "unwind")]
    unsafe extern "C-unwind" {
        fn poll(fds: *mut libc::pollfd, n: libc::nfds_t, timeout_ms: libc::c_int) -> libc::c_int;
    }
    #[cfg(not(panic = "unwind"))]
    use libc::poll;
    let mut p = fds.map(|fd| libc::pollfd { fd, events: IN as i16, revents: 0 });
    loop {
        // SAFETY: pollfds of ours.
        let got = unsafe { poll(p.as_mut_ptr(), p.len() as libc::nfds_t, -1) };
        let [first, second] = &mut p;
        // The application has closed what is not its own: there is the first one to wait for.
        let is_closed = second.revents & libc::POLLNVAL != 0 && first.revents == 0;
        if !is_closed {
            return got > 0;
        }
        second.fd = -1;
    }
}

/// Whether `fd` shows one of `events` now or within `timeout_ms`.
pub fn is_ready(fd: BorrowedFd<'_>, events: u32, timeout_ms: i32) -> bool {
    poll(fd, events, timeout_ms) & events != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::eventfd::EventFd;

    #[test]
    fn a_set_that_is_no_longer_one_is_an_error_and_not_nothing() {
        let stranger = Epoll(EventFd::new().unwrap().into());
        assert_eq!(stranger.wait(&mut [NO_EVENT; 1], -1).unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn events_carry_their_token() {
        let (epoll, a, b) = (Epoll::new().unwrap(), EventFd::new().unwrap(), EventFd::new().unwrap());
        epoll.add(a.as_fd(), IN, 1).unwrap();
        epoll.add(b.as_fd(), IN, 2).unwrap();
        let mut events = [NO_EVENT; 4];
        assert!(epoll.wait(&mut events, 0).unwrap().is_empty());
        b.signal();
        let got = epoll.wait(&mut events, 1000).unwrap();
        assert_eq!((got.len(), { got[0].u64 }), (1, 2));
        epoll.remove(b.as_fd());
        assert!(epoll.wait(&mut events, 0).unwrap().is_empty());
    }
}
