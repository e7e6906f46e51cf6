//! Both QPs are in this process: a message is one copy, carried out on the sender's thread.
use super::wires::foreign::{self, Turn};
use super::{multicast, pcap};
use crate::soft::ah::Ah;
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::{Ending, Request, Responder, Unplaced};
use crate::soft::qp::{Nak, Qp};
use crate::soft::stats::Event;
use crate::soft::timers::rnr_delay_ns;
use crate::soft::types::{Key, QpType, Qpn, SendFlags, WcStatus, WrOpcode};
use crate::sys::clock;

/// How carrying a request ended, if not well.
enum Trouble {
    /// The request itself is bad.
    Here(WcStatus),
    /// The responder refuses it.
    There(Nak),
    /// Nobody listens.
    Nobody,
}

impl From<WcStatus> for Trouble {
    fn from(status: WcStatus) -> Self {
        Trouble::Here(status)
    }
}

impl From<Nak> for Trouble {
    fn from(nak: Nak) -> Self {
        Trouble::There(nak)
    }
}

/// Sends what is ready, or of that the first request (`ONE`), to QP `to` of this process.
pub fn pump<const ONE: bool>(qp: &Qp, sq: &mut Requester, to: Qpn) {
    let peer = qp.node.qp(to);
    while let Some(at) = sq.ready(qp) {
        if qp.kind == QpType::XrcSend {
            match foreign::send(qp, sq, at, None, to) {
                Turn::Home => {}
                Turn::Done if ONE => return,
                Turn::Done => continue,
                Turn::Waits => return,
            }
        }
        if !deliver(qp, sq, at, peer.as_deref(), 1) || ONE {
            return;
        }
    }
}

/// Carries request `at` of an unreliable QP an extra time, ahead of its own.
pub fn repeat(qp: &Qp, sq: &Requester, at: u64, to: Qpn) {
    let Some(peer) = qp.node.qp(to) else { return };
    if carry(qp, sq, at, &peer).is_ok() {
        peer.rq.lock().psn = sq.psn_of(at);
    }
}

/// Carries request `at`, which takes so many PSNs, to `peer`, and completes it or has it wait; false: nothing goes on.
pub fn deliver(qp: &Qp, sq: &mut Requester, at: u64, peer: Option<&Qp>, psns: u32) -> bool {
    let outcome = match peer {
        Some(peer) => carry(qp, sq, at, peer),
        None => Err(Trouble::Nobody),
    };
    match outcome {
        Ok(()) => {
            sq.number(at, psns);
            sq.begun(at);
            sq.refill_retries();
            sq.complete_oldest_with(qp, WcStatus::Success);
            return true;
        }
        Err(Trouble::Here(status)) => sq.doom(qp, at, status),
        Err(trouble) if !qp.is_reliable() => {
            count_refusal(sq, at, peer, &trouble);
            // A request that is bad in itself fails also where nobody hears it.
            if let Err(status) = sq.gather_nothing(qp, at) {
                sq.doom(qp, at, status);
                return false;
            }
            sq.begun(at);
            sq.complete_oldest_with(qp, WcStatus::Success);
            return true;
        }
        Err(trouble @ Trouble::There(Nak::Rnr)) => {
            trace_refusal(qp, sq, at, peer, Nak::Rnr);
            count_refusal(sq, at, peer, &trouble);
            // It is begun, and keeps its number.
            sq.number(at, psns);
            let code = peer.map_or(0, |p| p.rq.lock().min_rnr_timer);
            if sq.back_off_rnr(qp, at, clock::now_ns(), rnr_delay_ns(code)) {
                qp.node.timers.arm(qp, sq.wait_until);
            }
        }
        Err(trouble @ Trouble::There(nak)) if nak != Nak::Silent => {
            trace_refusal(qp, sq, at, peer, nak);
            count_refusal(sq, at, peer, &trouble);
            sq.was_refused(qp, at);
            sq.doom(qp, at, nak.status());
        }
        Err(trouble) => {
            count_refusal(sq, at, peer, &trouble);
            if sq.back_off(qp, at, clock::now_ns()) {
                qp.node.timers.arm(qp, sq.wait_until);
            }
        }
    }
    false
}

