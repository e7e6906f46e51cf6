//! A responder's answers in the order of their PSNs, and the atomics' results kept for repeated requests.
use crate::soft::types::{Key, Psn};
use crate::soft::wire::Syndrome;
use std::collections::VecDeque;

/// Answers that wait at most; a peer that asks for more is not served.
const MOST: usize = 512;

/// An answer that is not sent yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// ACK or NAK.
    Ack { psn: Psn, syndrome: Syndrome, msn: u32 },
    /// What remains of a READ, whose responses end before `until`.
    Read { psn: Psn, until: Psn, rkey: Key, va: u64, left: u32, started: bool, msn: u32 },
    /// An atomic's result.
    Atomic { psn: Psn, original: u64, msn: u32 },
}

impl Reply {
    fn psn(&self) -> Psn {
        match *self {
            Reply::Ack { psn, .. } | Reply::Read { psn, .. } | Reply::Atomic { psn, .. } => psn,
        }
    }
    /// Behind its last packet, which no other request shares.
    fn until(&self) -> Psn {
        match *self {
            Reply::Read { until, .. } => until,
            Reply::Ack { psn, .. } | Reply::Atomic { psn, .. } => psn.plus(1),
        }
    }
    fn is_data(&self) -> bool {
        !matches!(self, Reply::Ack { .. })
    }
}

/// The answers of one responder.
#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
    /// Behind the youngest READ or atomic that was answered in full.
    answered: Option<Psn>,
    /// Results of the youngest atomics.
    results: VecDeque<(Psn, u64)>,
    /// Where the youngest READs and atomics began.
    begun: VecDeque<Psn>,
    kept: usize,
}

