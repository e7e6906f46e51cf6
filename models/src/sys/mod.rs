//! `src/sys/lock.rs`, and what it needs.
pub mod annotate;
pub mod atomic;
pub mod barrier;
#[path = "../../../src/sys/lock.rs"]
pub mod lock;
pub mod thread;
pub mod uncancelled;
