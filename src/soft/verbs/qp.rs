//! Queue pairs: made, changed, queried, unmade.
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::attributes::{attributes, wanted};
use super::desk::Shared;
use super::handles::{forget_events, retire};
use super::memory::null;
use super::{
    Context, CqObject, PdObject, QpObject, SrqObject, XrcdObject, context, extended, inherited, object,
};
use crate::abi::*;
use crate::provider::object as common;
use crate::soft::census::Ticket;
use crate::soft::cq::Cq;
use crate::soft::device::limits;
use crate::soft::mem::PdId;
use crate::soft::mem::area::Purpose;
use crate::soft::modify::modify;
use crate::soft::qp::Qp;
use crate::soft::qp::recvq::RecvQueue;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::Responder;
use crate::soft::qp::sendq::SendQueue;
use crate::soft::srq::PRIVATE_DOMAIN;
use crate::soft::types::{Gid, QpType};
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::pthread;

pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the library passes a live PD of urxe and writable attributes.
    unsafe {
        let i = &*init;
        let mut ex = ibv_qp_init_attr_ex::zeroed();
        ex.qp_context = i.qp_context;
        (ex.send_cq, ex.recv_cq, ex.srq) = (i.send_cq, i.recv_cq, i.srq);
        (ex.cap, ex.qp_type, ex.sq_sig_all) = (i.cap, i.qp_type, i.sq_sig_all);
        (ex.comp_mask, ex.pd) = (IBV_QP_INIT_ATTR_PD, pd);
        let qp = create_qp_ex((*pd).context, &mut ex);
        if !qp.is_null() {
            (*init).cap = ex.cap;
        }
        qp
    }
}

pub unsafe extern "C" fn create_qp_ex(c: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the library passes a live context of urxe and writable attributes that name live objects of it.
    unsafe { make(c, &mut *init) }.unwrap_or_else(null)
}

const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
    | IBV_QP_INIT_ATTR_XRCD
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

