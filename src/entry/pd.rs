//! Protection domains, device memory and DMA handles, as far as they are exported functions.
use crate::abi::*;
use crate::core::convention::{code, given, minus_one, nothing, pointer};
use crate::provider::context;
use crate::sys::errno::Errno;
use std::ffi::c_int;

export!(ibv_alloc_pd => "ibv_alloc_pd" @@ "IBVERBS_1.1");
export!(ibv_dealloc_pd => "ibv_dealloc_pd" @@ "IBVERBS_1.1");
export!(ibv_import_pd => "ibv_import_pd" @@ "IBVERBS_1.10");
export!(ibv_unimport_pd => "ibv_unimport_pd" @@ "IBVERBS_1.10");
export!(ibv_import_dm => "ibv_import_dm" @@ "IBVERBS_1.13");
export!(ibv_unimport_dm => "ibv_unimport_dm" @@ "IBVERBS_1.13");
export!(ibv_dm_export_dmabuf_fd => "ibv_dm_export_dmabuf_fd" @@ "IBVERBS_1.16");
export!(ibv_alloc_dmah => "ibv_alloc_dmah" @@ "IBVERBS_1.15");
export!(ibv_dealloc_dmah => "ibv_dealloc_dmah" @@ "IBVERBS_1.15");

/// A new protection domain.
pub(super) unsafe extern "C" fn ibv_alloc_pd(ctx: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        given(ctx, "ibv_alloc_pd", "context")?;
        // SAFETY: a live context; the op's PD is ours to complete.
        unsafe {
            let pd = context::ops(ctx).alloc_pd.ok_or(Errno::EOPNOTSUPP)?(ctx);
            if !pd.is_null() {
                (*pd).context = ctx;
            }
            Ok(pd)
        }
    })
}

/// EBUSY while anything lives in it.
pub(super) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    code(|| {
        given(pd, "ibv_dealloc_pd", "pd")?;
        // SAFETY: a live PD.
        unsafe { Ok(context::ops((*pd).context).dealloc_pd.ok_or(Errno::EOPNOTSUPP)?(pd)) }
    })
}

/// The PD that another process named by `handle`.
pub(super) unsafe extern "C" fn ibv_import_pd(ctx: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    pointer(|| {
        given(ctx, "ibv_import_pd", "context")?;
        // SAFETY: a live context.
        unsafe {
            let pd = context::ops(ctx).import_pd.ok_or(Errno::EOPNOTSUPP)?(ctx, handle);
            if !pd.is_null() {
                (*pd).context = ctx;
            }
            Ok(pd)
        }
    })
}

/// Gives an imported PD back.
pub(super) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    nothing(|| {
        if given(pd, "ibv_unimport_pd", "pd").is_ok() {
            // SAFETY: a live PD.
            unsafe {
                if let Some(op) = context::ops((*pd).context).unimport_pd {
                    op(pd);
                }
            }
        }
    });
}

/// The device memory that another process named by `handle`.
pub(super) unsafe extern "C" fn ibv_import_dm(ctx: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    pointer(|| {
        given(ctx, "ibv_import_dm", "context")?;
        // SAFETY: a live context.
        unsafe {
            let dm = context::ops(ctx).import_dm.ok_or(Errno::EOPNOTSUPP)?(ctx, handle);
            if !dm.is_null() {
                (*dm).context = ctx;
            }
            Ok(dm)
        }
    })
}

/// Gives imported device memory back.
pub(super) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    nothing(|| {
        if given(dm, "ibv_unimport_dm", "dm").is_ok() {
            // SAFETY: live device memory.
            unsafe {
                if let Some(op) = context::ops((*dm).context).unimport_dm {
                    op(dm);
                }
            }
        }
    });
}

/// A dma-buf over device memory: a file descriptor, or -1 with errno.
pub(super) unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    minus_one(|| {
        given(dm, "ibv_dm_export_dmabuf_fd", "dm")?;
        // SAFETY: live device memory.
        unsafe { Ok(context::ops((*dm).context).dm_export_dmabuf_fd.ok_or(Errno::EOPNOTSUPP)?(dm)) }
    })
}

/// A DMA handle.
pub(super) unsafe extern "C" fn ibv_alloc_dmah(
    ctx: *mut ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    pointer(|| {
        given(ctx, "ibv_alloc_dmah", "context")?;
        given(attr, "ibv_alloc_dmah", "attr")?;
        // SAFETY: a live context and readable attributes.
        unsafe {
            let dmah = context::ops(ctx).alloc_dmah.ok_or(Errno::EOPNOTSUPP)?(ctx, attr);
            if !dmah.is_null() {
                (*dmah).context = ctx;
            }
            Ok(dmah)
        }
    })
}

/// Frees a DMA handle.
pub(super) unsafe extern "C" fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    code(|| {
        given(dmah, "ibv_dealloc_dmah", "dmah")?;
        // SAFETY: a live handle.
        unsafe { Ok(context::ops((*dmah).context).dealloc_dmah.ok_or(Errno::EOPNOTSUPP)?(dmah)) }
    })
}
