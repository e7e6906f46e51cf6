//! Who drives: threads that poll or post, else one progress thread that sleeps until a doorbell, a deadline or a packet.
//!
//! Peers ring the doorbell for each message only while the process is `asleep`: unless some thread keeps polling and no
//! CQ waits for an event, or has done so long ago that the polling is what the process lives on (UCX polls one CQ beside an
//! armed one); the event then comes from that thread. A thread blocked in `ibv_get_cq_event`, if it is the only one, waits on the same descriptors as
//! the progress thread and drives by itself; the progress thread then stands aside, so that a message wakes one thread, not two. Where several are
//! blocked, the progress thread drives, and wakes whom a message concerns: were they all to wait on those descriptors, each message would wake them all.
mod trust;

use std::cell::Cell;
use std::convert::Infallible;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use trust::{Doubt, Vigil};

use super::cq::Taker;
use super::link::wires::{Looker, as_looker};
use super::node::{self, Node};
use super::verbs::desk;
use crate::sys::epoll::{self, Epoll, Event, NO_EVENT};
use crate::sys::errno::Errno;
use crate::sys::{annotate, clock, futex, thread};

/// A thread that has found nothing this many times in a row yields the processor.
const YIELD_AFTER: u32 = 1000;
/// Sooner where packets come in: the kernel's thread that brings them may wait for this processor.
const YIELD_TO_PACKETS_AFTER: u32 = LIFE_EVERY;
/// A thread that has looked for work this many times shows a sign of life, and looks at deadlines;
const LIFE_EVERY: u32 = 64;
/// sooner while every message still wakes the progress thread as well, which may take this processor for it.
const LIFE_AT_FIRST: u32 = 16;
/// A thread takes no more than this many rounds of messages before it goes on.
const SWEEPS: u32 = 16;
/// So many signs of life after a CQ was armed, polling counts as persistent although the CQ still waits.
const PERSISTENT: u64 = 32;
/// How often the progress thread looks whether somebody still polls or waits.
const TICK: Duration = Duration::from_millis(10);
/// How long it waits then for a sign of life, where messages have waited for it.
const GLANCE: Duration = Duration::from_millis(3);
/// A driver less, and one more that has gone: who sleeps for the value sees a change, also when another one has come.
const DRIVER_GONE: u32 = (1 << 16) - 1;
/// How long a process that ends waits until a thread begins to tell others, and until it has done so.
const LAST_WAITS: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(300)];

/// Tokens of the epoll set: a deadline,
const TIMER_TOKEN: u64 = 1;
/// the thread is wanted,
const KICK_TOKEN: u64 = 2;
/// packets and the like,
pub const UDP_TOKEN: u64 = 3;
/// addresses changed,
pub const GID_TOKEN: u64 = 4;
/// and above, the wires.
pub const FIRST_WIRE_TOKEN: u64 = 16;

/// The engine of a node.
#[derive(Debug)]
pub struct Engine {
    epoll: Epoll,
    kick: crate::sys::eventfd::EventFd,
    /// Threads that wait in `ibv_get_cq_event`,
    waiters: AtomicU32,
    /// and those of them that drive, one or for a moment two; in the upper half, how many have gone.
    drivers: AtomicU32,
    /// The progress thread runs.
    has_thread: AtomicBool,
    /// CQs that wait for an event.
    armed: AtomicI64,
    /// The progress thread sleeps until `drivers` changes.
    is_aside: AtomicBool,
    /// Counts signs of life of polling threads.
    polls: AtomicU64,
    /// Counts armings,
    arms: AtomicU64,
    /// those that a polling thread knows of,
    known_arms: AtomicU64,
    /// and `polls` when it learned of the last one.
    polls_at_arm: AtomicU64,
    /// Packets do not wake anybody.
    is_deaf: AtomicBool,
    /// Whether polling is believed in.
    doubt: Doubt,
    /// How far the process is on its way out.
    leaving: AtomicU32,
}

/// Stages of `leaving`: others are to be told, somebody is at it, that is done, or nobody is there to do it.
const ASKED: u32 = 1;
const AT_IT: u32 = 2;
const LEFT: u32 = 3;

thread_local! {
    /// What this thread does.
    static WAITING: Waiting = const { Waiting(Cell::new(Role::Awake)) };
}

