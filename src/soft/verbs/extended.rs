//! Extended completion queues (`ibv_start_poll`) and the `ibv_wr_*` calls.
use std::ffi::{c_int, c_void};

use super::work::{can_send, copy_payload};
use super::{AhObject, CqObject, Polled, QpObject, object};
use crate::abi::*;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::sendq::Wqe;
use crate::soft::types::{Key, QpType, Qpn, SendFlags, Sge, WrOpcode};
use crate::soft::{engine, link};
use crate::sys::clock;
use crate::sys::errno::Errno;
use crate::sys::log::explain;

/// Gives an extended CQ its functions; readers that were not asked for stay NULL, as `ibv_create_cq_ex(3)` allows.
pub fn fill_cq(c: &mut ibv_cq_ex, wc_flags: u64) {
    let has = |bit: u64| wc_flags & bit != 0;
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_byte_len = has(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    c.read_imm_data = has(IBV_WC_EX_WITH_IMM).then_some(read_imm_data as _);
    c.read_qp_num = has(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
    c.read_src_qp = has(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp as _);
    c.read_slid = has(IBV_WC_EX_WITH_SLID).then_some(read_slid as _);
    c.read_sl = has(IBV_WC_EX_WITH_SL).then_some(read_sl as _);
    c.read_dlid_path_bits = has(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits as _);
    c.read_completion_ts = has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts as _);
    c.read_completion_wallclock_ns =
        has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock as _);
}

/// The completion that the readers read. Between start and end the polling thread owns it.
///
/// # Safety
/// `c` must be a live extended CQ of urxe, and this thread between `start_poll` and `end_poll`.
unsafe fn polled<'a>(c: *mut ibv_cq_ex) -> &'a mut Polled {
    // SAFETY: the caller holds `polling`.
    unsafe { object::<_, CqObject>(c).polling.held() }
}

unsafe extern "C" fn start_poll(c: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the application passes a live extended CQ.
    unsafe {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let cq: &CqObject = object(c);
        if !cq.single_threaded {
            cq.polling.lock_raw();
        }
        if advance(c) || (engine::progress_from_poll() && advance(c)) || advance(c) {
            return 0;
        }
        if !cq.single_threaded {
            cq.polling.unlock_raw();
        }
    }
    libc::ENOENT
}

