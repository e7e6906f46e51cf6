//! Requests of a QP that faults may strike: one at a time, apart from the fast path.
use super::faults::messages::Turn;
use super::{Path, destination, forward, local, multicast, send_datagram, wires};
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{QpType, WcStatus};
use crate::sys::clock;
use std::ops::ControlFlow::{self, Break, Continue};

/// Sends what is ready. The caller holds the send half's lock.
#[cold]
pub fn pump(qp: &Qp, sq: &mut Requester) {
    if matches!(sq.path, Path::Udp(_)) {
        return forward::<false>(qp, sq);
    }
    let now = clock::now_ns();
    if let Some(faults) = &mut sq.faults {
        faults.note_posted(sq.queue.head, now);
    }
    while let Some(at) = sq.ready(qp) {
        match strike(qp, sq, at, now) {
            Continue(true) => forward::<true>(qp, sq),
            Continue(false) => {}
            Break(()) => return,
        }
        if sq.queue.next <= at {
            return;
        }
    }
}

/// Whether request `at` is carried out, or done with; breaks where nothing goes on.
fn strike(qp: &Qp, sq: &mut Requester, at: u64, now: u64) -> ControlFlow<(), bool> {
    let is_packet = is_packet(qp, sq, at);
    let ack_timeout = qp.is_reliable().then(|| sq.retry.timeout_ns().unwrap_or(0));
    let turn = match &mut sq.faults {
        None => return Continue(true),
        // On the wire it is struck as the packet that it is.
        Some(faults) if is_packet && !faults.kills(at) => return Continue(true),
        Some(faults) => faults.turn(at, now, ack_timeout),
    };
    match turn {
        Turn::Goes => Continue(true),
        Turn::Twice => {
            repeat(qp, sq, at);
            Continue(true)
        }
        Turn::Lost => {
            if let Err(status) = check(qp, sq, at) {
                sq.doom(qp, at, status);
                return Break(());
            }
            sq.begun(at);
            sq.complete_oldest_with(qp, WcStatus::Success);
            Continue(false)
        }
        Turn::Waits { timeout: true, .. } if !sq.use_retry() => {
            sq.doom(qp, at, WcStatus::RetryExcErr);
            Break(())
        }
        Turn::Waits { until, .. } => {
            sq.wait_until = until;
            qp.node.timers.arm(qp, until);
            Break(())
        }
        Turn::Kills => {
            sq.doom(qp, at, WcStatus::LocQpOpErr);
            Break(())
        }
    }
}

/// Request `at` is a datagram to another host.
fn is_packet(qp: &Qp, sq: &Requester, at: u64) -> bool {
    let wqe = sq.queue.wqe(at);
    let by_wire =
        |ah: &crate::soft::ah::Ah| !ah.address.same_host && !multicast::is_for_group(ah, wqe.remote_qpn);
    qp.kind == QpType::Ud && wqe.ah.as_deref().is_some_and(by_wire)
}

/// What sending the request would find wrong with it.
fn check(qp: &Qp, sq: &Requester, at: u64) -> Result<(), WcStatus> {
    if qp.kind == QpType::Ud {
        destination(qp, sq, at)?;
    }
    sq.check(qp, at)?;
    sq.gather_nothing(qp, at)
}

/// Carries a request of an unreliable QP an extra time. Whatever is wrong with it shows when it is carried out itself.
fn repeat(qp: &Qp, sq: &mut Requester, at: u64) {
    if qp.kind == QpType::Ud {
        let _ = destination(qp, sq, at).and_then(|ah| send_datagram(qp, sq, at, &ah));
        return;
    }
    if sq.check(qp, at).is_err() {
        return;
    }
    match sq.path.clone() {
        Path::Local(to) => local::repeat(qp, sq, at, to),
        Path::Shm(wire, to) => wires::repeat(qp, sq, at, &wire, to),
        Path::None | Path::Absent(_) | Path::Udp(_) => {}
    }
}
