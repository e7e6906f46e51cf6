//! Datagrams of UD queue pairs to other hosts and from them, those of groups among them.
use super::Received;
use super::flow::path_of;
use super::port::take::{count_lost, parse};
use super::port::with_outbox;
use crate::soft::ah::Ah;
use crate::soft::lid::Lids;
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::{Ending, Request};
use crate::soft::stats::Event;
use crate::soft::types::{Gid, Key, QpType, Qpn, SendFlags, WcStatus, WrOpcode};
use crate::soft::wire::{Bth, Deth, Opcode, Operation, Packet, Transport, icrc};

/// Sends UD request `at`, which goes to a group, to other hosts.
///
/// # Errors
/// How the request fails.
pub fn send_to_group(qp: &Qp, sq: &mut Requester, at: u64, ah: &Ah) -> Result<(), WcStatus> {
    let (src, dst) = (ah.address.sgid.ip(), ah.address.dgid.ip());
    // Nobody else is on loopback, and a packet has addresses of one family.
    if src.is_loopback() || src.is_ipv4() != dst.is_ipv4() {
        return Ok(());
    }
    send_datagram(qp, sq, at, ah, |_| ())
}

/// Sends UD request `at` to another host. A datagram that cannot go is lost. It is `done` before it leaves: an answer to it may be here
/// before sendmsg(2) returns, and another thread may take that.
///
/// # Errors
/// How the request fails.
pub fn send_datagram(
    qp: &Qp,
    sq: &mut Requester,
    at: u64,
    ah: &Ah,
    done: impl FnOnce(&mut Requester),
) -> Result<(), WcStatus> {
    let packet = datagram_packet(qp, sq, at);
    let length = sq.queue.wqe(at).length as usize;
    with_outbox(|out| {
        let bytes = out.push(&packet, length);
        sq.gather(qp, at, 0, RunMut::of(bytes))?;
        done(sq);
        let chance = sq.faults.as_mut().map(|faults| &mut faults.chance);
        qp.node.udp.send_to(qp.node, &path_of(qp.node, &ah.address), out, chance);
        Ok(())
    })
}

/// The headers of datagram `at`.
pub fn datagram_packet(qp: &Qp, sq: &Requester, at: u64) -> Packet {
    let wqe = sq.queue.wqe(at);
    let imm = matches!(wqe.opcode, WrOpcode::SendImm).then_some(wqe.imm);
    let operation = if imm.is_some() { Operation::SendOnlyImm } else { Operation::SendOnly };
    let bth = Bth {
        solicited: wqe.flags.contains(SendFlags::SOLICITED),
        ..Bth::new(Opcode::new(Transport::Ud, operation), wqe.remote_qpn, sq.psn.plus(at as u32))
    };
    let deth = Deth { qkey: sq.qkey_of(at), src_qpn: qp.num };
    Packet { deth: Some(deth), imm, ..Packet::new(bth) }
}

/// A packet to a group, or to the QPN that stands for one: a datagram to both goes to each member.
pub(super) fn take_for_group(node: &Node, received: &Received<'_>) {
    let group = Gid::from_ip(received.ip.dst);
    // What came from this host came through memory.
    if node.is_this_host(Gid::from_ip(received.ip.src)) {
        return;
    }
    if !group.is_multicast() {
        return count_lost(node, received, Event::Dropped);
    }
    if icrc::check(&received.ip, received.datagram) == icrc::Verdict::Bad {
        return count_lost(node, received, Event::BadIcrc);
    }
    let (packet, payload) = match parse(received) {
        Ok(parsed) => parsed,
        Err(why) => return count_lost(node, received, why),
    };
    let deth = packet.deth.filter(|_| packet.bth.dest_qpn == Qpn::MULTICAST);
    let members = node.groups.members(group);
    // The kernel gives us other processes' groups, too, where ours are more than a socket may join.
    let Some(deth) = deth.filter(|_| !members.is_empty()) else {
        return count_lost(node, received, Event::Dropped);
    };
    for qp in members {
        qp.rq.lock().stats.event(Event::McastRcv, 1);
        take_datagram(&qp, received, &packet, deth, payload);
    }
}

/// A datagram for a UD QP; one that it does not want leaves no trace.
pub(super) fn take_datagram(qp: &Qp, received: &Received<'_>, packet: &Packet, deth: Deth, payload: &[u8]) {
    let request = Request {
        op: if packet.imm.is_some() { WrOpcode::SendImm } else { WrOpcode::Send },
        total: Some(payload.len() as u32),
        remote_addr: 0,
        rkey: Key(0),
        compare_add: 0,
        swap: 0,
        srqn: 0,
        src_qpn: Qpn(deth.src_qpn.0),
    };
    let mut rq = qp.rq.lock();
    if qp.kind != QpType::Ud || !rq.listens(qp) || payload.len() > Qp::MAX_DATAGRAM as usize {
        return rq.drop_datagram(&request, Event::Dropped);
    }
    if received.is_marked() {
        rq.stats.event(Event::EcnMarked, 1);
    }
    let grh = received.ip.grh(received.datagram.len(), received.traffic_class, received.hop_limit);
    if rq.begin_datagram(qp, request, deth.qkey, &grh) && rq.place(qp, Run::of(payload)).is_ok() {
        let ending = Ending {
            imm: packet.imm,
            invalidate: None,
            solicited: packet.bth.solicited,
            sl: received.traffic_class >> 5,
            no_grh: false,
            slid: Lids::given().of(Gid::from_ip(received.ip.src)).unwrap_or(0),
        };
        // Nobody hears of a datagram that is lost here.
        let _ = rq.finish(qp, ending);
    }
}
