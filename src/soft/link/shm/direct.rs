//! RDMA WRITE and READ straight into another process of the same user, and waiting until others are done with ours.
use super::layout::{self, QpView, What};
use super::own::Own;
use super::peer::{Peer, State};
use super::remote::Remote;
use crate::soft::mem::{PdId, Via};
use crate::soft::types::{Access, Key, QpState, QpType, Qpn};
use crate::sys::process_vm::{self, Copied, Iovec, Way};
use crate::sys::{barrier, clock, errno::Errno, guard};
use std::sync::atomic::{Ordering, fence};

/// The most local pieces that one access may have (IOV_MAX).
pub const MAX_PIECES: usize = 1024;

/// How long the owner of a region or queue pair waits for direct accesses of others.
pub const WAIT_NS: u64 = 1_000_000_000;

/// How a direct access ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direct {
    /// All bytes are where they belong.
    Done,
    /// The same, through a view of the peer's file.
    Seen,
    /// Not possible, or not allowed: send the request by the ring, so that the target decides. Part of a WRITE may have
    /// been carried out; doing it again is harmless.
    UseRing,
}

/// One RDMA WRITE or READ.
#[derive(Clone, Copy, Debug)]
pub struct OneSided {
    /// Which way.
    pub way: Way,
    /// The queue pair that asks.
    pub src_qpn: Qpn,
    /// The queue pair that it is connected to.
    pub dst_qpn: Qpn,
    /// Remote key and address.
    pub rkey: u32,
    /// Remote address, in the region's own terms.
    pub addr: u64,
    /// Bytes; the sum of the local pieces.
    pub len: usize,
}

/// Carries out a WRITE or READ without the target's help, if the target's publication allows it. To be used only while
/// the queue pair has nothing unacknowledged in the ring. Never waits.
///
/// # Safety
/// The local pieces lie in memory that is registered with the access the way needs, and stays so during the call.
pub unsafe fn access(own: &Own, peer: &Peer, what: &OneSided, local: &[Iovec]) -> Direct {
    let possible = what.len != 0 && local.len() <= MAX_PIECES && peer.state() == State::Up;
    let Some(remote) = peer.remote().filter(|r| possible && r.is_published()) else { return Direct::UseRing };
    if !own.wants_direct() {
        return Direct::UseRing;
    }
    let Some(_announced) = own.announce(remote.nonce(), what.rkey, what.dst_qpn) else {
        return Direct::UseRing;
    };
    let need = right_for(what.way);
    let qp = remote.qp(what.dst_qpn).filter(|qp| admits(qp, own.nonce(), what, need));
    let place = qp.and_then(|qp| {
        let region = remote.region(what.rkey)?;
        let via = Via::Qp(what.dst_qpn);
        let start =
            region.resolve(Key(what.rkey), PdId(qp.pd), via, what.addr, what.len as u64, need).ok()?;
        Some((region, start))
    });
    let Some((region, start)) = place else { return Direct::UseRing };
    if region.file.number != 0
        && let Some(view) = peer.view(region.file.number)
        && let offset = region.file.offset.wrapping_add(start.wrapping_sub(region.start))
        && let Some(at) = view.reach(offset, what.len)
    {
        // SAFETY: the local pieces are the caller's promise; the others lie in the view, which is held.
        if unsafe { copy(what.way, local, at) }.is_ok() {
            return Direct::Seen;
        }
    }
    if !peer.may_copy(what.way) {
        return Direct::UseRing;
    }
    // SAFETY: the local pieces are the caller's promise; the remote range is registered and stays so while announced.
    match unsafe { process_vm::copy(what.way, peer.cred().pid, local, start, what.len) } {
        Copied::All => Direct::Done,
        Copied::Fault => Direct::UseRing,
        Copied::Refused(_) => {
            peer.refuse_copy(what.way);
            Direct::UseRing
        }
    }
}

/// Copies between local pieces and what lies from `at` on. A fault on either side may leave it half done.
///
/// # Safety
/// For READ the local pieces may be written, for WRITE as many bytes from `at` on.
unsafe fn copy(way: Way, local: &[Iovec], mut at: *mut u8) -> Result<(), guard::Fault> {
    // Requests take effect in their order, for who looks at the memory too: this WRITE after those before it ...
    fence(Ordering::Release);
    for piece in local {
        let here = piece.iov_base.cast::<u8>();
        let (to, from) = match way {
            Way::Write => (at, here),
            Way::Read => (here, at),
        };
        // SAFETY: the caller's promise; memory that is not there ends in the error.
        unsafe { guard::copy(to, from, piece.iov_len) }?;
        at = at.wrapping_add(piece.iov_len);
    }
    // ... and whatever follows after this READ.
    fence(Ordering::Acquire);
    Ok(())
}

/// What a region and a queue pair must allow.
pub(super) fn right_for(way: Way) -> Access {
    match way {
        Way::Write => Access::REMOTE_WRITE,
        Way::Read => Access::REMOTE_READ,
    }
}

/// Whether the queue pair lets `what`, of a queue pair of the process `nonce`, be done.
pub(super) fn admits(qp: &QpView, nonce: u64, what: &OneSided, need: Access) -> bool {
    let kind = match what.way {
        Way::Write => matches!(qp.kind, Some(QpType::Rc | QpType::Uc)),
        Way::Read => qp.kind == Some(QpType::Rc),
    };
    kind && matches!(qp.state, Some(QpState::Rtr | QpState::Rts | QpState::Sqd))
        && qp.peer_qpn == what.src_qpn.0
        && qp.peer_nonce == nonce
        && qp.access.contains(need)
}

/// Whether any of `peers` is accessing `what` of ours directly just now.
pub fn in_flight<'a>(own: &Own, peers: impl IntoIterator<Item = &'a Peer> + Clone, what: What) -> bool {
    pass_barrier(peers.clone());
    peers.into_iter().any(|peer| accesses(own, peer, what))
}

/// Waits until none of `peers` accesses `what` of ours directly. To be called after the region's key was made invalid, or
/// the queue pair withdrawn, so that no new access begins. EBUSY after `timeout_ns`; the object must then stay.
pub fn wait<'a>(
    own: &Own,
    peers: impl IntoIterator<Item = &'a Peer> + Clone,
    what: What,
    timeout_ns: u64,
) -> Result<(), Errno> {
    pass_barrier(peers.clone());
    let mut deadline = None;
    for peer in peers {
        while accesses(own, peer, what) {
            let now = clock::now_ns();
            if now > *deadline.get_or_insert(now + timeout_ns) {
                return Err(Errno::EBUSY);
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Peers that announce without a fence have done so before this, or see what was withdrawn before.
fn pass_barrier<'a>(peers: impl IntoIterator<Item = &'a Peer>) {
    fence(Ordering::SeqCst);
    let is_unfenced = |r: &Remote| r.barriers() & layout::UNFENCED != 0;
    if peers.into_iter().any(|peer| peer.remote().is_some_and(is_unfenced)) {
        barrier::everybody();
    }
}

/// What a process that was killed left behind does not count.
fn accesses(own: &Own, peer: &Peer, what: What) -> bool {
    peer.remote().is_some_and(|r| r.accesses(own.nonce(), what)) && !peer.has_exited()
}

#[cfg(test)]
#[path = "direct_tests.rs"]
pub(super) mod tests;
