//! A datagram to a multicast group: a copy to every QP of this process, one to every other process of this host that is in
//! it, and one to other hosts.
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::wires::Wire;
use super::{local, udp, wires};
use crate::soft::ah::Ah;
use crate::soft::mem::run::RunMut;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::stats::Event;
use crate::soft::types::{Qpn, WcStatus};
use crate::sys::clock;

/// How long members that take nothing hold the others up. A process that is alive takes something long before, also on a
/// busy machine; one that is stopped then misses what finds its ring full, until it has taken something.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How often it is looked whether such members still live.
const LOOK_NS: u64 = 20_000_000;

/// A request to a group that some members lack room for.
#[derive(Debug)]
pub struct Fanout {
    at: u64,
    since: u64,
    /// Who has not got it.
    lacking: Vec<Arc<Wire>>,
}

/// The request goes to a group, not to a QP.
#[inline]
pub fn is_for_group(ah: &Ah, to: Qpn) -> bool {
    to == Qpn::MULTICAST && ah.address.dgid.is_multicast()
}

/// Sends request `at` to all members; false: it goes on when there is room in a ring, or that has taken too long.
pub fn send(qp: &Qp, sq: &mut Requester, at: u64, ah: &Ah) -> Result<bool, WcStatus> {
    let mut fanout = match sq.fanout.take() {
        Some(begun) if begun.at == at => begun,
        _ => Box::new(begin(qp, sq, at, ah)?),
    };
    let now = clock::now_ns();
    let is_late = now.saturating_sub(fanout.since) >= PATIENCE_NS;
    let mut failed = None;
    fanout.lacking.retain(|wire| match wires::send_datagram(qp, sq, at, ah, wire, |_| ()) {
        Ok(true) => {
            wire.takes_nothing.store(false, Ordering::Relaxed);
            false
        }
        Ok(false) if is_late => {
            wire.takes_nothing.store(true, Ordering::Relaxed);
            false
        }
        Ok(false) => !wire.is_gone() && !wire.takes_nothing.load(Ordering::Relaxed),
        Err(status) => {
            failed = Some(status);
            false
        }
    });
    if let Some(status) = failed {
        return Err(status);
    }
    if fanout.lacking.is_empty() {
        return Ok(true);
    }
    sq.fanout = Some(fanout);
    qp.node.timers.arm(qp, now + LOOK_NS);
    Ok(false)
}

/// Gives the request to whom it can be given at once.
fn begin(qp: &Qp, sq: &mut Requester, at: u64, ah: &Ah) -> Result<Fanout, WcStatus> {
    let length = sq.queue.wqe(at).length;
    // The payload is gathered first: nobody must see a message that fails here.
    let mut bytes = [0u8; Qp::MAX_DATAGRAM as usize];
    let bytes = &mut bytes[..length as usize];
    sq.gather(qp, at, 0, RunMut::of(bytes))?;
    let group = ah.address.dgid;
    for peer in qp.node.groups.members(group) {
        if peer.num != qp.num || !qp.blocks_self.load(Ordering::Relaxed) {
            local::deliver_datagram(qp, sq, at, ah, &peer, bytes);
        }
    }
    udp::datagrams::send_to_group(qp, sq, at, ah)?;
    sq.stats.event(Event::McastXmit, 1);
    Ok(Fanout { at, since: clock::now_ns(), lacking: qp.node.wires.members(qp.node, group) })
}
