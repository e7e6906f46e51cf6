//! How much may be on its way to another host: what its QPs share, and how fast READ responses follow each other.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A host that packets go to. What all flows together may have under way there grows with what is acknowledged and shrinks
/// with losses, since nobody knows the size of the peer's socket buffer.
#[derive(Debug)]
pub(super) struct Destination {
    /// Flows that have something under way.
    active: AtomicU32,
    /// Packets, in eighths.
    budget: AtomicU32,
    /// When it was last cut.
    cut: AtomicU64,
    /// Losses, and packets acknowledged, since they were last judged.
    losses: AtomicU32,
    acknowledged: AtomicU64,
    /// Packets that a network card cuts may have ids that their ICRCs do not: then all but the first of each run are lost.
    miscounts_ids: AtomicBool,
}

impl Default for Destination {
    fn default() -> Self {
        Self {
            active: AtomicU32::new(0),
            budget: AtomicU32::new(8 * Self::LEAST),
            cut: AtomicU64::new(0),
            losses: AtomicU32::new(0),
            acknowledged: AtomicU64::new(0),
            miscounts_ids: AtomicBool::new(false),
        }
    }
}

impl Destination {
    /// What the socket buffer of an ordinary user holds, 416 KiB, in packets of 1 KiB payload, which take 2.3 each.
    const LEAST: u32 = 160;
    const MOST: u32 = 8192;
    /// Flows lose packets together when a buffer overflows: that is one loss, nanoseconds.
    const ONE_LOSS: u64 = 5_000_000;
    /// After so many losses it is judged whether nearly nothing arrives.
    const JUDGED: u32 = 16;

    /// A flow begins to have something under way, or ends.
    pub(super) fn count(&self, begins: bool) {
        if begins {
            self.active.fetch_add(1, Ordering::Relaxed);
        } else {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Packets of a flow were acknowledged, some perhaps lost. Losing a count against another thread does no harm.
    pub(super) fn tell(&self, now: u64, acknowledged: u64, lost: bool) {
        self.acknowledged.fetch_add(acknowledged, Ordering::Relaxed);
        if lost && self.losses.fetch_add(1, Ordering::Relaxed) + 1 >= Self::JUDGED {
            let got = self.acknowledged.swap(0, Ordering::Relaxed);
            self.losses.store(0, Ordering::Relaxed);
            if got < u64::from(Self::JUDGED) * 4 {
                self.miscounts_ids.store(true, Ordering::Relaxed);
            }
        }
        let budget = self.budget.load(Ordering::Relaxed);
        let next = if lost && now.saturating_sub(self.cut.load(Ordering::Relaxed)) >= Self::ONE_LOSS {
            self.cut.store(now, Ordering::Relaxed);
            budget - budget / 4
        } else {
            budget.saturating_add(acknowledged.min(1 << 20) as u32)
        };
        self.budget.store(next.clamp(8 * Self::LEAST, 8 * Self::MOST), Ordering::Relaxed);
    }

    /// As far as known, IPv4 packets that are cut from larger ones on the way out arrive with ids that count from 0.
    pub(super) fn counts_ids(&self) -> bool {
        !self.miscounts_ids.load(Ordering::Relaxed)
    }

    /// Packets that each active flow may have under way, two in any case. Larger packets take more of a buffer.
    pub(super) fn share(&self, mtu: u32) -> u32 {
        let budget = self.budget.load(Ordering::Relaxed) / 8;
        let all = match mtu {
            0..=1024 => budget,
            1025..=2048 => budget * 5 / 8,
            _ => budget * 3 / 8,
        };
        (all / self.active.load(Ordering::Relaxed).max(1)).max(2)
    }
}

/// The pause between bursts of READ responses, nanoseconds. A requester takes them in at its own speed and can say nothing
/// but ask again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    gap: u64,
    repeats: u64,
}

impl Pace {
    const SHORTEST: u64 = 50_000;
    const LONGEST: u64 = 5_000_000;

    /// The pause after a burst, when so many READs were asked for again in all.
    pub(super) fn pause(&mut self, repeats: u64) -> u64 {
        if repeats > self.repeats {
            self.repeats = repeats;
            self.gap = (2 * self.gap).clamp(Self::SHORTEST, Self::LONGEST);
        } else {
            self.gap -= self.gap.div_ceil(64);
        }
        // A pause shorter than this takes longer to make.
        if self.gap < Self::SHORTEST / 8 { 0 } else { self.gap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_share_what_a_destination_takes() {
        let d = Destination::default();
        assert_eq!((d.share(256), d.share(1024), d.share(4096)), (160, 160, 60));
        (0..4).for_each(|_| d.count(true));
        assert_eq!((d.share(1024), d.share(4096)), (40, 15));
        (0..96).for_each(|_| d.count(true));
        assert_eq!(d.share(4096), 2);
        (0..99).for_each(|_| d.count(false));
        assert_eq!(d.share(1024), 160);
    }

    #[test]
    fn the_budget_grows_with_success_and_losses_at_one_time_cut_it_once() {
        let d = Destination::default();
        d.tell(0, 8 * 1000, false);
        assert_eq!(d.share(1024), 1160);
        let now = Destination::ONE_LOSS;
        (0..10).for_each(|i| d.tell(now + i, 0, true));
        assert_eq!(d.share(1024), 870);
        (1..100).for_each(|i| d.tell(now + i * Destination::ONE_LOSS, 0, true));
        assert_eq!(d.share(1024), Destination::LEAST);
        d.tell(0, u64::MAX, false);
        assert_eq!(d.share(1024), Destination::MOST);
    }

    #[test]
    fn a_way_on_which_only_the_first_of_each_run_arrives_gets_no_more_runs() {
        let d = Destination::default();
        (0..1000).for_each(|i| d.tell(i, 20, true));
        assert!(d.counts_ids());
        (0..Destination::JUDGED + 1).for_each(|i| d.tell(u64::from(i), 1, true));
        (0..Destination::JUDGED).for_each(|i| d.tell(u64::from(i), 1, true));
        assert!(!d.counts_ids());
    }

    #[test]
    fn repeats_slow_down_and_peace_speeds_up_again() {
        let mut p = Pace::default();
        assert_eq!(p.pause(0), 0);
        assert_eq!(p.pause(1), Pace::SHORTEST);
        assert_eq!(p.pause(3), 2 * Pace::SHORTEST);
        (4..40).for_each(|n| _ = p.pause(n));
        assert_eq!(p.pause(40), Pace::LONGEST);
        let bursts = (0..).take_while(|_| p.pause(40) > 0).count();
        assert!((100..1000).contains(&bursts), "{bursts}");
    }
}
