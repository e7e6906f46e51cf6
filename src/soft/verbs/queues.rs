//! Completion queues and shared receive queues.
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::memory::null;
use super::{
    ChannelObject, CqObject, PdObject, Polled, SrqObject, XrcdObject, context, extended, inherited, object,
};
use crate::abi::*;
use crate::provider::object as common;
use crate::soft::cq::{Batch, Cq, CqConfig, Cqe};
use crate::soft::device::limits;
use crate::soft::mem::area::{Allocator, Purpose};
use crate::soft::qp::recvq::RecvQueue;
use crate::soft::srq::{Srq, XrcSide};
use crate::soft::types::{Qpn, WcOpcode, WcStatus};
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::pthread;

const CQ_FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
/// What the extended readers can give.
const WC_FLAGS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | TIMES;
const TIMES: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub unsafe extern "C" fn create_cq(
    c: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the library passes a live context of urxe and a live channel or NULL.
    unsafe { make_cq(c, cqe as i64, channel, vector as i64, 0, 0, None).cast() }
}

pub unsafe extern "C" fn create_cq_ex(c: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the library passes a live context of urxe and readable attributes.
    unsafe {
        let a = &*attr;
        if a.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            explain(format_args!("ibv_create_cq_ex comp_mask=0x{:x} has unknown bits", a.comp_mask));
            return null(Errno::EINVAL);
        }
        let flags = if a.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { a.flags } else { 0 };
        if flags & !CQ_FLAGS != 0 || a.wc_flags & !WC_FLAGS != 0 {
            explain(format_args!(
                "ibv_create_cq_ex flags=0x{flags:x} wc_flags=0x{:x}: this device offers flags 0x{CQ_FLAGS:x} and wc_flags 0x{WC_FLAGS:x}",
                a.wc_flags
            ));
            return null(Errno::EOPNOTSUPP);
        }
        let parent =
            if a.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 { a.parent_domain } else { ptr::null_mut() };
        if a.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0
            && (parent.is_null() || !object::<_, PdObject>(parent).is_parent())
        {
            explain(format_args!("ibv_create_cq_ex parent_domain={parent:p}: expected a parent domain"));
            return null(Errno::EINVAL);
        }
        let allocator =
            if parent.is_null() { None } else { object::<_, PdObject>(parent).allocator().cloned() };
        let cq = make_cq(c, a.cqe as i64, a.channel, a.comp_vector as i64, flags, a.wc_flags, allocator);
        if !cq.is_null() {
            extended::fill_cq(&mut (*cq.cast::<CqObject>()).c.cq_ex, a.wc_flags);
        }
        cq
    }
}

/// # Safety
/// `c` must be a live context of urxe, `channel` a live channel of it or NULL.
unsafe fn make_cq(
    c: *mut ibv_context,
    cqe: i64,
    channel: *mut ibv_comp_channel,
    vector: i64,
    flags: u32,
    wc_flags: u64,
    allocator: Option<Arc<dyn Allocator>>,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller vouches for the context.
    let (context, vectors) = unsafe { (context(c), (*c).num_comp_vectors as i64) };
    if !context.node.is_ours() {
        return null(Errno::EIO);
    }
    if cqe < 1 || cqe > limits::MAX_CQE as i64 {
        explain(format_args!("ibv_create_cq cqe={cqe}: expected 1 to {}", limits::MAX_CQE));
        return null(Errno::EINVAL);
    }
    if vector < 0 || vector >= vectors {
        explain(format_args!("ibv_create_cq comp_vector={vector}: expected 0 to {}", vectors - 1));
        return null(Errno::EINVAL);
    }
    let ticket = match context.census().cqs.enter(limits::MAX_CQ, "ibv_create_cq") {
        Ok(ticket) => ticket,
        Err(e) => return null(e),
    };
    let config = CqConfig {
        depth: cqe as u32,
        timestamps: wc_flags & TIMES != 0,
        ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
        allocator,
    };
    // SAFETY: the caller vouches for the channel.
    let notify = (!channel.is_null()).then(|| unsafe { object::<_, ChannelObject>(channel) }.channel.clone());
    let cq = match Cq::new(&config, notify, context.events.clone()) {
        Ok(cq) => cq,
        Err(e) => return null(e),
    };
    let empty = Cqe::new(0, Qpn(0), WcOpcode::Send, WcStatus::Success);
    let mut whole = verbs_cq::zeroed();
    whole.cq_ex.cqe = cqe as i32;
    let shared = cq.clone();
    let object = Box::into_raw(Box::new(CqObject {
        c: whole,
        cq,
        comp_events: AtomicU32::new(0),
        async_events: AtomicU32::new(0),
        polling: Lock::new(Polled { cqe: empty, time: 0, batch: Batch::default() }),
        single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
        _ticket: ticket,
    }));
    shared.cookie.store(object as usize, Ordering::Relaxed);
    object.cast()
}

