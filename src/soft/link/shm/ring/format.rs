//! Entries as they lie in a ring.
use std::ptr::NonNull;

/// Bytes of a cache line, the unit of the ring.
pub const LINE: usize = 64;
/// Bytes of entries in a ring, unless asked otherwise.
pub const RING_BYTES: usize = 256 * 1024;
/// The least and the most that a peer's ring may have.
pub const RING_LIMITS: std::ops::RangeInclusive<usize> = 64 * 1024..=16 * 1024 * 1024;
/// The most payload that one entry carries; longer messages are several entries.
pub const MAX_PAYLOAD: usize = 16 * 1024;

pub(super) const HEADER: usize = 32;
/// The most payload that an entry of one line without an extension carries.
pub const LINE_PAYLOAD: usize = LINE - HEADER;
/// `kind` of the entry that says: go on at the first line.
pub(super) const WRAP: u8 = 0xff;
/// Bits of `flags` that say which extension follows the header; the others are the sender's.
pub(super) const EXT_RDMA: u8 = 0x40;
pub(super) const EXT_ATOMIC: u8 = 0x80;
/// The bits of [`Header::flags`] that the sender may use.
pub const USER_FLAGS: u8 = 0x3f;

/// The extension of an entry: what RETH and AtomicETH are on a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ext {
    /// None.
    #[default]
    None,
    /// 16 bytes.
    Rdma {
        /// Remote virtual address.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// For the sender's use.
        aux: u32,
    },
    /// 32 bytes.
    Atomic {
        /// Remote virtual address.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// For the sender's use.
        aux: u32,
        /// Swap or add operand.
        swap_add: u64,
        /// Compare operand.
        compare: u64,
    },
}

impl Ext {
    /// Bytes between header and payload.
    #[inline]
    pub const fn bytes(&self) -> usize {
        match self {
            Ext::None => 0,
            Ext::Rdma { .. } => 16,
            Ext::Atomic { .. } => 32,
        }
    }
}

/// What stands before the payload. Nothing but `flags` is interpreted by the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Kind of message; 0xff is the ring's own.
    pub kind: u8,
    /// Six bits ([`USER_FLAGS`]).
    pub flags: u8,
    /// Spare.
    pub spare: u16,
    /// Destination queue pair.
    pub dst_qpn: u32,
    /// Source queue pair.
    pub src_qpn: u32,
    /// Sequence number.
    pub seq: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Immediate data, or whatever the kind needs.
    pub imm: u32,
    /// RDMA or atomic extension.
    pub ext: Ext,
}

/// An entry as the consumer sees it: the header copied out and checked, the payload still in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The header; a peer wrote it, so its fields may hold anything.
    pub header: Header,
    /// First payload byte, valid for `len` bytes until `Consumer::release`. The peer may change them at any time.
    pub payload: NonNull<u8>,
    /// Payload bytes, at most [`MAX_PAYLOAD`].
    pub len: usize,
}

#[inline]
pub(super) const fn lines_of(ext: usize, len: usize) -> u32 {
    ((HEADER + ext + len).div_ceil(LINE)) as u32
}

#[inline]
pub(super) const fn next_stamp(stamp: u32) -> u32 {
    match stamp.wrapping_add(1) {
        0 => 1,
        n => n,
    }
}

#[inline]
pub(super) const fn first_word(stamp: u32, kind: u8, flags: u8, spare: u16) -> u64 {
    stamp as u64 | (kind as u64) << 32 | (flags as u64) << 40 | (spare as u64) << 48
}

/// An entry and the line behind it fit beside a skipped end of the ring, so that an empty ring takes every entry.
const _: () = assert!(2 * lines_of(32, MAX_PAYLOAD) as usize + 2 <= *RING_LIMITS.start() / LINE * 7 / 8);
/// The longest header ends with the first line, so that reading it needs no check of its own.
const _: () = assert!(HEADER + 32 == LINE);
