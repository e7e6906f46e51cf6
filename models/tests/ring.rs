//! A ring between a producer and a consumer, its doorbells, and a producer that finds it full.
use anyverbs_models::soft::link::shm::ring::{Consumer, Ext, Header, Peeked, Producer, Ring};
use loom::sync::Notify;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use std::sync::Arc;

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(test);
}

fn header(n: u32) -> Header {
    let ext =
        if n.is_multiple_of(2) { Ext::None } else { Ext::Rdma { addr: n.into(), rkey: n + 1, aux: n + 2 } };
    Header {
        kind: 1,
        flags: 2,
        spare: 3,
        dst_qpn: n + 3,
        src_qpn: n + 4,
        seq: n,
        total: n + 5,
        imm: n + 6,
        ext,
    }
}

fn send(producer: &mut Producer, n: u32) -> bool {
    let header = header(n);
    let Some(slot) = producer.try_reserve(&header.ext, 0) else { return false };
    slot.commit(&header, 0);
    true
}

/// As `send`, by the short way where that is open.
fn send_line(producer: &mut Producer, n: u32) -> bool {
    let header = Header { ext: Ext::None, ..header(n) };
    if let Some(line) = producer.try_line() {
        line.commit(&header, 0);
        return true;
    }
    let Some(slot) = producer.try_reserve(&header.ext, 0) else { return false };
    slot.commit(&header, 0);
    true
}

/// As the library's: entries of one line by the short look, others by the long one.
fn take(consumer: &mut Consumer) -> Option<Header> {
    let header = match consumer.peek_plain() {
        Peeked::Nothing => return None,
        Peeked::Plain(plain) => plain.entry().header,
        Peeked::Other => consumer.peek().expect("nothing is corrupt")?.header,
    };
    consumer.release();
    Some(header)
}

fn ends(lines: u32) -> (Producer, Consumer, Arc<Ring>) {
    let ring = Ring::of(lines);
    let mut consumer = Consumer::detached();
    consumer.attach(ring.clone());
    (Producer::new(ring.clone()), consumer, ring)
}

/// Three lines hold two entries: the ring fills, wraps and is begun again.
#[test]
fn entries_arrive_whole_and_in_order() {
    const COUNT: u32 = 4;
    model(2, || {
        let (mut producer, mut consumer, _) = ends(4);
        let sender = thread::spawn(move || {
            for n in 0..COUNT {
                while !send(&mut producer, n) {
                    assert!(!producer.is_corrupt());
                    thread::yield_now();
                }
            }
        });
        let mut n = 0;
        while n < COUNT {
            match take(&mut consumer) {
                Some(got) => {
                    assert_eq!(got, header(n));
                    n += 1;
                }
                None => thread::yield_now(),
            }
        }
        sender.join().unwrap();
        assert!(take(&mut consumer).is_none());
    });
}

/// Of entries of one line those behind the first go the short way, until the ring ends or is full.
#[test]
fn entries_of_one_line_arrive_whole_and_in_order() {
    const COUNT: u32 = 4;
    model(2, || {
        let (mut producer, mut consumer, _) = ends(16);
        assert!(send_line(&mut producer, 0) && producer.try_line().is_some());
        let sender = thread::spawn(move || {
            for n in 1..COUNT {
                assert!(send_line(&mut producer, n));
            }
        });
        let mut n = 0;
        while n < COUNT {
            match take(&mut consumer) {
                Some(got) => {
                    assert_eq!(got, Header { ext: Ext::None, ..header(n) });
                    n += 1;
                }
                None => thread::yield_now(),
            }
        }
        sender.join().unwrap();
        assert!(take(&mut consumer).is_none());
    });
}

/// A producer that sleeps because the ring is full is woken by the consumer, which keeps polling.
#[test]
fn a_starved_producer_is_woken() {
    const COUNT: u32 = 5;
    model(2, || {
        let (mut producer, mut consumer, _) = ends(4);
        let bell = Arc::new(Notify::new());
        let heard = bell.clone();
        let sender = thread::spawn(move || {
            for n in 0..COUNT {
                while !send(&mut producer, n) {
                    heard.wait();
                }
            }
        });
        let mut n = 0;
        while n < COUNT {
            match take(&mut consumer) {
                Some(_) => n += 1,
                None => thread::yield_now(),
            }
            if consumer.take_starved() {
                bell.notify();
            }
        }
        // The producer may have asked while the last entries were taken.
        sender.join().unwrap();
    });
}

/// As `Own::set_asleep` and `Peer::notify`: the consumer says that it sleeps and looks once more; the producer commits and then
/// looks whether it sleeps. One of the two sees the other.
#[test]
fn a_sleeping_consumer_is_woken() {
    const COUNT: u32 = 2;
    model(3, || {
        let (mut producer, mut consumer, ring) = ends(8);
        let asleep = Arc::new(AtomicU32::new(0));
        let bell = Arc::new(Notify::new());
        let (sleeps, rings, other) = (asleep.clone(), bell.clone(), ring.clone());
        let sender = thread::spawn(move || {
            for n in 0..COUNT {
                assert!(send(&mut producer, n));
                fence(Ordering::SeqCst);
                if sleeps.load(Ordering::Relaxed) != 0 && other.start_ringing() {
                    rings.notify();
                }
            }
        });
        let mut n = 0;
        while n < COUNT {
            if take(&mut consumer).is_some() {
                n += 1;
                continue;
            }
            asleep.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if take(&mut consumer).is_some() {
                n += 1;
            } else {
                bell.wait();
                ring.stop_ringing();
            }
            asleep.store(0, Ordering::Relaxed);
        }
        sender.join().unwrap();
    });
}
