//! The send half of a QP: which request goes next, and how requests complete: in order, or all at once when one fails.
mod at_once;
mod counting;
mod limits;
mod plain;
mod retry;

use std::sync::Arc;

pub use limits::RetryLimits;
pub use plain::Open;

use super::counters::Attached;
use super::sendq::SendQueue;
use super::silence::Silence;
use super::{Qp, reason};
use crate::soft::cq::{Cq, Cqe, Taker};
use crate::soft::link::multicast::Fanout;
use crate::soft::link::shm::near::Nearby;
use crate::soft::link::wires::Wire;
use crate::soft::link::{Path, faults, pcap};
use crate::soft::stats::Half;
use crate::soft::types::{
    EventType, Key, MAX_MESSAGE, Psn, QpState, QpType, SendFlags, WcOpcode, WcStatus, WrOpcode,
};
use crate::sys::errno::Errno;
use crate::sys::log::explain;

/// The send half.
#[derive(Debug)]
pub struct Requester {
    /// The work requests.
    pub queue: SendQueue,
    cq: Option<Arc<Cq>>,
    sig_all: bool,
    /// What counts its completions.
    pub counters: Option<Arc<Attached>>,
    /// Where it counts.
    pub stats: Half,
    /// How messages reach the peer; UD asks each request's address handle instead.
    pub path: Path,
    /// XRC: the oldest request is on its way, or partly so, to an SRQ of this process instead; alone.
    pub foreign: Option<Arc<Wire>>,
    /// UD: the request to a group that waits for room in rings.
    pub fanout: Option<Box<Fanout>>,
    /// The PSN of the next new message; messages on shm, packets on udp.
    pub psn: Psn,
    /// Requests before this one have their PSN, which a retry keeps.
    numbered: u64,
    /// The responder has accepted everything up to here, also what waits for an older request's answer.
    accepted: Option<Psn>,
    /// READs and atomics that may be outstanding, and how many are.
    pub max_rd_atomic: u8,
    rd_atomic: u8,
    /// What the application allows (`IBV_QP_RETRY_CNT`, `IBV_QP_RNR_RETRY`, `IBV_QP_TIMEOUT`).
    pub retry: RetryLimits,
    retries_left: u8,
    rnr_left: u8,
    /// Nothing is sent before this time (nanoseconds); 0: no wait.
    pub wait_until: u64,
    /// UD: the Q_Key for requests whose own has the high bit set.
    pub qkey: u32,
    /// A request that failed here, and how, while older ones are still under way.
    doomed: Option<(u64, WcStatus)>,
    /// `SqDrained` is wanted when the queue has drained in SQD.
    pub tell_drained: bool,
    /// What goes wrong on request.
    pub faults: Option<Box<faults::Sending>>,
    /// Links look at each request by itself.
    watched: bool,
    /// The regions of the peer's that it writes to and reads from again and again.
    pub nearby: Nearby,
}

impl Requester {
    /// The send half over `queue`.
    pub fn new(queue: SendQueue, cq: Option<Arc<Cq>>, sig_all: bool) -> Self {
        Self {
            queue,
            cq,
            sig_all,
            counters: None,
            stats: Half::default(),
            path: Path::None,
            foreign: None,
            fanout: None,
            psn: Psn::new(0),
            numbered: 0,
            accepted: None,
            max_rd_atomic: 0,
            rd_atomic: 0,
            retry: RetryLimits::default(),
            retries_left: 0,
            rnr_left: 0,
            wait_until: 0,
            qkey: 0,
            doomed: None,
            tell_drained: false,
            faults: None,
            watched: false,
            nearby: Nearby::default(),
        }
    }

    /// Each request is looked at by itself: faults may strike it, or a trace is written.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// The faults have changed, or a trace begins or ends.
    pub fn watch(&mut self) {
        self.watched = self.faults.is_some() || pcap::is_on();
    }

