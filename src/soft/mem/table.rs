//! The process's memory table: registration, keys, and the checks in front of every copy.
//!
//! A key is an index into the table, shifted by 8, and a variant that differs at each use of the index. A check enters
//! itself as a user of the region before it reads the key; deregistration takes the key away before it waits for the users.
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

use super::checks::{WRITING, check, check_flags};
use super::files::{self, Files, Shown};
use super::span::Held;
use super::window::Windows;
use super::{Denied, Dm, MrEntry, Pd, PdId, Region, Scope, Span, Via, users};
use crate::soft::types::{Access, Key, Qpn, Sge};
use crate::sys::errno::Errno;
use crate::sys::inode::Inode;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::map::{Mapping, page_size};
use crate::sys::{barrier, clock, fork, guard, memfd, random};

/// A registered region, as the caller keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mr {
    /// lkey and rkey.
    pub key: Key,
    /// Host address of the first byte; for device memory, our own mapping.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// The address by which work requests name the first byte.
    pub iova: u64,
    /// As granted.
    pub access: Access,
}

/// What [`MemTable::reregister`] changes; `None` stays.
#[derive(Clone, Default, Debug)]
pub struct Rereg<'a> {
    /// Address and length, which also become the iova.
    pub translation: Option<(u64, u64)>,
    /// Protection domain.
    pub pd: Option<&'a Pd>,
    /// Access flags.
    pub access: Option<Access>,
}

/// How far a failed [`MemTable::reregister`] went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReregError {
    /// The region is as before (IBV_REREG_MR_ERR_INPUT).
    Unchanged(Errno),
    /// The region may only be deregistered (IBV_REREG_MR_ERR_CMD).
    Invalid(Errno),
}

/// How long deregistration waits for copies in progress.
const PATIENCE_NS: u64 = 1_000_000_000;
/// An index rests until this many others have been given back, or no new one is left.
const RESTING: usize = 4096;
/// See the module.
#[derive(Debug)]
pub struct MemTable {
    entries: NonNull<MrEntry>,
    slots: NonNull<Slot>,
    capacity: u32,
    generation: u32,
    pub(super) state: Lock<State>,
    /// The last region in some file is gone.
    file_went: AtomicBool,
    /// What `slots`, and `entries` where nobody else provides them, point into.
    _memory: (Mapping, Option<Mapping>),
}

// SAFETY: entries and slots are atomics in mappings that live as long as the table; the rest is under a lock.
unsafe impl Send for MemTable {}
// SAFETY: as above.
unsafe impl Sync for MemTable {}

/// What peers need not see of an entry.
#[repr(C, align(16))]
struct Slot {
    /// Spans of threads that had no word left.
    users: AtomicUsize,
    /// The variant last used.
    variant: AtomicU32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Indices from here on have never been used.
    fresh: u32,
    pub(super) resting: VecDeque<u32>,
    pub(super) registered: BTreeMap<u32, Registration>,
    pub(super) windows: Windows,
    files: Files,
    seed: u32,
}

#[derive(Debug)]
pub(super) struct Registration {
    pub(super) pd: Pd,
    /// What must live at least as long as the region.
    keep: Keep,
    /// Windows that are bound to it.
    pub(super) windows: u32,
}

/// Memory behind a region that is not the application's.
#[derive(Debug)]
pub(super) enum Keep {
    Nothing,
    Dm { _dm: Arc<Dm> },
    File { _mapping: Box<Mapping> },
}

