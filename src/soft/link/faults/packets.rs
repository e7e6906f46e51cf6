//! Faults of the wire: each packet by itself, sealed, on its way to the socket; and the packets that leave later.
use super::chance::Chance;
use crate::soft::link::udp::Path;
use crate::soft::transport::Outbox;
use crate::soft::wire::{IpUdp, icrc};
use crate::sys::lock::Lock;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How much later than its time a packet leaves that is to arrive behind those after it, nanoseconds.
const LATE: u64 = 100_000;
/// Packets that are held back at most; what is more than a network's queues hold is lost.
const MOST: usize = 8192;
/// Bytes of a datagram up to the QPN; a packet for another queue pair would be nobody's damage.
const UNTOUCHED: usize = 8;

/// Strikes the sealed packets of `out`: there remain those that leave now. `hold` gets the others, in order, with the
/// time (nanoseconds) when they leave; false where there is no room for them.
pub fn strike(
    ip: &IpUdp,
    out: &mut Outbox,
    chance: &mut Chance,
    now: u64,
    mut hold: impl FnMut(u64, &[u8]) -> bool,
) {
    let mut leaving = Outbox::new();
    let tally = chance.tally.clone();
    for i in 0..out.len() {
        let (fate, datagram) = (chance.next_fate(), out.get_mut(i));
        if fate.lost {
            tally.add(|c| &c.lost);
            continue;
        }
        if let Some(place) = fate.damage {
            tally.add(|c| &c.corrupted);
            damage(ip, datagram, place);
        }
        if fate.late {
            tally.add(|c| &c.reordered);
        }
        if fate.twice {
            tally.add(|c| &c.duplicated);
        }
        if chance.delay() > 0 {
            tally.add(|c| &c.delayed);
        }
        let wait = chance.delay() + if fate.late { LATE } else { 0 };
        for _ in 0..1 + u32::from(fate.twice) {
            if wait == 0 {
                leaving.push_bytes(datagram);
            } else if !hold(now + wait, datagram) {
                tally.add(|c| &c.lost);
            }
        }
    }
    leaving.set_sealed();
    *out = leaving;
}

/// Turns a bit over that the ICRC guards; of the few that it cannot tell from another IPv4 id, the next.
fn damage(ip: &IpUdp, datagram: &mut [u8], place: u64) {
    let bits = (datagram.len().saturating_sub(UNTOUCHED) * 8) as u64;
    for i in 0..bits {
        let bit = ((place % bits + i) % bits) as usize;
        let byte = &mut datagram[UNTOUCHED + bit / 8];
        *byte ^= 1 << (bit % 8);
        if icrc::check(ip, datagram) == icrc::Verdict::Bad {
            return;
        }
        datagram[UNTOUCHED + bit / 8] ^= 1 << (bit % 8);
    }
}

/// Packets that leave later.
#[derive(Debug, Default)]
pub struct Held(Lock<Queue>);

#[derive(Debug, Default)]
struct Queue {
    heap: BinaryHeap<Reverse<(u64, u64, Waiting)>>,
    /// Packets ever put here: those of one time leave in order.
    serial: u64,
}

#[derive(Debug)]
struct Waiting(Path, Vec<u8>);

impl Held {
    /// Keeps a sealed packet until `due`; false where too many wait.
    pub fn put(&self, due: u64, path: &Path, datagram: &[u8]) -> bool {
        let mut queue = self.0.lock();
        if queue.heap.len() >= MOST {
            return false;
        }
        queue.serial += 1;
        let serial = queue.serial;
        queue.heap.push(Reverse((due, serial, Waiting(*path, datagram.to_vec()))));
        true
    }

    /// When the next one leaves.
    pub fn first(&self) -> Option<u64> {
        self.0.lock().heap.peek().map(|Reverse((due, ..))| *due)
    }

