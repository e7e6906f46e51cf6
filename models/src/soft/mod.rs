//! `src/soft`, where it has lock-free code.
pub mod link;
pub mod mem;
pub mod node;
pub mod qp;
#[path = "../../../src/soft/types.rs"]
pub mod types;
