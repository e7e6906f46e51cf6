//! Extended completion queues (`ibv_start_poll`) and the `ibv_wr_*` calls.
use std::ffi::{c_int, c_void};

use super::work::can_send;
use super::{AhObject, CqObject, Polled, QpObject, object, window};
use crate::abi::*;
use crate::soft::cq::Taker;
use crate::soft::qp::Qp;
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
            explain(format_args!("ibv_start_poll comp_mask=0x{:x}: expected 0", (*attr).comp_mask));
            return libc::EINVAL;
        }
        let cq: &CqObject = object(c);
        if !cq.cq.is_ours() {
            return libc::EIO;
        }
        if !cq.single_threaded {
            cq.polling.lock_raw();
        }
        if advance(c, true)
            || (engine::progress_from_poll(&mut Taker::nobody()) && advance(c, true))
            || advance(c, true)
        {
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
    if unsafe { advance(c, false) } { 0 } else { libc::ENOENT }
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
unsafe fn advance(c: *mut ibv_cq_ex, begins: bool) -> bool {
    // SAFETY: the caller owns the place; a completion is taken off the queue as it is returned, never more.
    unsafe {
        let place = polled(c);
        let Polled { cqe: to, time: at, batch } = place;
        let got =
            object::<_, CqObject>(c).cq.poll_batch(batch, begins, |cqe, time| (*to, *at) = (*cqe, time));
        if !got {
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

const SEND_OPS: [(u64, WrOpcode); 12] = [
    (IBV_QP_EX_WITH_RDMA_WRITE, WrOpcode::Write),
    (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, WrOpcode::WriteImm),
    (IBV_QP_EX_WITH_SEND, WrOpcode::Send),
    (IBV_QP_EX_WITH_SEND_WITH_IMM, WrOpcode::SendImm),
    (IBV_QP_EX_WITH_RDMA_READ, WrOpcode::Read),
    (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, WrOpcode::CmpSwap),
    (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, WrOpcode::FetchAdd),
    (IBV_QP_EX_WITH_LOCAL_INV, WrOpcode::LocalInv),
    (IBV_QP_EX_WITH_BIND_MW, WrOpcode::BindMw),
    (IBV_QP_EX_WITH_SEND_WITH_INV, WrOpcode::SendInv),
    (IBV_QP_EX_WITH_FLUSH, WrOpcode::Flush),
    (IBV_QP_EX_WITH_ATOMIC_WRITE, WrOpcode::AtomicWrite),
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
    c.wr_local_inv = has(IBV_QP_EX_WITH_LOCAL_INV).then_some(wr_local_inv as _);
    c.wr_bind_mw = has(IBV_QP_EX_WITH_BIND_MW).then_some(wr_bind_mw as _);
    c.wr_send_inv = has(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv as _);
    c.wr_flush = has(IBV_QP_EX_WITH_FLUSH).then_some(wr_flush as _);
    c.wr_atomic_write = has(IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(wr_atomic_write as _);
}

/// What `ibv_wr_start` to `ibv_wr_complete` collect. It lies beside the send queue, whose lock is not held meanwhile:
/// the application may poll in between, and answers must get through.
#[derive(Debug, Default)]
pub struct Build {
    /// The first error, or 0.
    error: c_int,
    staged: Vec<Staged>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// Limits of the QP.
    max_sge: usize,
    max_inline: usize,
}

/// A request, and where its SGEs or inline bytes begin in the collection.
#[derive(Debug)]
struct Staged {
    wqe: Wqe,
    from: usize,
}

impl Build {
    /// For a QP with these limits.
    pub fn new(max_sge: u32, max_inline: u32) -> Self {
        Self { max_sge: max_sge as usize, max_inline: max_inline as usize, ..Self::default() }
    }

    fn clear(&mut self) {
        self.error = 0;
        self.staged.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Moves all to the send queue as drafts: ENOMEM when they do not fit, EINVAL where the state is none for posting.
    fn write_drafts(&mut self, qp: &Qp, sq: &mut Requester) -> Result<(), Errno> {
        if !self.staged.is_empty() {
            sq.accepts(qp).inspect_err(|_| {
                explain(format_args!(
                    "ibv_wr_complete qp={:?}: the QP is in {}, expected RTS",
                    qp.num,
                    qp.state()
                ));
            })?;
        }
        for Staged { wqe, from } in self.staged.drain(..) {
            let depth = sq.queue.depth();
            let at = sq.draft(qp).inspect_err(|_| {
                explain(format_args!(
                    "ibv_wr_complete qp={:?}: the send queue is full (max_send_wr={depth})",
                    qp.num
                ));
            })?;
            let (sges, bytes) = (wqe.num_sge as usize, wqe.length as usize);
            if wqe.flags.contains(SendFlags::INLINE) {
                sq.queue.inline_places(at)[..bytes].copy_from_slice(&self.inline[from..from + bytes]);
            } else {
                sq.queue.sge_places(at)[..sges].copy_from_slice(&self.sges[from..from + sges]);
            }
            *sq.queue.wqe_mut(at) = wqe;
        }
        Ok(())
    }
}

/// The QP and what is being built, which this thread holds since `wr_start`; none in a forked child.
///
/// # Safety
/// `c` must be a live extended QP of urxe, and this thread between `wr_start` and its end.
#[inline]
unsafe fn building<'a>(c: *mut ibv_qp_ex) -> Option<(&'a QpObject, &'a mut Build)> {
    // SAFETY: the lock that `wr_start` took keeps others away.
    unsafe {
        let object: &QpObject = object(c);
        object.qp.node.is_ours().then(|| (object, object.build.held()))
    }
}

unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: the application passes a live extended QP; the lock is released by complete or abort.
    unsafe {
        let object: &QpObject = object(c);
        if object.qp.node.is_ours() {
            object.build.lock_raw();
            object.build.held().clear();
        }
    }
}

unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the application ends what wr_start began.
    unsafe {
        let Some((object, build)) = building(c) else { return libc::EIO };
        let qp = &object.qp;
        let mut error = build.error;
        if error == 0 {
            let mut sq = qp.sq.lock();
            match build.write_drafts(qp, &mut sq) {
                Ok(()) => {
                    sq.publish(qp);
                    link::pump(qp, &mut sq);
                }
                Err(e) => {
                    sq.queue.discard_drafts();
                    error = e.0;
                }
            }
        }
        build.clear();
        object.build.unlock_raw();
        qp.node.settle();
        error
    }
}

unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: the application ends what wr_start began.
    unsafe {
        if let Some((object, build)) = building(c) {
            build.clear();
            object.build.unlock_raw();
        }
    }
}

/// Begins a request with the `wr_id` and `wr_flags` that the application has set.
///
/// # Safety
/// As for `building`.
#[inline]
unsafe fn begin(c: *mut ibv_qp_ex, opcode: WrOpcode, fill: impl FnOnce(&mut Wqe)) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let Some((_, build)) = building(c) else { return };
        let mut wqe = Wqe::EMPTY;
        wqe.wr_id = (*c).wr_id;
        wqe.opcode = opcode;
        // Inline data is a matter of the setter, not of the flag.
        wqe.flags = SendFlags::from_bits_truncate((*c).wr_flags) - SendFlags::INLINE;
        fill(&mut wqe);
        build.staged.push(Staged { wqe, from: 0 });
    }
}

