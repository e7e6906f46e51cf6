//! Whether it is believed that threads go on polling.
use std::sync::atomic::{AtomicU64, Ordering};

use super::TICK;

/// How long doubt holds, nanoseconds. That doubles where it rises again soon after, up to the last.
const SHORTEST: u64 = 20_000_000;
const LONGEST: u64 = 5_120_000_000;

/// Watches whether threads go on polling: the signs of life at the last look that found new ones, and when that was.
#[derive(Default)]
pub(super) struct Vigil(Option<(u64, u64)>);

impl Vigil {
    /// So many signs have been given until `now`, nanoseconds: none for a whole tick, however often it was looked.
    pub(super) fn is_over(&mut self, signs: u64, now: u64) -> bool {
        let (seen, at) = *self.0.get_or_insert((signs, now));
        if seen != signs {
            self.0 = Some((signs, now));
        }
        seen == signs && now.saturating_sub(at) >= TICK.as_nanos() as u64
    }
}

/// Somebody has polled, and did not look when messages came: those wake the progress thread for a while, whoever polls.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Until when it holds,
    until: AtomicU64,
    /// and how long that was.
    length: AtomicU64,
}

impl Doubt {
    /// Messages waited at `now` and nobody looked. The progress thread alone says so.
    pub(super) fn rises(&self, now: u64) {
        let (until, length) = (self.until.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
        let is_soon = now < until.saturating_add(2 * length);
        let length = if is_soon { (2 * length).min(LONGEST) } else { SHORTEST };
        self.length.store(length, Ordering::Relaxed);
        self.until.store(now.saturating_add(length), Ordering::Relaxed);
    }

    /// Polling is not believed in at `now`.
    pub(super) fn holds(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_is_over_after_a_tick_of_silence_however_often_a_deadline_has_come_meanwhile() {
        let tick = TICK.as_nanos() as u64;
        let mut vigil = Vigil::default();
        let looks = [(5, 0), (5, 1), (5, 2), (5, tick - 1), (6, tick + 1), (6, tick + 2), (6, 2 * tick)];
        assert!(looks.iter().all(|(signs, now)| !vigil.is_over(*signs, *now)));
        assert!(vigil.is_over(6, 2 * tick + 1));
        assert!(!vigil.is_over(7, 9 * tick));
    }

    #[test]
    fn who_is_seen_not_to_look_is_doubted_for_longer_each_time_until_that_is_long_ago() {
        let doubt = Doubt::default();
        let (first, last) = (SHORTEST, LONGEST);
        let mut now = 5;
        assert!(!doubt.holds(now));
        for length in [first, 2 * first, 4 * first] {
            doubt.rises(now);
            assert!(doubt.holds(now + length - 1) && !doubt.holds(now + length));
            now += length;
        }
        for _ in 0..10 {
            doubt.rises(now);
            now += last;
        }
        assert!(!doubt.holds(now));
        now += 2 * last;
        doubt.rises(now);
        assert!(!doubt.holds(now + first));
    }
}
