//! Queue pairs: states and attributes.
use super::write::{self, Extended, Plain, number};
use super::{code, fill};
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::c_int;

/// # Safety
/// `qp` live, both answers valid, request valid.
pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
    cmd: *mut Plain<ib_uverbs_query_qp>,
    cmd_size: usize,
) -> c_int {
    let mut told = ib_uverbs_query_qp_resp::zeroed();
    // SAFETY: the provider gives a live QP, room for both answers and its request.
    code(unsafe {
        // The written command has no bit for the rate limit.
        if mask as u32 & IBV_QP_RATE_LIMIT != 0 {
            return code(Err(Errno::EOPNOTSUPP));
        }
        (*cmd).core.qp_handle = (*qp).handle;
        (*cmd).core.attr_mask = mask as u32;
        let room = size_of_val(&told);
        write::plain((*qp).context, number::QUERY_QP, cmd, cmd_size, &mut told, room).map(|()| {
            let cap = fill::from_cap(&told.cap);
            let a = &mut *attr;
            macro_rules! same {
                ($($f:ident)*) => { $(a.$f = told.$f as _;)* };
            }
            same!(qkey rq_psn sq_psn dest_qp_num qp_access_flags pkey_index alt_pkey_index qp_state cur_qp_state
                path_mtu path_mig_state sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout
                retry_cnt rnr_retry alt_port_num alt_timeout);
            a.cap = cap;
            a.ah_attr = fill::from_qp_dest(&told.dest);
            a.alt_ah_attr = fill::from_qp_dest(&told.alt_dest);
            *init = ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: told.sq_sig_all.into(),
            };
            if mask as u32 & IBV_QP_STATE != 0 {
                (*qp).state = a.qp_state;
            }
        })
    })
}

/// The core of both forms of modify_qp: the attributes of the mask, the rest zero.
fn core(handle: u32, a: &ibv_qp_attr, mask: u32) -> ib_uverbs_modify_qp {
    let mut to = ib_uverbs_modify_qp::zeroed();
    to.qp_handle = handle;
    to.attr_mask = mask;
    macro_rules! masked {
        ($($bit:ident $($f:ident)*;)*) => { $(if mask & $bit != 0 { $(to.$f = a.$f as _;)* })* };
    }
    masked! {
        IBV_QP_STATE qp_state;
        IBV_QP_CUR_STATE cur_qp_state;
        IBV_QP_EN_SQD_ASYNC_NOTIFY en_sqd_async_notify;
        IBV_QP_ACCESS_FLAGS qp_access_flags;
        IBV_QP_PKEY_INDEX pkey_index;
        IBV_QP_PORT port_num;
        IBV_QP_QKEY qkey;
        IBV_QP_PATH_MTU path_mtu;
        IBV_QP_TIMEOUT timeout;
        IBV_QP_RETRY_CNT retry_cnt;
        IBV_QP_RNR_RETRY rnr_retry;
        IBV_QP_RQ_PSN rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC max_rd_atomic;
        IBV_QP_ALT_PATH alt_pkey_index alt_port_num alt_timeout;
        IBV_QP_MIN_RNR_TIMER min_rnr_timer;
        IBV_QP_SQ_PSN sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC max_dest_rd_atomic;
        IBV_QP_PATH_MIG_STATE path_mig_state;
        IBV_QP_DEST_QPN dest_qp_num;
    }
    if mask & IBV_QP_AV != 0 {
        to.dest = fill::qp_dest(&a.ah_attr);
    }
    if mask & IBV_QP_ALT_PATH != 0 {
        to.alt_dest = fill::qp_dest(&a.alt_ah_attr);
    }
    to
}

/// # Safety
/// `qp` live, attributes readable, request valid.
pub unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    cmd: *mut Plain<ib_uverbs_modify_qp>,
    cmd_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live QP, attributes and its request.
    code(unsafe {
        if mask as u32 & IBV_QP_RATE_LIMIT != 0 {
            return code(Err(Errno::EOPNOTSUPP));
        }
        (*cmd).core = core((*qp).handle, &*attr, mask as u32);
        write::plain_without_answer((*qp).context, number::MODIFY_QP, cmd, cmd_size)
            .map(|()| moved(qp, attr, mask))
    })
}

/// # Safety
/// `qp` live, attributes readable, request and answer valid.
pub unsafe extern "C" fn modify_qp_ex(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    cmd: *mut Extended<ib_uverbs_ex_modify_qp>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_modify_qp_resp,
    resp_size: usize,
) -> c_int {
    let size = size_of::<Extended<ib_uverbs_ex_modify_qp>>();
    let answer = size_of::<ib_uverbs_ex_modify_qp_resp>();
    // SAFETY: the provider gives a live QP, attributes, its request and its answer.
    code(unsafe {
        let rate = mask as u32 & IBV_QP_RATE_LIMIT != 0;
        (*cmd).core = ib_uverbs_ex_modify_qp {
            base: core((*qp).handle, &*attr, mask as u32),
            rate_limit: if rate { (*attr).rate_limit } else { 0 },
            reserved: 0,
        };
        let ctx = (*qp).context;
        write::extended(ctx, number::MODIFY_QP, cmd, size, cmd_size, resp.cast(), answer, resp_size)
            .map(|()| moved(qp, attr, mask))
    })
}

/// # Safety
/// `qp` live, attributes readable.
unsafe fn moved(qp: *mut ibv_qp, attr: *const ibv_qp_attr, mask: c_int) {
    if mask as u32 & IBV_QP_STATE != 0 {
        // SAFETY: the caller vouches for both.
        unsafe { (*qp).state = (*attr).qp_state };
    }
}
