//! The presence page and the publication as they lie in memory. Owners write, peers read: everything is atomic, and a
//! peer takes whatever it reads as a claim of somebody who may lie.
pub use super::qp_entry::{QpEntry, QpView};
use crate::soft::mem::{MrEntry, files};
use crate::soft::types::Qpn;
use crate::sys::map::Mapping;
use anyverbs_counters::{file::direct_offset, raw::DIRECT};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Changes with any incompatible change of a layout, of the ring, or of the message kinds in it.
pub const VERSION: u32 = 5;

/// "anyverbs" as bytes.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"anyverbs");
/// Set in every nonce, so that none is 0 or 1.
pub const NONCE_BIT: u64 = 1 << 63;

/// Slots that one process may hold.
pub const SLOTS: usize = 16;
/// Memory regions.
pub const MRS: usize = 65536;
/// Direct accesses that one process may have under way.
pub const HAZARDS: usize = 64;
/// Queue pairs that have a place of their own for theirs.
pub const RESERVED: usize = 128;

const QPS_PER_SLOT: usize = 4096;
const HAZARD_OFFSET: usize = 4096;
const RESERVED_OFFSET: usize = HAZARD_OFFSET + HAZARDS * 64;
const MR_OFFSET: usize = RESERVED_OFFSET + RESERVED * 64;
const QP_OFFSET: usize = MR_OFFSET + MRS * 64;

/// Where the counts of direct accesses begin in the publication, one entry a QP in the order of the QP table.
pub const DIRECT_OFFSET: usize = QP_OFFSET + SLOTS * QPS_PER_SLOT * 64;

const FILES_OFFSET: usize = DIRECT_OFFSET + SLOTS * QPS_PER_SLOT * size_of::<Counts>();

/// Bytes of the presence page.
pub const PRESENCE_BYTES: usize = 4096;
/// Bytes of the publication.
pub const PUBLICATION_BYTES: usize = FILES_OFFSET + size_of::<files::Shown>();

/// What a queue pair has done to its peer's memory without the peer's help; see `soft::stats`.
pub type Counts = [AtomicU64; DIRECT];

/// What both files begin with.
#[repr(C, align(64))]
struct Stamp {
    magic: AtomicU64,
    version: AtomicU32,
    /// Publication: hazard entries that were ever in use.
    hazards_used: AtomicU32,
    nonce: AtomicU64,
    /// Publication: places of queue pairs that were ever in use.
    reserved_used: AtomicU32,
    /// Publication: `WAITS_FOR_ALL` and `UNFENCED`.
    barriers: AtomicU32,
}

/// Before it looks at hazards, the process has every CPU pass a barrier, if any peer is `UNFENCED`.
pub const WAITS_FOR_ALL: u32 = 1;
/// The process has announced accesses without a fence, to those that wait for all, or is about to; such a barrier reaches it.
pub const UNFENCED: u32 = 2;

/// The presence page.
#[repr(C, align(64))]
pub struct Presence {
    stamp: Stamp,
    /// Slots held, in the order of the QP table; 0 is none.
    pub slots: [AtomicU32; SLOTS],
    /// 1: ring the doorbell. Alone in its line, since peers read it after every message.
    pub asleep: Line<AtomicU32>,
}

/// Something that has a cache line for itself.
#[repr(C, align(64))]
pub struct Line<T>(T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl Presence {
    /// Where in the QP table the queue pairs of `slot` are.
    pub fn ordinal_of(&self, slot: u16) -> Option<usize> {
        self.slots.iter().position(|s| slot != 0 && s.load(Ordering::Acquire) == u32::from(slot))
    }
}

/// A direct access under way, in the initiator's publication.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Hazard {
    /// Nonce of the process accessed; 0: free; 1: being filled in.
    pub target: AtomicU64,
    /// rkey in the upper half, destination QPN in the lower.
    pub what: AtomicU64,
}

/// Marks a new file as ours.
pub fn stamp(map: &Mapping, nonce: u64) {
    let stamp = stamp_of(map);
    stamp.version.store(VERSION, Ordering::Relaxed);
    stamp.nonce.store(nonce, Ordering::Relaxed);
    stamp.magic.store(MAGIC, Ordering::Release);
}

/// Whether a file is of the process `nonce` and of our version.
pub fn is_stamped(map: &Mapping, nonce: u64) -> bool {
    let stamp = stamp_of(map);
    stamp.magic.load(Ordering::Acquire) == MAGIC
        && stamp.version.load(Ordering::Relaxed) == VERSION
        && stamp.nonce.load(Ordering::Relaxed) == nonce
}

