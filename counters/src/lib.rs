//! What urxe counts: the names, the memory file in which a process keeps it, and how another process reads that.
//!
//! - `table`: every counter with its name, unit and meaning.
//! - `raw`: the words that the library writes, and what counters they make.
//! - `file`: where the words stand in the memory file `anyverbs-counters` of a process.
//! - `scan`: the processes of this host that have such a file, found below /proc; nothing of them is asked.
#![forbid(unsafe_code)]
pub mod file;
pub mod raw;
pub mod scan;
pub mod table;

pub use table::{COUNTERS, Counter, Group, Values};
