//! SENDs that are one entry of the ring, from one place to one place: nearly all of those that programs wait for. What is out
//! of the ordinary in any way goes the long way, in `send` and `receive`, which also says what is wrong with it.
use super::message::{FIRST, LAST, RELIABLE, SOLICITED};
use super::{Wire, send};
use crate::soft::link::shm::ring::{Entry, Ext, Header, MAX_PAYLOAD};
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::Whole;
use crate::soft::types::{Psn, QpType, Qpn, SendFlags, WrOpcode};

/// Puts a SEND into the ring whose bytes fit into one entry and lie in one place, as with nearly all. False: nothing is
/// sent, and `send` is to see what it can do.
#[inline]
pub fn put(qp: &Qp, sq: &mut Requester, at: u64, wire: &Wire, to: Qpn) -> bool {
    let wqe = sq.queue.wqe(at);
    let n = wqe.length as usize;
    if !matches!(wqe.opcode, WrOpcode::Send | WrOpcode::SendImm)
        || !matches!(qp.kind, QpType::Rc | QpType::Uc)
        || n > MAX_PAYLOAD
        || wqe.cursor != 0
    {
        return false;
    }
    let mut header = send::header(qp, wqe, to, sq.psn_of(at));
    header.flags |= FIRST | LAST;
    let mut tx = wire.peer.tx.lock();
    let Some(slot) = tx.try_reserve(&Ext::None, n) else { return false };
    // SAFETY: the slot has room for `n` bytes, which are nobody else's until the commit.
    let mut room = unsafe { RunMut::new(slot.payload(), n) };
    if wqe.flags.contains(SendFlags::INLINE) {
        if room.fill(Run::of(sq.queue.inline(at))).is_err() {
            return false;
        }
    } else {
        let &[sge] = sq.queue.sges(at) else { return false };
        let span = qp.node.mem.local(qp.pd, &sge, false);
        if !span.is_ok_and(|span| !span.is_null() && room.fill(span.run()).is_ok()) {
            return false;
        }
    }
    slot.commit(&header, n);
    drop(tx);
    sq.number(at, 1);
    true
}

/// The header of a SEND of a connected QP that is one entry, and nothing but that.
#[inline(always)]
pub fn header_of_send(
    (from, to): (Qpn, Qpn),
    psn: Psn,
    op: WrOpcode,
    flags: SendFlags,
    length: u32,
    imm: u32,
    is_reliable: bool,
) -> Header {
    let reliable = if is_reliable { RELIABLE } else { 0 };
    let solicited = if flags.contains(SendFlags::SOLICITED) { SOLICITED } else { 0 };
    Header {
        kind: op.raw() as u8,
        flags: FIRST | LAST | reliable | solicited,
        spare: 0,
        dst_qpn: to.0,
        src_qpn: from.0,
        seq: psn.get(),
        total: length,
        imm,
        ext: Ext::None,
    }
}

/// The SEND that an entry is, if it is nothing else and all of it is here.
#[inline]
pub fn of(entry: &Entry, op: WrOpcode, src_qpn: Qpn) -> Option<Whole> {
    let h = &entry.header;
    let is_whole = matches!(op, WrOpcode::Send | WrOpcode::SendImm)
        && h.flags & (FIRST | LAST) == FIRST | LAST
        && h.total as usize == entry.len
        && h.ext == Ext::None;
    let imm = (op == WrOpcode::SendImm).then_some(h.imm);
    is_whole.then_some(Whole { op, src_qpn, imm, solicited: h.flags & SOLICITED != 0, length: h.total })
}
