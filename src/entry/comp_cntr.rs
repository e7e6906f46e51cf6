//! Completion counters (rdma-core 65). No device of ours has them: the table's defaults answer EOPNOTSUPP.
use std::ffi::c_int;

use crate::{abi::*, provider::context, sys::errno::Errno};

export!(query_comp_cntr_caps => "_ibv_query_comp_cntr_caps" @@ "IBVERBS_1.18");
export!(ibv_create_comp_cntr => "ibv_create_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_destroy_comp_cntr => "ibv_destroy_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_set_comp_cntr => "ibv_set_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_set_err_comp_cntr => "ibv_set_err_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_inc_comp_cntr => "ibv_inc_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_inc_err_comp_cntr => "ibv_inc_err_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_read_comp_cntr => "ibv_read_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_read_err_comp_cntr => "ibv_read_err_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_qp_attach_comp_cntr => "ibv_qp_attach_comp_cntr" @@ "IBVERBS_1.18");

/// Calls a slot of the context's table.
macro_rules! op {
    ($ctx:expr, $op:ident($($arg:expr),*)) => {
        match context::ops($ctx).$op {
            Some(op) => op($($arg),*),
            None => Errno::EOPNOTSUPP.0,
        }
    };
}

/// What counters a device has, into a structure of the caller's size. 0 or errno value.
unsafe extern "C" fn query_comp_cntr_caps(
    ctx: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    if ctx.is_null() || caps.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the context is open, and the caller gives `size` bytes.
    unsafe { op!(ctx, query_comp_cntr_caps(ctx, caps, size)) }
}

/// A new counter; NULL with errno on failure.
unsafe extern "C" fn ibv_create_comp_cntr(
    ctx: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    if ctx.is_null() || attr.is_null() {
        Errno::EINVAL.store();
        return std::ptr::null_mut();
    }
    // SAFETY: the context is open and the attributes are readable.
    unsafe {
        let cntr = context::ops(ctx).create_comp_cntr.map_or(std::ptr::null_mut(), |op| op(ctx, attr));
        if let Some(cntr) = cntr.as_mut() {
            cntr.context = ctx;
        }
        cntr
    }
}

/// Destroys a counter that no QP uses. 0 or errno value.
unsafe extern "C" fn ibv_destroy_comp_cntr(cntr: *mut ibv_comp_cntr) -> c_int {
    if cntr.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the counter is live, and so is its context.
    unsafe { op!((*cntr).context, destroy_comp_cntr(cntr)) }
}

/// Sets the count. 0 or errno value.
unsafe extern "C" fn ibv_set_comp_cntr(cntr: *mut ibv_comp_cntr, value: u64) -> c_int {
    if cntr.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the counter is live, and so is its context.
    unsafe { op!((*cntr).context, set_comp_cntr(cntr, value)) }
}

/// Sets the error count. 0 or errno value.
unsafe extern "C" fn ibv_set_err_comp_cntr(cntr: *mut ibv_comp_cntr, value: u64) -> c_int {
    if cntr.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the counter is live, and so is its context.
    unsafe { op!((*cntr).context, set_err_comp_cntr(cntr, value)) }
}

/// Adds to the count. 0 or errno value.
unsafe extern "C" fn ibv_inc_comp_cntr(cntr: *mut ibv_comp_cntr, amount: u64) -> c_int {
    if cntr.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the counter is live, and so is its context.
    unsafe { op!((*cntr).context, inc_comp_cntr(cntr, amount)) }
}

/// Adds to the error count. 0 or errno value.
unsafe extern "C" fn ibv_inc_err_comp_cntr(cntr: *mut ibv_comp_cntr, amount: u64) -> c_int {
    if cntr.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the counter is live, and so is its context.
    unsafe { op!((*cntr).context, inc_err_comp_cntr(cntr, amount)) }
}

/// Reads the count. 0 or errno value.
unsafe extern "C" fn ibv_read_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    if cntr.is_null() || value.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the counter is live, and so is its context.
    unsafe { op!((*cntr).context, read_comp_cntr(cntr, value)) }
}

/// Reads the error count. 0 or errno value.
unsafe extern "C" fn ibv_read_err_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    if cntr.is_null() || value.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: the counter is live, and so is its context.
    unsafe { op!((*cntr).context, read_err_comp_cntr(cntr, value)) }
}

/// Counts a QP's completions from now on. 0 or errno value.
unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    cntr: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    if qp.is_null() || cntr.is_null() || attr.is_null() {
        return Errno::EINVAL.0;
    }
    // SAFETY: all three are live.
    unsafe { op!((*qp).context, qp_attach_comp_cntr(qp, cntr, attr)) }
}
