//! The kernel's soft-RoCE, served natively: `queue` is the memory shared with the kernel, `wqe` an entry in it, `post` and `wr`
//! fill send and receive queues, `cq` polls, `qp` and `objects` make and unmake.
//!
//! The data path takes the queue's own lock and, for sends, one write() as doorbell; receives and completions need no
//! system call.
mod cq;
mod objects;
mod post;
mod qp;
mod queue;
#[cfg(test)]
mod tests;
mod wqe;
mod wr;

use crate::abi::*;
use crate::kernel::command;
use crate::kernel::command::write::Plain;
use crate::kernel::discover::Uverbs;
use crate::provider::{self, hosted};
use crate::sys::errno::Errno;
use crate::sys::latch::Latch;
use std::mem::MaybeUninit;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// `RDMA_DRIVER_RXE`.
const DRIVER_ID: u32 = 14;

/// Versions of rxe's own part of the commands; the two are alike on 64 bits.
const ABI: std::ops::RangeInclusive<u32> = 1..=2;

/// Whether this is a device of ours.
pub fn serves(device: &Uverbs) -> bool {
    let named = device.driver == 0 && device.name.starts_with("rxe");
    (device.driver == DRIVER_ID || named) && ABI.contains(&device.abi)
}

/// An answer with rxe's tail, which follows at once.
#[repr(C, packed(4))]
struct Answered<T: Copy, Tail: Copy> {
    head: T,
    tail: Tail,
}

impl<T: Copy, Tail: Copy + Default> Answered<T, Tail> {
    fn of(head: T) -> Self {
        Self { head, tail: Tail::default() }
    }
}

/// What the producer of sends changes.
#[derive(Default)]
struct SendSide {
    /// Number of the last request, which the kernel counts credits by.
    ssn: u32,
    build: wr::Build,
}

/// A receive queue and what its entries hold.
struct Receive {
    queue: queue::Queue,
    max_sge: usize,
}

type RecvQueue = Latch<Receive>;

#[repr(C)]
struct QpObject {
    c: verbs_qp,
    /// Guards the send queue's producer.
    send: Latch<SendSide>,
    sq: queue::Queue,
    /// None with an SRQ.
    rq: Option<RecvQueue>,
    max_send_sge: usize,
    max_inline: usize,
}

#[repr(C)]
struct CqObject {
    c: verbs_cq,
    polled: Latch<cq::Polled>,
}

#[repr(C)]
struct SrqObject {
    c: verbs_srq,
    rq: RecvQueue,
}

#[repr(C)]
struct AhObject {
    c: ibv_ah,
    /// The kernel's number; 0 where it does not keep address handles.
    number: u32,
    av: [u8; 88],
}

/// # Safety
/// `c` must be a live object of ours of the type that `T` begins with.
#[inline]
unsafe fn object<'a, C, T>(c: *mut C) -> &'a T {
    // SAFETY: our objects are allocated as `T`, whose first field is the C object.
    unsafe { &*c.cast::<T>() }
}

/// Cleared memory for an object, which `forget` gives back.
fn fresh<T>() -> *mut T {
    let new = Box::into_raw(Box::<T>::new_uninit()).cast::<T>();
    // Seen together, the compiler makes calloc of both, which does not look into glibc's cache of chunks: 150 instructions more.
    let new = std::hint::black_box(new);
    // SAFETY: just allocated, as long as that.
    unsafe { new.cast::<u8>().write_bytes(0, size_of::<T>()) };
    new
}

/// Frees an object that holds nothing to drop, as one that was never completed.
///
/// # Safety
/// `it` must come from `fresh`, and nobody else have it.
unsafe fn forget<T>(it: *mut T) {
    // SAFETY: the caller vouches for it.
    drop(unsafe { Box::from_raw(it.cast::<MaybeUninit<T>>()) });
}

/// A pointer, or NULL with errno.
fn place<T>(make: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    make().unwrap_or_else(|e| {
        e.store();
        ptr::null_mut()
    })
}

/// A context of ours.
#[repr(C)]
struct Context {
    vctx: verbs_context,
    /// `device_cap_flags_ex` when somebody has asked for it, else [`UNASKED`].
    offers: AtomicU64,
}

