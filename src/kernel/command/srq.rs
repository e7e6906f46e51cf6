//! Shared receive queues.
use super::write::{self, Plain, number};
use super::{Ioctl, Tail, Way, answer, code, fill, forgive, object, user_handle};
use crate::abi::*;
use crate::provider::object as common;
use crate::sys::errno::Errno;
use crate::sys::pthread;
use std::ffi::c_int;
use std::ptr;

const CREATE: u16 = 0;
const DESTROY: u16 = 1;

const HANDLE: u16 = 0;
const PD_HANDLE: u16 = 1;
const XRCD_HANDLE: u16 = 2;
const CQ_HANDLE: u16 = 3;
const USER_HANDLE: u16 = 4;
const MAX_WR: u16 = 5;
const MAX_SGE: u16 = 6;
const LIMIT: u16 = 7;
const MAX_NUM_TAGS: u16 = 8;
const TYPE: u16 = 9;
const EVENT_FD: u16 = 10;
const RESP_MAX_WR: u16 = 11;
const RESP_MAX_SGE: u16 = 12;
const RESP_SRQ_NUM: u16 = 13;

/// # Safety
/// `pd` live; SRQ, attributes, request and answer valid.
pub unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_init_attr,
    cmd: *mut Plain<ib_uverbs_create_srq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_srq_resp,
    resp_size: usize,
) -> c_int {
    let core = size_of::<Plain<ib_uverbs_create_srq>>();
    // SAFETY: the provider gives a live PD, a new SRQ, attributes, its request and its answer.
    code(unsafe {
        let mut all = ibv_srq_init_attr_ex::zeroed();
        (all.attr, all.pd) = ((*attr).attr, pd);
        let tails = tails(cmd, core, cmd_size, resp, resp_size);
        by_ioctl((*pd).context, srq, &all, tails).and_then(|made| {
            match made {
                Some(made) => answer(resp, resp_size, made),
                None => {
                    (*cmd).core = ib_uverbs_create_srq {
                        response: 0,
                        user_handle: user_handle(srq),
                        pd_handle: (*pd).handle,
                        max_wr: all.attr.max_wr,
                        max_sge: all.attr.max_sge,
                        srq_limit: all.attr.srq_limit,
                    };
                    write::plain((*pd).context, number::CREATE_SRQ, cmd, cmd_size, resp, resp_size)?;
                }
            }
            let made = made.unwrap_or_else(|| *resp);
            complete(srq, pd, (*attr).srq_context, &made);
            (*attr).attr.max_wr = made.max_wr;
            (*attr).attr.max_sge = made.max_sge;
            Ok(())
        })
    })
}

/// # Safety
/// `ctx` live; SRQ, attributes, request and answer valid.
pub unsafe extern "C" fn create_srq_ex(
    ctx: *mut ibv_context,
    srq: *mut verbs_srq,
    attr: *mut ibv_srq_init_attr_ex,
    cmd: *mut Plain<ib_uverbs_create_xsrq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_srq_resp,
    resp_size: usize,
) -> c_int {
    let core = size_of::<Plain<ib_uverbs_create_xsrq>>();
    const KNOWN: u32 = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ
        | IBV_SRQ_INIT_ATTR_TM;
    // SAFETY: the provider gives a live context, a new SRQ, attributes, its request and its answer.
    code(unsafe {
        let mut all = *attr;
        if all.comp_mask & !KNOWN != 0 {
            return code(Err(Errno::EOPNOTSUPP));
        }
        if all.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || all.pd.is_null() {
            return code(Err(Errno::EINVAL));
        }
        if all.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            all.srq_type = IBV_SRQT_BASIC;
        }
        if all.srq_type != IBV_SRQT_XRC || all.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 {
            all.xrcd = ptr::null_mut();
        }
        if all.srq_type == IBV_SRQT_BASIC || all.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 {
            all.cq = ptr::null_mut();
        }
        if all.comp_mask & IBV_SRQ_INIT_ATTR_TM == 0 {
            all.tm_cap.max_num_tags = 0;
        }
        let tails = tails(cmd, core, cmd_size, resp, resp_size);
        by_ioctl(ctx, srq.cast(), &all, tails).and_then(|made| {
            match made {
                Some(made) => answer(resp, resp_size, made),
                None => {
                    (*cmd).core = ib_uverbs_create_xsrq {
                        response: 0,
                        user_handle: user_handle(srq),
                        srq_type: all.srq_type,
                        pd_handle: (*all.pd).handle,
                        max_wr: all.attr.max_wr,
                        max_sge: all.attr.max_sge,
                        srq_limit: all.attr.srq_limit,
                        max_num_tags: all.tm_cap.max_num_tags,
                        xrcd_handle: fill::xrcd_handle(all.xrcd),
                        cq_handle: fill::cq_handle(all.cq),
                    };
                    write::plain(ctx, number::CREATE_XSRQ, cmd, cmd_size, resp, resp_size)?;
                }
            }
            let made = made.unwrap_or_else(|| *resp);
            complete(srq.cast(), all.pd, all.srq_context, &made);
            (*srq).srq.context = ctx;
            (*srq).srq_type = all.srq_type;
            (*srq).xrcd = all.xrcd.cast();
            (*srq).cq = all.cq;
            (*srq).srq_num = made.srqn;
            (*attr).attr.max_wr = made.max_wr;
            (*attr).attr.max_sge = made.max_sge;
            Ok(())
        })
    })
}

