//! Memory regions: registering, changing, deregistering; buffers that the library allocates.
use crate::abi::*;
use crate::core::convention::{code, given, minus_one, nothing, pointer, refuse};
use crate::core::dontfork;
use crate::provider::{Events, context};
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;

export!(ibv_reg_mr => "ibv_reg_mr" @@ "IBVERBS_1.1");
export!(ibv_reg_mr_iova => "ibv_reg_mr_iova" @@ "IBVERBS_1.7");
export!(ibv_reg_mr_iova2 => "ibv_reg_mr_iova2" @@ "IBVERBS_1.8");
export!(ibv_reg_dmabuf_mr => "ibv_reg_dmabuf_mr" @@ "IBVERBS_1.12");
export!(ibv_reg_mr_ex => "ibv_reg_mr_ex" @@ "IBVERBS_1.15");
export!(ibv_rereg_mr => "ibv_rereg_mr" @@ "IBVERBS_1.1");
export!(ibv_dereg_mr => "ibv_dereg_mr" @@ "IBVERBS_1.1");
export!(ibv_import_mr => "ibv_import_mr" @@ "IBVERBS_1.10");
export!(ibv_unimport_mr => "ibv_unimport_mr" @@ "IBVERBS_1.10");
export!(ibv_alloc_buf => "ibv_alloc_buf" @@ "IBVERBS_1.17");
export!(ibv_free_buf => "ibv_free_buf" @@ "IBVERBS_1.17");
export!(ibv_reg_buf_mr => "ibv_reg_buf_mr" @@ "IBVERBS_1.17");
export!(ibv_export_buf_dmabuf_fd => "ibv_export_buf_dmabuf_fd" @@ "IBVERBS_1.18");

/// Registers `length` bytes at `addr` for local and remote use as `access` says.
pub(super) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the application's arguments go on unchanged.
    pointer(|| unsafe { register("ibv_reg_mr", pd, addr, length, addr.addr() as u64, access as u32) })
}

/// As `ibv_reg_mr`, with `iova` as the address that work requests use.
pub(super) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as above.
    pointer(|| unsafe { register("ibv_reg_mr_iova", pd, addr, length, iova, access as u32) })
}

/// What the macros of newer headers call for both: `access` may hold optional flags.
pub(super) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: as above.
    pointer(|| unsafe { register("ibv_reg_mr", pd, addr, length, iova, access) })
}

/// Registers part of a dma-buf; `mr->addr` is the offset.
pub(super) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| {
        given(pd, "ibv_reg_dmabuf_mr", "pd")?;
        let access = check_access("ibv_reg_dmabuf_mr", access as u32)? as c_int;
        // SAFETY: a live PD.
        unsafe {
            let op = context::ops((*pd).context).reg_dmabuf_mr.ok_or(Errno::EOPNOTSUPP)?;
            Ok(complete(op(pd, offset, length, iova, fd, access), pd, offset as *mut c_void, length))
        }
    })
}

/// Registers what `attr.comp_mask` describes.
pub(super) unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    pointer(|| {
        given(pd, "ibv_reg_mr_ex", "pd")?;
        given(attr, "ibv_reg_mr_ex", "mr_init_attr")?;
        // SAFETY: a live PD and the application's attributes.
        unsafe {
            let mut a = *attr;
            a.access = check_access("ibv_reg_mr_ex", a.access as u32)? as c_int;
            let op = context::ops((*pd).context).reg_mr_ex.ok_or(Errno::EOPNOTSUPP)?;
            let by_fd = a.comp_mask & IBV_REG_MR_MASK_FD != 0;
            let mr = if by_fd {
                op(pd, &mut a)
            } else {
                let (addr, length, access) = (a.addr, a.length, a.access as u32);
                let mut make = || op(pd, &mut a);
                if dontfork::is_out() { make() } else { pinned((*pd).context, addr, length, access, make)? }
            };
            Ok(complete(mr, pd, if by_fd { a.fd_offset as *mut c_void } else { a.addr }, a.length))
        }
    })
}

