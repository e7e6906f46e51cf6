//! RDMA WRITE and READ to where the last ones went, carried out straight from the application's request.
use crate::abi::*;
use crate::soft::link::Path;
use crate::soft::link::wires::reply_follows;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{MAX_MESSAGE, SendFlags, Sge, WrOpcode};
use crate::sys::process_vm::Way;

/// Carries out requests from the front of the list as long as they are WRITEs, or READs, of one place each, to a region that the queue
/// pair knows well (`shm::near`), and nothing stands in their way. Gives the first one that is not, of which nothing has been done, or
/// which does no harm if it is done again; NULL behind the last.
///
/// # Safety
/// As for `SendSource::from_wr`, for each request of the list, which ends in NULL.
#[inline(always)]
pub unsafe fn run<const WRITE: bool>(
    qp: &Qp,
    sq: &mut Requester,
    list: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let mut at = list;
    // SAFETY: the caller vouches for the list.
    while let Some(wr) = unsafe { at.as_ref() } {
        let is_it = wr.opcode == if WRITE { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ };
        // SAFETY: the caller vouches for the request.
        if !is_it || !unsafe { one::<WRITE>(qp, sq, wr) } {
            break;
        }
        at = wr.next;
    }
    at
}

/// The same for WRITEs and READs that come in any order.
///
/// # Safety
/// As for `run`.
pub unsafe fn run_both(qp: &Qp, sq: &mut Requester, list: *mut ibv_send_wr) -> *mut ibv_send_wr {
    let mut at = list;
    loop {
        // SAFETY: passed on to the caller.
        let next = unsafe {
            let behind_writes = run::<true>(qp, sq, at);
            run::<false>(qp, sq, behind_writes)
        };
        if next == at {
            return at;
        }
        at = next;
    }
}

/// Carries out one request, a WRITE or a READ; false where anything is out of the ordinary, and the long way decides.
///
/// # Safety
/// As for `SendSource::from_wr`.
#[inline(always)]
unsafe fn one<const WRITE: bool>(qp: &Qp, sq: &mut Requester, wr: &ibv_send_wr) -> bool {
    let (way, opcode) = if WRITE { (Way::Write, WrOpcode::Write) } else { (Way::Read, WrOpcode::Read) };
    let Some(near) = sq.nearby.get(way) else { return false };
    // SAFETY: with this opcode the application passes the address and key of RDMA.
    let to = unsafe { wr.wr.rdma };
    if WRITE {
        near.fetch(to.remote_addr);
        if let Path::Shm(wire, _) = &sq.path {
            reply_follows(qp, wire);
        }
    }
    if wr.num_sge != 1 || !sq.is_idle(qp) {
        return false;
    }
    let Some(near) = sq.nearby.get(way) else { return false };
    // SAFETY: the application passes one SGE.
    let sge = unsafe { &*wr.sg_list.cast::<Sge>() };
    if !(1..=MAX_MESSAGE).contains(&sge.length) {
        return false;
    }
    let (flags, len) = (SendFlags::from_bits_truncate(wr.send_flags), sge.length as usize);
    let done = if flags.contains(SendFlags::INLINE) {
        // SAFETY: memory of the application's, which it promises to be there.
        WRITE
            && sge.length <= sq.queue.max_inline()
            && unsafe { near.carry_out::<WRITE>(to.rkey, to.remote_addr, sge.addr as *mut u8, len) }
    } else {
        let Ok(span) = qp.node.mem.local(qp.pd, sge, !WRITE) else { return false };
        // SAFETY: registered memory, with the right that the way needs, held meanwhile.
        !span.is_null()
            && sq.queue.max_sge() > 0
            && unsafe { near.carry_out::<WRITE>(to.rkey, to.remote_addr, span.as_ptr(), len) }
    };
    if done {
        near.count::<WRITE>(sge.length, sq.stats.mtu());
        sq.take_done(qp, wr.wr_id, opcode, flags, sge.length);
    }
    done
}
