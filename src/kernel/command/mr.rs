//! Memory regions and device memory.
use super::write::{self, Plain, number};
use super::{Ioctl, code, destroy, forgive, object};
use crate::abi::*;
use crate::sys::errno::Errno;
use crate::sys::map::page_size;
use std::ffi::{c_int, c_uint, c_void};

const DM_MR_REG: u16 = 0;
const DESTROY: u16 = 1;
const ADVISE: u16 = 2;
const QUERY: u16 = 3;
const REG_DMABUF: u16 = 4;
const DM_ALLOC: u16 = 0;
const DM_FREE: u16 = 1;

/// # Safety
/// `pd` live; region, request and answer valid.
pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
    mr: *mut verbs_mr,
    cmd: *mut Plain<ib_uverbs_reg_mr>,
    cmd_size: usize,
    resp: *mut ib_uverbs_reg_mr_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live PD, a new region, its request and its answer. The kernel pins the memory.
    code(unsafe {
        // Address and iova must lie alike within their pages: one translation serves both.
        if (hca_va ^ addr.addr() as u64) & (page_size() as u64 - 1) != 0 {
            return code(Err(Errno::EINVAL));
        }
        (*cmd).core = ib_uverbs_reg_mr {
            response: 0,
            start: addr.expose_provenance() as u64,
            length: length as u64,
            hca_va,
            pd_handle: (*pd).handle,
            access_flags: access as u32,
        };
        write::plain((*pd).context, number::REG_MR, cmd, cmd_size, resp, resp_size).map(|()| {
            let answer = *resp;
            fill(mr, pd, IBV_MR_TYPE_MR, access, answer.mr_handle, answer.lkey, answer.rkey);
        })
    })
}

/// # Safety
/// `mr` valid for writes, `pd` live.
pub(super) unsafe fn fill(
    mr: *mut verbs_mr,
    pd: *mut ibv_pd,
    kind: u32,
    access: c_int,
    handle: u32,
    lkey: u32,
    rkey: u32,
) {
    // SAFETY: the caller vouches for both.
    unsafe {
        (*mr).ibv_mr.handle = handle;
        (*mr).ibv_mr.lkey = lkey;
        (*mr).ibv_mr.rkey = rkey;
        (*mr).ibv_mr.context = (*pd).context;
        (*mr).mr_type = kind;
        (*mr).access = access;
    }
}

/// # Safety
/// `mr` live, `pd` live or null; request and answer valid.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: u32,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
    pd: *mut ibv_pd,
    cmd: *mut Plain<ib_uverbs_rereg_mr>,
    cmd_size: usize,
    resp: *mut ib_uverbs_rereg_mr_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live region, its request and its answer.
    code(unsafe {
        (*cmd).core = ib_uverbs_rereg_mr {
            response: 0,
            mr_handle: (*mr).ibv_mr.handle,
            flags,
            start: addr.expose_provenance() as u64,
            length: length as u64,
            hca_va,
            pd_handle: pd.as_ref().map_or(0, |pd| pd.handle),
            access_flags: access as u32,
        };
        write::plain((*mr).ibv_mr.context, number::REREG_MR, cmd, cmd_size, resp, resp_size).map(|()| {
            (*mr).ibv_mr.lkey = (*resp).lkey;
            (*mr).ibv_mr.rkey = (*resp).rkey;
            if flags & IBV_REREG_MR_CHANGE_PD != 0 {
                (*mr).ibv_mr.context = (*pd).context;
            }
        })
    })
}

/// # Safety
/// `mr` live.
pub unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: the provider gives a live region.
    code(unsafe {
        let mr = &(*mr).ibv_mr;
        destroy(mr.context, object::MR, DESTROY, mr.handle, number::DEREG_MR)
    })
}

/// # Safety
/// `pd` live, `mr` valid for writes.
pub unsafe extern "C" fn query_mr(pd: *mut ibv_pd, mr: *mut verbs_mr, handle: u32) -> c_int {
    let (mut lkey, mut rkey, mut length, mut iova) = (0u32, 0u32, 0u64, 0u64);
    let mut ioctl = Ioctl::new(object::MR, QUERY);
    ioctl.handle(0, handle);
    ioctl.out(1, &mut lkey);
    ioctl.out(2, &mut rkey);
    ioctl.out(3, &mut length);
    ioctl.out(4, &mut iova);
    // SAFETY: the provider gives a live PD and a new region.
    code(unsafe {
        ioctl.send_only((*pd).context).map(|()| {
            fill(mr, pd, IBV_MR_TYPE_IMPORTED_MR, 0, handle, lkey, rkey);
            (*mr).ibv_mr.pd = pd;
            (*mr).ibv_mr.addr = std::ptr::with_exposed_provenance_mut(iova as usize);
            (*mr).ibv_mr.length = length as usize;
        })
    })
}

