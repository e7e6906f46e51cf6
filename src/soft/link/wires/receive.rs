//! Receiving: entries of a peer's ring, each copied and checked before it is believed.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::inbox::{Cache, Owed};
use super::message::{
    ACK, ATOMIC_ANSWER, DATAGRAM, FAILED, FIRST, FOREIGN, LAST, NAK, NO_GRH, READ_DATA, RELIABLE, Refusal,
    SENDS, SOLICITED,
};
use super::plain::take_plain;
use super::replies::accept;
use super::send::{self, Answer, answer};
use super::{Wire, foreign, runs, whole};
use crate::soft::cq::Taker;
use crate::soft::link::shm::ring::{Consumer, Entry, Ext, Header, Peeked};
use crate::soft::link::{self, pcap};
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::node::Node;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::{Ending, GRH_BYTES, Request, Responder};
use crate::soft::qp::{Nak, Qp};
use crate::soft::stats::Event;
use crate::soft::timers::rnr_delay_ns;
use crate::soft::types::{Key, Psn, QpType, Qpn, WcStatus, WrOpcode};
use crate::soft::wire::ip::destination;
use crate::sys::clock;
use crate::sys::lock::Guard;

/// Entries that one round takes before it looks elsewhere.
const ROUND: usize = 64;

/// Takes what has arrived; true if there was anything. Called with no lock held. `burst`: several entries are likely.
#[inline]
pub fn receive(node: &'static Node, wire: &Arc<Wire>, burst: bool, taker: &mut Taker<'_>) -> bool {
    // A look behind the only entry would wait for a line that the peer has at hand.
    let round = if burst { ROUND } else { 1 };
    wire.peer.rx.try_lock().is_some_and(|rx| receive_some(node, wire, rx, round, taker))
}

/// `receive` that waits for a thread which is about it, and tells the producer of all that was taken.
pub fn receive_waiting(node: &'static Node, wire: &Arc<Wire>) -> bool {
    let did = receive_some(node, wire, wire.peer.rx.lock(), ROUND, &mut Taker::beside());
    if !did {
        publish(wire, wire.peer.rx.lock());
    }
    did
}

/// Tells the producer of all that was taken, if nobody is reading just now.
#[cold]
pub fn try_publish(wire: &Wire) {
    if let Some(rx) = wire.peer.rx.try_lock() {
        publish(wire, rx);
    }
}

fn publish(wire: &Wire, mut rx: Guard<'_, Consumer>) {
    wire.untold.store(false, Ordering::Relaxed);
    rx.publish();
    let starved = rx.take_starved();
    drop(rx);
    if starved {
        wire.peer.ring_doorbell();
    }
}

#[inline(always)]
fn receive_some(
    node: &'static Node,
    wire: &Arc<Wire>,
    rx: Guard<'_, Consumer>,
    round: usize,
    taker: &mut Taker<'_>,
) -> bool {
    let mut inbox = wire.inbox_of(rx);
    let (rx, cache) = inbox.parts();
    let mut any = false;
    let mut corrupt = false;
    for _ in 0..round {
        match rx.peek_plain() {
            Peeked::Plain(plain) if take_plain(node, wire, cache, &plain, taker) => {}
            Peeked::Nothing => break,
            _ => match rx.peek() {
                Ok(Some(entry)) => take(node, wire, cache, &entry, taker),
                Ok(None) => break,
                Err(_) => {
                    corrupt = true;
                    break;
                }
            },
        }
        any = true;
        rx.release();
    }
    let starved = rx.take_starved();
    wire.untold.store(true, Ordering::Relaxed);
    if let Some(owed) = cache.owed.take() {
        send::acknowledge(wire, owed);
    }
    if wire.is_lost.load(Ordering::Relaxed) {
        // Nobody asks it to forget QPs any more.
        cache.qp = None;
    }
    drop(inbox);
    // While peers ring doorbells our threads may block, and the next look may be long in coming.
    if wire.unrung.load(Ordering::Relaxed) && node.wires.own().is_asleep() {
        wire.catch_up();
    }
    if starved {
        wire.peer.ring_doorbell();
    }
    if corrupt {
        crate::sys::log::explain(format_args!(
            "shm: process {} wrote what no message is; its connection is dropped",
            wire.peer.cred().pid
        ));
        wire.lost(node);
        return false;
    }
    any
}