/// # Safety
/// `c` must be a live context of urxe, and the objects in `init` live objects of it.
unsafe fn make(c: *mut ibv_context, init: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: the caller vouches for the context.
    let context = unsafe { context(c) };
    if !context.node.is_ours() {
        return Err(Errno::EIO);
    }
    let has = |bit| init.comp_mask & bit != 0;
    let Some(kind) = QpType::from_raw(init.qp_type) else {
        explain(format_args!("ibv_create_qp qp_type={}: this device has RC, UC, UD and XRC", init.qp_type));
        return Err(Errno::EOPNOTSUPP);
    };
    let flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { init.create_flags } else { 0 };
    let known_flags = if kind == QpType::Ud { IBV_QP_CREATE_BLOCK_SELF_MCAST_LB } else { 0 };
    if init.comp_mask & !KNOWN != 0 || flags & !known_flags != 0 {
        explain(format_args!(
            "ibv_create_qp_ex comp_mask=0x{:x} create_flags=0x{:x}: not offered by this device",
            init.comp_mask, init.create_flags
        ));
        return Err(Errno::EOPNOTSUPP);
    }
    check_cap(&init.cap)?;
    let xrcd = if has(IBV_QP_INIT_ATTR_XRCD) { init.xrcd.cast::<XrcdObject>() } else { std::ptr::null_mut() };
    let receiver = kind == QpType::XrcRecv;
    let pd_pointer = if has(IBV_QP_INIT_ATTR_PD) { init.pd } else { std::ptr::null_mut() };
    if receiver && xrcd.is_null() {
        explain(format_args!("ibv_create_qp_ex: IBV_QPT_XRC_RECV needs IBV_QP_INIT_ATTR_XRCD"));
        return Err(Errno::EINVAL);
    }
    if !receiver && (pd_pointer.is_null() || init.send_cq.is_null()) {
        explain(format_args!("ibv_create_qp: expected a PD and a send_cq"));
        return Err(Errno::EINVAL);
    }
    let connected_receiver = matches!(kind, QpType::Rc | QpType::Uc | QpType::Ud);
    if connected_receiver && init.recv_cq.is_null() {
        explain(format_args!("ibv_create_qp: expected a recv_cq"));
        return Err(Errno::EINVAL);
    }
    let ops = if has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) { Some(init.send_ops_flags) } else { None };
    if let Some(flags) = ops
        && !extended::offers(kind, flags)
    {
        explain(format_args!("ibv_create_qp_ex send_ops_flags=0x{flags:x}: not all are offered for {kind}"));
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the caller vouches for the objects.
    unsafe {
        let pd = (!pd_pointer.is_null()).then(|| object::<_, PdObject>(pd_pointer).pd.clone());
        let cq = |cq: *mut ibv_cq| (!cq.is_null()).then(|| object::<_, CqObject>(cq).cq.clone());
        let (send_cq, recv_cq) = (cq(init.send_cq), cq(init.recv_cq));
        let takes_srq = connected_receiver && !init.srq.is_null();
        let srq = takes_srq.then(|| object::<_, SrqObject>(init.srq).srq.clone());
        let cap = grant(&init.cap, kind, srq.is_some());
        let allocator = pd_pointer
            .as_ref()
            .and_then(|pd| object::<_, PdObject>(std::ptr::from_ref(pd).cast_mut()).allocator());
        let sq = Requester::new(
            SendQueue::new_in(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data, allocator)?,
            send_cq.clone().filter(|_| !receiver),
            init.sq_sig_all != 0,
        );
        let own_queue = (connected_receiver && srq.is_none())
            .then(|| {
                let from = allocator.map(|a| (a.clone(), Purpose::RecvQueue));
                RecvQueue::new_in(cap.max_recv_wr, cap.max_recv_sge, from)
            })
            .transpose()?;
        let rq = Responder::new(own_queue, srq.clone(), recv_cq.clone().filter(|_| connected_receiver));
        let ticket = context.census().qps.enter(limits::MAX_QP, "ibv_create_qp")?;
        let num = context.node.wires.claim_qpn(context.node)?;
        if receiver && (*xrcd).domain & PRIVATE_DOMAIN == 0 {
            let _ = context.node.desk.attend_slot(context.node, num.slot()).inspect_err(|e| {
                explain(format_args!("qp {num:?}: other processes cannot open it: {e:?}"));
            });
        }
        let pd_id = pd.as_ref().map_or(PdId(0), |pd| pd.id());
        let domain = (!xrcd.is_null()).then(|| (*xrcd).domain);
        let qp = Qp::new(num, kind, pd_id, context.node, domain, context.events.clone(), sq, rq);
        qp.record.set_device(context.device.index);
        qp.blocks_self.store(flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0, Ordering::Relaxed);
        hold(&[send_cq.as_ref(), recv_cq.as_ref()], 1);
        if let Some(srq) = &srq {
            srq.users.fetch_add(1, Ordering::AcqRel);
        }
        if !xrcd.is_null() {
            (*xrcd).users.fetch_add(1, Ordering::AcqRel);
        }
        init.cap = cap;
        Ok(wrap(c, init, pd_pointer, pd, xrcd, qp, ops, context, ticket))
    }
}

