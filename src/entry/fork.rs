//! fork support: urxe never pins pages, so there is nothing to protect (design D12).
//!
//! `RDMAV_FORK_SAFE` and `IBV_FORK_SAFE` therefore need no action.
use std::ffi::{c_int, c_void};

export!(ibv_fork_init => "ibv_fork_init" @@ "IBVERBS_1.1");
export!(ibv_is_fork_initialized => "ibv_is_fork_initialized" @@ "IBVERBS_1.13");
export!(ibv_dontfork_range => "ibv_dontfork_range" @@ "IBVERBS_1.1");
export!(ibv_dofork_range => "ibv_dofork_range" @@ "IBVERBS_1.1");

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_int = 2;

/// Always 0, at any time.
pub(super) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
pub(super) extern "C" fn ibv_is_fork_initialized() -> c_int {
    UNNEEDED
}

/// 0; the range stays shared with children as any other memory.
pub(super) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// 0.
pub(super) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
