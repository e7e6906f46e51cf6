//! The RoCEv2 port of a process: who gets which packet, connections to other hosts, datagrams to and from them.
use super::flow::{Flow, path_of};
use super::{Endpoint, Path, Received, RxBatch, batch, fits, largest_fitting, route_mtu};
use crate::soft::ah::{Address, Ah};
use crate::soft::engine::{Engine, UDP_TOKEN};
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::qp::attr::Attributes;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::{Ending, Request};
use crate::soft::transport::Outbox;
use crate::soft::types::{Key, QpType, Qpn, SendFlags, WcStatus, WrOpcode};
use crate::soft::wire::{Bth, Deth, Opcode, Operation, Packet, Transport, icrc};
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

/// Receive calls in a row before others get their turn.
const ROUNDS: usize = 8;
/// A port without connections, where nothing has come in for a while, is looked at once in this many polls.
const RARELY: u32 = 64;
/// For how many polls after a datagram it is looked at each time.
const LIVELY: u32 = 2000;

thread_local! {
    static OUTBOX: RefCell<Outbox> = RefCell::default();
}

/// Lends an empty outbox whose memory is kept for the next time.
pub(super) fn with_outbox<R>(work: impl FnOnce(&mut Outbox) -> R) -> R {
    // A thread that ends has none to lend any more.
    let mut out = OUTBOX.try_with(RefCell::take).unwrap_or_default();
    let result = work(&mut out);
    out.clear();
    let _ = OUTBOX.try_with(|kept| kept.replace(out));
    result
}

/// The RoCEv2 port of a process, opened when something first needs it.
#[derive(Debug, Default)]
pub struct Port {
    endpoint: OnceLock<Endpoint>,
    opening: Lock<()>,
    batch: Lock<RxBatch>,
    flows: RwLock<HashMap<u32, Arc<Flow>>>,
    /// Flows, for a look without the lock.
    connections: AtomicU32,
    /// Polls since the last datagram.
    polls: AtomicU32,
}

impl Port {
    /// A closed port.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the port, if it is not open yet.
    ///
    /// # Errors
    /// EADDRINUSE when another process or the kernel's soft-RoCE has it, and what else the kernel answers.
    pub fn open(&self, engine: &Engine) -> Result<(), Errno> {
        let _one = self.opening.lock();
        if self.endpoint.get().is_none() {
            let endpoint = Endpoint::open()?;
            engine.add(endpoint.as_fd(), UDP_TOKEN)?;
            let _ = self.endpoint.set(endpoint);
        }
        Ok(())
    }

    /// Readable when packets wait; `None` while the port is closed.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.get().map(Endpoint::as_fd)
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
        self.open(&qp.node.engine).inspect_err(|e| {
            refuse(format_args!(
                "ah_attr: {dst} is on another host and UDP port 4791 is not to be had: {e:?}"
            ));
        })?;
        let flow = Arc::new(Flow::new(qp, address, attributes));
        let mut flows = self.flows.write().unwrap_or_else(|e| e.into_inner());
        flows.insert(qp.num.0, flow.clone());
        self.connections.store(flows.len() as u32, Ordering::Relaxed);
        drop(flows);
        Ok(flow)
    }

    /// The QP is reset or destroyed.
    pub fn disconnect(&self, qp: &Qp) {
        if self.endpoint.get().is_some() {
            let mut flows = self.flows.write().unwrap_or_else(|e| e.into_inner());
            flows.remove(&qp.num.0);
            self.connections.store(flows.len() as u32, Ordering::Relaxed);
        }
    }

    /// Sends datagrams; while the port is closed they are lost.
    pub(super) fn send(&self, path: &Path, out: &mut Outbox) {
        match self.endpoint.get() {
            Some(endpoint) if !out.is_empty() => endpoint.send(path, out),
            _ => out.clear(),
        }
    }

    /// The kernel would take a burst of packets.
    pub(super) fn has_room(&self) -> bool {
        self.endpoint.get().is_none_or(|endpoint| endpoint.has_room())
    }

    /// Takes packets that have arrived, without waiting; true if there were any. Called with no lock held.
    #[inline]
    pub fn poll(&self, node: &Node) -> bool {
        let Some(endpoint) = self.endpoint.get() else { return false };
        // A lost count does no harm; a locked instruction in every poll would.
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        let quiet = self.connections.load(Ordering::Relaxed) == 0;
        if quiet && polls >= LIVELY && !polls.is_multiple_of(RARELY) {
            return false;
        }
        self.receive(node, endpoint)
    }

    /// The socket is readable.
    pub fn readable(&self, node: &Node) {
        if let Some(endpoint) = self.endpoint.get() {
            self.receive(node, endpoint);
        }
    }

    /// Takes what has arrived, after whoever is at it already. Called with no lock held.
    pub(super) fn take_waiting(&self, node: &Node) {
        if let Some(endpoint) = self.endpoint.get() {
            self.receive_into(node, endpoint, &mut self.batch.lock());
        }
    }

    fn receive(&self, node: &Node, endpoint: &Endpoint) -> bool {
        // Another thread is at it already.
        let Some(mut rx) = self.batch.try_lock() else { return false };
        self.receive_into(node, endpoint, &mut rx)
    }

    fn receive_into(&self, node: &Node, endpoint: &Endpoint, rx: &mut RxBatch) -> bool {
        let mut any = false;
        for _ in 0..ROUNDS {
            let n = endpoint.receive(rx);
            if n == 0 {
                break;
            }
            any = true;
            let mut touched: Vec<(Arc<Qp>, Arc<Flow>)> = Vec::new();
            for received in (0..n).filter_map(|i| rx.get(i)) {
                self.take(node, &received, &mut touched);
            }
            for (qp, flow) in &touched {
                flow.answer(qp);
            }
            if n < batch::RX_BATCH {
                break;
            }
        }
        if any {
            self.polls.store(0, Ordering::Relaxed);
        }
        any
    }

    fn take(&self, node: &Node, received: &Received<'_>, touched: &mut Vec<(Arc<Qp>, Arc<Flow>)>) {
        if icrc::check(&received.ip, received.datagram) == icrc::Verdict::Bad {
            return;
        }
        let Ok((packet, payload)) = Packet::parse(received.datagram) else { return };
        let payload = &received.datagram[payload];
        let to = packet.bth.dest_qpn;
        let Some(qp) = touched.iter().find(|t| t.0.num == to).map(|t| t.0.clone()).or_else(|| node.qp(to))
        else {
            return;
        };
        if let Some(deth) = packet.deth {
            return take_datagram(&qp, received, &packet, deth, payload);
        }
        let flow = match touched.iter().find(|t| t.0.num == to) {
            Some((_, flow)) => flow.clone(),
            None => {
                let flows = self.flows.read().unwrap_or_else(|e| e.into_inner());
                let Some(flow) = flows.get(&to.0).cloned() else { return };
                drop(flows);
                touched.push((qp.clone(), flow.clone()));
                flow
            }
        };
        // A connection is between two addresses.
        if received.ip.src == flow.path().dst {
            flow.receive(&qp, &packet, payload);
        }
    }
}

