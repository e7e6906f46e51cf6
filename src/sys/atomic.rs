//! Atomics under a name of ours: `models/` compiles the lock-free code with loom's instead.
pub use std::sync::atomic::*;