impl Engine {
    /// Errors are those of epoll_create and eventfd.
    pub fn new() -> Result<Self, Errno> {
        let epoll = Epoll::new()?;
        let kick = crate::sys::eventfd::EventFd::new()?;
        epoll.add(kick.as_fd(), epoll::IN, KICK_TOKEN)?;
        Ok(Self {
            epoll,
            kick,
            waiters: AtomicU32::new(0),
            drivers: AtomicU32::new(0),
            has_thread: AtomicBool::new(false),
            armed: AtomicI64::new(0),
            is_aside: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            arms: AtomicU64::new(0),
            known_arms: AtomicU64::new(0),
            polls_at_arm: AtomicU64::new(0),
            is_deaf: AtomicBool::new(false),
            doubt: Doubt::default(),
            leaving: AtomicU32::new(0),
        })
    }

    /// Watches a descriptor; `token` says what it is.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Errno> {
        self.epoll.add(fd, epoll::IN | epoll::RDHUP, token)
    }

    /// Stops watching.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        self.epoll.remove(fd);
    }

    /// Packets need no thread of their own while somebody polls; otherwise they wake one.
    fn heed_packets(&self, node: &Node, heed: bool) {
        if self.is_deaf.load(Ordering::SeqCst) != heed {
            return;
        }
        node.udp.heed(heed);
        if let Some(fd) = node.udp.fd()
            && self.epoll.modify(fd, if heed { epoll::IN } else { 0 }, UDP_TOKEN).is_ok()
        {
            self.is_deaf.store(!heed, Ordering::SeqCst);
        }
    }

    /// Packets for other processes come in: they wake the progress thread also while somebody polls.
    pub fn heed(&self, node: &Node) {
        self.heed_packets(node, true);
    }

    /// Somebody sleeps until a message comes, or may do so any time: `arms` armings have been.
    fn is_expecting(&self, arms: u64) -> bool {
        let armed = self.armed.load(Ordering::SeqCst) > 0 && !self.has_outlived(arms);
        armed || self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Some waiting thread drives.
    fn is_driven(&self) -> bool {
        self.drivers.load(Ordering::SeqCst) as u16 > 0
    }

    /// Polling has gone on for long since the last of `arms` armings.
    fn has_outlived(&self, arms: u64) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        if self.known_arms.load(Ordering::Acquire) != arms {
            self.polls_at_arm.store(polls, Ordering::Relaxed);
            self.known_arms.store(arms, Ordering::Release);
        }
        polls.wrapping_sub(self.polls_at_arm.load(Ordering::Relaxed)) >= PERSISTENT
    }
}

/// Starts the progress thread of a node. Without one, only callers make progress, which is said once.
pub fn start(node: &'static Node) {
    if let Some(fd) = node.timers.fd() {
        let _ = node.engine.epoll.add(fd.as_fd(), epoll::IN, TIMER_TOKEN);
    }
    if let Some(fd) = node.gids().fd() {
        let _ = node.engine.epoll.add(fd, epoll::IN, GID_TOKEN);
    }
    if let Err(e) = thread::start("anyverbs", 256 * 1024, move || run(node)) {
        crate::sys::log::explain(format_args!("no progress thread: {e:?}; only calls make progress"));
    }
}

fn run(node: &'static Node) {
    node.engine.has_thread.store(true, Ordering::SeqCst);
    let Err(e) = drive(node);
    node.engine.has_thread.store(false, Ordering::SeqCst);
    node.engine.leaving.store(LEFT, Ordering::SeqCst);
    futex::wake(&node.engine.leaving);
    crate::sys::log::explain(format_args!(
        "the progress thread stops: the application closed a descriptor that is not its own ({e:?}); only calls make progress"
    ));
}

/// Takes what has arrived; true if there may be more: a peer that keeps writing must not keep deadlines and newcomers
/// waiting.
fn busy(node: &'static Node) -> bool {
    (0..SWEEPS).all(|_| sweep_of(node))
}

