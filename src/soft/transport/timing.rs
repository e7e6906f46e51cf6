//! When a requester stops waiting: the local ACK timeout, early probes, the RNR wait.
use std::cmp::min;

const MS: u64 = 1_000_000;
/// Shorter timeouts than this are lengthened, as hardware does.
const SHORTEST_TIMEOUT: u64 = 8 * MS;
const SHORTEST_PROBE: u64 = MS;
const FIRST_PROBE: u64 = 5 * MS;
const LONGEST_PROBE: u64 = 500 * MS;

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
    backoff: u32,
    smoothed: Option<u64>,
    /// A packet whose answer is being timed, and when it left.
    sample: Option<(u64, u64)>,
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
            smoothed: None,
            sample: None,
        }
    }

    /// Changes the local ACK timeout, from the next wait on.
    pub(super) fn set_timeout(&mut self, code: u8) {
        self.timeout = nanos(code);
    }

    /// The next time at which something runs out.
    pub(super) fn deadline(&self) -> Option<u64> {
        match self.rnr_until {
            Some(at) => Some(at),
            None => [self.timeout_at, self.probe_at].into_iter().flatten().min(),
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
        if self.timeout_at.is_some_and(|at| at <= now) {
            self.timeout_at = None;
            self.probe_at = None;
            return Some(Expired::Timeout);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.backoff = min(self.backoff + 1, 16);
            return Some(Expired::Probe);
        }
        None
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
            self.timeout_at = self.timeout.map(|t| now + t);
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

    /// An answer came that makes progress up to packet `una`; `more` are under way.
    pub(super) fn progress(&mut self, now: u64, una: u64, more: bool) {
        if let Some((packet, left)) = self.sample
            && una > packet
        {
            let took = now.saturating_sub(left);
            self.smoothed = Some(self.smoothed.map_or(took, |s| s - s / 8 + took / 8));
            self.sample = None;
        }
        self.backoff = 0;
        self.timeout_at = None;
        self.probe_at = None;
        if more {
            self.start(now);
        }
    }

    /// Packet `number` leaves for the first time and asks for an answer.
    pub(super) fn time(&mut self, number: u64, now: u64) {
        self.sample.get_or_insert((number, now));
    }

    /// Packets leave again: an answer no longer tells to which.
    pub(super) fn forget_sample(&mut self) {
        self.sample = None;
    }
}

fn nanos(code: u8) -> Option<u64> {
    (code & 0x1f != 0).then(|| (4096 << (code & 0x1f)).max(SHORTEST_TIMEOUT))
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
    fn receiver_wait_stops_the_other_timers() {
        let mut t = Timing::new(14);
        t.start(0);
        t.wait_for_receiver(700 * MS);
        assert_eq!((t.deadline(), t.expired(699 * MS)), (Some(700 * MS), None));
        assert_eq!(t.expired(700 * MS), Some(Expired::Rnr));
        assert_eq!(t.deadline(), None);
    }
}
