//! The ring against a model, between two threads, and against a peer that writes garbage.
use super::*;
use crate::soft::link::shm::Corrupt;
use crate::sys::random;
use std::collections::VecDeque;
use std::os::fd::AsFd;

/// xorshift64*: enough to vary lengths, repeatable from the printed seed.
struct Rng(u64);

impl Rng {
    fn seeded() -> Self {
        let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(random::u64) | 1;
        println!("SEED={seed}");
        Self(seed)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

fn ends(bytes: usize) -> (Producer, Consumer, Arc<Ring>) {
    let (ring, fd) = Ring::create(bytes).unwrap();
    let mut consumer = Consumer::detached();
    let other = Ring::attach(fd.as_fd(), bytes).unwrap();
    consumer.attach(other.clone());
    (Producer::new(ring), consumer, other)
}

fn message(n: u64) -> (Header, Vec<u8>) {
    let mut rng = Rng(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (addr, rkey, aux) = (rng.next(), rng.next() as u32, rng.next() as u32);
    let ext = match rng.below(3) {
        0 => Ext::None,
        1 => Ext::Rdma { addr, rkey, aux },
        _ => Ext::Atomic { addr, rkey, aux, swap_add: rng.next(), compare: rng.next() },
    };
    let header = Header {
        kind: rng.below(255) as u8,
        flags: rng.next() as u8 & USER_FLAGS,
        spare: rng.next() as u16,
        dst_qpn: rng.next() as u32,
        src_qpn: rng.next() as u32,
        seq: n as u32,
        total: rng.next() as u32,
        imm: rng.next() as u32,
        ext,
    };
    let len = match rng.below(4) {
        0 => 0,
        1 => rng.below(100),
        2 => rng.below(MAX_PAYLOAD as u64 + 1),
        _ => 8,
    };
    // The first bytes and the last are enough to tell one payload from another.
    (header, (0..len).map(|i| (n.wrapping_add(i * 7)) as u8).collect())
}

fn send(p: &mut Producer, n: u64) -> bool {
    let (header, bytes) = message(n);
    if header.ext == Ext::None
        && bytes.len() <= LINE_PAYLOAD
        && n.is_multiple_of(2)
        && let Some(line) = p.try_line()
    {
        // SAFETY: a line has room for that many bytes.
        unsafe { line.payload().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        line.commit(&header, bytes.len());
        return true;
    }
    let Some(slot) = p.try_reserve(&header.ext, bytes.len()) else { return false };
    // SAFETY: the slot has room for `bytes.len()` bytes.
    unsafe { slot.payload().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    slot.commit(&header, bytes.len());
    true
}

/// The next entry, by the short look where that is enough, as readers do.
fn look(c: &mut Consumer) -> Result<Option<Entry>, Corrupt> {
    match c.peek_plain() {
        Peeked::Nothing => Ok(None),
        Peeked::Plain(plain) => Ok(Some(plain.entry())),
        Peeked::Other => c.peek(),
    }
}

fn receive(c: &mut Consumer) -> Option<(Header, Vec<u8>)> {
    let entry = look(c).unwrap()?;
    let long = c.peek().unwrap()?;
    assert_eq!((entry.header, entry.payload, entry.len), (long.header, long.payload, long.len));
    let mut bytes = vec![0; entry.len];
    // SAFETY: the payload is valid for `len` bytes until the release below.
    unsafe { entry.payload.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), entry.len) };
    c.release();
    Some((entry.header, bytes))
}

#[derive(Debug)]
enum Operation {
    Send,
    Abandon(usize),
    Receive,
    LookTwice,
}

#[test]
fn any_order_of_operations_agrees_with_a_queue() {
    let mut rng = Rng::seeded();
    for _ in 0..20 {
        let (mut p, mut c, _) = ends(64 * 1024);
        // Near the wrap-around of the stamps.
        (p.stamp, c.stamp) = (u32::MAX - 50, u32::MAX - 50);
        let mut model = VecDeque::new();
        let mut sent = 0;
        let bias = rng.below(8) + 1;
        for _ in 0..2000 {
            let operation = match rng.below(10) {
                n if n < bias => Operation::Send,
                8 => Operation::Abandon(rng.below(MAX_PAYLOAD as u64) as usize),
                9 => Operation::LookTwice,
                _ => Operation::Receive,
            };
            match operation {
                Operation::Send => {
                    if send(&mut p, sent) {
                        model.push_back(message(sent));
                        sent += 1;
                    } else {
                        assert!(!model.is_empty(), "an empty ring takes every entry");
                    }
                }
                Operation::Abandon(len) => drop(p.try_reserve(&Ext::None, len)),
                Operation::LookTwice => {
                    let seen = |c: &mut Consumer| c.peek().unwrap().map(|e| (e.header, e.payload, e.len));
                    assert_eq!(seen(&mut c), seen(&mut c));
                }
                Operation::Receive => assert_eq!(receive(&mut c), model.pop_front()),
            }
            assert!(!p.is_corrupt());
            if !model.is_empty() {
                // SAFETY: the consumer's ring is alive.
                assert!(c.peek().unwrap().is_some() && unsafe { c.watch().ready() });
            }
        }
        while let Some(expected) = model.pop_front() {
            assert_eq!(receive(&mut c), Some(expected));
        }
        assert!(c.peek().unwrap().is_none() && c.peek().unwrap().is_none());
        assert!(!p.has_unconsumed());
    }
}

#[test]
fn two_threads_pass_everything_in_order() {
    const COUNT: u64 = 30_000;
    let (mut p, mut c, _) = ends(64 * 1024);
    let sender = std::thread::spawn(move || {
        for n in 0..COUNT {
            while !send(&mut p, n) {
                assert!(!p.is_corrupt());
                std::thread::yield_now();
            }
        }
    });
    let mut n = 0;
    while n < COUNT {
        match receive(&mut c) {
            Some(got) => {
                assert_eq!(got, message(n));
                n += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    sender.join().unwrap();
}

#[test]
fn little_traffic_stays_in_the_first_quarter() {
    let (mut p, mut c, _) = ends(RING_BYTES);
    let quarter = p.ring.lines / 4;
    for _ in 0..3 * quarter {
        p.try_reserve(&Ext::None, 8).unwrap().commit(&Header::default(), 8);
        assert!(receive(&mut c).is_some() && receive(&mut c).is_none() && receive(&mut c).is_none());
        assert!(p.pos <= quarter);
    }
}

#[test]
fn who_is_woken_for_too_little_room_is_woken_for_more() {
    let (mut p, mut c, _) = ends(64 * 1024);
    let n = 4096;
    while let Some(slot) = p.try_reserve(&Ext::None, n) {
        slot.commit(&Header::default(), n);
    }
    let (lines, all) = (2 * lines_of(0, n), p.ring.lines - 1);
    assert!(receive(&mut c).is_some());
    c.publish();
    assert!(c.take_starved());
    assert!(!p.has_room_or_asks(lines) && p.has_room_or_asks(1));
    let mut woken = 0;
    while receive(&mut c).is_some() {
        woken += usize::from(c.take_starved());
    }
    c.publish();
    assert!(woken == 1 && !c.take_starved() && p.has_room_or_asks(all) && !p.has_unconsumed());
}

#[test]
fn a_full_ring_asks_to_be_woken_and_the_consumer_knows() {
    let (mut p, mut c, _) = ends(64 * 1024);
    while let Some(slot) = p.try_reserve(&Ext::None, MAX_PAYLOAD) {
        slot.commit(&Header::default(), MAX_PAYLOAD);
    }
    assert!(p.has_unconsumed() && !c.take_starved());
    while receive(&mut c).is_some() {}
    assert!(c.take_starved() && !c.take_starved());
    assert!(p.try_reserve(&Ext::None, MAX_PAYLOAD).is_some());
}

#[test]
fn doorbells_are_rung_once_until_heard() {
    let (p, _, other) = ends(64 * 1024);
    assert!(p.ring.start_ringing() && !p.ring.start_ringing());
    other.stop_ringing();
    assert!(p.ring.start_ringing());
}

#[test]
fn garbage_never_leads_outside_the_ring() {
    let mut rng = Rng::seeded();
    let (mut corrupt, mut taken) = (0, 0);
    for _ in 0..20_000 {
        let (p, mut c, ring) = ends(64 * 1024);
        c.pos = rng.below(u64::from(ring.lines)) as u32;
        for index in 0..8 {
            let mut word = rng.next();
            match (index, rng.below(4)) {
                // Mostly the right stamp and kind, and lengths at the edges: the rest is looked at only then.
                (0, 1..) => word = word & !0xff_ffff_ffff | 1 | rng.below(2) << 32,
                (1, 0) => word = rng.below(MAX_PAYLOAD as u64 + 2),
                (1, 1) => word = rng.below(200),
                _ => {}
            }
            p.ring.word(c.pos, index).store(word, Ordering::Relaxed);
        }
        match look(&mut c) {
            Err(Corrupt) => corrupt += 1,
            Ok(None) => {}
            Ok(Some(entry)) => {
                taken += 1;
                let base = ring.map.base() as usize;
                let first = entry.payload.as_ptr() as usize;
                assert!(first >= base + DATA && first + entry.len <= base + ring.map.len());
            }
        }
        c.release();
        assert!(c.pos < ring.lines);
    }
    assert!(corrupt > 100 && taken > 100, "{corrupt} corrupt, {taken} taken");
}

#[test]
fn a_producer_that_rewrites_entries_under_our_eyes_gets_nowhere() {
    let mut rng = Rng::seeded();
    let (p, mut c, ring) = ends(64 * 1024);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, mut rng, p) = (&stop, Rng(rng.next() | 1), &p);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for line in 0..8 {
                    let first = first_word(line + 1, rng.below(3) as u8, rng.next() as u8, 0);
                    p.ring.word(line, 0).store(first, Ordering::Relaxed);
                    p.ring.word(line, 1).store(rng.next() >> rng.below(60), Ordering::Relaxed);
                }
            }
        });
        let base = ring.map.base() as usize;
        for _ in 0..100_000 {
            if let Ok(Some(entry)) = look(&mut c) {
                let first = entry.payload.as_ptr() as usize;
                assert!(
                    entry.len <= MAX_PAYLOAD
                        && first >= base + DATA
                        && first + entry.len <= base + ring.map.len()
                );
                c.release();
            }
            if c.pos >= 8 {
                (c.pos, c.stamp) = (0, 1);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_consumer_that_counts_wrongly_is_found_out() {
    for nonsense in [2, u64::MAX, 1 << 40] {
        let (mut p, _, other) = ends(64 * 1024);
        p.try_reserve(&Ext::None, 0).unwrap().commit(&Header::default(), 0);
        other.consumed().store(nonsense, Ordering::Relaxed);
        p.has_unconsumed();
        assert!(p.is_corrupt() && p.try_reserve(&Ext::None, 0).is_none());
    }
}

#[test]
fn a_ring_of_the_wrong_size_or_unsealed_is_refused() {
    let (_, fd) = Ring::create(RING_BYTES).unwrap();
    assert_eq!(Ring::attach(fd.as_fd(), RING_BYTES * 2).unwrap_err(), Errno::EPROTO);
    assert_eq!(Ring::attach(fd.as_fd(), 1000).unwrap_err(), Errno::EPROTO);
    let open = memfd::create(c"test", DATA + RING_BYTES).unwrap();
    assert_eq!(Ring::attach(open.as_fd(), RING_BYTES).unwrap_err(), Errno::EPROTO);
}
