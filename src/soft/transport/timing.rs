//! When a requester stops waiting: the local ACK timeout, early probes, the RNR wait.
use std::cmp::min;

const MS: u64 = 1_000_000;
/// Shorter timeouts than this are lengthened, as hardware does.
const SHORTEST_TIMEOUT: u64 = 8 * MS;
const SHORTEST_PROBE: u64 = MS;
/// What CNPs of NICs keep between them.
const SHORTEST_ROUND_TRIP: u64 = 50_000;
const FIRST_PROBE: u64 = 5 * MS;
const LONGEST_PROBE: u64 = 500 * MS;
/// Timeouts are not stretched beyond this.
const LONGEST_STRETCHED: u64 = 250 * MS;
/// A timeout that is noticed so late says that this process was not scheduled.
const LATE: u64 = 5 * MS;
/// Timeouts without progress that may be excused.
const EXCUSES: u32 = 8;

/// What has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expired {
    /// The receiver may be ready now.
    Rnr,
    /// The local ACK timeout, which counts against the retries.
    Timeout,
    /// The answer is late; ask again without counting.
    Probe,
}

/// The timers of one requester; all times in nanoseconds.
#[derive(Debug)]
pub(super) struct Timing {
    /// The local ACK timeout; `None` is for ever.
    timeout: Option<u64>,
    timeout_at: Option<u64>,
    probe_at: Option<u64>,
    rnr_until: Option<u64>,
    /// Probes since the last answer; each waits twice as long as the one before it.
    backoff: u32,
    /// Timeouts since the last progress.
    timeouts: u32,
    /// How many more of them do not count.
    excuses: u32,
    /// The peer has answered something since the last timeout.
    heard: bool,
    smoothed: Option<u64>,
    sample: Option<Sample>,
    /// When packets left again, until there is progress.
    again: Option<u64>,
}

/// A packet whose answer is being timed.
#[derive(Clone, Copy, Debug)]
struct Sample {
    packet: u64,
    left: u64,
    /// When it left again, the last time.
    again: Option<u64>,
}

impl Timing {
    /// Timers for a local ACK timeout of 4.096 us * 2^code; code 0 is for ever.
    pub(super) fn new(code: u8) -> Self {
        Self {
            timeout: nanos(code),
            timeout_at: None,
            probe_at: None,
            rnr_until: None,
            backoff: 0,
            timeouts: 0,
            excuses: EXCUSES,
            heard: false,
            smoothed: None,
            sample: None,
            again: None,
        }
    }

    /// Changes the local ACK timeout, from the next wait on.
    pub(super) fn set_timeout(&mut self, code: u8) {
        self.timeout = nanos(code);
    }

    /// The next time at which something runs out.
    pub(super) fn deadline(&self) -> Option<u64> {
        match (self.rnr_until, self.timeout_at, self.probe_at) {
            (Some(at), ..) => Some(at),
            (_, Some(one), Some(other)) => Some(min(one, other)),
            (_, one, other) => one.or(other),
        }
    }

    /// What has run out at `now`, which is then taken away.
    pub(super) fn expired(&mut self, now: u64) -> Option<Expired> {
        if let Some(at) = self.rnr_until {
            if at > now {
                return None;
            }
            self.rnr_until = None;
            return Some(Expired::Rnr);
        }
        if let Some(at) = self.timeout_at.filter(|&at| at <= now) {
            self.timeout_at = None;
            self.probe_at = None;
            // Whoever was not there to take the answer has not waited for it, and a peer that answers is not gone.
            if self.excuses > 0 && (now - at > LATE || self.heard) {
                self.excuses -= 1;
                self.heard = false;
                return Some(Expired::Probe);
            }
            self.timeouts += 1;
            return Some(Expired::Timeout);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.backoff = min(self.backoff + 1, 16);
            return Some(Expired::Probe);
        }
        None
    }

    /// What an answer takes, as far as known.
    pub(super) fn round_trip(&self) -> u64 {
        self.smoothed.unwrap_or(0).clamp(SHORTEST_ROUND_TRIP, LONGEST_PROBE)
    }

    /// What comes `now` comes much sooner or much later than an answer to what left again would: it is the late answer to the first try.
    pub(super) fn is_late(&self, now: u64) -> bool {
        let (Some(again), Some(usual)) = (self.again, self.smoothed) else { return false };
        let took = now.saturating_sub(again);
        2 * took < usual || took > 2 * usual
    }

