//! Sending: requests into the ring, or straight into the peer's memory; answers to its requests.
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::blocked::STRAYS;
use super::foreign::{self, Turn};
use super::inbox::Owed;
use super::message::{
    ACK, ATOMIC_ANSWER, DATAGRAM, FIRST, FOREIGN, LAST, NAK, NO_GRH, READ_DATA, RELIABLE, Refusal, SOLICITED,
};
use super::{Wire, whole};
use crate::soft::ah::Ah;
use crate::soft::link::pcap::{self, Via};
use crate::soft::link::shm::direct::{self, Direct, OneSided};
use crate::soft::link::shm::ring::{Ext, Header, MAX_PAYLOAD};
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::node;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::{GRH_BYTES, Responder};
use crate::soft::qp::sendq::Wqe;
use crate::soft::stats;
use crate::soft::types::{Key, Psn, QpType, Qpn, SendFlags, WcStatus, WrOpcode};
use crate::sys::process_vm::{Iovec, Way};

/// How far a request got.
enum Sent {
    /// All of it is in the ring.
    Whole,
    /// It is done and needs no answer.
    Done,
    /// The ring is full.
    Stuck,
}

/// Sends what is ready, or of that the first request (`ONE`), to QP `to` over `wire`.
pub fn pump<const ONE: bool>(qp: &Qp, sq: &mut Requester, wire: &Arc<Wire>, to: Qpn) {
    let mut wrote = false;
    while let Some(at) = sq.ready(qp) {
        if qp.kind == QpType::XrcSend {
            match foreign::send(qp, sq, at, Some(wire), to) {
                Turn::Home => {}
                Turn::Done if ONE => break,
                Turn::Done => continue,
                Turn::Waits => break,
            }
        }
        if !ONE && whole::put(qp, sq, at, wire, to) {
            wrote = true;
            sq.begun(at);
            if !qp.is_reliable() {
                sq.complete_oldest_with(qp, WcStatus::Success);
            }
            continue;
        }
        let put = || send::<ONE>(qp, sq, at, wire, to, &mut wrote);
        match wire.try_for_room(qp, put, |sent| matches!(sent, Ok(Sent::Stuck))) {
            Ok(Sent::Done) => {
                count_direct(qp, sq, at);
                sq.begun(at);
                sq.complete_oldest_with(qp, WcStatus::Success);
            }
            Ok(Sent::Whole) => {
                sq.begun(at);
                if !qp.is_reliable() {
                    sq.complete_oldest_with(qp, WcStatus::Success);
                }
            }
            Ok(Sent::Stuck) => break,
            Err(status) => {
                sq.doom(qp, at, status);
                break;
            }
        }
        if ONE {
            break;
        }
    }
    if wrote {
        wire.announce(qp.is_reliable());
    }
}

/// Puts request `at` of an unreliable QP into the ring an extra time, ahead of its own; not where that is too full.
pub fn repeat(qp: &Qp, sq: &mut Requester, at: u64, wire: &Wire, to: Qpn) {
    if sq.queue.wqe(at).cursor == 0 {
        // What is half there ends where its own begins.
        let _ = put_any(qp, sq, at, wire, to, Mark::default(), &mut false);
        sq.queue.wqe_mut(at).cursor = 0;
    }
}

fn send<const WATCHED: bool>(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    wire: &Wire,
    to: Qpn,
    wrote: &mut bool,
) -> Result<Sent, WcStatus> {
    sq.check(qp, at)?;
    let begins = sq.queue.wqe(at).cursor == 0;
    if begins && try_direct(qp, sq, at, wire, to)? != Direct::UseRing {
        if WATCHED && pcap::is_on() {
            pcap::memory::request(qp, sq, at, to, Via::Direct);
            if qp.is_reliable() {
                pcap::memory::answered(qp, sq, at, to, Via::Direct);
            }
        }
        return Ok(Sent::Done);
    }
    let whole = put_any(qp, sq, at, wire, to, Mark::default(), wrote)?;
    if WATCHED && pcap::is_on() && begins && (whole || sq.queue.wqe(at).cursor > 0) {
        pcap::memory::request(qp, sq, at, to, Via::Shm);
    }
    Ok(if whole { Sent::Whole } else { Sent::Stuck })
}

