//! Requests that are carried out before they are posted, since somebody may be waiting for what they do.
use super::{Requester, completion_of};
use crate::soft::cq::Cqe;
use crate::soft::qp::Qp;
use crate::soft::types::{EventType, SendFlags, WcStatus, WrOpcode};

impl Requester {
    /// Nothing is posted that is not complete, nothing waits, nobody looks at requests one by one, and there is room for another one, which a
    /// link would begin now.
    #[inline(always)]
    pub fn is_idle(&mut self, qp: &Qp) -> bool {
        let is_idle = self.queue.is_empty()
            && qp.is_rts()
            && !self.watched
            && self.wait_until == 0
            && self.doomed.is_none()
            && !self.is_retrying();
        if is_idle && self.queue.is_full() {
            self.release(qp);
        }
        is_idle && !self.queue.is_full()
    }

    /// A request of an idle send half, with nothing out of the ordinary, has been carried out: it takes its place, and is complete.
    #[inline(always)]
    pub fn take_done(&mut self, qp: &Qp, wr_id: u64, opcode: WrOpcode, flags: SendFlags, length: u32) {
        let reported = self.sig_all || flags.contains(SendFlags::SIGNALED);
        let at = self.queue.place();
        self.queue.wqe_mut(at).reported = reported;
        self.queue.take_place();
        self.queue.tail = self.queue.next;
        self.stats.done(opcode, length);
        if self.counters.is_some() {
            self.count(opcode, WcStatus::Success, length);
        }
        if reported && let Some(cq) = &self.cq {
            let mut cqe = Cqe::new(wr_id, qp.num, completion_of(opcode), WcStatus::Success);
            cqe.byte_len = length;
            if cq.push(cqe, false).is_err() {
                qp.fail_from_requester(self, Some(EventType::QpFatal));
            }
        }
    }
}
