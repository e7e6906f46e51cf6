//! The `ibv_wr_*` calls: entries are built in the send queue between start and complete, and handed over together.
use super::post::{allowed, bindable, ring};
use super::wqe::Wqe;
use super::{AhObject, QpObject, SendSide, object};
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};

/// What is being built.
#[derive(Default)]
pub struct Build {
    /// Where the next entry goes.
    producer: u32,
    ssn: u32,
    /// The first thing that went wrong; nothing is posted then.
    wrong: Option<Errno>,
    current: Option<Current>,
}

#[derive(Clone, Copy)]
struct Current {
    wqe: Wqe,
}

// SAFETY: an entry belongs to who holds the send queue's lock.
unsafe impl Send for Current {}

/// Gives a QP the functions that it was created for.
pub fn fill(c: &mut ibv_qp_ex, ops: u64) {
    let has = |bit: u64| ops & bit != 0;
    c.wr_start = Some(start);
    c.wr_complete = Some(complete);
    c.wr_abort = Some(abort);
    c.wr_set_ud_addr = Some(set_ud_addr);
    c.wr_set_inline_data = Some(set_inline_data);
    c.wr_set_inline_data_list = Some(set_inline_data_list);
    c.wr_set_sge = Some(set_sge);
    c.wr_set_sge_list = Some(set_sge_list);
    c.wr_atomic_cmp_swp = has(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(cmp_swp as _);
    c.wr_atomic_fetch_add = has(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(fetch_add as _);
    c.wr_atomic_write = has(IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write as _);
    c.wr_flush = has(IBV_QP_EX_WITH_FLUSH).then_some(flush as _);
    c.wr_bind_mw = has(IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw as _);
    c.wr_local_inv = has(IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv as _);
    c.wr_rdma_read = has(IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read as _);
    c.wr_rdma_write = has(IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write as _);
    c.wr_rdma_write_imm = has(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm as _);
    c.wr_send = has(IBV_QP_EX_WITH_SEND).then_some(send as _);
    c.wr_send_imm = has(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm as _);
    c.wr_send_inv = has(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv as _);
}

/// The QP and what it builds.
///
/// # Safety
/// `c` live, and this thread between start and complete.
unsafe fn building<'a>(c: *mut ibv_qp_ex) -> (&'a QpObject, &'a mut SendSide) {
    // SAFETY: the caller holds the send queue's lock.
    unsafe {
        let qp: &QpObject = object(c);
        (qp, qp.send.held())
    }
}

unsafe extern "C" fn start(c: *mut ibv_qp_ex) {
    // SAFETY: the application passes a live QP.
    unsafe {
        object::<_, QpObject>(c).send.lock_raw();
        let (qp, side) = building(c);
        side.build = Build { producer: qp.sq.producer(), ssn: side.ssn, ..Build::default() };
    }
}

unsafe extern "C" fn complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the application ends what `start` began.
    unsafe {
        let (qp, side) = building(c);
        let build = std::mem::take(&mut side.build);
        let mut result = build.wrong.map_or(Ok(()), Err);
        if result.is_ok() && build.producer != qp.sq.producer() {
            side.ssn = build.ssn;
            qp.sq.publish(build.producer);
            result = ring(c.cast());
        }
        qp.send.unlock_raw();
        crate::kernel::command::code(result)
    }
}

unsafe extern "C" fn abort(c: *mut ibv_qp_ex) {
    // SAFETY: the application ends what `start` began.
    unsafe {
        let (qp, side) = building(c);
        side.build = Build::default();
        qp.send.unlock_raw();
    }
}

/// Begins an entry; none where something is wrong already, or is now.
///
/// # Safety
/// As `building`.
unsafe fn begin(c: *mut ibv_qp_ex, opcode: u32) -> Option<Wqe> {
    // SAFETY: the caller vouches for it; the entry is free where there is room.
    unsafe {
        let (qp, side) = building(c);
        let build = &mut side.build;
        build.current = None;
        if build.wrong.is_some() {
            return None;
        }
        let base = &(*c).qp_base;
        if base.state < IBV_QPS_RTS || !allowed(base.qp_type, opcode) {
            build.wrong = Some(Errno::EINVAL);
        } else if !qp.sq.has_room(build.producer) {
            build.wrong = Some(Errno::ENOMEM);
        }
        if build.wrong.is_some() {
            return None;
        }
        build.ssn = build.ssn.wrapping_add(1);
        let wqe = Wqe::send(qp.sq.entry(build.producer), (*c).wr_id, opcode, (*c).wr_flags, build.ssn);
        build.producer = qp.sq.after(build.producer);
        build.current = Some(Current { wqe });
        Some(wqe)
    }
}

/// The entry that was begun last.
///
/// # Safety
/// As `building`.
unsafe fn current(c: *mut ibv_qp_ex) -> Option<Wqe> {
    // SAFETY: the caller vouches for it.
    unsafe { building(c).1.build.current.map(|current| current.wqe) }
}

