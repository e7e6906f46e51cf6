//! Deadlines of QPs: RNR waits, retries, retransmission.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::cq::Cq;
use super::link;
use super::link::wires::Wire;
use super::node::Node;
use super::qp::Qp;
use super::verbs::Opened;
use crate::sys::clock;
use crate::sys::lock::Lock;
use crate::sys::timerfd::TimerFd;

/// How long a deadline is left to a thread that polls, nanoseconds: to set the descriptor, to be woken by it and to take the locks of that
/// thread costs as much as several messages.
const LEEWAY: u64 = 4_000_000;
/// But not one that is so near, unless nothing is lost by being late: such a one is left to that thread, and to the progress thread where it
/// happens to be awake.
const NEAR: u64 = 900_000;

/// The timers of a process. The earliest also arms a timerfd, for when nobody polls.
#[derive(Debug, Default)]
pub struct Timers {
    heap: Lock<Heap>,
    /// The earliest deadline; u64::MAX when there is none.
    earliest: AtomicU64,
    /// Set once the progress thread watches it.
    fd: OnceLock<TimerFd>,
    /// Some thread polls, and looks at deadlines.
    is_polled: AtomicBool,
}

#[derive(Debug)]
struct Heap {
    entries: BinaryHeap<Reverse<Entry>>,
    /// When the descriptor is to come while some thread polls, or sooner; u64::MAX: not at all.
    latest: u64,
    /// What the descriptor is set to; 0: it is not.
    set_to: u64,
}

impl Default for Heap {
    fn default() -> Self {
        Self { entries: BinaryHeap::new(), latest: u64::MAX, set_to: 0 }
    }
}

#[derive(Debug)]
struct Entry {
    when: u64,
    /// It may be late although it is near.
    is_patient: bool,
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
        self.push(when, false, Target::Qp(Arc::downgrade(&me)));
    }

    /// The same for a deadline by which something comes as a rule, and which may then be late: while some thread polls it does not wake another.
    pub fn arm_patiently(&self, qp: &Qp, when: u64) {
        let Some(me) = qp.me() else { return };
        if when == u64::MAX {
            return;
        }
        self.push(when, true, Target::Qp(Arc::downgrade(&me)));
    }

    /// Ends the moderation period of a CQ at `when`.
    pub fn arm_cq(&self, cq: &Weak<Cq>, when: u64) {
        self.push(when, false, Target::Cq(cq.clone()));
    }

    /// Gives up `wire` at `when`.
    pub fn arm_wire(&self, wire: &Arc<Wire>, when: u64) {
        self.push(when, false, Target::Wire(Arc::downgrade(wire)));
    }

    /// Looks at `when` who has taken an opened QP over.
    pub fn arm_opened(&self, opened: &Arc<Opened>, when: u64) {
        self.push(when, false, Target::Opened(Arc::downgrade(opened)));
    }

    /// Sends at `when` the packets whose time has come then.
    pub fn arm_packets(&self, when: u64) {
        self.push(when, false, Target::Packets);
    }

    fn push(&self, when: u64, is_patient: bool, target: Target) {
        let mut heap = self.heap.lock();
        heap.entries.push(Reverse(Entry { when, is_patient, target }));
        if !is_patient && self.is_polled.load(Ordering::Relaxed) {
            let latest = latest_of(when, clock::now_ns());
            if latest < heap.latest {
                heap.latest = latest;
                return self.rearm_for(&mut heap, true);
            }
        }
        self.rearm(&mut heap);
    }

    /// Says whether some thread polls: the descriptor may then come a little later.
    #[inline]
    pub fn set_polled(&self, is_polled: bool) {
        if self.is_polled.load(Ordering::Relaxed) != is_polled {
            self.change_polled(is_polled);
        }
    }

    #[cold]
    fn change_polled(&self, is_polled: bool) {
        let mut heap = self.heap.lock();
        self.is_polled.store(is_polled, Ordering::Relaxed);
        self.set_anew(&mut heap);
    }

    /// The descriptor is readable: serves the deadlines up to now, and sets it anew. Called with no lock held.
    pub fn expired(&self, node: &'static Node) {
        {
            let mut heap = self.heap.lock();
            if let Some(fd) = self.fd.get() {
                fd.drain();
            }
            heap.set_to = 0;
        }
        self.fire(node, clock::now_ns());
        self.set_anew(&mut self.heap.lock());
    }

    /// The earliest deadline.
    #[inline]
    pub fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::Relaxed)
    }

    /// The progress thread is awake while some thread polls: serves the deadlines that this one has left. Called with no lock held.
    pub fn make_up(&self, node: &'static Node) {
        if self.earliest() == u64::MAX || !self.is_polled.load(Ordering::Relaxed) {
            return;
        }
        let now = clock::now_ns();
        if self.earliest().saturating_add(LEEWAY) <= now {
            self.fire(node, now);
        }
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
        let due = heap.entries.peek().is_some_and(|Reverse(e)| e.when <= now);
        let target = if due { heap.entries.pop().map(|Reverse(e)| e.target) } else { None };
        self.rearm(&mut heap);
        target
    }

    fn rearm(&self, heap: &mut Heap) {
        self.rearm_for(heap, false);
    }

    /// `anyway`: the descriptor may have to come sooner though the earliest deadline is the same.
    fn rearm_for(&self, heap: &mut Heap, anyway: bool) {
        let earliest = heap.entries.peek().map_or(u64::MAX, |Reverse(e)| e.when);
        if self.earliest.swap(earliest, Ordering::Relaxed) != earliest || anyway {
            self.set(heap);
        }
    }

    /// The same after any change.
    fn set_anew(&self, heap: &mut Heap) {
        let now = clock::now_ns();
        let entries = heap.entries.iter().filter(|Reverse(e)| !e.is_patient);
        heap.latest = entries.map(|Reverse(e)| latest_of(e.when, now)).min().unwrap_or(u64::MAX);
        self.set(heap);
    }

    /// Sets the descriptor: for the earliest deadline, or while some thread polls for `latest`, if it does not come before that anyway.
    fn set(&self, heap: &mut Heap) {
        let Some(fd) = self.fd.get() else { return };
        let is_polled = self.is_polled.load(Ordering::Relaxed);
        let at = if is_polled { heap.latest } else { self.earliest() };
        let is_set = heap.set_to != 0;
        match (at, is_polled) {
            (u64::MAX, false) if is_set => {
                heap.set_to = 0;
                fd.disarm();
            }
            (u64::MAX, _) => {}
            (_, true) if is_set && heap.set_to <= at => {}
            _ if heap.set_to == at => {}
            _ => {
                heap.set_to = at;
                fd.arm(at);
            }
        }
    }
}

