//! Messages between processes of one host: a ring per direction in memory that both map.
//!
//! `slot` claims QPNs and is where peers connect; `peer` is a connection, made by a `handshake`; `ring` carries messages;
//! `own` is what this process shows to others, `remote` what others show to it, both in the `layout` of memory files;
//! `direct` copies to and from another process without its help, where it can through `views` of that one's files;
//! `near` is the short way for a queue pair that does so again and again.
pub mod direct;
mod handshake;
pub mod layout;
pub mod near;
pub mod own;
pub mod peer;
mod qp_entry;
pub mod remote;
pub mod ring;
pub mod slot;
pub mod views;

pub use layout::{QpView, What};
pub use own::Own;
pub use peer::{Fate, Heard, Peer, State};
pub use slot::Slot;

/// A peer wrote into shared memory, or said in its handshake, what no peer of ours does. Its connection is to be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;
