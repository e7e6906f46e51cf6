//! Receiving entries of one line without extension that are what most of them are: an acknowledgement, or a SEND that is here whole, for
//! the QP of the entry before. All others, and what is out of the ordinary about these, are `receive`'s.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Wire;
use super::inbox::{Cache, Owed};
use super::message::{ACK, DATAGRAM, FIRST, FOREIGN, LAST, RELIABLE, SOLICITED};
use super::receive::{conclude, owe, request};
use crate::soft::cq::Taker;
use crate::soft::link;
use crate::soft::link::shm::ring::LineEntry;
use crate::soft::mem::run::Run;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::qp::responder::Whole;
use crate::soft::types::{Psn, QpType, Qpn, WrOpcode};

const SEND: u8 = WrOpcode::Send.raw() as u8;
const SEND_IMM: u8 = WrOpcode::SendImm.raw() as u8;

/// Takes an entry of one line if it is what most of them are, an acknowledgement or a whole SEND, for the QP of the last one. False:
/// nothing has been done.
#[inline(always)]
pub(super) fn take_plain(
    node: &'static Node,
    wire: &Arc<Wire>,
    cache: &mut Cache,
    line: &LineEntry,
    taker: &mut Taker<'_>,
) -> bool {
    let src = Qpn(line.src_qpn());
    let is_known = cache.proven.is_last(src)
        && line.flags() & (FOREIGN | DATAGRAM) == 0
        && cache.epoch == node.qp_epoch.load(Ordering::Acquire);
    let Some(qp) = cache.qp.as_ref().filter(|qp| is_known && qp.num.0 == line.dst_qpn()) else {
        return false;
    };
    match line.kind() {
        ACK => acknowledged(qp, src, Psn::new(line.seq()), taker),
        SEND | SEND_IMM => {
            if let Some(psn) = sent(wire, qp, src, line, taker) {
                let owed = Owed { from: qp.num, to: src, psn };
                owe(wire, &mut cache.owed, owed);
            }
            true
        }
        _ => false,
    }
}

/// Carries out a SEND of one line, as `request` does, which also sees to what is out of the ordinary.
#[inline(always)]
fn sent(wire: &Arc<Wire>, qp: &Arc<Qp>, src: Qpn, line: &LineEntry, taker: &mut Taker<'_>) -> Option<Psn> {
    let psn = Psn::new(line.seq());
    let mut rq = qp.rq.lock();
    let is_next = match qp.kind {
        QpType::Rc => line.flags() & RELIABLE != 0 && psn == rq.psn,
        QpType::Uc => line.flags() & RELIABLE == 0,
        _ => false,
    };
    let message = Whole {
        op: if line.kind() == SEND { WrOpcode::Send } else { WrOpcode::SendImm },
        src_qpn: src,
        imm: (line.kind() == SEND_IMM).then_some(line.imm()),
        solicited: line.flags() & SOLICITED != 0,
    };
    let is_plain = is_next
        && line.flags() & (FIRST | LAST) == FIRST | LAST
        && line.total() as usize == line.len()
        && rq.peer == src
        && rq.listens(qp);
    if is_plain {
        let was_refused = std::mem::replace(&mut rq.refused, false);
        match rq.take_whole(qp, &message, line_payload(line), taker) {
            Ok(true) => {
                rq.psn = psn.plus(1);
                return (qp.kind == QpType::Rc).then_some(psn);
            }
            Ok(false) => rq.refused = was_refused,
            Err(nak) => return conclude(wire, qp, rq, src, &line.entry().header, Err(nak)),
        }
    }
    drop(rq);
    request(wire, qp, src, &line.entry(), taker)
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
fn line_payload(line: &LineEntry) -> Run<'_> {
    // SAFETY: as for `payload`.
    unsafe { Run::new(line.payload().as_ptr(), line.len()) }
}
