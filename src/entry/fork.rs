//! Fork support. Urxe never pins pages, and kernels since 5.12 copy pinned ones at a fork; for devices of older kernels
//! `core::dontfork` keeps registered pages from children.
use crate::core::convention::{code, minus_one};
use crate::core::dontfork;
use crate::sys::log::explain;
use std::ffi::{c_int, c_void};
use std::sync::Once;

export!(ibv_fork_init => "ibv_fork_init" @@ "IBVERBS_1.1");
export!(ibv_is_fork_initialized => "ibv_is_fork_initialized" @@ "IBVERBS_1.13");
export!(ibv_dontfork_range => "ibv_dontfork_range" @@ "IBVERBS_1.1");
export!(ibv_dofork_range => "ibv_dofork_range" @@ "IBVERBS_1.1");

/// 0, or why registered memory cannot be protected.
pub(super) extern "C" fn ibv_fork_init() -> c_int {
    code(|| dontfork::init().map(|()| 0))
}

/// One of `IBV_FORK_*`.
pub(super) extern "C" fn ibv_is_fork_initialized() -> c_int {
    use crate::abi::{IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};
    match dontfork::is_on() {
        None => IBV_FORK_UNNEEDED as c_int,
        Some(true) => IBV_FORK_ENABLED as c_int,
        Some(false) => IBV_FORK_DISABLED as c_int,
    }
}

/// Keeps a range from children, where that is on; -1 and errno where it cannot be.
pub(super) extern "C" fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int {
    minus_one(|| dontfork::pin(base.expose_provenance(), size).map(|()| 0))
}

/// Ends that.
pub(super) extern "C" fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int {
    minus_one(|| dontfork::unpin(base.expose_provenance(), size).map(|()| 0))
}

/// What `RDMAV_FORK_SAFE` and `IBV_FORK_SAFE` ask for, at the first device list.
pub(super) fn read_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let asks = |name| std::env::var_os(name).is_some_and(|value| value != "0");
        if (asks("RDMAV_FORK_SAFE") || asks("IBV_FORK_SAFE"))
            && let Err(e) = dontfork::init()
        {
            explain(format_args!(
                "RDMAV_FORK_SAFE: registered memory cannot be kept from children (errno {})",
                e.0
            ));
        }
    });
}