    /// The CQ of its sends.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.cq.as_ref()
    }

    /// Every request is signaled (`sq_sig_all`).
    pub fn sig_all(&self) -> bool {
        self.sig_all
    }

    /// May a request be posted in this state? EINVAL before RTS, as on a kernel device.
    #[inline]
    pub fn accepts(&self, qp: &Qp) -> Result<(), Errno> {
        match qp.state() {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Room for one more request, as `SendQueue::draft` has it. A request holds its place until its completion has been
    /// polled, an unsignaled one until that of a later one has (`ibv_post_send(3)`): looked up when the queue seems full.
    #[inline]
    pub fn draft(&mut self, qp: &Qp) -> Result<u64, Errno> {
        if self.queue.is_full() {
            self.release(qp);
        }
        self.queue.draft()
    }

    /// Looks up which requests the application knows to be complete.
    #[cold]
    fn release(&mut self, qp: &Qp) {
        self.queue.release(self.cq.as_ref().map_or(0, |cq| cq.unpolled_sends(qp.num)));
    }

    /// Posts the drafts: the caller then pumps the link. In an error state they are flushed at once.
    #[inline]
    pub fn publish(&mut self, qp: &Qp) {
        self.queue.publish();
        if matches!(qp.state(), QpState::Err | QpState::Sqe) {
            self.flush(qp);
        }
    }

    /// The request that the link begins next; none while the queue, a fence or a retry timer says wait. Local requests
    /// before it are carried out.
    #[inline]
    pub fn ready(&mut self, qp: &Qp) -> Option<u64> {
        loop {
            let at = self.next_ready(qp)?;
            if !self.queue.wqe(at).opcode.is_local() {
                return Some(at);
            }
            self.begin_local(qp, at);
        }
    }

    /// Carries out the local request `at`, whose turn it is; it completes behind those before it.
    #[cold]
    fn begin_local(&mut self, qp: &Qp, at: u64) {
        // A retry of an earlier request comes by here again.
        if !self.queue.wqe(at).answered
            && let Err(status) = self.carry_out_local(qp, at)
        {
            return self.doom(qp, at, status);
        }
        self.number(at, 0);
        self.begun(at);
        self.queue.wqe_mut(at).answered = true;
        self.complete_local(qp);
    }

    /// Binds a window, or ends a key.
    ///
    /// # Errors
    /// MW_BIND_ERR.
    pub fn carry_out_local(&mut self, qp: &Qp, at: u64) -> Result<(), WcStatus> {
        let (node, wqe) = (qp.node, self.queue.wqe(at));
        let idle = |key| node.wires.key_is_idle(key);
        let done = match wqe.opcode {
            WrOpcode::BindMw => node.mem.bind(qp.pd, qp.num, &wqe.bind(), idle),
            _ => node.mem.invalidate(qp.pd, qp.num, Key(wqe.imm), idle),
        };
        done.map_err(|why| {
            explain(format_args!("qp {:?}: {} wr_id={}: {why}", qp.num, wqe.opcode, wqe.wr_id));
            WcStatus::MwBindErr
        })
    }

    /// Completes local requests that are the oldest now.
    fn complete_local(&mut self, qp: &Qp) {
        while self.has_unacked() && self.queue.wqe(self.queue.tail).opcode.is_local() {
            self.complete_oldest_with(qp, WcStatus::Success);
        }
    }

    #[inline]
    fn next_ready(&self, qp: &Qp) -> Option<u64> {
        let at = self.queue.next;
        if at == self.queue.head
            || self.wait_until != 0
            || self.doomed.is_some()
            || (self.foreign.is_some() && self.has_unacked())
            // In SQD only what was begun before goes on.
            || !(qp.state() == QpState::Rts || qp.state() == QpState::Sqd && at < self.numbered)
        {
            return None;
        }
        let wqe = self.queue.wqe(at);
        if wqe.flags.contains(SendFlags::FENCE) && self.rd_atomic > 0 {
            return None;
        }
        if wqe.wants_answer() && self.rd_atomic >= self.max_rd_atomic.max(1) {
            return None;
        }
        Some(at)
    }

    /// Something has been sent and is not complete.
    #[inline]
    pub fn has_unacked(&self) -> bool {
        self.queue.tail != self.queue.next
    }

    /// A request with this PSN, or a later one, is under way.
    #[inline]
    pub fn has_sent(&self, psn: Psn) -> bool {
        if !self.has_unacked() {
            return false;
        }
        let newest = self.queue.wqe(self.queue.next - 1);
        psn.since(newest.psn.plus(newest.psns.saturating_sub(1))) <= 0
    }

    /// The link has begun (or, after a retry, begun again) request `at`.
    #[inline]
    pub fn begun(&mut self, at: u64) {
        debug_assert_eq!(at, self.queue.next);
        self.queue.next = at + 1;
        if self.queue.wqe(at).wants_answer() {
            self.rd_atomic += 1;
        }
    }

    /// The PSN that request `at` has or, being the next new one, will get.
    #[inline]
    pub fn psn_of(&self, at: u64) -> Psn {
        if at < self.numbered { self.queue.wqe(at).psn } else { self.psn }
    }

    /// Gives request `at`, the next new one, its PSNs; a retried request keeps those it has.
    #[inline]
    pub fn number(&mut self, at: u64, psns: u32) -> Psn {
        if at >= self.numbered {
            let psn = self.psn;
            let wqe = self.queue.wqe_mut(at);
            (wqe.psn, wqe.psns) = (psn, psns);
            self.psn = psn.plus(psns);
            self.numbered = at + 1;
        }
        self.queue.wqe(at).psn
    }

    /// How many PSNs request `at` has, if it has been numbered.
    pub fn psns_given(&self, at: u64) -> Option<u32> {
        (at < self.numbered).then(|| self.queue.wqe(at).psns)
    }

    /// UD: the Q_Key that request `at` carries; a high bit means the QP's own (IBA 10.2.5).
    pub fn qkey_of(&self, at: u64) -> u32 {
        let qkey = self.queue.wqe(at).qkey;
        if qkey & 1 << 31 != 0 { self.qkey } else { qkey }
    }

    /// The link begins request `at` again, and all behind it.
    pub fn rewind(&mut self, at: u64) {
        let at = at.max(self.queue.tail);
        for i in at..self.queue.next {
            let wqe = self.queue.wqe(i);
            if wqe.wants_answer() && !wqe.answered {
                self.rd_atomic = self.rd_atomic.saturating_sub(1);
            }
            self.queue.wqe_mut(i).cursor = 0;
        }
        if self.queue.next < self.queue.head {
            let next = self.queue.next;
            self.queue.wqe_mut(next).cursor = 0;
        }
        self.queue.next = self.queue.next.min(at);
        self.foreign = None;
    }

    /// The responder has accepted everything up to and including `psn`. Answers still missing are not implied.
    /// True if something completed.
    pub fn acked(&mut self, qp: &Qp, psn: Psn, taker: &mut Taker<'_>) -> bool {
        let before = self.queue.tail;
        // A message to a foreign SRQ has the PSN of the next one that is not: its ack says nothing about that.
        let psn = if self.foreign.is_some() {
            psn
        } else {
            *self.accepted.insert(self.accepted.filter(|known| known.since(psn) > 0).unwrap_or(psn))
        };
        self.retire(qp, psn, taker);
        while self.queue.tail != self.queue.next {
            let wqe = self.queue.wqe(self.queue.tail);
            // A local request has no PSN, and is done.
            if !wqe.opcode.is_local()
                && (psn.since(wqe.psn.plus(wqe.psns.saturating_sub(1))) < 0
                    || (wqe.wants_answer() && !wqe.answered))
            {
                break;
            }
            self.complete_oldest(qp, WcStatus::Success, taker);
        }
        let moved = self.queue.tail != before;
        if moved {
            self.refill_retries();
        }
        moved
    }

    /// The answer to request `at` is complete; it and what it implies complete in order.
    pub fn answered(&mut self, qp: &Qp, at: u64) {
        let wqe = self.queue.wqe_mut(at);
        if !wqe.answered {
            wqe.answered = true;
            self.rd_atomic = self.rd_atomic.saturating_sub(1);
        }
        let psn = wqe.psn.plus(wqe.psns.saturating_sub(1));
        self.acked(qp, psn, &mut Taker::nobody());
    }

    /// The request under way whose first PSN is `psn`.
    pub fn find(&self, psn: Psn) -> Option<u64> {
        // One that is half sent may be refused already.
        let end = self.numbered.min(self.queue.next + 1);
        (self.queue.tail..end)
            .map(|at| (at, self.queue.wqe(at)))
            .find_map(|(at, wqe)| (wqe.psn == psn && !wqe.opcode.is_local()).then_some(at))
    }

    /// Request `at` fails with `status`; it does so once all older ones are complete, and takes the QP with it.
    #[cold]
    pub fn doom(&mut self, qp: &Qp, at: u64, status: WcStatus) {
        if self.doomed.is_none_or(|(other, _)| at < other) {
            self.doomed = Some((at, status));
        }
        self.fall_if_doomed(qp);
    }

    /// Completes the oldest request; with an error status the rest is the caller's to flush.
    pub fn complete_oldest_with(&mut self, qp: &Qp, status: WcStatus) {
        self.complete_oldest(qp, status, &mut Taker::nobody());
    }

    /// `complete_oldest_with` under a thread that polls.
    pub fn complete_oldest(&mut self, qp: &Qp, status: WcStatus, taker: &mut Taker<'_>) {
        let at = self.queue.tail;
        if at == self.queue.head {
            return;
        }
        let begun = at < self.queue.next;
        let wqe = self.queue.wqe_mut(at);
        wqe.ah = None;
        let signaled = self.sig_all || wqe.flags.contains(SendFlags::SIGNALED);
        let open_answer = begun && wqe.wants_answer() && !wqe.answered;
        wqe.reported = signaled || status != WcStatus::Success;
        let reported = wqe.reported;
        let opcode = wqe.opcode;
        let mut cqe = Cqe::new(wqe.wr_id, qp.num, completion_of(opcode), status);
        cqe.byte_len = wqe.length;
        if open_answer {
            self.rd_atomic = self.rd_atomic.saturating_sub(1);
        }
        self.foreign = None;
        self.queue.tail = at + 1;
        self.queue.next = self.queue.next.max(at + 1);
        if status == WcStatus::Success {
            self.stats.done(opcode, cqe.byte_len);
        } else {
            self.stats.failed(status);
        }
        if self.counters.is_some() {
            self.count(opcode, status, cqe.byte_len);
        }
        if reported {
            let lost = self.cq.as_ref().is_some_and(|cq| cq.complete(cqe, false, taker).is_err());
            if lost && status == WcStatus::Success {
                qp.fail_from_requester(self, Some(EventType::QpFatal));
                return;
            }
        }
        if self.doomed.is_some() {
            self.fall_if_doomed(qp);
        } else if qp.state() == QpState::Sqd && !self.is_draining() && self.tell_drained {
            self.tell_drained = false;
            qp.raise(EventType::SqDrained);
        }
    }

    /// Flushes all requests, oldest first: the QP is in ERR or SQE.
    pub fn flush(&mut self, qp: &Qp) {
        self.doomed = None;
        self.wait_until = 0;
        let n = self.queue.head - self.queue.tail;
        if n > 0 {
            let (num, wr_id, state) = (qp.num, self.queue.wqe(self.queue.tail).wr_id, qp.state());
            explain(format_args!(
                "qp {num:?}: {n} send request(s) from wr_id={wr_id} on complete with WR_FLUSH_ERR: the QP is in {state}"
            ));
        }
        while self.queue.tail != self.queue.head {
            self.complete_oldest_with(qp, WcStatus::WrFlushErr);
        }
    }

    /// `flush`, if the QP is in ERR.
    pub fn flush_if_failed(&mut self, qp: &Qp) {
        if qp.state() == QpState::Err {
            self.flush(qp);
        }
    }

    /// Forgets everything: the QP goes to RESET.
    pub fn reset(&mut self) {
        self.fanout = None;
        self.queue.clear();
        (self.path, self.foreign) = (Path::None, None);
        self.nearby.clear();
        (self.rd_atomic, self.wait_until, self.numbered) = (0, 0, 0);
        (self.doomed, self.tell_drained, self.accepted) = (None, false, None);
        if let Some(faults) = &mut self.faults {
            faults.restart();
        }
    }

    /// Some request has been begun and is not complete, perhaps since it was refused and will be begun again.
    pub fn is_draining(&self) -> bool {
        self.has_unacked() || self.is_retrying()
    }

    /// Some request has been refused and is to be begun again: order needs the same way as before.
    pub fn is_retrying(&self) -> bool {
        self.numbered > self.queue.next
    }

    /// What is wrong with request `at` before anything is sent: its length (IBA 11.4.1.1, 9.7.7).
    #[inline]
    pub fn check(&self, qp: &Qp, at: u64) -> Result<(), WcStatus> {
        let wqe = self.queue.wqe(at);
        let atomic = matches!(wqe.opcode, WrOpcode::CmpSwap | WrOpcode::FetchAdd | WrOpcode::AtomicWrite);
        if wqe.length > MAX_MESSAGE || (atomic && wqe.length != 8) {
            return Err(WcStatus::LocLenErr);
        }
        debug_assert!(qp.kind != QpType::XrcRecv);
        Ok(())
    }

    /// Request `at` fails because of `kill_qp_after`.
    fn is_killed(&self, qp: &Qp, at: u64) -> bool {
        let Some(faults) = self.faults.as_ref().filter(|faults| faults.kills(at)) else { return false };
        let wqe = self.queue.wqe(at);
        explain(format_args!(
            "qp {:?}: {} wr_id={} fails on request, and the QP with it (kill_qp_after)",
            qp.num, wqe.opcode, wqe.wr_id
        ));
        faults.chance.tally.add(|c| &c.killed);
        true
    }

    fn fall_if_doomed(&mut self, qp: &Qp) {
        let Some((at, status)) = self.doomed else { return };
        if at > self.queue.tail {
            return;
        }
        self.doomed = None;
        let killed = self.is_killed(qp, at);
        if !killed {
            let (wqe, sges) = (self.queue.wqe(at), self.queue.sges(at));
            let silence =
                Silence { qp, path: &self.path, is_faulty: self.faults.is_some(), psn: self.psn_of(at) };
            let retry = &self.retry;
            explain(format_args!("{}", reason::Failed { qp, wqe, sges, status, retry, silence }));
        }
        // Unreliable QPs keep receiving: only the send queue stops (IBA 10.3.1, SQE).
        if qp.is_reliable() || killed {
            if qp.state() == QpState::Err || qp.state() == QpState::Reset {
                return;
            }
            qp.set_state(QpState::Err);
            self.complete_oldest_with(qp, status);
            self.flush(qp);
            if killed {
                qp.tell_failed(Some(EventType::QpFatal));
            }
            qp.flush_later();
        } else {
            qp.stop_sending();
            self.complete_oldest_with(qp, status);
            self.flush(qp);
        }
    }
}

/// How a request of this opcode completes.
pub fn completion_of(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::Write | WrOpcode::WriteImm => WcOpcode::Write,
        WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv => WcOpcode::Send,
        WrOpcode::Read => WcOpcode::Read,
        WrOpcode::CmpSwap => WcOpcode::CompSwap,
        WrOpcode::FetchAdd => WcOpcode::FetchAdd,
        WrOpcode::LocalInv => WcOpcode::LocalInv,
        WrOpcode::BindMw => WcOpcode::BindMw,
        WrOpcode::Flush => WcOpcode::Flush,
        WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
    }
}