impl MemTable {
    /// A table with private entries, which no peer reads. `capacity` counts index 0, which is never given.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn private(capacity: u32) -> Result<Self, Errno> {
        let mapping = Mapping::anonymous(capacity as usize * size_of::<MrEntry>())?;
        let entries = NonNull::new(mapping.base().cast()).ok_or(Errno::ENOMEM)?;
        Self::build(entries, capacity, Files::default(), Some(mapping))
    }

    /// A table over `capacity` entries at `entries`, which shows at `files` in which files regions lie.
    ///
    /// # Errors
    /// ENOMEM.
    ///
    /// # Safety
    /// The entries and `files` are zero, 64-byte aligned, outlive the table, and are written by nobody else.
    pub unsafe fn over(
        entries: NonNull<MrEntry>,
        capacity: u32,
        files: NonNull<Shown>,
    ) -> Result<Self, Errno> {
        // SAFETY: the caller vouches for it.
        let files = unsafe { Files::shown_at(files) };
        Self::build(entries, capacity, files, None)
    }

    fn build(
        entries: NonNull<MrEntry>,
        capacity: u32,
        files: Files,
        mapping: Option<Mapping>,
    ) -> Result<Self, Errno> {
        assert!((2..=1 << 24).contains(&capacity));
        users::prepare();
        let memory = Mapping::anonymous(capacity as usize * size_of::<Slot>())?;
        Ok(Self {
            entries,
            slots: NonNull::new(memory.base().cast()).ok_or(Errno::ENOMEM)?,
            capacity,
            generation: fork::generation(),
            state: Lock::new(State { fresh: 1, seed: random::u64() as u32, files, ..State::default() }),
            file_went: AtomicBool::new(false),
            _memory: (memory, mapping),
        })
    }

    /// Registers `len` bytes at `addr`, known to work requests as `iova` (0 where ZERO_BASED). Address 0 and length `u64::MAX`
    /// with ON_DEMAND stand for the whole address space.
    ///
    /// # Errors
    /// EINVAL: unknown or inconsistent flags, overflow, or an iova whose offset in the page is not the address's.
    /// EFAULT: the range is not mapped, or not writable though the flags ask for it. ENOMEM: the table is full. EIO: in a forked child.
    pub fn register(&self, pd: &Pd, addr: u64, len: u64, iova: u64, access: Access) -> Result<Mr, Errno> {
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        check(addr, len, access)?;
        let page = page_size() as u64;
        if !access.contains(Access::ZERO_BASED) && addr % page != iova % page {
            explain(format_args!(
                "ibv_reg_mr: iova {iova:#x} and address {addr:#x} differ in their offset within a page"
            ));
            return Err(Errno::EINVAL);
        }
        if iova.checked_add(len).is_none() {
            explain(format_args!("ibv_reg_mr: iova {iova:#x} plus length {len:#x} overflows"));
            return Err(Errno::EINVAL);
        }
        self.insert(pd, Mr { key: Key(0), addr, length: len, iova, access }, Scope::Region, Keep::Nothing)
    }

    /// Registers `len` bytes at `offset` of a file, or of anything else that can be mapped shared; work requests name them from
    /// `iova` on.
    ///
    /// # Errors
    /// EINVAL: flags, a range beyond the end of the file, or an iova whose offset in the page is not that of `offset`.
    /// Those of fstat(2) and mmap(2). ENOMEM, EIO.
    pub fn register_file(
        &self,
        pd: &Pd,
        fd: BorrowedFd<'_>,
        (offset, len): (u64, u64),
        iova: u64,
        access: Access,
    ) -> Result<Mr, Errno> {
        check_flags(access)?;
        let page = page_size() as u64;
        let (first, lead) = (offset / page * page, offset % page);
        let whole = len.checked_add(lead).filter(|n| *n > 0 && offset.checked_add(len).is_some());
        let fits = memfd::size_of_regular(fd)?.is_none_or(|size| offset <= size && len <= size - offset);
        let (true, Some(whole)) = (fits, whole) else {
            explain(format_args!(
                "ibv_reg_dmabuf_mr: {len} bytes at {offset} are not in the file of descriptor {}",
                fd.as_raw_fd()
            ));
            return Err(Errno::EINVAL);
        };
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if (!access.contains(Access::ZERO_BASED) && iova % page != lead) || iova.checked_add(len).is_none() {
            explain(format_args!(
                "ibv_reg_dmabuf_mr: iova {iova:#x} and offset {offset:#x} differ in their offset within a page"
            ));
            return Err(Errno::EINVAL);
        }
        let writable = access.intersects(WRITING);
        let mapping = Mapping::shared_at(fd, first, whole as usize, writable).inspect_err(|e| {
            explain(format_args!("ibv_reg_dmabuf_mr: descriptor {} cannot be mapped: {e:?}", fd.as_raw_fd()));
        })?;
        let addr = mapping.base() as u64 + lead;
        let mr = Mr { key: Key(0), addr, length: len, iova, access };
        self.insert(pd, mr, Scope::Region, Keep::File { _mapping: Box::new(mapping) })
    }

    /// A null region: every address is in it, reads give zeros, what is written is gone, and only the lkey is good for
    /// anything.
    ///
    /// # Errors
    /// ENOMEM: the table is full. EIO: in a forked child.
    pub fn register_null(&self, pd: &Pd) -> Result<Mr, Errno> {
        let mr = Mr { key: Key(0), addr: 0, length: u64::MAX, iova: 0, access: Access::LOCAL_WRITE };
        self.insert(pd, mr, Scope::Null, Keep::Nothing)
    }

    /// Registers `len` bytes at `offset` of device memory; work requests name them from 0 on.
    ///
    /// # Errors
    /// EINVAL: without ZERO_BASED, a range beyond the memory, or flags as for [`register`](Self::register). ENOMEM, EIO.
    pub fn register_dm(
        &self,
        pd: &Pd,
        dm: &Arc<Dm>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr, Errno> {
        check_flags(access)?;
        if !access.contains(Access::ZERO_BASED) {
            explain(format_args!("ibv_reg_dm_mr: access {:#x} lacks IBV_ACCESS_ZERO_BASED", access.bits()));
            return Err(Errno::EINVAL);
        }
        let size = dm.len() as u64;
        if offset > size || len > size - offset {
            explain(format_args!(
                "ibv_reg_dm_mr: {len} bytes at {offset} exceed the {size} bytes of the device memory"
            ));
            return Err(Errno::EINVAL);
        }
        let mr = Mr { key: Key(0), addr: dm.base() + offset, length: len, iova: 0, access };
        self.insert(pd, mr, Scope::Region, Keep::Dm { _dm: dm.clone() })
    }

    /// Takes the key away and waits until nobody uses it: this process's own copies, and peers until `peers_idle` says that none
    /// has the key in its hazard word.
    ///
    /// # Errors
    /// EINVAL: no such region. EBUSY: a window is bound to it, or a copy took longer than a second; the region stays registered.
    pub fn deregister(&self, key: Key, peers_idle: impl FnMut(Key) -> bool) -> Result<(), Errno> {
        if self.is_foreign() {
            return Ok(());
        }
        let registration = self.close(key, peers_idle)?;
        let mut state = self.state.lock();
        self.leave_file(&mut state, key);
        state.resting.push_back(key.0 >> 8);
        drop(state);
        drop(registration);
        Ok(())
    }

    /// Changes a region in place; the key stays. Waits as [`deregister`](Self::deregister) does.
    ///
    /// # Errors
    /// As for [`register`](Self::register) and [`deregister`](Self::deregister); none leaves the region invalid.
    pub fn reregister(
        &self,
        key: Key,
        change: Rereg<'_>,
        peers_idle: impl FnMut(Key) -> bool,
    ) -> Result<Mr, ReregError> {
        if self.is_foreign() {
            return Err(ReregError::Unchanged(Errno::EIO));
        }
        let current = self.entry(key).map(MrEntry::read).filter(|r| r.key == key);
        let mut region = current.ok_or_else(|| {
            explain(format_args!("ibv_rereg_mr: no region has the key {key:?}"));
            ReregError::Unchanged(Errno::EINVAL)
        })?;
        if let Some(access) = change.access {
            region.access = access;
        }
        if let Some((addr, len)) = change.translation {
            (region.start, region.length) = (addr, len);
            region.iova = if region.access.contains(Access::ZERO_BASED) { 0 } else { addr };
        }
        check(region.start, region.length, region.access).map_err(ReregError::Unchanged)?;
        let mut registration = self.close(key, peers_idle).map_err(ReregError::Unchanged)?;
        if let Some(pd) = change.pd {
            region.pd = pd.id();
            registration.pd = pd.clone();
        }
        if change.translation.is_some() {
            registration.keep = Keep::Nothing;
        }
        let found = files::find(region.start, region.length, region.access);
        let mut state = self.state.lock();
        // Before the old one is left: a file that stays the same keeps its number.
        region.file = state.files.enter(found);
        self.leave_file(&mut state, key);
        state.registered.insert(key.0 >> 8, registration);
        self.at(key.0 >> 8).write(&region);
        Ok(Mr { key, addr: region.start, length: region.length, iova: region.iova, access: region.access })
    }

    /// The bytes of a local scatter/gather element; `write` when they are to be changed. No bytes need no key.
    ///
    /// # Errors
    /// [`Denied`]: the request ends in LOC_PROT_ERR.
    #[inline]
    pub fn local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<Span<'_>, Denied> {
        let need = if write { Access::LOCAL_WRITE } else { Access::empty() };
        self.check(pd, Via::Local, sge.lkey, sge.addr, u64::from(sge.length), need)
    }

    /// The bytes that a peer names through QP `qpn` of ours, if the region or window allows `need`. No bytes need no key.
    ///
    /// # Errors
    /// [`Denied`]: the request is answered with a remote access NAK.
    #[inline]
    pub fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        key: Key,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'_>, Denied> {
        self.check(pd, Via::Qp(qpn), key, va, len, need)
    }

    /// What is registered under a key now.
    pub fn region(&self, key: Key) -> Option<Region> {
        self.entry(key)?.snapshot().filter(|r| r.key == key)
    }

    /// How many regions are registered.
    pub fn len(&self) -> usize {
        self.state.lock().registered.len()
    }

    /// Whether nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn check(
        &self,
        pd: PdId,
        via: Via,
        key: Key,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'_>, Denied> {
        if len == 0 {
            return Ok(Span::EMPTY);
        }
        let entry = self.entry(key).ok_or(Denied::Key)?;
        let held = match users::enter(entry as *const MrEntry as usize) {
            Some(word) => Held::Word(word),
            None => self.count(key),
        };
        if entry.key.load(SeqCst) != key.0 {
            return Err(Denied::Key);
        }
        if let Some(start) = entry.usual(pd, va, len, need) {
            return Ok(Span::new(start, len as usize, held));
        }
        Self::judge(entry, held, (pd, via, key), (va, len), need)
    }

    /// What is no region as nearly all are, or does not allow what is asked for.
    #[cold]
    fn judge<'t>(
        entry: &MrEntry,
        held: Held<'t>,
        (pd, via, key): (PdId, Via, Key),
        (va, len): (u64, u64),
        need: Access,
    ) -> Result<Span<'t>, Denied> {
        let region = entry.read();
        let start = region.resolve(key, pd, via, va, len, need)?;
        let held = if region.scope == Scope::Null { Held::Null } else { held };
        Ok(Span::new(start, len as usize, held))
    }

    #[cold]
    fn count(&self, key: Key) -> Held<'_> {
        let count = &self.slot(key.0 >> 8).users;
        count.fetch_add(1, SeqCst);
        Held::Count(count)
    }

    /// The file of a number that a peer asks by.
    pub fn file(&self, number: u32) -> Option<Inode> {
        self.state.lock().files.inode(number)
    }

    /// Whether, since the last time, some file went out of use: peers that have it mapped should know.
    pub fn file_went(&self) -> bool {
        self.file_went.load(Relaxed) && self.file_went.swap(false, AcqRel)
    }

    /// The region of `key` is gone from the file that it lay in, as its entry still says.
    fn leave_file(&self, state: &mut State, key: Key) {
        if state.files.leave(self.at(key.0 >> 8).read().file) {
            self.file_went.store(true, Release);
        }
    }

    /// Whether some region lies in the address range. Implicit regions, which are everywhere, do not count.
    pub fn covers(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let used = self.state.try_lock().map_or(self.capacity, |state| state.fresh);
        (1..used).any(|index| {
            let region = self.at(index).snapshot();
            region.is_some_and(|r| {
                r.length < 1 << 47 && r.start < end && start < r.start.saturating_add(r.length)
            })
        })
    }

    fn insert(&self, pd: &Pd, mut mr: Mr, scope: Scope, keep: Keep) -> Result<Mr, Errno> {
        if self.is_foreign() {
            return Err(Errno::EIO);
        }
        guard::install();
        let found = match scope {
            Scope::Region => files::find(mr.addr, mr.length, mr.access),
            _ => None,
        };
        let mut state = self.state.lock();
        mr.key = self.fresh_key(&mut state)?;
        let index = mr.key.0 >> 8;
        let file = state.files.enter(found);
        let region = Region {
            key: mr.key,
            pd: pd.id(),
            access: mr.access,
            start: mr.addr,
            iova: mr.iova,
            length: mr.length,
            scope,
            file,
        };
        state.registered.insert(index, Registration { pd: pd.clone(), keep, windows: 0 });
        self.at(index).write(&region);
        Ok(mr)
    }

    /// A key that is not in use: an index of its own, and a variant that the index has not had lately.
    pub(super) fn fresh_key(&self, state: &mut State) -> Result<Key, Errno> {
        let index = state.next_index(self.capacity)?;
        let slot = self.slot(index);
        let mut variant = slot.variant.load(Relaxed);
        if variant == 0 {
            // Old keys of an earlier process should not fit by chance.
            variant = (index ^ state.seed).wrapping_mul(0x9e37_79b1) >> 24 | 0x100;
        }
        variant = (variant + 1) & 0xff | 0x100;
        slot.variant.store(variant, Relaxed);
        Ok(Key(index << 8 | variant & 0xff))
    }

    /// The last variant of `key`'s index was that of `key`: the next owner of the index gets another.
    pub(super) fn note_variant(&self, key: Key) {
        self.slot(key.0 >> 8).variant.store(key.0 & 0xff | 0x100, Relaxed);
    }

    /// The key that `note_variant` or `fresh_key` last saw for an index.
    pub(super) fn last_key(&self, index: u32) -> Key {
        Key(index << 8 | self.slot(index).variant.load(Relaxed) & 0xff)
    }

    /// Makes the key invalid and waits for its users; afterwards the entry is the caller's.
    fn close(&self, key: Key, peers_idle: impl FnMut(Key) -> bool) -> Result<Registration, Errno> {
        let index = key.0 >> 8;
        let mut state = self.state.lock();
        let entry = self.entry(key).filter(|e| e.key.load(Relaxed) == key.0).ok_or_else(|| {
            explain(format_args!("ibv_dereg_mr: no region has the key {key:?}"));
            Errno::EINVAL
        })?;
        let registered = state.registered.get(&index).ok_or(Errno::EINVAL)?;
        if registered.windows > 0 {
            explain(format_args!(
                "ibv_dereg_mr: {} memory window(s) are bound to the region of key {key:?}",
                registered.windows
            ));
            return Err(Errno::EBUSY);
        }
        let registration = state.registered.remove(&index).ok_or(Errno::EINVAL)?;
        entry.set_key(Key(0));
        drop(state);
        if !self.wait_for_users(key, peers_idle) {
            explain(format_args!("ibv_dereg_mr: key {key:?} is still used by a copy after a second"));
            self.state.lock().registered.insert(index, registration);
            entry.set_key(key);
            return Err(Errno::EBUSY);
        }
        Ok(registration)
    }

    /// Waits until nobody uses `key`, which has been taken away; false after a second.
    pub(super) fn wait_for_users(&self, key: Key, mut peers_idle: impl FnMut(Key) -> bool) -> bool {
        let Some(entry) = self.entry(key) else { return true };
        barrier::everywhere();
        let (address, counted) = (entry as *const MrEntry as usize, &self.slot(key.0 >> 8).users);
        let mut deadline = 0;
        while counted.load(SeqCst) != 0 || users::any(address) || !peers_idle(key) {
            let now = clock::now_ns();
            if deadline == 0 {
                deadline = now + PATIENCE_NS;
            } else if now > deadline {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// A forked child sees its parent's table in memory that is not there any more.
    pub(super) fn is_foreign(&self) -> bool {
        fork::generation() != self.generation
    }

    #[inline]
    pub(super) fn entry(&self, key: Key) -> Option<&MrEntry> {
        let index = key.0 >> 8;
        (index != 0 && index < self.capacity).then(|| self.at(index))
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> &MrEntry {
        debug_assert!(index < self.capacity);
        // SAFETY: the index is below the capacity: `entry` and `next_index` see to it.
        unsafe { self.entries.add(index as usize).as_ref() }
    }

    #[inline]
    fn slot(&self, index: u32) -> &Slot {
        debug_assert!(index < self.capacity);
        // SAFETY: as for `at`; zeroed memory is a valid slot.
        unsafe { self.slots.add(index as usize).as_ref() }
    }
}

impl State {
    /// The index that has rested longest, once enough of them rest; a new one before.
    fn next_index(&mut self, capacity: u32) -> Result<u32, Errno> {
        if self.resting.len() > RESTING || self.fresh >= capacity {
            return self.resting.pop_front().ok_or_else(|| {
                explain(format_args!("ibv_reg_mr: all {} memory regions are in use", capacity - 1));
                Errno::ENOMEM
            });
        }
        self.fresh += 1;
        Ok(self.fresh - 1)
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
