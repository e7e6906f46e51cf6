//! How messages travel: local (same process), shm (same host), udp (RoCEv2).
//!
//! A link takes requests that a QP's `Requester` has `ready`, carries them, and drives the other QP's `Responder`.
//! `watched` stands before them where `faults` are asked for, or `pcap` writes a trace.
pub mod faults;
pub mod local;
pub mod multicast;
pub mod pcap;
pub mod shm;
pub mod udp;
mod watched;
pub mod wires;

use std::sync::Arc;

use super::ah::Ah;
use super::qp::Qp;
use super::qp::requester::Requester;
use super::types::{QpType, Qpn, WcStatus};

/// How a connected QP reaches its peer.
#[derive(Clone, Debug)]
pub enum Path {
    /// Not connected.
    None,
    /// The peer is a QP of this process.
    Local(Qpn),
    /// The peer is a QP of another process of this host.
    Shm(Arc<wires::Wire>, Qpn),
    /// The address is this host's, but no process has claimed the QPN; it may still come.
    Absent(Qpn),
    /// The peer is on another host.
    Udp(Arc<udp::flow::Flow>),
}

impl Path {
    /// Its name for people.
    pub fn describe(&self) -> &'static str {
        match self {
            Path::None => "none",
            Path::Local(_) => "memory of one process",
            Path::Shm(..) => "shared memory between two processes of this host",
            Path::Absent(_) => "this host, where no process has the QPN yet",
            Path::Udp(_) => "RoCEv2 on UDP 4791",
        }
    }
    /// Messages of QP `from` may come this way.
    pub fn leads_to(&self, from: Qpn) -> bool {
        matches!(self, Path::Local(to) | Path::Shm(_, to) | Path::Absent(to) if *to == from)
    }
}

/// Sends what is ready. The caller holds the send half's lock, and afterwards calls `Node::settle` without it.
#[inline]
pub fn pump(qp: &Qp, sq: &mut Requester) {
    if sq.is_watched() { watched::pump(qp, sq) } else { forward::<false>(qp, sq) }
}

/// Sends what is ready, or of that the first request (`ONE`).
#[inline]
fn forward<const ONE: bool>(qp: &Qp, sq: &mut Requester) {
    if qp.kind == QpType::Ud {
        return pump_datagrams::<ONE>(qp, sq);
    }
    // Taken out meanwhile: nothing below changes it but what `absent` finds.
    match std::mem::replace(&mut sq.path, Path::None) {
        Path::Shm(wire, to) => {
            let wire = wire.better(sq).unwrap_or(wire);
            wires::reply_follows(qp, &wire);
            wires::pump::<ONE>(qp, sq, &wire, to);
            sq.path = Path::Shm(wire, to);
        }
        Path::Local(to) => {
            local::pump::<ONE>(qp, sq, to);
            sq.path = Path::Local(to);
        }
        Path::Udp(flow) => {
            flow.pump(qp, sq);
            sq.path = Path::Udp(flow);
        }
        Path::Absent(to) => {
            sq.path = Path::Absent(to);
            absent(qp, sq);
        }
        Path::None => {}
    }
}

/// Finds the way to QP `to` of this host.
pub fn path_on_host(node: &'static super::node::Node, to: Qpn) -> Path {
    if node.owns_slot(to.slot()) {
        return Path::Local(to);
    }
    match node.wires.to_slot(node, to.slot()) {
        Some(wire) => Path::Shm(wire, to),
        None => Path::Absent(to),
    }
}

fn pump_datagrams<const ONE: bool>(qp: &Qp, sq: &mut Requester) {
    while let Some(at) = sq.ready(qp) {
        let done = |sq: &mut Requester| {
            sq.begun(at);
            sq.complete_oldest_with(qp, WcStatus::Success);
        };
        match destination(qp, sq, at).and_then(|ah| send_datagram(qp, sq, at, &ah, done)) {
            Ok(true) => {}
            Ok(false) => return,
            Err(status) => return sq.doom(qp, at, status),
        }
        if ONE {
            return;
        }
    }
}

/// Where datagram `at` goes, if it is in order.
#[inline]
fn destination(qp: &Qp, sq: &Requester, at: u64) -> Result<Arc<Ah>, WcStatus> {
    let wqe = sq.queue.wqe(at);
    let ah = wqe.ah.clone().ok_or(WcStatus::LocQpOpErr)?;
    if ah.pd != qp.pd {
        return Err(WcStatus::LocProtErr);
    }
    if wqe.length > ah.address.mtu.bytes() {
        return Err(WcStatus::LocLenErr);
    }
    Ok(ah)
}

/// Sends datagram `at`, and lets `done` know; false: it goes on later.
#[inline]
fn send_datagram(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    ah: &Ah,
    done: impl FnOnce(&mut Requester),
) -> Result<bool, WcStatus> {
    let to = sq.queue.wqe(at).remote_qpn;
    let is_for_group = multicast::is_for_group(ah, to);
    if !is_for_group && !ah.address.same_host {
        return udp::datagrams::send_datagram(qp, sq, at, ah, done).map(|()| true);
    }
    let is_sent = if is_for_group {
        multicast::send(qp, sq, at, ah)?
    } else {
        match path_on_host(qp.node, to) {
            Path::Local(_) => local::send_datagram(qp, sq, at, ah)?,
            Path::Shm(wire, _) => return wires::send_datagram(qp, sq, at, ah, &wire, done),
            // Nobody is there: a datagram to nowhere is sent all the same.
            _ => sq.gather_nothing(qp, at).map(|()| true)?,
        }
    };
    if is_sent {
        done(sq);
    }
    Ok(is_sent)
}

/// The peer's process is not there: look again, then behave as a wire without an answer.
fn absent(qp: &Qp, sq: &mut Requester) {
    let Path::Absent(to) = sq.path else { return };
    let Some(at) = sq.ready(qp) else { return };
    sq.path = path_on_host(qp.node, to);
    if !matches!(sq.path, Path::Absent(_)) {
        return pump(qp, sq);
    }
    if !qp.is_reliable() {
        while let Some(at) = sq.ready(qp) {
            if let Err(status) = sq.check(qp, at).and_then(|()| sq.gather_nothing(qp, at)) {
                return sq.doom(qp, at, status);
            }
            sq.begun(at);
            sq.complete_oldest_with(qp, WcStatus::Success);
        }
        return;
    }
    if sq.back_off(qp, at, crate::sys::clock::now_ns()) {
        qp.node.timers.arm(qp, sq.wait_until);
    }
}

/// A deadline of `qp` has come. Called with no lock held.
pub fn on_timer(qp: &Qp, now: u64) {
    let mut sq = qp.sq.lock();
    if let Path::Udp(flow) = &sq.path {
        let flow = flow.clone();
        drop(sq);
        return flow.on_timer(qp, now);
    }
    if sq.fanout.is_some() {
        return pump(qp, &mut sq);
    }
    if sq.wait_until != 0 && sq.wait_until <= now {
        sq.wait_until = 0;
        pump(qp, &mut sq);
    }
}
