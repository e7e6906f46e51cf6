//! Protection domains, XRC domains, address handles, memory windows, multicast groups.
use super::write::{self, Plain, number};
use super::{code, destroy, fill, object, user_handle};
use crate::abi::*;
use std::ffi::c_int;

/// The method that destroys these objects.
const DESTROY: u16 = 0;

/// # Safety
/// `ctx` live; `pd`, request and answer valid.
pub unsafe extern "C" fn alloc_pd(
    ctx: *mut ibv_context,
    pd: *mut ibv_pd,
    cmd: *mut Plain<ib_uverbs_alloc_pd>,
    cmd_size: usize,
    resp: *mut ib_uverbs_alloc_pd_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live context, a new PD, its request and its answer.
    code(unsafe {
        write::plain(ctx, number::ALLOC_PD, cmd, cmd_size, resp, resp_size).map(|()| {
            (*pd).handle = (*resp).pd_handle;
            (*pd).context = ctx;
        })
    })
}

/// # Safety
/// `pd` live.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the provider gives a live PD.
    code(unsafe { destroy((*pd).context, object::PD, DESTROY, (*pd).handle, number::DEALLOC_PD) })
}

/// # Safety
/// `ctx` live; `xrcd` valid for `xrcd_size` bytes; attributes, request and answer valid.
pub unsafe extern "C" fn open_xrcd(
    ctx: *mut ibv_context,
    xrcd: *mut verbs_xrcd,
    xrcd_size: c_int,
    attr: *mut ibv_xrcd_init_attr,
    cmd: *mut Plain<ib_uverbs_open_xrcd>,
    cmd_size: usize,
    resp: *mut ib_uverbs_open_xrcd_resp,
    resp_size: usize,
) -> c_int {
    const FD_AND_OFLAGS: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    // SAFETY: the provider gives a live context, a new domain, its request and its answer.
    code(unsafe {
        let a = *attr;
        if a.comp_mask & FD_AND_OFLAGS != FD_AND_OFLAGS {
            return code(Err(crate::sys::errno::Errno::EOPNOTSUPP));
        }
        (*cmd).core.fd = a.fd;
        (*cmd).core.oflags = a.oflags as u32;
        write::plain(ctx, number::OPEN_XRCD, cmd, cmd_size, resp, resp_size).map(|()| {
            (*xrcd).xrcd.context = ctx;
            (*xrcd).comp_mask = 0;
            if xrcd_size as usize >= size_of::<verbs_xrcd>() {
                (*xrcd).comp_mask = VERBS_XRCD_HANDLE;
                (*xrcd).handle = (*resp).xrcd_handle;
            }
        })
    })
}

/// `comp_mask` of a `verbs_xrcd` whose handle is there.
const VERBS_XRCD_HANDLE: u32 = 1;

/// # Safety
/// `xrcd` live.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut verbs_xrcd) -> c_int {
    // SAFETY: the provider gives a live domain.
    code(unsafe { destroy((*xrcd).xrcd.context, object::XRCD, DESTROY, (*xrcd).handle, number::CLOSE_XRCD) })
}

/// # Safety
/// `pd` live; `ah`, attributes and answer valid.
pub unsafe extern "C" fn create_ah(
    pd: *mut ibv_pd,
    ah: *mut ibv_ah,
    attr: *mut ibv_ah_attr,
    resp: *mut ib_uverbs_create_ah_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live PD, a new AH, attributes and its answer.
    code(unsafe {
        let mut request = Plain::of(ib_uverbs_create_ah {
            response: 0,
            user_handle: user_handle(ah),
            pd_handle: (*pd).handle,
            reserved: 0,
            attr: fill::ah_attr(&*attr),
        });
        let size = size_of_val(&request);
        write::plain((*pd).context, number::CREATE_AH, &mut request, size, resp, resp_size).map(|()| {
            (*ah).handle = (*resp).ah_handle;
            (*ah).context = (*pd).context;
            (*ah).pd = pd;
        })
    })
}

/// # Safety
/// `ah` live.
pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the provider gives a live AH.
    code(unsafe { destroy((*ah).context, object::AH, DESTROY, (*ah).handle, number::DESTROY_AH) })
}

/// # Safety
/// `pd` live; `mw`, request and answer valid.
pub unsafe extern "C" fn alloc_mw(
    pd: *mut ibv_pd,
    kind: u32,
    mw: *mut ibv_mw,
    cmd: *mut Plain<ib_uverbs_alloc_mw>,
    cmd_size: usize,
    resp: *mut ib_uverbs_alloc_mw_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live PD, a new window, its request and its answer.
    code(unsafe {
        (*cmd).core.pd_handle = (*pd).handle;
        (*cmd).core.mw_type = kind as u8;
        (*cmd).core.reserved = [0; 3];
        write::plain((*pd).context, number::ALLOC_MW, cmd, cmd_size, resp, resp_size).map(|()| {
            (*mw).context = (*pd).context;
            (*mw).pd = pd;
            (*mw).rkey = (*resp).rkey;
            (*mw).handle = (*resp).mw_handle;
            (*mw).r#type = kind;
        })
    })
}

/// # Safety
/// `mw` live.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the provider gives a live window.
    code(unsafe { destroy((*mw).context, object::MW, DESTROY, (*mw).handle, number::DEALLOC_MW) })
}

/// # Safety
/// `qp` live, `gid` readable.
pub unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { multicast(qp, gid, lid, number::ATTACH_MCAST) }
}

/// # Safety
/// `qp` live, `gid` readable.
pub unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { multicast(qp, gid, lid, number::DETACH_MCAST) }
}

/// # Safety
/// `qp` live, `gid` readable.
unsafe fn multicast(qp: *mut ibv_qp, gid: *const ibv_gid, mlid: u16, number: u32) -> c_int {
    // SAFETY: the caller vouches for both.
    code(unsafe {
        let mut request =
            Plain::of(ib_uverbs_mcast { gid: (*gid).raw, qp_handle: (*qp).handle, mlid, reserved: 0 });
        let size = size_of_val(&request);
        write::plain_without_answer((*qp).context, number, &mut request, size)
    })
}