/// Sends UD request `at` to another host. A datagram that cannot go is lost.
///
/// # Errors
/// How the request fails.
pub fn send_datagram(qp: &Qp, sq: &Requester, at: u64, ah: &Ah) -> Result<(), WcStatus> {
    let wqe = sq.queue.wqe(at);
    if wqe.length > Qp::MAX_DATAGRAM {
        return Err(WcStatus::LocLenErr);
    }
    let imm = matches!(wqe.opcode, WrOpcode::SendImm).then_some(wqe.imm);
    let operation = if imm.is_some() { Operation::SendOnlyImm } else { Operation::SendOnly };
    let bth = Bth {
        solicited: wqe.flags.contains(SendFlags::SOLICITED),
        ..Bth::new(Opcode::new(Transport::Ud, operation), wqe.remote_qpn, sq.psn.plus(at as u32))
    };
    let deth = Deth { qkey: sq.qkey_of(at), src_qpn: qp.num };
    let packet = Packet { deth: Some(deth), imm, ..Packet::new(bth) };
    with_outbox(|out| {
        let bytes = out.push(&packet, wqe.length as usize);
        sq.gather(qp, at, 0, RunMut::of(bytes))?;
        qp.node.udp.send(&path_of(qp.node, &ah.address), out);
        Ok(())
    })
}

/// A datagram for a UD QP; one that it does not want leaves no trace.
fn take_datagram(qp: &Qp, received: &Received<'_>, packet: &Packet, deth: Deth, payload: &[u8]) {
    let mut rq = qp.rq.lock();
    if qp.kind != QpType::Ud || !rq.listens(qp) || payload.len() > Qp::MAX_DATAGRAM as usize {
        return;
    }
    let request = Request {
        op: if packet.imm.is_some() { WrOpcode::SendImm } else { WrOpcode::Send },
        total: Some(payload.len() as u32),
        remote_addr: 0,
        rkey: Key(0),
        compare_add: 0,
        swap: 0,
        srqn: 0,
        src_qpn: Qpn(deth.src_qpn.0),
    };
    let grh = received.ip.grh(received.datagram.len(), received.traffic_class, received.hop_limit);
    if rq.begin_datagram(qp, request, deth.qkey, &grh) && rq.place(qp, Run::of(payload)).is_ok() {
        let ending = Ending {
            imm: packet.imm,
            invalidate: None,
            solicited: packet.bth.solicited,
            sl: received.traffic_class >> 5,
            no_grh: false,
        };
        // Nobody hears of a datagram that is lost here.
        let _ = rq.finish(qp, ending);
    }
}
