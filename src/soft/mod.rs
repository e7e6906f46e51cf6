//! urxe: the RDMA device in user space.
//!
//! `verbs` is its C edge; `qp` holds the message rules; `link` carries messages; `transport` makes RoCEv2 packets of
//! them for `link::udp`; `mem` owns keys and copies; `engine` decides who drives.
pub mod ah;
pub mod census;
pub mod channel;
pub mod cq;
pub mod device;
pub mod engine;
pub mod gid;
pub mod lid;
pub mod link;
pub mod mcast;
pub mod mem;
pub mod modify;
pub mod node;
pub mod numbered;
pub mod port;
pub mod qp;
pub mod srq;
pub mod stats;
pub mod timers;
pub mod transport;
pub mod types;
pub mod verbs;
pub mod wire;
