//! XRC receivers have several handles: `ibv_open_qp`, by number and domain, in this process or in another.
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::desk::Opened;
use super::memory::null;
use super::{Context, QpObject, XrcdObject, context, extended};
use crate::abi::*;
use crate::provider::object as common;
use crate::soft::channel::AsyncQueue;
use crate::soft::node::Node;
use crate::soft::qp::sendq::SendQueue;
use crate::soft::qp::{Handle, Qp};
use crate::soft::srq::PRIVATE_DOMAIN;
use crate::soft::types::{EventType, QpState, QpType, Qpn};
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;

/// A handle beside the first, of this process: what its events name, and where they go.
#[derive(Debug)]
pub(super) struct Second {
    events: Arc<AsyncQueue>,
    cookie: AtomicUsize,
}

impl Handle for Second {
    fn hear(&self, event: EventType) {
        self.events.push(event, &self.cookie);
    }

    fn failed(&self, _: Option<EventType>) {}

    fn changed(&self, _: &Qp) {}
}

/// No more events for this handle.
pub(super) fn forget_events(whole: &QpObject, context: &Context) {
    match &whole.opened {
        Some(second) => {
            let mine = Arc::as_ptr(second);
            whole.qp.openers.lock().retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), mine));
            context.events.forget(&second.cookie);
        }
        None => context.events.forget(&whole.qp.cookie),
    }
}

/// Ends a QP that no handle is left of; its memory goes now, though peers' threads may know it for longer.
pub(super) fn retire(node: &'static Node, qp: &Arc<Qp>) {
    node.remove_qp(qp);
    {
        let mut sq = qp.sq.lock();
        let mut rq = qp.rq.lock();
        sq.reset();
        rq.reset(qp);
        qp.set_state(QpState::Reset);
        (sq.counters, rq.counters) = (None, None);
        sq.queue = SendQueue::none();
        rq.drop_queue();
    }
    node.mem.release_windows(qp.num, |key| node.wires.key_is_idle(key));
}

/// One more handle; the QP lives until the last one is destroyed, or the last process that has one is gone.
pub unsafe extern "C" fn open_qp(c: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    // SAFETY: the library passes a live context of urxe and readable attributes naming a live XRC domain.
    unsafe { open(c, &*attr) }.unwrap_or_else(null)
}

/// # Safety
/// `c` must be a live context of urxe, and the XRC domain in `a` a live one of it, or NULL.
unsafe fn open(c: *mut ibv_context, a: &ibv_qp_open_attr) -> Result<*mut ibv_qp, Errno> {
    let needs = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let known = needs | IBV_QP_OPEN_ATTR_CONTEXT;
    // SAFETY: the caller vouches for the context.
    let context = unsafe { context(c) };
    if !context.node.is_ours() {
        return Err(Errno::EIO);
    }
    if a.comp_mask & needs != needs || a.comp_mask & !known != 0 || a.xrcd.is_null() {
        explain(format_args!(
            "ibv_open_qp comp_mask=0x{:x}: expected NUM, XRCD and TYPE, perhaps CONTEXT",
            a.comp_mask
        ));
        return Err(if a.comp_mask & !known != 0 { Errno::EOPNOTSUPP } else { Errno::EINVAL });
    }
    let xrcd = a.xrcd.cast::<XrcdObject>();
    // SAFETY: the caller vouches for the domain.
    let domain = unsafe { (*xrcd).domain };
    let found = if a.qp_type == QpType::XrcRecv.raw() {
        find(context, Qpn(a.qp_num), domain)
    } else {
        Err(Errno::EINVAL)
    };
    let (qp, remote, second) = found.inspect_err(|_| {
        explain(format_args!(
            "ibv_open_qp qp_num=0x{:06x} qp_type={}: expected an XRC receiver of this XRC domain",
            a.qp_num, a.qp_type
        ));
    })?;
    let mut base = ibv_qp_init_attr::zeroed();
    base.qp_context =
        if a.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 { a.qp_context } else { std::ptr::null_mut() };
    base.qp_type = a.qp_type;
    let whole = Box::into_raw(Box::new(QpObject {
        c: verbs_qp::zeroed(),
        qp: qp.clone(),
        pd: None,
        _ticket: None,
        opened: second.clone(),
        remote,
        async_events: AtomicU32::new(0),
        xrcd,
        build: Lock::new(extended::Build::new(0, 0)),
    }));
    // SAFETY: the object is new and nobody else's; the domain lives.
    unsafe {
        (*xrcd).users.fetch_add(1, Ordering::AcqRel);
        common::init_qp(whole.cast(), c, std::ptr::null_mut(), &base);
        let ibqp = whole.cast::<ibv_qp>();
        ((*ibqp).handle, (*ibqp).qp_num, (*ibqp).state) = (qp.num.0, qp.num.0, qp.state().raw());
        (*whole).c.comp_mask |= VERBS_QP_XRCD;
        (*whole).c.xrcd = xrcd.cast();
        match second {
            Some(second) => {
                second.cookie.store(whole as usize, Ordering::Relaxed);
                qp.openers.lock().push(second);
            }
            None => qp.cookie.store(whole as usize, Ordering::Relaxed),
        }
        Ok(ibqp)
    }
}

/// The QP, the way to it where it lies in another process, and the handle for it beside the first of this process.
type Found = (Arc<Qp>, Option<Arc<Opened>>, Option<Arc<Second>>);

/// Counts one more handle of the QP of this number and domain. EINVAL where there is none.
fn find(context: &Context, num: Qpn, domain: u64) -> Result<Found, Errno> {
    let node = context.node;
    let second = || Some(Arc::new(Second { events: context.events.clone(), cookie: AtomicUsize::new(0) }));
    let here = node.qp(num).filter(|qp| qp.kind == QpType::XrcRecv && qp.xrc_domain == Some(domain));
    if let Some(qp) = here.filter(|qp| qp.add_handle()) {
        node.publish_qp(&qp);
        return Ok((qp, node.desk.find(num, domain), second()));
    }
    if let Some(opened) = node.desk.find(num, domain).filter(|opened| opened.qp().add_handle()) {
        return Ok((opened.qp().clone(), Some(opened), second()));
    }
    if domain & PRIVATE_DOMAIN != 0 || node.owns_slot(num.slot()) {
        return Err(Errno::EINVAL);
    }
    let (opened, is_first) = Opened::open(node, context.events.clone(), num, domain)?;
    Ok((opened.qp().clone(), Some(opened), if is_first { None } else { second() }))
}
