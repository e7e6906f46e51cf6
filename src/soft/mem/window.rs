//! Memory windows: keys that show a part of a region to peers, bound and invalidated by work requests.
//!
//! A window has an index of its own in the table, whose entry is free while the window is not bound. A bound window
//! keeps its region from being deregistered. Windows of type 2 are of the kind 2B: bound to one QP, which alone gives
//! access and may invalidate them (IBA 10.6.7).
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::table::State;
use super::{InFile, MemTable, MrEntry, Pd, PdId, Region, Scope};
use crate::soft::types::{Access, Key, Qpn};
use crate::sys::errno::Errno;

/// `enum ibv_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum MwType {
    One = 1,
    Two = 2,
}

/// What a bind asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Any key of the window: its index counts.
    pub window: Key,
    /// The rkey from now on; of this only the low byte is the application's choice.
    pub rkey: Key,
    /// The region's lkey.
    pub region: Key,
    /// The first byte, in the region's own terms.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// What peers may do.
    pub access: Access,
}

/// Why a window cannot be bound or invalidated: the request ends in MW_BIND_ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum BadWindow {
    NoWindow,
    Domain,
    Bound,
    NotBound,
    OtherQp,
    NoRegion,
    NotBindable,
    ZeroBased,
    Length,
    Range,
    Access,
}

impl fmt::Display for BadWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadWindow::NoWindow => "the rkey is not that of a memory window of the kind that the request is for",
            BadWindow::Domain => "QP, window and region are not of one protection domain",
            BadWindow::Bound => "the window of type 2 is bound already: invalidate it first",
            BadWindow::NotBound => "no window is bound under this rkey",
            BadWindow::OtherQp => "the window is bound to another QP",
            BadWindow::NoRegion => "no memory region has this lkey",
            BadWindow::NotBindable => "the region lacks IBV_ACCESS_MW_BIND",
            BadWindow::ZeroBased => "no window can be bound to a zero-based region",
            BadWindow::Length => "length 0 unbinds windows of type 1 only",
            BadWindow::Range => "the range does not lie in the region",
            BadWindow::Access => "remote writes and atomics need a region with IBV_ACCESS_LOCAL_WRITE, and only remote access can be given",
        })
    }
}

/// The windows of a process, by index.
#[derive(Debug, Default)]
pub(super) struct Windows(BTreeMap<u32, Window>);

#[derive(Debug)]
struct Window {
    pd: Pd,
    kind: MwType,
    /// The index of the region that it is bound to.
    region: Option<u32>,
}

/// What may be given to peers through a window.
const GIVEN: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

impl MemTable {
    /// A window that is not bound; gives the key from which the first rkey is made.
    ///
    /// # Errors
    /// ENOMEM: the table is full. EIO: in a forked child.
    pub fn alloc_window(&self, pd: &Pd, kind: MwType) -> Result<Key, Errno> {
        if self.is_foreign() {
            return Err(Errno::EIO);
        }
        crate::sys::guard::install();
        let mut state = self.state.lock();
        let key = self.fresh_key(&mut state)?;
        state.windows.0.insert(key.0 >> 8, Window { pd: pd.clone(), kind, region: None });
        Ok(key)
    }

    /// Ends a window, bound or not, once nobody uses it.
    ///
    /// # Errors
    /// ENOENT: no such window. EBUSY: a copy through it took longer than a second; it is not bound any more.
    pub fn dealloc_window(&self, key: Key, peers_idle: impl FnMut(Key) -> bool) -> Result<(), Errno> {
        if self.is_foreign() {
            return Ok(());
        }
        let index = key.0 >> 8;
        if !self.state.lock().windows.0.contains_key(&index) {
            return Err(Errno::ENOENT);
        }
        if !self.unbind(key, peers_idle) {
            return Err(Errno::EBUSY);
        }
        let mut state = self.state.lock();
        let window = state.windows.0.remove(&index).ok_or(Errno::ENOENT)?;
        state.resting.push_back(index);
        drop(state);
        drop(window);
        Ok(())
    }

