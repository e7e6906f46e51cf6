//! A datagram to a multicast group: a copy to every QP of this process, and one to every other process that is in it.
use super::{local, wires};
use crate::soft::ah::Ah;
use crate::soft::mem::run::RunMut;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{Qpn, WcStatus};
use crate::sys::clock;

/// How long a member that takes nothing holds the others up; then it misses the message.
const PATIENCE_NS: u64 = 20_000_000;

/// The request goes to a group, not to a QP.
#[inline]
pub fn is_for_group(ah: &Ah, to: Qpn) -> bool {
    to == Qpn::MULTICAST && ah.address.dgid.is_multicast()
}

/// Sends request `at` to all members; false: it goes on when there is room in a ring, or that has taken too long.
pub fn send(qp: &Qp, sq: &mut Requester, at: u64, ah: &Ah) -> Result<bool, WcStatus> {
    let length = sq.queue.wqe(at).length;
    // The payload is gathered first: nobody must see a message that fails here.
    let mut bytes = [0u8; Qp::MAX_DATAGRAM as usize];
    let bytes = &mut bytes[..length as usize];
    sq.gather(qp, at, 0, RunMut::of(bytes))?;
    let group = ah.address.dgid;
    let mut processes = qp.node.wires.members(qp.node, group);
    if processes.iter().any(|wire| !wires::has_room_for_datagram(qp, wire, length)) {
        let now = clock::now_ns();
        let since = sq.stalled.filter(|(stalled, _)| *stalled == at).map_or(now, |(_, since)| since);
        if now - since < PATIENCE_NS {
            sq.stalled = Some((at, since));
            qp.node.timers.arm(qp, since + PATIENCE_NS);
            return Ok(false);
        }
        processes.retain(|wire| wires::has_room_for_datagram(qp, wire, length));
    }
    sq.stalled = None;
    for peer in qp.node.groups.members(group) {
        if peer.num != qp.num || !qp.blocks_self.load(std::sync::atomic::Ordering::Relaxed) {
            local::deliver_datagram(qp, sq, at, ah, &peer, bytes);
        }
    }
    for wire in &processes {
        // Another thread may have taken the room: that member misses the message.
        wires::send_datagram(qp, sq, at, ah, wire)?;
    }
    Ok(true)
}
