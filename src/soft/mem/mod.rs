//! Protection domains, keys, access checks, and the copies to and from registered memory.
//!
//! `table` is the process's memory table, whose `entry`s peers of the same user read; a successful check gives a `span`,
//! through which bytes are copied while `users` knows of it; `checks` says what may be registered, `mapped` whether a range can be registered, and in which file it lies; `files` numbers those for peers; `dm` is device memory.
pub mod area;
mod checks;
pub mod dm;
pub mod entry;
pub mod files;
pub mod gather;
pub mod hold;
mod mapped;
pub mod pd;
pub mod run;
pub mod span;
pub mod table;
mod users;
pub mod window;

use std::fmt;

pub use dm::{Dm, DmPool};
pub use entry::{InFile, MrEntry, Region, Scope, Via};
pub use pd::{Pd, PdId, PdTable};
pub use span::Span;
pub use table::{MemTable, Mr, Rereg, ReregError};
pub use window::{Bind, MwType};

/// Why a key does not give access. A local use ends in LOC_PROT_ERR, a remote one in REM_ACCESS_ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// No region has this key now.
    Key,
    /// The region belongs to another protection domain.
    Domain,
    /// The window is bound to another queue pair.
    Qp,
    /// The region lacks an access flag that the operation needs.
    Access,
    /// The range does not lie in the region.
    Range,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Denied::Key => "no memory region has this key",
            Denied::Domain => "the memory region belongs to another protection domain",
            Denied::Qp => "the memory window is bound to another queue pair",
            Denied::Access => "the memory region lacks an access flag",
            Denied::Range => "the range does not lie in the memory region",
        })
    }
}
