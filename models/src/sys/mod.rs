//! `src/sys`, where it has lock-free code, and what that needs.
pub mod annotate;
pub mod atomic;
pub mod barrier;
pub mod fork;
#[path = "../../../src/sys/latch.rs"]
pub mod latch;
#[path = "../../../src/sys/lock.rs"]
pub mod lock;
pub mod thread;
pub mod uncancelled;
