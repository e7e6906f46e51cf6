//! Requests of a QP that faults may strike, or that a trace is written of: one at a time, apart from the fast path.
use super::faults::messages::Turn;
use super::pcap::{self, Via};
use super::{Path, destination, forward, local, multicast, send_datagram, wires};
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{QpType, Qpn, WcStatus};
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
            Continue(true) => send(qp, sq, at),
            Continue(false) => {}
            Break(()) => return,
        }
        if sq.queue.next <= at {
            return;
        }
    }
}

/// Carries request `at` out; what `wires` sends is written to the trace there.
fn send(qp: &Qp, sq: &mut Requester, at: u64) {
    if !pcap::is_on() {
        return forward::<true>(qp, sq);
    }
    if qp.kind == QpType::Ud {
        let ah = destination(qp, sq, at).ok().filter(|_| !is_packet(qp, sq, at));
        let written = ah.and_then(|ah| pcap::memory::datagram(qp, sq, at, &ah));
        let local = qp.node.owns_slot(sq.queue.wqe(at).remote_qpn.slot());
        forward::<true>(qp, sq);
        if let Some(written) = written.filter(|_| sq.queue.next > at) {
            written.write(qp.node, if local { Via::Local } else { Via::Shm });
        }
        return;
    }
    let is_home = qp.kind != QpType::XrcSend || qp.node.owns_slot(Qpn(sq.queue.wqe(at).srqn).slot());
    let to = match sq.path {
        Path::Local(to) if is_home => to,
        _ => return forward::<true>(qp, sq),
    };
    if sq.check(qp, at).is_ok() {
        pcap::memory::request(qp, sq, at, to, Via::Local);
    }
    let state = qp.state();
    forward::<true>(qp, sq);
    if sq.queue.tail > at && qp.state() == state && qp.is_reliable() {
        pcap::memory::answered(qp, sq, at, to, Via::Local);
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
    if let Turn::Waits { lost: true, timeout, .. } = turn {
        sq.was_lost(qp, at, timeout);
    }
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
        let _ = destination(qp, sq, at).and_then(|ah| send_datagram(qp, sq, at, &ah, |_| ()));
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
