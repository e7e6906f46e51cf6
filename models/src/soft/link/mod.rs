//! `src/soft/link`.
pub mod shm;
pub mod udp;
