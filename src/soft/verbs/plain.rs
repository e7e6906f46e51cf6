//! SENDs as nearly all are, straight from the application's request into the ring of a peer on this host.
use crate::abi::*;
use crate::soft::link::shm::ring::LINE_PAYLOAD;
use crate::soft::link::wires;
use crate::soft::mem::run::RunMut;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{SendFlags, Sge, WrOpcode};

/// What a request may ask for here; a fence has READs to wait for.
const FLAGS: u32 = SendFlags::SIGNALED.union(SendFlags::SOLICITED).union(SendFlags::INLINE).bits();

/// Posts and sends requests from the front of the list as long as they are SENDs of few bytes from one place, and nothing
/// stands in their way. Gives the first one that is not, of which nothing has been looked at; NULL behind the last.
///
/// # Safety
/// As for `SendSource::from_wr`, for each request of the list, which ends in NULL.
#[inline(always)]
pub unsafe fn send(qp: &Qp, sq: &mut Requester, list: *mut ibv_send_wr) -> *mut ibv_send_wr {
    let Some(mut open) = sq.open(qp) else { return list };
    let (wire, is_reliable) = (open.wire, open.is_reliable);
    let mut at = list;
    {
        let mut tx = wire.peer.tx.lock();
        // SAFETY: the caller vouches for the list.
        while let Some(wr) = unsafe { at.as_ref() } {
            let opcode = match wr.opcode {
                IBV_WR_SEND => WrOpcode::Send,
                IBV_WR_SEND_WITH_IMM => WrOpcode::SendImm,
                _ => break,
            };
            let flags = SendFlags::from_bits_retain(wr.send_flags);
            if wr.num_sge != 1 || wr.send_flags & !FLAGS != 0 {
                break;
            }
            // SAFETY: the caller vouches for the request's list, which has one entry.
            let sge = unsafe { *wr.sg_list.cast::<Sge>() };
            let n = sge.length as usize;
            if n > LINE_PAYLOAD {
                break;
            }
            if open.queue.is_full() {
                break;
            }
            let Some(line) = tx.try_line() else { break };
            let number = open.queue.place();
            if flags.contains(SendFlags::INLINE) {
                let Some(kept) = open.queue.inline_places(number).get_mut(..n) else { break };
                // SAFETY: the caller vouches for the source; both places have room for `n` bytes.
                unsafe {
                    copy(sge.addr as *const u8, kept.as_mut_ptr(), n);
                    copy(kept.as_ptr(), line.payload(), n);
                }
            } else {
                // SAFETY: the line has room for `n` bytes, which are nobody else's until the commit.
                let mut payload = unsafe { RunMut::new(line.payload(), n) };
                let span = qp.node.mem.local(qp.pd, &sge, false);
                if !span.is_ok_and(|span| !span.is_null() && payload.fill(span.run()).is_ok()) {
                    break;
                }
                let Some(place) = open.queue.sge_places(number).first_mut() else { break };
                *place = sge;
            }
            let psn = *open.psn;
            let wqe = open.queue.wqe_mut(number);
            wqe.set_send(wr.wr_id, opcode, flags, wr.imm_data, psn);
            (wqe.length, wqe.num_sge) = (sge.length, u32::from(!flags.contains(SendFlags::INLINE)));
            let with_imm = opcode == WrOpcode::SendImm;
            line.commit(&wires::header_of_send(qp.num, open.to, wqe, with_imm, is_reliable), n);
            open.sent();
            at = wr.next;
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
