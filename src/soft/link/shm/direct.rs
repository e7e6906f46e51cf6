//! RDMA WRITE and READ straight into another process of the same user, and waiting until others are done with ours.
use super::layout::{QpView, What};
use super::own::Own;
use super::peer::{Peer, State};
use crate::soft::mem::{PdId, Via};
use crate::soft::types::{Access, Key, QpState, QpType, Qpn};
use crate::sys::process_vm::{self, Copied, Iovec, Way};
use crate::sys::{clock, errno::Errno};

/// The most local pieces that one access may have (IOV_MAX).
pub const MAX_PIECES: usize = 1024;

/// How long the owner of a region or queue pair waits for direct accesses of others.
pub const WAIT_NS: u64 = 1_000_000_000;

/// How a direct access ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direct {
    /// All bytes are where they belong.
    Done,
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
    if !peer.may_copy(what.way) {
        return Direct::UseRing;
    }
    let Some(_announced) = own.announce(remote.nonce(), what.rkey, what.dst_qpn) else {
        return Direct::UseRing;
    };
    let need = match what.way {
        Way::Write => Access::REMOTE_WRITE,
        Way::Read => Access::REMOTE_READ,
    };
    let qp = remote.qp(what.dst_qpn).filter(|qp| admits(qp, own.nonce(), what, need));
    let start = qp.and_then(|qp| {
        let region = remote.region(what.rkey)?;
        let via = Via::Qp(what.dst_qpn);
        region.resolve(Key(what.rkey), PdId(qp.pd), via, what.addr, what.len as u64, need).ok()
    });
    let Some(start) = start else { return Direct::UseRing };
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

fn admits(qp: &QpView, nonce: u64, what: &OneSided, need: Access) -> bool {
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
pub fn in_flight<'a>(own: &Own, peers: impl IntoIterator<Item = &'a Peer>, what: What) -> bool {
    peers.into_iter().any(|peer| accesses(own, peer, what))
}

/// Waits until none of `peers` accesses `what` of ours directly. To be called after the region's key was made invalid, or
/// the queue pair withdrawn, so that no new access begins. EBUSY after `timeout_ns`; the object must then stay.
pub fn wait<'a>(
    own: &Own,
    peers: impl IntoIterator<Item = &'a Peer>,
    what: What,
    timeout_ns: u64,
) -> Result<(), Errno> {
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

/// What a process that was killed left behind does not count.
fn accesses(own: &Own, peer: &Peer, what: What) -> bool {
    peer.remote().is_some_and(|r| r.accesses(own.nonce(), what)) && !peer.has_exited()
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
