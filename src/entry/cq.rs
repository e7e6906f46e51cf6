//! Completion queues. Extended CQs come by `verbs_context.create_cq_ex`, see `core::context`.
use crate::abi::*;
use crate::core::context::check_cq;
use crate::core::convention::{code, given, pointer, refuse};
use crate::provider::{context, object};
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};

export!(ibv_create_cq => "ibv_create_cq" @@ "IBVERBS_1.1");
export!(ibv_resize_cq => "ibv_resize_cq" @@ "IBVERBS_1.1");
export!(ibv_destroy_cq => "ibv_destroy_cq" @@ "IBVERBS_1.1");

/// A CQ of at least `cqe` entries; `cq->cqe` tells how many.
pub(super) unsafe extern "C" fn ibv_create_cq(
    ctx: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        given(ctx, "ibv_create_cq", "context")?;
        // SAFETY: a live context; the channel is live or NULL; the op's CQ is ours to complete.
        unsafe {
            check_cq(ctx, "ibv_create_cq", cqe.into(), channel, comp_vector.into())?;
            let op = context::ops(ctx).create_cq.ok_or(Errno::EOPNOTSUPP)?;
            let cq = op(ctx, cqe, channel, comp_vector);
            if !cq.is_null() {
                object::init_cq(cq, ctx, channel, cq_context);
            }
            Ok(cq)
        }
    })
}

/// Changes the number of entries; EINVAL where the completions in it would not fit.
pub(super) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    code(|| {
        given(cq, "ibv_resize_cq", "cq")?;
        if cqe < 1 {
            return Err(refuse!(EINVAL, "ibv_resize_cq cq={cq:p} cqe={cqe}: expected at least 1"));
        }
        // SAFETY: a live CQ.
        unsafe { Ok(context::ops((*cq).context).resize_cq.ok_or(Errno::EOPNOTSUPP)?(cq, cqe)) }
    })
}

/// EBUSY while QPs use it; waits until its events are acknowledged.
pub(super) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    code(|| {
        given(cq, "ibv_destroy_cq", "cq")?;
        // SAFETY: a live CQ; its context and channel outlive it.
        unsafe {
            let (ctx, channel) = ((*cq).context, (*cq).channel);
            let rc = context::ops(ctx).destroy_cq.ok_or(Errno::EOPNOTSUPP)?(cq);
            if rc == 0 && !channel.is_null() {
                context::with_mutex(ctx, || (*channel).refcnt -= 1);
            }
            Ok(rc)
        }
    })
}
