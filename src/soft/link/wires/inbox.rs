//! The ring that a peer writes, held by who reads it, and what is known about its writer.
use std::sync::Arc;

use super::{Wire, foreign};
use crate::soft::link::shm::ring::Consumer;
use crate::soft::qp::Qp;
use crate::soft::types::{Psn, Qpn};
use crate::sys::lock::{Beside, Guard};

/// The ring that a peer writes, held by who reads it, and what is known about its writer.
pub(super) struct Inbox<'a> {
    rx: Guard<'a, Consumer>,
    cache: &'a Beside<Cache>,
}

impl Inbox<'_> {
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Consumer, &mut Cache) {
        // SAFETY: `rx` is the lock of the wire that the cache belongs to, and both are borrowed mutably with it.
        let cache = unsafe { self.cache.with(&self.rx) };
        (&mut self.rx, cache)
    }

    pub(super) fn cache(&mut self) -> &mut Cache {
        self.parts().1
    }
}

/// What the receiving thread knows without asking.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) qp: Option<Arc<Qp>>,
    pub(super) epoch: u32,
    /// The acknowledgement of what this round has accepted.
    pub(super) owed: Option<Owed>,
    pub(super) proven: Proven,
    /// Messages under way to SRQs of this process over XRC QPs of others.
    pub(super) shadows: foreign::Shadows,
}

/// Slots that are the peer's.
#[derive(Debug, Default)]
pub(super) struct Proven {
    slots: Vec<u16>,
    /// The one asked for last.
    last: Option<u16>,
}

impl Proven {
    /// Whether the slot of QP `src` is the one that was asked for last.
    #[inline(always)]
    pub(super) fn is_last(&self, src: Qpn) -> bool {
        self.last == Some(src.slot())
    }

    pub(super) fn has(&mut self, src: Qpn) -> bool {
        let known = self.is_last(src) || self.slots.contains(&src.slot());
        if known {
            self.last = Some(src.slot());
        }
        known
    }

    pub(super) fn add(&mut self, src: Qpn) {
        self.slots.push(src.slot());
    }
}

/// All requests of QP `to` up to `psn` are accepted by QP `from`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owed {
    pub(super) from: Qpn,
    pub(super) to: Qpn,
    pub(super) psn: Psn,
}

impl Wire {
    /// The ring that the peer writes, and what is known about it; waits for who is reading it.
    pub(super) fn inbox(&self) -> Inbox<'_> {
        self.inbox_of(self.peer.rx.lock())
    }

    /// `inbox`, with the lock of the peer's `rx` already held.
    #[inline]
    pub(super) fn inbox_of<'a>(&'a self, rx: Guard<'a, Consumer>) -> Inbox<'a> {
        Inbox { rx, cache: &self.cache }
    }
}