/// # Safety
/// All pointers must be live objects of urxe or NULL.
#[allow(clippy::too_many_arguments)]
unsafe fn wrap(
    c: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
    pd_pointer: *mut ibv_pd,
    pd: Option<crate::soft::mem::Pd>,
    xrcd: *mut XrcdObject,
    qp: Arc<Qp>,
    ops: Option<u64>,
    context: &Context,
    ticket: Ticket,
) -> *mut ibv_qp {
    let mut base = ibv_qp_init_attr::zeroed();
    base.qp_context = init.qp_context;
    (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (base.qp_type, base.sq_sig_all) = (init.qp_type, init.sq_sig_all);
    let (num, shared) = (qp.num, qp.clone());
    let whole = Box::into_raw(Box::new(QpObject {
        c: verbs_qp::zeroed(),
        qp,
        pd,
        _ticket: Some(ticket),
        opened: None,
        remote: None,
        async_events: AtomicU32::new(0),
        xrcd,
        build: Lock::new(extended::Build::new(init.cap.max_send_sge, init.cap.max_inline_data)),
    }));
    // SAFETY: the object is new and nobody else's; the attributes name live objects.
    unsafe {
        common::init_qp(whole.cast(), c, pd_pointer, &base);
        let ibqp = whole.cast::<ibv_qp>();
        (*ibqp).handle = num.0;
        (*ibqp).qp_num = num.0;
        if !xrcd.is_null() {
            (*whole).c.comp_mask |= VERBS_QP_XRCD;
            (*whole).c.xrcd = xrcd.cast();
        }
        if let Some(flags) = ops {
            (*whole).c.comp_mask |= VERBS_QP_EX;
            extended::fill_qp(&mut (*whole).c.qp_ex, shared.kind, flags);
        }
        shared.cookie.store(whole as usize, Ordering::Relaxed);
        context.faults.adopt(&shared, context.node.qps_made.fetch_add(1, Ordering::Relaxed));
        context.node.add_qp(&shared);
        // A trace that begins meanwhile may have overlooked it.
        shared.sq.lock().watch();
        ibqp
    }
}

/// Inline data that every QP has: the smallest size that does not cost an idle QP of many requests pages of memory.
const DEFAULT_INLINE: u32 = 64;

fn check_cap(cap: &ibv_qp_cap) -> Result<(), Errno> {
    let bounds = [
        ("max_send_wr", cap.max_send_wr, limits::MAX_QP_WR),
        ("max_recv_wr", cap.max_recv_wr, limits::MAX_QP_WR),
        ("max_send_sge", cap.max_send_sge, limits::MAX_SGE),
        ("max_recv_sge", cap.max_recv_sge, limits::MAX_SGE),
        ("max_inline_data", cap.max_inline_data, limits::MAX_INLINE),
    ];
    for (name, value, max) in bounds {
        if value > max {
            explain(format_args!("ibv_create_qp cap.{name}={value}: expected at most {max}"));
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

/// What the QP really gets: at least what was asked for, and inline data without asking, since it costs little.
fn grant(cap: &ibv_qp_cap, kind: QpType, has_srq: bool) -> ibv_qp_cap {
    let mut cap = *cap;
    if kind == QpType::XrcRecv {
        return ibv_qp_cap::zeroed();
    }
    cap.max_send_wr = cap.max_send_wr.max(1);
    cap.max_send_sge = cap.max_send_sge.max(1);
    cap.max_inline_data = cap.max_inline_data.max(DEFAULT_INLINE);
    if has_srq || kind == QpType::XrcSend {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    } else {
        cap.max_recv_wr = cap.max_recv_wr.max(1);
        cap.max_recv_sge = cap.max_recv_sge.max(1);
    }
    cap
}

fn hold(cqs: &[Option<&Arc<Cq>>], by: i32) {
    for cq in cqs.iter().flatten() {
        cq.users.fetch_add(by as u32, Ordering::AcqRel);
    }
}

/// # Safety
/// `c` must be a live QP of urxe.
unsafe fn wait_for_events(c: *mut ibv_qp) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let given = (*c.cast::<QpObject>()).async_events.load(Ordering::SeqCst);
        pthread::wait_acknowledged(
            &raw mut (*c).mutex,
            &raw mut (*c).cond,
            &[(&raw const (*c).events_completed, given)],
        );
    }
}

/// # Safety
/// `c` must be a live QP of urxe that holds the CQs it was made with.
unsafe fn let_go_of_cqs(c: *mut ibv_qp) {
    // SAFETY: the caller vouches for them.
    unsafe {
        for cq in [(*c).send_cq, (*c).recv_cq].into_iter().filter(|cq| !cq.is_null()) {
            object::<_, CqObject>(cq).cq.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

pub unsafe extern "C" fn destroy_qp(c: *mut ibv_qp) -> c_int {
    // SAFETY: the library passes a live QP of urxe, which this call ends.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        let whole = c.cast::<QpObject>();
        let qp = (*whole).qp.clone();
        let groups = qp.attached.load(Ordering::Acquire);
        if groups > 0 {
            explain(format_args!(
                "ibv_destroy_qp qp={:?}: it is attached to {groups} multicast group(s)",
                qp.num
            ));
            return libc::EBUSY;
        }
        let context = context((*c).context);
        if qp.kind == QpType::XrcRecv {
            context.node.desk.catch_up(context.node);
        }
        forget_events(&*whole, context);
        if qp.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
            // Other handles go on with it.
            wait_for_events(c);
            let_go_of_cqs(c);
            (*(*whole).xrcd).users.fetch_sub(1, Ordering::AcqRel);
            drop(Box::from_raw(whole));
            return 0;
        }
        let (recv_cq, srq) = {
            let rq = qp.rq.lock();
            (rq.cq().cloned(), rq.srq().cloned())
        };
        let send_cq = qp.sq.lock().cq().cloned();
        if (*whole).remote.as_ref().is_none_or(|remote| remote.close()) {
            retire(context.node, &qp);
        }
        forget_events(&*whole, context);
        wait_for_events(c);
        // An XRC sender may have been given a recv_cq, which it holds though it never uses it.
        let recv_cq = recv_cq.or_else(|| {
            let cq = (*c).recv_cq;
            (!cq.is_null()).then(|| object::<_, CqObject>(cq).cq.clone())
        });
        let send_cq = send_cq.or_else(|| {
            let cq = (*c).send_cq;
            (!cq.is_null()).then(|| object::<_, CqObject>(cq).cq.clone())
        });
        hold(&[send_cq.as_ref(), recv_cq.as_ref()], -1);
        if let Some(srq) = srq {
            srq.users.fetch_sub(1, Ordering::AcqRel);
        }
        if !(*whole).xrcd.is_null() {
            (*(*whole).xrcd).users.fetch_sub(1, Ordering::AcqRel);
        }
        drop(Box::from_raw(whole));
    }
    0
}

/// The library has checked that the QP is a UD one and the GID a multicast address.
pub unsafe extern "C" fn attach_mcast(c: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the library passes a live QP of urxe and a readable GID.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        let (qp, group) = (&object::<_, QpObject>(c).qp, Gid((*gid).raw));
        let attached =
            qp.node.wires.take_place(qp.node, group).and_then(|()| qp.node.groups.attach(qp, group, lid));
        qp.node.udp.follow_groups(qp.node);
        attached.err().map_or(0, |e| e.0)
    }
}

pub unsafe extern "C" fn detach_mcast(c: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the library passes a live QP of urxe and a readable GID.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        let qp = &object::<_, QpObject>(c).qp;
        let detached = qp.node.groups.detach(qp, Gid((*gid).raw), lid);
        qp.node.udp.follow_groups(qp.node);
        detached.err().map_or(0, |e| e.0)
    }
}

pub unsafe extern "C" fn modify_qp(c: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the library passes a live QP of urxe and readable attributes.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        let (whole, attr, mask) = (object::<_, QpObject>(c), &*attr, mask as u32);
        let done = match &whole.remote {
            None => Ok(Shared::Here),
            Some(remote) => remote.modify(attr, mask),
        };
        let done = done.and_then(|done| match done {
            Shared::Here => modify(&whole.qp, &wanted(attr), mask),
            Shared::Done(_) => Ok(()),
        });
        done.err().map_or(0, |e| e.0)
    }
}

pub unsafe extern "C" fn query_qp(
    c: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the library passes a live QP of urxe and writable structs.
    unsafe {
        if inherited((*c).context) {
            return libc::EIO;
        }
        let whole: &QpObject = object(c);
        let a = match whole.remote.as_ref().map(|remote| remote.query()) {
            Some(Err(e)) => return e.0,
            Some(Ok(Shared::Done(attr))) => attr,
            Some(Ok(Shared::Here)) | None => attributes(&whole.qp),
        };
        let (cap, sig_all) = (a.cap, whole.qp.sq.lock().sig_all());
        *attr = a;
        let mut i = ibv_qp_init_attr::zeroed();
        i.qp_context = (*c).qp_context;
        (i.send_cq, i.recv_cq, i.srq) = ((*c).send_cq, (*c).recv_cq, (*c).srq);
        (i.cap, i.qp_type, i.sq_sig_all) = (cap, (*c).qp_type, sig_all as c_int);
        *init = i;
    }
    0
}
