//! What a process has once, however many contexts it opens: QPs by number, memory keys, wires to other processes, timers.
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::census::Census;
use super::device;
use super::engine::Engine;
use super::gid::GidTable;
use super::link::faults::{self, Spec};
use super::link::pcap::Trace;
use super::link::udp::port::Port;
use super::link::wires::Wires;
use super::mcast::Groups;
use super::mem::{DmPool, MemTable, PdTable};
use super::numbered::Numbered;
use super::port::PortEvents;
use super::qp::Qp;
use super::srq::Srq;
use super::stats::Stats;
use super::timers::Timers;
use super::types::{Gid, Qpn};
use super::verbs::{Desk, DmHandles, Domains};
use crate::sys::annotate::RwLock;
use crate::sys::errno::Errno;
use crate::sys::fork;
use crate::sys::lock::Lock;
use crate::sys::map;

/// The process as a host of QPs. A forked child that uses verbs gets its own.
#[derive(Debug)]
pub struct Node {
    /// The fork generation that it belongs to.
    pub generation: u32,
    #[allow(missing_docs)]
    pub mem: MemTable,
    #[allow(missing_docs)]
    pub pds: PdTable,
    #[allow(missing_docs)]
    pub dm: DmPool,
    #[allow(missing_docs)]
    pub timers: Timers,
    #[allow(missing_docs)]
    pub engine: Engine,
    /// The other processes of this host that it talks to, and how they reach it.
    pub wires: Wires,
    /// The way to other hosts.
    pub udp: Port,
    gids: GidTable,
    /// What there is of each device.
    pub census: [Census; device::MAX_DEVICES],
    /// Device memory that can be imported.
    pub dm_handles: DmHandles,
    /// The XRC domains that it has open.
    pub domains: Domains,
    /// Where other processes of this user ask for shared objects.
    pub desk: Desk,
    /// What happens to the port, told to every context.
    pub events: PortEvents,
    /// The multicast groups of its QPs.
    pub groups: Groups,
    /// What is counted.
    pub stats: Stats,
    qps: RwLock<Numbered<Arc<Qp>>>,
    /// Counts removals from `qps`, so that a cached reference is known to be stale.
    pub qp_epoch: AtomicU32,
    srqs: RwLock<Numbered<Arc<Srq>>>,
    /// What goes wrong with the messages of its QPs, by the environment.
    pub faults: Spec,
    /// What goes over every path, for Wireshark.
    pub trace: Trace,
    /// QPs that the application has made so far.
    pub qps_made: AtomicU64,
    deferred: Lock<Vec<Arc<Qp>>>,
    has_deferred: AtomicBool,
}

static CURRENT: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

/// The node of this process, made by the first call. Errors are those of memory and descriptors.
pub fn node() -> Result<&'static Node, Errno> {
    if let Some(node) = existing() {
        return Ok(node);
    }
    map::avoid(|start, len| existing().is_some_and(|node| node.mem.covers(start, len)));
    let before = CURRENT.load(Ordering::Acquire);
    let new = Box::into_raw(Box::new(Node::new()?));
    match CURRENT.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: nodes are never freed: contexts and threads keep references for good.
            let node = unsafe { &*new };
            node.trace_by_environment();
            Ok(node)
        }
        Err(_) => {
            // SAFETY: this one lost the race and nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
            existing().ok_or(Errno::ENOMEM)
        }
    }
}

/// The node of this process, if it has one.
#[inline]
pub fn existing() -> Option<&'static Node> {
    // SAFETY: CURRENT holds null or a node, which is never freed.
    let node = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }?;
    node.is_ours().then_some(node)
}

