//! The receive half of a QP: what an arriving request may do, where its bytes go, how it completes.
mod effects;
mod receives;

pub use receives::Whole;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counters::Attached;
use super::recvq::{RecvQueue, Taken};
use super::{Nak, Qp, reason};
use crate::soft::ah;
use crate::soft::cq::{Cq, Cqe, WC_GRH, WC_WITH_IMM, WC_WITH_INV};
use crate::soft::device;
use crate::soft::link::faults;
use crate::soft::link::wires::Outbox;
use crate::soft::mem::run::{Access64, Run, RunMut};
use crate::soft::mem::{Denied, PdId, Span, gather};
use crate::soft::srq::Srq;
use crate::soft::stats::{Event, Half};
use crate::soft::types::{
    Access, EventType, Key, MAX_MESSAGE, Psn, QpState, QpType, Qpn, WcOpcode, WcStatus, WrOpcode,
};
use crate::sys::log::explain;

/// Bytes before the payload of a UD receive.
pub const GRH_BYTES: usize = 40;

/// An arriving request, as the first word of it says.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    #[allow(missing_docs)]
    pub op: WrOpcode,
    /// Payload bytes of the whole message; a SEND on the wire tells only at its end.
    pub total: Option<u32>,
    /// Where RDMA and atomics go.
    pub remote_addr: u64,
    #[allow(missing_docs)]
    pub rkey: Key,
    /// Compare value, or the addend.
    pub compare_add: u64,
    #[allow(missing_docs)]
    pub swap: u64,
    /// XRC: the SRQ that the sender names.
    pub srqn: u32,
    #[allow(missing_docs)]
    pub src_qpn: Qpn,
}

/// What the last word of a request says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ending {
    /// Immediate data in network byte order.
    pub imm: Option<u32>,
    /// The key of ours that the sender invalidates.
    pub invalidate: Option<Key>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// UD: service level, told on an InfiniBand port.
    pub sl: u8,
    /// UD: the address was a LID; the 40 bytes before the payload mean nothing.
    pub no_grh: bool,
    /// UD: the sender's LID where it is another host's, else 0.
    pub slid: u16,
}

/// The receive half.
#[derive(Debug)]
pub struct Responder {
    queue: Option<RecvQueue>,
    srq: Option<Arc<Srq>>,
    cq: Option<Arc<Cq>>,
    /// What counts its completions, and the peer's operations.
    pub counters: Option<Arc<Attached>>,
    /// Where it counts.
    pub stats: Half,
    /// Remote access that the QP allows (`IBV_QP_ACCESS_FLAGS`).
    pub access: Access,
    /// The QP whose requests are heard (connected QPs).
    pub peer: Qpn,
    /// The PSN that the next request must have; messages on shm, packets on udp.
    pub psn: Psn,
    /// READs and atomics that the requester may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// The code of the time that an RNR NAK asks the requester to wait (IBA table 45).
    pub min_rnr_timer: u8,
    /// UD: requests must carry it.
    pub qkey: u32,
    /// UD: what the header before the payload of the message that is arriving is, as [`ah::packet_type`] tells.
    packet_type: u8,
    /// The message that is arriving.
    current: Option<Arriving>,
    /// The receive request it has taken; kept for its memory.
    taken: Taken,
    /// `taken` belongs to a message that was abandoned; the next one takes it.
    parked: bool,
    /// XRC: the SRQ that `taken` came from.
    parked_srq: Option<Arc<Srq>>,
    established: bool,
    last_wqe_told: bool,
    /// Answers that wait for room in a ring.
    pub outbox: Outbox,
    /// A refusal was sent and its request has not come again: what follows it is dropped without a word.
    pub refused: bool,
    /// What goes wrong on request.
    pub faults: Option<Box<faults::Receiving>>,
}

#[derive(Debug)]
struct Arriving {
    request: Request,
    placed: u64,
    has_taken: bool,
    /// XRC: the SRQ it goes to.
    srq: Option<Arc<Srq>>,
}

