//! Shared receive queues, basic and XRC.
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use super::channel::AsyncQueue;
use super::cq::Cq;
use super::mem::PdId;
use super::qp::recvq::{RecvQueue, Taken};
use super::types::{EventType, Sge};
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;

/// Marks an XRC domain without a file, which is its process's alone.
pub const PRIVATE_DOMAIN: u64 = 1 << 63;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    state: Lock<State>,
    /// Where lkeys of its requests are looked up.
    pub pd: PdId,
    /// XRC: the domain it belongs to, the CQ that its receives complete on, and the number that senders name.
    pub xrc: Option<XrcSide>,
    events: Arc<AsyncQueue>,
    /// The address of the application's `ibv_srq`, which events name.
    pub cookie: AtomicUsize,
    /// QPs that use it; it cannot be destroyed before them.
    pub users: AtomicU32,
}

/// What an XRC SRQ has beside a basic one.
#[derive(Debug)]
pub struct XrcSide {
    /// Identifies the XRC domain.
    pub domain: u64,
    #[allow(missing_docs)]
    pub cq: Arc<Cq>,
    #[allow(missing_docs)]
    pub number: u32,
}

impl XrcSide {
    /// The domain has a file: other processes may have it too.
    pub fn is_shared(&self) -> bool {
        self.domain & PRIVATE_DOMAIN == 0
    }
}

#[derive(Debug)]
struct State {
    queue: RecvQueue,
    /// Raises SRQ_LIMIT_REACHED once when fewer requests wait; 0 is not armed.
    limit: u32,
}

impl Srq {
    /// An SRQ over `queue`.
    pub fn new(queue: RecvQueue, pd: PdId, xrc: Option<XrcSide>, events: Arc<AsyncQueue>) -> Self {
        Self {
            state: Lock::new(State { queue, limit: 0 }),
            pd,
            xrc,
            events,
            cookie: AtomicUsize::new(0),
            users: AtomicU32::new(0),
        }
    }

    /// Gives its memory back; before the application's object goes. QPs that are being destroyed may know it for longer.
    pub fn retire(&self) {
        self.state.lock().queue = RecvQueue::none();
    }

    /// Where its events go.
    pub fn events(&self) -> &Arc<AsyncQueue> {
        &self.events
    }

    /// Posts a receive request; errors as `RecvQueue::post`.
    pub fn post(&self, wr_id: u64, sges: impl ExactSizeIterator<Item = Sge>) -> Result<(), Errno> {
        self.state.lock().queue.post(wr_id, sges)
    }

    /// Takes the oldest request; false when there is none.
    pub fn take(&self, taken: &mut Taken) -> bool {
        let mut state = self.state.lock();
        let got = state.queue.take(taken);
        if got && state.limit > 0 && state.queue.len() < state.limit {
            state.limit = 0;
            self.events.push(EventType::SrqLimitReached, &self.cookie);
        }
        got
    }

    /// Bytes that the oldest request has room for.
    pub fn room_of_next(&self) -> Option<u64> {
        self.state.lock().queue.room_of_next()
    }

    /// `(max_wr, max_sge, srq_limit)` as `ibv_query_srq` gives them.
    pub fn attributes(&self) -> (u32, u32, u32) {
        let state = self.state.lock();
        (state.queue.depth(), state.queue.max_sge(), state.limit)
    }

    /// Arms the limit event; EINVAL when the limit exceeds the depth.
    pub fn arm_limit(&self, limit: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if limit > state.queue.depth() {
            return Err(Errno::EINVAL);
        }
        state.limit = limit;
        if limit > 0 && state.queue.len() < limit {
            state.limit = 0;
            self.events.push(EventType::SrqLimitReached, &self.cookie);
        }
        Ok(())
    }

    /// Requests that wait.
    pub fn waiting(&self) -> u32 {
        self.state.lock().queue.len()
    }

    /// Changes the depth; EINVAL when the waiting requests or the armed limit do not fit, ENOMEM where there is no memory.
    pub fn resize(&self, depth: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if depth == 0 || state.limit > depth {
            return Err(Errno::EINVAL);
        }
        state.queue.resize(depth)
    }
}
