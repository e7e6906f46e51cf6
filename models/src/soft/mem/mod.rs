//! The entry of a region as peers read it, who copies now, and what those need.
#[path = "../../../../src/soft/mem/entry.rs"]
pub mod entry;
#[path = "../../../../src/soft/mem/users.rs"]
pub mod users;

pub use entry::{InFile, MrEntry, Region, Scope, Via};

use super::types::Key;

/// As the library's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PdId(pub u32);

/// As the library's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Denied {
    Key,
    Domain,
    Qp,
    Access,
    Range,
}

/// What the owner does with an entry.
pub fn write(entry: &MrEntry, region: &Region) {
    entry.write(region);
}

/// Makes a key invalid, or valid again.
pub fn set_key(entry: &MrEntry, key: Key) {
    entry.set_key(key);
}

/// What the owner reads.
pub fn read(entry: &MrEntry) -> Region {
    entry.read()
}

/// Where the owner finds what a request of its own names.
pub fn usual(entry: &MrEntry, pd: PdId, va: u64, len: u64, need: super::types::Access) -> Option<u64> {
    entry.usual(pd, va, len, need)
}
