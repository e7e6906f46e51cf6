//! The one place that talks to a device: everything else builds what is sent here.
use crate::abi::ib_uverbs_ioctl_hdr;
use crate::sys::errno::Errno;
use crate::sys::uncancelled;
use std::ffi::c_void;
use std::os::fd::RawFd;

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, 24 bytes)`.
const RDMA_VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;

/// Sends a command by ioctl(2).
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// Behind the head lie as many attributes as it says, and every address in them is valid for its length.
pub unsafe fn ioctl(fd: RawFd, hdr: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno> {
    #[cfg(test)]
    // SAFETY: the caller's promises are the double's.
    if let Some(result) = unsafe { super::super::double::ioctl(hdr) } {
        return result;
    }
    // SAFETY: the caller vouches for the message.
    match unsafe { libc::ioctl(fd, RDMA_VERBS_IOCTL as _, hdr) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Sends a command by write(2).
///
/// # Errors
/// The kernel's; EIO where it did not take the whole command.
///
/// # Safety
/// `request` is readable for `len` bytes, and every address in it valid for what the command does with it.
pub unsafe fn write(fd: RawFd, request: *const c_void, len: usize) -> Result<(), Errno> {
    #[cfg(test)]
    // SAFETY: the caller's promises are the double's.
    if let Some(result) = unsafe { super::super::double::write(request, len) } {
        return result;
    }
    // SAFETY: the caller vouches for the request.
    match unsafe { uncancelled::write(fd, request, len) } {
        n if n >= 0 && n as usize == len => Ok(()),
        n if n < 0 => Err(Errno::last()),
        _ => Err(Errno::EIO),
    }
}
