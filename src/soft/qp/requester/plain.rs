//! Requests that are nothing out of the ordinary, on their way to another process of this host and back: what `ready`, `number`,
//! `begun` and `acked` do for any request, for those that need one look each. Where a look finds anything else, nothing has
//! been done and the long way does it.
use super::{Requester, completion_of};
use crate::soft::cq::{Cqe, Taker};
use crate::soft::link::Path;
use crate::soft::link::wires::Wire;
use crate::soft::qp::Qp;
use crate::soft::qp::sendq::SendQueue;
use crate::soft::types::{EventType, Psn, QpType, Qpn, SendFlags, WcStatus, WrOpcode};

/// A send half whose new requests can go to its peer as they come.
#[derive(Debug)]
pub struct Open<'a> {
    /// Its queue, of which nothing waits to be begun.
    pub queue: &'a mut SendQueue,
    /// The way to the peer,
    pub wire: &'a Wire,
    /// and the peer.
    pub to: Qpn,
    /// Its requests are acknowledged.
    pub is_reliable: bool,
    /// The PSN of the next request.
    pub psn: &'a mut Psn,
    numbered: &'a mut u64,
}

impl Open<'_> {
    /// The request just written to the queue, `SendQueue::place`, is in the ring.
    #[inline(always)]
    pub fn sent(&mut self) {
        self.queue.take_place();
        *self.numbered = self.queue.next;
        *self.psn = self.psn.plus(1);
    }
}

impl Requester {
    /// The send half, if nothing stands in the way of new SENDs: the QP is connected to one of another process of this host, it is
    /// in RTS, nobody looks at each of its requests, nothing waits.
    #[inline(always)]
    pub fn open(&mut self, qp: &Qp) -> Option<Open<'_>> {
        if self.queue.is_full() {
            self.release(qp);
        }
        let Path::Shm(wire, to) = &self.path else { return None };
        let is_plain = matches!(qp.kind, QpType::Rc | QpType::Uc)
            && qp.is_rts()
            && !self.watched
            && self.queue.has_begun_all()
            && self.numbered <= self.queue.next
            && self.doomed.is_none()
            && self.wait_until == 0
            && !wire.has_better();
        is_plain.then_some(Open {
            queue: &mut self.queue,
            wire,
            to: *to,
            is_reliable: qp.kind == QpType::Rc,
            psn: &mut self.psn,
            numbered: &mut self.numbered,
        })
    }

    /// Completes what is in the ring of an unreliable QP: it was sent, which is all that counts.
    pub fn complete_sent(&mut self, qp: &Qp) {
        while self.has_unacked() {
            self.complete_oldest_with(qp, WcStatus::Success);
        }
    }

    /// Completes SENDs and WRITEs at the front that are accepted by `psn`, up to the first request of another kind; none where the
    /// QP needs to be looked at after each.
    #[inline(always)]
    pub(super) fn retire(&mut self, qp: &Qp, psn: Psn, taker: &mut Taker<'_>) {
        let is_plain =
            qp.is_rts() && self.doomed.is_none() && self.foreign.is_none() && self.counters.is_none();
        if !is_plain {
            return;
        }
        while self.queue.tail != self.queue.next {
            let at = self.queue.tail;
            let wqe = self.queue.wqe_mut(at);
            let (wr_id, opcode, length) = (wqe.wr_id, wqe.opcode, wqe.length);
            let moves =
                matches!(opcode, WrOpcode::Send | WrOpcode::SendImm | WrOpcode::Write | WrOpcode::WriteImm);
            if !moves || psn.since(wqe.psn) < wqe.psns.max(1) as i32 - 1 {
                return;
            }
            let reported = self.sig_all || wqe.flags.contains(SendFlags::SIGNALED);
            wqe.reported = reported;
            self.queue.tail = at + 1;
            self.stats.done(opcode, length);
            if reported && let Some(cq) = &self.cq {
                let mut cqe = Cqe::new(wr_id, qp.num, completion_of(opcode), WcStatus::Success);
                cqe.byte_len = length;
                if cq.complete(cqe, false, taker).is_err() {
                    return qp.fail_from_requester(self, Some(EventType::QpFatal));
                }
            }
        }
    }
}
