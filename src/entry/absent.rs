//! What exported names do that have no implementation yet: each says EOPNOTSUPP by its own convention.
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use std::ffi::c_void;

#[cold]
fn say() {
    explain(format_args!("a call for providers of kernel devices: this library does not have it"));
}

/// Returns NULL and stores EOPNOTSUPP.
pub(super) extern "C" fn null() -> *mut c_void {
    say();
    Errno::EOPNOTSUPP.store();
    std::ptr::null_mut()
}

/// Does nothing.
pub(super) extern "C" fn void() {}