pub unsafe extern "C" fn destroy_cq(c: *mut ibv_cq) -> c_int {
    // SAFETY: the library passes a live CQ of urxe, which this call ends on success.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        let object: &CqObject = object(c);
        let users = object.cq.users.load(Ordering::Acquire);
        if users > 0 {
            explain(format_args!("ibv_destroy_cq: {users} QP(s) or SRQ(s) still use it"));
            return libc::EBUSY;
        }
        object.cq.retire();
        let comp = object.comp_events.load(Ordering::SeqCst);
        let asynchronous = object.async_events.load(Ordering::SeqCst);
        pthread::wait_acknowledged(
            &raw mut (*c).mutex,
            &raw mut (*c).cond,
            &[
                (&raw const (*c).comp_events_completed, comp),
                (&raw const (*c).async_events_completed, asynchronous),
            ],
        );
        drop(Box::from_raw(c.cast::<CqObject>()));
    }
    0
}

pub unsafe extern "C" fn resize_cq(c: *mut ibv_cq, cqe: c_int) -> c_int {
    if cqe < 1 || cqe as i64 > limits::MAX_CQE as i64 {
        explain(format_args!("ibv_resize_cq cqe={cqe}: expected 1 to {}", limits::MAX_CQE));
        return libc::EINVAL;
    }
    // SAFETY: the library passes a live CQ of urxe.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        match object::<_, CqObject>(c).cq.resize(cqe as u32) {
            Ok(()) => {
                (*c).cqe = cqe;
                0
            }
            Err(0) => libc::ENOMEM,
            Err(held) => {
                explain(format_args!("ibv_resize_cq cqe={cqe}: it holds {held} completions"));
                libc::EINVAL
            }
        }
    }
}

pub unsafe extern "C" fn modify_cq(c: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the library passes a live CQ of urxe and readable attributes.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        let a = &*attr;
        if a.attr_mask != IBV_CQ_ATTR_MODERATE {
            explain(format_args!(
                "ibv_modify_cq attr_mask=0x{:x}: expected IBV_CQ_ATTR_MODERATE",
                a.attr_mask
            ));
            return if a.attr_mask == 0 { libc::EINVAL } else { libc::EOPNOTSUPP };
        }
        object::<_, CqObject>(c).cq.moderate(a.moderate.cq_count, a.moderate.cq_period);
    }
    0
}

pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the library passes a live PD of urxe and writable attributes.
    unsafe {
        let mut attr = (*init).attr;
        let srq = make_srq(pd, &mut attr, None);
        if !srq.is_null() {
            (*init).attr = attr;
        }
        srq
    }
}

pub unsafe extern "C" fn create_srq_ex(c: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: the library passes a live context of urxe and writable attributes naming live objects of it.
    unsafe {
        let a = &mut *init;
        let known =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let kind = if a.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 { a.srq_type } else { IBV_SRQT_BASIC };
        if a.comp_mask & !known != 0 || kind > IBV_SRQT_XRC {
            explain(format_args!(
                "ibv_create_srq_ex comp_mask=0x{:x} srq_type={kind}: this device has basic and XRC SRQs",
                a.comp_mask
            ));
            return null(Errno::EOPNOTSUPP);
        }
        if a.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || a.pd.is_null() {
            explain(format_args!("ibv_create_srq_ex comp_mask lacks IBV_SRQ_INIT_ATTR_PD"));
            return null(Errno::EINVAL);
        }
        let mut xrc = None;
        if kind == IBV_SRQT_XRC {
            let needs = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
            if a.comp_mask & needs != needs || a.xrcd.is_null() || a.cq.is_null() {
                explain(format_args!("ibv_create_srq_ex: an XRC SRQ needs IBV_SRQ_INIT_ATTR_XRCD and _CQ"));
                return null(Errno::EINVAL);
            }
            xrc = Some((a.xrcd, a.cq));
        }
        let mut attr = a.attr;
        let srq = make_srq(a.pd, &mut attr, xrc);
        if srq.is_null() {
            return srq;
        }
        a.attr = attr;
        common::init_srq(srq, a.pd, a.srq_context);
        (*srq).context = c;
        srq
    }
}

