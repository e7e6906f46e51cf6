//! CQs, SRQs, QPs, multicast and events of IBVERBS_1.0.
use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use super::{
    compat_1_0::{unwrap_if_gone, wrap},
    cq, event, qp, srq,
};
use crate::abi::*;

export!(create_cq => "ibv_create_cq" @ "IBVERBS_1.0");
export!(resize_cq => "ibv_resize_cq" @ "IBVERBS_1.0");
export!(destroy_cq => "ibv_destroy_cq" @ "IBVERBS_1.0");
export!(get_cq_event => "ibv_get_cq_event" @ "IBVERBS_1.0");
export!(ack_cq_events => "ibv_ack_cq_events" @ "IBVERBS_1.0");
export!(create_srq => "ibv_create_srq" @ "IBVERBS_1.0");
export!(modify_srq => "ibv_modify_srq" @ "IBVERBS_1.0");
export!(query_srq => "ibv_query_srq" @ "IBVERBS_1.0");
export!(destroy_srq => "ibv_destroy_srq" @ "IBVERBS_1.0");
export!(create_qp => "ibv_create_qp" @ "IBVERBS_1.0");
export!(query_qp => "ibv_query_qp" @ "IBVERBS_1.0");
export!(modify_qp => "ibv_modify_qp" @ "IBVERBS_1.0");
export!(destroy_qp => "ibv_destroy_qp" @ "IBVERBS_1.0");
export!(attach_mcast => "ibv_attach_mcast" @ "IBVERBS_1.0");
export!(detach_mcast => "ibv_detach_mcast" @ "IBVERBS_1.0");
export!(get_async_event => "ibv_get_async_event" @ "IBVERBS_1.0");
export!(ack_async_event => "ibv_ack_async_event" @ "IBVERBS_1.0");

unsafe extern "C" fn create_cq(
    ctx: *mut ibv_context_1_0,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq_1_0 {
    let wrapper = wrap(ibv_cq_1_0::zeroed(), |cq| {
        cq.context = ctx;
        cq.cq_context = cq_context;
    });
    // SAFETY: the program passes live objects that it got from here, as for all functions below.
    unsafe {
        let real = cq::ibv_create_cq((*ctx).real_context, cqe, wrapper.cast(), channel, comp_vector);
        if real.is_null() {
            return free(wrapper);
        }
        (*wrapper).handle = (*real).handle;
        (*wrapper).cqe = (*real).cqe;
        (*wrapper).real_cq = real;
    }
    wrapper
}

unsafe extern "C" fn resize_cq(cq: *mut ibv_cq_1_0, cqe: c_int) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe {
        let result = cq::ibv_resize_cq((*cq).real_cq, cqe);
        (*cq).cqe = (*(*cq).real_cq).cqe;
        result
    }
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq_1_0) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe { unwrap_if_gone(cq::ibv_destroy_cq((*cq).real_cq), cq) }
}

unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq_1_0,
    cq_context: *mut *mut c_void,
) -> c_int {
    let (mut real, mut wrapper) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: see `create_cq`; the context of a real CQ is its wrapper.
    unsafe {
        let result = event::ibv_get_cq_event(channel, &mut real, &mut wrapper);
        if result == 0 {
            *cq = wrapper.cast();
            *cq_context = (**cq).cq_context;
        }
        result
    }
}

unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq_1_0, count: c_uint) {
    // SAFETY: see `create_cq`.
    unsafe { event::ibv_ack_cq_events((*cq).real_cq, count) }
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd_1_0, init: *mut ibv_srq_init_attr) -> *mut ibv_srq_1_0 {
    // SAFETY: see `create_cq`.
    unsafe {
        let wrapper = wrap(ibv_srq_1_0::zeroed(), |srq| {
            srq.context = (*pd).context;
            srq.srq_context = (*init).srq_context;
            srq.pd = pd;
        });
        let mut attr = ibv_srq_init_attr { srq_context: wrapper.cast(), attr: (*init).attr };
        let real = srq::ibv_create_srq((*pd).real_pd, &mut attr);
        if real.is_null() {
            return free(wrapper);
        }
        (*init).attr = attr.attr;
        (*wrapper).handle = (*real).handle;
        (*wrapper).real_srq = real;
        wrapper
    }
}

unsafe extern "C" fn modify_srq(srq: *mut ibv_srq_1_0, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe { srq::ibv_modify_srq((*srq).real_srq, attr, mask) }
}