/// What distinguishes a request to another process than the peer QP's; 0 for all others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    /// `FOREIGN`, or nothing.
    pub flags: u8,
    /// What the peer QP allows, as bits of `Access`.
    pub access: u16,
}

impl Mark {
    /// What does not go to the peer does not count in its sequence.
    fn psns(self) -> u32 {
        u32::from(self.flags & FOREIGN == 0)
    }
}

/// Puts request `at`, or the rest of it, into the ring; false when that is full. Inlined: out of line a SEND takes 9 ns more.
#[inline]
pub fn put_any(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    wire: &Wire,
    to: Qpn,
    mark: Mark,
    wrote: &mut bool,
) -> Result<bool, WcStatus> {
    let wqe = sq.queue.wqe(at);
    match wqe.opcode {
        WrOpcode::Read | WrOpcode::CmpSwap | WrOpcode::FetchAdd => {
            // Where the answer will go is checked now: the responder must not do in vain what it does only once.
            let operands = (wqe.compare_add, wqe.swap);
            sq.check_places(qp, at)?;
            Ok(put_request(qp, sq, at, wire, to, mark, operands, wrote))
        }
        WrOpcode::AtomicWrite | WrOpcode::Flush => {
            let operands = sq.operands(qp, at)?;
            Ok(put_request(qp, sq, at, wire, to, mark, operands, wrote))
        }
        _ => put_message(qp, sq, at, wire, to, mark, wrote),
    }
}

/// Sends the rest of a message; false when the ring is full. `wrote`: somebody is to be notified.
fn put_message(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    wire: &Wire,
    to: Qpn,
    mark: Mark,
    wrote: &mut bool,
) -> Result<bool, WcStatus> {
    let length = sq.queue.wqe(at).length;
    if length as usize > MAX_PAYLOAD && sq.queue.wqe(at).cursor == 0 {
        // A message that is half sent cannot be taken back.
        sq.gather_nothing(qp, at)?;
    }
    loop {
        let from = sq.queue.wqe(at).cursor;
        let n = (length - from).min(MAX_PAYLOAD as u32);
        if !put_piece(qp, sq, at, wire, to, mark, (from, n))? {
            return Ok(false);
        }
        *wrote = true;
        sq.queue.wqe_mut(at).cursor = from + n;
        if from + n == length {
            return Ok(true);
        }
        // A long message is read while it is written.
        wire.peer.notify();
    }
}

/// The header of a request, with no flags but those of the QP and of the request itself.
#[inline]
pub(super) fn header(qp: &Qp, wqe: &Wqe, to: Qpn, psn: Psn) -> Header {
    let ext = match wqe.opcode {
        WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv if qp.kind != QpType::XrcSend => Ext::None,
        WrOpcode::CmpSwap | WrOpcode::FetchAdd | WrOpcode::AtomicWrite | WrOpcode::Flush => Ext::Atomic {
            addr: wqe.remote_addr,
            rkey: wqe.rkey.0,
            aux: wqe.srqn,
            swap_add: wqe.swap,
            compare: wqe.compare_add,
        },
        _ => Ext::Rdma { addr: wqe.remote_addr, rkey: wqe.rkey.0, aux: wqe.srqn },
    };
    let reliable = if qp.is_reliable() { RELIABLE } else { 0 };
    let solicited = if wqe.flags.contains(SendFlags::SOLICITED) { SOLICITED } else { 0 };
    Header {
        kind: wqe.opcode.raw() as u8,
        flags: reliable | solicited,
        spare: 0,
        dst_qpn: to.0,
        src_qpn: qp.num.0,
        seq: psn.get(),
        total: wqe.length,
        imm: wqe.imm,
        ext,
    }
}

fn put_piece(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    wire: &Wire,
    to: Qpn,
    mark: Mark,
    (from, n): (u32, u32),
) -> Result<bool, WcStatus> {
    let psn = sq.psn_of(at);
    let mut header = header(qp, sq.queue.wqe(at), to, psn);
    header.spare = mark.access;
    header.flags |= mark.flags | if from == 0 { FIRST } else { 0 };
    header.flags |= if from + n == header.total { LAST } else { 0 };
    {
        let mut tx = wire.peer.tx.lock();
        let Some(slot) = tx.try_reserve(&header.ext, n as usize) else { return Ok(false) };
        // SAFETY: the slot has room for `n` bytes, which are nobody else's until the commit.
        let room = unsafe { RunMut::new(slot.payload(), n as usize) };
        sq.gather(qp, at, from, room)?;
        slot.commit(&header, n as usize);
    }
    sq.number(at, mark.psns());
    Ok(true)
}

