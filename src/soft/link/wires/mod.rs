//! The wires of a process: the slots it has claimed, and a wire to every process of this host that it talks to.
//!
//! `send` and `receive` carry the message rules of `qp` over the rings of `shm`; `plain` is the short way of what most entries are,
//! SENDs of one entry and acknowledgements, `runs` where an entry is several SENDs, `whole` SENDs of one entry that come later; `message` says what ring entries mean;
//! `replies` is what goes before a reply, `blocked` who waits for room in a ring, `shown` what peers see of queue pairs and regions; `death` is about peers that are gone.
mod blocked;
mod death;
pub mod foreign;
mod inbox;
mod list;
pub mod message;
mod numbers;
mod places;
mod plain;
mod receive;
mod replies;
mod runs;
mod send;
mod shown;
mod twins;
mod whole;

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use inbox::{Cache, Proven};
use list::{List, next_version, watch, with_list};
pub use list::{Looker, as_looker};
use numbers::Numbers;
pub use replies::reply_follows;
pub use runs::RUN_PAYLOAD;
pub use send::{Answer, Outbox, pump, repeat, send_datagram};
pub use whole::header_of_send;

use super::shm::own::MR_CAPACITY;
use super::shm::ring::Header;
use super::shm::{Own, Peer, Slot, State};
use crate::soft::cq::Taker;
use crate::soft::engine;
use crate::soft::mem::MemTable;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::types::Qpn;
use crate::sys::annotate::RwLock;
use crate::sys::clock;
use crate::sys::errno::Errno;
use crate::sys::eventfd::EventFd;
use crate::sys::lock::{Beside, Lock};
use crate::sys::log::explain;
use crate::sys::settings;

/// Rounds of receiving for one event of a wire.
const ROUNDS: usize = 16;
/// How long after its peer's process has gone a QP fails: a program that ends when all is complete must not find its
/// last completions among flushed receives.
const GRACE_NS: u64 = 350_000_000;

/// A connection to another process.
#[derive(Debug)]
pub struct Wire {
    #[allow(missing_docs)]
    pub peer: Arc<Peer>,
    /// Names it in the engine's epoll set.
    pub token: u64,
    /// Guarded by the lock of the peer's `rx`.
    cache: Beside<Cache>,
    /// Something was sent without looking whether the peer sleeps.
    unrung: AtomicBool,
    /// Something was taken of which the peer does not know yet.
    untold: AtomicBool,
    /// A request that wants an acknowledgement was sent since the last nudge.
    asked: AtomicBool,
    /// QPs that found the ring full.
    blocked: Lock<Vec<Weak<Qp>>>,
    strays: Lock<VecDeque<Header>>,
    is_blocked: AtomicBool,
    is_lost: AtomicBool,
    /// Another connection to the same process, which serves instead,
    better: OnceLock<Arc<Wire>>,
    /// or instead of which this one does;
    worse: OnceLock<Weak<Wire>>,
    /// and no datagram goes here any more.
    is_drained: AtomicBool,
    /// How many times heirs of the peer were looked for.
    heirs_sought: AtomicU32,
    /// A message to a group waited for room in vain: the next ones do not wait.
    pub takes_nothing: AtomicBool,
}

/// The wires of a process.
#[derive(Debug)]
pub struct Wires {
    own: Own,
    slots: RwLock<Vec<Claimed>>,
    qpns: Lock<Numbers>,
    srqns: Lock<Numbers>,
    /// Replaced as a whole, so that readers keep what they have.
    list: RwLock<List>,
    /// Counts changes of `list`; threads keep a copy of their own.
    version: AtomicU64,
    by_slot: RwLock<HashMap<u16, Arc<Wire>>>,
    by_token: RwLock<HashMap<u64, Arc<Wire>>>,
    next_token: AtomicU64,
    started: OnceLock<()>,
    places: places::Places,
    /// Signalled while a ring holds more than one hearing takes; made when it is first needed.
    more: OnceLock<Option<(EventFd, u64)>>,
    /// The request of a QP that was last found to have no owner of its SRQ.
    unanswered: Lock<HashMap<Qpn, u64>>,
    /// `ANYVERBS_PEER_DEATH=hardware`: the death of a peer shows as on a wire, by nobody answering.
    is_death_quiet: bool,
}

