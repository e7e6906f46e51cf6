//! `src/soft/link/shm`.
#[path = "../../../../../src/soft/link/shm/qp_entry.rs"]
pub mod qp_entry;
pub mod ring;

/// As the library's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;
