//! `src/soft/link`.
pub mod shm;
