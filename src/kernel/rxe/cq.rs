//! Completion queues: polled where they lie, without the kernel.
use super::queue::{MmapInfo, Queue};
use super::{Answered, CqObject, forget, fresh, object, place};
use crate::abi::*;
use crate::kernel::command::cq as command;
use crate::kernel::command::post;
use crate::kernel::command::write::{Extended, Plain};
use crate::sys::errno::Errno;
use crate::sys::latch::Latch;
use std::ffi::c_int;
use std::ptr;

/// What polling changes.
pub struct Polled {
    queue: Queue,
    /// The completion that the extended readers read, not yet given back; its place is the consumer's.
    current: Option<ibv_wc>,
}

impl Polled {
    /// The completion at `consumer`.
    fn read(&self, consumer: u32) -> ibv_wc {
        let mut wc = ibv_wc::zeroed();
        // SAFETY: ours to write.
        unsafe { self.read_to(consumer, &mut wc) };
        wc
    }

    /// # Safety
    /// `to` must be a place for a completion.
    #[inline]
    unsafe fn read_to(&self, consumer: u32, to: *mut ibv_wc) {
        // Of the kernel's struct the last two bytes are the port and nothing, which ours does not have.
        const LEN: usize = std::mem::offset_of!(ibv_wc, dlid_path_bits) + 1;
        // SAFETY: the caller vouches for the place; an entry is at least as long as the kernel's completion, whose fields lie
        // as ours do.
        unsafe { ptr::copy_nonoverlapping(self.queue.entry(consumer), to.cast::<u8>(), LEN) };
    }

    /// Drops the completions of a QP.
    pub fn forget(&mut self, qp_num: u32) {
        let of_it = |entry: *const u8| {
            // SAFETY: an entry is at least as long as the kernel's completion, whose fields lie as ours do.
            unsafe { entry.add(std::mem::offset_of!(ibv_wc, qp_num)).cast::<u32>().read() == qp_num }
        };
        self.queue.take_out(of_it);
    }

    /// Gives the completion back that the readers had.
    fn give_back(&mut self) {
        if self.current.take().is_some() {
            self.queue.release(self.queue.after(self.queue.consumer()));
        }
    }

    /// Takes the next completion for the readers.
    fn take(&mut self) -> bool {
        self.give_back();
        let consumer = self.queue.consumer();
        if self.queue.has_entry(consumer) {
            self.current = Some(self.read(consumer));
        }
        self.current.is_some()
    }
}

pub unsafe extern "C" fn create_cq(
    ctx: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the library passes a live context and channel.
    place(|| unsafe {
        let c = fresh::<CqObject>();
        let mut cmd = Plain::of(ib_uverbs_create_cq::zeroed());
        let mut resp = Answered::<_, MmapInfo>::of(ib_uverbs_create_cq_resp::zeroed());
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let answer = (&raw mut resp).cast();
        let rc = command::create_cq(ctx, cqe, channel, comp_vector, c.cast(), &mut cmd, size, answer, room);
        finish(ctx, c, rc, resp.tail)
    })
    .cast()
}

/// What the readers can be asked for: rxe has no timestamps.
const WC_FLAGS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

pub unsafe extern "C" fn create_cq_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the library passes a live context and the application's attributes.
    place(|| unsafe {
        let a = &*attr;
        if a.wc_flags & !WC_FLAGS != 0 || a.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let c = fresh::<CqObject>();
        let mut cmd = Extended::of(ib_uverbs_ex_create_cq::zeroed());
        let mut resp = Answered::<_, MmapInfo>::of(ib_uverbs_ex_create_cq_resp::zeroed());
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let answer = (&raw mut resp).cast();
        let rc = command::create_cq_ex(ctx, attr, c.cast(), &mut cmd, size, answer, room, 0);
        let made = finish(ctx, c, rc, resp.tail)?;
        fill(&mut (*made).c.cq_ex, a.wc_flags);
        Ok(made)
    })
    .cast()
}