/// When the descriptor comes at the latest for a deadline that is not patient, while some thread polls.
fn latest_of(when: u64, now: u64) -> u64 {
    if when.saturating_sub(now) < NEAR { when } else { when.saturating_add(LEEWAY) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_comes_at_the_deadline_or_a_little_later_where_a_thread_polls() {
        let timers = Timers::new();
        assert!(timers.fd().is_some());
        let set_to = || timers.heap.lock().set_to;
        let now = clock::now_ns();
        let second = |n: u64| now + n * 1_000_000_000;
        timers.push(second(20), false, Target::Packets);
        assert_eq!(set_to(), second(20));
        timers.set_polled(true);
        assert_eq!(set_to(), second(20), "what comes before is good enough");
        timers.push(second(10), false, Target::Packets);
        assert_eq!(set_to(), second(10) + LEEWAY);
        assert!(timers.due(second(10)).is_some() && timers.due(second(10)).is_none());
        assert_eq!(set_to(), second(10) + LEEWAY);
        let near = |part: u64| clock::now_ns() + NEAR / part;
        timers.push(near(3), true, Target::Packets);
        assert_eq!(set_to(), second(10) + LEEWAY, "it may be late");
        let soon = near(2);
        timers.push(soon, false, Target::Packets);
        assert_eq!(set_to(), soon, "it is too near to be left to others, whatever else comes before it");
        assert!(timers.due(second(5)).is_some());
        assert!(timers.due(second(5)).is_some());
        timers.set_polled(false);
        assert_eq!(set_to(), second(20));
        assert!(timers.due(second(20)).is_some());
        assert_eq!(set_to(), 0);
    }

    #[test]
    fn a_deadline_is_not_forgotten_behind_one_that_may_be_late() {
        let timers = Timers::new();
        assert!(timers.fd().is_some());
        timers.set_polled(true);
        let now = clock::now_ns();
        let [first, patient, second] = [1, 2, 3].map(|part| now + part * NEAR / 8);
        timers.push(first, false, Target::Packets);
        timers.push(patient, true, Target::Packets);
        timers.push(second, false, Target::Packets);
        let mut heap = timers.heap.lock();
        assert_eq!(heap.set_to, first);
        heap.entries.pop();
        heap.set_to = 0;
        timers.set_anew(&mut heap);
        assert_eq!(heap.set_to, second);
    }
}