/// The presence page of a mapping of [`PRESENCE_BYTES`].
#[inline]
pub fn presence(map: &Mapping) -> &Presence {
    at(map, 0)
}

/// How many hazard entries, from the first, were ever in use.
pub fn hazards_used(publication: &Mapping) -> &AtomicU32 {
    &stamp_of(publication).hazards_used
}

/// The hazard entries.
pub fn hazards(publication: &Mapping) -> &[Hazard; HAZARDS] {
    at(publication, HAZARD_OFFSET)
}

/// How many of the places of queue pairs, from the first, were ever in use.
pub fn reserved_used(publication: &Mapping) -> &AtomicU32 {
    &stamp_of(publication).reserved_used
}

/// The places of queue pairs.
pub fn reserved(publication: &Mapping) -> &[Hazard; RESERVED] {
    at(publication, RESERVED_OFFSET)
}

/// How the process keeps accesses and what ends them apart.
pub fn barriers(publication: &Mapping) -> &AtomicU32 {
    &stamp_of(publication).barriers
}

/// The entry of a queue pair.
pub fn qp(publication: &Mapping, ordinal: usize, index: u16) -> Option<&QpEntry> {
    let number = ordinal * QPS_PER_SLOT + usize::from(index);
    (ordinal < SLOTS && usize::from(index) < QPS_PER_SLOT).then(|| at(publication, QP_OFFSET + number * 64))
}

/// What a queue pair has done to its peer's memory without the peer's help.
pub fn direct(publication: &Mapping, ordinal: usize, index: u16) -> Option<&Counts> {
    let offset = DIRECT_OFFSET + direct_offset(ordinal, usize::from(index));
    (ordinal < SLOTS && usize::from(index) < QPS_PER_SLOT).then(|| at(publication, offset))
}

/// The first of the memory table's entries.
pub fn mrs(publication: &Mapping) -> NonNull<MrEntry> {
    NonNull::from(at::<MrEntry>(publication, MR_OFFSET))
}

/// The entry of a memory region, by its key.
pub fn mr(publication: &Mapping, rkey: u32) -> Option<&MrEntry> {
    let index = (rkey >> 8) as usize;
    (index < MRS).then(|| at(publication, MR_OFFSET + index * 64))
}

/// The files that are in use.
pub fn files(publication: &Mapping) -> &files::Shown {
    at(publication, FILES_OFFSET)
}

/// Whether `hazard` says that the queue pair or the region of process `target` is being accessed.
pub fn concerns(hazard: &Hazard, target: u64, what: What) -> bool {
    if hazard.target.load(Ordering::Acquire) != target {
        return false;
    }
    let (rkey, qpn) = {
        let word = hazard.what.load(Ordering::Acquire);
        ((word >> 32) as u32, word as u32)
    };
    match what {
        What::Rkey(key) => key == rkey,
        What::Qp(number) => number.0 == qpn,
    }
}

/// What is going away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A region or window, by its key.
    Rkey(u32),
    /// A queue pair.
    Qp(Qpn),
}

fn stamp_of(map: &Mapping) -> &Stamp {
    at(map, 0)
}

/// The `T`, made of atomics only, at `offset`.
#[inline]
fn at<T>(map: &Mapping, offset: usize) -> &T {
    assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= map.len());
    // SAFETY: in bounds and aligned, checked above; T is made of atomics, for which any bytes are valid.
    unsafe { &*map.base().add(offset).cast() }
}

const _: () = assert!(size_of::<Presence>() <= PRESENCE_BYTES && size_of::<Stamp>() == 64);
const _: () = assert!(SLOTS == anyverbs_counters::file::SLOTS && size_of::<Counts>() == 64);
const _: () = assert!(size_of::<Hazard>() == 64 && size_of::<QpEntry>() == 64 && size_of::<MrEntry>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hazards_name_process_and_object() {
        let h = Hazard { target: 9.into(), what: (5 << 32 | 0x1234).into() };
        assert!(concerns(&h, 9, What::Rkey(5)) && concerns(&h, 9, What::Qp(Qpn(0x1234))));
        assert!(!concerns(&h, 9, What::Rkey(6)) && !concerns(&h, 8, What::Rkey(5)));
    }
}
