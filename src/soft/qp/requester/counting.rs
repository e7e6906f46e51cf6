//! What a requester counts of messages over memory that were not accepted; what is accepted counts when it completes.
use super::Requester;
use crate::soft::qp::Qp;
use crate::soft::stats::Event;

impl Requester {
    /// The responder has refused request `at`, over memory, and dropped those behind it.
    /// Gives how many packets it were.
    #[cold]
    pub fn was_refused(&self, qp: &Qp, at: u64) -> u64 {
        self.stats.was_refused();
        self.sent_in_vain(qp, at)
    }

    /// Request `at` and those behind it were sent, over memory, and not accepted; gives how many packets it were.
    pub fn sent_in_vain(&self, qp: &Qp, at: u64) -> u64 {
        let end = self.queue.next.max(at + 1).min(self.queue.head);
        let packets = |at| {
            let wqe = self.queue.wqe(at);
            // The last one may be half sent.
            let length = if at >= self.queue.next && wqe.cursor > 0 { wqe.cursor } else { wqe.length };
            if wqe.opcode.is_local() { 0 } else { self.stats.sent_in_vain(qp.kind, wqe.opcode, length) }
        };
        (at..end).map(packets).sum()
    }

    /// Request `at` was lost, over memory, and is sent again; `timeout`: which a local ACK timeout has shown.
    #[cold]
    pub fn was_lost(&self, qp: &Qp, at: u64, timeout: bool) {
        let packets = self.sent_in_vain(qp, at);
        self.goes_back(packets);
        self.stats.event(Event::Timeout, timeout.into());
    }

    /// So many packets will be sent again.
    pub(super) fn goes_back(&self, packets: u64) {
        self.stats.event(Event::WentBack, 1);
        self.stats.event(Event::Retransmitted, packets);
    }
}
