//! The names of IBVERBS_1.0, whose structures differ from today's: every object is a wrapper around the real one.
//!
//! A wrapper is what the program sees everywhere: in `cq_context` and `qp_context` of the real objects, in events, and in
//! what queries give back. Its mutex and condition variable are never used. Here: devices, contexts, queries, domains,
//! regions, address handles. `compat_1_0_queue` has CQs, SRQs, QPs and events, `compat_1_0_post` the work requests.
use std::{
    ffi::{c_char, c_int, c_void},
    mem::{ManuallyDrop, offset_of},
    ptr,
};

use super::{ah, compat_1_0_post as post, device, mr, pd, query};
use crate::{abi::*, core::query as core_query, sys::lock::Lock};

export!(get_device_list => "ibv_get_device_list" @ "IBVERBS_1.0");
export!(free_device_list => "ibv_free_device_list" @ "IBVERBS_1.0");
export!(get_device_name => "ibv_get_device_name" @ "IBVERBS_1.0");
export!(get_device_guid => "ibv_get_device_guid" @ "IBVERBS_1.0");
export!(open_device => "ibv_open_device" @ "IBVERBS_1.0");
export!(close_device => "ibv_close_device" @ "IBVERBS_1.0");
export!(query_device => "ibv_query_device" @ "IBVERBS_1.0");
export!(query_port => "ibv_query_port" @ "IBVERBS_1.0");
export!(query_gid => "ibv_query_gid" @ "IBVERBS_1.0");
export!(query_pkey => "ibv_query_pkey" @ "IBVERBS_1.0");
export!(alloc_pd => "ibv_alloc_pd" @ "IBVERBS_1.0");
export!(dealloc_pd => "ibv_dealloc_pd" @ "IBVERBS_1.0");
export!(reg_mr => "ibv_reg_mr" @ "IBVERBS_1.0");
export!(dereg_mr => "ibv_dereg_mr" @ "IBVERBS_1.0");
export!(create_ah => "ibv_create_ah" @ "IBVERBS_1.0");
export!(destroy_ah => "ibv_destroy_ah" @ "IBVERBS_1.0");

/// One wrapper a device, kept while the process lives: programs hold on to it after the list is gone.
static DEVICES: Lock<Vec<Device>> = Lock::new(Vec::new());

#[derive(Clone, Copy)]
struct Device(*mut ibv_device_1_0);

// SAFETY: a wrapper is written once, before it is shared.
unsafe impl Send for Device {}

/// A context's wrapper, as large as a real context. Where that says "extended" in `abi_compat`, this says "1.0": the one
/// node of `ibv_create_comp_channel` serves programs of both ages.
#[repr(C)]
struct Context {
    wrapper: ibv_context_1_0,
    unused: [u8; offset_of!(ibv_context, abi_compat) - size_of::<ibv_context_1_0>()],
    abi_compat: usize,
}

/// `abi_compat` of a wrapper.
const WRAPPER: usize = usize::MAX - 10;
const _: () = assert!(offset_of!(Context, abi_compat) == offset_of!(ibv_context, abi_compat));

/// The real context, whichever of the two a program has passed.
///
/// # Safety
/// `ctx` must be an open context or a wrapper of one.
pub(super) unsafe fn real_context(ctx: *mut ibv_context) -> *mut ibv_context {
    // SAFETY: both have the field at the same place; a wrapper begins as an `ibv_context_1_0`.
    unsafe {
        if (*ctx).abi_compat.addr() == WRAPPER { (*ctx.cast::<ibv_context_1_0>()).real_context } else { ctx }
    }
}

/// A new wrapper, zeroed; `fill` sets its fields.
pub(super) fn wrap<T>(zeroed: T, fill: impl FnOnce(&mut T)) -> *mut T {
    let mut wrapper = Box::new(zeroed);
    fill(&mut wrapper);
    Box::into_raw(wrapper)
}

/// Frees a wrapper if its object was destroyed; passes the result on.
///
/// # Safety
/// `wrapper` must come from `wrap`.
pub(super) unsafe fn unwrap_if_gone<T>(result: c_int, wrapper: *mut T) -> c_int {
    if result == 0 {
        // SAFETY: the caller vouches for it, and the object that pointed here is gone.
        drop(unsafe { Box::from_raw(wrapper) });
    }
    result
}

/// A NULL-terminated list of wrappers; the real list stands in front of it.
unsafe extern "C" fn get_device_list(num: *mut c_int) -> *mut *mut ibv_device_1_0 {
    let mut count = 0;
    // SAFETY: `count` is writable; the list ends after `count` entries.
    unsafe {
        let real = device::ibv_get_device_list(&mut count);
        if let Some(num) = num.as_mut() {
            *num = count;
        }
        if real.is_null() {
            return ptr::null_mut();
        }
        let mut list: Vec<*mut ibv_device_1_0> = vec![real.cast()];
        list.extend((0..count as usize).map(|i| wrapper_of(*real.add(i))));
        list.push(ptr::null_mut());
        let list = ManuallyDrop::new(list.into_boxed_slice());
        list.as_ptr().cast_mut().add(1)
    }
}

