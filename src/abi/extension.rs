//! The types of `include/anyverbs.h`, which cbindgen makes of this file: the comments speak to C programmers.

/// How the messages of a queue pair reach its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum anyverbs_path {
    /// Not connected, or a UD queue pair, whose address handles tell.
    None = 0,
    /// The peer is in this process.
    Local = 1,
    /// The peer is another process of this host: memory rings, and cross-memory attach for RDMA READ and WRITE.
    Shm = 2,
    /// The peer is on another host: RoCE v2 on UDP.
    Udp = 3,
}
