//! The message rules of a QP as the transport sees them.
use crate::soft::cq::Taker;
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::{Ending, Request, Responder};
use crate::soft::qp::{Nak, Qp};
use crate::soft::stats::Event;
use crate::soft::transport::{Arrival, End, Op, ReceiveSide, Refusal, SendSide};
use crate::soft::types::{EventType, Key, MAX_MESSAGE, QpState, QpType, SendFlags, WcStatus, WrOpcode};
use crate::soft::wire::icrc;
use crate::sys::guard::{Fault, Folded};

/// The send half of a QP, whose lock is held.
pub(super) struct Sends<'a, 'b> {
    pub qp: &'a Qp,
    pub sq: &'a mut Requester,
    /// Where completions go.
    pub taker: &'a mut Taker<'b>,
}

impl SendSide for Sends<'_, '_> {
    fn op(&self, n: u64) -> Option<Result<Op, WcStatus>> {
        if n < self.sq.queue.tail || n >= self.sq.queue.head || self.qp.state() != QpState::Rts {
            return None;
        }
        if let Err(status) = self.sq.check(self.qp, n) {
            return Some(Err(status));
        }
        if self.sq.faults.as_ref().is_some_and(|faults| faults.kills(n)) {
            return Some(Err(WcStatus::LocQpOpErr));
        }
        // No packet of UC says what to invalidate.
        if self.sq.queue.wqe(n).opcode == WrOpcode::SendInv && self.qp.kind == QpType::Uc {
            return Some(Err(WcStatus::LocQpOpErr));
        }
        Some(op_of(self.qp, self.sq, n))
    }

    fn begun(&mut self, n: u64) {
        if self.sq.queue.next == n {
            self.sq.begun(n);
        }
    }

    fn gather(&mut self, n: u64, offset: u32, to: &mut [u8]) -> Result<(), WcStatus> {
        self.sq.gather(self.qp, n, offset, RunMut::of(to))
    }

    #[inline]
    fn gather_summing(&mut self, n: u64, offset: u32, to: &mut [u8]) -> Result<Option<u32>, WcStatus> {
        if !icrc::is_summed(to.len()) {
            return self.gather(n, offset, to).map(|()| None);
        }
        let mut folded = Folded([0; 64]);
        let is_folded = self.sq.gather_folding(self.qp, n, offset, RunMut::of(to), &mut folded)?;
        Ok(is_folded.then(|| icrc::sum(&folded.0)))
    }

    fn scatter(&mut self, n: u64, offset: u32, bytes: &[u8]) -> Result<(), WcStatus> {
        self.sq.scatter(self.qp, n, offset, Run::of(bytes))
    }

    fn complete(&mut self, n: u64) {
        // A full CQ may have flushed it already.
        if self.sq.queue.tail != n {
            return;
        }
        // Nothing has begun behind a local request: its turn is when those before it are done.
        if n < self.sq.queue.head
            && self.sq.queue.wqe(n).opcode.is_local()
            && let Err(status) = self.sq.carry_out_local(self.qp, n)
        {
            return self.sq.doom(self.qp, n, status);
        }
        self.sq.complete_oldest(self.qp, WcStatus::Success, self.taker);
    }

    fn fail(&mut self, n: u64, status: WcStatus) {
        if self.sq.queue.tail == n {
            self.sq.doom(self.qp, n, status);
        }
    }

    fn count(&mut self, what: Event) {
        self.sq.stats.event(what, 1);
    }
}

/// Request `n` as its packets tell it.
///
/// # Errors
/// How the request fails before anything is sent.
pub fn op_of(qp: &Qp, sq: &Requester, n: u64) -> Result<Op, WcStatus> {
    let wqe = sq.queue.wqe(n);
    if wqe.opcode == WrOpcode::Flush && wqe.compare_add > MAX_MESSAGE as u64 {
        return Err(WcStatus::LocLenErr);
    }
    let (compare_add, swap) = sq.operands(qp, n)?;
    Ok(Op {
        opcode: wqe.opcode,
        length: wqe.length,
        remote_addr: wqe.remote_addr,
        rkey: wqe.rkey,
        imm: wqe.imm,
        compare_add,
        swap,
        srqn: wqe.srqn,
        solicited: wqe.flags.contains(SendFlags::SOLICITED),
        fence: wqe.flags.contains(SendFlags::FENCE),
        signaled: sq.sig_all() || wqe.flags.contains(SendFlags::SIGNALED),
    })
}

