//! Whether destroying objects of a device that is gone succeeds: `RDMAV_ALLOW_DISASSOC_DESTROY`, which compiled providers
//! read from an exported variable.
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(not(miri))]
unsafe extern "C" {
    #[link_name = "__value.verbs_allow_disassociate_destroy"]
    static ALLOWED: AtomicBool;
}
#[cfg(miri)]
static ALLOWED: AtomicBool = AtomicBool::new(false);

/// Reads the environment, once.
pub fn read_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let set = ["RDMAV_ALLOW_DISASSOC_DESTROY", "MLX4_DEVICE_FATAL_CLEANUP"];
        if set.iter().any(|name| std::env::var_os(name).is_some()) {
            variable().store(true, Ordering::Relaxed);
        }
    });
}

/// What it said.
pub fn allowed() -> bool {
    variable().load(Ordering::Relaxed)
}

fn variable() -> &'static AtomicBool {
    #[cfg(not(miri))]
    // SAFETY: `export_bool!` reserves this byte, zero at first; providers only read it.
    unsafe {
        &ALLOWED
    }
    #[cfg(miri)]
    &ALLOWED
}
