//! Buffers that the provider allocates, their dma-bufs, DMA handles and port speed (rdma-core 59 to 65).
use std::{
    ffi::{c_int, c_void},
    ptr,
};

use crate::{abi::*, provider::context, sys::errno::Errno};

export!(ibv_alloc_buf => "ibv_alloc_buf" @@ "IBVERBS_1.17");
export!(ibv_free_buf => "ibv_free_buf" @@ "IBVERBS_1.17");
export!(ibv_export_buf_dmabuf_fd => "ibv_export_buf_dmabuf_fd" @@ "IBVERBS_1.18");
export!(ibv_dm_export_dmabuf_fd => "ibv_dm_export_dmabuf_fd" @@ "IBVERBS_1.16");
export!(ibv_alloc_dmah => "ibv_alloc_dmah" @@ "IBVERBS_1.15");
export!(ibv_dealloc_dmah => "ibv_dealloc_dmah" @@ "IBVERBS_1.15");
export!(ibv_query_port_speed => "ibv_query_port_speed" @@ "IBVERBS_1.16");

/// Allocates memory of the kind that suits the domain, page aligned, and a handle to it. NULL with errno on failure.
unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    if pd.is_null() {
        return null(Errno::EINVAL);
    }
    // SAFETY: the domain is live; the slot checks the rest.
    unsafe {
        context::ops((*pd).context).alloc_buf.map_or_else(|| null(Errno::EOPNOTSUPP), |op| op(pd, size, buf))
    }
}

/// Frees a buffer of `ibv_alloc_buf`; its domain must still be there.
unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    if buf.is_null() {
        return;
    }
    // SAFETY: the buffer is live, and so is its domain.
    unsafe {
        if let Some(op) = context::ops((*(*buf).pd).context).free_buf {
            op(buf)
        }
    }
}

/// A new descriptor of the dma-buf behind a buffer, or -1 with errno: ENODATA where there is none.
unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    if buf.is_null() {
        return minus_one(Errno::EINVAL);
    }
    // SAFETY: the buffer is live; fcntl on any number is harmless.
    unsafe {
        match (*buf).dmabuf_fd {
            fd @ 0.. => libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0),
            _ => minus_one(Errno::ENODATA),
        }
    }
}

/// A dma-buf descriptor of device memory, or -1 with errno.
unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    if dm.is_null() {
        return minus_one(Errno::EINVAL);
    }
    // SAFETY: the device memory is live, and so is its context.
    unsafe {
        context::ops((*dm).context)
            .dm_export_dmabuf_fd
            .map_or_else(|| minus_one(Errno::EOPNOTSUPP), |op| op(dm))
    }
}

/// A DMA handle; NULL with errno on failure.
unsafe extern "C" fn ibv_alloc_dmah(ctx: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah {
    if ctx.is_null() || attr.is_null() {
        return null(Errno::EINVAL);
    }
    // SAFETY: the context is open and the attributes are readable.
    unsafe {
        let dmah = context::ops(ctx).alloc_dmah.map_or_else(|| null(Errno::EOPNOTSUPP), |op| op(ctx, attr));
        if let Some(dmah) = dmah.as_mut() {
            dmah.context = ctx;
        }
        dmah
    }
}

/// Frees a DMA handle that no region uses. 0 or errno value.
unsafe extern "C" fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    if dmah.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the handle is live, and so is its context.
    unsafe { context::ops((*dmah).context).dealloc_dmah.map_or(Errno::EOPNOTSUPP.0, |op| op(dmah)) }
}

/// Effective speed of a port in units of 100 Mb/s. 0 or errno value.
unsafe extern "C" fn ibv_query_port_speed(ctx: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    if ctx.is_null() || speed.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the context is open and the result has a place.
    unsafe { context::ops(ctx).query_port_speed.map_or(Errno::EOPNOTSUPP.0, |op| op(ctx, port, speed)) }
}

fn null<T>(e: Errno) -> *mut T {
    e.store();
    ptr::null_mut()
}

fn minus_one(e: Errno) -> c_int {
    e.store();
    -1
}
