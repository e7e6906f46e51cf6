//! Whoever has a reply finds what it answers complete: the acknowledgement of a message goes before what the application sends next.
use std::sync::atomic::Ordering;

use super::inbox::Owed;
use super::{Wire, send};
use crate::soft::cq::Taker;
use crate::soft::qp::Qp;
use crate::soft::types::Psn;

/// Messages up to this one are accepted: the PSN to acknowledge later. Where another thread may reply already, one that polls or that
/// an event has woken, the acknowledgement leaves here, while the lock of the receive half is held: `reply_follows` waits for that.
#[inline(always)]
pub(super) fn accept(wire: &Wire, qp: &Qp, owed: Owed, taker: &Taker<'_>) -> Option<Psn> {
    if qp.heard_over.load(Ordering::Relaxed) != wire.token {
        qp.heard_over.store(wire.token, Ordering::Relaxed);
    }
    if taker.is_beside() || qp.node.wires.own().is_asleep() {
        send::acknowledge(wire, owed);
        return None;
    }
    Some(owed.psn)
}

/// What is sent now over `wire` may be a reply: whoever has it finds complete what it answers, also where one thread takes a message and
/// another replies to it already. The lock of the receive half is not held.
#[inline(always)]
pub fn reply_follows(qp: &Qp, wire: &Wire) {
    if qp.rq.is_busy() {
        drop(qp.rq.lock());
    }
    let heard_over = qp.heard_over.load(Ordering::Relaxed);
    if heard_over != wire.token && heard_over != 0 {
        acknowledge_here(qp, wire);
    }
}

/// Messages came over another connection to the same process: their acknowledgement lies there, where the peer may look later than
/// here, or has yet to hear of the connection.
#[cold]
fn acknowledge_here(qp: &Qp, wire: &Wire) {
    let rq = qp.rq.lock();
    qp.heard_over.store(0, Ordering::Relaxed);
    send::acknowledge(wire, Owed { from: qp.num, to: rq.peer, psn: rq.psn.plus(0xff_ffff) });
}
