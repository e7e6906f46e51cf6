//! Trying again: after RNR NAKs, and where nobody answers.
use super::Requester;
use crate::soft::qp::Qp;
use crate::soft::stats::Event;
use crate::soft::types::WcStatus;

impl Requester {
    /// The responder has no receive request for `at`: wait `delay_ns`, then begin there again.
    /// False when the retries are used up; the QP is then in ERR.
    pub fn back_off_rnr(&mut self, qp: &Qp, at: u64, now: u64, delay_ns: u64) -> bool {
        if self.fails_here(qp, at) {
            return false;
        }
        let in_vain = self.was_refused(qp, at);
        self.stats.event(Event::RnrNakReceived, 1);
        if self.retry.rnr_retry != 7 {
            if self.rnr_left == 0 {
                self.doom(qp, at, WcStatus::RnrRetryExcErr);
                return false;
            }
            self.rnr_left -= 1;
        }
        self.goes_back(in_vain);
        self.rewind(at);
        self.wait_until = now + delay_ns;
        true
    }

    /// Nobody answers: wait the local ACK timeout, then begin at `at` again.
    /// False when the retries are used up; the QP is then in ERR.
    pub fn back_off(&mut self, qp: &Qp, at: u64, now: u64) -> bool {
        if self.fails_here(qp, at) {
            return false;
        }
        let in_vain = self.sent_in_vain(qp, at);
        self.rewind(at);
        let Some(delay) = self.retry.timeout_ns() else {
            self.wait_until = u64::MAX;
            return true;
        };
        self.stats.event(Event::Timeout, 1);
        if self.retries_left == 0 {
            self.doom(qp, at, WcStatus::RetryExcErr);
            return false;
        }
        self.goes_back(in_vain);
        self.retries_left -= 1;
        self.wait_until = now + delay;
        true
    }

    /// A request that is wrong by itself fails at once, whether anybody would take it or not.
    fn fails_here(&mut self, qp: &Qp, at: u64) -> bool {
        let sends = !self.queue.wqe(at).wants_answer();
        let wrong =
            self.check(qp, at).and_then(|()| if sends { self.gather_nothing(qp, at) } else { Ok(()) });
        wrong.inspect_err(|status| self.doom(qp, at, *status)).is_err()
    }

    /// One more timeout or sequence error counts against `retry_cnt`; false when there is none left.
    pub fn use_retry(&mut self) -> bool {
        let left = self.retries_left > 0;
        self.retries_left = self.retries_left.saturating_sub(1);
        left
    }

    /// One more RNR counts against `rnr_retry`; false when there is none left.
    pub fn use_rnr_retry(&mut self) -> bool {
        if self.retry.rnr_retry == 7 {
            return true;
        }
        let left = self.rnr_left > 0;
        self.rnr_left = self.rnr_left.saturating_sub(1);
        left
    }

    /// Progress was made: all retries are available again.
    pub fn refill_retries(&mut self) {
        (self.retries_left, self.rnr_left) = (self.retry.retry_cnt, self.retry.rnr_retry);
    }
}
