//! The ops table: defaults that refuse by each slot's own convention, and how a provider's ops reach a context.
//!
//! `verbs_context.priv` keeps the complete table. Inline functions of verbs.h reach some slots through `ibv_context.ops`
//! and others through `verbs_context`; binaries older than libibverbs 1.1.8 look into `_compat_*` (facts/abi.md 4.3).
use super::context::Private;
use super::{buffer, registration};
use crate::abi::{ibv_context_ops, verbs_context, verbs_context_ops};
use crate::sys::errno::Errno;
use crate::sys::log;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, transmute};
use std::ptr;

/// The table under every provider's.
pub fn defaults() -> &'static verbs_context_ops {
    &DEFAULTS
}

/// Overlays a context's ops with the slots that `ops` fills, in the private table and wherever inline functions and old
/// binaries look. May be called again with further ops.
///
/// # Safety
/// `vctx` must have its private area, and no other thread may use the context yet.
pub unsafe fn set_ops(vctx: *mut verbs_context, ops: &verbs_context_ops) {
    // SAFETY: the caller vouches for the context and for being alone.
    unsafe {
        (*(*vctx).r#priv.cast::<Private>()).ex.ops.overlay(ops);
        spread_to_extension(vctx, ops);
        spread_to_context(&mut (*vctx).context.ops, ops);
    }
}

macro_rules! copy_filled {
    ($to:expr, $ops:expr; $($field:ident $(= $op:ident)?),* $(,)?) => {
        $(copy_filled!(@one $to, $ops, $field $(, $op)?);)*
    };
    (@one $to:expr, $ops:expr, $field:ident) => { copy_filled!(@one $to, $ops, $field, $field) };
    (@one $to:expr, $ops:expr, $field:ident, $op:ident) => {
        if $ops.$op.is_some() {
            $to.$field = $ops.$op;
        }
    };
}

/// # Safety
/// `vctx` must be valid and used by nobody else.
unsafe fn spread_to_extension(vctx: *mut verbs_context, ops: &verbs_context_ops) {
    // SAFETY: the caller vouches for it.
    let first = size_of::<verbs_context>() - unsafe { (*vctx).sz };
    macro_rules! copy_present {
        ($($field:ident $(= $op:ident)?),* $(,)?) => { $(copy_present!(@one $field $($op)?);)* };
        (@one $field:ident) => { copy_present!(@one $field $field) };
        (@one $field:ident $op:ident) => {
            // A context of an older release lacks the first fields.
            if ops.$op.is_some() && offset_of!(verbs_context, $field) >= first {
                // SAFETY: the field lies within the context's own size.
                unsafe { (*vctx).$field = ops.$op };
            }
        };
    }
    copy_present!(
        advise_mr,
        alloc_buf,
        alloc_dm,
        alloc_dmah,
        alloc_null_mr,
        alloc_parent_domain,
        alloc_td,
        attach_counters_point_flow,
        close_xrcd,
        create_counters,
        ibv_create_flow = create_flow,
        create_flow_action_esp,
        create_qp_ex,
        create_rwq_ind_table,
        create_srq_ex,
        create_wq,
        dealloc_dmah,
        dealloc_td,
        destroy_counters,
        ibv_destroy_flow = destroy_flow,
        destroy_flow_action,
        destroy_rwq_ind_table,
        destroy_wq,
        dm_export_dmabuf_fd,
        free_buf,
        free_dm,
        get_srq_num,
        modify_cq,
        modify_flow_action_esp,
        modify_qp_rate_limit,
        modify_wq,
        open_qp,
        open_xrcd,
        post_srq_ops,
        query_device_ex,
        query_rt_values,
        read_counters,
        reg_dm_mr,
        reg_mr_ex,
    );
}

fn spread_to_context(to: &mut ibv_context_ops, ops: &verbs_context_ops) {
    copy_filled!(to, ops;
        alloc_mw, bind_mw, dealloc_mw, poll_cq, post_recv, post_send, post_srq_recv, req_notify_cq);
    macro_rules! copy_compat {
        ($($field:ident = $op:ident),* $(,)?) => {
            $(if let Some(f) = ops.$op {
                // SAFETY: both are function pointers; only a caller that knows the true type calls it.
                to.$field = Some(unsafe { transmute::<*const (), unsafe extern "C" fn() -> *mut c_void>(f as *const ()) });
            })*
        };
    }
    copy_compat!(
        _compat_alloc_pd = alloc_pd,
        _compat_dealloc_pd = dealloc_pd,
        _compat_reg_mr = reg_mr,
        _compat_rereg_mr = rereg_mr,
        _compat_dereg_mr = dereg_mr,
        _compat_create_cq = create_cq,
        _compat_cq_event = cq_event,
        _compat_resize_cq = resize_cq,
        _compat_destroy_cq = destroy_cq,
        _compat_create_srq = create_srq,
        _compat_modify_srq = modify_srq,
        _compat_query_srq = query_srq,
        _compat_destroy_srq = destroy_srq,
        _compat_create_qp = create_qp,
        _compat_query_qp = query_qp,
        _compat_modify_qp = modify_qp,
        _compat_destroy_qp = destroy_qp,
        _compat_create_ah = create_ah,
        _compat_destroy_ah = destroy_ah,
        _compat_attach_mcast = attach_mcast,
        _compat_detach_mcast = detach_mcast,
        _compat_async_event = async_event,
    );
}

/// A function that refuses, of whatever type its slot has: `int` gives EOPNOTSUPP, `null` NULL with errno, `minus` -1
/// with errno; `post` also points out the first work request.
macro_rules! absent {
    (int $name:literal; $($arg:ident)*) => {{
        unsafe extern "C" fn op<$($arg),*>($(_: $arg),*) -> c_int { refuse($name).0 }
        Some(op)
    }};
    (minus $name:literal; $($arg:ident)*) => {{
        unsafe extern "C" fn op<$($arg),*>($(_: $arg),*) -> c_int { refuse($name); -1 }
        Some(op)
    }};
    (null $name:literal; $($arg:ident)*) => {{
        unsafe extern "C" fn op<Object, $($arg),*>($(_: $arg),*) -> *mut Object { refuse($name); ptr::null_mut() }
        Some(op)
    }};
    (post $name:literal) => {{
        unsafe extern "C" fn op<Queue, Request>(_: *mut Queue, wr: *mut Request, bad: *mut *mut Request) -> c_int {
            if !bad.is_null() {
                // SAFETY: the caller gives a place for the pointer.
                unsafe { *bad = wr };
            }
            refuse($name).0
        }
        Some(op)
    }};
    (nothing; $($arg:ident)*) => {{
        unsafe extern "C" fn op<$($arg),*>($(_: $arg),*) {}
        Some(op)
    }};
}

#[cold]
fn refuse(call: &str) -> Errno {
    log::explain(format_args!("{call}: this device does not have it"));
    Errno::EOPNOTSUPP.store();
    Errno::EOPNOTSUPP
}

/// rdma-core gives +EOPNOTSUPP here, which reads as 95 completions; ibv_poll_cq(3) asks for a negative number.
unsafe extern "C" fn poll_nothing<Cq, Wc>(_: *mut Cq, _: c_int, _: *mut Wc) -> c_int {
    -refuse("ibv_poll_cq").0
}

/// Nothing is promised about the order in which bytes become visible.
unsafe extern "C" fn no_order<Qp>(_: *mut Qp, _: u32, _: u32) -> c_int {
    0
}

static DEFAULTS: verbs_context_ops = verbs_context_ops {
    advise_mr: absent!(int "ibv_advise_mr"; A B C D E),
    alloc_buf: Some(buffer::alloc),
    alloc_dm: absent!(null "ibv_alloc_dm"; A B),
    alloc_dmah: absent!(null "ibv_alloc_dmah"; A B),
    alloc_mw: absent!(null "ibv_alloc_mw"; A B),
    alloc_null_mr: absent!(null "ibv_alloc_null_mr"; A),
    alloc_parent_domain: absent!(null "ibv_alloc_parent_domain"; A B),
    alloc_pd: absent!(null "ibv_alloc_pd"; A),
    alloc_td: absent!(null "ibv_alloc_td"; A B),
    async_event: absent!(nothing; A B),
    attach_counters_point_flow: absent!(int "ibv_attach_counters_point_flow"; A B C),
    attach_mcast: absent!(int "ibv_attach_mcast"; A B C),
    bind_mw: absent!(int "ibv_bind_mw"; A B C),
    close_xrcd: absent!(int "ibv_close_xrcd"; A),
    cq_event: absent!(nothing; A),
    create_ah: absent!(null "ibv_create_ah"; A B),
    create_comp_cntr: absent!(null "ibv_create_comp_cntr"; A B),
    create_counters: absent!(null "ibv_create_counters"; A B),
    create_cq: absent!(null "ibv_create_cq"; A B C D),
    create_cq_ex: absent!(null "ibv_create_cq_ex"; A B),
    create_flow: absent!(null "ibv_create_flow"; A B),
    create_flow_action_esp: absent!(null "ibv_create_flow_action_esp"; A B),
    create_qp: absent!(null "ibv_create_qp"; A B),
    create_qp_ex: absent!(null "ibv_create_qp_ex"; A B),
    create_rwq_ind_table: absent!(null "ibv_create_rwq_ind_table"; A B),
    create_srq: absent!(null "ibv_create_srq"; A B),
    create_srq_ex: absent!(null "ibv_create_srq_ex"; A B),
    create_wq: absent!(null "ibv_create_wq"; A B),
    dealloc_dmah: absent!(int "ibv_dealloc_dmah"; A),
    dealloc_mw: absent!(int "ibv_dealloc_mw"; A),
    dealloc_pd: absent!(int "ibv_dealloc_pd"; A),
    dealloc_td: absent!(int "ibv_dealloc_td"; A),
    dereg_mr: absent!(int "ibv_dereg_mr"; A),
    destroy_ah: absent!(int "ibv_destroy_ah"; A),
    destroy_comp_cntr: absent!(int "ibv_destroy_comp_cntr"; A),
    destroy_counters: absent!(int "ibv_destroy_counters"; A),
    destroy_cq: absent!(int "ibv_destroy_cq"; A),
    destroy_flow: absent!(int "ibv_destroy_flow"; A),
    destroy_flow_action: absent!(int "ibv_destroy_flow_action"; A),
    destroy_qp: absent!(int "ibv_destroy_qp"; A),
    destroy_rwq_ind_table: absent!(int "ibv_destroy_rwq_ind_table"; A),
    destroy_srq: absent!(int "ibv_destroy_srq"; A),
    destroy_wq: absent!(int "ibv_destroy_wq"; A),
    detach_mcast: absent!(int "ibv_detach_mcast"; A B C),
    dm_export_dmabuf_fd: absent!(minus "ibv_dm_export_dmabuf_fd"; A),
    free_buf: Some(buffer::free),
    free_context: absent!(nothing; A),
    free_dm: absent!(int "ibv_free_dm"; A),
    get_srq_num: absent!(int "ibv_get_srq_num"; A B),
    import_dm: absent!(null "ibv_import_dm"; A B),
    import_mr: absent!(null "ibv_import_mr"; A B),
    import_pd: absent!(null "ibv_import_pd"; A B),
    inc_comp_cntr: absent!(int "ibv_inc_comp_cntr"; A B),
    inc_err_comp_cntr: absent!(int "ibv_inc_err_comp_cntr"; A B),
    modify_cq: absent!(int "ibv_modify_cq"; A B),
    modify_flow_action_esp: absent!(int "ibv_modify_flow_action_esp"; A B),
    modify_qp: absent!(int "ibv_modify_qp"; A B C),
    modify_qp_rate_limit: absent!(int "ibv_modify_qp_rate_limit"; A B),
    modify_srq: absent!(int "ibv_modify_srq"; A B C),
    modify_wq: absent!(int "ibv_modify_wq"; A B),
    open_qp: absent!(null "ibv_open_qp"; A B),
    open_xrcd: absent!(null "ibv_open_xrcd"; A B),
    poll_cq: Some(poll_nothing),
    post_recv: absent!(post "ibv_post_recv"),
    post_send: absent!(post "ibv_post_send"),
    post_srq_ops: absent!(post "ibv_post_srq_ops"),
    post_srq_recv: absent!(post "ibv_post_srq_recv"),
    qp_attach_comp_cntr: absent!(int "ibv_qp_attach_comp_cntr"; A B C),
    query_comp_cntr_caps: absent!(int "ibv_query_comp_cntr_caps"; A B C),
    query_device_ex: absent!(int "ibv_query_device_ex"; A B C D),
    query_ece: absent!(int "ibv_query_ece"; A B),
    query_port: absent!(int "ibv_query_port"; A B C),
    query_port_speed: absent!(int "ibv_query_port_speed"; A B C),
    query_qp: absent!(int "ibv_query_qp"; A B C D),
    query_qp_data_in_order: Some(no_order),
    query_rt_values: absent!(int "ibv_query_rt_values_ex"; A B),
    query_srq: absent!(int "ibv_query_srq"; A B),
    read_comp_cntr: absent!(int "ibv_read_comp_cntr"; A B),
    read_counters: absent!(int "ibv_read_counters"; A B C D),
    read_err_comp_cntr: absent!(int "ibv_read_err_comp_cntr"; A B),
    reg_dm_mr: absent!(null "ibv_reg_dm_mr"; A B C D E),
    reg_dmabuf_mr: absent!(null "ibv_reg_dmabuf_mr"; A B C D E F),
    reg_mr: absent!(null "ibv_reg_mr"; A B C D E),
    reg_mr_ex: Some(registration::by_attributes),
    req_notify_cq: absent!(int "ibv_req_notify_cq"; A B),
    rereg_mr: absent!(minus "ibv_rereg_mr"; A B C D E F),
    resize_cq: absent!(int "ibv_resize_cq"; A B),
    set_comp_cntr: absent!(int "ibv_set_comp_cntr"; A B),
    set_ece: absent!(int "ibv_set_ece"; A B),
    set_err_comp_cntr: absent!(int "ibv_set_err_comp_cntr"; A B),
    unimport_dm: absent!(nothing; A),
    unimport_mr: absent!(nothing; A),
    unimport_pd: absent!(nothing; A),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::*;
    use crate::provider::context;

    struct Context(Box<verbs_context>);

    impl Context {
        fn new() -> Self {
            let mut vctx = Box::new(verbs_context::zeroed());
            // SAFETY: fresh memory; no device is looked at.
            unsafe { context::init(&mut *vctx, ptr::null_mut(), -1, 0) };
            Self(vctx)
        }
    }

    impl Drop for Context {
        fn drop(&mut self) {
            // SAFETY: made by `init` above.
            unsafe { context::uninit(&mut *self.0) }
        }
    }

    #[test]
    fn a_bare_context_refuses_by_each_slots_convention() {
        let mut it = Context::new();
        let ctx = &raw mut it.0.context;
        // SAFETY: the defaults look at none of their arguments but bad_wr.
        unsafe {
            Errno(0).store();
            let ops = context::ops(ctx);
            assert!(ops.alloc_pd.unwrap()(ctx).is_null());
            assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
            assert_eq!(ops.destroy_qp.unwrap()(ptr::null_mut()), libc::EOPNOTSUPP);
            assert_eq!(ops.query_qp_data_in_order.unwrap()(ptr::null_mut(), 0, 0), 0);
            let mut wr = ibv_send_wr::zeroed();
            let mut bad = ptr::null_mut();
            let post = it.0.context.ops.post_send.unwrap();
            assert_eq!(post(ptr::null_mut(), &mut wr, &mut bad), libc::EOPNOTSUPP);
            assert_eq!(bad, &raw mut wr);
            assert!(it.0.context.ops.poll_cq.unwrap()(ptr::null_mut(), 1, ptr::null_mut()) < 0);
            assert_eq!(it.0.close_xrcd.unwrap()(ptr::null_mut()), libc::EOPNOTSUPP);
        }
    }

    #[test]
    fn set_ops_reaches_every_place_and_leaves_the_rest() {
        unsafe extern "C" fn poll(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
            7
        }
        unsafe extern "C" fn close(_: *mut ibv_xrcd) -> c_int {
            8
        }
        unsafe extern "C" fn dealloc(_: *mut ibv_pd) -> c_int {
            9
        }
        let mut it = Context::new();
        let mut ops = verbs_context_ops::zeroed();
        ops.poll_cq = Some(poll);
        ops.close_xrcd = Some(close);
        ops.dealloc_pd = Some(dealloc);
        let ctx = &raw mut it.0.context;
        // SAFETY: the functions look at none of their arguments.
        unsafe {
            set_ops(&mut *it.0, &ops);
            assert_eq!(it.0.context.ops.poll_cq.unwrap()(ptr::null_mut(), 0, ptr::null_mut()), 7);
            assert_eq!(it.0.close_xrcd.unwrap()(ptr::null_mut()), 8);
            assert_eq!(context::ops(ctx).dealloc_pd.unwrap()(ptr::null_mut()), 9);
            assert_eq!(it.0.context.ops._compat_dealloc_pd.unwrap() as usize, dealloc as *const () as usize);
            assert_eq!(context::ops(ctx).destroy_ah.unwrap()(ptr::null_mut()), libc::EOPNOTSUPP);
        }
    }

    #[test]
    fn the_marker_and_size_make_inline_functions_find_the_extension() {
        let mut it = Context::new();
        assert_eq!(it.0.context.abi_compat.addr(), usize::MAX);
        assert_eq!(it.0.sz, size_of::<verbs_context>());
        let ctx = &raw mut it.0.context;
        // SAFETY: a live context.
        assert_eq!(unsafe { context::extended(ctx) }, Some(&raw mut *it.0));
    }
}
