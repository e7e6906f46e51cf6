//! Messages between processes of one host: a ring per direction in memory that both map.
pub mod ring;

/// A peer wrote into shared memory, or said in its handshake, what no peer of ours does. Its connection is to be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;