#[allow(clippy::too_many_arguments)]
fn put_request(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    wire: &Wire,
    to: Qpn,
    mark: Mark,
    operands: (u64, u64),
    wrote: &mut bool,
) -> bool {
    let psn = sq.psn_of(at);
    let mut header = header(qp, sq.queue.wqe(at), to, psn);
    if let Ext::Atomic { compare, swap_add, .. } = &mut header.ext {
        (*compare, *swap_add) = operands;
    }
    header.flags |= mark.flags | FIRST | LAST;
    header.spare = mark.access;
    if !put(wire, &header) {
        return false;
    }
    sq.number(at, mark.psns());
    *wrote = true;
    true
}

/// An entry without payload; false when the ring is full.
#[inline]
pub(super) fn put(wire: &Wire, header: &Header) -> bool {
    let mut tx = wire.peer.tx.lock();
    let line = if header.ext == Ext::None { tx.try_line() } else { None };
    if let Some(line) = line {
        line.commit(header, 0);
    } else {
        let Some(slot) = tx.try_reserve(&header.ext, 0) else { return false };
        slot.commit(header, 0);
    }
    if pcap::is_on() {
        drop(tx);
        trace_answer(header, Run::of(&[]));
    }
    true
}

/// Writes an answer of ours to the trace; requests are seen before they come here.
#[cold]
fn trace_answer(header: &Header, bytes: Run<'_>) {
    if let Some(node) = node::existing().filter(|_| header.kind >= ACK) {
        pcap::memory::entry(node, header, bytes, false);
    }
}

/// WRITE and READ without the peer's help, while nothing of this QP is on its way: so order holds.
fn try_direct(qp: &Qp, sq: &mut Requester, at: u64, wire: &Wire, to: Qpn) -> Result<Direct, WcStatus> {
    let wqe = sq.queue.wqe(at);
    let way = match wqe.opcode {
        WrOpcode::Write => Way::Write,
        WrOpcode::Read => Way::Read,
        _ => return Ok(Direct::UseRing),
    };
    if wqe.length == 0 || sq.has_unacked() || !matches!(qp.kind, QpType::Rc | QpType::Uc) || sq.is_retrying()
    {
        return Ok(Direct::UseRing);
    }
    // Unreliable sends are complete before the peer has taken them.
    if qp.kind == QpType::Uc && wire.peer.tx.lock().has_unconsumed() {
        return Ok(Direct::UseRing);
    }
    let own = qp.node.wires.own();
    let what = OneSided {
        way,
        src_qpn: qp.num,
        dst_qpn: to,
        rkey: wqe.rkey.0,
        addr: wqe.remote_addr,
        len: wqe.length as usize,
    };
    let done = sq.with_pieces(qp, at, way == Way::Read, |pieces: &[Iovec]| {
        // SAFETY: the pieces are checked spans of registered memory, or inline bytes, held during the call.
        unsafe { direct::access(own, &wire.peer, &what, pieces) }
    })?;
    if matches!(done, Some(Direct::Done | Direct::Seen)) && qp.kind == QpType::Rc {
        sq.nearby.went(own, &wire.peer, &what);
    }
    Ok(done.unwrap_or(Direct::UseRing))
}

/// Counts what was done to the peer's memory, where the peer reads it.
fn count_direct(qp: &Qp, sq: &Requester, at: u64) {
    if let Some(counts) = qp.node.wires.own().direct_counts(qp.num) {
        let wqe = sq.queue.wqe(at);
        stats::add_direct(counts, wqe.opcode, wqe.length, sq.stats.mtu());
    }
}

/// Sends a datagram over `wire`; false when the ring is full: `qp` goes on when it has room. It is `done` before the peer can see it: another
/// thread may take the answer before this one goes on.
pub fn send_datagram(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    ah: &Ah,
    wire: &Arc<Wire>,
    done: impl FnOnce(&mut Requester),
) -> Result<bool, WcStatus> {
    let (mut done, worse) = (Some(done), wire.undrained());
    let mut wire = worse.as_ref().unwrap_or(wire);
    loop {
        match put_datagram(qp, sq, at, ah, wire, &mut done)? {
            Put::Here => return Ok(true),
            Put::Nowhere => return Ok(false),
            Put::Elsewhere => match wire.better.get() {
                Some(better) => wire = better,
                None => return Ok(false),
            },
        }
    }
}

