//! Shared receive queues.
use crate::abi::*;
use crate::core::convention::{code, given, pointer, refuse};
use crate::provider::{context, object};
use crate::sys::errno::Errno;
use std::ffi::c_int;

export!(ibv_create_srq => "ibv_create_srq" @@ "IBVERBS_1.1");
export!(ibv_modify_srq => "ibv_modify_srq" @@ "IBVERBS_1.1");
export!(ibv_query_srq => "ibv_query_srq" @@ "IBVERBS_1.1");
export!(ibv_destroy_srq => "ibv_destroy_srq" @@ "IBVERBS_1.1");

/// A basic SRQ; `attr` tells the sizes that it got.
pub(super) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    pointer(|| {
        given(pd, "ibv_create_srq", "pd")?;
        given(attr, "ibv_create_srq", "srq_init_attr")?;
        // SAFETY: a live PD and the application's attributes.
        unsafe {
            let srq_context = (*attr).srq_context;
            let srq = context::ops((*pd).context).create_srq.ok_or(Errno::EOPNOTSUPP)?(pd, attr);
            if !srq.is_null() {
                object::init_srq(srq, pd, srq_context);
            }
            Ok(srq)
        }
    })
}

/// Arms the limit or resizes.
pub(super) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        given(srq, "ibv_modify_srq", "srq")?;
        given(attr, "ibv_modify_srq", "srq_attr")?;
        if mask as u32 & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(refuse!(
                EINVAL,
                "ibv_modify_srq srq={srq:p} srq_attr_mask=0x{mask:x}: expected IBV_SRQ_MAX_WR, IBV_SRQ_LIMIT or both"
            ));
        }
        // SAFETY: a live SRQ and the application's attributes.
        unsafe { Ok(context::ops((*srq).context).modify_srq.ok_or(Errno::EOPNOTSUPP)?(srq, attr, mask)) }
    })
}

/// Current sizes and limit.
pub(super) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    code(|| {
        given(srq, "ibv_query_srq", "srq")?;
        given(attr, "ibv_query_srq", "srq_attr")?;
        // SAFETY: a live SRQ and room for the attributes.
        unsafe { Ok(context::ops((*srq).context).query_srq.ok_or(Errno::EOPNOTSUPP)?(srq, attr)) }
    })
}

/// EBUSY while QPs use it; waits until its events are acknowledged.
pub(super) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    code(|| {
        given(srq, "ibv_destroy_srq", "srq")?;
        // SAFETY: a live SRQ.
        unsafe { Ok(context::ops((*srq).context).destroy_srq.ok_or(Errno::EOPNOTSUPP)?(srq)) }
    })
}
