//! Completion queues: a private ring of completions, armed notifications, overrun.
mod taker;

pub use taker::Taker;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use super::channel::{AsyncQueue, CompChannel};
use super::engine;
use super::mem::area::{Allocator, Area, Purpose, zeros};
use super::node;
use super::types::{EventType, Qpn, WcOpcode, WcStatus};
use crate::sys::{clock, errno::Errno, fork, lock::Lock};

/// One completion, laid out as `struct ibv_wc`, so that polling is a copy. `imm` keeps the sender's bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cqe {
    #[allow(missing_docs)]
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`; true also where the status is an error.
    pub opcode: u32,
    #[allow(missing_docs)]
    pub vendor_err: u32,
    /// Bytes received, or read; with UD the 40 bytes of the GRH area included.
    pub byte_len: u32,
    /// Immediate data in network byte order, or the invalidated rkey.
    pub imm: u32,
    /// The local QP.
    pub qp_num: u32,
    /// The sender's QP (UD only).
    pub src_qp: u32,
    /// `enum ibv_wc_flags`.
    pub wc_flags: u32,
    #[allow(missing_docs)]
    pub pkey_index: u16,
    #[allow(missing_docs)]
    pub slid: u16,
    #[allow(missing_docs)]
    pub sl: u8,
    #[allow(missing_docs)]
    pub dlid_path_bits: u8,
}

/// `IBV_WC_GRH`: the first 40 bytes of a UD receive hold a GRH.
pub const WC_GRH: u32 = 1;
/// `IBV_WC_WITH_IMM`.
pub const WC_WITH_IMM: u32 = 2;
/// `IBV_WC_WITH_INV`: `imm` is the rkey that the sender has invalidated.
pub const WC_WITH_INV: u32 = 8;

impl Cqe {
    /// A completion that carries no more than what every completion has.
    pub const fn new(wr_id: u64, qpn: Qpn, opcode: WcOpcode, status: WcStatus) -> Self {
        Self {
            wr_id,
            status: status.raw(),
            opcode: opcode.raw(),
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            qp_num: qpn.0,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

/// The queue was full: the completion is lost, the CQ is unusable, its QPs go to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// What `ibv_req_notify_cq` asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    ring: Lock<Ring>,
    /// Completions in the ring, and `ARMED`, to be looked at without the lock.
    shown: AtomicU32,
    channel: Option<Arc<CompChannel>>,
    events: Arc<AsyncQueue>,
    /// The process that it belongs to.
    generation: u32,
    me: Weak<Cq>,
    allocator: Lock<Option<Arc<dyn Allocator>>>,
    /// The address of the application's `ibv_cq`, which events name.
    pub cookie: AtomicUsize,
    /// QPs and SRQs that use this queue; it cannot be destroyed before them.
    pub users: AtomicU32,
}

#[derive(Debug)]
struct Ring {
    slots: Area<Cqe>,
    stamps: Option<Box<[u64]>>,
    /// Next to poll and next to fill; they run freely, `slots.len()` is a power of two.
    tail: u32,
    head: u32,
    depth: u32,
    armed: Armed,
    /// `head` when it was last armed.
    armed_at: u32,
    overrun: bool,
    ignore_overrun: bool,
    moderation: Moderation,
    /// Completions since the last event, while they are held back.
    held_back: u32,
}

/// When an armed CQ raises its event.
#[derive(Clone, Copy, Debug, Default)]
struct Moderation {
    /// After so many completions; 0 and 1: after each, or as `period_us` says.
    count: u32,
    /// At the latest so long after the first; 0: it waits for `count`.
    period_us: u32,
}

/// What one round of `ibv_start_poll` to `ibv_end_poll` may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// Where it ends; None: with the queue.
    end: Option<u32>,
}

/// How to make a CQ.
#[derive(Debug)]
pub struct CqConfig {
    /// Completions that it holds.
    pub depth: u32,
    /// Record the time of each completion.
    pub timestamps: bool,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`: the oldest completion gives way instead.
    pub ignore_overrun: bool,
    /// Where the ring's memory comes from; the heap if none.
    pub allocator: Option<Arc<dyn Allocator>>,
}

