//! The short way of WRITE and READ: what a queue pair has found out about the region that it writes to, or reads from, again and
//! again, so that each further request costs a look whether anything has changed, and the copy.
use super::direct::{self, OneSided};
use super::layout::{Counts, Hazard, QpEntry};
use super::own::Own;
use super::peer::{Peer, State};
use super::views::View;
use crate::soft::mem::{MrEntry, PdId, Region, Via};
use crate::soft::stats;
use crate::soft::types::{Key, Qpn, WrOpcode};
use crate::sys::process_vm::{self, Copied, Iovec, Way};
use crate::sys::{cache, guard};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// A region, and the queue pair by which it is reached, for either way.
#[derive(Debug)]
pub struct Near {
    /// Keeps the entries mapped.
    peer: Arc<Peer>,
    place: Place,
    hazard: Reserved,
    target: u64,
    qp: NonNull<QpEntry>,
    qp_version: u32,
    entry: NonNull<MrEntry>,
    entry_version: u32,
    rkey: u32,
    iova: u64,
    length: u64,
    /// Announcing needs no fence: who waits for us makes every CPU pass one.
    unfenced: bool,
    counts: Option<&'static Counts>,
}

/// Where the bytes of a region are reached.
#[derive(Debug)]
enum Place {
    /// In a file that is mapped here: its first byte.
    Mapped(Arc<View>, NonNull<u8>),
    /// In the peer's address space, by the kernel: the peer's process, and the address of the first byte there.
    Private(i32, u64),
}

// SAFETY: the entries are atomics in a mapping that `peer` keeps; the first byte is an address in one that the view keeps.
unsafe impl Send for Near {}

