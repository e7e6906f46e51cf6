//! Chance from a seed: what becomes of the packets that one half of a queue pair sends, and what was done so far.
use super::spec::{Rate, Spec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was done so far; counts never go back.
#[derive(Debug, Default)]
pub struct Counts {
    #[allow(missing_docs)]
    pub lost: AtomicU64,
    #[allow(missing_docs)]
    pub duplicated: AtomicU64,
    #[allow(missing_docs)]
    pub reordered: AtomicU64,
    #[allow(missing_docs)]
    pub corrupted: AtomicU64,
    #[allow(missing_docs)]
    pub delayed: AtomicU64,
    /// RNR answers although a receive was posted.
    pub rnr: AtomicU64,
    /// Queue pairs that were made to fail.
    pub killed: AtomicU64,
}

/// Where one queue pair's faults are counted: its own counts, and those of its context.
#[derive(Clone, Debug)]
pub struct Tally(pub [Arc<Counts>; 2]);

impl Tally {
    /// Counts one more.
    pub fn add(&self, which: impl Fn(&Counts) -> &AtomicU64) {
        for counts in &self.0 {
            which(counts).fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What becomes of one packet. All that is true of it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// It never arrives.
    pub lost: bool,
    /// It arrives damaged; the number chooses where.
    pub damage: Option<u64>,
    /// It arrives twice.
    pub twice: bool,
    /// It arrives behind those after it.
    pub late: bool,
}

/// The throws for one half of a queue pair. They depend on the seed, on which half of which queue pair of the process it
/// is, and on how many packets it has sent before: not on time, nor on other queue pairs.
#[derive(Debug)]
pub struct Chance {
    spec: Spec,
    key: u64,
    /// Packets so far, and requests that came to be taken.
    packets: u64,
    takes: u64,
    /// Where it is counted.
    pub tally: Tally,
}

/// The kinds of throws for one packet.
#[derive(Clone, Copy)]
enum Throw {
    Loss,
    Dup,
    Reorder,
    Corrupt,
    Place,
    Rnr,
}

impl Chance {
    /// The throws of half `half` (0 sends requests, 1 answers) of the process's queue pair number `ordinal`.
    pub fn new(spec: &Spec, ordinal: u64, half: u64, tally: Tally) -> Self {
        let key = mix(mix(spec.seed).wrapping_add(ordinal << 1 | half));
        Self { spec: *spec, key, packets: 0, takes: 0, tally }
    }

    /// How much later everything arrives, nanoseconds.
    pub fn delay(&self) -> u64 {
        self.spec.delay
    }

    /// What becomes of the next packet.
    pub fn next_fate(&mut self) -> Fate {
        let n = self.packets;
        self.packets += 1;
        let hits = |rate: Rate, throw| !rate.is_never() && rate.hits(self.throw(n, throw));
        Fate {
            lost: hits(self.spec.loss, Throw::Loss),
            damage: hits(self.spec.corrupt, Throw::Corrupt).then(|| self.throw(n, Throw::Place)),
            twice: hits(self.spec.dup, Throw::Dup),
            late: hits(self.spec.reorder, Throw::Reorder),
        }
    }

    /// Whether the next request that takes a receive is refused with RNR.
    pub fn refuses(&mut self) -> bool {
        let n = self.takes;
        self.takes += 1;
        let hit = self.spec.rnr.hits(self.throw(n, Throw::Rnr));
        if hit {
            self.tally.add(|c| &c.rnr);
        }
        hit
    }

    fn throw(&self, n: u64, throw: Throw) -> u64 {
        mix(self.key.wrapping_add(n.wrapping_mul(8) + throw as u64))
    }
}

/// A bijection that scatters neighbours (the finalizer of splitmix64).
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(spec: &str, ordinal: u64, half: u64) -> Vec<Fate> {
        let tally = Tally(std::array::from_fn(|_| Arc::default()));
        let mut chance = Chance::new(&spec.parse().unwrap(), ordinal, half, tally);
        (0..20_000).map(|_| chance.next_fate()).collect()
    }

    fn share(fates: &[Fate], what: impl Fn(&Fate) -> bool) -> f64 {
        fates.iter().filter(|f| what(f)).count() as f64 / fates.len() as f64
    }

    #[test]
    fn throws_hit_as_often_as_asked() {
        let all = fates("loss=10%,dup=1%,reorder=50%,corrupt=5%,seed=3", 0, 0);
        for (got, asked) in [
            (share(&all, |f| f.lost), 0.1),
            (share(&all, |f| f.twice), 0.01),
            (share(&all, |f| f.late), 0.5),
            (share(&all, |f| f.damage.is_some()), 0.05),
            (share(&all, |f| f.lost && f.late), 0.05),
        ] {
            assert!((got - asked).abs() < 0.012, "{got} instead of {asked}");
        }
    }

    #[test]
    fn the_seed_alone_decides() {
        let spec = "loss=30%,dup=30%,seed=";
        let with = |seed: &str, ordinal, half| fates(&format!("{spec}{seed}"), ordinal, half);
        assert_eq!(with("5", 0, 0), with("5", 0, 0));
        for other in [with("6", 0, 0), with("5", 1, 0), with("5", 0, 1)] {
            let agree = with("5", 0, 0).iter().zip(&other).filter(|(a, b)| a.lost == b.lost).count();
            assert!((agree as f64 / 20_000.0 - 0.58).abs() < 0.02, "{agree}");
        }
    }

    #[test]
    fn one_kind_of_fault_does_not_change_another() {
        let lost = |spec: &str| fates(spec, 2, 1).iter().map(|f| f.lost).collect::<Vec<_>>();
        assert_eq!(lost("loss=5%,seed=9"), lost("loss=5%,dup=50%,reorder=10%,corrupt=1%,rnr=5%,seed=9"));
    }
}
