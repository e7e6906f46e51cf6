//! The RoCEv2 port of a process: its socket, connections to other hosts, and what leaves by it.
pub(super) mod take;

use super::flow::{Flow, path_of};
use super::groups::Memberships;
use super::lookout::{Bound, Lookout};
use super::owed::Owed;
use super::pace::Destination;
use super::route::Route;
use super::share::Share;
use super::work::Intake;
use super::{Endpoint, Path, fits, largest_fitting, route_mtu};
use crate::soft::ah::Address;
use crate::soft::cq::Taker;
use crate::soft::engine::{self, UDP_TOKEN};
use crate::soft::link::faults::chance::Chance;
use crate::soft::link::faults::packets::{self, Held};
use crate::soft::link::pcap;
use crate::soft::node::Node;
use crate::soft::numbered::Numbered;
use crate::soft::qp::Qp;
use crate::soft::qp::attr::Attributes;
use crate::soft::transport::Outbox;
use crate::sys::annotate::{OnceLock, RwLock};
use crate::sys::clock;
use crate::sys::epoll::{self, Epoll};
use crate::sys::errno::Errno;
use crate::sys::exit;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::thread;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// For how many polls after a datagram it is looked at each time.
const LIVELY: u32 = 2000;
/// After so much silence the port is bound anew: whoever was last to bind it may be stopped.
const SILENCE: u64 = 100_000_000;
/// The least time between two bindings: because of silence, and because packets are not taken.
const RENEWALS: u64 = 1_000_000_000;
const TAKE_OVERS: u64 = 200_000_000;
/// Where processes that share the port find each other.
const SHARERS: &str = "port";

thread_local! {
    static OUTBOX: Cell<Option<Box<Outbox>>> = const { Cell::new(None) };
}

/// Lends an empty outbox whose memory is kept for the next time.
#[inline]
pub(super) fn with_outbox<R>(work: impl FnOnce(&mut Outbox) -> R) -> R {
    // Who has it already, and a thread that ends, get another one.
    let mut out = OUTBOX.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = work(&mut out);
    out.clear();
    let _ = OUTBOX.try_with(|kept| kept.set(Some(out)));
    result
}

/// The RoCEv2 port of a process, opened when something first needs it.
#[derive(Debug, Default)]
pub struct Port {
    pub(super) door: OnceLock<Door>,
    opening: Lock<()>,
    pub(super) batch: Lock<Intake>,
    pub(super) flows: RwLock<Numbered<Arc<Flow>>>,
    share: Share,
    memberships: Lock<Memberships>,
    lookout: OnceLock<Lookout>,
    pub(super) owed: Owed,
    /// The hosts of all flows.
    destinations: Lock<HashMap<IpAddr, Weak<Destination>>>,
    /// Flows, for a look without the lock.
    pub(super) connections: AtomicU32,
    /// Polls since the last datagram,
    polls: AtomicU32,
    /// and since the last one that another process brought.
    inbox_polls: AtomicU32,
    /// A thread that polls has sent much.
    was_long: AtomicBool,
    /// When a packet last came, and when the port was bound.
    heard: AtomicU64,
    bound: AtomicU64,
    /// Packets that faults hold back.
    held: Held,
}

/// An open port.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) endpoint: Endpoint,
    /// The socket, and what brings the packets that other processes get for us.
    set: Epoll,
}

impl Port {
    /// A closed port.
    pub fn new() -> Self {
        Self { inbox_polls: AtomicU32::new(LIVELY), ..Self::default() }
    }

    /// Opens the port, if it is not open yet, to packets for `qp`.
    ///
    /// # Errors
    /// EADDRINUSE when the kernel's soft-RoCE or another program has it, and what else the kernel answers.
    pub fn open(&self, qp: &Qp) -> Result<(), Errno> {
        let _one = self.opening.lock();
        if self.door.get().is_none() {
            let lookout = Lookout::new(SHARERS)?;
            let not_before = clock::now_ns();
            let door = Door { endpoint: Endpoint::open()?, set: Epoll::new()? };
            self.batch.lock().open()?;
            door.set.add(door.endpoint.as_fd(), epoll::IN, 0)?;
            qp.node.engine.add(door.set.as_fd(), UDP_TOKEN)?;
            let lookout = self.lookout.get_or_init(|| lookout);
            self.show(&door, lookout, not_before);
            let _ = self.door.set(door);
            self.follow_groups(qp.node);
            look_out(qp.node);
            exit::at_exit(engine::leave);
        }
        match self.door.get() {
            Some(door) => self.share.open_inbox(&door.set, qp.num.slot()),
            None => Err(Errno::EADDRINUSE),
        }
    }