unsafe extern "C" fn next_poll(c: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the application is between start_poll and end_poll.
    if unsafe { advance(c) } { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn end_poll(c: *mut ibv_cq_ex) {
    // SAFETY: the application ends what a successful start_poll began.
    unsafe {
        let cq: &CqObject = object(c);
        if !cq.single_threaded {
            cq.polling.unlock_raw();
        }
    }
}

/// # Safety
/// As for `polled`.
unsafe fn advance(c: *mut ibv_cq_ex) -> bool {
    // SAFETY: the caller owns the place; a completion is taken off the queue as it is returned, never more.
    unsafe {
        let place = polled(c);
        let got = object::<_, CqObject>(c).cq.poll(1, |cqe, time| {
            place.cqe = *cqe;
            place.time = time;
        });
        if got == 0 {
            return false;
        }
        (*c).wr_id = place.cqe.wr_id;
        (*c).status = place.cqe.status;
        true
    }
}

macro_rules! readers {
    ($($name:ident -> $t:ty: $field:ident;)*) => {
        $(unsafe extern "C" fn $name(c: *mut ibv_cq_ex) -> $t {
            // SAFETY: the application is between start_poll and end_poll.
            unsafe { polled(c).cqe.$field as $t }
        })*
    };
}

readers! {
    read_opcode -> u32: opcode;
    read_vendor_err -> u32: vendor_err;
    read_wc_flags -> u32: wc_flags;
    read_byte_len -> u32: byte_len;
    read_imm_data -> u32: imm;
    read_qp_num -> u32: qp_num;
    read_src_qp -> u32: src_qp;
    read_slid -> u32: slid;
    read_sl -> u8: sl;
    read_dlid_path_bits -> u8: dlid_path_bits;
}

unsafe extern "C" fn read_completion_ts(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the application is between start_poll and end_poll.
    unsafe { polled(c).time }
}

unsafe extern "C" fn read_wallclock(c: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    clock::to_wallclock(unsafe { polled(c).time })
}

const SEND_OPS: [(u64, WrOpcode); 7] = [
    (IBV_QP_EX_WITH_RDMA_WRITE, WrOpcode::Write),
    (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, WrOpcode::WriteImm),
    (IBV_QP_EX_WITH_SEND, WrOpcode::Send),
    (IBV_QP_EX_WITH_SEND_WITH_IMM, WrOpcode::SendImm),
    (IBV_QP_EX_WITH_RDMA_READ, WrOpcode::Read),
    (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, WrOpcode::CmpSwap),
    (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, WrOpcode::FetchAdd),
];

/// All of these `IBV_QP_EX_WITH_*` are there for this type of QP.
pub fn offers(kind: QpType, flags: u64) -> bool {
    let offered: u64 = SEND_OPS.iter().filter(|(_, op)| can_send(kind, *op)).map(|(bit, _)| *bit).sum();
    flags & !offered == 0
}

/// Gives an extended QP the functions that `flags` asks for.
pub fn fill_qp(c: &mut ibv_qp_ex, kind: QpType, flags: u64) {
    let has = |bit: u64| flags & bit != 0;
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_ud_addr = (kind == QpType::Ud).then_some(wr_set_ud_addr as _);
    c.wr_set_xrc_srqn = (kind == QpType::XrcSend).then_some(wr_set_xrc_srqn as _);
    c.wr_rdma_write = has(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write as _);
    c.wr_rdma_write_imm = has(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm as _);
    c.wr_send = has(IBV_QP_EX_WITH_SEND).then_some(wr_send as _);
    c.wr_send_imm = has(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm as _);
    c.wr_rdma_read = has(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read as _);
    c.wr_atomic_cmp_swp = has(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp as _);
    c.wr_atomic_fetch_add = has(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add as _);
}

/// The object and its send half, which this thread holds since `wr_start`.
///
/// # Safety
/// `c` must be a live extended QP of urxe, and this thread between `wr_start` and its end.
unsafe fn building<'a>(c: *mut ibv_qp_ex) -> (&'a mut QpObject, &'a mut Requester) {
    // SAFETY: the lock that `wr_start` took keeps others away from both.
    unsafe {
        let object = &mut *c.cast::<QpObject>();
        let sq: *mut Requester = object.qp.sq.held();
        (object, &mut *sq)
    }
}

unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: the application passes a live extended QP; the lock is released by complete or abort.
    unsafe {
        let qp = object::<_, QpObject>(c).qp.clone();
        qp.sq.lock_raw();
        let (object, sq) = building(c);
        object.building = None;
        object.build_error = match sq.accepts(&object.qp) {
            Ok(()) => 0,
            Err(e) => {
                let qp = &object.qp;
                explain(format_args!(
                    "ibv_wr_start qp={:?}: the QP is in {:?}, expected RTS",
                    qp.num,
                    qp.state()
                ));
                e.0
            }
        };
    }
}

unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the application ends what wr_start began; `qp` keeps the lock alive while it is released.
    unsafe {
        let (object, sq) = building(c);
        let qp = object.qp.clone();
        let error = object.build_error;
        if error == 0 {
            sq.publish(&qp);
            link::pump(&qp, sq);
        } else {
            sq.queue.discard_drafts();
        }
        qp.sq.unlock_raw();
        qp.node.settle();
        error
    }
}

unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: the application ends what wr_start began.
    unsafe {
        let (object, sq) = building(c);
        sq.queue.discard_drafts();
        object.qp.sq.unlock_raw();
    }
}

/// Begins a request with the `wr_id` and `wr_flags` that the application has set.
///
/// # Safety
/// As for `building`.
unsafe fn begin(c: *mut ibv_qp_ex, opcode: WrOpcode, fill: impl FnOnce(&mut Wqe)) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let (object, sq) = building(c);
        object.building = None;
        if object.build_error != 0 {
            return;
        }
        match sq.queue.draft() {
            Ok(at) => {
                let wqe = sq.queue.wqe_mut(at);
                wqe.wr_id = (*c).wr_id;
                wqe.opcode = opcode;
                // Inline data is a matter of the setter, not of the flag.
                wqe.flags = SendFlags::from_bits_truncate((*c).wr_flags) - SendFlags::INLINE;
                fill(wqe);
                object.building = Some(at);
            }
            Err(e) => {
                let depth = sq.queue.depth();
                let qp = object.qp.num;
                explain(format_args!(
                    "ibv_wr_{opcode:?} qp={qp:?}: the send queue is full (max_send_wr={depth})"
                ));
                object.build_error = e.0;
            }
        }
    }
}

/// # Safety
/// As for `building`.
unsafe fn with_wqe(c: *mut ibv_qp_ex, fill: impl FnOnce(&mut Wqe)) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let (object, sq) = building(c);
        if let Some(at) = object.building {
            fill(sq.queue.wqe_mut(at));
        }
    }
}

