//! Files of the library that hold lock-free code, compiled as they are, with loom's atomics in place of the processor's.
//!
//! loom runs a test once for each order in which its threads' accesses can take effect, those that a weak memory model allows
//! included. What stands in for the rest of the library is as small as can be: a ring is an array of words, a thread has a
//! number, and membarrier(2) is a fence on both of its sides.

// The tests within the files are for real atomics.
#[cfg(not(test))]
pub mod soft;
#[cfg(not(test))]
pub mod sys;
