//! Two processes that connect to each other at the same moment have two connections. Both then settle on one of them: where
//! messages come one way and acknowledgements the other, a thread that is stopped while it reads the one does not keep the
//! other from going on, and acknowledgements lag behind.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Wire, Wires};
use crate::soft::link::shm::ring::Producer;
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
        // First: who comes by the better one then finds that it has a lesser twin.
        let _ = better.worse.set(Arc::downgrade(worse));
        if worse.better.set(better.clone()).is_ok() {
            let mut by_slot = self.by_slot.write().unwrap_or_else(|e| e.into_inner());
            by_slot.values_mut().filter(|w| Arc::ptr_eq(w, worse)).for_each(|w| *w = better.clone());
        }
    }
}

impl Wire {
    /// There is another connection to the same process, which serves instead.
    #[inline(always)]
    pub fn has_better(&self) -> bool {
        self.better.get().is_some()
    }

    /// The other connection, where what lies in its ring must not be overtaken by datagrams that would go by this one. From the first time that
    /// its ring is found empty, all go by this one: `is_drained` changes under the lock of its `tx`, under which datagrams are put there.
    #[inline]
    pub(super) fn undrained(&self) -> Option<Arc<Wire>> {
        self.worse
            .get()?
            .upgrade()
            .filter(|worse| !worse.is_drained.load(Ordering::Relaxed) && !worse.is_closed())
    }

    /// Nothing lies in the ring, of which the caller has the lock, and no datagram will any more. For a wire that has a better one.
    pub(super) fn drains(&self, tx: &mut Producer) -> bool {
        let drained = self.is_drained.load(Ordering::Relaxed) || !tx.has_unconsumed();
        if drained {
            self.is_drained.store(true, Ordering::Relaxed);
        }
        drained
    }

    /// The connection that a QP of this one should go on with, now that nothing of its is under way here.
    #[inline]
    pub fn better(&self, sq: &Requester) -> Option<Arc<Wire>> {
        let better = self.better.get()?;
        let idle = !sq.has_unacked() && !sq.is_retrying() && !self.peer.tx.lock().has_unconsumed();
        (idle && !better.is_closed()).then(|| better.clone())
    }
}