/// # Safety
/// As `building`.
unsafe fn wrong(c: *mut ibv_qp_ex, e: Errno) {
    // SAFETY: the caller vouches for it.
    unsafe { building(c).1.build.wrong.get_or_insert(e) };
}

unsafe extern "C" fn send(c: *mut ibv_qp_ex) {
    // SAFETY: the application is between start and complete, as in all of these.
    unsafe { begin(c, IBV_WR_SEND) };
}

unsafe extern "C" fn send_imm(c: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as in `send`.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_SEND_WITH_IMM) {
            wqe.ex(imm);
        }
    }
}

unsafe extern "C" fn send_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_SEND_WITH_INV) {
            wqe.ex(rkey);
        }
    }
}

unsafe extern "C" fn local_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as in `send`.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_LOCAL_INV) {
            wqe.ex(rkey);
        }
    }
}

unsafe extern "C" fn rdma_write(c: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as in `send`.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_RDMA_WRITE) {
            wqe.rdma(addr, rkey);
        }
    }
}

unsafe extern "C" fn rdma_write_imm(c: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: as in `send`.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_RDMA_WRITE_WITH_IMM) {
            wqe.rdma(addr, rkey);
            wqe.ex(imm);
        }
    }
}

unsafe extern "C" fn rdma_read(c: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as in `send`.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_RDMA_READ) {
            wqe.rdma(addr, rkey);
        }
    }
}

unsafe extern "C" fn cmp_swp(c: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: as in `send`.
    unsafe { atomic(c, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap) };
}

unsafe extern "C" fn fetch_add(c: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    // SAFETY: as in `send`.
    unsafe { atomic(c, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0) };
}

/// # Safety
/// As `building`.
unsafe fn atomic(c: *mut ibv_qp_ex, opcode: u32, rkey: u32, addr: u64, compare_add: u64, swap: u64) {
    // SAFETY: the caller vouches for it.
    unsafe {
        if let Some(wqe) = begin(c, opcode) {
            wqe.atomic(addr, rkey, compare_add, swap);
        }
    }
}

unsafe extern "C" fn atomic_write(c: *mut ibv_qp_ex, rkey: u32, addr: u64, bytes: *const c_void) {
    // SAFETY: as in `send`; eight bytes are readable.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_ATOMIC_WRITE) {
            wqe.atomic_write(addr, rkey, bytes);
        }
    }
}

unsafe extern "C" fn flush(c: *mut ibv_qp_ex, rkey: u32, addr: u64, length: usize, kind: u8, level: u8) {
    // SAFETY: as in `send`.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_FLUSH) {
            match u32::try_from(length) {
                Ok(length) => wqe.flush(addr, length, rkey, kind, level),
                Err(_) => wrong(c, Errno::EINVAL),
            }
        }
    }
}

unsafe extern "C" fn bind_mw(c: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: as in `send`; window and region are live.
    unsafe {
        if let Some(wqe) = begin(c, IBV_WR_BIND_MW) {
            match bindable(mw, &*info) {
                Ok(()) => {
                    wqe.bind((*mw).rkey, rkey, &*info);
                    (*mw).rkey = rkey;
                }
                Err(_) => wrong(c, Errno::EINVAL),
            }
        }
    }
}

unsafe extern "C" fn set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as in `send`; the address handle is live.
    unsafe {
        if let Some(wqe) = current(c) {
            if (*c).qp_base.qp_type == IBV_QPT_UD && !ah.is_null() {
                wqe.datagram(object::<_, AhObject>(ah), qpn, qkey);
            } else {
                wrong(c, Errno::EINVAL);
            }
        }
    }
}

unsafe extern "C" fn set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: as in `send`.
    unsafe { set_sge_list(c, 1, &sge) };
}

unsafe extern "C" fn set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as in `send`; the list is readable, and the entry has room for `max_send_sge`.
    unsafe {
        let Some(wqe) = current(c) else { return };
        let most = building(c).0.max_send_sge;
        let set = if count > most { Err(Errno::EINVAL) } else { wqe.send_sges(list, count).map(drop) };
        if let Err(e) = set {
            wrong(c, e);
        }
    }
}

unsafe extern "C" fn set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: as in `send`.
    unsafe { set_inline_data_list(c, 1, &piece) };
}

unsafe extern "C" fn set_inline_data_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as in `send`; pieces are readable, and the entry has room for `max_inline` bytes.
    unsafe {
        let Some(wqe) = current(c) else { return };
        let most = building(c).0.max_inline;
        let mut filled = 0;
        for i in 0..count {
            let piece = &*list.add(i);
            if piece.length > most - filled {
                return wrong(c, Errno::EINVAL);
            }
            wqe.inline(&mut filled, piece.addr, piece.length);
        }
        wqe.end_inline(filled);
        wqe.mark_inline();
    }
}