/// Writes to a trace, if there is one, that the peer refuses request `at`.
#[cold]
fn trace_refusal(qp: &Qp, sq: &Requester, at: u64, peer: Option<&Qp>, nak: Nak) {
    if let Some(peer) = peer.filter(|_| pcap::is_on()) {
        let timer = peer.rq.lock().min_rnr_timer;
        pcap::memory::refused(qp, sq, at, peer.num, (nak, timer));
    }
}

/// The peer has not taken request `at`: what it counts of that.
#[cold]
fn count_refusal(sq: &Requester, at: u64, peer: Option<&Qp>, why: &Trouble) {
    let Some(peer) = peer else { return };
    let (wqe, rq) = (sq.queue.wqe(at), peer.rq.lock());
    rq.stats.received_in_vain(peer.kind, wqe.opcode, wqe.length);
    match why {
        Trouble::There(Nak::Rnr) if peer.is_reliable() => {
            rq.stats.event(Event::RnrNakSent, 1);
            rq.stats.refused();
        }
        Trouble::There(Nak::Silent) => {}
        Trouble::There(_) if peer.is_reliable() => rq.stats.refused(),
        Trouble::There(Nak::Rnr) => rq.stats.event(Event::NoReceive, 1),
        _ => rq.stats.event(Event::Dropped, 1),
    }
}

fn carry(qp: &Qp, sq: &Requester, at: u64, peer: &Qp) -> Result<(), Trouble> {
    sq.check(qp, at)?;
    let mut rq = peer.rq.lock();
    if !rq.listens(peer) || !accepts_kind(qp, peer) || rq.peer != qp.num {
        return Err(Trouble::Nobody);
    }
    if rq.psn != sq.psn_of(at) && !rq.adopt(sq.psn_of(at), true) {
        return Err(Trouble::Nobody);
    }
    let wqe = sq.queue.wqe(at);
    let mut request = request_of(qp, sq, at);
    match wqe.opcode {
        WrOpcode::AtomicWrite => {
            (request.compare_add, request.swap) = sq.operands(qp, at)?;
            rq.atomic_write(peer, &request)?;
        }
        WrOpcode::Flush => rq.flush_memory(peer, &request)?,
        WrOpcode::Read => read(qp, sq, at, peer, &mut rq, &request)?,
        WrOpcode::CmpSwap | WrOpcode::FetchAdd => {
            let before = rq.atomic(peer, &request)?;
            sq.scatter(qp, at, 0, Run::of(&before.to_ne_bytes()))?;
        }
        _ => {
            // The peer must not see anything of a message that fails here: no receive taken, no connection established.
            sq.gather_nothing(qp, at)?;
            if rq.takes_shared(peer, &request) {
                // Others may want the receive, which would be this message's if that failed midway.
                sq.pieces::<Trouble>(qp, at, 0, wqe.length, |run| match is_readable(run) {
                    true => Ok(()),
                    false => Err(Trouble::Here(WcStatus::LocProtErr)),
                })?;
            }
            rq.begin(peer, request)?;
            let place = |run: Run<'_>| match rq.try_place(peer, run) {
                Ok(()) => Ok(()),
                // The requester's own region is registered, but its memory is gone.
                Err(Unplaced::Memory) if !is_readable(run) => Err(Trouble::Here(WcStatus::LocProtErr)),
                Err(why) => Ok(rq.refuse_unplaced(peer, why)?),
            };
            sq.pieces::<Trouble>(qp, at, 0, wqe.length, place).inspect_err(|_| rq.abandon())?;
            rq.finish(peer, ending_of(sq, at))?;
        }
    }
    rq.psn = rq.psn.plus(1);
    Ok(())
}

/// Copies straight from the responder's region to the requester's SGEs.
fn read(
    qp: &Qp,
    sq: &Requester,
    at: u64,
    peer: &Qp,
    rq: &mut Responder,
    request: &Request,
) -> Result<(), Trouble> {
    rq.check_read(peer, request)?;
    let length = sq.queue.wqe(at).length;
    if length == 0 {
        return Ok(());
    }
    let copied = rq.read_span(peer, request.rkey, request.remote_addr, length, |run| {
        sq.scatter(qp, at, 0, run).map_err(|status| (status, is_readable(run)))
    })?;
    match copied {
        Ok(()) => Ok(()),
        Err((status, true)) => Err(Trouble::Here(status)),
        // The region is registered, but its memory is gone: the responder's fault.
        Err((_, false)) => Ok(rq.refuse_unreadable(peer)?),
    }
}

