//! SENDs as nearly all are, straight from the application's request into the ring of a peer on this host.
use crate::abi::*;
use crate::soft::link::shm::ring::{Ext, Header, LINE_PAYLOAD, MAX_PAYLOAD, Producer};
use crate::soft::link::wires::message::SENDS;
use crate::soft::link::wires::{RUN_PAYLOAD, header_of_send, reply_follows};
use crate::soft::mem::run::RunMut;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::{Open, Requester};
use crate::soft::types::{Psn, Qpn, SendFlags, Sge, WrOpcode};

/// What a request may ask for here; a fence has READs to wait for.
const FLAGS: u32 = SendFlags::SIGNALED.union(SendFlags::SOLICITED).union(SendFlags::INLINE).bits();

/// A SEND from one place that one entry of a ring has room for.
struct Plain<'a> {
    wr: &'a ibv_send_wr,
    opcode: WrOpcode,
    flags: SendFlags,
    sge: Sge,
}

/// The request, if it is one; none at the end of the list.
///
/// # Safety
/// As for `send`.
#[inline(always)]
unsafe fn plain<'a>(wr: *mut ibv_send_wr) -> Option<Plain<'a>> {
    // SAFETY: the caller vouches for the request.
    let wr = unsafe { wr.as_ref() }?;
    let opcode = match wr.opcode {
        IBV_WR_SEND => WrOpcode::Send,
        IBV_WR_SEND_WITH_IMM => WrOpcode::SendImm,
        _ => return None,
    };
    if wr.num_sge != 1 || wr.send_flags & !FLAGS != 0 {
        return None;
    }
    // SAFETY: the caller vouches for the request's list, which has one entry.
    let sge = unsafe { *wr.sg_list.cast::<Sge>() };
    let flags = SendFlags::from_bits_retain(wr.send_flags);
    (sge.length as usize <= MAX_PAYLOAD).then_some(Plain { wr, opcode, flags, sge })
}

impl Plain<'_> {
    /// What stands before it in the ring, from one QP to another.
    #[inline(always)]
    fn header(&self, ends: (Qpn, Qpn), psn: Psn, is_reliable: bool) -> Header {
        header_of_send(ends, psn, self.opcode, self.flags, self.sge.length, self.wr.imm_data, is_reliable)
    }

    /// Whether it can stand in one entry with `first` and those between them, which fill it so far.
    #[inline(always)]
    fn joins(&self, first: &Plain<'_>, filled: usize) -> bool {
        let differs = (self.flags ^ first.flags).contains(SendFlags::SOLICITED);
        let are_sends = self.opcode == WrOpcode::Send && first.opcode == WrOpcode::Send;
        let n = first.sge.length;
        are_sends && !differs && n > 0 && self.sge.length == n && filled + n as usize <= RUN_PAYLOAD
    }
}

/// Posts and sends requests from the front of the list as long as they are SENDs of one entry from one place, and nothing
/// stands in their way. Gives the first one that is not, of which nothing has been looked at; NULL behind the last.
///
/// # Safety
/// As for `SendSource::from_wr`, for each request of the list, which ends in NULL.
#[inline(always)]
pub unsafe fn send(qp: &Qp, sq: &mut Requester, list: *mut ibv_send_wr) -> *mut ibv_send_wr {
    let Some(mut open) = sq.open(qp) else { return list };
    let (wire, is_reliable) = (open.wire, open.is_reliable);
    let mut at = list;
    reply_follows(qp, wire);
    {
        let mut tx = wire.peer.tx.lock();
        // SAFETY: the caller vouches for the list.
        while let Some(first) = unsafe { plain(at) } {
            let n = first.sge.length as usize;
            if n > LINE_PAYLOAD || !first.wr.next.is_null() {
                // SAFETY: as above.
                let Some(next) = (unsafe { put_entry(qp, &mut open, &first, &mut tx) }) else { break };
                at = next;
                continue;
            }
            let Some(line) = tx.try_line() else { break };
            // SAFETY: the line has that much room, which is nobody else's until the commit; the caller vouches for the request.
            let Some(psn) = (unsafe { put(qp, &mut open, &first, line.payload()) }) else { break };
            line.commit(&first.header((qp.num, open.to), psn, is_reliable), n);
            at = first.wr.next;
        }
    }
    if at != list {
        wire.announce(is_reliable);
        if !is_reliable {
            sq.complete_sent(qp);
        }
    }
    at
}

/// Posts and sends a request, and with it those behind it that can stand in the same entry. Gives the next one, or nothing where
/// nothing has been done.
///
/// # Safety
/// As for `send`.
#[inline(never)]
unsafe fn put_entry(
    qp: &Qp,
    open: &mut Open<'_>,
    first: &Plain<'_>,
    tx: &mut Producer,
) -> Option<*mut ibv_send_wr> {
    let n = first.sge.length as usize;
    let room = n.max(if first.wr.next.is_null() { 0 } else { RUN_PAYLOAD });
    let slot = tx.try_reserve(&Ext::None, room)?;
    // SAFETY: the slot has that much room, which is nobody else's until the commit; the caller vouches for the request.
    let psn = unsafe { put(qp, open, first, slot.payload()) }?;
    let mut header = first.header((qp.num, open.to), psn, open.is_reliable);
    let (mut at, mut filled) = (first.wr.next, n);
    // SAFETY: the caller vouches for the list.
    while let Some(more) = unsafe { plain(at) }.filter(|more| more.joins(first, filled)) {
        // SAFETY: the slot has room behind those before; the caller vouches for the request.
        if unsafe { put(qp, open, &more, slot.payload().add(filled)) }.is_none() {
            break;
        }
        header.kind = SENDS;
        (at, filled) = (more.wr.next, filled + n);
    }
    slot.commit(&header, filled);
    Some(at)
}

/// Writes a request to the queue and its bytes to `payload`; the next one then has the next place. Gives its PSN; none: nothing has been
/// done.
///
/// # Safety
/// The bytes at `payload` must be writable, and the request's memory as for `SendSource::from_wr`.
#[inline(always)]
unsafe fn put(qp: &Qp, open: &mut Open<'_>, request: &Plain<'_>, payload: *mut u8) -> Option<Psn> {
    let &Plain { wr, opcode, flags, sge } = request;
    let n = sge.length as usize;
    if open.queue.is_full() {
        return None;
    }
    let number = open.queue.place();
    let is_inline = flags.contains(SendFlags::INLINE);
    if is_inline {
        let kept = open.queue.inline_places(number).get_mut(..n)?;
        // SAFETY: the caller vouches for the source; both places have room for `n` bytes.
        unsafe {
            copy(sge.addr as *const u8, kept.as_mut_ptr(), n);
            copy(kept.as_ptr(), payload, n);
        }
    } else {
        // SAFETY: the caller vouches for the place.
        let mut payload = unsafe { RunMut::new(payload, n) };
        let span = qp.node.mem.local(qp.pd, &sge, false);
        if !span.is_ok_and(|span| !span.is_null() && payload.fill(span.run()).is_ok()) {
            return None;
        }
        *open.queue.sge_places(number).first_mut()? = sge;
    }
    let psn = *open.psn;
    let wqe = open.queue.wqe_mut(number);
    wqe.set_send(wr.wr_id, opcode, flags, wr.imm_data, psn);
    (wqe.length, wqe.num_sge) = (sge.length, u32::from(!is_inline));
    open.sent();
    Some(psn)
}

/// Copies a few bytes, which mostly are eight.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: the caller vouches for both places.
    unsafe {
        match n {
            8 => to.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read()),
            _ => to.copy_from_nonoverlapping(from, n),
        }
    }
}