/// # Safety
/// `pd`, and the XRC domain and CQ, must be live objects of urxe.
unsafe fn make_srq(
    pd: *mut ibv_pd,
    attr: &mut ibv_srq_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> *mut ibv_srq {
    if attr.max_wr > limits::MAX_SRQ_WR || attr.max_sge > limits::MAX_SRQ_SGE {
        explain(format_args!(
            "ibv_create_srq max_wr={} max_sge={}: expected at most {} and {}",
            attr.max_wr,
            attr.max_sge,
            limits::MAX_SRQ_WR,
            limits::MAX_SRQ_SGE
        ));
        return null(Errno::EINVAL);
    }
    // SAFETY: the caller vouches for all objects.
    unsafe {
        let pd_object: &PdObject = object(pd);
        let context = context((*pd).context);
        if !context.node.is_ours() {
            return null(Errno::EIO);
        }
        attr.max_wr = attr.max_wr.max(1);
        let ticket = match context.census().srqs.enter(limits::MAX_SRQ, "ibv_create_srq") {
            Ok(ticket) => ticket,
            Err(e) => return null(e),
        };
        let from = pd_object.allocator().map(|a| (a.clone(), Purpose::Srq));
        let queue = match RecvQueue::new_in(attr.max_wr, attr.max_sge, from) {
            Ok(queue) => queue,
            Err(e) => return null(e),
        };
        // Last, since it would have to be given back.
        let number = match xrc.map(|_| context.node.wires.claim_srqn(context.node)).transpose() {
            Ok(number) => number.unwrap_or(0),
            Err(e) => return null(e),
        };
        let side = xrc.map(|(xrcd, cq)| {
            let cq = &object::<_, CqObject>(cq).cq;
            cq.users.fetch_add(1, Ordering::AcqRel);
            object::<_, XrcdObject>(xrcd).users.fetch_add(1, Ordering::AcqRel);
            XrcSide { domain: object::<_, XrcdObject>(xrcd).domain, cq: cq.clone(), number }
        });
        let srq = Arc::new(Srq::new(queue, pd_object.pd.id(), side, context.events.clone()));
        let mut whole = verbs_srq::zeroed();
        if let Some((xrcd, cq)) = xrc {
            whole.srq_type = IBV_SRQT_XRC;
            whole.xrcd = xrcd.cast();
            whole.cq = cq;
            whole.srq_num = number;
            context.node.add_srq(number, &srq);
        }
        let shared = srq.clone();
        let object = Box::into_raw(Box::new(SrqObject {
            c: whole,
            srq,
            pd: pd_object.pd.clone(),
            async_events: AtomicU32::new(0),
            _ticket: ticket,
        }));
        shared.cookie.store(object as usize, Ordering::Relaxed);
        object.cast()
    }
}

pub unsafe extern "C" fn destroy_srq(c: *mut ibv_srq) -> c_int {
    // SAFETY: the library passes a live SRQ of urxe, which this call ends on success.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        let object: &SrqObject = object(c);
        let users = object.srq.users.load(Ordering::Acquire);
        if users > 0 {
            explain(format_args!("ibv_destroy_srq: {users} QP(s) still use it"));
            return libc::EBUSY;
        }
        let context = context((*c).context);
        if let Some(xrc) = &object.srq.xrc {
            context.node.remove_srq(xrc.number);
            xrc.cq.users.fetch_sub(1, Ordering::AcqRel);
            super::object::<_, XrcdObject>(object.c.xrcd).users.fetch_sub(1, Ordering::AcqRel);
        }
        context.events.forget(&object.srq.cookie);
        object.srq.retire();
        let given = object.async_events.load(Ordering::SeqCst);
        pthread::wait_acknowledged(
            &raw mut (*c).mutex,
            &raw mut (*c).cond,
            &[(&raw const (*c).events_completed, given)],
        );
        drop(Box::from_raw(c.cast::<SrqObject>()));
    }
    0
}

pub unsafe extern "C" fn query_srq(c: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the library passes a live SRQ of urxe and writable attributes.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        let (max_wr, max_sge, srq_limit) = object::<_, SrqObject>(c).srq.attributes();
        *attr = ibv_srq_attr { max_wr, max_sge, srq_limit };
    }
    0
}

pub unsafe extern "C" fn modify_srq(c: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let mask = mask as u32;
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        explain(format_args!("ibv_modify_srq srq_attr_mask=0x{mask:x} has unknown bits"));
        return libc::EINVAL;
    }
    // SAFETY: the library passes a live SRQ of urxe and readable attributes.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        let srq = &object::<_, SrqObject>(c).srq;
        let attr = &*attr;
        if mask & IBV_SRQ_MAX_WR != 0 {
            let fits = attr.max_wr <= limits::MAX_SRQ_WR;
            match if fits { srq.resize(attr.max_wr) } else { Err(Errno::EINVAL) } {
                Ok(()) => {}
                Err(Errno::ENOMEM) => return libc::ENOMEM,
                Err(_) => {
                    explain(format_args!(
                        "ibv_modify_srq max_wr={}: expected at most {}, and at least the {} requests that wait, srq_limit={} and 1",
                        attr.max_wr,
                        limits::MAX_SRQ_WR,
                        srq.waiting(),
                        srq.attributes().2
                    ));
                    return libc::EINVAL;
                }
            }
        }
        if mask & IBV_SRQ_LIMIT != 0 && srq.arm_limit(attr.srq_limit).is_err() {
            explain(format_args!(
                "ibv_modify_srq srq_limit={}: expected at most max_wr={}",
                attr.srq_limit,
                srq.attributes().0
            ));
            return libc::EINVAL;
        }
    }
    0
}

pub unsafe extern "C" fn get_srq_num(c: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the library passes a live SRQ of urxe and room for the number.
    unsafe {
        match &object::<_, SrqObject>(c).srq.xrc {
            Some(xrc) => {
                *number = xrc.number;
                0
            }
            None => {
                explain(format_args!("ibv_get_srq_num: only XRC SRQs have a number"));
                libc::EOPNOTSUPP
            }
        }
    }
}