/// # Safety
/// `c` from `fresh`, told to the kernel if `rc` is 0.
unsafe fn finish(
    ctx: *mut ibv_context,
    c: *mut CqObject,
    rc: c_int,
    info: MmapInfo,
) -> Result<*mut CqObject, Errno> {
    // SAFETY: the caller vouches for it; until the queue is set nothing of it needs dropping.
    unsafe {
        if rc != 0 {
            forget(c);
            return Err(Errno(rc));
        }
        match Queue::map((*ctx).cmd_fd, info) {
            Ok(queue) if queue.entry_size() >= size_of::<ib_uverbs_wc>() => {
                (&raw mut (*c).polled).write(Latch::new(Polled { queue, current: None }));
                Ok(c)
            }
            other => {
                let base = c.cast::<ibv_cq>();
                crate::sys::pthread::init(&raw mut (*base).mutex, &raw mut (*base).cond);
                command::destroy_cq(base);
                forget(c);
                Err(other.err().unwrap_or(Errno::EPROTO))
            }
        }
    }
}

pub unsafe extern "C" fn destroy_cq(c: *mut ibv_cq) -> c_int {
    // SAFETY: the library passes a live CQ, which is gone when the kernel says so.
    unsafe {
        let rc = command::destroy_cq(c);
        if rc == 0 {
            drop(Box::from_raw(c.cast::<CqObject>()));
        }
        rc
    }
}

pub unsafe extern "C" fn resize_cq(c: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the library passes a live CQ; nobody polls while the lock is held.
    unsafe {
        let mut polled = object::<_, CqObject>(c).polled.lock();
        let mut cmd = Plain::of(ib_uverbs_resize_cq::zeroed());
        let mut resp = Answered::<_, MmapInfo>::of(ib_uverbs_resize_cq_resp::zeroed());
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let rc = command::resize_cq(c, cqe, &mut cmd, size, (&raw mut resp).cast(), room);
        if rc != 0 {
            return rc;
        }
        match Queue::map((*(*c).context).cmd_fd, resp.tail) {
            Ok(queue) => {
                polled.queue = queue;
                0
            }
            Err(e) => crate::kernel::command::code(Err(e)),
        }
    }
}

pub unsafe extern "C" fn poll_cq(c: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the application passes a live CQ and room for `n` completions.
    unsafe {
        let polled = object::<_, CqObject>(c).polled.lock();
        let mut consumer = polled.queue.consumer();
        let mut count = 0;
        while count < n && polled.queue.has_entry(consumer) {
            polled.read_to(consumer, wc.add(count as usize));
            consumer = polled.queue.after(consumer);
            count += 1;
        }
        if count > 0 {
            polled.queue.release(consumer);
        }
        count
    }
}

pub unsafe extern "C" fn req_notify_cq(c: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the application passes a live CQ.
    unsafe { post::req_notify_cq(c, solicited_only) }
}

fn fill(c: &mut ibv_cq_ex, wc_flags: u64) {
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
}

/// Shows the next completion; false where there is none.
///
/// # Safety
/// `c` live, its lock held.
unsafe fn advance(c: *mut ibv_cq_ex) -> bool {
    // SAFETY: the caller vouches for it.
    unsafe {
        let polled = object::<_, CqObject>(c).polled.held();
        if !polled.take() {
            return false;
        }
        if let Some(wc) = &polled.current {
            (*c).status = wc.status;
            (*c).wr_id = wc.wr_id;
        }
        true
    }
}

unsafe extern "C" fn start_poll(c: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the application passes a live CQ; the lock is held until `end_poll` where this succeeds.
    unsafe {
        if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        let cq: &CqObject = object(c);
        cq.polled.lock_raw();
        if advance(c) {
            return 0;
        }
        cq.polled.unlock_raw();
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
        cq.polled.held().give_back();
        cq.polled.unlock_raw();
    }
}

macro_rules! readers {
    ($($name:ident -> $t:ty: $field:ident;)*) => { $(
        unsafe extern "C" fn $name(c: *mut ibv_cq_ex) -> $t {
            // SAFETY: the application is between start_poll and end_poll.
            unsafe { object::<_, CqObject>(c).polled.held().current.as_ref().map_or(0, |wc| wc.$field as $t) }
        }
    )* };
}

readers! {
    read_opcode -> u32: opcode;
    read_vendor_err -> u32: vendor_err;
    read_wc_flags -> u32: wc_flags;
    read_byte_len -> u32: byte_len;
    read_imm_data -> u32: imm_data;
    read_qp_num -> u32: qp_num;
    read_src_qp -> u32: src_qp;
    read_slid -> u32: slid;
    read_sl -> u8: sl;
    read_dlid_path_bits -> u8: dlid_path_bits;
}