    /// The next packet whose time is `now` or before.
    pub fn next(&self, now: u64) -> Option<(Path, Vec<u8>)> {
        let mut queue = self.0.lock();
        if queue.heap.peek().is_none_or(|Reverse((due, ..))| *due > now) {
            return None;
        }
        queue.heap.pop().map(|Reverse((_, _, Waiting(path, datagram)))| (path, datagram))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    /// Time and number say all about the order.
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

#[cfg(test)]
mod tests {
    use super::super::chance::{Counts, Tally};
    use super::*;
    use crate::soft::types::{Psn, Qpn};
    use crate::soft::wire::{Bth, Opcode, Operation, Packet, Transport};
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn ip() -> IpUdp {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        Path::new(ip("10.0.0.1"), ip("10.0.0.2")).ip_udp()
    }

    /// A datagram, and when it leaves.
    type Later = (u64, Vec<u8>);

    /// A thousand sealed packets by PSN, struck in bursts: what leaves now, what is held, and the counts.
    fn struck(spec: &str) -> (Vec<Vec<u8>>, Vec<Later>, Arc<Counts>) {
        let counts = Arc::<Counts>::default();
        let tally = Tally([Arc::default(), counts.clone()]);
        let mut chance = Chance::new(&spec.parse().unwrap(), 0, 0, tally);
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for burst in 0..100 {
            let mut out = Outbox::new();
            for i in 0..10 {
                let opcode = Opcode::new(Transport::Rc, Operation::SendOnly);
                let packet = Packet::new(Bth::new(opcode, Qpn(0x1234), Psn::new(burst * 10 + i)));
                out.push(&packet, 100).fill(i as u8);
                icrc::seal(&ip(), out.get_mut(i as usize));
            }
            out.set_sealed();
            strike(&ip(), &mut out, &mut chance, u64::from(burst), |due, bytes| {
                later.push((due, bytes.to_vec()));
                true
            });
            assert!(out.is_sealed());
            now.extend(out.iter().map(<[u8]>::to_vec));
        }
        (now, later, counts)
    }

    fn psn(datagram: &[u8]) -> u32 {
        Packet::parse(datagram).unwrap().0.bth.psn.get()
    }

    fn count(n: &AtomicU64) -> usize {
        n.load(Ordering::Relaxed) as usize
    }

    #[test]
    fn lost_packets_are_missing_and_repeated_ones_come_twice() {
        let (now, later, counts) = struck("loss=10%,dup=5%");
        assert!(later.is_empty() && (60..140).contains(&count(&counts.lost)));
        assert!(count(&counts.duplicated) > 20);
        assert_eq!(now.len(), 1000 - count(&counts.lost) + count(&counts.duplicated));
        assert!(now.windows(2).all(|w| psn(&w[0]) <= psn(&w[1])));
        assert!(now.iter().all(|d| icrc::check(&ip(), d) == icrc::Verdict::Exact));
        assert_eq!(now, struck("loss=10%,dup=5%").0, "chance is the seed's");
        assert_ne!(now, struck("loss=10%,dup=5%,seed=2").0);
    }

    #[test]
    fn damage_is_seen_by_the_icrc_and_reaches_its_queue_pair() {
        let (now, _, counts) = struck("corrupt=100%");
        assert_eq!((now.len(), count(&counts.corrupted)), (1000, 1000));
        for datagram in &now {
            assert_eq!(icrc::check(&ip(), datagram), icrc::Verdict::Bad);
            assert_eq!(datagram[..UNTOUCHED], now[0][..UNTOUCHED]);
        }
    }

    #[test]
    fn late_packets_leave_behind_others_and_all_wait_for_the_delay() {
        let (now, later, counts) = struck("reorder=20%");
        assert_eq!(now.len() + later.len(), 1000);
        assert_eq!(later.len(), count(&counts.reordered));
        assert!(later.iter().all(|(due, _)| *due >= LATE) && later.len() > 100);
        let (now, later, counts) = struck("delay=1ms,reorder=20%");
        assert!(now.is_empty() && later.len() == 1000 && count(&counts.delayed) == 1000);
        let held = Held::default();
        let any: IpAddr = "10.0.0.1".parse().unwrap();
        for (due, datagram) in &later {
            assert!(held.put(*due, &Path::new(any, any), datagram));
        }
        assert!(held.next(999_999).is_none());
        let order: Vec<u32> =
            std::iter::from_fn(|| held.next(u64::MAX)).map(|(_, datagram)| psn(&datagram)).collect();
        assert_eq!(order.len(), 1000);
        assert!(order.windows(2).any(|w| w[0] > w[1]));
        let punctual =
            order.iter().filter(|n| later.iter().any(|(due, d)| psn(d) == **n && *due < 1_100_000));
        assert!(punctual.is_sorted(), "those in time keep their order");
    }

    #[test]
    fn what_waits_is_bounded() {
        let held = Held::default();
        let any: IpAddr = "10.0.0.1".parse().unwrap();
        let kept = (0..MOST + 10).filter(|_| held.put(1, &Path::new(any, any), &[0])).count();
        assert_eq!(kept, MOST);
    }
}