#[inline(never)]
fn take(node: &'static Node, wire: &Arc<Wire>, cache: &mut Cache, entry: &Entry, taker: &mut Taker<'_>) {
    let h = &entry.header;
    if h.kind == SENDS {
        for send in runs::each(entry) {
            take(node, wire, cache, &send, taker);
        }
        return;
    }
    let src = Qpn(h.src_qpn & 0xff_ffff);
    if !cache.proven.has(src) {
        // A process speaks for its own QPs only.
        if !wire.peer.owns_slot(src.slot()) {
            return;
        }
        if pcap::is_on() {
            // SAFETY: the consumer vouches for `len` readable bytes until the entry is released.
            let bytes = unsafe { Run::new(entry.payload.as_ptr(), entry.len) };
            pcap::memory::entry(node, h, bytes, true);
        } else {
            cache.proven.add(src);
        }
    }
    if h.kind < ACK && h.flags & FOREIGN != 0 {
        return cache.shadows.request(node, wire, src, entry);
    }
    if h.kind < ACK && h.flags & DATAGRAM != 0 && h.dst_qpn == Qpn::MULTICAST.0 {
        return multicast(node, src, entry);
    }
    let epoch = node.qp_epoch.load(Ordering::Acquire);
    if cache.qp.as_ref().is_none_or(|qp| qp.num.0 != h.dst_qpn) || cache.epoch != epoch {
        cache.qp = node.qp(Qpn(h.dst_qpn));
        cache.epoch = epoch;
    }
    let Some(qp) = cache.qp.take() else {
        if h.kind < ACK && h.flags & RELIABLE != 0 && h.flags & LAST != 0 {
            send::refuse_for_nobody(wire, h.dst_qpn, src, Psn::new(h.seq), Refusal::Gone);
        }
        return;
    };
    match h.kind {
        ACK | NAK | READ_DATA | ATOMIC_ANSWER => answered(wire, &qp, src, entry, taker),
        FAILED => foreign::failed(wire, &qp, &entry.header),
        _ if h.flags & DATAGRAM != 0 => datagram(&qp, src, entry),
        _ => {
            if let Some(psn) = request(wire, &qp, src, entry, taker) {
                owe(wire, &mut cache.owed, Owed { from: qp.num, to: src, psn });
            }
        }
    }
    cache.qp = Some(qp);
}

/// Carries a request out; gives the PSN to acknowledge, if there is one.
pub(super) fn request(
    wire: &Arc<Wire>,
    qp: &Arc<Qp>,
    src: Qpn,
    entry: &Entry,
    taker: &mut Taker<'_>,
) -> Option<Psn> {
    let h = &entry.header;
    let psn = Psn::new(h.seq);
    let reliable = h.flags & RELIABLE != 0;
    let mut rq = qp.rq.lock();
    let matches = match qp.kind {
        QpType::Rc | QpType::XrcRecv => reliable,
        QpType::Uc => !reliable,
        _ => false,
    };
    let reply = |rq: &mut Responder, what: Answer| {
        rq.outbox.push(wire, what);
        answer(qp, rq, src);
    };
    if !matches || !rq.listens(qp) || rq.peer != src {
        in_vain(qp, &rq, h);
        if h.flags & LAST != 0 {
            rq.stats.event(Event::Dropped, 1);
        }
        // The last piece is answered: where the QP went away midway, the first one was accepted.
        if reliable && h.flags & LAST != 0 {
            if rq.peer == src && rq.outbox.waits_for(wire) {
                reply(&mut rq, Answer::Nak(psn, Refusal::Gone));
            } else {
                send::refuse_for_nobody(wire, qp.num.0, src, psn, Refusal::Gone);
            }
        }
        return None;
    }
    if reliable && !is_next(&rq, psn, h.flags) && !rq.adopt(psn, h.flags & FIRST != 0) {
        in_vain(qp, &rq, h);
        return out_of_order(&mut rq, psn, h.flags, &reply);
    }
    if h.flags & FIRST != 0 {
        rq.refused = false;
    }
    let done = carry_out(qp, &mut rq, src, entry, taker);
    conclude(wire, qp, rq, src, h, done, taker)
}