    /// Lets packets wake who waits for the set, or not.
    pub fn heed(&self, heed: bool) {
        if let Some(door) = self.door.get() {
            let socket = door.endpoint.as_fd();
            match heed {
                // It may be in the set already.
                true => _ = door.set.add(socket, epoll::IN, 0),
                // Masked, it would still cost the sender of each packet a call into the set.
                false => door.set.remove(socket),
            }
        }
    }

    /// Readable when packets wait; `None` while the port is closed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.door.get().map(|door| door.set.as_fd())
    }

    /// QPs were attached to groups or detached, or addresses have changed: the kernel is to know.
    pub fn follow_groups(&self, node: &Node) {
        let Some(door) = self.door.get() else { return };
        // Held while the groups are asked for: who comes last knows of all changes.
        let mut memberships = self.memberships.lock();
        let groups = node.groups.all();
        if !groups.is_empty() || !memberships.is_empty() {
            memberships.follow(&door.endpoint.as_fd(), &groups, &node.gids().entries());
        }
    }

    /// Some QP has its peer on another host.
    pub fn is_connected(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 0
    }

    /// Packets for other processes come in here: they must not wait until this one polls.
    pub fn serves_others(&self) -> bool {
        self.share.serves_others()
    }

    /// Connects a QP that moves to RTR to a peer on another host.
    ///
    /// # Errors
    /// EINVAL when the route does not carry the path MTU, or there is none; EADDRINUSE when the port is taken.
    /// `refuse` explains.
    pub fn connect(
        &self,
        qp: &Qp,
        address: &Address,
        attributes: &Attributes,
        refuse: &dyn Fn(fmt::Arguments<'_>) -> Errno,
    ) -> Result<Arc<Flow>, Errno> {
        let (src, dst) = (address.sgid.ip(), address.dgid.ip());
        let carries = route_mtu(&path_of(qp.node, address)).map_err(|e| {
            refuse(format_args!(
                "ah_attr: no route from {src} (sgid_index {}) to {dst}: {e:?}",
                address.sgid_index
            ))
        })?;
        let mtu = attributes.path_mtu;
        if !fits(mtu, carries, dst.is_ipv6()) {
            return Err(refuse(format_args!(
                "path_mtu={}: the route to {dst} carries packets of {carries} bytes, expected at most IBV_MTU_{}",
                mtu.bytes(),
                largest_fitting(carries, dst.is_ipv6()).bytes()
            )));
        }
        self.open(qp).inspect_err(|e| {
            refuse(format_args!(
                "ah_attr: {dst} is on another host and UDP port 4791 is not to be had: {e:?}"
            ));
        })?;
        let Some(door) = self.door.get() else { return Err(Errno::EADDRINUSE) };
        let route = door.endpoint.route(&path_of(qp.node, address));
        let flow = Arc::new(Flow::new(qp, route, attributes, self.destination(dst)));
        let mut flows = self.flows.write().unwrap_or_else(|e| e.into_inner());
        flows.insert(qp.num.0, flow.clone());
        self.connections.store(flows.len() as u32, Ordering::Relaxed);
        drop(flows);
        Ok(flow)
    }

    fn destination(&self, dst: IpAddr) -> Arc<Destination> {
        let mut all = self.destinations.lock();
        if let Some(known) = all.get(&dst).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Destination::default());
        all.insert(dst, Arc::downgrade(&new));
        new
    }

    /// Sends datagrams, those of one size as one where `join` allows; while the port is closed they are lost. `chance` has
    /// some go astray.
    pub(super) fn send(
        &self,
        node: &Node,
        route: &Route,
        out: &mut Outbox,
        join: bool,
        chance: Option<&mut Chance>,
    ) {
        match self.door.get() {
            Some(door) if !out.is_empty() => match chance {
                None if !pcap::is_on() => door.endpoint.send_along(route, out, join),
                chance => self.send_singly(node, door, route.path(), out, chance),
            },
            _ => out.clear(),
        }
    }

    /// The same along any path; one datagram.
    pub(super) fn send_to(&self, node: &Node, path: &Path, out: &mut Outbox, chance: Option<&mut Chance>) {
        match self.door.get() {
            Some(door) => self.send(node, &door.endpoint.route(path), out, false, chance),
            None => out.clear(),
        }
    }

    /// Packets that leave together may leave as one, which the receiver then has as one.
    pub(super) fn joins(&self) -> bool {
        self.door.get().is_some_and(|door| door.endpoint.joins()) && !pcap::is_on()
    }

    /// Sends packets one by one, after faults have struck and a trace has seen what goes.
    #[cold]
    fn send_singly(
        &self,
        node: &Node,
        door: &Door,
        path: &Path,
        out: &mut Outbox,
        chance: Option<&mut Chance>,
    ) {
        out.seal(&path.ip_udp());
        if let Some(chance) = chance {
            let mut first = u64::MAX;
            packets::strike(&path.ip_udp(), out, chance, clock::now_ns(), |due, datagram| {
                first = first.min(due);
                self.held.put(due, path, datagram)
            });
            if first < u64::MAX {
                node.timers.arm_packets(first);
            }
        }
        if pcap::is_on() {
            node.trace.sent(path, out);
        }
        door.endpoint.send(path, out, false);
    }

    /// Sends the packets that were held back until `now`.
    pub fn send_held(&self, node: &Node, now: u64) {
        let Some(door) = self.door.get() else { return };
        with_outbox(|out| {
            while let Some((path, datagram)) = self.held.next(now) {
                out.push_bytes(&datagram);
                out.set_sealed();
                if pcap::is_on() {
                    node.trace.sent(&path, out);
                }
                door.endpoint.send(&path, out, false);
            }
        });
        if let Some(due) = self.held.first() {
            node.timers.arm_packets(due);
        }
    }

    /// The kernel would take a burst of packets.
    pub(super) fn has_room(&self) -> bool {
        self.door.get().is_none_or(|door| door.endpoint.has_room())
    }

    /// A peer does not answer. Whoever gets our packets may be stopped: after some silence this process takes its place,
    /// and passes on what is not its own. Called with no lock held.
    pub(super) fn suspect(&self, node: &Node, now: u64) {
        let Some(door) = self.door.get() else { return };
        if now.saturating_sub(self.heard.load(Ordering::Relaxed)) >= SILENCE {
            self.renew(node, door, now, RENEWALS);
        }
    }

    /// Binds the port anew, unless that was less than `pause` ago.
    fn renew(&self, node: &Node, door: &Door, now: u64, pause: u64) {
        let mut batch = self.batch.lock();
        if now.saturating_sub(self.bound.load(Ordering::Relaxed)) < pause {
            return;
        }
        self.receive_into(node, door, &mut batch, true, false, &mut Taker::nobody());
        let not_before = clock::now_ns();
        let Ok(old) = door.endpoint.renew(&self.memberships.lock()) else {
            // Not again at once.
            return self.bound.store(not_before, Ordering::Relaxed);
        };
        let _ = door.set.add(door.endpoint.as_fd(), epoll::IN, 0);
        if let Some(lookout) = self.lookout.get() {
            self.show(door, lookout, not_before);
        }
        // What came before the new socket was there. Nothing more comes, so this ends.
        if let Intake { rx: Some(rx), touched } = &mut *batch {
            while rx.receive(old.as_raw_fd()) > 0 {
                self.serve(node, rx.packets(), touched, true, false, &mut Taker::nobody());
            }
        }
    }

    /// Others are to see whether packets wait here.
    fn show(&self, door: &Door, lookout: &Lookout, not_before: u64) {
        let not_after = clock::now_ns();
        self.bound.store(not_after, Ordering::Relaxed);
        let shown = lookout.show(SHARERS, door.endpoint.as_fd(), Bound { not_before, not_after });
        if let Err(e) = shown {
            explain(format_args!("urxe: while this process is stopped, others may get no packets: {e:?}"));
        }
    }

    pub(super) fn flow(&self, qp: &Qp) -> Option<Arc<Flow>> {
        self.flows.read().unwrap_or_else(|e| e.into_inner()).get(&qp.num.0).cloned()
    }
}

/// Starts the thread that takes over when whoever gets the packets is stopped.
fn look_out(node: &'static Node) {
    let Some(lookout) = node.udp.lookout.get() else { return };
    let take_over = || {
        if let Some(door) = node.udp.door.get() {
            node.udp.renew(node, door, clock::now_ns(), TAKE_OVERS);
        }
    };
    let started = thread::start("anyverbs-port", 128 * 1024, move || {
        if let Err(e) = lookout.watch(take_over) {
            explain(format_args!("urxe: nobody looks here whether the port's owner is stopped: {e:?}"));
        }
    });
    if let Err(e) = started {
        explain(format_args!("urxe: nobody looks here whether the port's owner is stopped: {e:?}"));
    }
}
