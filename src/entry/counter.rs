//! Completion counters: the provider's, or EOPNOTSUPP.
use crate::abi::*;
use crate::core::convention::{code, given, pointer};
use crate::provider::{context, object};
use crate::sys::errno::Errno;
use std::ffi::c_int;

export!(ibv_create_comp_cntr => "ibv_create_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_destroy_comp_cntr => "ibv_destroy_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_set_comp_cntr => "ibv_set_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_set_err_comp_cntr => "ibv_set_err_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_inc_comp_cntr => "ibv_inc_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_inc_err_comp_cntr => "ibv_inc_err_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_read_comp_cntr => "ibv_read_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_read_err_comp_cntr => "ibv_read_err_comp_cntr" @@ "IBVERBS_1.18");
export!(ibv_qp_attach_comp_cntr => "ibv_qp_attach_comp_cntr" @@ "IBVERBS_1.18");
export!(query_comp_cntr_caps => "_ibv_query_comp_cntr_caps" @@ "IBVERBS_1.18");

/// A counter of completions or of bytes.
unsafe extern "C" fn ibv_create_comp_cntr(
    ctx: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    pointer(|| {
        given(ctx, "ibv_create_comp_cntr", "context")?;
        given(attr, "ibv_create_comp_cntr", "comp_cntr_init_attr")?;
        // SAFETY: a live context and readable attributes.
        unsafe {
            let counter = context::ops(ctx).create_comp_cntr.ok_or(Errno::EOPNOTSUPP)?(ctx, attr);
            if !counter.is_null() {
                (*counter).context = ctx;
            }
            Ok(counter)
        }
    })
}

/// One function over a counter: `(name, op, argument: type)`.
macro_rules! counter_call {
    ($(#[$doc:meta] $name:ident $op:ident ($($arg:ident: $t:ty)?);)*) => {$(
        #[$doc]
        unsafe extern "C" fn $name(counter: *mut ibv_comp_cntr $(, $arg: $t)?) -> c_int {
            code(|| {
                given(counter, stringify!($name), "comp_cntr")?;
                // SAFETY: a live counter; what the application passes with it goes on unchanged.
                unsafe {
                    Ok(context::ops((*counter).context).$op.ok_or(Errno::EOPNOTSUPP)?(counter $(, $arg)?))
                }
            })
        }
    )*};
}
counter_call! {
    /// EBUSY while a QP uses it.
    ibv_destroy_comp_cntr destroy_comp_cntr ();
    /// Sets the count.
    ibv_set_comp_cntr set_comp_cntr (value: u64);
    /// Sets the error count.
    ibv_set_err_comp_cntr set_err_comp_cntr (value: u64);
    /// Adds to the count.
    ibv_inc_comp_cntr inc_comp_cntr (amount: u64);
    /// Adds to the error count.
    ibv_inc_err_comp_cntr inc_err_comp_cntr (amount: u64);
    /// Reads the count.
    ibv_read_comp_cntr read_comp_cntr (value: *mut u64);
    /// Reads the error count.
    ibv_read_err_comp_cntr read_err_comp_cntr (value: *mut u64);
}

/// Lets a counter count a QP's operations.
unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    code(|| {
        given(qp, "ibv_qp_attach_comp_cntr", "qp")?;
        given(counter, "ibv_qp_attach_comp_cntr", "comp_cntr")?;
        given(attr, "ibv_qp_attach_comp_cntr", "attr")?;
        // SAFETY: live objects and readable attributes.
        unsafe {
            let op = context::ops((*qp).context).qp_attach_comp_cntr.ok_or(Errno::EOPNOTSUPP)?;
            Ok(op(qp, counter, attr))
        }
    })
}

/// What the device can count, in a struct of the caller's release.
unsafe extern "C" fn query_comp_cntr_caps(
    ctx: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    code(|| {
        given(ctx, "ibv_query_comp_cntr_caps", "context")?;
        given(caps, "ibv_query_comp_cntr_caps", "caps")?;
        let mut ours = ibv_comp_cntr_caps::zeroed();
        // SAFETY: a live context; the caller gives `size` bytes.
        unsafe {
            let op = context::ops(ctx).query_comp_cntr_caps.ok_or(Errno::EOPNOTSUPP)?;
            let rc = op(ctx, &mut ours, size_of::<ibv_comp_cntr_caps>());
            if rc == 0 {
                object::write_versioned(caps.cast(), size, &ours);
            }
            Ok(rc)
        }
    })
}
