//! `src/soft`, where it has lock-free code.
pub mod link;
pub mod mem;
#[path = "../../../src/soft/types.rs"]
pub mod types;