/// Where a datagram is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    /// In the ring.
    Here,
    /// The ring is full.
    Nowhere,
    /// It is to go by the better one of two connections.
    Elsewhere,
}

fn put_datagram(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    ah: &Ah,
    wire: &Arc<Wire>,
    done: &mut Option<impl FnOnce(&mut Requester)>,
) -> Result<Put, WcStatus> {
    let wqe = sq.queue.wqe(at);
    let mut header = header(qp, wqe, wqe.remote_qpn, Psn::new(0));
    header.flags |= FIRST | LAST | DATAGRAM;
    header.spare = ah.address.sl as u16 | if ah.address.lid_only { NO_GRH } else { 0 };
    header.ext = Ext::Rdma { addr: 0, rkey: sq.qkey_of(at), aux: 0 };
    let length = wqe.length;
    let n = GRH_BYTES + length as usize;
    let put = || {
        let mut tx = wire.peer.tx.lock();
        if wire.has_better() && wire.drains(&mut tx) {
            return Ok(Put::Elsewhere);
        }
        let Some(slot) = tx.try_reserve(&header.ext, n) else { return Ok(Put::Nowhere) };
        let grh = ah.address.grh(length);
        // SAFETY: the slot has room for `n` bytes, which are nobody else's until the commit.
        let room = unsafe {
            std::ptr::copy_nonoverlapping(grh.as_ptr(), slot.payload(), GRH_BYTES);
            RunMut::new(slot.payload().add(GRH_BYTES), length as usize)
        };
        sq.gather(qp, at, 0, room)?;
        if let Some(done) = done.take() {
            done(sq);
        }
        slot.commit(&header, n);
        Ok(Put::Here)
    };
    let sent = wire.try_for_room(qp, put, |sent| *sent == Ok(Put::Nowhere))?;
    if sent == Put::Here {
        wire.peer.notify();
    }
    Ok(sent)
}

/// An answer that waits for room in the ring, in the order of the requests.
#[derive(Debug)]
pub enum Answer {
    /// This request is refused.
    Nak(Psn, Refusal),
    /// The rest of what a READ asked for.
    Read {
        #[allow(missing_docs)]
        psn: Psn,
        #[allow(missing_docs)]
        rkey: Key,
        #[allow(missing_docs)]
        addr: u64,
        #[allow(missing_docs)]
        total: u32,
        /// Bytes sent.
        done: u32,
    },
    /// The value before an atomic.
    Atomic(Psn, u64),
}

/// The answers of a responder, and where they go.
#[derive(Debug, Default)]
pub struct Outbox {
    answers: VecDeque<Answer>,
    wire: Option<Arc<Wire>>,
}

impl Outbox {
    /// Queues an answer.
    pub fn push(&mut self, wire: &Arc<Wire>, answer: Answer) {
        // No peer that keeps to its limits leaves so many.
        if self.answers.len() >= STRAYS {
            return;
        }
        if self.wire.as_ref().is_none_or(|w| !Arc::ptr_eq(w, wire)) {
            self.wire = Some(wire.clone());
        }
        self.answers.push_back(answer);
    }

    /// READs and atomics that wait to be answered.
    pub fn open_answers(&self) -> usize {
        self.answers.iter().filter(|a| matches!(a, Answer::Read { .. } | Answer::Atomic(..))).count()
    }

    /// No answer waits.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Answers wait that go this way.
    pub fn waits_for(&self, wire: &Arc<Wire>) -> bool {
        !self.answers.is_empty() && self.wire.as_ref().is_some_and(|w| Arc::ptr_eq(w, wire))
    }

    /// QP `from` is reset or destroyed: what it has accepted or refused is still answered, a READ is not.
    pub fn surrender(&mut self, from: Qpn, to: Qpn) {
        let (Some(wire), answers) = (self.wire.take(), std::mem::take(&mut self.answers)) else { return };
        for answer in answers {
            let header = match answer {
                Answer::Nak(psn, why) => refusal(from.0, to, psn, why),
                Answer::Read { psn, .. } => refusal(from.0, to, psn, Refusal::Gone),
                Answer::Atomic(psn, value) => atomic_answer(from, to, psn, value),
            };
            wire.put_or_keep(header);
        }
    }
}

