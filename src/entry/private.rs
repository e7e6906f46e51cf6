//! The private nodes: how compiled providers register, and build and unbuild contexts.
//!
//! `verbs_context` and `verbs_context_ops` grew from release to release; the layout of a device's provider says how to
//! read them (`provider::layout`).
use super::{device, query};
use crate::abi::*;
use crate::kernel::{command, plugin};
use crate::provider::{context, drivers, hosted, object, table};
use crate::sys::errno::Errno;
use std::ffi::c_void;
use std::ptr;

macro_rules! register {
    ($($f:ident $node:literal $name:literal @ $version:literal;)*) => { $(
        /// Called by a provider's ELF constructor. `ops` stays valid while the process lives.
        unsafe extern "C" fn $f(ops: *const verbs_device_ops) {
            drivers::record($node, ops);
        }
        export!($f => $name @@ $version);
    )* };
}

register! {
    verbs_register_driver_34 34 "verbs_register_driver_34" @ "IBVERBS_PRIVATE_34";
    verbs_register_driver_57 57 "verbs_register_driver_57" @ "IBVERBS_PRIVATE_57";
    verbs_register_driver_59 59 "verbs_register_driver_59" @ "IBVERBS_PRIVATE_59";
    verbs_register_driver_64 64 "verbs_register_driver_64" @ "IBVERBS_PRIVATE_64";
    verbs_register_driver_65 65 "verbs_register_driver_65" @ "IBVERBS_PRIVATE_65";
}

export_private!(34: device::verbs_open_device => "verbs_open_device");
export_private!(34: query::ibv_query_gid_type => "ibv_query_gid_type");
export!(ibv_register_driver => "ibv_register_driver" @ "IBVERBS_1.1");
export_private!(34: verbs_init_cq => "verbs_init_cq");
export_private!(34: init_and_alloc_context => "_verbs_init_and_alloc_context");
export_private!(34: verbs_set_ops => "verbs_set_ops");
export_private!(34: verbs_uninit_context => "verbs_uninit_context");

/// Kept for old providers that call it from a constructor; does nothing.
extern "C" fn ibv_register_driver(_name: *const c_void, _init: *const c_void) {}

/// Fills the library's part of a CQ, but neither `handle` nor `cqe`.
unsafe extern "C" fn verbs_init_cq(
    cq: *mut ibv_cq,
    ctx: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cq_context: *mut c_void,
) {
    // SAFETY: the provider gives a CQ of its own making; context and channel are live.
    unsafe { object::init_cq(cq, ctx, channel, cq_context) }
}

/// Allocates a provider's context of `size` zeroed bytes and initialises the `verbs_context` at `offset` in it, which has
/// the layout of the release that the device's provider was compiled for. Takes over `cmd_fd` unless it fails: NULL and
/// errno.
unsafe extern "C" fn init_and_alloc_context(
    device: *mut ibv_device,
    cmd_fd: i32,
    size: usize,
    offset: usize,
    driver_id: u32,
) -> *mut c_void {
    // SAFETY: the provider gives a device that it was asked to open.
    let layout = unsafe { plugin::layout_of(device) };
    if offset.checked_add(layout.context).is_none_or(|end| end > size) {
        Errno::EINVAL.store();
        return ptr::null_mut();
    }
    // SAFETY: calloc may be called with any sizes; the context lies within what it gave, as just checked.
    unsafe {
        let memory = libc::calloc(1, size);
        if !memory.is_null() {
            let vctx = hosted::add(memory.byte_add(offset).cast(), &layout);
            context::init_as(vctx, device, cmd_fd, driver_id, layout);
            if cmd_fd >= 0 {
                command::context::begin(hosted::context(vctx));
            }
        }
        memory
    }
}

/// Overlays a context's functions with those that `ops` has.
unsafe extern "C" fn verbs_set_ops(vctx: *mut verbs_context, ops: *const c_void) {
    let vctx = hosted::view(vctx);
    // SAFETY: the provider gives a context that it has just initialised and a table of its own release.
    unsafe {
        let layout = (*context::private(hosted::context(vctx))).layout;
        table::set_ops(vctx, &layout.ops(ops));
    }
}

/// Undoes `_verbs_init_and_alloc_context` but for the memory, which stays the provider's.
unsafe extern "C" fn verbs_uninit_context(vctx: *mut verbs_context) {
    // SAFETY: the provider's context was initialised and has no user any more.
    unsafe { context::uninit(hosted::remove(vctx)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[repr(C)]
    struct Provider {
        own: u64,
        base: verbs_context,
    }

    unsafe extern "C" fn open(_: *mut ibv_pd, _: u32) -> *mut ibv_mw {
        ptr::null_mut()
    }

    #[test]
    fn context_is_made_within_the_providers_own() {
        // SAFETY: plain data; zero is a value of each field.
        let mut device: verbs_device = unsafe { std::mem::zeroed() };
        let device: *mut ibv_device = (&raw mut device).cast();
        let mut ops = verbs_context_ops::zeroed();
        ops.alloc_mw = Some(open);
        // SAFETY: the context is used as a provider does: made, given functions, taken down, freed.
        unsafe {
            let offset = offset_of!(Provider, base);
            let memory = init_and_alloc_context(device, -1, size_of::<Provider>(), offset, 14);
            let vctx = &raw mut (*memory.cast::<Provider>()).base;
            verbs_set_ops(vctx, (&raw const ops).cast());
            assert!(
                (*vctx)
                    .context
                    .ops
                    .alloc_mw
                    .is_some_and(|f| ptr::fn_addr_eq(f, open as unsafe extern "C" fn(_, _) -> _))
            );
            assert_eq!((*vctx).sz, size_of::<verbs_context>());
            assert!(ptr::eq((*vctx).context.device, device));
            verbs_uninit_context(vctx);
            libc::free(memory);
            assert!(init_and_alloc_context(device, -1, 8, offset, 14).is_null());
        }
        assert_eq!(Errno::last(), Errno::EINVAL);
    }
}
