//! Receiving entries without extension that are what most of them are: an acknowledgement, or a SEND that is here whole, for
//! the QP of the entry before. All others, and what is out of the ordinary about these, are `receive`'s.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Wire;
use super::inbox::{Cache, Owed};
use super::message::{ACK, DATAGRAM, FIRST, FOREIGN, LAST, RELIABLE, SENDS, SOLICITED};
use super::receive::{conclude, owe, request};
use super::replies::accept;
use super::runs;
use crate::soft::cq::Taker;
use crate::soft::link;
use crate::soft::link::shm::ring::PlainEntry;
use crate::soft::mem::run::Run;
use crate::soft::node::Node;
use crate::soft::qp::responder::{Responder, Whole};
use crate::soft::qp::{Nak, Qp};
use crate::soft::types::{Psn, QpType, Qpn, WrOpcode};
use crate::sys::lock::Guard;

const SEND: u8 = WrOpcode::Send.raw() as u8;
const SEND_IMM: u8 = WrOpcode::SendImm.raw() as u8;

/// Takes an entry if it is what most of them are, an acknowledgement or a whole SEND, for the QP of the last one. False:
/// nothing has been done.
#[inline(always)]
pub(super) fn take_plain(
    node: &'static Node,
    wire: &Arc<Wire>,
    cache: &mut Cache,
    plain: &PlainEntry,
    taker: &mut Taker<'_>,
) -> bool {
    let src = Qpn(plain.src_qpn());
    let is_known = cache.proven.is_last(src)
        && plain.flags() & (FOREIGN | DATAGRAM) == 0
        && cache.epoch == node.qp_epoch.load(Ordering::Acquire);
    let Some(qp) = cache.qp.as_ref().filter(|qp| is_known && qp.num.0 == plain.dst_qpn()) else {
        return false;
    };
    match plain.kind() {
        ACK => acknowledged(qp, src, Psn::new(plain.seq()), taker),
        // While an event may wake a thread that replies, each has an acknowledgement of its own.
        SENDS if node.wires.own().is_asleep() => false,
        SEND | SEND_IMM | SENDS => {
            if let Some(psn) = sent(wire, qp, src, plain, taker) {
                owe(wire, &mut cache.owed, Owed { from: qp.num, to: src, psn });
            }
            true
        }
        _ => false,
    }
}

/// Carries out the SENDs of one entry, as `request` does each, which also sees to what is out of the ordinary.
#[inline(always)]
fn sent(wire: &Arc<Wire>, qp: &Arc<Qp>, src: Qpn, plain: &PlainEntry, taker: &mut Taker<'_>) -> Option<Psn> {
    let (mut accepted, mut done, mut ended) = (None, 0, Ok(()));
    let mut rq = qp.rq.lock();
    if is_expected(qp, &rq, src, plain) {
        let psn = Psn::new(plain.seq());
        let was_refused = std::mem::replace(&mut rq.refused, false);
        (done, ended) = rq.take_whole(qp, &sends_of(plain, src), payload_of(plain), taker);
        if done > 0 {
            rq.psn = psn.plus(done);
            let owed = |psn| Owed { from: qp.num, to: src, psn };
            let owed = (qp.kind == QpType::Rc).then(|| owed(psn.plus(done - 1)));
            accepted = owed.and_then(|owed| accept(wire, qp, owed, taker));
            if done as usize * plain.total() as usize == plain.len() {
                return accepted;
            }
        } else if ended.is_ok() {
            rq.refused = was_refused;
        }
    }
    sent_partly(wire, qp, src, plain, taker, (rq, accepted, done, ended))
}

/// The SENDs of one entry that `sent` has not carried out.
#[inline(never)]
fn sent_partly(
    wire: &Arc<Wire>,
    qp: &Arc<Qp>,
    src: Qpn,
    plain: &PlainEntry,
    taker: &mut Taker<'_>,
    (rq, mut accepted, done, ended): (Guard<'_, Responder>, Option<Psn>, u32, Result<(), Nak>),
) -> Option<Psn> {
    let mut rest = runs::each(&plain.entry()).skip(done as usize);
    match ended {
        Ok(()) => drop(rq),
        Err(nak) => {
            let refused = rest.next().map(|send| send.header).unwrap_or(plain.entry().header);
            conclude(wire, qp, rq, src, &refused, Err(nak), taker);
        }
    }
    for send in rest {
        accepted = request(wire, qp, src, &send, taker).or(accepted);
    }
    accepted
}

/// Is this what the receive half waits for, and all of it here?
#[inline(always)]
fn is_expected(qp: &Qp, rq: &Responder, src: Qpn, plain: &PlainEntry) -> bool {
    let is_next = match qp.kind {
        QpType::Rc => plain.flags() & RELIABLE != 0 && Psn::new(plain.seq()) == rq.psn,
        QpType::Uc => plain.flags() & RELIABLE == 0,
        _ => false,
    };
    let is_whole = plain.flags() & (FIRST | LAST) == FIRST | LAST && runs::is_whole(plain);
    is_next && is_whole && rq.peer == src && rq.listens(qp)
}

#[inline(always)]
fn sends_of(plain: &PlainEntry, src_qpn: Qpn) -> Whole {
    Whole {
        op: if plain.kind() == SEND_IMM { WrOpcode::SendImm } else { WrOpcode::Send },
        src_qpn,
        imm: (plain.kind() == SEND_IMM).then_some(plain.imm()),
        solicited: plain.flags() & SOLICITED != 0,
        length: plain.total(),
    }
}

/// An acknowledgement for a QP of two processes' own. False: nothing has been done.
#[inline(always)]
fn acknowledged(qp: &Arc<Qp>, src: Qpn, psn: Psn, taker: &mut Taker<'_>) -> bool {
    let mut sq = qp.sq.lock();
    if sq.foreign.is_some() || qp.kind != QpType::Rc || !sq.path.leads_to(src) {
        return false;
    }
    if sq.has_sent(psn) {
        sq.acked(qp, psn, taker);
        if sq.queue.next != sq.queue.head {
            link::pump(qp, &mut sq);
        }
    }
    true
}

/// As `payload`.
#[inline(always)]
fn payload_of(plain: &PlainEntry) -> Run<'_> {
    // SAFETY: as for `payload`.
    unsafe { Run::new(plain.payload().as_ptr(), plain.len()) }
}
