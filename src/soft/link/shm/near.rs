//! The short way of WRITE into a region that is mapped here: what a queue pair has found out about the region that it writes to again
//! and again, so that each further WRITE costs a look whether anything has changed, and the copy.
use super::direct::{self, OneSided};
use super::layout::{Hazard, QpEntry};
use super::own::Own;
use super::peer::{Peer, State};
use super::views::View;
use crate::soft::mem::{MrEntry, PdId, Region, Via};
use crate::soft::types::{Access, Key, Qpn};
use crate::sys::guard;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// A region that is mapped here, and the queue pair by which it is reached.
#[derive(Debug)]
pub struct Near {
    /// Keeps the entries mapped.
    peer: Arc<Peer>,
    view: Arc<View>,
    hazard: Reserved,
    target: u64,
    qp: NonNull<QpEntry>,
    qp_version: u32,
    entry: NonNull<MrEntry>,
    entry_version: u32,
    rkey: u32,
    iova: u64,
    length: u64,
    /// Where its first byte is in the file.
    offset: u64,
    /// Announcing needs no fence: who waits for us makes every CPU pass one.
    unfenced: bool,
}

// SAFETY: the entries are atomics in a mapping that `peer` keeps.
unsafe impl Send for Near {}

impl Near {
    /// Looks closely at what `what`, a WRITE, is for; none where it is not allowed or not mapped, or places to announce it ran out.
    pub fn look(own: &'static Own, peer: &Arc<Peer>, what: &OneSided) -> Option<Self> {
        let remote = peer.remote().filter(|_| own.wants_direct() && peer.state() == State::Up)?;
        let hazard = Reserved::take(own, what.rkey, what.dst_qpn)?;
        let target = remote.nonce();
        hazard.hazard.target.store(target, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let found = (|| {
            let (qp, entry) = (remote.qp_entry(what.dst_qpn)?, remote.region_entry(what.rkey)?);
            let (qp_version, view) = qp.versioned()?;
            let (entry_version, region) = entry.versioned()?;
            let allowed = direct::admits(&view, own.nonce(), what, Access::REMOTE_WRITE);
            allowed.then_some((
                NonNull::from(qp),
                qp_version,
                NonNull::from(entry),
                entry_version,
                view.pd,
                region,
            ))
        })();
        hazard.hazard.target.store(1, Ordering::Release);
        let (qp, qp_version, entry, entry_version, pd, region) = found?;
        let (key, via) = (Key(what.rkey), Via::Qp(what.dst_qpn));
        let Region { iova, length, file, .. } = region;
        region.resolve(key, PdId(pd), via, what.addr, what.len as u64, Access::REMOTE_WRITE).ok()?;
        let view = Some(file.number).filter(|number| *number != 0).and_then(|number| peer.view(number))?;
        let unfenced = own.announces_unfenced_to(remote);
        let (peer, rkey, offset) = (peer.clone(), what.rkey, file.offset);
        Some(Self {
            peer,
            view,
            hazard,
            target,
            qp,
            qp_version,
            entry,
            entry_version,
            rkey,
            iova,
            length,
            offset,
            unfenced,
        })
    }

    /// Its mapping is to end.
    fn has_gone(&self) -> bool {
        !self.peer.has_view(&self.view)
    }

    /// Writes `len` bytes from `src` to `addr`, in the region's own terms; false where anything is not as it was, and nothing, or not
    /// all, has been written then.
    ///
    /// # Safety
    /// `src` must not be memory of Rust's that somebody else writes now.
    #[inline]
    pub unsafe fn write(&self, rkey: u32, addr: u64, src: *const u8, len: usize) -> bool {
        let at = addr.wrapping_sub(self.iova);
        if rkey != self.rkey
            || at > self.length
            || len as u64 > self.length - at
            || self.peer.state() != State::Up
        {
            return false;
        }
        let Some(to) = self.view.reach(self.offset.wrapping_add(at), len) else { return false };
        let hazard = self.hazard.hazard;
        hazard.target.store(self.target, Ordering::Relaxed);
        if self.unfenced {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        // SAFETY: `peer` keeps the publication mapped, in which both lie.
        let (qp, entry) = unsafe { (self.qp.as_ref(), self.entry.as_ref()) };
        let same = qp.version() == self.qp_version && entry.version() == self.entry_version;
        // Requests take effect in their order, for who looks at the memory too.
        fence(Ordering::Release);
        // SAFETY: the range lies in the view; the caller vouches for the source.
        let done = same && unsafe { guard::copy(to, src, len) }.is_ok();
        hazard.target.store(1, Ordering::Release);
        done
    }
}

/// The region that a queue pair writes to again and again, if there is one.
#[derive(Debug, Default)]
pub struct Nearby {
    near: Option<Box<Near>>,
    /// The key of the last WRITE that was found to go to a mapped region.
    last: u32,
}

impl Nearby {
    /// What is known of it.
    #[inline]
    pub fn get(&self) -> Option<&Near> {
        self.near.as_deref()
    }

    /// `what`, a WRITE, has gone the long way to a region that is mapped. One that is written to twice in a row is looked at closely,
    /// instead of another one.
    pub fn written(&mut self, own: &'static Own, peer: &Arc<Peer>, what: &OneSided) {
        let again = std::mem::replace(&mut self.last, what.rkey) == what.rkey;
        if again {
            // The place that it has may be the last one.
            self.near = None;
            self.near = Near::look(own, peer, what).map(Box::new);
        }
    }

    /// Forgets it, if its mapping is to end.
    pub fn sweep(&mut self) {
        if self.near.as_ref().is_some_and(|near| near.has_gone()) {
            self.near = None;
        }
    }

    /// Forgets it.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A place to announce accesses that is one queue pair's, filled in but for the target.
#[derive(Debug)]
struct Reserved {
    own: &'static Own,
    hazard: &'static Hazard,
}

impl Reserved {
    fn take(own: &'static Own, rkey: u32, qpn: Qpn) -> Option<Self> {
        own.reserve(rkey, qpn).map(|hazard| Self { own, hazard })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // A forked child has the value and not the memory.
        if self.own.is_ours() {
            self.hazard.target.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[path = "near_tests.rs"]
mod tests;