impl Node {
    fn new() -> Result<Self, Errno> {
        let generation = fork::generation();
        let faults = faults::from_environment()?;
        let wires = Wires::new()?;
        Ok(Self {
            generation,
            mem: wires.mem_table()?,
            stats: Stats::new(wires.own().nonce()),
            pds: PdTable::new(device::limits::MAX_PD),
            dm: DmPool::new(device::limits::MAX_DM_SIZE),
            timers: Timers::new(),
            engine: Engine::new()?,
            wires,
            udp: Port::new(),
            gids: GidTable::new(),
            census: std::array::from_fn(|_| Census::default()),
            dm_handles: DmHandles::default(),
            domains: Domains::default(),
            desk: Desk::default(),
            events: PortEvents::default(),
            groups: Groups::default(),
            qps: RwLock::default(),
            qp_epoch: AtomicU32::new(0),
            srqs: RwLock::default(),
            faults,
            trace: Trace::default(),
            qps_made: AtomicU64::new(0),
            deferred: Lock::new(Vec::new()),
            has_deferred: AtomicBool::new(false),
        })
    }

    /// This process made it, not the one that it was forked from.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// The QP of this number.
    #[inline]
    pub fn qp(&self, num: Qpn) -> Option<Arc<Qp>> {
        self.qps.read().unwrap_or_else(|e| e.into_inner()).get(&num.0).cloned()
    }

    /// Makes a QP reachable.
    pub fn add_qp(&self, qp: &Arc<Qp>) {
        self.qps.write().unwrap_or_else(|e| e.into_inner()).insert(qp.num.0, qp.clone());
        self.publish_qp(qp);
    }

    /// Ends that; its number is not given again for long.
    pub fn remove_qp(&self, qp: &Qp) {
        self.udp.take_last(qp);
        self.qps.write().unwrap_or_else(|e| e.into_inner()).remove(&qp.num.0);
        self.qp_epoch.fetch_add(1, Ordering::Release);
        self.wires.withdraw_qp(qp);
        self.wires.forget_qp(qp);
        self.udp.disconnect(qp);
        // What is on its way arrives also if the process ends now.
        self.udp.send_held(self, u64::MAX);
        self.wires.free_qpn(qp.num);
    }

    /// All QPs.
    pub fn all_qps(&self) -> Vec<Arc<Qp>> {
        self.qps.read().unwrap_or_else(|e| e.into_inner()).values().cloned().collect()
    }

    /// Tells peers of this user what direct access to the QP needs to know.
    pub fn publish_qp(&self, qp: &Qp) {
        self.wires.publish_qp(qp);
    }

    /// The XRC SRQ of this number.
    pub fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.srqs.read().unwrap_or_else(|e| e.into_inner()).get(&number).cloned()
    }

    /// Makes an XRC SRQ reachable.
    pub fn add_srq(&self, number: u32, srq: &Arc<Srq>) {
        self.srqs.write().unwrap_or_else(|e| e.into_inner()).insert(number, srq.clone());
    }

    /// Ends that.
    pub fn remove_srq(&self, number: u32) {
        self.srqs.write().unwrap_or_else(|e| e.into_inner()).remove(&number);
        self.wires.free_srqn(number);
    }

    /// A GID of the table; EINVAL beyond it, ENODATA for an empty slot.
    pub fn gid(&self, index: u32) -> Result<Gid, Errno> {
        match self.gids.gid(index as usize) {
            None => Err(Errno::EINVAL),
            Some(gid) if gid.is_zero() => Err(Errno::ENODATA),
            Some(gid) => Ok(gid),
        }
    }

    /// The GID table.
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// The GID is an address of this host.
    pub fn is_this_host(&self, gid: Gid) -> bool {
        self.gids.is_local(gid.ip())
    }

    /// A process of ours has claimed this slot: this one.
    pub fn owns_slot(&self, slot: u16) -> bool {
        self.wires.owns_slot(slot)
    }

    /// Leaves the rest of a QP's failure to whoever holds no lock next.
    pub fn defer(&self, qp: Arc<Qp>) {
        self.deferred.lock().push(qp);
        self.has_deferred.store(true, Ordering::Release);
    }

    /// Does what was deferred. Called with no QP lock held.
    #[inline]
    pub fn settle(&self) {
        if self.has_deferred.load(Ordering::Relaxed) {
            self.settle_slow();
        }
    }

    #[cold]
    fn settle_slow(&self) {
        while self.has_deferred.swap(false, Ordering::AcqRel) {
            let qps = std::mem::take(&mut *self.deferred.lock());
            for qp in qps {
                qp.finish_deferred();
            }
        }
    }
}
