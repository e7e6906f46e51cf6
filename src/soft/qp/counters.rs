//! Completion counters: how many requests, or bytes, have completed, and how many requests failed.
//!
//! A counter counts for any number of QPs; a QP has one for each kind of operation at most. What is not signaled counts
//! too. Kinds overlap in a WRITE with immediate only, which is a remote WRITE and the completion of a receive.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Qp;
use super::requester::Requester;
use super::responder::Responder;
use crate::soft::types::{QpState, QpType, WcStatus, WrOpcode};
use crate::sys::errno::Errno;
use crate::sys::log::explain;

bitflags::bitflags! {
    /// `enum ibv_qp_attach_comp_cntr_op`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Ops: u32 {
        #[allow(missing_docs)] const SEND = 1;
        #[allow(missing_docs)] const RECV = 1 << 1;
        #[allow(missing_docs)] const READ = 1 << 2;
        #[allow(missing_docs)] const REMOTE_READ = 1 << 3;
        #[allow(missing_docs)] const WRITE = 1 << 4;
        #[allow(missing_docs)] const REMOTE_WRITE = 1 << 5;
    }
}

impl Ops {
    /// What the peer's requests count as.
    pub const REMOTE: Ops = Ops::REMOTE_READ.union(Ops::REMOTE_WRITE);

    /// What a QP of this type does.
    fn of(kind: QpType) -> Self {
        match kind {
            QpType::Rc => Ops::all(),
            QpType::Uc => Ops::SEND | Ops::RECV | Ops::WRITE | Ops::REMOTE_WRITE,
            QpType::Ud => Ops::SEND | Ops::RECV,
            QpType::XrcSend => Ops::SEND | Ops::READ | Ops::WRITE,
            QpType::XrcRecv => Ops::empty(),
        }
    }

    /// What a send request counts as: atomics, windows and the like as nothing.
    fn of_request(op: WrOpcode) -> Self {
        match op {
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv => Ops::SEND,
            WrOpcode::Write | WrOpcode::WriteImm => Ops::WRITE,
            WrOpcode::Read => Ops::READ,
            _ => Ops::empty(),
        }
    }
}

/// A completion counter; both numbers wrap at 2^64.
#[derive(Debug)]
pub struct CompCounter {
    done: AtomicU64,
    failed: AtomicU64,
    counts_bytes: bool,
}

/// One of the two numbers of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    /// Requests that completed, or their bytes.
    Done,
    /// Requests that failed.
    Failed,
}

impl CompCounter {
    /// A counter of requests, or of their bytes.
    pub fn new(counts_bytes: bool) -> Self {
        Self { done: AtomicU64::new(0), failed: AtomicU64::new(0), counts_bytes }
    }

    /// Whoever reads a count sees what was received before it was counted.
    pub fn read(&self, number: Number) -> u64 {
        self.number(number).load(Ordering::Acquire)
    }

    #[allow(missing_docs)]
    pub fn set(&self, number: Number, value: u64) {
        self.number(number).store(value, Ordering::Release);
    }

    #[allow(missing_docs)]
    pub fn add(&self, number: Number, amount: u64) {
        self.number(number).fetch_add(amount, Ordering::AcqRel);
    }

    fn number(&self, number: Number) -> &AtomicU64 {
        match number {
            Number::Done => &self.done,
            Number::Failed => &self.failed,
        }
    }
}

/// The counters of a QP, by the bit of their operation.
#[derive(Clone, Debug, Default)]
pub struct Attached([Option<Arc<CompCounter>>; 6]);

impl Attached {
    /// Counts a completion of each of `ops`.
    #[cold]
    fn count(&self, ops: Ops, status: WcStatus, bytes: u32) {
        for counter in ops.iter().filter_map(|op| self.0[op.bits().trailing_zeros() as usize].as_ref()) {
            match status {
                WcStatus::Success if counter.counts_bytes => counter.add(Number::Done, bytes.into()),
                WcStatus::Success => counter.add(Number::Done, 1),
                _ => counter.add(Number::Failed, 1),
            }
        }
    }
}