/// Why bytes of a message were not placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unplaced {
    /// The responder refuses the message, and has done so.
    Refused(Nak),
    /// They could not be copied, for the memory of one of the ends: [`Responder::refuse_unplaced`] blames the responder's.
    Memory,
}

impl Arriving {
    /// The domain of the receive that it has taken.
    fn pd_of_receive(&self, qp: &Qp, own: &Option<Arc<Srq>>) -> PdId {
        self.srq.as_ref().or(own.as_ref()).map_or(qp.pd, |srq| srq.pd)
    }
}

impl Responder {
    /// The receive half over its own queue or an SRQ; XRC receivers have neither, XRC senders no CQ.
    pub fn new(queue: Option<RecvQueue>, srq: Option<Arc<Srq>>, cq: Option<Arc<Cq>>) -> Self {
        Self {
            queue,
            srq,
            cq,
            counters: None,
            stats: Half::default(),
            access: Access::empty(),
            peer: Qpn(0),
            psn: Psn::new(0),
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            qkey: 0,
            packet_type: 0,
            current: None,
            taken: Taken::default(),
            parked: false,
            parked_srq: None,
            established: false,
            last_wqe_told: false,
            outbox: Outbox::default(),
            refused: false,
            faults: None,
        }
    }

    /// Its own receive queue; none where an SRQ serves.
    pub fn queue(&mut self) -> Option<&mut RecvQueue> {
        self.queue.as_mut()
    }

    /// The QP is destroyed: its own queue is no more.
    pub fn drop_queue(&mut self) {
        self.queue = None;
    }

