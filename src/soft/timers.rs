//! Deadlines of QPs: RNR waits, retries, retransmission.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::cq::Cq;
use super::link;
use super::link::wires::Wire;
use super::node::Node;
use super::qp::Qp;
use super::verbs::Opened;
use crate::sys::lock::Lock;
use crate::sys::timerfd::TimerFd;

/// The timers of a process. The earliest also arms a timerfd, for when nobody polls.
#[derive(Debug, Default)]
pub struct Timers {
    heap: Lock<BinaryHeap<Reverse<Entry>>>,
    /// The earliest deadline; u64::MAX when there is none.
    earliest: AtomicU64,
    /// Set once the progress thread watches it.
    fd: OnceLock<TimerFd>,
}

#[derive(Debug)]
struct Entry {
    when: u64,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Qp(Weak<Qp>),
    /// Its events were held back long enough.
    Cq(Weak<Cq>),
    /// Its process is gone.
    Wire(Weak<Wire>),
    /// Its QP's process is gone.
    Opened(Weak<Opened>),
    /// Packets that leave later than they were sent.
    Packets,
}

impl Timers {
    /// No timers.
    pub fn new() -> Self {
        Self { earliest: AtomicU64::new(u64::MAX), ..Self::default() }
    }

    /// The descriptor that becomes readable at the earliest deadline, made by the first call.
    pub fn fd(&self) -> Option<&TimerFd> {
        if self.fd.get().is_none()
            && let Ok(fd) = TimerFd::new()
        {
            // Another thread may have been first; its descriptor serves.
            let _ = self.fd.set(fd);
        }
        self.fd.get()
    }

    /// Wakes `qp` at `when` (nanoseconds); u64::MAX never comes.
    pub fn arm(&self, qp: &Qp, when: u64) {
        let Some(me) = qp.me() else { return };
        if when == u64::MAX {
            return;
        }
        self.push(when, Target::Qp(Arc::downgrade(&me)));
    }

    /// Ends the moderation period of a CQ at `when`.
    pub fn arm_cq(&self, cq: &Weak<Cq>, when: u64) {
        self.push(when, Target::Cq(cq.clone()));
    }

    /// Gives up `wire` at `when`.
    pub fn arm_wire(&self, wire: &Arc<Wire>, when: u64) {
        self.push(when, Target::Wire(Arc::downgrade(wire)));
    }

    /// Looks at `when` who has taken an opened QP over.
    pub fn arm_opened(&self, opened: &Arc<Opened>, when: u64) {
        self.push(when, Target::Opened(Arc::downgrade(opened)));
    }

    /// Sends at `when` the packets whose time has come then.
    pub fn arm_packets(&self, when: u64) {
        self.push(when, Target::Packets);
    }

    fn push(&self, when: u64, target: Target) {
        let mut heap = self.heap.lock();
        heap.push(Reverse(Entry { when, target }));
        self.rearm(&heap);
    }

    /// The earliest deadline.
    #[inline]
    pub fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::Relaxed)
    }

    /// Serves all deadlines up to `now`; true if there were any. Called with no lock held.
    pub fn fire(&self, node: &'static Node, now: u64) -> bool {
        let mut any = false;
        while let Some(target) = self.due(now) {
            any = true;
            match target {
                Target::Qp(qp) => {
                    if let Some(qp) = qp.upgrade() {
                        link::on_timer(&qp, now);
                    }
                }
                Target::Cq(cq) => {
                    if let Some(cq) = cq.upgrade() {
                        cq.on_timer();
                    }
                }
                Target::Wire(wire) => {
                    if let Some(wire) = wire.upgrade() {
                        wire.lost(node);
                    }
                }
                Target::Opened(opened) => {
                    if let Some(opened) = opened.upgrade() {
                        opened.on_timer();
                    }
                }
                Target::Packets => node.udp.send_held(node, now),
            }
            node.settle();
        }
        any
    }

    fn due(&self, now: u64) -> Option<Target> {
        if self.earliest() > now {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = heap.peek().is_some_and(|Reverse(e)| e.when <= now);
        let target = if due { heap.pop().map(|Reverse(e)| e.target) } else { None };
        self.rearm(&heap);
        target
    }

    fn rearm(&self, heap: &BinaryHeap<Reverse<Entry>>) {
        let earliest = heap.peek().map_or(u64::MAX, |Reverse(e)| e.when);
        let before = self.earliest.swap(earliest, Ordering::Relaxed);
        if earliest != before
            && let Some(fd) = self.fd.get()
        {
            if earliest == u64::MAX { fd.disarm() } else { fd.arm(earliest) }
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.when == other.when
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.when.cmp(&other.when)
    }
}

/// The time that an RNR NAK with this code asks for (IBA table 45).
pub fn rnr_delay_ns(code: u8) -> u64 {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[code as usize & 31] * 10_000
}
