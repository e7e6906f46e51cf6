//! Two processes that connect to each other at the same moment have two connections. Both then settle on one of them: where
//! messages come one way and acknowledgements the other, a thread that is stopped while it reads the one does not keep the
//! other from going on, and acknowledgements lag behind.
use std::sync::Arc;

use super::{Wire, Wires};
use crate::soft::qp::requester::Requester;

impl Wires {
    /// The peer of `wire` has introduced itself: where there is another connection to it, one of them serves from now on.
    pub(super) fn settle_twins(&self, wire: &Arc<Wire>) {
        let Some(nonce) = wire.peer.nonce() else { return };
        let list = self.list();
        let Some(other) = list.iter().find(|w| !Arc::ptr_eq(w, wire) && w.peer.nonce() == Some(nonce)) else {
            return;
        };
        // The one that the process of the smaller nonce has made: both ends find the same.
        let ours = self.own.nonce() < nonce;
        let (better, worse) = match (wire.peer.is_connector(), other.peer.is_connector()) {
            (w, o) if w == o => return,
            (true, _) if ours => (wire, other),
            (false, _) if !ours => (wire, other),
            _ => (other, wire),
        };
        // Where it is set, it stays.
        let _ = worse.better.set(better.clone());
    }

    /// The wire to go by to `slot`, for which `wire` has served: the better one of twins as soon as nothing lies in the ring of
    /// the other, since what is sent to a QP must not overtake what was sent to it before.
    #[cold]
    pub(super) fn better_to_slot(&self, slot: u16, wire: Arc<Wire>) -> Arc<Wire> {
        let Some(better) = wire.better.get().filter(|better| !better.is_closed()) else { return wire };
        if wire.peer.tx.lock().has_unconsumed() {
            return wire;
        }
        let mut by_slot = self.by_slot.write().unwrap_or_else(|e| e.into_inner());
        if let Some(serves) = by_slot.get_mut(&slot).filter(|serves| Arc::ptr_eq(serves, &wire)) {
            *serves = better.clone();
        }
        better.clone()
    }
}

impl Wire {
    /// There is another connection to the same process, which serves instead.
    #[inline(always)]
    pub fn has_better(&self) -> bool {
        self.better.get().is_some()
    }

    /// The connection that a QP of this one should go on with, now that nothing of its is under way here.
    #[inline]
    pub fn better(&self, sq: &Requester) -> Option<Arc<Wire>> {
        let better = self.better.get()?;
        let idle = !sq.has_unacked() && !sq.is_retrying() && !self.peer.tx.lock().has_unconsumed();
        (idle && !better.is_closed()).then(|| better.clone())
    }
}
