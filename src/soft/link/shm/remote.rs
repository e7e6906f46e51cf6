//! What a peer shows of itself, mapped read-only. It may lie and change its mind: values are copied, then judged.
use super::layout::{self, Hazard, QpEntry, QpView, What};
use crate::soft::mem::{MrEntry, Region, files};
use crate::soft::stats::Direct;
use crate::soft::types::Qpn;
use crate::sys::{errno::Errno, map::Mapping, memfd};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// A peer's presence page and, where it is of the same user, its publication.
#[derive(Debug)]
pub struct Remote {
    nonce: u64,
    pid: u32,
    presence: Mapping,
    publication: Option<Mapping>,
}

impl Remote {
    /// Maps what the peer sent. EPROTO where that is not what [`super::own::Own::create`] makes.
    pub fn attach(
        nonce: u64,
        pid: u32,
        presence: BorrowedFd<'_>,
        publication: Option<BorrowedFd<'_>>,
    ) -> Result<Self, Errno> {
        let map = |fd, len| {
            memfd::check(fd, len)?;
            let map = Mapping::shared(fd, len, false)?;
            if layout::is_stamped(&map, nonce) { Ok(map) } else { Err(Errno::EPROTO) }
        };
        let presence = map(presence, layout::PRESENCE_BYTES)?;
        let publication = publication.map(|fd| map(fd, layout::PUBLICATION_BYTES)).transpose()?;
        Ok(Self { nonce, pid, presence, publication })
    }

    /// The random number that names the process. Secret enough to tell peers apart, no proof of anything.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The process id that the peer claims to have in its own namespace; for messages only.
    pub fn claimed_pid(&self) -> u32 {
        self.pid
    }

    /// The word that says whether it wants its doorbell rung.
    pub(super) fn asleep(&self) -> &AtomicU32 {
        &layout::presence(&self.presence).asleep
    }

    /// Whether the peer says that it holds `slot`.
    pub fn claims_slot(&self, slot: u16) -> bool {
        layout::presence(&self.presence).ordinal_of(slot).is_some()
    }

    /// Whether it is of our user and shows its queue pairs and regions.
    pub fn is_published(&self) -> bool {
        self.publication.is_some()
    }

    /// One of its queue pairs.
    pub fn qp(&self, qpn: Qpn) -> Option<QpView> {
        self.qp_entry(qpn)?.snapshot()
    }

    /// What one of its queue pairs has done to its peer's memory without the peer's help, over all its life.
    pub fn direct_counts(&self, qpn: Qpn) -> Option<Direct> {
        let ordinal = layout::presence(&self.presence).ordinal_of(qpn.slot())?;
        let counts = layout::direct(self.publication.as_ref()?, ordinal, qpn.index())?;
        Some(std::array::from_fn(|i| counts[i].load(Ordering::Relaxed)))
    }

    /// One of its memory regions.
    pub fn region(&self, rkey: u32) -> Option<Region> {
        self.region_entry(rkey)?.snapshot()
    }

    /// Whether a file of it, by its number, is in use still.
    pub fn uses_file(&self, number: u32) -> bool {
        self.publication.as_ref().is_some_and(|p| files::is_in_use(layout::files(p), number))
    }

    /// How it announces accesses, and waits for those of others; see [`layout::barriers`].
    pub(super) fn barriers(&self) -> u32 {
        self.publication.as_ref().map_or(0, |p| layout::barriers(p).load(Ordering::SeqCst))
    }

    /// The entry of one of its queue pairs, as long as this value lives.
    pub(super) fn qp_entry(&self, qpn: Qpn) -> Option<&QpEntry> {
        let ordinal = layout::presence(&self.presence).ordinal_of(qpn.slot())?;
        layout::qp(self.publication.as_ref()?, ordinal, qpn.index())
    }

    /// The entry of one of its memory regions, as long as this value lives.
    pub(super) fn region_entry(&self, rkey: u32) -> Option<&MrEntry> {
        layout::mr(self.publication.as_ref()?, rkey)
    }

    /// Whether it is just accessing `what` of the process `nonce` directly.
    pub fn accesses(&self, nonce: u64, what: What) -> bool {
        let Some(publication) = &self.publication else { return false };
        let any = |hazards: &[Hazard], used: &AtomicU32| {
            let used = used.load(Ordering::Acquire) as usize;
            hazards.iter().take(used).any(|h| layout::concerns(h, nonce, what))
        };
        any(layout::hazards(publication), layout::hazards_used(publication))
            || any(layout::reserved(publication), layout::reserved_used(publication))
    }
}