/// The receive half of a QP, whose lock is held.
pub(super) struct Receives<'a> {
    pub qp: &'a Qp,
    pub rq: &'a mut Responder,
}

impl Receives<'_> {
    /// Copies memory of this host that the peer reads, as `copy` does it.
    fn read_by<R>(
        &mut self,
        rkey: Key,
        va: u64,
        to: &mut [u8],
        copy: impl FnOnce(&mut RunMut<'_>, Run<'_>) -> Result<R, Fault>,
    ) -> Result<R, Refusal> {
        let len = to.len() as u32;
        let mut to = RunMut::of(to);
        let copied = self.rq.read_span(self.qp, rkey, va, len, |run| copy(&mut to, run))?;
        copied.map_err(|_| {
            self.qp.fail_from_responder(self.rq, Some(EventType::QpAccessErr));
            Refusal::Access
        })
    }

    fn request(&self, a: &Arrival) -> Request {
        Request {
            op: a.opcode,
            total: a.total,
            remote_addr: a.remote_addr,
            rkey: a.rkey,
            compare_add: a.compare_add,
            swap: a.swap,
            srqn: a.srqn,
            src_qpn: self.rq.peer,
        }
    }
}

impl ReceiveSide for Receives<'_> {
    fn begin(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        Ok(self.rq.begin(self.qp, self.request(arrival))?)
    }

    fn place(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        Ok(self.rq.place(self.qp, Run::of(bytes))?)
    }

    fn finish(&mut self, end: End) -> Result<(), Refusal> {
        let ending = Ending {
            imm: end.imm,
            invalidate: end.invalidate,
            solicited: end.solicited,
            ..Ending::default()
        };
        Ok(self.rq.finish(self.qp, ending)?)
    }

    fn abandon(&mut self) {
        self.rq.abandon();
    }

    fn check_read(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        let request = self.request(arrival);
        Ok(self.rq.check_read(self.qp, &request)?)
    }

    fn read(&mut self, rkey: Key, va: u64, to: &mut [u8]) -> Result<(), Refusal> {
        if to.is_empty() {
            return Ok(());
        }
        self.read_by(rkey, va, to, |to, run| to.fill(run))
    }

    #[inline]
    fn read_summing(&mut self, rkey: Key, va: u64, to: &mut [u8]) -> Result<Option<u32>, Refusal> {
        if !icrc::is_summed(to.len()) {
            return self.read(rkey, va, to).map(|()| None);
        }
        let mut folded = Folded([0; 64]);
        let is_folded = self.read_by(rkey, va, to, |to, run| to.fill_folding(run, &mut folded))?;
        Ok(is_folded.then(|| icrc::sum(&folded.0)))
    }

    fn atomic(&mut self, arrival: &Arrival) -> Result<u64, Refusal> {
        let request = self.request(arrival);
        Ok(self.rq.atomic(self.qp, &request)?)
    }

    fn atomic_write(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        let request = self.request(arrival);
        Ok(self.rq.atomic_write(self.qp, &request)?)
    }

    fn flush(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        let request = self.request(arrival);
        Ok(self.rq.flush_memory(self.qp, &request)?)
    }

    fn violated(&mut self) {
        self.qp.fail_from_responder(self.rq, Some(EventType::QpReqErr));
    }

    fn count(&mut self, what: Event) {
        self.rq.stats.event(what, 1);
    }
}

impl From<Nak> for Refusal {
    fn from(nak: Nak) -> Self {
        match nak {
            Nak::Rnr => Refusal::NotReady,
            Nak::InvalidRequest => Refusal::Invalid,
            Nak::RemoteAccess => Refusal::Access,
            Nak::RemoteOp => Refusal::Operational,
            Nak::Silent => Refusal::Silent,
        }
    }
}
