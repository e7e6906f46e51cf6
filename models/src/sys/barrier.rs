//! membarrier(2): with a fence in place of the compiler's on the frequent side ([`super::atomic::compiler_fence`]), one here does.
use loom::sync::atomic::{Ordering, fence};

/// Few enough for a test to get there.
pub const STREAK: u32 = 2;

#[allow(missing_docs)]
pub fn is_available() -> bool {
    true
}

#[allow(missing_docs)]
pub fn everywhere() -> bool {
    fence(Ordering::SeqCst);
    true
}

#[allow(missing_docs)]
pub fn prepare() -> bool {
    true
}
