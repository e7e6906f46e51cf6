//! Opening and closing: what the library adds to a context that a provider made.
use super::convention::{code, given, pointer, refuse};
use super::{device, query};
use crate::abi::*;
use crate::provider::{context, object};
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};
use std::mem::transmute;

/// Opens a device of the list.
///
/// # Errors
/// What the provider says.
///
/// # Safety
/// `dev` must be an entry of the device list; `private` is what its provider takes, or null.
pub unsafe fn open(dev: *mut ibv_device, private: *mut c_void) -> Result<*mut verbs_context, Errno> {
    let (provider, token) = device::origin(dev).ok_or(Errno::EINVAL)?;
    // SAFETY: the device came from this provider with this token.
    let vctx = unsafe { provider.alloc_context_with(dev, token, private) }?;
    device::retain(dev);
    // SAFETY: the provider made a context by `context::init`; nobody else has it yet.
    unsafe { finish(vctx) };
    Ok(vctx)
}

/// Opens the device whose `cmd_fd` this is; the context takes the descriptor over.
///
/// # Errors
/// EINVAL where no provider knows it, and what the provider says.
pub fn import(cmd_fd: c_int) -> Result<*mut verbs_context, Errno> {
    let found = super::providers().iter().find_map(|p| Some((p.name(), p.token_of(cmd_fd)?)));
    let devices = device::list(super::providers());
    let opened = devices
        .iter()
        .find_map(|&dev| {
            let (provider, token) = device::origin(dev)?;
            (found == Some((provider.name(), token))).then_some((dev, provider, token))
        })
        .ok_or_else(|| {
            refuse!(EINVAL, "ibv_import_device cmd_fd={cmd_fd}: expected a duplicate of a context's cmd_fd")
        });
    // SAFETY: a device of the list; the new context is nobody else's yet.
    let opened = opened.and_then(|(dev, provider, token)| unsafe {
        let vctx = provider.import_context(dev, token, cmd_fd)?;
        device::retain(dev);
        finish(vctx);
        Ok(vctx)
    });
    devices.into_iter().for_each(device::release);
    opened
}

/// Closes a context. Objects that were not destroyed stay behind, as with rdma-core.
///
/// # Safety
/// `ctx` must come from `open` and be used by nobody any more.
pub unsafe fn close(ctx: *mut ibv_context) {
    // SAFETY: the caller vouches for it; free_context takes everything down that the provider made.
    unsafe {
        let dev = (*ctx).device;
        if let Some(free_context) = context::ops(ctx).free_context {
            free_context(ctx);
        }
        device::release(dev);
    }
}

/// The library's own functions in slots that a provider does not fill directly (facts/abi.md 4.3).
///
/// # Safety
/// `vctx` must be initialised and not yet in use.
pub unsafe fn finish(vctx: *mut verbs_context) {
    // SAFETY: the caller vouches for it.
    unsafe {
        (*vctx).create_cq_ex = Some(create_cq_ex);
        (*vctx).query_port = Some(query_port);
        (*vctx).context.ops._compat_query_device = Some(query::ibv_query_device);
        (*vctx).context.ops._compat_query_port = Some(query::ibv_query_port);
        // Binaries of libibverbs 1.1.8 call flows through the two placeholders.
        (*vctx).ABI_placeholder1 =
            (*vctx).ibv_create_flow.map(|f| transmute::<*const (), unsafe extern "C" fn()>(f as *const ()));
        (*vctx).ABI_placeholder2 =
            (*vctx).ibv_destroy_flow.map(|f| transmute::<*const (), unsafe extern "C" fn()>(f as *const ()));
    }
}

/// `verbs_context.create_cq_ex`: the provider's, then the library's fields.
unsafe extern "C" fn create_cq_ex(ctx: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    pointer(|| {
        given(attr, "ibv_create_cq_ex", "cq_attr")?;
        // SAFETY: ibv_create_cq_ex passes on the application's live context and readable attributes.
        unsafe {
            let a = *attr;
            if a.wc_flags & !IBV_CREATE_CQ_SUP_WC_FLAGS != 0 {
                return Err(refuse!(
                    EOPNOTSUPP,
                    "ibv_create_cq_ex wc_flags=0x{:x}: expected bits of 0x{IBV_CREATE_CQ_SUP_WC_FLAGS:x}",
                    a.wc_flags
                ));
            }
            check_cq(ctx, "ibv_create_cq_ex", a.cqe.into(), a.channel, a.comp_vector.into())?;
            let op = context::ops(ctx).create_cq_ex.ok_or(Errno::EOPNOTSUPP)?;
            let cq = op(ctx, attr);
            if !cq.is_null() {
                object::init_cq(cq.cast(), ctx, a.channel, a.cq_context);
            }
            Ok(cq)
        }
    })
}

/// What every new CQ must satisfy.
///
/// # Errors
/// EINVAL, explained.
///
/// # Safety
/// `ctx` live, `channel` null or live.
pub unsafe fn check_cq(
    ctx: *mut ibv_context,
    call: &str,
    cqe: i64,
    channel: *mut ibv_comp_channel,
    comp_vector: i64,
) -> Result<(), Errno> {
    if cqe < 1 {
        return Err(refuse!(EINVAL, "{call} cqe={cqe}: expected at least 1"));
    }
    // SAFETY: the caller vouches for both.
    unsafe {
        if !channel.is_null() && (*channel).context != ctx {
            return Err(refuse!(EINVAL, "{call} channel={channel:p}: it belongs to another context"));
        }
        let vectors = i64::from((*ctx).num_comp_vectors.max(1));
        if !(0..vectors).contains(&comp_vector) {
            return Err(refuse!(EINVAL, "{call} comp_vector={comp_vector}: expected 0 to {}", vectors - 1));
        }
    }
    Ok(())
}

/// `verbs_context.query_port`: serves callers whose `ibv_port_attr` is shorter or longer than ours.
unsafe extern "C" fn query_port(
    ctx: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    code(|| {
        given(ctx, "ibv_query_port", "context")?;
        given(attr, "ibv_query_port", "port_attr")?;
        // SAFETY: the caller gives `len` bytes.
        unsafe { query::port_attr(ctx, port, attr.cast(), len) }
    })
}