    /// The SRQ that serves it.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// The CQ of its receives.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.cq.as_ref()
    }

    /// Requests are carried out in this state.
    #[inline]
    pub fn listens(&self, qp: &Qp) -> bool {
        matches!(qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Takes up counting with a request that begins with `psn`, if it does not know how far its requester has come.
    #[cold]
    pub fn adopt(&mut self, psn: Psn, begins: bool) -> bool {
        let adopts = self.psn == Psn::ANY && begins;
        if adopts {
            self.psn = psn;
        }
        adopts
    }

    /// A message is half here.
    pub fn is_midway(&self) -> bool {
        self.current.is_some()
    }

    /// Whether a request takes a receive that other QPs could have.
    #[inline]
    pub fn takes_shared(&self, qp: &Qp, request: &Request) -> bool {
        (self.srq.is_some() || qp.kind == QpType::XrcRecv) && request.op != WrOpcode::Write
    }

    /// Begins a SEND or WRITE: checks access, takes a receive request. On `Rnr` nothing has changed.
    #[inline]
    pub fn begin(&mut self, qp: &Qp, request: Request) -> Result<(), Nak> {
        if !self.established {
            self.establish(qp);
        }
        self.abandon();
        let total = request.total.unwrap_or(0);
        if total > MAX_MESSAGE {
            return self.refuse(qp, Nak::InvalidRequest);
        }
        let srq = match self.xrc_srq(qp, &request) {
            Ok(srq) => srq,
            Err(nak) => return self.refuse(qp, nak),
        };
        self.current = Some(Arriving { request, placed: 0, has_taken: false, srq });
        match request.op {
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv => {
                self.take(qp)?;
                let room = self.taken.room;
                if request.total.is_some_and(|n| n as u64 > room) {
                    self.explain_too_long(qp, total.into());
                    return self.refuse_taken(qp, WcStatus::LocLenErr, Nak::InvalidRequest);
                }
            }
            WrOpcode::Write | WrOpcode::WriteImm => {
                if !self.access.contains(Access::REMOTE_WRITE) {
                    return self.refuse(qp, Nak::InvalidRequest);
                }
                if total > 0 {
                    let (va, need) = (request.remote_addr, Access::REMOTE_WRITE);
                    let pd = self.pd_of_current(qp);
                    if qp.node.mem.remote(pd, qp.num, request.rkey, va, total as u64, need).is_err() {
                        return self.refuse(qp, Nak::RemoteAccess);
                    }
                }
                // Where the length is known from the start, so is the opcode: take the receive before the data moves.
                if request.op == WrOpcode::WriteImm && request.total.is_some() {
                    self.take(qp)?;
                }
            }
            _ => return self.refuse(qp, Nak::InvalidRequest),
        }
        Ok(())
    }

    /// Begins a UD message: a wrong Q_Key, or a message that does not fit, is dropped without a trace (false).
    pub fn begin_datagram(&mut self, qp: &Qp, request: Request, qkey: u32, grh: &[u8; GRH_BYTES]) -> bool {
        if qkey != self.qkey {
            explain(format_args!(
                "qp {:?}: datagram from {:?} dropped: its Q_Key is 0x{qkey:08x}, expected 0x{:08x}",
                qp.num, request.src_qpn, self.qkey
            ));
            self.drop_datagram(&request, Event::BadQkey);
            return false;
        }
        let needs = GRH_BYTES as u64 + request.total.unwrap_or(0) as u64;
        let room = match &self.srq {
            Some(srq) => srq.room_of_next(),
            None => self.queue.as_ref().and_then(RecvQueue::room_of_next),
        };
        if room.is_none_or(|room| room < needs) {
            let why = if room.is_none() { Event::NoReceive } else { Event::Dropped };
            self.drop_datagram(&request, why);
            match room {
                Some(room) => explain(format_args!(
                    "qp {:?}: datagram from {:?} dropped: it needs {needs} bytes (40 of them for the GRH), the receive has {room}",
                    qp.num, request.src_qpn
                )),
                None => explain(format_args!(
                    "qp {:?}: datagram from {:?} dropped: no receive is posted",
                    qp.num, request.src_qpn
                )),
            }
            return false;
        }
        self.packet_type = ah::packet_type(grh);
        self.begin(qp, Request { total: None, ..request }).is_ok() && self.place(qp, Run::of(grh)).is_ok()
    }

    /// Counts a datagram that the QP does not want.
    #[cold]
    pub fn drop_datagram(&self, request: &Request, why: Event) {
        self.stats.received_in_vain(QpType::Ud, request.op, request.total.unwrap_or(0));
        self.stats.event(why, 1);
    }

    /// Places the next bytes of the message.
    #[inline]
    pub fn place(&mut self, qp: &Qp, bytes: Run<'_>) -> Result<(), Nak> {
        self.try_place(qp, bytes).or_else(|why| self.refuse_unplaced(qp, why))
    }

    /// The same, and blames nobody yet where the copy fails.
    #[inline]
    pub fn try_place(&mut self, qp: &Qp, bytes: Run<'_>) -> Result<(), Unplaced> {
        let Some(current) = &mut self.current else { return Err(Unplaced::Refused(Nak::InvalidRequest)) };
        let (at, n) = (current.placed, bytes.len() as u64);
        current.placed += n;
        match current.request.op {
            WrOpcode::Write | WrOpcode::WriteImm => {
                if n == 0 {
                    return Ok(());
                }
                if current.request.total.is_some_and(|total| at + n > total as u64) {
                    return self.refuse(qp, Nak::InvalidRequest).map_err(Unplaced::Refused);
                }
                let va = current.request.remote_addr.wrapping_add(at);
                let (key, need) = (current.request.rkey, Access::REMOTE_WRITE);
                let wrote = match qp.node.mem.remote(self.pd_of_current(qp), qp.num, key, va, n, need) {
                    Ok(span) => span.run_mut().fill(bytes).is_ok(),
                    Err(_) => false,
                };
                if wrote { Ok(()) } else { Err(Unplaced::Memory) }
            }
            _ => {
                if at + n > self.taken.room {
                    self.explain_too_long(qp, at + n);
                    let refused = self.refuse_taken(qp, WcStatus::LocLenErr, Nak::InvalidRequest);
                    return refused.map_err(Unplaced::Refused);
                }
                let pd = current.pd_of_receive(qp, &self.srq);
                let placed = gather::scatter(&qp.node.mem, pd, &self.taken.sges, at, bytes);
                placed.map_err(|_| Unplaced::Memory)
            }
        }
    }

    /// Refuses a message whose bytes could not be placed, for the memory of this end.
    #[cold]
    pub fn refuse_unplaced(&mut self, qp: &Qp, why: Unplaced) -> Result<(), Nak> {
        let current = match (why, &self.current) {
            (Unplaced::Refused(nak), _) => return Err(nak),
            (Unplaced::Memory, None) => return Err(Nak::InvalidRequest),
            (Unplaced::Memory, Some(current)) => current,
        };
        if matches!(current.request.op, WrOpcode::Write | WrOpcode::WriteImm) {
            return self.refuse_any(qp, WcStatus::LocAccessErr, Nak::RemoteAccess);
        }
        let pd = current.pd_of_receive(qp, &self.srq);
        let why = reason::Local { qp, pd, sges: &self.taken.sges, write: true };
        self.explain_taken(qp, WcStatus::LocProtErr, &why);
        self.refuse_taken(qp, WcStatus::LocProtErr, Nak::RemoteOp)
    }

    /// Ends the message: its receive completes. `Rnr` (WRITE with immediate on the wire) leaves it open.
    #[inline]
    pub fn finish(&mut self, qp: &Qp, ending: Ending) -> Result<(), Nak> {
        let Some(current) = &self.current else { return Err(Nak::InvalidRequest) };
        let request = current.request;
        let write = matches!(request.op, WrOpcode::Write | WrOpcode::WriteImm);
        if write && request.total.is_some_and(|total| total as u64 != current.placed) {
            // Over UC a request that is none is dropped.
            let reliable = qp.is_reliable();
            let nak = Nak::InvalidRequest;
            return if reliable {
                self.refuse_any(qp, WcStatus::RemInvReqErr, nak)
            } else {
                self.refuse(qp, nak)
            };
        }
        if write && ending.imm.is_none() {
            self.stats.done(request.op, current.placed as u32);
            if self.counters.is_some() {
                self.count_remote(request.op, WcStatus::Success, current.placed);
            }
            self.current = None;
            return Ok(());
        }
        if !current.has_taken {
            self.take_open(qp)?;
        }
        let placed = self.current.as_ref().map_or(0, |c| c.placed);
        let payload = if qp.kind == QpType::Ud { placed as u32 - GRH_BYTES as u32 } else { placed as u32 };
        if write && self.counters.is_some() {
            self.count_remote(request.op, WcStatus::Success, placed);
        }
        let opcode = if write { WcOpcode::RecvWithImm } else { WcOpcode::Recv };
        let mut cqe = Cqe::new(self.taken.wr_id, qp.num, opcode, WcStatus::Success);
        cqe.byte_len = placed as u32;
        // Only UD promises it; ibv_xsrq_pingpong tells its clients apart by it.
        cqe.src_qp = request.src_qpn.0;
        if let Some(imm) = ending.imm {
            cqe.imm = imm;
            cqe.wc_flags |= WC_WITH_IMM;
        } else if let Some(key) = ending.invalidate {
            self.invalidate(qp, key)?;
            cqe.imm = key.0;
            cqe.wc_flags |= WC_WITH_INV;
        }
        if qp.kind == QpType::Ud {
            cqe.wc_flags |= if ending.no_grh { 0 } else { WC_GRH };
            let own = device::port_lid();
            cqe.slid = if own != 0 && ending.slid != 0 { ending.slid } else { own };
            cqe.sl = if own == 0 { self.packet_type } else { ending.sl };
        }
        // Of several packets, only the last says that it has an immediate.
        self.stats.done(if write { WrOpcode::WriteImm } else { request.op }, payload);
        self.complete(qp, cqe, ending.solicited)
    }

    /// Forgets the message that is arriving (UC lost a packet); a receive request that it took serves the next one.
    pub fn abandon(&mut self) {
        if let Some(current) = self.current.take()
            && current.has_taken
        {
            (self.parked, self.parked_srq) = (true, current.srq);
        }
    }

    /// Refuses a request that is none.
    pub fn refuse_malformed<T>(&mut self, qp: &Qp) -> Result<T, Nak> {
        self.refuse(qp, Nak::InvalidRequest)
    }

    /// Refuses a READ of memory that is registered but not there.
    pub fn refuse_unreadable<T>(&mut self, qp: &Qp) -> Result<T, Nak> {
        self.refuse(qp, Nak::RemoteAccess)
    }

    /// May the requester read here? Nothing is copied yet.
    pub fn check_read(&mut self, qp: &Qp, request: &Request) -> Result<(), Nak> {
        if !self.established {
            self.establish(qp);
        }
        if !self.access.contains(Access::REMOTE_READ) || self.max_dest_rd_atomic == 0 {
            return self.refuse_request(qp, request, Nak::InvalidRequest);
        }
        let n = request.total.unwrap_or(0) as u64;
        if n > MAX_MESSAGE as u64 {
            return self.refuse_request(qp, request, Nak::InvalidRequest);
        }
        let need = Access::REMOTE_READ;
        if n > 0 && self.named(qp, request, n, need).is_err() {
            return self.refuse_request(qp, request, Nak::RemoteAccess);
        }
        self.stats.done(request.op, n as u32);
        if self.counters.is_some() {
            self.count_remote(request.op, WcStatus::Success, n);
        }
        Ok(())
    }

    /// Copies a piece of what a READ asked for; the key is checked again, since the region may have gone meanwhile.
    pub fn read(&mut self, qp: &Qp, rkey: Key, va: u64, mut to: RunMut<'_>) -> Result<(), Nak> {
        if to.is_empty() {
            return Ok(());
        }
        let pd = pd_of_begun(qp, rkey);
        let read = match qp.node.mem.remote(pd, qp.num, rkey, va, to.len() as u64, Access::REMOTE_READ) {
            Ok(span) => to.fill(span.run()).is_ok(),
            Err(_) => false,
        };
        if read { Ok(()) } else { self.refuse(qp, Nak::RemoteAccess) }
    }

    /// Hands the bytes that a READ asked for to `take`, where no copy between is needed.
    pub fn read_span<R>(
        &mut self,
        qp: &Qp,
        rkey: Key,
        va: u64,
        len: u32,
        take: impl FnOnce(Run<'_>) -> R,
    ) -> Result<R, Nak> {
        let pd = pd_of_begun(qp, rkey);
        match qp.node.mem.remote(pd, qp.num, rkey, va, len as u64, Access::REMOTE_READ) {
            Ok(span) => Ok(take(span.run())),
            Err(_) => self.refuse(qp, Nak::RemoteAccess),
        }
    }

    /// Carries out an atomic and gives the value before it, in host byte order.
    pub fn atomic(&mut self, qp: &Qp, request: &Request) -> Result<u64, Nak> {
        if !self.established {
            self.establish(qp);
        }
        if !self.access.contains(Access::REMOTE_ATOMIC) || self.max_dest_rd_atomic == 0 {
            return self.refuse_request(qp, request, Nak::InvalidRequest);
        }
        if !request.remote_addr.is_multiple_of(8) {
            return self.refuse_request(qp, request, Nak::InvalidRequest);
        }
        let op = match request.op {
            WrOpcode::CmpSwap => Access64::CompareSwap { compare: request.compare_add, swap: request.swap },
            WrOpcode::FetchAdd => Access64::FetchAdd(request.compare_add),
            _ => return self.refuse_request(qp, request, Nak::InvalidRequest),
        };
        let result = match self.named(qp, request, 8, Access::REMOTE_ATOMIC) {
            Ok(span) => span.atomic(op).ok(),
            Err(_) => None,
        };
        match result {
            Some(before) => {
                self.stats.done(request.op, 8);
                Ok(before)
            }
            None => self.refuse_request(qp, request, Nak::RemoteAccess),
        }
    }

    /// Flushes every receive request: the QP is in ERR.
    pub fn flush(&mut self, qp: &Qp) {
        self.abandon();
        self.flush_parked(qp);
        self.explain_flush(qp);
        while let Some(wr_id) = self.queue.as_mut().and_then(RecvQueue::pop_wr_id) {
            self.push(Cqe::new(wr_id, qp.num, WcOpcode::Recv, WcStatus::WrFlushErr), true);
        }
        if self.srq.is_some() && !self.last_wqe_told {
            self.last_wqe_told = true;
            qp.raise(EventType::QpLastWqeReached);
        }
    }

    /// `flush`, if the QP is in ERR.
    pub fn flush_if_failed(&mut self, qp: &Qp) {
        if qp.state() == QpState::Err {
            self.flush(qp);
        }
    }

    /// Forgets everything: the QP goes to RESET.
    pub fn reset(&mut self, qp: &Qp) {
        self.current = None;
        (self.parked, self.parked_srq) = (false, None);
        if let Some(queue) = &mut self.queue {
            queue.clear();
        }
        (self.established, self.last_wqe_told, self.refused) = (false, false, false);
        if let Some(faults) = &mut self.faults {
            faults.restart();
        }
        qp.heard_over.store(0, Ordering::Relaxed);
        self.outbox.surrender(qp.num, self.peer);
    }

    #[cold]
    fn establish(&mut self, qp: &Qp) {
        self.established = true;
        if qp.state() == QpState::Rtr && qp.kind != QpType::Ud {
            qp.raise(EventType::CommEst);
        }
    }

    /// The memory that a READ or an atomic names.
    fn named<'a>(&self, qp: &'a Qp, request: &Request, len: u64, need: Access) -> Result<Span<'a>, Denied> {
        let srq = self.xrc_srq(qp, request).map_err(|_| Denied::Domain)?;
        let pd = srq.map_or(qp.pd, |srq| srq.pd);
        qp.node.mem.remote(pd, qp.num, request.rkey, request.remote_addr, len, need)
    }

    /// An XRC receiver has no PD of its own: the SRQ that a request names tells which memory it may reach.
    #[inline]
    fn pd_of_current(&self, qp: &Qp) -> PdId {
        let srq = self.current.as_ref().and_then(|c| c.srq.as_ref());
        srq.map_or(qp.pd, |srq| srq.pd)
    }

    /// The SRQ that a request to an XRC receiver names.
    fn xrc_srq(&self, qp: &Qp, request: &Request) -> Result<Option<Arc<Srq>>, Nak> {
        if qp.kind != QpType::XrcRecv || (request.op == WrOpcode::Write && request.total == Some(0)) {
            return Ok(None);
        }
        match qp.node.srq(request.srqn) {
            Some(srq) if srq.xrc.as_ref().map(|x| x.domain) == qp.xrc_domain => Ok(Some(srq)),
            found => {
                let why = if found.is_some() { "belongs to another XRC domain" } else { "does not exist" };
                explain(format_args!(
                    "qp {:?}: {} from {:?} names SRQ 0x{:06x}, which {why}",
                    qp.num, request.op, request.src_qpn, request.srqn
                ));
                Err(Nak::InvalidRequest)
            }
        }
    }
}

/// Whose memory a READ goes on to read: an XRC receiver's was checked against the SRQ that the request named.
#[inline]
fn pd_of_begun(qp: &Qp, rkey: Key) -> PdId {
    if qp.kind != QpType::XrcRecv {
        return qp.pd;
    }
    qp.node.mem.region(rkey).map_or(qp.pd, |region| region.pd)
}
