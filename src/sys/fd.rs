//! Descriptors of the library stay out of 0 to 2: where those are closed, the application still means its own input,
//! output and errors by them.
use super::errno::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The lowest number that the library keeps.
const FLOOR: RawFd = 3;

/// Takes over what a call has just returned: a new descriptor of nobody else's, or -1 with errno. It comes back with a
/// number above 2, and close-on-exec if it had to move.
///
/// # Errors
/// The call's; EMFILE where no number above 2 is free.
pub fn adopt(fd: RawFd) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the caller has the descriptor from the kernel and hands it over.
    lift(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The same for a descriptor that has an owner already.
pub fn lift(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    lift_above(fd, FLOOR)
}

/// A second descriptor, above 2, for what `fd` is open on.
///
/// # Errors
/// EMFILE, and EBADF for one that is not open.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd, Errno> {
    duplicate_above(fd, FLOOR)
}

/// fstat(2).
///
/// # Errors
/// EBADF where it is not open.
pub fn status(fd: &impl AsRawFd) -> Result<libc::stat, Errno> {
    // SAFETY: integers only; zero is a value of each.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` has room for the answer.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut status) } != 0 {
        return Err(Errno::last());
    }
    Ok(status)
}

fn lift_above(fd: OwnedFd, floor: RawFd) -> Result<OwnedFd, Errno> {
    if fd.as_raw_fd() >= floor { Ok(fd) } else { duplicate_above(fd.as_raw_fd(), floor) }
}

fn duplicate_above(fd: RawFd, floor: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: duplicating changes nothing of the descriptor.
    let new = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) };
    if new < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor the kernel just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{epoll, eventfd::EventFd};
    use std::os::fd::AsFd;

    #[test]
    fn a_low_descriptor_moves_up_and_stays_what_it_was() {
        let event = EventFd::new().unwrap();
        let kept = duplicate(event.as_raw_fd()).unwrap();
        let number = kept.as_raw_fd();
        let kept = lift(kept).unwrap();
        assert_eq!(kept.as_raw_fd(), number);
        let moved = lift_above(kept, number + 1).unwrap();
        assert!(moved.as_raw_fd() > number);
        event.signal();
        assert!(epoll::is_ready(moved.as_fd(), epoll::IN, 0));
    }

    #[test]
    fn a_failed_call_keeps_its_errno() {
        Errno::EACCES.store();
        assert_eq!(adopt(-1).unwrap_err(), Errno::EACCES);
        assert_eq!(duplicate(-1).unwrap_err(), Errno::EBADF);
    }
}
