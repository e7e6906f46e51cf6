//! Messages between processes of one host: a ring per direction in memory that both map.
//!
//! `slot` claims QPNs and is where peers connect; `peer` is a connection, made by a `handshake`; `ring` carries messages;
//! `own` is what this process shows to others, `remote` what others show to it, both in the `layout` of memory files;
//! `direct` copies to and from another process without its help.
pub mod direct;
mod handshake;
pub mod layout;
pub mod own;
pub mod peer;
mod qp_entry;
pub mod remote;
pub mod ring;
pub mod slot;

pub use layout::{QpView, What};
pub use own::Own;
pub use peer::{Fate, Heard, Peer, State};
pub use slot::Slot;

/// A peer wrote into shared memory, or said in its handshake, what no peer of ours does. Its connection is to be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;
