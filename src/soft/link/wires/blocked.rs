//! Who waits for room in a ring: queue pairs, and answers that wait for none.
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Wire, send};
use crate::soft::link::pump;
use crate::soft::link::shm::ring::Header;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::sys::log::explain;

/// Refusals that wait for room in a ring; beyond, the peer's own timeouts have to do.
pub(super) const STRAYS: usize = 4096;
/// Free lines with which every entry fits, also where it skips the end of the ring.
const MOST_LINES: u32 = 520;

impl Wire {
    /// `qp` found the ring full: it goes on when there is room.
    pub(super) fn block(&self, qp: &Qp) {
        let Some(me) = qp.me() else { return };
        let mut blocked = self.blocked.lock();
        if !blocked.iter().any(|q| q.as_ptr() == Arc::as_ptr(&me)) {
            blocked.push(Arc::downgrade(&me));
        }
        self.is_blocked.store(true, Ordering::Release);
    }

    /// Tries what needs room in the ring. Where it `lacks` it, `qp` goes on when there is some, and it is tried once more:
    /// room that came before that was known is not told of again.
    #[inline]
    pub(super) fn try_for_room<T>(
        &self,
        qp: &Qp,
        mut attempt: impl FnMut() -> T,
        lacks: impl Fn(&T) -> bool,
    ) -> T {
        let first = attempt();
        if !lacks(&first) {
            return first;
        }
        self.block(qp);
        attempt()
    }

    /// Sends an answer that waits for no QP of ours, now or when there is room. May be called with QPs' locks held.
    pub(super) fn put_or_keep(&self, header: Header) {
        {
            let mut strays = self.strays.lock();
            if strays.len() < STRAYS {
                strays.push_back(header);
            }
        }
        if !self.put_strays() {
            self.is_blocked.store(true, Ordering::Release);
            // Room that came before this was known is not told of again.
            self.put_strays();
        }
    }

    /// Sends kept answers; false when some are left.
    pub(super) fn put_strays(&self) -> bool {
        let mut strays = self.strays.lock();
        let before = strays.len();
        while let Some(header) = strays.front() {
            if !send::put(self, header) {
                break;
            }
            strays.pop_front();
        }
        if strays.len() < before {
            self.peer.notify();
        }
        strays.is_empty()
    }

    /// Lets go on who waits for room; true if somebody could. Called with no lock held. `wait`: also for the ring.
    pub(super) fn unblock(self: &Arc<Self>, node: &'static Node, wait: bool) -> bool {
        if !self.is_blocked.load(Ordering::Relaxed) {
            return false;
        }
        let tx = if wait { Some(self.peer.tx.lock()) } else { self.peer.tx.try_lock() };
        let (has_room, corrupt) = tx.map_or((false, false), |mut tx| {
            // Who polls looks again. Who sleeps hears of all that is freed from now on.
            let has_room =
                if wait { tx.has_room_or_asks(MOST_LINES) } else { tx.free_space() > MOST_LINES as usize };
            (has_room, tx.is_corrupt())
        });
        if corrupt {
            explain(format_args!(
                "shm: process {} counts messages that were never sent; its connection is dropped",
                self.peer.cred().pid
            ));
            self.lost(node);
        }
        if corrupt || !has_room {
            return false;
        }
        self.is_blocked.store(false, Ordering::Release);
        if !self.put_strays() {
            self.is_blocked.store(true, Ordering::Release);
            return true;
        }
        let blocked = std::mem::take(&mut *self.blocked.lock());
        for qp in blocked.iter().filter_map(Weak::upgrade) {
            {
                let mut rq = qp.rq.lock();
                let to = rq.peer;
                send::answer(&qp, &mut rq, to);
            }
            pump(&qp, &mut qp.sq.lock());
        }
        !blocked.is_empty()
    }
}
