//! Processes as descriptors: a pidfd polls readable once the whole process has exited.
use super::{errno::Errno, fd};
use std::os::fd::OwnedFd;

/// A descriptor for the process `pid` (as this PID namespace numbers it). ESRCH where there is none, ENOSYS before Linux 5.3.
pub fn open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: pidfd_open takes integers; the descriptor is close-on-exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    fd::adopt(fd as i32)
}

/// Waits for a child of this process and returns its exit status; None where a signal ended it.
#[cfg(test)]
pub fn wait_exit(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is ours; `pid` is a child that the test made.
    let n = unsafe { libc::waitpid(pid, &mut status, 0) };
    (n == pid && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::epoll;
    use std::os::fd::AsFd;

    #[test]
    fn a_pidfd_becomes_readable_when_the_process_is_gone() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let fd = open(child.id() as i32).unwrap();
        assert!(!epoll::is_ready(fd.as_fd(), epoll::IN, 0));
        child.kill().unwrap();
        assert!(epoll::is_ready(fd.as_fd(), epoll::IN, 10_000));
        child.wait().unwrap();
    }
}
