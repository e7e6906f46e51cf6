//! What this process shows to its peers: a presence page for all of them, and a publication for those of its own user.
//!
//! Both are memfds that only their owner can write; the peers' side of them is `remote`.
use super::layout::{self, HAZARDS, Hazard, Presence, QpEntry, QpView};
use crate::soft::mem::MrEntry;
use crate::soft::types::Qpn;
use crate::sys::{errno::Errno, lock::Lock, map::Mapping, memfd, process_vm, random};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Slots that one process may hold.
pub const MAX_SLOTS: usize = layout::SLOTS;
/// Memory regions that the publication has room for.
pub const MR_CAPACITY: usize = layout::MRS;

/// This process as its peers see it. One for each process; a forked child makes its own.
#[derive(Debug)]
pub struct Own {
    nonce: u64,
    presence: Mapping,
    presence_fd: OwnedFd,
    publication: Mapping,
    publication_fd: OwnedFd,
    slots: Lock<Vec<u16>>,
    wants_direct: bool,
}

impl Own {
    /// Makes both memory files; the publication is sparse. Where Yama asks for it, lets processes of this user copy to and
    /// from this one, unless `ANYVERBS_PTRACER=0`. ENOMEM, EMFILE and the like.
    pub fn create() -> Result<Self, Errno> {
        let nonce = random::u64() | layout::NONCE_BIT;
        let publish = |name, len| {
            let fd = memfd::create(name, len)?;
            let map = Mapping::shared(fd.as_fd(), len, true)?;
            // Before Linux 5.1 there is no such seal; a peer of the same user could then write what is its own to read.
            memfd::seal(fd.as_fd(), true).or_else(|_| memfd::seal(fd.as_fd(), false))?;
            Ok::<_, Errno>((map, fd))
        };
        let (presence, presence_fd) = publish(c"anyverbs-presence", layout::PRESENCE_BYTES)?;
        let (publication, publication_fd) = publish(c"anyverbs-publication", layout::PUBLICATION_BYTES)?;
        layout::stamp(&presence, nonce);
        layout::stamp(&publication, nonce);
        if !crate::sys::is_setuid() && std::env::var_os("ANYVERBS_PTRACER").is_none_or(|v| v != "0") {
            process_vm::allow_same_user();
        }
        let wants_direct =
            crate::sys::is_setuid() || std::env::var_os("ANYVERBS_DIRECT").is_none_or(|v| v != "0");
        let slots = Lock::default();
        let own = Self { nonce, presence, presence_fd, publication, publication_fd, slots, wants_direct };
        own.set_asleep(true);
        Ok(own)
    }

    /// A random number that names this process; never 0.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Whether peers' memory may be accessed directly; `ANYVERBS_DIRECT=0`: all data goes through the rings.
    pub(super) fn wants_direct(&self) -> bool {
        self.wants_direct
    }

    /// The page that every peer gets.
    pub fn presence_fd(&self) -> BorrowedFd<'_> {
        self.presence_fd.as_fd()
    }

    /// The file that peers of the same user get.
    pub fn publication_fd(&self) -> BorrowedFd<'_> {
        self.publication_fd.as_fd()
    }

    /// Says whether peers must ring the doorbell after each message. After setting it, and before sleeping, look into
    /// every ring once more: a message that came before is not rung for.
    #[inline]
    pub fn set_asleep(&self, asleep: bool) {
        self.presence().asleep.store(u32::from(asleep), Ordering::Relaxed);
        if asleep {
            fence(Ordering::SeqCst);
        }
    }

    /// Whether peers ring the doorbell.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.presence().asleep.load(Ordering::Relaxed) != 0
    }

    /// Makes a claimed slot known. ENOSPC when the process holds [`MAX_SLOTS`] already.
    pub fn add_slot(&self, slot: u16) -> Result<(), Errno> {
        let mut slots = self.slots.lock();
        let place = self.presence().slots.get(slots.len()).ok_or(Errno::ENOSPC)?;
        place.store(u32::from(slot), Ordering::Release);
        slots.push(slot);
        Ok(())
    }

    /// Shows a queue pair to peers of the same user, or what changed of it. One thread at a time for each QPN.
    pub fn publish_qp(&self, qpn: Qpn, view: &QpView) {
        if let Some(entry) = self.qp(qpn) {
            entry.write(view);
        }
    }

    /// Withdraws a queue pair; afterwards [`super::direct::wait`] waits for the accesses in flight.
    pub fn withdraw_qp(&self, qpn: Qpn) {
        self.publish_qp(qpn, &QpView::default());
        fence(Ordering::SeqCst);
    }

    /// Where a queue pair counts what it does to its peer's memory; written under its send half's lock.
    pub fn direct_counts(&self, qpn: Qpn) -> Option<&layout::Counts> {
        layout::direct(&self.publication, self.ordinal(qpn)?, qpn.index())
    }

    /// The slots that it holds, in the order of the tables.
    pub fn slots(&self) -> Vec<u16> {
        self.slots.lock().clone()
    }

    /// The memory table's entries, [`MR_CAPACITY`] of them, free at first; valid as long as `self` (`MemTable::over`).
    pub fn mr_area(&self) -> NonNull<MrEntry> {
        layout::mrs(&self.publication)
    }

    /// Announces a direct access to the process `target`; None when too many are under way.
    pub(super) fn announce(&self, target: u64, rkey: u32, qpn: Qpn) -> Option<Announced<'_>> {
        let hazards = layout::hazards(&self.publication);
        let (index, slot) = hazards
            .iter()
            .enumerate()
            .find(|(_, h)| h.target.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok())?;
        let used = layout::hazards_used(&self.publication);
        if used.load(Ordering::Relaxed) as usize <= index {
            used.fetch_max(index as u32 + 1, Ordering::SeqCst);
        }
        slot.what.store(u64::from(rkey) << 32 | u64::from(qpn.0), Ordering::Relaxed);
        slot.target.store(target, Ordering::Release);
        // The target withdraws, fences and looks at the hazards; we announce, fence and look at what is published.
        fence(Ordering::SeqCst);
        Some(Announced(slot))
    }

    fn presence(&self) -> &Presence {
        layout::presence(&self.presence)
    }

    fn qp(&self, qpn: Qpn) -> Option<&QpEntry> {
        layout::qp(&self.publication, self.ordinal(qpn)?, qpn.index())
    }

    fn ordinal(&self, qpn: Qpn) -> Option<usize> {
        self.slots.lock().iter().position(|&s| s == qpn.slot())
    }
}

const _: () = assert!(HAZARDS <= u32::MAX as usize);

/// A direct access under way; dropping it says that it is over.
#[derive(Debug)]
pub(super) struct Announced<'a>(&'a Hazard);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.target.store(0, Ordering::Release);
    }
}

/// The word of a process that is not known yet: no doorbells.
pub(super) static NOT_ASLEEP: AtomicU32 = AtomicU32::new(0);
