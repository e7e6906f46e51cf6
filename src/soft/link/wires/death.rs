//! A peer that is gone: its RC and XRC QPs here fail, unless another process goes on with theirs.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Wire, foreign, receive};
use crate::soft::link::shm::State;
use crate::soft::link::{self, Path};
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{EventType, QpType, Qpn};
use crate::sys::clock;
use crate::sys::log::explain;

/// How often a process that goes on with an XRC receiver is looked for, and how many times at most.
const HEIR_NS: u64 = 20_000_000;
const HEIR_TRIES: u32 = 25;

impl Wire {
    /// The peer is gone: its RC and XRC QPs here fail, everything else notices nothing.
    pub fn lost(self: &Arc<Self>, node: &'static Node) {
        if self.is_lost.load(Ordering::SeqCst) || self.waits_for_heirs(node) {
            return;
        }
        if self.is_lost.swap(true, Ordering::SeqCst) {
            return;
        }
        node.wires.forget(self);
        node.engine.remove(self.peer.socket());
        if let Some(pidfd) = self.peer.pidfd() {
            node.engine.remove(pidfd);
        }
        self.peer.close();
        {
            let mut inbox = self.inbox();
            let cache = inbox.cache();
            cache.shadows.flush();
            cache.qp = None;
        }
        for qp in node.all_qps() {
            let mut sq = qp.sq.lock();
            foreign::owner_lost(&qp, &mut sq, self);
            let Some(to) = self.leads_to(&sq) else { continue };
            if qp.kind == QpType::XrcSend && go_to_heir(&qp, &mut sq, to) {
                continue;
            }
            // Nobody else can read any more what the peer counted.
            qp.shown.lock().absorb(&qp.record);
            sq.path = Path::Absent(to);
            sq.nearby.clear();
            if !qp.is_reliable() || node.wires.is_death_quiet {
                let oldest = sq.queue.tail;
                sq.rewind(oldest);
                link::pump(&qp, &mut sq);
                continue;
            }
            drop(sq);
            explain(format_args!(
                "qp {:?}: its peer's process {} {}: the oldest send completes with RETRY_EXC_ERR, the rest is flushed",
                qp.num,
                self.peer.cred().pid,
                if self.peer.has_exited() { "is gone" } else { "has dropped the connection" }
            ));
            qp.fail(Some(receive::LOST), Some(EventType::QpFatal));
        }
    }

    /// The QP that `sq` reaches over this wire.
    fn leads_to(&self, sq: &Requester) -> Option<Qpn> {
        match &sq.path {
            Path::Shm(wire, to) if std::ptr::eq(&**wire, self) => Some(*to),
            _ => None,
        }
    }

    /// Some XRC receiver that the peer had was open elsewhere, and is not there yet: the rest comes later.
    fn waits_for_heirs(self: &Arc<Self>, node: &'static Node) -> bool {
        if self.peer.state() != State::Dead || self.heirs_sought.fetch_add(1, Ordering::Relaxed) >= HEIR_TRIES
        {
            return false;
        }
        let is_missing = |to: Qpn| {
            let view = self.peer.remote().and_then(|remote| remote.qp(to));
            view.is_some_and(|view| view.is_shared) && matches!(link::path_on_host(node, to), Path::Absent(_))
        };
        let waits = node
            .all_qps()
            .iter()
            .any(|qp| qp.kind == QpType::XrcSend && self.leads_to(&qp.sq.lock()).is_some_and(is_missing));
        if waits {
            node.timers.arm_wire(self, clock::now_ns() + HEIR_NS);
        }
        waits
    }
}

/// Goes on with the process that has taken QP `to` over, if there is one.
fn go_to_heir(qp: &Qp, sq: &mut Requester, to: Qpn) -> bool {
    let path = link::path_on_host(qp.node, to);
    if matches!(path, Path::Absent(_)) {
        return false;
    }
    explain(format_args!(
        "qp {:?}: the process of its peer {to:?} is gone, another one goes on with it",
        qp.num
    ));
    sq.path = path.clone();
    qp.shown.lock().path = path;
    qp.node.publish_qp(qp);
    // What is on its way to an SRQ of a third process stays so.
    if sq.foreign.is_none() {
        let oldest = sq.queue.tail;
        sq.rewind(oldest);
        sq.refill_retries();
    }
    link::pump(qp, sq);
    true
}
