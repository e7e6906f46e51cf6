//! The receive request that a message takes, and its completion, good or bad.
use std::sync::Arc;

use super::Responder;
use crate::soft::cq::{Cqe, Taker, WC_WITH_IMM};
use crate::soft::mem::hold::Hold;
use crate::soft::mem::run::Run;
use crate::soft::qp::recvq::RecvQueue;
use crate::soft::qp::{Nak, Qp, reason};
use crate::soft::srq::Srq;
use crate::soft::stats::Event;
use crate::soft::types::{EventType, QpType, Qpn, WcOpcode, WcStatus, WrOpcode};
use crate::sys::log::explain;

/// SENDs that are here whole: one, or several that differ in their bytes only.
#[derive(Debug)]
pub struct Whole {
    /// SEND, with immediate data or without.
    pub op: WrOpcode,
    #[allow(missing_docs)]
    pub src_qpn: Qpn,
    /// Immediate data in network byte order.
    pub imm: Option<u32>,
    #[allow(missing_docs)]
    pub solicited: bool,
    /// Bytes of each.
    pub length: u32,
}

impl Responder {
    /// SENDs that are here whole, whose bytes follow each other, go straight into the only SGE of a receive request each, as nearly all
    /// do. Gives how many did, and why the one behind them was refused if that took a receive; otherwise `begin` is to see what it can
    /// do with that one.
    #[inline(always)]
    pub fn take_whole(
        &mut self,
        qp: &Qp,
        sends: &Whole,
        bytes: Run<'_>,
        taker: &mut Taker<'_>,
    ) -> (u32, Result<(), Nak>) {
        let is_plain = self.established
            && self.current.is_none()
            && !self.parked
            && self.srq.is_none()
            && self.faults.is_none()
            && self.counters.is_none();
        let Some(queue) = self.queue.as_mut().filter(|_| is_plain) else { return (0, Ok(())) };
        let (mut done, mut rest, mut hold) = (0, bytes, None::<Hold<'_>>);
        let mut pushed = true;
        while let Some((wr_id, &[sge])) = queue.front() {
            if sends.length > sge.length {
                break;
            }
            let (mine, behind) = rest.split(sends.length as usize);
            if sends.length > 0 {
                if hold.as_ref().is_none_or(|hold| hold.key() != sge.lkey) {
                    hold = qp.node.mem.hold(qp.pd, sge.lkey);
                }
                let room = hold.as_ref().and_then(|hold| hold.run_mut(sge.addr, mine.len()));
                if room.is_none_or(|mut room| room.fill(mine).is_err()) {
                    break;
                }
            }
            queue.drop_front();
            let mut cqe = Cqe::new(wr_id, qp.num, WcOpcode::Recv, WcStatus::Success);
            (cqe.byte_len, cqe.src_qp) = (sends.length, sends.src_qpn.0);
            if let Some(imm) = sends.imm {
                (cqe.imm, cqe.wc_flags) = (imm, WC_WITH_IMM);
            }
            self.stats.done(sends.op, sends.length);
            // Only the queue's own completions count here, and no message is arriving.
            if let Some(cq) = &self.cq
                && cq.complete(cqe, sends.solicited, taker).is_err()
            {
                pushed = false;
                break;
            }
            (done, rest) = (done + 1, behind);
            if rest.is_empty() {
                break;
            }
        }
        (done, self.ended(qp, pushed))
    }

    /// Takes a receive request for a message that begins; without one the message has not begun.
    pub(super) fn take(&mut self, qp: &Qp) -> Result<(), Nak> {
        let taken = self.take_open(qp);
        if taken.is_err() {
            self.current = None;
        }
        taken
    }

    pub(super) fn take_open(&mut self, qp: &Qp) -> Result<(), Nak> {
        let Some(current) = &self.current else { return Err(Nak::InvalidRequest) };
        if self.parked && self.parked_srq.as_ref().map(Arc::as_ptr) != current.srq.as_ref().map(Arc::as_ptr) {
            self.flush_parked(qp);
        }
        self.parked_srq = None;
        if self.faults.is_some() && self.refuses_on_request(qp) {
            return Err(Nak::Rnr);
        }
        let Some(current) = &mut self.current else { return Err(Nak::InvalidRequest) };
        let got = if std::mem::take(&mut self.parked) {
            true
        } else if qp.kind == QpType::XrcRecv {
            current.srq.as_ref().is_some_and(|srq| srq.take(&mut self.taken))
        } else if let Some(srq) = &self.srq {
            srq.take(&mut self.taken)
        } else {
            self.queue.as_mut().is_some_and(|q| q.take(&mut self.taken))
        };
        current.has_taken = got;
        if !got {
            return Err(Nak::Rnr);
        }
        match &mut self.faults {
            Some(faults) => {
                if faults.takes() {
                    self.fail_on_request(qp)
                } else {
                    Ok(())
                }
            }
            None => Ok(()),
        }
    }

    /// Whether a request is to be refused although there is a receive for it.
    #[cold]
    fn refuses_on_request(&mut self, qp: &Qp) -> bool {
        let srq = self.current.as_ref().and_then(|c| c.srq.as_ref()).or(self.srq.as_ref());
        let room = match srq {
            Some(srq) => srq.room_of_next(),
            None => self.queue.as_ref().and_then(RecvQueue::room_of_next),
        };
        let there = self.parked || room.is_some();
        // Unreliable responders have no way to say so.
        qp.is_reliable() && there && self.faults.as_mut().is_some_and(|faults| faults.chance.refuses())
    }

    /// The receive request just taken is the one at which the QP is to fail.
    #[cold]
    fn fail_on_request(&mut self, qp: &Qp) -> Result<(), Nak> {
        explain(format_args!(
            "qp {:?}: receive wr_id={} fails on request, and the QP with it (kill_qp_after)",
            qp.num, self.taken.wr_id
        ));
        let cqe = Cqe::new(self.taken.wr_id, qp.num, WcOpcode::Recv, WcStatus::LocQpOpErr);
        self.push(cqe, true);
        if let Some(current) = &mut self.current {
            current.has_taken = false;
        }
        self.current = None;
        qp.fail_from_responder(self, Some(EventType::QpFatal));
        Err(Nak::RemoteOp)
    }

    pub(super) fn complete(&mut self, qp: &Qp, cqe: Cqe, solicited: bool) -> Result<(), Nak> {
        let pushed = self.push(cqe, solicited);
        self.current = None;
        self.ended(qp, pushed)
    }

    #[inline]
    fn ended(&mut self, qp: &Qp, pushed: bool) -> Result<(), Nak> {
        if pushed {
            return Ok(());
        }
        qp.fail_from_responder(self, Some(EventType::QpFatal));
        Err(Nak::RemoteOp)
    }

    /// The completion goes to the SRQ's own CQ with XRC, else to the QP's.
    pub(super) fn push(&mut self, cqe: Cqe, solicited: bool) -> bool {
        let srq = self.current.as_ref().and_then(|c| c.srq.as_ref());
        self.push_for(srq, cqe, solicited)
    }

    pub(super) fn push_for(&self, srq: Option<&Arc<Srq>>, cqe: Cqe, solicited: bool) -> bool {
        if cqe.status != WcStatus::Success.raw() {
            self.stats.receive_failed(cqe.status);
        }
        if self.counters.is_some() {
            self.count_receive(cqe.status, cqe.byte_len);
        }
        let xrc = srq.and_then(|s| s.xrc.as_ref());
        match xrc.map(|x| &x.cq).or(self.cq.as_ref()) {
            Some(cq) => cq.push(cqe, solicited).is_ok(),
            None => true,
        }
    }

    /// The receive request of an abandoned message, which no other message can use.
    pub(super) fn flush_parked(&mut self, qp: &Qp) {
        let srq = self.parked_srq.take();
        if std::mem::take(&mut self.parked) {
            let cqe = Cqe::new(self.taken.wr_id, qp.num, WcOpcode::Recv, WcStatus::WrFlushErr);
            self.push_for(srq.as_ref(), cqe, true);
        }
    }

    /// Refuses a request whose receive, if it took one, completes with `status`.
    #[cold]
    pub(super) fn refuse_any<T>(&mut self, qp: &Qp, status: WcStatus, nak: Nak) -> Result<T, Nak> {
        match &self.current {
            Some(current) if current.has_taken => {
                let (access, pd) = (self.access, self.pd_of_current(qp));
                let why = reason::Remote { qp, pd, access, request: &current.request, nak };
                self.explain_taken(qp, status, &why);
                self.refuse_taken(qp, status, nak)
            }
            _ => self.refuse(qp, nak),
        }
    }

    /// Refuses a request that has taken a receive request.
    #[cold]
    pub(super) fn refuse_taken<T>(&mut self, qp: &Qp, status: WcStatus, nak: Nak) -> Result<T, Nak> {
        if let Some(current) = &self.current {
            self.count_remote(current.request.op, status, 0);
        }
        if nak == Nak::RemoteAccess {
            self.stats.event(Event::AccessRefused, 1);
        }
        let cqe = Cqe::new(self.taken.wr_id, qp.num, WcOpcode::Recv, status);
        self.push(cqe, true);
        if let Some(current) = &mut self.current {
            current.has_taken = false;
        }
        self.current = None;
        // Of every type of QP (IBA 10.3.1). The completion tells of it: events are for errors that none tells (IBA 11.6.3.2).
        qp.fail_from_responder(self, None);
        Err(nak)
    }

    /// Refuses a request; a reliable QP goes to ERR, an unreliable one drops the message.
    #[cold]
    pub(super) fn refuse<T>(&mut self, qp: &Qp, nak: Nak) -> Result<T, Nak> {
        if let Some(current) = &self.current {
            let (access, pd) = (self.access, self.pd_of_current(qp));
            let reason = reason::Remote { qp, pd, access, request: &current.request, nak };
            explain(format_args!("{reason}"));
            self.count_remote(current.request.op, nak.status(), 0);
        }
        // A receive that it has taken serves the next message, or is flushed.
        self.abandon();
        if nak == Nak::RemoteAccess {
            self.stats.event(Event::AccessRefused, 1);
        }
        if qp.is_reliable() {
            let event = if nak == Nak::RemoteAccess { EventType::QpAccessErr } else { EventType::QpReqErr };
            qp.fail_from_responder(self, Some(event));
        }
        Err(nak)
    }
}
