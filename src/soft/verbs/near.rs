//! RDMA WRITE and READ to where the last ones went, carried out straight from the application's request.
use crate::abi::*;
use crate::soft::link::wires::reply_follows;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{MAX_MESSAGE, SendFlags, Sge, WrOpcode};
use crate::sys::process_vm::Way;

/// Carries out requests from the front of the list as long as they are WRITEs and READs of one place each, to a region that the queue
/// pair knows well (`shm::near`), and nothing stands in their way. Gives the first one that is not, of which nothing has been done, or
/// which does no harm if it is done again; NULL behind the last.
///
/// # Safety
/// As for `SendSource::from_wr`, for each request of the list, which ends in NULL.
#[inline(always)]
pub unsafe fn carry_out(qp: &Qp, sq: &mut Requester, list: *mut ibv_send_wr) -> *mut ibv_send_wr {
    let mut at = list;
    // SAFETY: the caller vouches for the list.
    while let Some(wr) = unsafe { at.as_ref() } {
        // SAFETY: the caller vouches for the request.
        let done = unsafe {
            match wr.opcode {
                IBV_WR_RDMA_WRITE => one::<true>(qp, sq, wr),
                IBV_WR_RDMA_READ => read(qp, sq, wr),
                _ => false,
            }
        };
        if !done {
            break;
        }
        at = wr.next;
    }
    at
}

/// Out of line, since who waits for the bytes of a WRITE waits for all that is done before.
///
/// # Safety
/// As for `one`.
#[inline(never)]
unsafe fn read(qp: &Qp, sq: &mut Requester, wr: &ibv_send_wr) -> bool {
    // SAFETY: passed on to the caller.
    unsafe { one::<false>(qp, sq, wr) }
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
        reply_follows(qp);
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
        let span = qp.node.mem.local(qp.pd, sge, !WRITE).ok().filter(|span| !span.is_null());
        // SAFETY: registered memory, with the right that the way needs, held meanwhile.
        sq.queue.max_sge() > 0
            && span.is_some_and(|span| unsafe {
                near.carry_out::<WRITE>(to.rkey, to.remote_addr, span.as_ptr(), len)
            })
    };
    if done {
        near.count::<WRITE>(sge.length, sq.stats.mtu());
        sq.take_done(qp, wr.wr_id, opcode, flags, sge.length);
    }
    done
}