fn tails<T>(
    cmd: *mut Plain<T>,
    core: usize,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_srq_resp,
    resp_size: usize,
) -> (Tail, Tail) {
    let room = Tail::behind(resp, size_of::<ib_uverbs_create_srq_resp>(), resp_size);
    (Tail::behind(cmd, core, cmd_size), room)
}

/// Sends it; none where the kernel lacks the method.
///
/// # Safety
/// All objects named must be live, both tails valid.
unsafe fn by_ioctl(
    ctx: *mut ibv_context,
    srq: *mut ibv_srq,
    a: &ibv_srq_init_attr_ex,
    (request, room): (Tail, Tail),
) -> Result<Option<ib_uverbs_create_srq_resp>, Errno> {
    let (mut max_wr, mut max_sge, mut srqn) = (0u32, 0u32, 0u32);
    let mut ioctl = Ioctl::new(object::SRQ, CREATE);
    let place = ioctl.new_handle(HANDLE);
    // SAFETY: the caller vouches for all.
    unsafe {
        ioctl.handle(PD_HANDLE, (*a.pd).handle);
        if !a.xrcd.is_null() {
            ioctl.handle(XRCD_HANDLE, fill::xrcd_handle(a.xrcd));
        }
        if !a.cq.is_null() {
            ioctl.handle(CQ_HANDLE, fill::cq_handle(a.cq));
        }
        ioctl.value(USER_HANDLE, user_handle(srq));
        ioctl.value(MAX_WR, a.attr.max_wr);
        ioctl.value(MAX_SGE, a.attr.max_sge);
        ioctl.value(LIMIT, a.attr.srq_limit);
        if a.srq_type == IBV_SRQT_TM {
            ioctl.value(MAX_NUM_TAGS, a.tm_cap.max_num_tags);
        }
        ioctl.constant(TYPE, a.srq_type.into());
        if (*ctx).async_fd >= 0 {
            ioctl.fd(EVENT_FD, (*ctx).async_fd);
        }
        ioctl.out(RESP_MAX_WR, &mut max_wr);
        ioctl.out(RESP_MAX_SGE, &mut max_sge);
        if a.srq_type == IBV_SRQT_XRC {
            ioctl.out(RESP_SRQ_NUM, &mut srqn);
        }
        ioctl.tails(request, room);
        if ioctl.try_send(ctx)? == Way::Write {
            return Ok(None);
        }
        Ok(Some(ib_uverbs_create_srq_resp { srq_handle: ioctl.handle_at(place), max_wr, max_sge, srqn }))
    }
}

/// # Safety
/// `srq` valid for writes, `pd` live.
unsafe fn complete(
    srq: *mut ibv_srq,
    pd: *mut ibv_pd,
    srq_context: *mut std::ffi::c_void,
    made: &ib_uverbs_create_srq_resp,
) {
    // SAFETY: the caller vouches for both.
    unsafe {
        common::init_srq(srq, pd, srq_context);
        (*srq).handle = made.srq_handle;
    }
}

/// # Safety
/// `srq` live, attributes readable, request valid.
pub unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
    cmd: *mut Plain<ib_uverbs_modify_srq>,
    cmd_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live SRQ, attributes and its request.
    code(unsafe {
        (*cmd).core = ib_uverbs_modify_srq {
            srq_handle: (*srq).handle,
            attr_mask: mask as u32,
            max_wr: (*attr).max_wr,
            srq_limit: (*attr).srq_limit,
        };
        write::plain_without_answer((*srq).context, number::MODIFY_SRQ, cmd, cmd_size)
    })
}

/// # Safety
/// `srq` live, attributes valid for writes, request valid.
pub unsafe extern "C" fn query_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    cmd: *mut Plain<ib_uverbs_query_srq>,
    cmd_size: usize,
) -> c_int {
    let mut told = ib_uverbs_query_srq_resp::zeroed();
    // SAFETY: the provider gives a live SRQ, room for the attributes and its request.
    code(unsafe {
        (*cmd).core.srq_handle = (*srq).handle;
        (*cmd).core.reserved = 0;
        let room = size_of_val(&told);
        write::plain((*srq).context, number::QUERY_SRQ, cmd, cmd_size, &mut told, room).map(|()| {
            *attr = ibv_srq_attr { max_wr: told.max_wr, max_sge: told.max_sge, srq_limit: told.srq_limit };
        })
    })
}

/// Waits until the application has acknowledged all events that the kernel had told.
///
/// # Safety
/// `srq` live.
pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let mut told = ib_uverbs_destroy_resp::zeroed();
    let mut ioctl = Ioctl::new(object::SRQ, DESTROY);
    // SAFETY: the provider gives a live SRQ, whose mutex and condition the library made.
    code(unsafe {
        let ctx = (*srq).context;
        ioctl.handle(0, (*srq).handle);
        ioctl.out(1, &mut told);
        let done = ioctl.try_send(ctx).and_then(|way| match way {
            Way::Done => Ok(()),
            Way::Write => {
                let core = ib_uverbs_destroy_answered { response: 0, handle: (*srq).handle, reserved: 0 };
                let mut request = Plain::of(core);
                let (size, room) = (size_of_val(&request), size_of_val(&told));
                write::plain(ctx, number::DESTROY_SRQ, &mut request, size, &mut told, room)
            }
        });
        done.map(|()| {
            let done = &raw const (*srq).events_completed;
            pthread::wait_acknowledged(
                &raw mut (*srq).mutex,
                &raw mut (*srq).cond,
                &[(done, told.events_reported)],
            );
        })
        .or_else(forgive)
    })
}