/// # Safety
/// As for `building`.
unsafe fn with_wqe(c: *mut ibv_qp_ex, fill: impl FnOnce(&mut Wqe)) {
    // SAFETY: the caller vouches for it.
    unsafe {
        if let Some((_, build)) = building(c)
            && let Some(last) = build.staged.last_mut()
        {
            fill(&mut last.wqe);
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

unsafe extern "C" fn wr_send_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(c, WrOpcode::SendInv, |w| w.imm = rkey) }
}

unsafe extern "C" fn wr_local_inv(c: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: see wr_send.
    unsafe { begin(c, WrOpcode::LocalInv, |w| w.imm = rkey) }
}

unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: see wr_send; the application passes a live window of type 2 and what to bind it to.
    unsafe {
        if let Err(e) = window::check_bind(mw, &*info, IBV_MW_TYPE_2) {
            if let Some((_, build)) = building(c) {
                build.error = e.0;
            }
            return;
        }
        let bind = window::bind_of(mw, rkey, &*info);
        begin(c, WrOpcode::BindMw, |w| w.set_bind(&bind));
        (*mw).rkey = bind.window.0 & !0xff | rkey & 0xff;
    }
}

unsafe extern "C" fn wr_atomic_write(c: *mut ibv_qp_ex, rkey: u32, addr: u64, bytes: *const c_void) {
    // SAFETY: see wr_send; the application passes 8 readable bytes.
    unsafe {
        let value = bytes.cast::<u64>().read_unaligned();
        begin(c, WrOpcode::AtomicWrite, |w| {
            (w.rkey, w.remote_addr, w.compare_add, w.length) = (Key(rkey), addr, value, 8);
        });
    }
}