impl Replies {
    /// Answers that keep the results of `kept` atomics.
    pub(super) fn new(kept: u8) -> Self {
        Self { kept: usize::from(kept).max(1), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// One acknowledgement and nothing else.
    pub(super) fn is_acknowledgement(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue[0], Reply::Ack { syndrome: Syndrome::Ack, .. })
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Reply> {
        self.queue.front_mut()
    }

    pub(super) fn pop(&mut self) {
        let end = match self.queue.pop_front() {
            Some(Reply::Read { psn, .. }) => psn,
            Some(Reply::Atomic { psn, .. }) => psn.plus(1),
            _ => return,
        };
        if self.answered.is_none_or(|a| end.since(a) > 0) {
            self.answered = Some(end);
        }
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// READs and atomics never answered yet. Repeated ones do not count: their requester may have the first answer.
    pub(super) fn data(&self) -> usize {
        let first_time = |r: &&Reply| self.answered.is_none_or(|a| r.psn().since(a) >= 0);
        self.queue.iter().filter(|r| r.is_data()).filter(first_time).count()
    }

    /// Acknowledges everything up to `psn`; one answer stands for all that come before the next data.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: u32) {
        let reply = Reply::Ack { psn, syndrome: Syndrome::Ack, msn };
        match self.queue.back_mut() {
            Some(last @ Reply::Ack { syndrome: Syndrome::Ack, .. }) => {
                if psn.since(last.psn()) >= 0 {
                    *last = reply;
                }
            }
            _ => self.push(reply),
        }
    }

    /// Acknowledges a repeated packet and what followed it, all that comes before `end`: up to the next READ or atomic, whose
    /// response may be what was lost. soft-RoCE takes an ACK with the number of an atomic for its response.
    pub(super) fn acknowledge_again(&mut self, repeated: Psn, end: Psn, msn: u32) {
        let data = self.begun.iter().copied().find(|b| b.since(repeated) > 0 && b.since(end) < 0);
        self.acknowledge(data.unwrap_or(end).plus(0xff_ffff), msn);
    }

    /// Adds an answer at the end.
    pub(super) fn push(&mut self, reply: Reply) {
        if reply.is_data() {
            if !self.queue.iter().any(Reply::is_data) {
                self.answered = Some(reply.psn());
            }
            if self.begun.len() >= self.kept {
                self.begun.pop_front();
            }
            self.begun.push_back(reply.psn());
        }
        if self.queue.len() < MOST {
            self.queue.push_back(reply);
        }
    }

    /// Adds the answer to a repeated READ or atomic where its PSN belongs; it takes the place of an older answer to
    /// the same request, also of one that begins earlier: who asks from here on has what comes before. True if what is asked for had
    /// left, rather than that it still waits here.
    pub(super) fn repeat(&mut self, reply: Reply) -> bool {
        let (psn, until) = (reply.psn(), reply.until());
        let is_same = |r: &Reply| r.until() == until || r.psn().since(psn) >= 0 && r.psn().since(until) < 0;
        let waits = |r: &Reply| r.is_data() && r.until() == until && r.psn().since(psn) <= 0;
        let had_left = !self.queue.iter().any(waits);
        self.queue.retain(|r| !(r.is_data() && is_same(r)));
        if self.queue.len() < MOST {
            let at = self.queue.iter().position(|r| r.psn().since(psn) > 0).unwrap_or(self.queue.len());
            self.queue.insert(at, reply);
        }
        had_left
    }

    /// Keeps an atomic's result.
    pub(super) fn keep(&mut self, psn: Psn, original: u64) {
        if self.results.len() >= self.kept {
            self.results.pop_front();
        }
        self.results.push_back((psn, original));
    }

    /// The result of the atomic at `psn`, if it is still kept.
    pub(super) fn kept(&self, psn: Psn) -> Option<u64> {
        // Numbers come again; the youngest counts.
        self.results.iter().rev().find(|(p, _)| *p == psn).map(|(_, original)| *original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_until(psn: u32, until: u32) -> Reply {
        let (psn, until) = (Psn::new(psn), Psn::new(until));
        Reply::Read { psn, until, rkey: Key(1), va: 0, left: 10, started: false, msn: 0 }
    }

    fn read(psn: u32) -> Reply {
        read_until(psn, psn + 10)
    }

    #[test]
    fn acknowledgements_merge_but_not_across_data() {
        let mut r = Replies::new(1);
        r.acknowledge(Psn::new(1), 1);
        r.acknowledge(Psn::new(2), 2);
        r.push(read(3));
        r.acknowledge(Psn::new(4), 4);
        assert_eq!(r.queue.len(), 3);
        assert_eq!(r.queue[0].psn(), Psn::new(2));
    }

    #[test]
    fn repeated_packets_are_acknowledged_up_to_the_next_data_only() {
        let mut r = Replies::new(2);
        let acknowledged = |r: &mut Replies, repeated| {
            r.clear();
            r.acknowledge_again(Psn::new(repeated), Psn::new(30), 7);
            r.queue[0].psn().get()
        };
        assert_eq!(acknowledged(&mut r, 3), 29);
        r.push(read(10));
        r.push(Reply::Atomic { psn: Psn::new(20), original: 1, msn: 0 });
        assert_eq!([3, 9, 12, 19, 21].map(|n| acknowledged(&mut r, n)), [9, 9, 19, 19, 29]);
        // Older ones have been answered, or their requester would not have gone on.
        r.push(read(25));
        assert_eq!([3, 22, 26].map(|n| acknowledged(&mut r, n)), [19, 24, 29]);
        r.acknowledge_again(Psn::new(3), Psn::new(30), 7);
        assert_eq!(r.queue.len(), 1);
        assert_eq!(r.queue[0].psn().get(), 29, "what was acknowledged stays so");
    }

    #[test]
    fn repeated_read_takes_the_place_of_the_older_answer() {
        let mut r = Replies::new(1);
        r.push(read(10));
        r.push(read(20));
        let begins = |r: &Replies| r.queue.iter().map(|r| r.psn().get()).collect::<Vec<_>>();
        assert!(!r.repeat(read_until(12, 20)), "it has not left");
        assert_eq!(begins(&r), [12, 20], "who asks from 12 on has what comes before");
        assert!(!r.repeat(read_until(12, 20)), "nor now");
        assert!(r.repeat(read(10)), "what comes before 12 has");
        assert_eq!(begins(&r), [10, 20]);
        r.repeat(read_until(29, 30));
        assert_eq!(begins(&r), [10, 29]);
    }

    #[test]
    fn a_read_that_is_asked_for_again_in_part_counts_once() {
        let mut r = Replies::new(2);
        r.push(read(10));
        r.repeat(read_until(13, 20));
        assert_eq!(r.data(), 1);
        r.repeat(read(10));
        r.push(read(20));
        r.repeat(read_until(17, 20));
        assert_eq!(r.data(), 2);
    }

    #[test]
    fn repeated_reads_do_not_count_as_outstanding() {
        let mut r = Replies::new(4);
        r.push(read(10));
        r.push(read(20));
        r.pop();
        assert_eq!(r.data(), 1);
        r.repeat(read_until(5, 10));
        assert_eq!(r.data(), 1);
        r.repeat(read(20));
        assert_eq!(r.data(), 1);
    }

    #[test]
    fn atomics_results_are_recycled_in_order() {
        let mut r = Replies::new(2);
        (0..3).for_each(|i| r.keep(Psn::new(i), u64::from(i) * 10));
        assert_eq!(
            (r.kept(Psn::new(0)), r.kept(Psn::new(1)), r.kept(Psn::new(2))),
            (None, Some(10), Some(20))
        );
    }
}
