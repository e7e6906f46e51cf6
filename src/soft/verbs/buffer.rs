//! Buffers of `ibv_alloc_buf`: memory files of a size that stays, which other processes can map as they are.
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::memory::null;
use crate::abi::{ibv_buf, ibv_pd};
use crate::provider::buffer;
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use crate::sys::map::{DeviceMapping, page_size};
use crate::sys::memfd;

/// Buffers of this kind at a time: each holds a descriptor, of which programs with many buffers need some themselves. Further ones lie
/// on the heap.
const MOST: usize = 256;
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// A buffer in a memory file; `c.dmabuf_fd` is the file's descriptor. A forked child has the same memory, as of any device.
#[repr(C)]
struct Buffer {
    c: ibv_buf,
    _memory: DeviceMapping,
    _file: OwnedFd,
    _counted: Counted,
}

/// One of `MOST`.
struct Counted;

impl Counted {
    fn new() -> Option<Self> {
        let more = |live| (live < MOST).then_some(live + 1);
        LIVE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Allocates `size` bytes on a page boundary. NULL with errno EINVAL or ENOMEM otherwise. Also by a forked child over its parent's
/// context.
pub unsafe extern "C" fn alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    if size == 0 || buf.is_null() {
        explain(format_args!(
            "ibv_alloc_buf size={size}: expected a size above 0 and a place for the handle"
        ));
        return null(Errno::EINVAL);
    }
    match make(pd, size) {
        Some(made) => {
            let addr = made.c.addr;
            // SAFETY: the caller's place for the handle.
            unsafe { *buf = Box::into_raw(Box::new(made)).cast() };
            addr
        }
        // SAFETY: the library passes a live PD, the caller a place for the handle.
        None => unsafe { buffer::alloc(pd, size, buf) },
    }
}

/// None where there are no descriptors for it, or no such files.
fn make(pd: *mut ibv_pd, size: usize) -> Option<Buffer> {
    let counted = Counted::new()?;
    let whole = size.checked_next_multiple_of(page_size())?;
    let file = memfd::sealed(c"anyverbs-buf", whole).ok()?;
    let memory = DeviceMapping::new(file.as_raw_fd(), 0, whole).ok()?;
    let c = ibv_buf { addr: memory.base().cast(), size, pd, dmabuf_fd: file.as_raw_fd() };
    Some(Buffer { c, _memory: memory, _file: file, _counted: counted })
}

/// Frees a buffer; a forked child lets go of its view of it.
pub unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    // SAFETY: the library passes null or what `alloc_buf` gave; only those in files have a descriptor.
    unsafe {
        match buf.as_ref() {
            Some(c) if c.dmabuf_fd >= 0 => drop(Box::from_raw(buf.cast::<Buffer>())),
            _ => buffer::free(buf),
        }
    }
}
