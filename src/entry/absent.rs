//! What exported names do that have no implementation yet: each says EOPNOTSUPP by its own convention.
use crate::sys::errno::Errno;
use std::ffi::c_void;

/// Returns NULL and stores EOPNOTSUPP.
pub(super) extern "C" fn null() -> *mut c_void {
    Errno::EOPNOTSUPP.store();
    std::ptr::null_mut()
}

/// Returns the positive errno value.
pub(super) extern "C" fn errno() -> i32 {
    Errno::EOPNOTSUPP.0
}

/// Returns -1 and stores EOPNOTSUPP.
pub(super) extern "C" fn minus() -> i32 {
    Errno::EOPNOTSUPP.store();
    -1
}

/// Does nothing.
pub(super) extern "C" fn void() {}