/// What follows from carrying out a request: the PSN to acknowledge, if there is one, or an answer.
pub(super) fn conclude(
    wire: &Arc<Wire>,
    qp: &Arc<Qp>,
    mut rq: Guard<'_, Responder>,
    src: Qpn,
    h: &Header,
    done: Result<Step, Nak>,
    taker: &Taker<'_>,
) -> Option<Psn> {
    let psn = Psn::new(h.seq);
    let reliable = h.flags & RELIABLE != 0;
    let rq = &mut *rq;
    let reply = |rq: &mut Responder, what: Answer| {
        rq.outbox.push(wire, what);
        answer(qp, rq, src);
    };
    match done {
        Ok(Step::More) => {}
        Ok(Step::Accepted) => {
            rq.psn = psn.plus(1);
            let owed = reliable.then_some(Owed { from: qp.num, to: src, psn });
            return owed.and_then(|owed| accept(wire, qp, owed, taker));
        }
        Ok(Step::Answer(what)) => {
            rq.psn = psn.plus(1);
            reply(rq, what);
        }
        Err(nak) if reliable => {
            rq.refused = true;
            in_vain(qp, rq, h);
            if nak == Nak::Rnr {
                rq.stats.event(Event::RnrNakSent, 1);
            }
            if nak != Nak::Silent {
                rq.stats.refused();
            }
            let timer = rq.min_rnr_timer;
            reply(rq, Answer::Nak(psn, Refusal::Nak(nak, timer)));
        }
        Err(nak) => {
            in_vain(qp, rq, h);
            match nak {
                Nak::Silent => {}
                Nak::Rnr => rq.stats.event(Event::NoReceive, 1),
                _ => rq.stats.event(Event::Dropped, 1),
            }
        }
    }
    None
}

/// Counts a request that was not accepted, with its last piece.
fn in_vain(qp: &Qp, rq: &Responder, h: &Header) {
    if let Some(op) = WrOpcode::from_raw(h.kind.into()).filter(|_| h.flags & LAST != 0) {
        rq.stats.received_in_vain(qp.kind, op, h.total);
    }
}

/// Adds to what this round acknowledges.
#[inline]
pub(super) fn owe(wire: &Wire, waiting: &mut Option<Owed>, owed: Owed) {
    if let Some(other) = waiting.replace(owed)
        && other.from != owed.from
    {
        send::acknowledge(wire, other);
    }
}

/// Is this the request that the responder waits for, or the next piece of it?
#[inline]
fn is_next(rq: &Responder, psn: Psn, flags: u8) -> bool {
    psn == rq.psn && (flags & FIRST != 0 || rq.is_midway())
}

/// What was accepted before is acknowledged again; what is ahead follows a refused request and will come again.
#[cold]
fn out_of_order(
    rq: &mut Responder,
    psn: Psn,
    flags: u8,
    reply: &dyn Fn(&mut Responder, Answer),
) -> Option<Psn> {
    let ahead = psn.since(rq.psn);
    if flags & LAST != 0 {
        rq.stats.event(if ahead < 0 { Event::Duplicate } else { Event::OutOfSequence }, 1);
    }
    if ahead < 0 && flags & LAST != 0 {
        return Some(rq.psn.plus(0xff_ffff));
    }
    // At its end, if its beginning came before the QP was ready.
    let lost = if ahead > 0 { flags & FIRST != 0 } else { ahead == 0 && flags & LAST != 0 };
    if lost && !rq.refused {
        // The two ends disagree about where to begin: on a wire this ends by timeouts.
        rq.refused = true;
        reply(rq, Answer::Nak(psn, Refusal::Gone));
    }
    None
}

/// The payload of an entry that is not released yet.
#[inline]
fn payload(entry: &Entry) -> Run<'_> {
    // SAFETY: the consumer vouches for `len` readable bytes until the entry is released, which its borrow outlasts.
    unsafe { Run::new(entry.payload.as_ptr(), entry.len) }
}

pub enum Step {
    /// The message goes on.
    More,
    /// It is complete.
    Accepted,
    /// It is carried out, and this is its answer.
    Answer(Answer),
}

