//! Faults of the memory paths: a message is what travels, and counts as one packet.
use super::chance::Chance;
use std::collections::VecDeque;

/// How soon a lost message goes again on a reliable queue pair, nanoseconds: as the wire's probes do.
const RESEND: u64 = 1_000_000;

/// The faults of a send half.
#[derive(Debug)]
pub struct Sending {
    /// What becomes of what it sends.
    pub chance: Chance,
    kill_after: Option<u64>,
    /// The request that is not carried out any more.
    kill_at: Option<u64>,
    /// Requests before this one have had their throw.
    thrown: u64,
    /// When the local ACK timeout of the request whose turn it is runs out; set while it is lost again and again.
    timeout: Option<u64>,
    /// When requests were posted: up to before which one, and the time.
    posted: VecDeque<(u64, u64)>,
    /// The time before which nothing happens, by the last turn; 0 for none.
    waits: u64,
}

/// What becomes of the request whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is carried out.
    Goes,
    /// Its message arrives twice.
    Twice,
    /// Its message does not arrive, and nobody asks for it again.
    Lost,
    /// Nothing happens before this time (nanoseconds). `lost`: the message has not arrived and goes again; `timeout`: the
    /// responder was silent for a local ACK timeout.
    Waits { until: u64, timeout: bool, lost: bool },
    /// It ends the queue pair.
    Kills,
}

impl Sending {
    /// From now on, where `head` is the next request to be posted; `kill_after`: so many requests more.
    pub fn new(chance: Chance, kill_after: Option<u64>, head: u64) -> Self {
        let kill_at = kill_after.map(|n| head.saturating_add(n));
        // What is posted already may be half sent.
        Self { chance, kill_after, kill_at, thrown: head, timeout: None, posted: VecDeque::new(), waits: 0 }
    }

    /// Request `at` is not carried out any more, and takes the queue pair with it.
    pub fn kills(&self, at: u64) -> bool {
        self.kill_at.is_some_and(|kill_at| at >= kill_at)
    }

    /// All requests before `head` are posted.
    pub fn note_posted(&mut self, head: u64, now: u64) {
        if self.chance.delay() > 0 && self.posted.back().is_none_or(|(before, _)| *before < head) {
            self.posted.push_back((head, now));
        }
    }

    /// A wait until `until` is of these faults.
    pub fn is_waiting(&self, until: u64) -> bool {
        self.waits != 0 && self.waits == until
    }

    /// What becomes of request `at`, whose turn it is. `ack_timeout` is the local ACK timeout of a reliable queue pair, 0
    /// for ever, and `None` for an unreliable one.
    pub fn turn(&mut self, at: u64, now: u64, ack_timeout: Option<u64>) -> Turn {
        let turn = self.decide(at, now, ack_timeout);
        self.waits = if let Turn::Waits { until, .. } = turn { until } else { 0 };
        turn
    }

    fn decide(&mut self, at: u64, now: u64, ack_timeout: Option<u64>) -> Turn {
        if self.kills(at) {
            return Turn::Kills;
        }
        if at < self.thrown {
            return Turn::Goes;
        }
        let due = self.due(at);
        if now < due {
            return Turn::Waits { until: due, timeout: false, lost: false };
        }
        let fate = self.chance.next_fate();
        let tally = &self.chance.tally;
        if fate.lost || fate.damage.is_some() {
            tally.add(|c| if fate.lost { &c.lost } else { &c.corrupted });
            let Some(ack_timeout) = ack_timeout else {
                self.thrown = at + 1;
                return Turn::Lost;
            };
            return self.again(now, ack_timeout);
        }
        (self.thrown, self.timeout) = (at + 1, None);
        if self.chance.delay() > 0 {
            tally.add(|c| &c.delayed);
        }
        // A reliable responder throws the second one away.
        if fate.twice && ack_timeout.is_none() {
            tally.add(|c| &c.duplicated);
            return Turn::Twice;
        }
        Turn::Goes
    }

    /// The queue pair goes to RESET: requests are counted anew.
    pub fn restart(&mut self) {
        (self.kill_at, self.thrown, self.timeout) = (self.kill_after, 0, None);
        self.posted.clear();
    }

    /// The message was lost, and is sent again.
    fn again(&mut self, now: u64, ack_timeout: u64) -> Turn {
        let end = |now: u64| if ack_timeout == 0 { u64::MAX } else { now.saturating_add(ack_timeout) };
        let timeout = self.timeout.is_some_and(|at| at <= now);
        if timeout || self.timeout.is_none() {
            self.timeout = Some(end(now));
        }
        let until = self.timeout.unwrap_or(u64::MAX).min(now + RESEND);
        Turn::Waits { until, timeout, lost: true }
    }

