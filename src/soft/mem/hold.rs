//! A region of this process that several requests in a row name: its key is looked up once.
use std::sync::atomic::Ordering::SeqCst;

use super::run::RunMut;
use super::span::Held;
use super::{MemTable, MrEntry, PdId, Region, Scope, Via, users};
use crate::soft::types::{Access, Key};

/// A region whose deregistration waits until this value is dropped. It should live for some copies.
#[derive(Debug)]
pub struct Hold<'t> {
    region: Region,
    pd: PdId,
    _held: Held<'t>,
}

impl Hold<'_> {
    /// The key by which it was found.
    pub fn key(&self) -> Key {
        self.region.key
    }

    /// `len` bytes at `va`, where a local request may write them.
    #[inline(always)]
    pub fn run_mut(&self, va: u64, len: usize) -> Option<RunMut<'_>> {
        let need = Access::LOCAL_WRITE;
        let start = self.region.resolve(self.region.key, self.pd, Via::Local, va, len as u64, need).ok()?;
        // SAFETY: registered memory, which the application gave away for writing and which is held meanwhile.
        Some(unsafe { RunMut::new(start as *mut u8, len) })
    }
}

impl MemTable {
    /// What a local request names by `key`; none where nothing, or nothing with bytes, is registered.
    #[inline(always)]
    pub fn hold(&self, pd: PdId, key: Key) -> Option<Hold<'_>> {
        let entry = self.entry(key)?;
        let _held = Held::Word(users::enter(entry as *const MrEntry as usize)?);
        // As in `check`: looked at after the word says so.
        if entry.key.load(SeqCst) != key.0 {
            return None;
        }
        let region = entry.read();
        (region.scope == Scope::Region).then_some(Hold { region, pd, _held })
    }
}