/// Whether every page of it is there.
fn is_readable(run: Run<'_>) -> bool {
    const PAGE: usize = 4096;
    let has_first = |run: Run<'_>| run.is_empty() || RunMut::of(&mut [0]).fill(run.split(1).0).is_ok();
    let mut rest = run;
    while rest.len() > PAGE {
        if !has_first(rest) {
            return false;
        }
        rest = rest.split(PAGE).1;
    }
    // It may begin in one page and end in the next.
    has_first(rest) && has_first(rest.split(rest.len().saturating_sub(1)).1)
}

/// Sends a datagram to a QP of this process; a receiver that does not want it makes no difference.
pub fn send_datagram(qp: &Qp, sq: &Requester, at: u64, ah: &Ah) -> Result<bool, WcStatus> {
    let wqe = sq.queue.wqe(at);
    let Some(peer) = qp.node.qp(wqe.remote_qpn) else { return sq.gather_nothing(qp, at).map(|()| true) };
    // The payload is gathered first: a receiver must not see a message that fails here.
    let mut bytes = [0u8; Qp::MAX_DATAGRAM as usize];
    let bytes = &mut bytes[..wqe.length as usize];
    sq.gather(qp, at, 0, RunMut::of(bytes))?;
    deliver_datagram(qp, sq, at, ah, &peer, bytes);
    Ok(true)
}

/// Hands datagram `at`, whose payload is `bytes`, to a QP of this process, which may not want it.
pub fn deliver_datagram(qp: &Qp, sq: &Requester, at: u64, ah: &Ah, peer: &Qp, bytes: &[u8]) {
    let qkey = sq.qkey_of(at);
    let grh = ah.address.grh(bytes.len() as u32);
    let mut rq = peer.rq.lock();
    let request = request_of(qp, sq, at);
    if multicast::is_for_group(ah, sq.queue.wqe(at).remote_qpn) {
        rq.stats.event(Event::McastRcv, 1);
    }
    if peer.kind != QpType::Ud || !rq.listens(peer) {
        return rq.drop_datagram(&request, Event::Dropped);
    }
    if rq.begin_datagram(peer, request, qkey, &grh) && rq.place(peer, Run::of(bytes)).is_ok() {
        let ending = Ending { sl: ah.address.sl, no_grh: ah.address.lid_only, ..ending_of(sq, at) };
        // Nobody hears of a datagram that is lost at the receiver.
        let _ = rq.finish(peer, ending);
    }
}

/// A request as its responder sees it.
pub fn request_of(qp: &Qp, sq: &Requester, at: u64) -> Request {
    let wqe = sq.queue.wqe(at);
    Request {
        op: wqe.opcode,
        total: Some(wqe.length),
        remote_addr: wqe.remote_addr,
        rkey: wqe.rkey,
        compare_add: wqe.compare_add,
        swap: wqe.swap,
        srqn: wqe.srqn,
        src_qpn: qp.num,
    }
}

/// The end of a request as its responder sees it.
pub fn ending_of(sq: &Requester, at: u64) -> Ending {
    let wqe = sq.queue.wqe(at);
    let imm = matches!(wqe.opcode, WrOpcode::SendImm | WrOpcode::WriteImm).then_some(wqe.imm);
    let invalidate = (wqe.opcode == WrOpcode::SendInv).then_some(Key(wqe.imm));
    Ending { imm, invalidate, solicited: wqe.flags.contains(SendFlags::SOLICITED), ..Ending::default() }
}

/// The types that talk to each other.
pub fn accepts_kind(from: &Qp, to: &Qp) -> bool {
    matches!(
        (from.kind, to.kind),
        (QpType::Rc, QpType::Rc) | (QpType::Uc, QpType::Uc) | (QpType::XrcSend, QpType::XrcRecv)
    )
}
