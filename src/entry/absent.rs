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

/// Returns the positive errno value.
pub(super) extern "C" fn errno() -> i32 {
    say();
    Errno::EOPNOTSUPP.0
}

/// Returns -1 and stores EOPNOTSUPP.
pub(super) extern "C" fn minus() -> i32 {
    say();
    Errno::EOPNOTSUPP.store();
    -1
}

/// Does nothing.
pub(super) extern "C" fn void() {}