    /// The receiver asked to wait.
    pub(super) fn waits(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Waits for the receiver; the other timers stop.
    pub(super) fn wait_for_receiver(&mut self, until: u64) {
        self.rnr_until = Some(until);
        self.stop();
    }

    /// Something is under way: starts what does not run.
    pub(super) fn start(&mut self, now: u64) {
        if self.timeout_at.is_none() {
            self.timeout_at = self.timeout.map(|t| now + stretched(t, self.timeouts));
        }
        if self.probe_at.is_none() {
            let base = self.smoothed.map_or(FIRST_PROBE, |s| (4 * s).max(SHORTEST_PROBE));
            self.probe_at = Some(now + min(base << self.backoff, LONGEST_PROBE));
        }
    }

    /// Nothing is under way.
    pub(super) fn stop(&mut self) {
        self.timeout_at = None;
        self.probe_at = None;
        self.sample = None;
    }

    /// The peer has answered something, whether new or not.
    pub(super) fn hear(&mut self) {
        self.heard = true;
    }

    /// An answer came that makes progress up to packet `una`; `more` are under way.
    pub(super) fn progress(&mut self, now: u64, una: u64, more: bool) {
        if let Some(sample) = self.sample.filter(|s| una > s.packet) {
            // What comes right behind a second try answers the first.
            let from = match sample.again {
                Some(again) if 2 * now.saturating_sub(again) >= self.smoothed.unwrap_or(0) => again,
                _ => sample.left,
            };
            let took = now.saturating_sub(from);
            self.smoothed = Some(self.smoothed.map_or(took, |s| s - s / 8 + took / 8));
            self.sample = None;
        }
        self.again = None;
        self.backoff = 0;
        self.timeouts = 0;
        self.excuses = EXCUSES;
        self.heard = false;
        self.timeout_at = None;
        self.probe_at = None;
        if more {
            self.start(now);
        }
    }

    /// `packet` leaves for the first time and asks for an answer.
    pub(super) fn time(&mut self, packet: u64, now: u64) {
        self.sample.get_or_insert(Sample { packet, left: now, again: None });
    }

    /// Packets leave again.
    pub(super) fn again(&mut self, now: u64) {
        self.again = Some(now);
        if let Some(sample) = &mut self.sample {
            sample.again = Some(now);
        }
    }
}

fn nanos(code: u8) -> Option<u64> {
    (code & 0x1f != 0).then(|| (4096 << (code & 0x1f)).max(SHORTEST_TIMEOUT))
}

/// How long the next wait is after `timeouts` in vain: up to four times as long, which the specification leaves open,
/// where a busy machine may take that long to answer.
fn stretched(timeout: u64, timeouts: u32) -> u64 {
    min(timeout << timeouts.min(2), LONGEST_STRETCHED).max(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_code_is_a_power_of_two() {
        let mut t = Timing::new(14);
        t.start(0);
        assert_eq!(t.timeout_at, Some(4096 << 14));
        assert_eq!(Timing::new(0).timeout, None);
        assert_eq!(Timing::new(1).timeout, Some(SHORTEST_TIMEOUT));
        assert_eq!(Timing::new(31).timeout, Some(4096 << 31));
    }

    #[test]
    fn probes_come_before_the_timeout_and_grow_rarer() {
        let mut t = Timing::new(16);
        let (mut now, mut probes) = (0, 0);
        t.start(now);
        loop {
            now = t.deadline().unwrap();
            match t.expired(now) {
                Some(Expired::Probe) => probes += 1,
                Some(Expired::Timeout) => break,
                other => panic!("{other:?}"),
            }
            t.start(now);
        }
        assert_eq!(now, 4096 << 16);
        assert_eq!(probes, 5, "5 + 10 + 20 + 40 + 80 ms fit into 268 ms");
    }

    #[test]
    fn timeouts_are_stretched_only_where_they_are_short() {
        let waits = |code| (0..4).map(|n| stretched(nanos(code).unwrap(), n) / MS).collect::<Vec<_>>();
        assert_eq!(waits(1), [8, 16, 32, 32]);
        assert_eq!(waits(14), [67, 134, 250, 250]);
        assert_eq!(waits(18), [1073; 4]);
    }

    #[test]
    fn late_timeouts_and_those_of_a_peer_that_answers_do_not_count_for_a_while() {
        let mut t = Timing::new(14);
        for n in 0..EXCUSES {
            t.start(0);
            t.probe_at = None;
            let due = t.timeout_at.unwrap();
            let late = n % 2 == 0;
            if !late {
                t.hear();
            }
            assert_eq!(t.expired(due + if late { LATE + 1 } else { 0 }), Some(Expired::Probe));
        }
        t.start(0);
        t.hear();
        assert_eq!(t.expired(t.timeout_at.unwrap() + LATE + 1), Some(Expired::Timeout));
        t.progress(0, 1, true);
        assert_eq!(t.expired(t.timeout_at.unwrap() + LATE + 1), Some(Expired::Probe));
    }

    #[test]
    fn answers_to_packets_that_left_twice_are_timed_as_well_as_can_be() {
        let mut t = Timing::new(14);
        t.time(0, 0);
        t.progress(8 * MS, 1, false);
        assert_eq!(t.smoothed, Some(8 * MS));
        // The first try was only slow: its answer comes a moment after the second try.
        t.time(1, 0);
        t.again(40 * MS);
        t.progress(41 * MS, 2, false);
        assert_eq!(t.smoothed, Some(7 * MS + 41 * MS / 8));
        // The first try was lost.
        t.time(2, 0);
        t.again(400 * MS);
        t.progress(408 * MS, 3, false);
        assert!(t.smoothed.unwrap() < 13 * MS);
    }

    #[test]
    fn an_answer_is_late_that_comes_at_another_time_than_one_to_a_second_try_would() {
        let mut t = Timing::new(14);
        t.again(0);
        assert!(!t.is_late(MS), "nobody knows how long answers take");
        t.time(0, 0);
        t.progress(MS, 1, false);
        assert!(!t.is_late(10 * MS), "nothing left again");
        t.again(10 * MS);
        assert_eq!([10, 11, 12, 13].map(|at| t.is_late(at * MS)), [true, false, false, true]);
    }

    #[test]
    fn receiver_wait_stops_the_other_timers() {
        let mut t = Timing::new(14);
        t.start(0);
        t.wait_for_receiver(700 * MS);
        assert_eq!((t.deadline(), t.expired(699 * MS)), (Some(700 * MS), None));
        assert_eq!(t.expired(700 * MS), Some(Expired::Rnr));
        assert_eq!(t.deadline(), None);
    }
}