unsafe extern "C" fn wr_flush(c: *mut ibv_qp_ex, rkey: u32, addr: u64, length: usize, types: u8, level: u8) {
    // SAFETY: see wr_send.
    unsafe {
        begin(c, WrOpcode::Flush, |w| {
            (w.rkey, w.remote_addr, w.compare_add) = (Key(rkey), addr, length as u64);
            w.swap = u64::from(types) | u64::from(level) << 8;
        });
    }
}

unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: see wr_send; the application passes a live AH.
    unsafe {
        if ah.is_null() {
            if let Some((object, build)) = building(c) {
                explain(format_args!("ibv_wr_set_ud_addr qp={:?}: ah is NULL", object.qp.num));
                build.error = libc::EINVAL;
            }
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
    unsafe { set_list(c, &[Sge { addr, length, lkey: Key(lkey) }]) }
}

unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, n: usize, list: *const ibv_sge) {
    // SAFETY: see wr_send; the application passes `n` SGEs, laid out as ours.
    unsafe {
        let list = if n == 0 { &[][..] } else { std::slice::from_raw_parts(list.cast::<Sge>(), n) };
        set_list(c, list);
    }
}

unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: see wr_send.
    unsafe { set_inline(c, &[ibv_data_buf { addr, length }]) }
}

unsafe extern "C" fn wr_set_inline_data_list(c: *mut ibv_qp_ex, n: usize, list: *const ibv_data_buf) {
    // SAFETY: see wr_send; the application passes `n` buffers.
    unsafe {
        set_inline(c, if n == 0 { &[][..] } else { std::slice::from_raw_parts(list, n) });
    }
}

/// # Safety
/// As for `building`.
#[inline]
unsafe fn set_list(c: *mut ibv_qp_ex, list: &[Sge]) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let Some((object, build)) = building(c) else { return };
        let Some(last) = build.staged.last_mut() else { return };
        if list.len() > build.max_sge {
            build.error = refuse(object, list.len(), "SGEs", "max_send_sge", build.max_sge);
            return;
        }
        last.from = build.sges.len();
        last.wqe.num_sge = list.len() as u32;
        last.wqe.flags -= SendFlags::INLINE;
        // A sum beyond 2^32 is as wrong as one beyond 2^31, and completes as such.
        let length: u64 = list.iter().map(|sge| sge.length as u64).sum();
        last.wqe.length = length.min(u32::MAX as u64) as u32;
        build.sges.extend_from_slice(list);
    }
}

/// # Safety
/// As for `building`; the buffers are readable.
#[inline]
unsafe fn set_inline(c: *mut ibv_qp_ex, list: &[ibv_data_buf]) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let Some((object, build)) = building(c) else { return };
        let Some(last) = build.staged.last_mut() else { return };
        let opcode = last.wqe.opcode;
        if !opcode.may_be_inline() {
            explain(format_args!("ibv_wr_set_inline_data* qp={:?}: not for {opcode}", object.qp.num));
            build.error = libc::EINVAL;
            return;
        }
        let length = list.iter().fold(0usize, |sum, buf| sum.saturating_add(buf.length));
        if length > build.max_inline {
            build.error = refuse(object, length, "inline bytes", "max_inline_data", build.max_inline);
            return;
        }
        last.from = build.inline.len();
        (last.wqe.num_sge, last.wqe.length) = (0, length as u32);
        last.wqe.flags |= SendFlags::INLINE;
        build.inline.reserve(length);
        for buf in list {
            let end = build.inline.len();
            std::ptr::copy_nonoverlapping(
                buf.addr.cast::<u8>(),
                build.inline.as_mut_ptr().add(end),
                buf.length,
            );
            build.inline.set_len(end + buf.length);
        }
    }
}

#[cold]
fn refuse(object: &QpObject, got: usize, what: &str, limit: &str, max: usize) -> c_int {
    explain(format_args!(
        "ibv_wr_set_* qp={:?}: {got} {what}: expected at most {limit}={max}",
        object.qp.num
    ));
    libc::EINVAL
}