#[derive(Debug)]
struct Claimed {
    slot: Slot,
    token: u64,
    /// Another process held it, and is gone.
    is_inherited: bool,
}

impl Wires {
    /// No wires. Errors are those of memory files.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            own: Own::create()?,
            slots: RwLock::default(),
            qpns: Lock::default(),
            srqns: Lock::default(),
            list: RwLock::new(Arc::new([])),
            version: AtomicU64::new(next_version()),
            by_slot: RwLock::default(),
            by_token: RwLock::default(),
            next_token: AtomicU64::new(engine::FIRST_WIRE_TOKEN),
            started: OnceLock::new(),
            places: places::Places::default(),
            more: OnceLock::new(),
            unanswered: Lock::default(),
            is_death_quiet: settings::choose("ANYVERBS_PEER_DEATH").is_some(),
        })
    }

    /// What peers see of this process.
    pub fn own(&self) -> &Own {
        &self.own
    }

    /// The memory table, which lies where peers of this user can read it.
    pub fn mem_table(&self) -> Result<MemTable, Errno> {
        // SAFETY: the areas are zero, aligned, live as long as `own`, which the node keeps for good, and only the table
        // writes them.
        unsafe { MemTable::over(self.own.mr_area(), MR_CAPACITY as u32, self.own.files_area()) }
    }

    /// This process has claimed the slot.
    pub fn owns_slot(&self, slot: u16) -> bool {
        self.slots.read().unwrap_or_else(|e| e.into_inner()).iter().any(|c| c.slot.number() == slot)
    }

    /// The wire to the process that holds `slot`; none if nobody does.
    pub fn to_slot(&self, node: &Node, slot: u16) -> Option<Arc<Wire>> {
        if let Some(wire) = self.by_slot.read().unwrap_or_else(|e| e.into_inner()).get(&slot) {
            return Some(wire.clone());
        }
        let wire = match self.list().iter().find(|w| w.peer.owns_slot(slot)) {
            Some(wire) => wire.clone(),
            None => self.add(node, Peer::connect(&self.own, slot).ok()?)?,
        };
        self.by_slot.write().unwrap_or_else(|e| e.into_inner()).insert(slot, wire.clone());
        // It may have been lost since it was found.
        if wire.is_lost.load(Ordering::SeqCst) {
            self.by_slot.write().unwrap_or_else(|e| e.into_inner()).remove(&slot);
        }
        Some(wire)
    }

    fn add(&self, node: &Node, peer: Arc<Peer>) -> Option<Arc<Wire>> {
        let token = self.next_token.fetch_add(2, Ordering::Relaxed);
        let wire = Arc::new(Wire {
            peer,
            token,
            cache: Beside::default(),
            unrung: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            blocked: Lock::default(),
            strays: Lock::default(),
            is_blocked: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            better: OnceLock::new(),
            worse: OnceLock::new(),
            is_drained: AtomicBool::new(false),
            heirs_sought: AtomicU32::new(0),
            takes_nothing: AtomicBool::new(false),
        });
        {
            // Held meanwhile: whoever finds the wire lost at once takes it out only after it was put in.
            let mut list = self.list.write().unwrap_or_else(|e| e.into_inner());
            self.by_token.write().unwrap_or_else(|e| e.into_inner()).insert(token, wire.clone());
            if let Err(e) = node.engine.add(wire.peer.socket(), token) {
                self.by_token.write().unwrap_or_else(|e| e.into_inner()).remove(&token);
                explain(format_args!("shm: no connection to process {}: {e:?}", wire.peer.cred().pid));
                return None;
            }
            *list = list.iter().cloned().chain([wire.clone()]).collect();
            self.version.fetch_add(1, Ordering::Release);
        }
        if let Some(pidfd) = wire.peer.pidfd() {
            // Without it, only the hang-up tells.
            let _ = node.engine.add(pidfd, token);
        }
        Some(wire)
    }

    /// Looks into every ring once; true if there was anything.
    #[inline]
    pub fn poll(&self, node: &'static Node, mine: &Looker, taker: &mut Taker<'_>) -> bool {
        with_list(self, mine, |list| poll_all(node, list, taker))
    }

    /// `poll` before sleeping: waits for threads that are looking into a ring, since they may have looked too early.
    pub fn sweep(&self, node: &'static Node) -> bool {
        let mut did = false;
        for wire in self.list().iter() {
            if wire.unrung.load(Ordering::Relaxed) {
                wire.catch_up();
            }
            if wire.peer.rx_ready() {
                did |= receive::receive_waiting(node, wire);
            }
            did |= wire.unblock(node, true);
        }
        did
    }

    /// Something lies in a ring.
    pub fn has_waiting(&self) -> bool {
        self.list().iter().any(|wire| wire.peer.rx_ready())
    }

    /// A descriptor of the epoll set is ready.
    pub fn event(&self, node: &'static Node, token: u64) {
        let wire = self.by_token.read().unwrap_or_else(|e| e.into_inner()).get(&token).cloned();
        match wire {
            Some(wire) => self.hear(node, &wire),
            None if self.is_more(token) => self.take_more(node),
            None => self.accept(node, token),
        }
    }

    fn is_more(&self, token: u64) -> bool {
        matches!(self.more.get(), Some(Some((_, more))) if *more == token)
    }

    /// One round more of every ring, and again as long as there is something. While somebody polls, that is theirs to do:
    /// who ends it looks into every ring.
    fn take_more(&self, node: &'static Node) {
        if let Some(Some((more, _))) = self.more.get() {
            more.drain();
            if self.own.is_asleep() && self.sweep(node) {
                more.signal();
            }
        }
    }

    /// Whoever waits for the engine's descriptors is to `take_more`; false when that cannot be.
    fn leave_more(&self, node: &Node) -> bool {
        let more = self.more.get_or_init(|| {
            let (more, token) = (EventFd::new().ok()?, self.next_token.fetch_add(1, Ordering::Relaxed));
            node.engine.add(more.as_fd(), token).ok()?;
            Some((more, token))
        });
        if let Some((more, _)) = more {
            more.signal();
        }
        more.is_some()
    }

    fn accept(&self, node: &Node, token: u64) {
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner());
        let Some(claimed) = slots.iter().find(|c| c.token == token) else {
            drop(slots);
            return self.accept_at_place(node, token);
        };
        while let Ok(peer) = Peer::accept(&self.own, claimed.slot.as_fd()) {
            self.add(node, peer);
        }
    }

    fn hear(&self, node: &'static Node, wire: &Arc<Wire>) {
        let Ok(heard) = wire.peer.hear() else {
            explain(format_args!(
                "shm: process {} speaks another protocol; its connection is dropped",
                wire.peer.cred().pid
            ));
            return wire.lost(node);
        };
        if heard.came_up {
            self.settle_twins(wire);
            // Direct access needs to know whose QP ours is connected to.
            for qp in node.all_qps() {
                self.publish_qp(&qp);
            }
        }
        if heard.view_went {
            node.all_qps().iter().for_each(|qp| qp.sq.lock().nearby.sweep());
        }
        if heard.wants {
            let gives = self.own.gives_files();
            wire.peer.give(|number| node.mem.file(number).filter(|_| gives)?.handle());
        }
        // A peer that keeps writing does not keep us here.
        while (0..ROUNDS).all(|_| receive::receive_waiting(node, wire)) {
            if self.leave_more(node) {
                break;
            }
        }
        wire.unblock(node, true);
        if heard.hung_up || wire.peer.has_exited() {
            self.part(node, wire);
        }
    }

    /// The peer's process is gone: nothing more will come. What is complete is the application's to find first.
    fn part(&self, node: &'static Node, wire: &Arc<Wire>) {
        node.engine.remove(wire.peer.socket());
        if let Some(pidfd) = wire.peer.pidfd() {
            node.engine.remove(pidfd);
        }
        // Whoever claims the slot next is another process.
        wire.peer.close();
        self.by_slot.write().unwrap_or_else(|e| e.into_inner()).retain(|_, w| !Arc::ptr_eq(w, wire));
        node.timers.arm_wire(wire, clock::now_ns() + GRACE_NS);
    }

    /// Nothing keeps a QP that is being destroyed, and with it its application's descriptors.
    pub fn forget_qp(&self, qp: &Qp) {
        for wire in self.list().iter() {
            let mut inbox = wire.inbox();
            let cache = inbox.cache();
            if cache.qp.as_ref().is_some_and(|cached| cached.num == qp.num) {
                cache.qp = None;
            }
        }
    }

    /// Somebody has not taken what we sent, or not answered it: wake them.
    pub fn nudge(&self) {
        for wire in self.list().iter() {
            let asked = wire.asked.load(Ordering::Relaxed) && wire.asked.swap(false, Ordering::Relaxed);
            if asked || wire.peer.tx.try_lock().is_some_and(|mut tx| tx.has_unconsumed()) {
                wire.peer.ring_doorbell();
            }
        }
    }

    /// Looks again whose slots are whose, and so at each entry, since a trace begins.
    pub fn ask_again(&self) {
        for wire in self.list().iter() {
            wire.inbox().cache().proven = Proven::default();
        }
    }

    fn list(&self) -> List {
        self.list.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn forget(&self, wire: &Arc<Wire>) {
        {
            let mut list = self.list.write().unwrap_or_else(|e| e.into_inner());
            *list = list.iter().filter(|w| !Arc::ptr_eq(w, wire)).cloned().collect();
            self.version.fetch_add(1, Ordering::Release);
        }
        self.by_slot.write().unwrap_or_else(|e| e.into_inner()).retain(|_, w| !Arc::ptr_eq(w, wire));
        self.by_token.write().unwrap_or_else(|e| e.into_inner()).remove(&wire.token);
    }
}