impl Near {
    /// Looks closely at what `what` is for; none where it is not allowed, its file is still on its way here, or places to announce it ran out.
    pub fn look(own: &'static Own, peer: &Arc<Peer>, what: &OneSided) -> Option<Self> {
        let remote = peer.remote().filter(|_| own.wants_direct() && peer.state() == State::Up)?;
        let hazard = Reserved::take(own, what.rkey, what.dst_qpn)?;
        let (target, need) = (remote.nonce(), direct::right_for(what.way));
        hazard.hazard.target.store(target, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let found = (|| {
            let (qp, entry) = (remote.qp_entry(what.dst_qpn)?, remote.region_entry(what.rkey)?);
            let (qp_version, view) = qp.versioned()?;
            let (entry_version, region) = entry.versioned()?;
            let allowed = direct::admits(&view, own.nonce(), what, need);
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
        region.resolve(key, PdId(pd), via, what.addr, what.len as u64, need).ok()?;
        let place = Place::of(peer, &region)?;
        // A READ needs the fence for itself.
        let unfenced =
            what.way == Way::Write && matches!(place, Place::Mapped(..)) && own.announces_unfenced_to(remote);
        let Region { iova, length, .. } = region;
        let (peer, rkey, counts) = (peer.clone(), what.rkey, own.direct_counts(what.src_qpn));
        Some(Self {
            peer,
            place,
            hazard,
            target,
            qp,
            qp_version,
            entry,
            entry_version,
            rkey,
            iova,
            length,
            unfenced,
            counts,
        })
    }

    /// Its mapping is to end.
    fn has_gone(&self) -> bool {
        matches!(&self.place, Place::Mapped(view, _) if !self.peer.has_view(view))
    }

    /// What was found out is still so.
    #[inline(always)]
    fn is_current(&self) -> bool {
        // SAFETY: `peer` keeps the publication mapped, in which both lie.
        let (qp, entry) = unsafe { (self.qp.as_ref(), self.entry.as_ref()) };
        qp.version() == self.qp_version && entry.version() == self.entry_version
    }

    /// Of a WRITE: has the line at `addr` brought here, which takes as long as all that is to be done before the copy.
    #[inline(always)]
    pub fn fetch(&self, addr: u64) {
        if let Place::Mapped(_, first) = &self.place {
            cache::fetch_to_write(first.as_ptr().wrapping_add(addr.wrapping_sub(self.iova) as usize));
        }
    }

    /// Moves `len` bytes from `here` to `addr`, in the region's own terms, for a WRITE, or back for a READ, whichever this was looked at for; false where anything is not as it was, and nothing, or not
    /// all, has been moved then.
    ///
    /// # Safety
    /// The bytes at `here` must not be memory of Rust's that somebody else writes now, nor, of a READ, any of Rust's.
    #[inline(always)]
    pub unsafe fn carry_out<const WRITE: bool>(
        &self,
        rkey: u32,
        addr: u64,
        here: *mut u8,
        len: usize,
    ) -> bool {
        let at = addr.wrapping_sub(self.iova);
        if rkey != self.rkey
            || at > self.length
            || len as u64 > self.length - at
            || self.peer.state() != State::Up
        {
            return false;
        }
        let Place::Mapped(view, first) = &self.place else {
            // SAFETY: passed on to the caller.
            return unsafe { self.carry_out_privately::<WRITE>(at, here, len) };
        };
        if !view.may_be_touched() {
            return false;
        }
        let there = first.as_ptr().wrapping_add(at as usize);
        self.announce();
        // SAFETY: the range lies in the view; the caller vouches for what is here.
        let done = self.is_current() && unsafe { copy::<WRITE>(there, here, len) };
        self.end();
        done
    }

    /// Carries out the request from byte `at` of the region on, where the kernel has to copy.
    ///
    /// # Safety
    /// As for `carry_out`, and the range is checked.
    #[inline(always)]
    unsafe fn carry_out_privately<const WRITE: bool>(&self, at: u64, here: *mut u8, len: usize) -> bool {
        let Place::Private(pid, start) = self.place else { return false };
        let way = if WRITE { Way::Write } else { Way::Read };
        if !self.peer.may_copy(way) {
            return false;
        }
        let (local, start) = ([Iovec { iov_base: here.cast(), iov_len: len }], start.wrapping_add(at));
        self.announce();
        // SAFETY: the caller vouches for what is here; the kernel looks at both sides.
        let done =
            self.is_current() && unsafe { process_vm::copy(way, pid, &local, start, len) } == Copied::All;
        self.end();
        done
    }

    /// Says that something is under way; what was found out is to be looked at after this.
    #[inline(always)]
    fn announce(&self) {
        self.hazard.hazard.target.store(self.target, Ordering::Relaxed);
        if self.unfenced {
            compiler_fence(Ordering::SeqCst);
        } else {
            // Of a READ also: what was written before is there for all, before anything is read.
            fence(Ordering::SeqCst);
        }
    }

    /// It is over.
    #[inline(always)]
    fn end(&self) {
        self.hazard.hazard.target.store(1, Ordering::Release);
    }

    /// Counts a request that was carried out, where the peer reads it; `mtu` bytes make a packet.
    #[inline(always)]
    pub fn count<const WRITE: bool>(&self, length: u32, mtu: u32) {
        if let Some(counts) = self.counts {
            let opcode = if WRITE { WrOpcode::Write } else { WrOpcode::Read };
            stats::add_direct(counts, opcode, length, mtu);
        }
    }
}

/// Copies between what is `here` and what is `there`, in a view that may be touched.
///
/// # Safety
/// Of a WRITE the bytes there may be written, of a READ those here.
#[inline(always)]
unsafe fn copy<const WRITE: bool>(there: *mut u8, here: *mut u8, len: usize) -> bool {
    // SAFETY: the caller vouches for what is written; the view has told that a fault ends in the error.
    unsafe {
        if WRITE {
            // Requests take effect in their order, for who looks at the memory too.
            fence(Ordering::Release);
            guard::copy_handled(there, here, len).is_ok()
        } else {
            let done = guard::copy_handled(here, there, len).is_ok();
            fence(Ordering::Acquire);
            done
        }
    }
}

impl Place {
    /// Where `region` of `peer` is reached; none while its file is on its way.
    fn of(peer: &Peer, region: &Region) -> Option<Self> {
        let private = Self::Private(peer.cred().pid, region.start);
        if region.file.number == 0 {
            return Some(private);
        }
        let Some(view) = peer.view(region.file.number) else {
            return peer.never_sees(region.file.number).then_some(private);
        };
        // A file that has grown since is mapped in part.
        let first = view.whole(region.file.offset, region.length).and_then(NonNull::new);
        Some(first.map_or(private, |first| Self::Mapped(view, first)))
    }
}

/// The regions that a queue pair writes to and reads from again and again, if there are such.
#[derive(Debug, Default)]
pub struct Nearby([Usual; 2]);

/// The same, one way.
#[derive(Debug, Default)]
struct Usual {
    near: Option<Box<Near>>,
    /// The key of the last request that was carried out without the peer's help.
    last: u32,
    /// Requests that are not looked at closely, since the last look was in vain.
    rest: u8,
}

/// Looks cost as much as some requests.
const REST: u8 = 64;

impl Nearby {
    /// What is known of the one for this way.
    #[inline(always)]
    pub fn get(&self, way: Way) -> Option<&Near> {
        self.0[way as usize].near.as_deref()
    }

    /// `what` has gone the long way, straight to the peer's memory. A region that is named twice in a row is looked at closely,
    /// instead of another one.
    pub fn went(&mut self, own: &'static Own, peer: &Arc<Peer>, what: &OneSided) {
        let usual = &mut self.0[what.way as usize];
        if usual.rest > 0 {
            usual.rest -= 1;
            return;
        }
        let again = std::mem::replace(&mut usual.last, what.rkey) == what.rkey;
        let is_known = usual.near.as_ref().is_some_and(|near| near.rkey == what.rkey && near.is_current());
        if again && !is_known {
            // The place that it has may be the last one.
            usual.near = None;
            usual.near = Near::look(own, peer, what).map(Box::new);
            usual.rest = if usual.near.is_none() { REST } else { 0 };
        }
    }

    /// Forgets those whose mapping is to end.
    pub fn sweep(&mut self) {
        for usual in &mut self.0 {
            if usual.near.as_ref().is_some_and(|near| near.has_gone()) {
                usual.near = None;
            }
        }
    }

    /// Forgets them.
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
