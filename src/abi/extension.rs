//! The types of `include/anyverbs.h`, which cbindgen makes of this file: the comments speak to C programmers.
use std::ffi::c_char;

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

/// What faults on request have done so far. On the wire these are packets, in memory messages. Later versions may add
/// counts at the end: callers tell the size that they know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct anyverbs_fault_counts {
    /// Lost, also where a lossy path had no room for what was held back.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Sent behind those after them.
    pub reordered: u64,
    /// Sent damaged; in memory, lost as what is damaged is.
    pub corrupted: u64,
    /// Sent later.
    pub delayed: u64,
    /// RNR answers to requests for which a receive was posted.
    pub rnr: u64,
    /// Queue pairs that failed because of kill_qp_after.
    pub killed: u64,
}

/// A counter of a port or of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct anyverbs_counter {
    /// Folder and file that it has below the port's folder in sysfs, as "hw_counters/rcvd_rnr_err". It lives as long as
    /// the library.
    pub name: *const c_char,
    /// What it has grown to; it wraps at 2^64. In the unit that sysfs has: data in words of 4 bytes.
    pub value: u64,
}
