//! How many packets of a connection may be under way: more with what is acknowledged, fewer with losses and congestion.
use super::{LARGEST_WINDOW, WINDOW};

/// The window after a lost packet grows fast up to here, at least.
const SMALL: u32 = 8;
/// Acknowledged packets that widen it by one: below what was once too much, and beyond.
const EAGER: u32 = 8;
const WARY: u32 = 512;
/// Packets without a request for acknowledgement in a row: a quarter of the window, within these.
const ACK_EVERY: (u32, u32) = (16, 128);
/// Packets of a piece of a READ: half of the window, within these, so that the other half is on its way.
const READ_CHUNK: (u32, u32) = (32, 256);

/// The window of a requester.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    /// What it may grow to.
    most: u32,
    /// Up to here it grows by what is acknowledged.
    calm: u32,
    /// From here on, three quarters of what was too much, it hardly grows.
    wary: u32,
    /// What is acknowledged and has not made it wider yet, in packets times [`WARY`].
    growth: u32,
    /// Its size before a timer ran out, until an answer tells whether anything was lost.
    held: Option<u32>,
    /// When congestion was last heeded.
    slowed: u64,
    losses: u64,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            size: WINDOW,
            most: WINDOW,
            calm: WINDOW,
            wary: u32::MAX,
            growth: 0,
            held: None,
            slowed: 0,
            losses: 0,
        }
    }

    /// Packets that may be under way.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Times that packets were lost so far.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Packets after which an acknowledgement is asked for.
    pub(super) fn ack_every(&self) -> u32 {
        (self.size / 4).clamp(ACK_EVERY.0, ACK_EVERY.1)
    }

    /// Packets of the pieces in which READs are asked for, so that responses never flood this host.
    pub(super) fn read_chunk(&self) -> u32 {
        (self.size / 2).clamp(READ_CHUNK.0, READ_CHUNK.1)
    }

    /// Lets it grow to so many packets at most, 1 to [`LARGEST_WINDOW`].
    pub(super) fn limit(&mut self, packets: u32) {
        self.most = packets.clamp(1, LARGEST_WINDOW);
        self.size = self.size.min(self.most);
    }

    /// The network is congested on the way to the peer: half as much at a time, once in a round trip.
    pub(super) fn congested(&mut self, now: u64, round_trip: u64) {
        if now.saturating_sub(self.slowed) >= round_trip {
            self.slowed = now;
            self.size = (self.size / 2).max(1);
            self.calm = self.size;
        }
    }

    /// One packet is sent again, to learn what else is missing.
    pub(super) fn probe(&mut self) {
        self.held.get_or_insert(self.size);
        self.size = 1;
    }

    /// A packet was lost: what was under way was too much.
    pub(super) fn narrow(&mut self) {
        self.losses += 1;
        let size = self.held.take().unwrap_or(self.size);
        self.wary = (size - size / 4).max(SMALL);
        self.calm = (size / 2).max(SMALL);
        self.size = self.calm.min(self.most);
    }

    /// Of the `under_way` packets, so many were acknowledged. `late`: by an answer that is none to a probe. True: a timer had run
    /// out, and they had arrived all the same; only the answer was late.
    pub(super) fn widen(&mut self, acknowledged: u32, under_way: u32, late: bool) -> bool {
        // More than the one packet that was sent again.
        let had_arrived = late || acknowledged > 1 || acknowledged == under_way;
        let probed = self.held.is_some();
        match self.held {
            Some(size) if had_arrived => (self.size, self.held) = (size, None),
            Some(_) => self.narrow(),
            None => {}
        }
        if self.size < self.calm {
            self.size += acknowledged;
        } else if 2 * under_way > self.size {
            // What is not used need not be more.
            let eager = self.size < self.wary;
            self.growth += acknowledged * if eager { WARY / EAGER } else { 1 };
            self.size += self.growth / WARY;
            self.growth %= WARY;
            if eager {
                self.size = self.size.min(self.wary);
            }
        }
        self.size = self.size.min(self.most);
        probed && had_arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window that is used in full until `n` packets are acknowledged.
    fn used(w: &mut Window, n: u32) {
        let mut done = 0;
        while done < n {
            let all = w.size();
            w.widen(all, all, false);
            done += all;
        }
    }

    #[test]
    fn success_widens_it_up_to_what_the_way_is_said_to_take() {
        let mut w = Window::new();
        used(&mut w, 10_000);
        assert_eq!(w.size(), WINDOW, "nobody has said that the way takes more");
        w.limit(300);
        used(&mut w, 10_000);
        assert_eq!(w.size(), 300);
        w.limit(u32::MAX);
        used(&mut w, 100_000);
        assert_eq!(w.size(), LARGEST_WINDOW);
    }

    #[test]
    fn what_is_not_used_does_not_grow() {
        let mut w = Window::new();
        w.limit(300);
        (0..10_000).for_each(|_| _ = w.widen(1, 1, false));
        assert_eq!(w.size(), WINDOW);
    }

    #[test]
    fn where_packets_were_lost_it_comes_back_to_only_slowly() {
        let mut w = Window::new();
        w.limit(400);
        used(&mut w, 10_000);
        w.narrow();
        assert_eq!((w.size(), w.losses()), (200, 1));
        used(&mut w, 1_000);
        assert_eq!(w.size(), 300);
        used(&mut w, 20_000);
        assert!((330..345).contains(&w.size()), "{}", w.size());
    }

    #[test]
    fn a_probe_that_finds_nothing_lost_changes_nothing() {
        let mut w = Window::new();
        w.probe();
        w.probe();
        assert_eq!(w.size(), 1);
        assert!(w.widen(40, 64, false));
        assert_eq!((w.size(), w.losses()), (WINDOW, 0));
        w.probe();
        assert!(w.widen(1, 64, true));
        assert_eq!((w.size(), w.losses()), (WINDOW, 0));
        w.probe();
        assert!(!w.widen(1, 64, false));
        assert_eq!((w.size(), w.losses()), (WINDOW / 2, 1));
    }
}