/// Drives the node until the epoll set fails.
fn drive(node: &'static Node) -> Result<Infallible, Errno> {
    let engine = &node.engine;
    let mut vigil = Vigil::default();
    loop {
        while engine.leaving.load(Ordering::SeqCst) == LEFT {
            // Nothing is begun any more that the end would break off.
            std::thread::park();
        }
        if engine.is_driven() {
            // What a thread left to its next look, which may never come.
            if busy(node) {
                handle_events(node, 0)?;
                continue;
            }
            stand_aside(engine);
            vigil = Vigil::default();
            continue;
        }
        if node.wires.own().is_asleep() {
            vigil = Vigil::default();
            let timeout_ms = if busy(node) { 0 } else { -1 };
            handle_events(node, timeout_ms)?;
            continue;
        }
        if vigil.is_over(engine.polls.load(Ordering::Relaxed), clock::now_ns()) {
            fall_asleep(node);
            continue;
        }
        // It may end early, by a deadline.
        handle_events(node, TICK.as_millis() as i32)?;
        node.timers.make_up(node);
        if nobody_looks(node)? {
            engine.doubt.rises(clock::now_ns());
            fall_asleep(node);
        }
    }
}

/// Messages wait although a thread has polled within the last tick, and it does not look: it computes, or watches its memory for what others
/// write there. Errors as [`Epoll::wait`].
fn nobody_looks(node: &'static Node) -> Result<bool, Errno> {
    let has_waiting = || node.wires.has_waiting() || node.udp.has_waiting();
    // Who finds something in every look gives few signs of life.
    let signs = || (node.engine.polls.load(Ordering::Relaxed), node.udp.looks());
    let before = signs();
    if node.wires.own().is_asleep() || !has_waiting() {
        return Ok(false);
    }
    let end = clock::now_ns().saturating_add(GLANCE.as_nanos() as u64);
    // A wait may end early, by a deadline.
    while signs() == before {
        let left = end.saturating_sub(clock::now_ns()).div_ceil(1_000_000);
        if left == 0 {
            return Ok(has_waiting());
        }
        handle_events(node, left as i32)?;
    }
    Ok(false)
}

/// If the process ends, does what it owes.
fn tell_others(node: &Node) {
    let leaving = &node.engine.leaving;
    if leaving.compare_exchange(ASKED, AT_IT, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        annotate::handed(std::ptr::from_ref(leaving) as usize);
        futex::wake(leaving);
        node.udp.leave(node);
        leaving.store(LEFT, Ordering::SeqCst);
        futex::wake(leaving);
    }
}