const UNASKED: u64 = u64::MAX;

/// The context of ours around this one.
fn whole(ctx: *mut ibv_context) -> *mut Context {
    ctx.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast()
}

/// Whether this kernel's rxe has one of these `IBV_DEVICE_*`.
///
/// # Safety
/// `ctx` must be a live context of ours.
unsafe fn offers(ctx: *mut ibv_context, any: u64) -> bool {
    // SAFETY: the caller vouches for the context.
    let known = unsafe { &(*whole(ctx)).offers };
    let mut flags = known.load(Relaxed);
    if flags == UNASKED {
        let mut attr = ibv_device_attr_ex::zeroed();
        // SAFETY: the caller vouches for the context; the attributes are ours.
        let rc = unsafe { objects::query_device_ex(ctx, ptr::null(), &mut attr, size_of_val(&attr)) };
        flags = if rc == 0 { attr.device_cap_flags_ex } else { 0 };
        known.store(flags, Relaxed);
    }
    flags & any != 0
}

/// Opens a device whose node this is.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `device` must be in the library's list.
pub unsafe fn open(device: *mut ibv_device, cmd_fd: OwnedFd) -> Result<*mut verbs_context, Errno> {
    let context =
        Box::into_raw(Box::new(Context { vctx: verbs_context::zeroed(), offers: AtomicU64::new(UNASKED) }));
    // SAFETY: the context is new and nobody else's; `uninit` closes the descriptor.
    unsafe {
        let vctx = &raw mut (*context).vctx;
        provider::context::init(vctx, device, cmd_fd.into_raw_fd(), DRIVER_ID);
        let ctx = hosted::context(vctx);
        command::context::begin(ctx);
        let mut cmd = Plain::of(ib_uverbs_get_context::zeroed());
        let mut resp = ib_uverbs_get_context_resp::zeroed();
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let rc = command::context::get_context(vctx, &mut cmd, size, &mut resp, room);
        if rc != 0 {
            free_context(ctx);
            return Err(Errno(rc));
        }
        provider::table::set_ops(vctx, &OPS);
        Ok(vctx)
    }
}

unsafe extern "C" fn free_context(ctx: *mut ibv_context) {
    // SAFETY: the library calls this once, for a context that `open` made and that has no users left.
    unsafe {
        let whole = whole(ctx);
        provider::context::uninit(&raw mut (*whole).vctx);
        drop(Box::from_raw(whole));
    }
}

static OPS: verbs_context_ops = verbs_context_ops {
    advise_mr: Some(command::mr::advise_mr),
    alloc_mw: Some(objects::alloc_mw),
    alloc_pd: Some(objects::alloc_pd),
    attach_mcast: Some(command::domains::attach_mcast),
    bind_mw: Some(objects::bind_mw),
    create_ah: Some(objects::create_ah),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq::create_cq_ex),
    create_qp: Some(qp::create_qp),
    create_qp_ex: Some(qp::create_qp_ex),
    create_srq: Some(qp::create_srq),
    dealloc_mw: Some(objects::dealloc_mw),
    dealloc_pd: Some(objects::dealloc_pd),
    dereg_mr: Some(objects::dereg_mr),
    destroy_ah: Some(objects::destroy_ah),
    destroy_cq: Some(cq::destroy_cq),
    destroy_qp: Some(qp::destroy_qp),
    destroy_srq: Some(qp::destroy_srq),
    detach_mcast: Some(command::domains::detach_mcast),
    free_context: Some(free_context),
    modify_qp: Some(qp::modify_qp),
    modify_srq: Some(qp::modify_srq),
    poll_cq: Some(cq::poll_cq),
    post_recv: Some(post::post_recv),
    post_send: Some(post::post_send),
    post_srq_recv: Some(post::post_srq_recv),
    query_device_ex: Some(objects::query_device_ex),
    query_port: Some(objects::query_port),
    query_qp: Some(qp::query_qp),
    query_srq: Some(qp::query_srq),
    reg_mr: Some(objects::reg_mr),
    req_notify_cq: Some(cq::req_notify_cq),
    rereg_mr: Some(objects::rereg_mr),
    resize_cq: Some(cq::resize_cq),
    ..verbs_context_ops::zeroed()
};
