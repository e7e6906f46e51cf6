//! Buffers of `ibv_alloc_buf` for devices that have no memory of their own kind: page-aligned heap memory.
use crate::abi::{ibv_buf, ibv_pd};
use crate::sys::errno::Errno;
use crate::sys::log;
use std::ffi::c_void;
use std::ptr;

/// Allocates `size` bytes on a page boundary and describes them in `*buf`. NULL with errno EINVAL or ENOMEM otherwise.
///
/// # Safety
/// `pd` must be live and `buf` valid for writes, or null.
pub unsafe extern "C" fn alloc(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    if size == 0 || buf.is_null() {
        log::explain(format_args!(
            "ibv_alloc_buf size={size}: expected a size above 0 and a place for the handle"
        ));
        Errno::EINVAL.store();
        return ptr::null_mut();
    }
    let mut addr = ptr::null_mut();
    // SAFETY: sysconf and posix_memalign have no preconditions beyond a place for the address.
    let failed = unsafe { libc::posix_memalign(&mut addr, libc::sysconf(libc::_SC_PAGESIZE) as usize, size) };
    if failed != 0 {
        Errno::ENOMEM.store();
        return ptr::null_mut();
    }
    // SAFETY: checked above; the caller vouches for it.
    unsafe { *buf = Box::into_raw(Box::new(ibv_buf { addr, size, pd, dmabuf_fd: -1 })) };
    addr
}

/// Frees what `alloc` made.
///
/// # Safety
/// `buf` must come from `alloc` and be used by nobody any more, or be null.
pub unsafe extern "C" fn free(buf: *mut ibv_buf) {
    if !buf.is_null() {
        // SAFETY: `alloc` made both by these allocators.
        unsafe {
            libc::free((*buf).addr);
            drop(Box::from_raw(buf));
        }
    }
}