/// In `Cq::shown`: somebody waits for an event.
const ARMED: u32 = 1 << 31;

impl Cq {
    /// A CQ that notifies `channel` and reports its own failure to `events`; ENOMEM where there is no memory.
    pub fn new(
        config: &CqConfig,
        channel: Option<Arc<CompChannel>>,
        events: Arc<AsyncQueue>,
    ) -> Result<Arc<Self>, Errno> {
        let ring = Ring {
            slots: ring_of(config.depth, config.allocator.as_ref())?,
            stamps: config.timestamps.then(|| stamps_of(config.depth)).transpose()?,
            tail: 0,
            head: 0,
            depth: config.depth,
            armed: Armed::No,
            armed_at: 0,
            overrun: false,
            ignore_overrun: config.ignore_overrun,
            moderation: Moderation::default(),
            held_back: 0,
        };
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            allocator: Lock::new(config.allocator.clone()),
            ring: Lock::new(ring),
            shown: AtomicU32::new(0),
            channel,
            events,
            generation: fork::generation(),
            cookie: AtomicUsize::new(0),
            users: AtomicU32::new(0),
        }))
    }

    /// This process made it; a forked child must not touch it, its lock may be held for ever.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// The channel that it notifies.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// No completion is in the ring.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.shown.load(Ordering::Acquire) & !ARMED == 0
    }

    /// Shows what the ring holds to who does not take the lock.
    #[inline(always)]
    fn show(&self, ring: &Ring) {
        let armed = if ring.armed == Armed::No { 0 } else { ARMED };
        self.shown.store(ring.head.wrapping_sub(ring.tail) | armed, Ordering::Release);
    }

    /// Changes what is asked for.
    fn set_armed(&self, ring: &mut Ring, armed: Armed) {
        ring.armed = armed;
        self.show(ring);
    }

    /// `push`, or past the queue to `taker` where that polls this CQ.
    #[inline(always)]
    pub fn complete(&self, cqe: Cqe, solicited: bool, taker: &mut Taker<'_>) -> Result<(), Overrun> {
        if let Some(place) = taker.place(self) {
            place.write(cqe);
            return Ok(());
        }
        self.push(cqe, solicited)
    }

    /// Adds a completion; `solicited` says whether `ibv_req_notify_cq(solicited_only)` wants to hear of it.
    #[inline(always)]
    pub fn push(&self, cqe: Cqe, solicited: bool) -> Result<(), Overrun> {
        let mut ring = self.ring.lock();
        if ring.head.wrapping_sub(ring.tail) >= ring.depth {
            if !ring.ignore_overrun || ring.overrun {
                return self.overrun(&mut ring);
            }
            ring.tail = ring.tail.wrapping_add(1);
        }
        let at = ring.head as usize & (ring.slots.len() - 1);
        ring.slots[at] = cqe;
        if let Some(stamps) = &mut ring.stamps {
            stamps[at] = clock::now_ns();
        }
        ring.head = ring.head.wrapping_add(1);
        self.show(&ring);
        if ring.armed != Armed::No {
            let wanted = ring.armed == Armed::Any || solicited || cqe.status != WcStatus::Success.raw();
            if wanted {
                ring.held_back += 1;
                let Moderation { count, period_us } = ring.moderation;
                if ring.held_back < count || count == 0 && period_us > 0 {
                    let first = ring.held_back == 1;
                    drop(ring);
                    if first && period_us > 0 {
                        self.arm_timer(period_us);
                    }
                    return Ok(());
                }
                self.set_armed(&mut ring, Armed::No);
                drop(ring);
                self.notify();
            }
        }
        Ok(())
    }

    /// Takes up to `room` completions, oldest first, and hands each with its time in nanoseconds to `take`.
    #[inline]
    pub fn poll(&self, room: usize, take: impl FnMut(&Cqe, u64)) -> usize {
        if self.is_empty() { 0 } else { self.poll_some(room, take) }
    }

    fn poll_some(&self, room: usize, mut take: impl FnMut(&Cqe, u64)) -> usize {
        let mut ring = self.ring.lock();
        let n = (ring.head.wrapping_sub(ring.tail) as usize).min(room);
        for _ in 0..n {
            let at = ring.tail as usize & (ring.slots.len() - 1);
            take(&ring.slots[at], ring.stamps.as_ref().map_or(0, |s| s[at]));
            ring.tail = ring.tail.wrapping_add(1);
        }
        self.show(&ring);
        n
    }

    /// How many completions of sends of QP `qpn` nobody has polled yet.
    pub fn unpolled_sends(&self, qpn: Qpn) -> u32 {
        if self.is_empty() {
            return 0;
        }
        let ring = self.ring.lock();
        let mask = ring.slots.len() - 1;
        let held = (0..ring.head.wrapping_sub(ring.tail)).map(|i| ring.tail.wrapping_add(i) as usize & mask);
        let of_sends = |cqe: &Cqe| cqe.qp_num == qpn.0 && cqe.opcode & WcOpcode::Recv.raw() == 0;
        held.filter(|&at| of_sends(&ring.slots[at])).count() as u32
    }

    /// Takes out what QP `qpn` has completed and nobody has polled: the QP goes to RESET, and its completions with it.
    pub fn discard(&self, qpn: Qpn) {
        if self.is_empty() {
            return;
        }
        let ring = &mut *self.ring.lock();
        let mask = ring.slots.len() - 1;
        let mut kept = ring.tail;
        let mut armed_at = ring.armed_at;
        for i in 0..ring.head.wrapping_sub(ring.tail) {
            let position = ring.tail.wrapping_add(i);
            if position == ring.armed_at {
                armed_at = kept;
            }
            let at = position as usize & mask;
            if ring.slots[at].qp_num == qpn.0 {
                continue;
            }
            let to = kept as usize & mask;
            ring.slots[to] = ring.slots[at];
            if let Some(stamps) = &mut ring.stamps {
                stamps[to] = stamps[at];
            }
            kept = kept.wrapping_add(1);
        }
        ring.armed_at = if ring.armed_at == ring.head { kept } else { armed_at };
        ring.head = kept;
        self.show(ring);
    }

    /// Takes the next completion of a batch, which it begins where `begins` says so (`ibv_start_poll`).
    ///
    /// A batch that finds completions older than the last request for an event ends with them. The event that the next
    /// one has raised then still finds it here: `ibv_start_poll` must not answer ENOENT to a thread that an event woke.
    pub fn poll_batch(&self, batch: &mut Batch, begins: bool, take: impl FnOnce(&Cqe, u64)) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut ring = self.ring.lock();
        if begins {
            let ahead = ring.armed_at.wrapping_sub(ring.tail) as i32 > 0;
            batch.end = ahead.then_some(ring.armed_at);
        }
        if ring.tail == ring.head || batch.end == Some(ring.tail) {
            return false;
        }
        let at = ring.tail as usize & (ring.slots.len() - 1);
        take(&ring.slots[at], ring.stamps.as_ref().map_or(0, |s| s[at]));
        ring.tail = ring.tail.wrapping_add(1);
        self.show(&ring);
        true
    }

    /// Asks for one event for the next completion; completions already in the queue do not count (`ibv_req_notify_cq(3)`).
    /// Called with no lock held.
    pub fn arm(&self, solicited_only: bool) {
        if self.channel.is_none() {
            return;
        }
        let mut ring = self.ring.lock();
        ring.armed_at = ring.head;
        let first = ring.armed == Armed::No;
        if first {
            engine::count_armed(1);
            ring.held_back = 0;
        }
        // A request for any completion stands until its event; one for solicited ones may widen.
        if ring.armed != Armed::Any {
            self.set_armed(&mut ring, if solicited_only { Armed::Solicited } else { Armed::Any });
        }
        let left_over = ring.head != ring.tail;
        drop(ring);
        if left_over && let Some(channel) = &self.channel {
            channel.note_left_over(&self.me);
        }
        if first {
            engine::expect_doorbells();
        } else {
            engine::expect_doorbells_again();
        }
    }

    /// Raises the event of an armed CQ that still has completions from before it was armed; true if it did.
    pub fn raise_left_over(&self) -> bool {
        let mut ring = self.ring.lock();
        if ring.armed != Armed::Any || ring.armed_at.wrapping_sub(ring.tail) as i32 <= 0 {
            return false;
        }
        self.set_armed(&mut ring, Armed::No);
        drop(ring);
        self.notify();
        true
    }

    /// Ends notifications, forgets events not yet read and gives the ring's memory back; before the application's object
    /// goes. QPs that are being destroyed may know the CQ for longer.
    pub fn retire(&self) {
        let address = self.cookie.load(Ordering::Relaxed);
        self.events.forget(&self.cookie);
        let mut ring = self.ring.lock();
        (ring.slots, ring.stamps) = (Area::none(), None);
        (ring.tail, ring.head, ring.depth, ring.overrun) = (0, 0, 0, true);
        let was_armed = ring.armed != Armed::No;
        self.set_armed(&mut ring, Armed::No);
        *self.allocator.lock() = None;
        let Some(channel) = &self.channel else { return };
        if was_armed {
            engine::count_armed(-1);
        }
        drop(ring);
        channel.forget(address);
    }

    /// Holds events back until `count` completions have come, or `period_us` microseconds have passed since the first
    /// (`ibv_modify_cq`). 0 and 0, or a count of 1: no event is held back. A period of 0 sets no limit of time.
    pub fn moderate(&self, count: u16, period_us: u16) {
        let mut ring = self.ring.lock();
        ring.moderation = Moderation { count: count.into(), period_us: period_us.into() };
        // What is held back already waits no longer.
        let due = ring.armed != Armed::No && ring.held_back > 0;
        if due {
            self.set_armed(&mut ring, Armed::No);
        }
        drop(ring);
        if due {
            self.notify();
        }
    }

    /// The period of moderation is over.
    pub fn on_timer(&self) {
        let mut ring = self.ring.lock();
        if ring.armed == Armed::No || ring.held_back == 0 {
            return;
        }
        self.set_armed(&mut ring, Armed::No);
        drop(ring);
        self.notify();
    }

    fn arm_timer(&self, period_us: u32) {
        if let Some(node) = node::existing() {
            node.timers.arm_cq(&self.me, clock::now_ns() + u64::from(period_us) * 1000);
        }
    }

    /// Changes the depth; fails with the number of completions held when they do not fit, or with 0 without memory.
    pub fn resize(&self, depth: u32) -> Result<(), u32> {
        let allocator = self.allocator.lock().clone();
        let mut ring = self.ring.lock();
        let held = ring.head.wrapping_sub(ring.tail);
        if held > depth {
            return Err(held);
        }
        let stamped = ring.stamps.is_some();
        let mut slots = ring_of(depth, allocator.as_ref()).map_err(|_| 0u32)?;
        let mut stamps = stamped.then(|| stamps_of(depth)).transpose().map_err(|_| 0u32)?;
        for i in 0..held {
            let from = ring.tail.wrapping_add(i) as usize & (ring.slots.len() - 1);
            slots[i as usize] = ring.slots[from];
            if let (Some(new), Some(old)) = (&mut stamps, &ring.stamps) {
                new[i as usize] = old[from];
            }
        }
        let armed_at = ring.armed_at.wrapping_sub(ring.tail);
        (ring.slots, ring.stamps, ring.tail, ring.head, ring.depth) = (slots, stamps, 0, held, depth);
        ring.armed_at = armed_at;
        Ok(())
    }

    #[cold]
    fn overrun(&self, ring: &mut Ring) -> Result<(), Overrun> {
        if !ring.overrun {
            ring.overrun = true;
            crate::sys::log::explain(format_args!(
                "cq: overrun, all {} entries are taken: poll more often or create it larger",
                ring.depth
            ));
            self.events.push(EventType::CqErr, &self.cookie);
        }
        Err(Overrun)
    }

    fn notify(&self) {
        if let Some(channel) = &self.channel {
            engine::count_armed(-1);
            channel.push(&self.cookie);
        }
    }
}