/// Changes a region in place. 0 or one of `IBV_REREG_MR_ERR_*`; `ERR_INPUT` leaves the region as it was.
pub(super) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let mut outcome = IBV_REREG_MR_ERR_INPUT;
    let done = code(|| {
        given(mr, "ibv_rereg_mr", "mr")?;
        let has = |bit| flags as u32 & bit != 0;
        let mut access = access as u32;
        let wrong = if flags == 0 || has(!IBV_REREG_MR_FLAGS_SUPPORTED) {
            Some("flags of IBV_REREG_MR_CHANGE_*")
        } else if has(IBV_REREG_MR_CHANGE_TRANSLATION) && (addr.is_null() || length == 0) {
            Some("addr and length with IBV_REREG_MR_CHANGE_TRANSLATION")
        } else if access != 0 && !has(IBV_REREG_MR_CHANGE_ACCESS) {
            Some("access 0 without IBV_REREG_MR_CHANGE_ACCESS")
        } else if has(IBV_REREG_MR_CHANGE_PD) && pd.is_null() {
            Some("a pd with IBV_REREG_MR_CHANGE_PD")
        // SAFETY: every MR of this library is the head of a verbs_mr.
        } else if unsafe { (*mr.cast::<verbs_mr>()).mr_type } != IBV_MR_TYPE_MR {
            Some("a region made by ibv_reg_mr")
        } else {
            None
        };
        if let Some(expected) = wrong {
            return Err(refuse!(
                EINVAL,
                "ibv_rereg_mr mr={mr:p} flags=0x{flags:x} addr={addr:p} length={length} access=0x{access:x}: expected {expected}"
            ));
        }
        if has(IBV_REREG_MR_CHANGE_ACCESS) {
            access = check_access("ibv_rereg_mr", access)?;
        }
        // SAFETY: a live MR and, where one is given, a live PD.
        unsafe {
            let op = context::ops((*mr).context).rereg_mr.ok_or(Errno::EOPNOTSUPP)?;
            let old = pinned_memory(mr).filter(|_| has(IBV_REREG_MR_CHANGE_TRANSLATION));
            if old.is_some()
                && let Err(e) = dontfork::pin(addr.expose_provenance(), length)
            {
                outcome = IBV_REREG_MR_ERR_DONT_FORK_NEW;
                return Err(e);
            }
            // A provider says how far it came, or else gives an errno.
            let failed = op(mr.cast(), flags, pd, addr, length, access as c_int);
            if failed != 0 {
                let why = Errno::last();
                if old.is_some() {
                    _ = dontfork::unpin(addr.expose_provenance(), length);
                }
                why.store();
                let known = (IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW..=IBV_REREG_MR_ERR_INPUT).contains(&failed);
                outcome = if known { failed } else { IBV_REREG_MR_ERR_CMD };
                return Err(Errno::last());
            }
            if has(IBV_REREG_MR_CHANGE_PD) {
                (*mr).pd = pd;
                (*mr).context = (*pd).context;
            }
            if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
                (*mr).addr = addr;
                (*mr).length = length;
            }
            if has(IBV_REREG_MR_CHANGE_ACCESS) {
                (*mr.cast::<verbs_mr>()).access = access as c_int;
            }
            if let Some((start, length)) = old
                && let Err(e) = dontfork::unpin(start, length)
            {
                outcome = IBV_REREG_MR_ERR_DO_FORK_OLD;
                return Err(e);
            }
        }
        Ok(0)
    });
    if done == 0 { 0 } else { outcome }
}

/// EBUSY while a memory window is bound to it.
pub(super) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    code(|| {
        given(mr, "ibv_dereg_mr", "mr")?;
        // SAFETY: a live MR, the head of a verbs_mr.
        unsafe {
            let op = context::ops((*mr).context).dereg_mr.ok_or(Errno::EOPNOTSUPP)?;
            Ok(if dontfork::is_out() { op(mr.cast()) } else { deregister(op, mr) })
        }
    })
}

/// The region that another process named by `handle`.
pub(super) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    pointer(|| {
        given(pd, "ibv_import_mr", "pd")?;
        // SAFETY: a live PD.
        unsafe {
            let mr = context::ops((*pd).context).import_mr.ok_or(Errno::EOPNOTSUPP)?(pd, handle);
            if !mr.is_null() {
                (*mr).context = (*pd).context;
                (*mr).pd = pd;
            }
            Ok(mr)
        }
    })
}