/// Drives the receive half with an entry of a request.
pub fn carry_out(
    qp: &Qp,
    rq: &mut Responder,
    src: Qpn,
    entry: &Entry,
    taker: &mut Taker<'_>,
) -> Result<Step, Nak> {
    let h = &entry.header;
    let psn = Psn::new(h.seq);
    let Some(op) = WrOpcode::from_raw(h.kind as u32) else { return Err(Nak::InvalidRequest) };
    if let Some(message) = whole::of(entry, op, src) {
        let (done, ended) = rq.take_whole(qp, &message, payload(entry), taker);
        ended?;
        if done > 0 {
            return Ok(Step::Accepted);
        }
    }
    let mut request = Request {
        op,
        total: Some(h.total),
        remote_addr: 0,
        rkey: Key(0),
        compare_add: 0,
        swap: 0,
        srqn: 0,
        src_qpn: src,
    };
    match h.ext {
        Ext::None => {}
        Ext::Rdma { addr, rkey, aux } => {
            (request.remote_addr, request.rkey, request.srqn) = (addr, Key(rkey), aux);
        }
        Ext::Atomic { addr, rkey, aux, swap_add, compare } => {
            (request.remote_addr, request.rkey, request.srqn) = (addr, Key(rkey), aux);
            (request.compare_add, request.swap) = (compare, swap_add);
        }
    }
    let invalidate = (op == WrOpcode::SendInv).then_some(Key(h.imm));
    match op {
        WrOpcode::Read if qp.is_reliable() => {
            if rq.outbox.open_answers() >= rq.max_dest_rd_atomic.max(1) as usize {
                return Err(Nak::InvalidRequest);
            }
            rq.check_read(qp, &request)?;
            let (rkey, addr) = (request.rkey, request.remote_addr);
            return Ok(Step::Answer(Answer::Read { psn, rkey, addr, total: h.total, done: 0 }));
        }
        WrOpcode::CmpSwap | WrOpcode::FetchAdd if qp.is_reliable() => {
            let before = rq.atomic(qp, &request)?;
            return Ok(Step::Answer(Answer::Atomic(psn, before)));
        }
        WrOpcode::AtomicWrite if qp.is_reliable() => {
            return rq.atomic_write(qp, &request).map(|()| Step::Accepted);
        }
        WrOpcode::Flush if qp.is_reliable() => {
            return rq.flush_memory(qp, &request).map(|()| Step::Accepted);
        }
        WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv | WrOpcode::Write | WrOpcode::WriteImm => {}
        _ => return rq.refuse_malformed(qp),
    }
    if h.flags & FIRST != 0 {
        rq.begin(qp, request)?;
    } else if !rq.is_midway() {
        return Ok(Step::More);
    }
    if entry.len > 0 {
        rq.place(qp, payload(entry))?;
    }
    if h.flags & LAST == 0 {
        return Ok(Step::More);
    }
    let imm = matches!(op, WrOpcode::SendImm | WrOpcode::WriteImm).then_some(h.imm);
    rq.finish(qp, Ending { imm, invalidate, solicited: h.flags & SOLICITED != 0, ..Ending::default() })?;
    Ok(Step::Accepted)
}

fn datagram(qp: &Qp, src: Qpn, entry: &Entry) {
    let h = &entry.header;
    let (Some(op), Ext::Rdma { rkey: qkey, .. }) = (WrOpcode::from_raw(h.kind as u32), h.ext) else { return };
    let length = h.total as usize;
    if qp.kind != QpType::Ud
        || !matches!(op, WrOpcode::Send | WrOpcode::SendImm)
        || length > Qp::MAX_DATAGRAM as usize
        || entry.len != GRH_BYTES + length
    {
        return;
    }
    let request = Request {
        op,
        total: Some(h.total),
        remote_addr: 0,
        rkey: Key(0),
        compare_add: 0,
        swap: 0,
        srqn: 0,
        src_qpn: src,
    };
    let mut rq = qp.rq.lock();
    if h.dst_qpn == Qpn::MULTICAST.0 {
        rq.stats.event(Event::McastRcv, 1);
    }
    if !rq.listens(qp) {
        return rq.drop_datagram(&request, Event::Dropped);
    }
    let mut grh = [0u8; GRH_BYTES];
    // SAFETY: the entry holds GRH and payload, checked just above; the ring may be read until the release.
    let (head, payload) = unsafe { Run::new(entry.payload.as_ptr(), entry.len) }.split(GRH_BYTES);
    if RunMut::of(&mut grh).fill(head).is_err() {
        return;
    }
    if rq.begin_datagram(qp, request, qkey, &grh) && rq.place(qp, payload).is_ok() {
        let imm = (op == WrOpcode::SendImm).then_some(h.imm);
        // Nobody hears of a datagram that is lost at the receiver.
        let ending = Ending {
            imm,
            invalidate: None,
            solicited: h.flags & SOLICITED != 0,
            sl: h.spare as u8,
            no_grh: h.spare & NO_GRH != 0,
            ..Ending::default()
        };
        let _ = rq.finish(qp, ending);
    }
}

