//! libibverbs.so.1 in Rust: the exact ABI of rdma-core, and `urxe0`, an RDMA device in user space.
//!
//! Imports go one way: `entry -> core -> {soft, kernel} -> provider -> sys`; `abi` is seen by the edges only.
//! `docs/ARCHITECTURE.md` describes each room.
#[macro_use]
mod export;

pub mod abi;
pub mod core;
mod entry;
pub mod kernel;
pub mod provider;
pub mod soft;
pub mod sys;