/// Gives an imported region back.
pub(super) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    nothing(|| {
        if given(mr, "ibv_unimport_mr", "mr").is_ok() {
            // SAFETY: a live MR.
            unsafe {
                if let Some(op) = context::ops((*mr).context).unimport_mr {
                    op(mr);
                }
            }
        }
    });
}

/// A buffer of the kind that suits the PD's device; its address, and in `*buf` its handle.
pub(super) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    pointer(|| {
        given(pd, "ibv_alloc_buf", "pd")?;
        given(buf, "ibv_alloc_buf", "buf")?;
        // SAFETY: a live PD and a place for the handle.
        unsafe { Ok(context::ops((*pd).context).alloc_buf.ok_or(Errno::EOPNOTSUPP)?(pd, size, buf)) }
    })
}

/// Frees such a buffer while its PD still lives.
pub(super) unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    nothing(|| {
        if !buf.is_null() {
            // SAFETY: a buffer from ibv_alloc_buf.
            unsafe {
                if let Some(op) = context::ops((*(*buf).pd).context).free_buf {
                    op(buf);
                }
            }
        }
    });
}

/// Registers part of such a buffer.
pub(super) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attr = ibv_mr_init_attr::zeroed();
    attr.comp_mask = IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR;
    (attr.buf, attr.addr, attr.length, attr.access) = (buf, addr, length, access);
    // SAFETY: the application's arguments go on unchanged.
    unsafe { ibv_reg_mr_ex(pd, &mut attr) }
}

/// A dma-buf over such a buffer: a file descriptor, or -1 with ENODATA where plain memory stands behind it.
pub(super) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    minus_one(|| {
        given(buf, "ibv_export_buf_dmabuf_fd", "buf")?;
        // SAFETY: a buffer from ibv_alloc_buf.
        let fd = unsafe { (*buf).dmabuf_fd };
        if fd < 0 {
            return Err(refuse!(
                ENODATA,
                "ibv_export_buf_dmabuf_fd buf={buf:p}: no dma-buf stands behind it"
            ));
        }
        Ok(crate::sys::fd::duplicate(fd)?.into_raw_fd())
    })
}

/// # Safety
/// `pd` must be live or NULL.
unsafe fn register(
    call: &str,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    given(pd, call, "pd")?;
    let asked = access;
    let access = check_access(call, access)?;
    if addr.addr().checked_add(length).is_none() {
        return Err(refuse!(EINVAL, "{call} addr={addr:p} length={length}: the range wraps around"));
    }
    // SAFETY: a live PD.
    unsafe {
        let op = context::ops((*pd).context).reg_mr.ok_or(Errno::EOPNOTSUPP)?;
        let access = access | optional_access(pd, asked);
        let make = || op(pd, addr, length, iova, access as c_int);
        let mr = if dontfork::is_out() { make() } else { pinned((*pd).context, addr, length, access, make)? };
        Ok(complete(mr, pd, addr, length))
    }
}

/// Registers by `make`, as long as there may be protection; where the kernel pins the memory, children may not get it.
///
/// # Safety
/// `ctx` must be live.
#[cold]
#[inline(never)]
unsafe fn pinned(
    ctx: *mut ibv_context,
    addr: *mut c_void,
    length: usize,
    access: u32,
    make: impl FnOnce() -> *mut ibv_mr,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller vouches for the context.
    if !unsafe { pins(ctx, access) } {
        return Ok(make());
    }
    let start = addr.expose_provenance();
    dontfork::pin(start, length)?;
    let mr = make();
    if mr.is_null() {
        let why = Errno::last();
        // What it had been told was undone.
        _ = dontfork::unpin(start, length);
        why.store();
    }
    Ok(mr)
}

/// Deregisters by `op`, as long as there may be protection, which then ends.
///
/// # Safety
/// `mr` must be a live region, the head of a `verbs_mr`, and `op` what deregisters it.
#[cold]
#[inline(never)]
unsafe fn deregister(op: unsafe extern "C" fn(*mut verbs_mr) -> c_int, mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller vouches for both.
    unsafe {
        let memory = pinned_memory(mr);
        let rc = op(mr.cast());
        if let Some((start, length)) = memory.filter(|_| rc == 0) {
            // The application may have unmapped it.
            _ = dontfork::unpin(start, length);
        }
        rc
    }
}

