//! The library's part of a context: its private area, the marker that says "extended", and what is taken down again.
use super::layout::Layout;
use super::{LibraryOps, table};
use crate::abi::{ibv_context, ibv_device, verbs_context, verbs_context_ops, verbs_ex_private};
use crate::sys::pthread;
use std::mem::offset_of;
use std::ptr;

/// `abi_compat` of a context that lies in a `verbs_context` (`__VERBS_ABI_IS_EXTENDED`).
pub const EXTENDED: usize = usize::MAX;

/// What `verbs_context.priv` points to: rdma-core's part, which nothing outside the library looks into, then ours.
#[repr(C)]
pub struct Private {
    /// The ops that no inline function calls, and the ioctl bookkeeping of kernel devices.
    pub ex: verbs_ex_private,
    /// How the calls outside the table are served; none on a context whose provider did not say.
    pub library: Option<&'static LibraryOps>,
    /// What the provider was compiled for.
    pub layout: Layout,
}

/// Makes `vctx` an extended context of `device` whose every op says EOPNOTSUPP. Takes over `cmd_fd` (-1 for none);
/// `async_fd` starts as -1.
///
/// # Safety
/// `vctx` must be valid for writes and not yet in use; `device` must outlive it.
pub unsafe fn init(vctx: *mut verbs_context, device: *mut ibv_device, cmd_fd: i32, driver_id: u32) {
    // SAFETY: the caller's promises are this function's.
    unsafe { init_as(vctx, device, cmd_fd, driver_id, Layout::OURS) }
}

/// The same for a context of a compiled provider. `vctx` is where ours would begin: the first
/// [`Layout::context_shift`] bytes are not the provider's and are never touched.
///
/// # Safety
/// As for `init`, but for those bytes.
pub unsafe fn init_as(
    vctx: *mut verbs_context,
    device: *mut ibv_device,
    cmd_fd: i32,
    driver_id: u32,
    layout: Layout,
) {
    // SAFETY: all of it is plain data for which zero is a value: null pointers, `None`, numbers.
    let ex: verbs_ex_private = unsafe { std::mem::zeroed() };
    let mut private = Box::new(Private { ex, library: None, layout });
    private.ex.driver_id = driver_id;
    // SAFETY: the caller gives the memory to us; every field is a plain store.
    unsafe {
        ptr::write_bytes(vctx.wrapping_byte_add(layout.context_shift()).cast::<u8>(), 0, layout.context);
        (*vctx).r#priv = Box::into_raw(private).cast();
        (*vctx).sz = layout.context;
        let context = &raw mut (*vctx).context;
        (*context).device = device;
        (*context).cmd_fd = cmd_fd;
        (*context).async_fd = -1;
        (*context).abi_compat = ptr::without_provenance_mut(EXTENDED);
        libc::pthread_mutex_init(&raw mut (*context).mutex, ptr::null());
        table::set_ops(vctx, table::defaults());
    }
}

/// Says how the calls outside the ops table are served.
///
/// # Safety
/// `vctx` must have been through `init`.
pub unsafe fn set_library_ops(vctx: *mut verbs_context, library: &'static LibraryOps) {
    // SAFETY: `priv` was made by `init`.
    unsafe { (*(*vctx).r#priv.cast::<Private>()).library = Some(library) }
}

/// Undoes `init`: closes both fds, frees the private area. The memory of `vctx` stays the caller's.
///
/// # Safety
/// `vctx` must have been through `init`, once, and nobody may use it afterwards.
pub unsafe fn uninit(vctx: *mut verbs_context) {
    // SAFETY: made by `init`, and the last user is gone.
    unsafe {
        let context = &raw mut (*vctx).context;
        for fd in [(*context).cmd_fd, (*context).async_fd] {
            if fd >= 0 {
                libc::close(fd);
            }
        }
        drop(Box::from_raw((*vctx).r#priv.cast::<Private>()));
        (*vctx).r#priv = ptr::null_mut();
        libc::pthread_mutex_destroy(&raw mut (*context).mutex);
    }
}

/// The `verbs_context` around a context; none where the context is not extended.
///
/// # Safety
/// `context` must point to a live context.
#[inline]
pub unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the marker says that the context is embedded in a verbs_context.
    unsafe {
        ((*context).abi_compat.addr() == EXTENDED)
            .then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>())
    }
}

/// The complete ops of a context.
///
/// # Safety
/// `context` must point to a live context that `init` made.
#[inline]
pub unsafe fn ops<'a>(context: *mut ibv_context) -> &'a verbs_context_ops {
    // SAFETY: `init` filled `priv`, and the ops do not change while the context lives.
    unsafe { &(*private(context)).ex.ops }
}

/// The library's private area of a context.
///
/// # Safety
/// As for `ops`.
#[inline]
pub unsafe fn private(context: *mut ibv_context) -> *mut Private {
    // SAFETY: every context of this library is embedded in a verbs_context.
    unsafe {
        (*context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>())
            .r#priv
            .cast::<Private>()
    }
}

/// Runs `f` under the context's own mutex.
///
/// # Safety
/// `context` must be live; `f` must not take the mutex again.
pub unsafe fn with_mutex<R>(context: *mut ibv_context, f: impl FnOnce() -> R) -> R {
    // SAFETY: `init` made the mutex.
    unsafe { pthread::with(&raw mut (*context).mutex, f) }
}