unsafe extern "C" fn query_srq(srq: *mut ibv_srq_1_0, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe { srq::ibv_query_srq((*srq).real_srq, attr) }
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq_1_0) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe { unwrap_if_gone(srq::ibv_destroy_srq((*srq).real_srq), srq) }
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd_1_0, init: *mut ibv_qp_init_attr_1_0) -> *mut ibv_qp_1_0 {
    // SAFETY: see `create_cq`; the queues are live or NULL.
    unsafe {
        let wrapper = wrap(ibv_qp_1_0::zeroed(), |qp| {
            qp.context = (*pd).context;
            qp.qp_context = (*init).qp_context;
            qp.pd = pd;
            qp.send_cq = (*init).send_cq;
            qp.recv_cq = (*init).recv_cq;
            qp.srq = (*init).srq;
            qp.qp_type = (*init).qp_type;
        });
        let mut attr = ibv_qp_init_attr {
            qp_context: wrapper.cast(),
            send_cq: (*init).send_cq.as_ref().map_or(ptr::null_mut(), |cq| cq.real_cq),
            recv_cq: (*init).recv_cq.as_ref().map_or(ptr::null_mut(), |cq| cq.real_cq),
            srq: (*init).srq.as_ref().map_or(ptr::null_mut(), |srq| srq.real_srq),
            cap: (*init).cap,
            qp_type: (*init).qp_type,
            sq_sig_all: (*init).sq_sig_all,
        };
        let real = qp::ibv_create_qp((*pd).real_pd, &mut attr);
        if real.is_null() {
            return free(wrapper);
        }
        (*init).cap = attr.cap;
        (*wrapper).handle = (*real).handle;
        (*wrapper).qp_num = (*real).qp_num;
        (*wrapper).state = (*real).state;
        (*wrapper).real_qp = real;
        wrapper
    }
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp_1_0,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr_1_0,
) -> c_int {
    let mut real = ibv_qp_init_attr::zeroed();
    // SAFETY: see `create_cq`.
    unsafe {
        let result = qp::ibv_query_qp((*qp).real_qp, attr, mask, &mut real);
        (*qp).state = (*(*qp).real_qp).state;
        if let Some(init) = init.as_mut().filter(|_| result == 0) {
            *init = ibv_qp_init_attr_1_0 {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: real.cap,
                qp_type: real.qp_type,
                sq_sig_all: real.sq_sig_all,
            };
        }
        result
    }
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp_1_0, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe {
        let result = qp::ibv_modify_qp((*qp).real_qp, attr, mask);
        (*qp).state = (*(*qp).real_qp).state;
        result
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp_1_0) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe { unwrap_if_gone(qp::ibv_destroy_qp((*qp).real_qp), qp) }
}

unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp_1_0, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe { qp::ibv_attach_mcast((*qp).real_qp, gid, lid) }
}

unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp_1_0, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: see `create_cq`.
    unsafe { qp::ibv_detach_mcast((*qp).real_qp, gid, lid) }
}

/// Gives an event whose element is the wrapper.
unsafe extern "C-unwind" fn get_async_event(ctx: *mut ibv_context_1_0, event: *mut ibv_async_event) -> c_int {
    // SAFETY: see `create_cq`; a real object's context is its wrapper.
    unsafe {
        let result = event::ibv_get_async_event((*ctx).real_context, event);
        if result == 0 {
            let element = &raw mut (*event).element;
            match about((*event).event_type) {
                About::Cq => (*element).cq = (*(*element).cq).cq_context.cast(),
                About::Qp => (*element).qp = (*(*element).qp).qp_context.cast(),
                About::Srq => (*element).srq = (*(*element).srq).srq_context.cast(),
                About::Port => {}
            }
        }
        result
    }
}

unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the program passes an event of `get_async_event`, whose element is a wrapper.
    unsafe {
        let mut real = *event;
        match about(real.event_type) {
            About::Cq => real.element.cq = (*real.element.cq.cast::<ibv_cq_1_0>()).real_cq,
            About::Qp => real.element.qp = (*real.element.qp.cast::<ibv_qp_1_0>()).real_qp,
            About::Srq => real.element.srq = (*real.element.srq.cast::<ibv_srq_1_0>()).real_srq,
            About::Port => {}
        }
        event::ibv_ack_async_event(&mut real);
    }
}

/// What an asynchronous event is about.
enum About {
    Cq,
    Qp,
    Srq,
    Port,
}

fn about(event_type: u32) -> About {
    match event_type {
        IBV_EVENT_CQ_ERR => About::Cq,
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => About::Srq,
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_PATH_MIG
        | IBV_EVENT_PATH_MIG_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED => About::Qp,
        _ => About::Port,
    }
}

/// Frees a wrapper whose object was not made; errno stays as it is.
///
/// # Safety
/// `wrapper` must come from `wrap`.
unsafe fn free<T>(wrapper: *mut T) -> *mut T {
    // SAFETY: the caller vouches for it.
    drop(unsafe { Box::from_raw(wrapper) });
    ptr::null_mut()
}