/// Frees the list, not the wrappers.
unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device_1_0) {
    if list.is_null() {
        return;
    }
    // SAFETY: the list was made by `get_device_list`: the real list, the wrappers, NULL.
    unsafe {
        let start = list.sub(1);
        let wrappers = (0..).take_while(|&i| !(*list.add(i)).is_null()).count();
        device::ibv_free_device_list((*start).cast());
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(start, wrappers + 2)));
    }
}

fn wrapper_of(real: *mut ibv_device) -> *mut ibv_device_1_0 {
    let mut devices = DEVICES.lock();
    // SAFETY: wrappers are never freed.
    if let Some(known) = devices.iter().find(|d| unsafe { (*d.0).real_device } == real) {
        return known.0;
    }
    let new = wrap(ibv_device_1_0::zeroed(), |d| d.real_device = real);
    devices.push(Device(new));
    new
}

unsafe extern "C" fn get_device_name(dev: *mut ibv_device_1_0) -> *const c_char {
    // SAFETY: a wrapper of the list, as for all functions below: the program passes objects that it got from here.
    unsafe { device::ibv_get_device_name((*dev).real_device) }
}

unsafe extern "C" fn get_device_guid(dev: *mut ibv_device_1_0) -> u64 {
    // SAFETY: see `get_device_name`.
    unsafe { device::ibv_get_device_guid((*dev).real_device) }
}

unsafe extern "C" fn open_device(dev: *mut ibv_device_1_0) -> *mut ibv_context_1_0 {
    // SAFETY: see `get_device_name`.
    unsafe {
        let real = device::ibv_open_device((*dev).real_device);
        if real.is_null() {
            return ptr::null_mut();
        }
        let unused = [0; offset_of!(ibv_context, abi_compat) - size_of::<ibv_context_1_0>()];
        let context =
            wrap(Context { wrapper: ibv_context_1_0::zeroed(), unused, abi_compat: WRAPPER }, |c| {
                let ctx = &mut c.wrapper;
                ctx.device = dev;
                ctx.cmd_fd = (*real).cmd_fd;
                ctx.async_fd = (*real).async_fd;
                ctx.num_comp_vectors = (*real).num_comp_vectors;
                ctx.real_context = real;
                ctx.ops.poll_cq = Some(post::poll_cq);
                ctx.ops.req_notify_cq = Some(post::req_notify_cq);
                ctx.ops.post_srq_recv = Some(post::post_srq_recv);
                ctx.ops.post_send = Some(post::post_send);
                ctx.ops.post_recv = Some(post::post_recv);
            });
        context.cast()
    }
}

unsafe extern "C" fn close_device(ctx: *mut ibv_context_1_0) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { unwrap_if_gone(device::ibv_close_device((*ctx).real_context), ctx.cast::<Context>()) }
}

unsafe extern "C" fn query_device(ctx: *mut ibv_context_1_0, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { core_query::ibv_query_device((*ctx).real_context, attr) }
}

/// Writes 48 bytes, all that a program of 1.0 has.
unsafe extern "C" fn query_port(ctx: *mut ibv_context_1_0, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { core_query::ibv_query_port((*ctx).real_context, port, attr) }
}

unsafe extern "C" fn query_gid(
    ctx: *mut ibv_context_1_0,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { query::ibv_query_gid((*ctx).real_context, port, index, gid) }
}

unsafe extern "C" fn query_pkey(ctx: *mut ibv_context_1_0, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { query::ibv_query_pkey((*ctx).real_context, port, index, pkey) }
}

unsafe extern "C" fn alloc_pd(ctx: *mut ibv_context_1_0) -> *mut ibv_pd_1_0 {
    // SAFETY: see `get_device_name`.
    unsafe {
        let real = pd::ibv_alloc_pd((*ctx).real_context);
        if real.is_null() {
            return ptr::null_mut();
        }
        wrap(ibv_pd_1_0::zeroed(), |pd| {
            pd.context = ctx;
            pd.handle = (*real).handle;
            pd.real_pd = real;
        })
    }
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd_1_0) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { unwrap_if_gone(pd::ibv_dealloc_pd((*pd).real_pd), pd) }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd_1_0,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr_1_0 {
    // SAFETY: see `get_device_name`.
    unsafe {
        let real = mr::ibv_reg_mr((*pd).real_pd, addr, length, access);
        if real.is_null() {
            return ptr::null_mut();
        }
        wrap(ibv_mr_1_0::zeroed(), |mr| {
            mr.context = (*pd).context;
            mr.pd = pd;
            mr.handle = (*real).handle;
            mr.lkey = (*real).lkey;
            mr.rkey = (*real).rkey;
            mr.real_mr = real;
        })
    }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr_1_0) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { unwrap_if_gone(mr::ibv_dereg_mr((*mr).real_mr), mr) }
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd_1_0, attr: *mut ibv_ah_attr) -> *mut ibv_ah_1_0 {
    // SAFETY: see `get_device_name`.
    unsafe {
        let real = ah::ibv_create_ah((*pd).real_pd, attr);
        if real.is_null() {
            return ptr::null_mut();
        }
        wrap(ibv_ah_1_0::zeroed(), |ah| {
            ah.context = (*pd).context;
            ah.pd = pd;
            ah.handle = (*real).handle;
            ah.real_ah = real;
        })
    }
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah_1_0) -> c_int {
    // SAFETY: see `get_device_name`.
    unsafe { unwrap_if_gone(ah::ibv_destroy_ah((*ah).real_ah), ah) }
}