/// A datagram to a group, which its GRH names: a copy to each QP of ours that is attached.
fn multicast(node: &'static Node, src: Qpn, entry: &Entry) {
    let mut grh = [0u8; GRH_BYTES];
    if entry.len < GRH_BYTES {
        return;
    }
    // SAFETY: the entry has that many bytes; the ring may be read until the release.
    let head = unsafe { Run::new(entry.payload.as_ptr(), GRH_BYTES) };
    if RunMut::of(&mut grh).fill(head).is_ok() {
        for qp in node.groups.members(destination(&grh)) {
            datagram(&qp, src, entry);
        }
    }
}

/// An answer to a request of ours.
fn answered(wire: &Arc<Wire>, qp: &Arc<Qp>, src: Qpn, entry: &Entry, taker: &mut Taker<'_>) {
    let h = &entry.header;
    let psn = Psn::new(h.seq);
    let mut sq = qp.sq.lock();
    let expected = match &sq.foreign {
        None => h.flags & FOREIGN == 0 && sq.path.leads_to(src),
        Some(owner) => foreign::is_answer(&sq, owner, wire, src, h),
    };
    if !qp.is_reliable() || !expected {
        return;
    }
    match h.kind {
        ACK if sq.has_sent(psn) => {
            sq.acked(qp, psn, taker);
        }
        ACK => return,
        NAK => refused(qp, &mut sq, psn, h.imm),
        ATOMIC_ANSWER => {
            let (Some(at), Ext::Rdma { addr: value, .. }) = (sq.find(psn), h.ext) else { return };
            if !matches!(sq.queue.wqe(at).opcode, WrOpcode::CmpSwap | WrOpcode::FetchAdd) {
                return;
            }
            match sq.scatter(qp, at, 0, Run::of(&value.to_ne_bytes())) {
                Ok(()) => sq.answered(qp, at),
                Err(status) => sq.doom(qp, at, status),
            }
        }
        _ => read_data(qp, &mut sq, psn, entry),
    }
    if sq.queue.next != sq.queue.head {
        link::pump(qp, &mut sq);
    }
}

fn read_data(qp: &Qp, sq: &mut Requester, psn: Psn, entry: &Entry) {
    let h = &entry.header;
    let Some(at) = sq.find(psn) else { return };
    let wqe = sq.queue.wqe(at);
    let end = h.imm as u64 + entry.len as u64;
    if wqe.opcode != WrOpcode::Read || wqe.answered || h.imm != wqe.cursor || end > wqe.length as u64 {
        return;
    }
    if h.flags & LAST != 0 && end != wqe.length as u64 {
        return;
    }
    if entry.len > 0 {
        // SAFETY: the consumer vouches for `len` readable bytes until the entry is released.
        let bytes = unsafe { Run::new(entry.payload.as_ptr(), entry.len) };
        if let Err(status) = sq.scatter(qp, at, h.imm, bytes) {
            return sq.doom(qp, at, status);
        }
    }
    sq.queue.wqe_mut(at).cursor = end as u32;
    if h.flags & LAST != 0 {
        sq.answered(qp, at);
    }
}

fn refused(qp: &Qp, sq: &mut Requester, psn: Psn, imm: u32) {
    let (Some(why), Some(at)) = (Refusal::decode(imm), sq.find(psn)) else { return };
    match why {
        // Counted where it waits.
        Refusal::Nak(Nak::Rnr, _) | Refusal::Gone => {}
        Refusal::Nak(Nak::Silent, _) => _ = sq.sent_in_vain(qp, at),
        Refusal::Nak(..) => _ = sq.was_refused(qp, at),
    }
    if why != Refusal::Gone {
        // What came before the refused request was accepted.
        sq.acked(qp, psn.plus(0xff_ffff), &mut Taker::nobody());
    }
    let now = clock::now_ns();
    let waits = match why {
        Refusal::Nak(Nak::Rnr, timer) => sq.back_off_rnr(qp, at, now, rnr_delay_ns(timer)),
        Refusal::Gone => sq.back_off(qp, at, now),
        Refusal::Nak(nak, _) => {
            sq.doom(qp, at, nak.status());
            false
        }
    };
    if waits {
        qp.node.timers.arm(qp, sq.wait_until);
    }
}

/// How the oldest request of a QP completes whose peer is gone.
pub const LOST: WcStatus = WcStatus::RetryExcErr;