/// Sends what the outbox holds, as far as the ring has room. The caller holds the receive half.
pub fn answer(qp: &Qp, rq: &mut Responder, to: Qpn) {
    let Some(wire) = rq.outbox.wire.clone() else { return };
    let mut tried = false;
    while let Some(answer) = rq.outbox.answers.pop_front() {
        tried = true;
        let mut rest = Some(answer);
        let put = || {
            rest = rest.take().and_then(|answer| put_answer(qp, rq, &wire, to, answer));
            rest.is_none()
        };
        if !wire.try_for_room(qp, put, |done| !done) {
            if let Some(rest) = rest {
                rq.outbox.answers.push_front(rest);
            }
            break;
        }
    }
    // Also where the last one is not whole.
    if tried {
        wire.peer.notify();
    }
}

/// Gives back what did not fit.
fn put_answer(qp: &Qp, rq: &mut Responder, wire: &Wire, to: Qpn, answer: Answer) -> Option<Answer> {
    let done = match answer {
        Answer::Nak(psn, why) => put(wire, &refusal(qp.num.0, to, psn, why)),
        Answer::Atomic(psn, value) => put(wire, &atomic_answer(qp.num, to, psn, value)),
        Answer::Read { psn, rkey, addr, total, mut done } => loop {
            let n = (total - done).min(MAX_PAYLOAD as u32);
            let last = if done + n == total { LAST } else { 0 };
            let header = Header {
                kind: READ_DATA,
                flags: last,
                dst_qpn: to.0,
                src_qpn: qp.num.0,
                seq: psn.get(),
                total,
                imm: done,
                ext: Ext::None,
                spare: 0,
            };
            let mut tx = wire.peer.tx.lock();
            let Some(slot) = tx.try_reserve(&Ext::None, n as usize) else {
                return Some(Answer::Read { psn, rkey, addr, total, done });
            };
            // SAFETY: the slot has room for `n` bytes, which are nobody else's until the commit.
            let room = unsafe { RunMut::new(slot.payload(), n as usize) };
            match rq.read(qp, rkey, addr.wrapping_add(done as u64), room) {
                Ok(()) => {
                    if pcap::is_on() {
                        // SAFETY: what was just written there; nobody else has it before the commit.
                        trace_answer(&header, unsafe { Run::new(slot.payload(), n as usize) });
                    }
                    slot.commit(&header, n as usize);
                }
                Err(nak) => {
                    drop(tx);
                    return put_answer(qp, rq, wire, to, Answer::Nak(psn, Refusal::Nak(nak, 0)));
                }
            }
            done += n;
            if done == total {
                break true;
            }
        },
    };
    if done { None } else { Some(answer) }
}

/// Acknowledges; cumulative, so it needs no order among the answers. Whether the peer sleeps is looked at later: that
/// look waits until the entry has reached the other CPU, and the application is waiting for its message.
pub(super) fn acknowledge(wire: &Wire, owed: Owed) {
    let header = Header {
        kind: ACK,
        dst_qpn: owed.to.0,
        src_qpn: owed.from.0,
        seq: owed.psn.get(),
        ..Header::default()
    };
    if put(wire, &header) {
        wire.unrung.store(true, Ordering::Relaxed);
    } else {
        wire.put_or_keep(header);
    }
}

/// Refuses a request for a QP that does not exist, or does not listen.
pub fn refuse_for_nobody(wire: &Wire, from: u32, to: Qpn, psn: Psn, why: Refusal) {
    wire.put_or_keep(refusal(from, to, psn, why));
}

fn refusal(from: u32, to: Qpn, psn: Psn, why: Refusal) -> Header {
    Header { kind: NAK, dst_qpn: to.0, src_qpn: from, seq: psn.get(), imm: why.encode(), ..Header::default() }
}

fn atomic_answer(from: Qpn, to: Qpn, psn: Psn, value: u64) -> Header {
    let ext = Ext::Rdma { addr: value, rkey: 0, aux: 0 };
    Header { kind: ATOMIC_ANSWER, dst_qpn: to.0, src_qpn: from.0, seq: psn.get(), ext, ..Header::default() }
}