    /// Binds a window on behalf of QP `qpn` of domain `pd`; the window's old rkey, if any, is dead.
    ///
    /// # Errors
    /// [`BadWindow`]; the window is as before.
    pub fn bind(
        &self,
        pd: PdId,
        qpn: Qpn,
        bind: &Bind,
        mut peers_idle: impl FnMut(Key) -> bool,
    ) -> Result<(), BadWindow> {
        let index = bind.window.0 >> 8;
        let kind = self.may_bind(&self.state.lock(), pd, bind)?.0;
        // Only a window of type 1 can be bound here.
        if !self.unbind(bind.window, &mut peers_idle) {
            return Err(BadWindow::Bound);
        }
        if bind.length == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        let region = self.may_bind(&state, pd, bind)?.1;
        if state.windows.0.get(&index).is_none_or(|w| w.region.is_some()) {
            return Err(BadWindow::Bound);
        }
        let parent = bind.region.0 >> 8;
        if let Some(r) = state.registered.get_mut(&parent) {
            r.windows += 1;
        }
        if let Some(w) = state.windows.0.get_mut(&index) {
            w.region = Some(parent);
        }
        let key = Key(index << 8 | bind.rkey.0 & 0xff);
        self.note_variant(key);
        self.at(index).write(&Region {
            key,
            pd,
            access: bind.access & GIVEN,
            start: region.start.wrapping_add(bind.addr.wrapping_sub(region.iova)),
            iova: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr },
            length: bind.length,
            scope: match kind {
                MwType::One => Scope::Window,
                MwType::Two => Scope::WindowOf(qpn),
            },
            file: InFile {
                offset: region.file.offset.wrapping_add(bind.addr.wrapping_sub(region.iova)),
                ..region.file
            },
        });
        Ok(())
    }

    /// Ends the rkey of a window of type 2 that is bound to QP `qpn` of domain `pd`.
    ///
    /// # Errors
    /// [`BadWindow`]; nothing has changed.
    pub fn invalidate(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Key,
        peers_idle: impl FnMut(Key) -> bool,
    ) -> Result<(), BadWindow> {
        {
            let state = self.state.lock();
            let window = state.windows.0.get(&(rkey.0 >> 8)).filter(|w| w.kind == MwType::Two);
            let window = window.ok_or(BadWindow::NoWindow)?;
            let shown = self.at(rkey.0 >> 8).read();
            if window.region.is_none() || shown.key != rkey {
                return Err(BadWindow::NotBound);
            }
            if shown.pd != pd {
                return Err(BadWindow::Domain);
            }
            if shown.scope != Scope::WindowOf(qpn) {
                return Err(BadWindow::OtherQp);
            }
        }
        // A copy that takes longer than a second keeps the region busy; the key is dead all the same.
        self.unbind(rkey, peers_idle);
        Ok(())
    }

    /// QP `qpn` is going away, and its number may come again: no window stays bound to it.
    pub fn release_windows(&self, qpn: Qpn, mut peers_idle: impl FnMut(Key) -> bool) {
        if self.is_foreign() {
            return;
        }
        let bound: Vec<Key> = {
            let state = self.state.lock();
            let entries = state.windows.0.keys().map(|index| self.at(*index).read());
            entries.filter(|r| r.key.0 != 0 && r.scope == Scope::WindowOf(qpn)).map(|r| r.key).collect()
        };
        for key in bound {
            self.unbind(key, &mut peers_idle);
        }
    }

    /// How many windows there are.
    pub fn windows(&self) -> usize {
        self.state.lock().windows.0.len()
    }

    /// Takes the window's key away and waits for its users; false where they are still there after a second.
    fn unbind(&self, key: Key, peers_idle: impl FnMut(Key) -> bool) -> bool {
        let index = key.0 >> 8;
        let state = self.state.lock();
        if state.windows.0.get(&index).is_none_or(|w| w.region.is_none()) {
            return true;
        }
        let entry: &MrEntry = self.at(index);
        let current = Key(entry.key.load(Relaxed));
        entry.set_key(Key(0));
        drop(state);
        // An earlier attempt has taken the key away; which one that was its variant tells.
        let current = if current.0 == 0 { self.last_key(index) } else { current };
        if !self.wait_for_users(current, peers_idle) {
            return false;
        }
        let mut state = self.state.lock();
        let region = state.windows.0.get_mut(&index).and_then(|w| w.region.take());
        if let Some(region) = region.and_then(|index| state.registered.get_mut(&index)) {
            region.windows = region.windows.saturating_sub(1);
        }
        true
    }

    fn may_bind(&self, state: &State, pd: PdId, bind: &Bind) -> Result<(MwType, Region), BadWindow> {
        let window = state.windows.0.get(&(bind.window.0 >> 8)).ok_or(BadWindow::NoWindow)?;
        if window.pd.id() != pd {
            return Err(BadWindow::Domain);
        }
        if window.kind == MwType::Two && window.region.is_some() {
            return Err(BadWindow::Bound);
        }
        let (scope, file) = (Scope::Region, InFile::default());
        let none = Region { key: Key(0), pd, access: GIVEN, start: 0, iova: 0, length: 0, scope, file };
        if bind.length == 0 {
            return if window.kind == MwType::One { Ok((window.kind, none)) } else { Err(BadWindow::Length) };
        }
        let entry = self.entry(bind.region).filter(|_| state.registered.contains_key(&(bind.region.0 >> 8)));
        let region = entry.map(MrEntry::read).filter(|r| r.key == bind.region && r.scope == Scope::Region);
        let region = region.ok_or(BadWindow::NoRegion)?;
        if region.pd != pd {
            return Err(BadWindow::Domain);
        }
        if !region.access.contains(Access::MW_BIND) {
            return Err(BadWindow::NotBindable);
        }
        if region.access.contains(Access::ZERO_BASED) {
            return Err(BadWindow::ZeroBased);
        }
        let offset = bind.addr.wrapping_sub(region.iova);
        if offset > region.length || bind.length > region.length - offset {
            return Err(BadWindow::Range);
        }
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        // LOCAL_WRITE gives peers nothing, and programs ask for it.
        let known = GIVEN | Access::ZERO_BASED | Access::LOCAL_WRITE;
        if (writes && !region.access.contains(Access::LOCAL_WRITE)) || !(bind.access - known).is_empty() {
            return Err(BadWindow::Access);
        }
        Ok((window.kind, region))
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
