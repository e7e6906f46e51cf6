//! The memory file of a process: 64-bit words, native byte order. It holds records of QPs; a process with many has several files.
//!
//! The owner writes single words without any order between them, except for a description, whose first word is odd while the
//! rest changes, and for the end of a QP, while which `GENERATION` is odd.
use crate::raw::{DIRECT, RECORD};

/// The name that the kernel shows: a link in /proc/PID/fd.
pub const NAME: &str = "anyverbs-counters";
/// The same of the file in which direct accesses are counted.
pub const PUBLICATION: &str = "anyverbs-publication";

/// "av-count" as bytes.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"av-count");
/// Changes with the layout, and with the meaning of any word.
pub const VERSION: u64 = 1;

/// Words of the header.
pub const AT_MAGIC: usize = 0;
#[allow(missing_docs)]
pub const AT_VERSION: usize = 1;
/// How many records from the first were ever in use.
pub const AT_USED: usize = 2;
/// The random number that names the process.
pub const AT_NONCE: usize = 3;
/// Its process id in its own namespace.
pub const AT_PID: usize = 4;
/// Odd while a QP's counts go over to the port's.
pub const GENERATION: usize = 5;
/// Where counts of direct accesses begin in the publication, bytes.
pub const AT_DIRECT: usize = 6;
/// The slots of QPNs that it holds, in the order of those counts; 0 is none.
pub const AT_SLOTS: usize = 8;
#[allow(missing_docs)]
pub const SLOTS: usize = 16;
/// Events of the first device's port that no QP has: packets for none.
pub const AT_PORT: usize = 64;
/// Names of devices, 64 bytes each, padded with zeros.
pub const AT_NAMES: usize = 128;
#[allow(missing_docs)]
pub const NAME_WORDS: usize = 8;
#[allow(missing_docs)]
pub const DEVICES: usize = 64;
/// What the QPs that are gone have left to the ports of their devices: counters, `VALUES` words for each device.
pub const AT_LEFT: usize = 1024;
/// Places for counters.
pub const VALUES: usize = 64;
/// The first record.
pub const AT_RECORDS: usize = AT_LEFT + DEVICES * VALUES;
/// Records of one file.
pub const RECORDS: usize = 512;
/// Words of a file.
pub const WORDS: usize = AT_RECORDS + RECORDS * RECORD;

/// Words of a description. `KIND` is 0 in a free record, `STATE` where there is no QP to show, else one more than verbs.h has.
pub mod description {
    #![allow(missing_docs)]
    pub const SEQUENCE: usize = 0;
    pub const KIND: usize = 1;
    pub const STATE: usize = 2;
    pub const QPN: usize = 3;
    pub const DEVICE: usize = 4;
    /// As [`super::PATHS`] has them.
    pub const PATH: usize = 5;
    pub const PEER_QPN: usize = 6;
    pub const PEER_NONCE: usize = 7;
    pub const PEER_PID: usize = 8;
    /// In memory order.
    pub const PEER_GID: usize = 9;
    pub const MTU: usize = 11;
    /// Direct accesses of earlier peers,
    pub const ABSORBED: usize = 12;
    /// and what the present one had counted when it became that.
    pub const BASE: usize = ABSORBED + super::DIRECT;
}

const _: () = assert!(description::BASE + DIRECT <= crate::raw::DESCRIPTION);

/// How a QP reaches its peer.
pub const PATHS: [&str; 5] = ["none", "local", "shm", "absent", "udp"];

/// Where the counts of direct accesses of a QP stand in the publication, from `AT_DIRECT` on, bytes.
pub const fn direct_offset(ordinal: usize, index: usize) -> usize {
    (ordinal * 4096 + index) * DIRECT * 8
}
