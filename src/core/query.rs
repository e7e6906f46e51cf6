//! Device and port attributes in the fixed sizes that the exported `ibv_query_device` and `ibv_query_port` promise.
use super::convention::{code, given};
use crate::abi::*;
use crate::provider::context;
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use std::ffi::c_int;
use std::ptr;

/// The 48 bytes that `ibv_query_port@IBVERBS_1.1` writes; later fields of `ibv_port_attr` reach callers by
/// `verbs_context.query_port`.
pub const OLD_PORT_ATTR: usize = 48;

/// `ibv_query_device`: 232 bytes. Also `_compat_query_device`.
///
/// # Safety
/// `ctx` live, `attr` valid for writes.
pub unsafe extern "C" fn ibv_query_device(ctx: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    code(|| {
        given(ctx, "ibv_query_device", "context")?;
        given(attr, "ibv_query_device", "device_attr")?;
        // SAFETY: the context is live; the op writes at most the size given, which is that of the head of the larger struct.
        unsafe {
            let op = context::ops(ctx).query_device_ex.ok_or(Errno::EOPNOTSUPP)?;
            Ok(op(ctx, ptr::null(), attr.cast(), size_of::<ibv_device_attr>()))
        }
    })
}

/// `ibv_query_port`: exactly 48 bytes. Also `_compat_query_port`.
///
/// # Safety
/// `ctx` live, `attr` valid for 48 bytes.
pub unsafe extern "C" fn ibv_query_port(ctx: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    code(|| {
        given(ctx, "ibv_query_port", "context")?;
        given(attr, "ibv_query_port", "port_attr")?;
        // SAFETY: the caller gives 48 bytes.
        unsafe { port_attr(ctx, port, attr.cast(), OLD_PORT_ATTR) }
    })
}

/// A port's attributes in a struct of `len` bytes: what we have less is zero, what we have more is left out.
///
/// # Errors
/// EOPNOTSUPP; the provider's own codes come as `Ok`.
///
/// # Safety
/// `ctx` live, `attr` valid for `len` bytes.
pub unsafe fn port_attr(ctx: *mut ibv_context, port: u8, attr: *mut u8, len: usize) -> Result<c_int, Errno> {
    let mut ours = ibv_port_attr::zeroed();
    // SAFETY: the context is live; the op writes one struct of ours.
    let rc = unsafe {
        let op = context::ops(ctx).query_port.ok_or(Errno::EOPNOTSUPP)?;
        op(ctx, port, &mut ours)
    };
    if rc == 0 {
        // SAFETY: the caller gives `len` bytes.
        unsafe { crate::provider::object::write_versioned(attr, len, &ours) };
    } else {
        explain(format_args!("ibv_query_port port_num={port}: {:?}", Errno(rc)));
    }
    Ok(rc)
}
