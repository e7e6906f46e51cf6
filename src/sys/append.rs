//! Appending to a file that others append to as well.
use super::errno::Errno;
use super::{fd, uncancelled};
use std::os::fd::AsRawFd;

/// Appends all of `bytes` in one call, so that what other processes append comes before or behind. The descriptor is open
/// with O_APPEND.
///
/// # Errors
/// What the kernel says, ENOSPC where it took only part: that is cut off again, unless another process has written behind
/// it.
pub fn whole(file: &impl AsRawFd, bytes: &[u8]) -> Result<(), Errno> {
    let number = file.as_raw_fd();
    // SAFETY: the bytes are a live slice.
    let wrote = unsafe { uncancelled::write(number, bytes.as_ptr().cast(), bytes.len()) };
    let wrote = i64::try_from(wrote).unwrap_or(-1);
    if wrote < 0 {
        return Err(Errno::last());
    }
    if wrote as usize == bytes.len() {
        return Ok(());
    }
    // SAFETY: plain calls on an open descriptor.
    unsafe {
        let end = libc::lseek(number, 0, libc::SEEK_CUR);
        if end >= wrote && fd::status(file).is_ok_and(|s| s.st_size == end) {
            libc::ftruncate(number, end - wrote);
        }
    }
    Err(Errno::ENOSPC)
}

/// Bytes that this process may make a file long (RLIMIT_FSIZE): beyond, the kernel would end it by a signal. `None`: any.
pub fn longest() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct has room for the answer.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