impl Qp {
    /// Has `counter` count operations of these kinds from now on, until the QP is destroyed.
    ///
    /// # Errors
    /// EINVAL: no operation, or the QP has left INIT. EOPNOTSUPP: operations that a QP of this type does not have. EBUSY: one
    /// that another counter counts already.
    pub fn attach_counter(&self, counter: &Arc<CompCounter>, op_mask: u32) -> Result<(), Errno> {
        let refuse = |errno: Errno, why: &str| {
            explain(format_args!("ibv_qp_attach_comp_cntr qp={:?} op_mask=0x{op_mask:x}: {why}", self.num));
            Err(errno)
        };
        let Some(ops) = Ops::from_bits(op_mask).filter(|ops| Ops::of(self.kind).contains(*ops)) else {
            return refuse(Errno::EOPNOTSUPP, "a QP of this type does not have all of these operations");
        };
        if ops.is_empty() {
            return refuse(Errno::EINVAL, "no operation is named");
        }
        let mut sq = self.sq.lock();
        let mut rq = self.rq.lock();
        if !matches!(self.state(), QpState::Reset | QpState::Init) {
            return refuse(Errno::EINVAL, "the QP is neither in RESET nor in INIT");
        }
        let mut attached = sq.counters.as_deref().cloned().unwrap_or_default();
        for op in ops.iter() {
            let place = &mut attached.0[op.bits().trailing_zeros() as usize];
            if place.is_some() {
                return refuse(Errno::EBUSY, "another counter counts one of these operations");
            }
            *place = Some(counter.clone());
        }
        let attached = Arc::new(attached);
        sq.counters = Some(attached.clone());
        rq.counters = Some(attached);
        if ops.intersects(Ops::REMOTE) {
            // A peer's direct access would not be seen here.
            self.shown.lock().counts_remote = true;
            self.node.publish_qp(self);
        }
        Ok(())
    }
}

impl Requester {
    /// Counts the completion of a request; to be called where there are `counters`.
    #[cold]
    pub(super) fn count(&self, op: WrOpcode, status: WcStatus, bytes: u32) {
        if let Some(counters) = &self.counters {
            counters.count(Ops::of_request(op), status, bytes);
        }
    }
}

impl Responder {
    /// Counts the completion of a receive; to be called where there are `counters`.
    #[cold]
    pub(super) fn count_receive(&self, status: u32, bytes: u32) {
        if let Some(counters) = &self.counters {
            counters.count(Ops::RECV, WcStatus::from_raw(status).unwrap_or(WcStatus::GeneralErr), bytes);
        }
    }

    /// Counts a WRITE or READ of the peer; to be called where there are `counters`.
    #[cold]
    pub(super) fn count_remote(&self, op: WrOpcode, status: WcStatus, bytes: u64) {
        let ops = match op {
            WrOpcode::Write | WrOpcode::WriteImm => Ops::REMOTE_WRITE,
            WrOpcode::Read => Ops::REMOTE_READ,
            _ => return,
        };
        if let Some(counters) = &self.counters {
            counters.count(ops, status, bytes as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_bytes_and_failures_are_counted_apart() {
        let (requests, bytes) = (Arc::new(CompCounter::new(false)), Arc::new(CompCounter::new(true)));
        let mut attached = Attached::default();
        attached.0[0] = Some(requests.clone());
        attached.0[4] = Some(bytes.clone());
        attached.count(Ops::SEND, WcStatus::Success, 100);
        attached.count(Ops::WRITE | Ops::SEND, WcStatus::Success, 30);
        attached.count(Ops::WRITE, WcStatus::WrFlushErr, 7);
        attached.count(Ops::RECV, WcStatus::Success, 7);
        assert_eq!((requests.read(Number::Done), requests.read(Number::Failed)), (2, 0));
        assert_eq!((bytes.read(Number::Done), bytes.read(Number::Failed)), (30, 1));
        requests.set(Number::Done, u64::MAX);
        requests.add(Number::Done, 2);
        assert_eq!(requests.read(Number::Done), 1);
    }
}