/// Looks into the rings of these wires for some tens of nanoseconds; true if there was anything.
#[inline(always)]
fn poll_all(node: &'static Node, list: &[Arc<Wire>], taker: &mut Taker<'_>) -> bool {
    let (mut did, mut found) = (false, false);
    for wire in list {
        if wire.is_owing() || wire.peer.rx_ready() {
            found = true;
            did |= wire.attend(node, true, taker);
        }
    }
    if found {
        return did || let_finish(list);
    }
    if !watch(list) {
        list.iter().filter(|w| w.untold.load(Ordering::Relaxed)).for_each(|w| receive::try_publish(w));
        return let_finish(list);
    }
    list.iter().fold(false, |did, wire| wire.attend(node, false, taker) | did) || let_finish(list)
}

/// Waits for threads that are taking messages: what they have taken may be what this one polls for, which has seen the reply already.
#[inline(always)]
fn let_finish(list: &[Arc<Wire>]) -> bool {
    list.iter().filter(|w| w.peer.rx.is_busy()).map(|w| w.peer.rx.wait_until_free()).count() > 0
}

impl Wire {
    /// Nothing more comes or goes here.
    fn is_closed(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst) || self.peer.state() == State::Dead
    }

    /// Nothing more comes or goes here, or will once it is known that the process has ended.
    pub fn is_gone(&self) -> bool {
        let fate = self.peer.fate();
        self.is_closed() || fate.hung_up || fate.exited
    }

    /// There is something to do here beside receiving.
    #[inline]
    fn is_owing(&self) -> bool {
        self.unrung.load(Ordering::Relaxed) || self.is_blocked.load(Ordering::Relaxed)
    }

    /// Requests were written, which want an acknowledgement (`asks`) or none.
    #[inline(always)]
    pub fn announce(&self, asks: bool) {
        if asks {
            self.asked.store(true, Ordering::Relaxed);
        }
        // This look at the peer is also the one that an acknowledgement has put off.
        if self.unrung.load(Ordering::Relaxed) {
            self.unrung.store(false, Ordering::Relaxed);
        }
        self.peer.notify();
    }

    /// Does what there is to do here. `burst`: if something lies in the ring, it may be more than one entry.
    fn attend(self: &Arc<Self>, node: &'static Node, burst: bool, taker: &mut Taker<'_>) -> bool {
        // Who has just acknowledged looks for one answer.
        let owes = self.unrung.load(Ordering::Relaxed);
        if owes {
            self.catch_up();
        }
        let mut did = self.peer.rx_ready() && receive::receive(node, self, burst && !owes, taker);
        if self.is_blocked.load(Ordering::Relaxed) {
            did |= self.unblock(node, false);
        }
        did
    }

    /// Looks whether the peer sleeps, for what was sent without that.
    fn catch_up(&self) {
        self.unrung.store(false, Ordering::Relaxed);
        self.peer.notify();
    }
}