/// Whether registering with this access pins the memory.
///
/// # Safety
/// `ctx` must be live.
unsafe fn pins(ctx: *mut ibv_context, access: u32) -> bool {
    // SAFETY: the caller vouches for the context.
    let library = unsafe { (*context::private(ctx)).library };
    access & IBV_ACCESS_ON_DEMAND == 0 && library.is_some_and(|library| library.events == Events::Read)
}

/// The memory of a region, where it is pinned and children may not get it.
///
/// # Safety
/// `mr` must be a live region, the head of a `verbs_mr`.
#[inline(always)]
unsafe fn pinned_memory(mr: *mut ibv_mr) -> Option<(usize, usize)> {
    if dontfork::is_out() {
        return None;
    }
    // SAFETY: the caller vouches for the region.
    unsafe {
        let whole = mr.cast::<verbs_mr>();
        let (context, access) = ((*mr).context, (*whole).access as u32);
        let of_memory = (*whole).mr_type == IBV_MR_TYPE_MR && !(*mr).addr.is_null();
        (of_memory && pins(context, access)).then(|| ((*mr).addr.expose_provenance(), (*mr).length))
    }
}

/// The optional flags, where the kernel behind the device says that it ignores those it does not know.
///
/// # Safety
/// `pd` must be live.
unsafe fn optional_access(pd: *mut ibv_pd, access: u32) -> u32 {
    /// `IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS`.
    const OPTIONAL_MR_ACCESS: u64 = 1;
    // SAFETY: every device is the head of a verbs_device; contexts of tests may have none.
    let support = unsafe {
        (*(*pd).context).device.cast::<verbs_device>().as_ref().map_or(0, |device| device.core_support)
    };
    if support & OPTIONAL_MR_ACCESS != 0 { access & IBV_ACCESS_OPTIONAL_RANGE } else { 0 }
}

/// The fields of a new region that the library fills.
///
/// # Safety
/// `mr` must be NULL or a fresh region of `pd`.
unsafe fn complete(mr: *mut ibv_mr, pd: *mut ibv_pd, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    if !mr.is_null() {
        // SAFETY: the caller vouches for both.
        unsafe {
            (*mr).context = (*pd).context;
            (*mr).pd = pd;
            (*mr).addr = addr;
            (*mr).length = length;
        }
    }
    mr
}

/// The flags that a device sees: optional ones may be ignored, so they are; the rest must be known and consistent.
fn check_access(call: &str, access: u32) -> Result<u32, Errno> {
    const KNOWN: u32 = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_ON_DEMAND
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_FLUSH_GLOBAL
        | IBV_ACCESS_FLUSH_PERSISTENT;
    let required = access & !IBV_ACCESS_OPTIONAL_RANGE;
    if required & !KNOWN != 0 {
        return Err(refuse!(EINVAL, "{call} access=0x{access:x}: expected bits of 0x{KNOWN:x}"));
    }
    if required & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0
        && required & IBV_ACCESS_LOCAL_WRITE == 0
    {
        return Err(refuse!(
            EINVAL,
            "{call} access=0x{access:x}: IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE"
        ));
    }
    Ok(required)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_follow_the_man_page() {
        let (local, write, atomic) =
            (IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC);
        for (access, outcome) in [
            (0, Ok(0)),
            (local | write, Ok(local | write)),
            (IBV_ACCESS_REMOTE_READ, Ok(IBV_ACCESS_REMOTE_READ)),
            (local | IBV_ACCESS_RELAXED_ORDERING | 1 << 29, Ok(local)),
            (write, Err(Errno::EINVAL)),
            (atomic, Err(Errno::EINVAL)),
            (local | 1 << 10, Err(Errno::EINVAL)),
            (local | 1 << 31, Err(Errno::EINVAL)),
        ] {
            assert_eq!(check_access("test", access), outcome, "0x{access:x}");
        }
    }
}