/// The process ends by exit(3): what it owes to others is done by another thread, since this one may hold any lock, if it was a
/// signal's handler that called exit. Then nobody can do it, and that is waited for a moment only.
pub fn leave() {
    let Some(node) = node::existing() else { return };
    let engine = &node.engine;
    annotate::handed(&raw const engine.leaving as usize);
    if engine.leaving.compare_exchange(0, ASKED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    engine.kick.signal();
    if engine.is_aside.load(Ordering::SeqCst) {
        futex::wake(&engine.drivers);
    }
    for (stage, limit) in [ASKED, AT_IT].into_iter().zip(LAST_WAITS) {
        let end = clock::now_ns().saturating_add(limit.as_nanos() as u64);
        while engine.leaving.load(Ordering::SeqCst) == stage {
            let now = clock::now_ns();
            if now >= end {
                return;
            }
            futex::wait_for(&engine.leaving, stage, Duration::from_nanos(end - now));
        }
    }
}

/// A waiting thread drives. When it goes and others wait, or none does for a tick, the progress thread takes over again.
fn stand_aside(engine: &Engine) {
    while engine.leaving.load(Ordering::SeqCst) != ASKED {
        engine.is_aside.store(true, Ordering::SeqCst);
        let drivers = engine.drivers.load(Ordering::SeqCst);
        if drivers as u16 > 0 {
            futex::wait(&engine.drivers, drivers);
            continue;
        }
        engine.is_aside.store(false, Ordering::SeqCst);
        // A driver that goes from now on says so only if others wait.
        if engine.waiters.load(Ordering::SeqCst) == 0 {
            futex::wait_for(&engine.drivers, drivers, TICK);
        }
        if engine.drivers.load(Ordering::SeqCst) == drivers {
            break;
        }
    }
    engine.is_aside.store(false, Ordering::SeqCst);
}

/// Handles what the epoll set has, waiting at most `timeout_ms` (-1: for ever). Errors as [`Epoll::wait`].
fn handle_events(node: &'static Node, timeout_ms: i32) -> Result<(), Errno> {
    let mut events = [NO_EVENT; 16];
    let got = node.engine.epoll.wait(&mut events, timeout_ms)?.len();
    for event in &events[..got] {
        handle(node, event);
    }
    node.settle();
    Ok(())
}

fn handle(node: &'static Node, event: &Event) {
    let token = event.u64;
    match token {
        TIMER_TOKEN => node.timers.expired(node),
        KICK_TOKEN => {
            node.engine.kick.drain();
            tell_others(node);
        }
        UDP_TOKEN if !node.wires.own().is_asleep() && !node.udp.serves_others() => {
            node.engine.heed_packets(node, false);
            // Another thread may have fallen asleep meanwhile.
            if node.wires.own().is_asleep() {
                node.engine.heed_packets(node, true);
            }
        }
        UDP_TOKEN => node.udp.readable(node),
        GID_TOKEN => {
            node.events.look(node.gids());
            node.udp.follow_groups(node);
        }
        _ if token >= desk::FIRST_TOKEN => node.desk.event(node, token),
        _ => node.wires.event(node, token),
    }
}

/// Looks for work of the whole process once; true if there was any. Called with no lock held.
#[inline]
fn progress_of(node: &'static Node, mine: &Looker, taker: &mut Taker<'_>) -> bool {
    let did = node.wires.poll(node, mine, taker) | node.udp.poll(node, taker);
    node.settle();
    did
}

/// `progress` that leaves nothing to a thread which is looking already, and may be about to stop: before sleeping.
pub fn sweep() -> bool {
    node::existing().is_some_and(sweep_of)
}

fn sweep_of(node: &'static Node) -> bool {
    let did = node.wires.sweep(node) | node.udp.sweep(node);
    node.settle();
    did
}

/// `progress` for a thread whose poll found nothing.
#[inline(always)]
pub fn progress_from_poll(taker: &mut Taker<'_>) -> bool {
    let Some(node) = node::existing() else { return false };
    as_looker(|mine| {
        let did = progress_of(node, mine, taker);
        let (polls, empties) = mine.counts.get();
        let (polls, empties) = (polls.wrapping_add(1), if did { 0 } else { empties.wrapping_add(1) });
        mine.counts.set((polls, empties));
        let is_sign = polls.is_multiple_of(LIFE_EVERY) || did && node.udp.was_long();
        let is_early = polls.is_multiple_of(LIFE_AT_FIRST) && node.wires.own().is_asleep();
        if is_sign || is_early { live(node, is_sign, empties) | did } else { did }
    })
}

/// This thread polls persistently: deadlines are its to watch, and peers need not ring. `is_sign`: that counts, in how long it has done so.
#[cold]
fn live(node: &'static Node, is_sign: bool, empties: u32) -> bool {
    let engine = &node.engine;
    if is_sign {
        engine.polls.fetch_add(1, Ordering::Relaxed);
    }
    let own = node.wires.own();
    let arms = engine.arms.load(Ordering::SeqCst);
    if own.is_asleep() && !engine.is_expecting(arms) && !engine.doubt.holds(clock::now_ns()) {
        own.set_asleep(false);
        node.timers.set_polled(true);
        fence(Ordering::SeqCst);
        if engine.arms.load(Ordering::SeqCst) != arms || engine.is_expecting(arms) || own.is_asleep() {
            // Somebody went to sleep meanwhile, or the progress thread, if this one was held up.
            expect_doorbells();
        } else {
            // The progress thread must begin to look whether polling goes on.
            engine.kick.signal();
        }
    }
    let fired = node.timers.earliest() != u64::MAX && node.timers.fire(node, clock::now_ns());
    if empties >= YIELD_AFTER {
        node.wires.nudge();
        std::thread::yield_now();
    } else if empties >= YIELD_TO_PACKETS_AFTER && node.udp.is_connected() {
        std::thread::yield_now();
    }
    fired
}

/// Nobody polls, or a CQ waits for an event: from now on every message rings.
fn fall_asleep(node: &Node) {
    node.wires.own().set_asleep(true);
    node.timers.set_polled(false);
    node.engine.heed_packets(node, true);
}

/// What is readable while messages of the process wait to be handled by this thread, which is about to wait; -1: another one handles them.
pub fn doorbells() -> RawFd {
    let drives = WAITING.with(|waiting| waiting.0.get() == Role::Driver);
    node::existing().filter(|_| drives).map_or(-1, |node| node.engine.epoll.as_raw_fd())
}

/// Counts CQs that wait for an event; until polling has outlived the arming, peers ring the doorbell for each message.
pub fn count_armed(by: i64) {
    if let Some(node) = node::existing() {
        node.engine.armed.fetch_add(by, Ordering::SeqCst);
    }
}

/// An armed CQ was armed again: as [`expect_doorbells`], unless peers ring anyway.
pub fn expect_doorbells_again() {
    if node::existing().is_some_and(|node| !node.wires.own().is_asleep()) {
        expect_doorbells();
    }
}

/// A CQ was armed: from now on peers ring for each message, and what came before is taken now.
pub fn expect_doorbells() {
    if let Some(node) = node::existing() {
        node.engine.arms.fetch_add(1, Ordering::SeqCst);
        // A poller that does not see the arming has let go of the doorbells before this asks for them (`live`).
        fence(Ordering::SeqCst);
        fall_asleep(node);
        if (0..SWEEPS).all(|_| sweep_of(node)) {
            // There is more: whoever waits for descriptors goes on.
            node.engine.kick.signal();
        }
    }
}

/// This thread is about to wait: until `end_wait` it is woken by what concerns it, and if nobody else waits, also by all that comes
/// ([`doorbells`]), instead of the progress thread. False when it need not wait: there was something, or `ready` says so.
pub fn begin_wait(ready: impl Fn() -> bool) -> Result<bool, Errno> {
    let Some(node) = node::existing() else { return Err(Errno::EIO) };
    WAITING.with(|waiting| waiting.begin(node));
    fall_asleep(node);
    node.wires.nudge();
    let waits = !sweep_of(node) && !ready();
    if !waits {
        end_wait();
    }
    Ok(waits)
}

/// The wait is over: what woke it is handled.
pub fn end_wait() {
    let Some(node) = node::existing() else { return };
    WAITING.with(|waiting| {
        if waiting.0.get() == Role::Driver {
            let _ = handle_events(node, 0);
        }
        waiting.end(node);
    });
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Awake,
    /// It waits for all that comes to the process,
    Driver,
    /// or until another thread has something for it.
    Guest,
}

/// The role of a thread; one that is cancelled while it waits gives it back when it ends.
struct Waiting(Cell<Role>);

impl Waiting {
    fn begin(&self, node: &Node) {
        let engine = &node.engine;
        if self.0.get() != Role::Awake {
            return;
        }
        let is_alone = engine.waiters.fetch_add(1, Ordering::SeqCst) == 0;
        if is_alone || !engine.has_thread.load(Ordering::SeqCst) {
            engine.drivers.fetch_add(1, Ordering::SeqCst);
            self.0.set(Role::Driver);
        } else {
            self.0.set(Role::Guest);
        }
    }

    fn end(&self, node: &Node) {
        let engine = &node.engine;
        let role = self.0.replace(Role::Awake);
        if role == Role::Awake {
            return;
        }
        let others = engine.waiters.fetch_sub(1, Ordering::SeqCst) - 1;
        if role == Role::Driver {
            let left =
                engine.drivers.fetch_add(DRIVER_GONE, Ordering::SeqCst).wrapping_add(DRIVER_GONE) as u16;
            if left == 0 && (others > 0 || engine.is_aside.load(Ordering::SeqCst)) {
                futex::wake(&engine.drivers);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(node) = node::existing() {
            self.end(node);
        }
    }
}

/// The application set O_NONBLOCK on the descriptor.
pub fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: F_GETFL only reads flags.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_that_goes_on_outlives_an_arming_until_the_next_one() {
        let engine = Engine::new().unwrap();
        assert!(!engine.is_expecting(0));
        engine.armed.store(1, Ordering::SeqCst);
        let live = |n: u64| engine.polls.fetch_add(n, Ordering::SeqCst);
        live(1000);
        assert!(engine.is_expecting(1));
        live(PERSISTENT - 1);
        assert!(engine.is_expecting(1));
        live(1);
        assert!(!engine.is_expecting(1));
        assert!(engine.is_expecting(2));
        live(PERSISTENT);
        assert!(!engine.is_expecting(2));
        engine.waiters.store(1, Ordering::SeqCst);
        assert!(engine.is_expecting(2));
    }
}
