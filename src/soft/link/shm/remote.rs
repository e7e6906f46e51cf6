//! What a peer shows of itself, mapped read-only. It may lie and change its mind: values are copied, then judged.
use super::layout::{self, QpView, What};
use crate::soft::mem::Region;
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
        let ordinal = layout::presence(&self.presence).ordinal_of(qpn.slot())?;
        layout::qp(self.publication.as_ref()?, ordinal, qpn.index())?.snapshot()
    }

    /// What one of its queue pairs has done to its peer's memory without the peer's help, over all its life.
    pub fn direct_counts(&self, qpn: Qpn) -> Option<Direct> {
        let ordinal = layout::presence(&self.presence).ordinal_of(qpn.slot())?;
        let counts = layout::direct(self.publication.as_ref()?, ordinal, qpn.index())?;
        Some(std::array::from_fn(|i| counts[i].load(Ordering::Relaxed)))
    }

    /// One of its memory regions.
    pub fn region(&self, rkey: u32) -> Option<Region> {
        layout::mr(self.publication.as_ref()?, rkey)?.snapshot()
    }

    /// Whether it is just accessing `what` of the process `nonce` directly.
    pub fn accesses(&self, nonce: u64, what: What) -> bool {
        let Some(publication) = &self.publication else { return false };
        let used = layout::hazards_used(publication).load(Ordering::Acquire) as usize;
        layout::hazards(publication).iter().take(used).any(|h| layout::concerns(h, nonce, what))
    }
}