fn ring_of(depth: u32, allocator: Option<&Arc<dyn Allocator>>) -> Result<Area<Cqe>, Errno> {
    Area::new(depth.next_power_of_two() as usize, EMPTY, allocator, Purpose::Cq)
}

const EMPTY: Cqe = Cqe::new(0, Qpn(0), WcOpcode::Send, WcStatus::Success);

fn stamps_of(depth: u32) -> Result<Box<[u64]>, Errno> {
    zeros(depth.next_power_of_two() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Look;

    fn cqe(wr_id: u64) -> Cqe {
        Cqe::new(wr_id, Qpn(0x123), WcOpcode::Send, WcStatus::Success)
    }

    #[test]
    fn an_event_always_finds_its_completion_when_batches_are_polled() {
        let channel = Arc::new(CompChannel::new().unwrap());
        let config = CqConfig { depth: 8, timestamps: false, ignore_overrun: false, allocator: None };
        let cq = Cq::new(&config, Some(channel), Arc::new(AsyncQueue::new().unwrap())).unwrap();
        let mut batch = Batch::default();
        let mut next = |begins: bool| {
            let mut id = None;
            cq.poll_batch(&mut batch, begins, |c, _| id = Some(c.wr_id));
            id
        };
        cq.push(cqe(1), false).unwrap();
        cq.arm(false);
        cq.push(cqe(2), false).unwrap();
        assert_eq!((next(true), next(false)), (Some(1), None));
        cq.arm(false);
        cq.push(cqe(3), false).unwrap();
        assert_eq!((next(true), next(false)), (Some(2), None));
        // Without a request in between everything is one batch.
        cq.push(cqe(4), false).unwrap();
        assert_eq!((next(true), next(false), next(false)), (Some(3), Some(4), None));
        assert_eq!(next(true), None);
    }

    #[test]
    fn only_who_blocks_is_told_of_completions_from_before_the_request() {
        let channel = Arc::new(CompChannel::new().unwrap());
        let config = CqConfig { depth: 8, timestamps: false, ignore_overrun: false, allocator: None };
        let cq = Cq::new(&config, Some(channel.clone()), Arc::new(AsyncQueue::new().unwrap())).unwrap();
        cq.cookie.store(7, Ordering::Relaxed);
        cq.push(cqe(1), false).unwrap();
        cq.arm(false);
        // SAFETY: the descriptor is the channel's own; F_SETFL takes plain numbers.
        let nonblocking = |flag: i32| unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, flag) };
        assert_eq!(nonblocking(libc::O_NONBLOCK), 0);
        assert_eq!(channel.next_event(Look::First, |_| ()), Err(Errno::EAGAIN));
        assert_eq!(nonblocking(0), 0);
        assert_eq!(channel.next_event(Look::First, |_| ()), Ok(Some(7)));
        // The event is spent, and what is polled by then is none.
        assert!(!cq.raise_left_over());
        cq.arm(false);
        assert_eq!(cq.poll(8, |_, _| ()), 1);
        assert!(!cq.raise_left_over());
    }
}