/// # Safety
/// `pd` live, `sg_list` readable for `num_sge` entries.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    let mut ioctl = Ioctl::new(object::MR, ADVISE);
    // SAFETY: the application gives a live PD and its list; ibv_sge is laid out as the kernel's.
    code(unsafe {
        ioctl.handle(0, (*pd).handle);
        ioctl.constant(1, advice.into());
        ioctl.value(2, flags);
        ioctl.bytes_in(3, sg_list.cast(), num_sge as usize * size_of::<ibv_sge>());
        ioctl.send_only((*pd).context)
    })
}

/// `ibv_cmd_reg_dmabuf_mr` of releases before 54.
///
/// # Safety
/// `pd` live, `mr` valid for writes.
pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mr: *mut verbs_mr,
) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { reg_dmabuf_mr_57(pd, offset, length, iova, fd, access, mr, std::ptr::null_mut()) }
}

/// # Safety
/// `pd` live, `mr` valid for writes, `driver` null or a live command buffer.
pub unsafe extern "C" fn reg_dmabuf_mr_57(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mr: *mut verbs_mr,
    driver: *mut ibv_command_buffer,
) -> c_int {
    let (mut lkey, mut rkey) = (0u32, 0u32);
    let mut ioctl = Ioctl::new(object::MR, REG_DMABUF);
    // SAFETY: the provider gives a live PD and a new region.
    code(unsafe {
        let place = ioctl.new_handle(0);
        ioctl.handle(1, (*pd).handle);
        ioctl.value(2, offset);
        ioctl.value(3, length as u64);
        ioctl.value(4, iova);
        ioctl.fd(5, fd);
        ioctl.value(6, access as u32);
        ioctl.out(7, &mut lkey);
        ioctl.out(8, &mut rkey);
        ioctl.link(driver);
        ioctl.send_only((*pd).context).map(|()| {
            fill(mr, pd, IBV_MR_TYPE_DMABUF_MR, access, ioctl.handle_at(place), lkey, rkey);
            (*mr).ibv_mr.pd = pd;
        })
    })
}

/// # Safety
/// `ctx` live; attributes readable, `dm` valid for writes, `link` null or a live command buffer.
pub unsafe extern "C" fn alloc_dm(
    ctx: *mut ibv_context,
    attr: *const ibv_alloc_dm_attr,
    dm: *mut verbs_dm,
    link: *mut ibv_command_buffer,
) -> c_int {
    let mut ioctl = Ioctl::new(object::DM, DM_ALLOC);
    // SAFETY: the provider gives a live context, attributes and a new object.
    code(unsafe {
        let place = ioctl.new_handle(0);
        ioctl.value(1, (*attr).length as u64);
        ioctl.value(2, (*attr).log_align_req);
        ioctl.link(link);
        ioctl.send_only(ctx).map(|()| {
            (*dm).handle = ioctl.handle_at(place);
            (*dm).dm.context = ctx;
            (*dm).dm.handle = (*dm).handle;
        })
    })
}

/// # Safety
/// `dm` live.
pub unsafe extern "C" fn free_dm(dm: *mut verbs_dm) -> c_int {
    let mut ioctl = Ioctl::new(object::DM, DM_FREE);
    // SAFETY: the provider gives a live object.
    code(unsafe {
        ioctl.handle(0, (*dm).handle);
        ioctl.send_only((*dm).dm.context).or_else(forgive)
    })
}

/// # Safety
/// `pd` and `dm` live, `mr` valid for writes, `link` null or a live command buffer.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut verbs_dm,
    offset: u64,
    length: usize,
    access: c_uint,
    mr: *mut verbs_mr,
    link: *mut ibv_command_buffer,
) -> c_int {
    let (mut lkey, mut rkey) = (0u32, 0u32);
    let mut ioctl = Ioctl::new(object::MR, DM_MR_REG);
    // SAFETY: the provider gives live objects and a new region.
    code(unsafe {
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return code(Err(Errno::EINVAL));
        }
        let place = ioctl.new_handle(0);
        ioctl.value(1, offset);
        ioctl.value(2, length as u64);
        ioctl.handle(3, (*pd).handle);
        ioctl.value(4, access);
        ioctl.handle(5, (*dm).handle);
        ioctl.out(6, &mut lkey);
        ioctl.out(7, &mut rkey);
        ioctl.link(link);
        ioctl.send_only((*pd).context).map(|()| {
            fill(mr, pd, IBV_MR_TYPE_MR, access as c_int, ioctl.handle_at(place), lkey, rkey);
            (*mr).ibv_mr.pd = pd;
        })
    })
}
