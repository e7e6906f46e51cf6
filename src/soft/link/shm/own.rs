//! What this process shows to its peers: a presence page for all of them, and a publication for those of its own user.
//!
//! Both are memfds that only their owner can write; the peers' side of them is `remote`.
use super::layout::{self, HAZARDS, Hazard, Presence, QpEntry, QpView};
use super::remote::Remote;
use crate::soft::mem::{MrEntry, files};
use crate::soft::types::Qpn;
use crate::sys::{barrier, errno::Errno, lock::Lock, map::Mapping, memfd, process_vm, random, settings};
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
        if barrier::prepare_for_others() {
            layout::barriers(&publication).store(layout::WAITS_FOR_ALL, Ordering::SeqCst);
        }
        if !crate::sys::is_setuid() && !settings::is_off("ANYVERBS_PTRACER") {
            process_vm::allow_same_user();
        }
        let wants_direct = !settings::is_off("ANYVERBS_DIRECT");
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

    /// Whether processes of this user get files in which regions lie: as others may copy to and from this process.
    pub fn gives_files(&self) -> bool {
        self.wants_direct && !crate::sys::is_setuid() && process_vm::is_dumpable()
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

    /// Where the memory table shows which files are in use; nothing at first; valid as long as `self`.
    pub fn files_area(&self) -> NonNull<files::Shown> {
        NonNull::from(layout::files(&self.publication))
    }

    /// A place of its own for a queue pair that writes to, or reads from, the region `rkey` through `qpn` again and again. Its `target` is 1
    /// while nothing is under way, and is set to 0 to give it back. None when all are taken.
    pub(super) fn reserve(&self, rkey: u32, qpn: Qpn) -> Option<&Hazard> {
        let all = layout::reserved(&self.publication);
        let (index, place) = take(all)?;
        layout::reserved_used(&self.publication).fetch_max(index as u32 + 1, Ordering::SeqCst);
        place.what.store(name(rkey, qpn), Ordering::Relaxed);
        Some(place)
    }

    /// Whether accesses to a peer's memory may be announced without a fence. From then on the peer waits for all CPUs.
    pub(super) fn announces_unfenced_to(&self, remote: &Remote) -> bool {
        let may = barrier::reaches_us() && remote.barriers() & layout::WAITS_FOR_ALL != 0;
        if may {
            layout::barriers(&self.publication).fetch_or(layout::UNFENCED, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        may
    }

    /// Whether this process made it: a forked child does not have its memory.
    pub(super) fn is_ours(&self) -> bool {
        self.publication.is_ours()
    }

    /// Announces a direct access to the process `target`; None when too many are under way.
    pub(super) fn announce(&self, target: u64, rkey: u32, qpn: Qpn) -> Option<Announced<'_>> {
        let (index, slot) = take(layout::hazards(&self.publication))?;
        let used = layout::hazards_used(&self.publication);
        if used.load(Ordering::Relaxed) as usize <= index {
            used.fetch_max(index as u32 + 1, Ordering::SeqCst);
        }
        slot.what.store(name(rkey, qpn), Ordering::Relaxed);
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

/// Takes the first free place.
fn take(places: &[Hazard]) -> Option<(usize, &Hazard)> {
    let is_free = |h: &Hazard| {
        h.target.load(Ordering::Relaxed) == 0
            && h.target.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    places.iter().enumerate().find(|(_, h)| is_free(h))
}

fn name(rkey: u32, qpn: Qpn) -> u64 {
    u64::from(rkey) << 32 | u64::from(qpn.0)
}

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
