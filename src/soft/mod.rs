//! urxe: the RDMA device in user space.
//!
//! `verbs` is its C edge; `qp` holds the message rules; `link` carries messages; `transport` makes RoCEv2 packets of
//! them for `link::udp`; `mem` owns keys and copies; `engine` decides who drives.
pub mod device;
pub mod gid;
pub mod link;
pub mod mem;
pub mod qp;
pub mod transport;
pub mod types;
pub mod wire;