    /// When request `at` may go.
    fn due(&mut self, at: u64) -> u64 {
        while self.posted.front().is_some_and(|(before, _)| *before <= at) {
            self.posted.pop_front();
        }
        self.posted.front().map_or(0, |(_, posted)| posted + self.chance.delay())
    }
}

#[cfg(test)]
mod tests {
    use super::super::chance::Tally;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    const MS: u64 = 1_000_000;

    fn sending(spec: &str, head: u64) -> Sending {
        let spec: super::super::Spec = spec.parse().unwrap();
        let tally = Tally(std::array::from_fn(|_| Arc::default()));
        Sending::new(Chance::new(&spec, 0, 0, tally), spec.kill_qp_after, head)
    }

    fn lost(s: &Sending) -> u64 {
        s.chance.tally.0[0].lost.load(Ordering::Relaxed)
    }

    #[test]
    fn a_delay_is_counted_from_the_post_and_does_not_add_up() {
        let mut s = sending("delay=5ms", 0);
        s.note_posted(2, 10 * MS);
        s.note_posted(3, 12 * MS);
        assert_eq!(s.turn(0, 11 * MS, Some(0)), Turn::Waits { until: 15 * MS, timeout: false, lost: false });
        assert!(s.is_waiting(15 * MS) && !s.is_waiting(16 * MS));
        assert_eq!([0, 1].map(|at| s.turn(at, 15 * MS, Some(0))), [Turn::Goes; 2]);
        assert!(!s.is_waiting(15 * MS) && !s.is_waiting(0));
        assert_eq!(s.turn(2, 15 * MS, None), Turn::Waits { until: 17 * MS, timeout: false, lost: false });
        assert_eq!(s.turn(2, 18 * MS, None), Turn::Goes);
        assert!(s.posted.len() <= 1);
    }

    #[test]
    fn a_lost_message_goes_again_until_timeouts_are_spent() {
        let mut s = sending("loss=100%", 0);
        let (mut now, mut timeouts) = (0, Vec::new());
        for _ in 0..21 {
            let Turn::Waits { until, timeout, .. } = s.turn(0, now, Some(5 * MS)) else { panic!("it goes") };
            assert!(until > now && until <= now + RESEND);
            if timeout {
                timeouts.push(now);
            }
            now = until;
        }
        assert_eq!(timeouts, [5 * MS, 10 * MS, 15 * MS, 20 * MS]);
        assert_eq!(lost(&s), 21);
        let mut s = sending("loss=100%", 0);
        let waits = (0..1000).map(|i| s.turn(0, i * MS, Some(0)));
        assert!(waits.into_iter().all(|t| matches!(t, Turn::Waits { timeout: false, .. })), "0 is for ever");
    }

    #[test]
    fn a_message_has_one_throw_unless_it_was_lost() {
        let mut s = sending("loss=50%,seed=2", 0);
        let mut went = 0;
        for at in 0..500 {
            while s.turn(at, u64::MAX / 2, Some(0)) != Turn::Goes {}
            let before = lost(&s);
            assert!((0..10).all(|_| s.turn(at, u64::MAX / 2, Some(0)) == Turn::Goes));
            assert_eq!(lost(&s), before, "what waits for room in a ring is not lost meanwhile");
            went += 1;
        }
        assert!((400..600).contains(&lost(&s)) && went == 500, "{}", lost(&s));
    }

    #[test]
    fn unreliable_messages_are_lost_or_come_twice() {
        let mut s = sending("loss=20%,dup=20%,corrupt=20%,seed=4", 0);
        let turns: Vec<Turn> = (0..5000).map(|at| s.turn(at, 0, None)).collect();
        let count = |turn| turns.iter().filter(|t| **t == turn).count();
        assert!((1500..2100).contains(&count(Turn::Lost)), "{}", count(Turn::Lost));
        assert!((500..800).contains(&count(Turn::Twice)), "{}", count(Turn::Twice));
        let tally = &s.chance.tally.0[1];
        let [lost, corrupted] = [&tally.lost, &tally.corrupted].map(|c| c.load(Ordering::Relaxed) as usize);
        assert!(lost > 800 && corrupted > 600 && lost + corrupted == count(Turn::Lost));
    }

    #[test]
    fn the_queue_pair_ends_after_so_many_requests_of_each_life() {
        let mut s = sending("kill_qp_after=3", 10);
        assert_eq!([10, 12].map(|at| s.turn(at, 0, Some(0))), [Turn::Goes; 2]);
        assert_eq!((s.turn(13, 0, Some(0)), s.kills(12), s.kills(13)), (Turn::Kills, false, true));
        s.restart();
        assert_eq!((s.turn(2, 0, Some(0)), s.turn(3, 0, Some(0))), (Turn::Goes, Turn::Kills));
        assert_eq!(sending("kill_qp_after=0", 0).turn(0, 0, None), Turn::Kills);
    }
}