unsafe extern "C" fn wr_send(c: *mut ibv_qp_ex) {
    // SAFETY: the application is between wr_start and wr_complete; so for all below.
    unsafe { begin(c, WrOpcode::Send, |_| {}) }
}

unsafe extern "C" fn wr_send_imm(c: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(c, WrOpcode::SendImm, |w| w.imm = imm) }
}

unsafe extern "C" fn wr_rdma_write(c: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: see wr_send.
    unsafe { begin(c, WrOpcode::Write, |w| (w.rkey, w.remote_addr) = (Key(rkey), addr)) }
}

unsafe extern "C" fn wr_rdma_write_imm(c: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(c, WrOpcode::WriteImm, |w| (w.rkey, w.remote_addr, w.imm) = (Key(rkey), addr, imm)) }
}

unsafe extern "C" fn wr_rdma_read(c: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: see wr_send.
    unsafe { begin(c, WrOpcode::Read, |w| (w.rkey, w.remote_addr) = (Key(rkey), addr)) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(c: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: see wr_send.
    unsafe {
        begin(c, WrOpcode::CmpSwap, |w| {
            (w.rkey, w.remote_addr, w.compare_add, w.swap) = (Key(rkey), addr, compare, swap);
        });
    }
}

unsafe extern "C" fn wr_atomic_fetch_add(c: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    // SAFETY: see wr_send.
    unsafe {
        begin(c, WrOpcode::FetchAdd, |w| (w.rkey, w.remote_addr, w.compare_add) = (Key(rkey), addr, add));
    }
}

unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: see wr_send; the application passes a live AH.
    unsafe {
        if ah.is_null() {
            building(c).0.build_error = libc::EINVAL;
            return;
        }
        let ah = object::<_, AhObject>(ah).ah.clone();
        with_wqe(c, |w| (w.ah, w.remote_qpn, w.qkey) = (Some(ah), Qpn(qpn & 0xff_ffff), qkey));
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: see wr_send.
    unsafe { with_wqe(c, |w| w.srqn = srqn & 0xff_ffff) }
}

unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: see wr_send.
    unsafe { set_list(c, &[Sge { addr, length, lkey: Key(lkey) }], SendFlags::empty()) }
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, n: usize, list: *const ibv_sge) {
    // SAFETY: see wr_send; the application passes `n` SGEs, laid out as ours.
    unsafe {
        let list = if n == 0 { &[][..] } else { std::slice::from_raw_parts(list.cast::<Sge>(), n) };
        set_list(c, list, SendFlags::empty());
    }
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // A length beyond 2^32 is beyond every limit.
    let length = length.min(u32::MAX as usize) as u32;
    // SAFETY: see wr_send.
    unsafe { set_list(c, &[Sge { addr: addr as u64, length, lkey: Key(0) }], SendFlags::INLINE) }
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, n: usize, list: *const ibv_data_buf) {
    // SAFETY: see wr_send; the application passes `n` buffers.
    unsafe {
        let bufs = if n == 0 { &[][..] } else { std::slice::from_raw_parts(list, n) };
        let sges: Vec<Sge> = bufs
            .iter()
            .map(|b| Sge {
                addr: b.addr as u64,
                length: b.length.min(u32::MAX as usize) as u32,
                lkey: Key(0),
            })
            .collect();
        set_list(c, &sges, SendFlags::INLINE);
    }
}

/// # Safety
/// As for `building`; with INLINE the list names readable memory.
unsafe fn set_list(c: *mut ibv_qp_ex, list: &[Sge], inline: SendFlags) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let (object, sq) = building(c);
        let Some(at) = object.building else { return };
        let max = if inline.is_empty() { sq.queue.max_sge() as usize } else { usize::MAX };
        let filled = if list.len() > max {
            Err(list.len() as u64)
        } else {
            sq.queue.wqe_mut(at).flags |= inline;
            copy_payload(sq, at, list.as_ptr(), list.len(), inline)
        };
        if let Err(got) = filled {
            let what = if inline.is_empty() { "SGEs" } else { "inline bytes" };
            let (sges, bytes) = (sq.queue.max_sge(), sq.queue.max_inline());
            explain(format_args!(
                "ibv_wr_set_* qp={:?}: {got} {what}: expected at most max_send_sge={sges}, max_inline_data={bytes}",
                object.qp.num
            ));
            object.build_error = Errno::EINVAL.0;
        }
    }
}
