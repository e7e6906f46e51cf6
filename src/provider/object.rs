//! Fields of C objects that are filled alike for every provider.
use super::{Found, context};
use crate::abi::*;
use crate::sys::pthread;
use std::ffi::{c_char, c_void};

/// The library's fields of a new CQ; `handle` and `cqe` are the provider's. Counts the CQ on its channel.
///
/// # Safety
/// `cq` must be valid for writes and unused; `ctx` and `channel` (may be null) must be live.
pub unsafe fn init_cq(
    cq: *mut ibv_cq,
    ctx: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cq_context: *mut c_void,
) {
    // SAFETY: the caller vouches for all; the channel's count is guarded by the context's mutex.
    unsafe {
        (*cq).context = ctx;
        (*cq).channel = channel;
        (*cq).cq_context = cq_context;
        (*cq).comp_events_completed = 0;
        (*cq).async_events_completed = 0;
        pthread::init(&raw mut (*cq).mutex, &raw mut (*cq).cond);
        if !channel.is_null() {
            context::with_mutex(ctx, || (*channel).refcnt += 1);
        }
    }
}

/// The library's fields of a new SRQ; `handle` is the provider's.
///
/// # Safety
/// `srq` must be valid for writes and unused, `pd` live.
pub unsafe fn init_srq(srq: *mut ibv_srq, pd: *mut ibv_pd, srq_context: *mut c_void) {
    // SAFETY: the caller vouches for both.
    unsafe {
        (*srq).context = (*pd).context;
        (*srq).srq_context = srq_context;
        (*srq).pd = pd;
        (*srq).events_completed = 0;
        pthread::init(&raw mut (*srq).mutex, &raw mut (*srq).cond);
    }
}

/// What a provider's `create_qp` has to fill besides `handle` and `qp_num`; the state is RESET.
///
/// # Safety
/// `qp` must be valid for writes and unused, `ctx` live, `attr` readable.
pub unsafe fn init_qp(
    qp: *mut ibv_qp,
    ctx: *mut ibv_context,
    pd: *mut ibv_pd,
    attr: *const ibv_qp_init_attr,
) {
    // SAFETY: the caller vouches for all.
    unsafe {
        (*qp).context = ctx;
        (*qp).qp_context = (*attr).qp_context;
        (*qp).pd = pd;
        (*qp).send_cq = (*attr).send_cq;
        (*qp).recv_cq = (*attr).recv_cq;
        (*qp).srq = (*attr).srq;
        (*qp).qp_type = (*attr).qp_type;
        (*qp).state = crate::abi::IBV_QPS_RESET;
        (*qp).events_completed = 0;
        pthread::init(&raw mut (*qp).mutex, &raw mut (*qp).cond);
    }
}

/// What the library shows of a device; its first user is the list.
///
/// # Safety
/// `c` must be a zeroed device of nobody else's.
pub unsafe fn fill_device(c: *mut verbs_device, found: &Found) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let device = &mut (*c).device;
        device.node_type = found.node_type;
        device.transport_type = found.transport_type;
        write_text(&mut device.name, &found.name);
        write_text(&mut device.dev_name, &found.dev_name);
        write_text(&mut device.dev_path, &found.dev_path);
        write_text(&mut device.ibdev_path, &found.ibdev_path);
        (*c).refcount = 1.into();
    }
}

/// Cuts what does not fit; the last byte stays NUL.
pub fn write_text(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (to, &byte) in to[..room].iter_mut().zip(text.as_bytes()) {
        *to = byte as c_char;
    }
}

/// Writes `value` to a struct of the caller's release: `len` bytes, of which those we do not know become zero.
///
/// # Safety
/// `to` must be valid for writes of `len` bytes. `T` must have no padding whose bytes matter to the caller.
pub unsafe fn write_versioned<T: Copy>(to: *mut u8, len: usize, value: &T) {
    let own = size_of::<T>();
    // A length that the compiler knows needs no call; most callers are of our release, or not of a later one.
    // SAFETY: the caller gives `len` bytes, of which at most as many are copied as the value has.
    unsafe {
        let from = (&raw const *value).cast::<u8>();
        if len < own {
            std::ptr::copy_nonoverlapping(from, to, len);
            return;
        }
        std::ptr::copy_nonoverlapping(from, to, own);
        if len > own {
            std::ptr::write_bytes(to.add(own), 0, len - own);
        }
    }
}
