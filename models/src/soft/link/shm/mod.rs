//! `src/soft/link/shm`.
pub mod ring;

/// As the library's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;
