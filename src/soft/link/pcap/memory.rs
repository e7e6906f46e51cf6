//! Messages on the memory paths as the packets that they stand for: cut at the path MTU, numbered packet by packet.
use super::{Route, Via, is_on};
use crate::soft::ah::{Address, Ah};
use crate::soft::link::shm::ring::{Ext, Header};
use crate::soft::link::udp::{datagrams::datagram_packet, op_of};
use crate::soft::link::wires::message::{
    ACK, ATOMIC_ANSWER, DATAGRAM, FAILED, FIRST, FOREIGN, NAK, READ_DATA, Refusal, SOLICITED,
};
use crate::soft::mem::run::{Run, RunMut};
use crate::soft::node::Node;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::GRH_BYTES;
use crate::soft::qp::{Nak, Qp};
use crate::soft::transport::responder::answer;
use crate::soft::transport::segment::{self, packets, payload, pushes};
use crate::soft::transport::{Op, Outbox, Settings};
use crate::soft::types::{Key, Mtu, Psn, QpType, Qpn, WrOpcode};
use crate::soft::wire::ip::addresses;
use crate::soft::wire::{
    Bth, Deth, IpUdp, NakCode, Opcode, Operation, Packet, Syndrome, Transport, UDP_PORT,
};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Packets that are written at a time.
const CHUNK: u32 = 64;
/// Messages of a connection whose numbers are remembered, and connections.
const REMEMBERED: usize = 1024;
const CONNECTIONS: usize = 1024;

/// The way of a connected QP's messages, and its path MTU.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    route: Route,
    mtu: u32,
}

impl Connection {
    /// That of a QP which moves to RTR.
    pub fn new(address: &Address, mtu: Mtu) -> Self {
        Self { route: route(address), mtu: mtu.bytes() }
    }
}

fn route(address: &Address) -> Route {
    let (mut src, mut dst) = (address.sgid.ip(), address.dgid.ip());
    // All addresses of a host lead to it, also from one of the other family.
    if let (IpAddr::V4(v4), IpAddr::V6(_)) = (src, dst) {
        src = v4.to_ipv6_mapped().into();
    }
    if let (IpAddr::V6(_), IpAddr::V4(v4)) = (src, dst) {
        dst = v4.to_ipv6_mapped().into();
    }
    let hop_limit = if address.hop_limit == 0 { 64 } else { address.hop_limit };
    Route { ip: IpUdp::new(src, dst, UDP_PORT), traffic_class: address.traffic_class, hop_limit }
}

/// The numbers of connections' packets, by requester and responder.
#[derive(Debug, Default)]
pub(super) struct Flows(HashMap<(Qpn, Qpn), Numbers>);

#[derive(Debug)]
struct Numbers {
    next: Psn,
    messages: VecDeque<Message>,
    /// Messages so far.
    count: u32,
    /// Bytes of the message under way that have come.
    arrived: u32,
}

/// A message that the link numbers `seq`, and the packets that stand for it.
#[derive(Clone, Copy, Debug)]
struct Message {
    seq: Psn,
    first: Psn,
    packets: u32,
    number: u32,
}

impl Numbers {
    /// The packets of message `seq`, one that was there before has those that it had.
    fn of(&mut self, seq: Psn, packets: u32) -> Message {
        if let Some(known) = self.messages.iter().rev().find(|m| m.seq == seq && m.packets == packets) {
            return *known;
        }
        self.count = (self.count + 1) & 0xff_ffff;
        let message = Message { seq, first: self.next, packets, number: self.count };
        self.next = self.next.plus(packets);
        if self.messages.len() == REMEMBERED {
            self.messages.pop_front();
        }
        self.messages.push_back(message);
        message
    }
}

impl Flows {
    fn numbers(&mut self, from: Qpn, to: Qpn, seq: Psn) -> &mut Numbers {
        // Whoever has so many begins anew; a peer can name any.
        if self.0.len() >= CONNECTIONS && !self.0.contains_key(&(from, to)) {
            self.0.clear();
        }
        let new = || Numbers { next: seq, messages: VecDeque::new(), count: 0, arrived: 0 };
        self.0.entry((from, to)).or_insert_with(new)
    }

    fn request(&mut self, from: Qpn, to: Qpn, seq: Psn, packets: u32) -> Message {
        self.numbers(from, to, seq).of(seq, packets)
    }

    /// The message that an answer is about; one that was before the trace is taken for a packet.
    fn answered(&mut self, from: Qpn, to: Qpn, seq: Psn) -> Message {
        let numbers = self.numbers(from, to, seq);
        let known = numbers.messages.iter().rev().find(|m| m.seq == seq).copied();
        known.unwrap_or(Message { seq, first: seq, packets: 1, number: numbers.count })
    }
}

fn transport(kind: QpType) -> Transport {
    match kind {
        QpType::Rc => Transport::Rc,
        QpType::Uc => Transport::Uc,
        QpType::Ud => Transport::Ud,
        QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
    }
}

/// What messages of one direction of a QP are written with.
struct Pen<'a> {
    node: &'a Node,
    via: Via,
    inbound: bool,
    route: Route,
    out: Outbox,
}

impl Pen<'_> {
    /// For messages of `qp` that go out, or come in.
    fn of(qp: &Qp, via: Via, inbound: bool) -> Option<(Pen<'static>, u32)> {
        let connection = (*qp.connection.lock())?;
        let route = if inbound { connection.route.reversed() } else { connection.route };
        Some((Pen { node: qp.node, via, inbound, route, out: Outbox::new() }, connection.mtu))
    }

    fn put(&mut self, packet: &Packet, payload: &[u8]) {
        self.out.push(packet, payload.len()).copy_from_slice(payload);
    }

    fn write(mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        self.out.seal(&self.route.ip);
        let packets = self.out.iter().map(|datagram| (0, datagram));
        self.node.trace.write(self.via, self.inbound, &self.route, packets);
        self.out.clear();
    }

    /// Packets of a SEND or WRITE from byte `from` on, as many as `bytes` are; what they hold is asked of `gather`.
    fn push<E>(
        &mut self,
        op: &Op,
        to: &Settings,
        (from, bytes): (u32, u32),
        mut gather: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let count = packets(op.length, to.mtu);
        let (begin, n) = (from / to.mtu, packets(bytes, to.mtu));
        for i in begin..(begin + n).min(count) {
            let mut packet = segment::push_packet(op, to, to.psn.plus(i), i, count);
            packet.bth.ack_req = i + 1 == count && to.transport != Transport::Uc;
            let room = self.out.push(&packet, payload(op.length, to.mtu, i) as usize);
            gather(i * to.mtu, room)?;
            if i % CHUNK == CHUNK - 1 {
                self.flush();
            }
        }
        Ok(())
    }

    /// The packet of a request that is answered with data.
    fn pull(&mut self, op: &Op, to: &Settings) {
        match op.opcode {
            WrOpcode::Read => self.put(&segment::read_packet(op, to, to.psn, 0, op.length), &[]),
            WrOpcode::Flush => self.put(&segment::flush_packet(op, to, to.psn), &[]),
            WrOpcode::AtomicWrite => {
                self.put(&segment::atomic_write_packet(op, to, to.psn), &op.compare_add.to_ne_bytes());
            }
            _ => self.put(&segment::atomic_packet(op, to, to.psn), &[]),
        }
    }

    /// READ responses from byte `from` of `total` on.
    fn respond<E>(
        &mut self,
        to: &Settings,
        message: &Message,
        (from, bytes, total): (u32, u32, u32),
        mut gather: impl FnMut(u32, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let count = packets(total, to.mtu);
        let begin = from / to.mtu;
        for i in begin..(begin + packets(bytes, to.mtu)).min(count) {
            let operation = match (i == 0, i + 1 == count) {
                (true, true) => Operation::ReadResponseOnly,
                (true, false) => Operation::ReadResponseFirst,
                (false, false) => Operation::ReadResponseMiddle,
                (false, true) => Operation::ReadResponseLast,
            };
            let packet = answer(to, operation, message.first.plus(i), Syndrome::Ack, message.number);
            let room = self.out.push(&packet, payload(total, to.mtu, i) as usize);
            gather(i * to.mtu, room)?;
            if i % CHUNK == CHUNK - 1 {
                self.flush();
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, to: &Settings, psn: Psn, syndrome: Syndrome, msn: u32) {
        self.put(&answer(to, Operation::Acknowledge, psn, syndrome, msn), &[]);
    }

    fn atomic(&mut self, to: &Settings, message: &Message, original: u64) {
        let packet = answer(to, Operation::AtomicAcknowledge, message.first, Syndrome::Ack, message.number);
        self.put(&Packet { atomic_ack: Some(original), ..packet }, &[]);
    }
}

/// Packet numbers that a request takes.
fn taken(op: &Op, mtu: u32) -> u32 {
    if pushes(op.opcode) || op.opcode == WrOpcode::Read { packets(op.length, mtu) } else { 1 }
}

/// Request `at` of a connected QP has been sent to QP `to`. Called before it completes.
#[cold]
pub fn request(qp: &Qp, sq: &Requester, at: u64, to: Qpn, via: Via) {
    let (Ok(op), Some((mut pen, mtu))) = (op_of(qp, sq, at), Pen::of(qp, via, false)) else { return };
    let message = qp.node.trace.flows.lock().request(qp.num, to, sq.psn_of(at), taken(&op, mtu));
    let settings = Settings { transport: transport(qp.kind), remote_qpn: to, psn: message.first, mtu };
    if pushes(op.opcode) {
        let gather = |offset, bytes: &mut [u8]| sq.gather(qp, at, offset, RunMut::of(bytes));
        if pen.push(&op, &settings, (0, op.length), gather).is_err() {
            return;
        }
    } else {
        pen.pull(&op, &settings);
    }
    pen.write();
}

/// Request `at`, sent to QP `to`, is done without an answer that could be seen: that of the packets which it stands for.
#[cold]
pub fn answered(qp: &Qp, sq: &Requester, at: u64, to: Qpn, via: Via) {
    let (Ok(op), Some((mut pen, mtu))) = (op_of(qp, sq, at), Pen::of(qp, via, true)) else { return };
    let message = qp.node.trace.flows.lock().answered(qp.num, to, sq.queue.wqe(at).psn);
    let settings = Settings { transport: transport(qp.kind), remote_qpn: qp.num, psn: message.first, mtu };
    let gather = |offset, bytes: &mut [u8]| sq.gather(qp, at, offset, RunMut::of(bytes));
    match op.opcode {
        WrOpcode::Read => {
            if pen.respond(&settings, &message, (0, op.length, op.length), gather).is_err() {
                return;
            }
        }
        WrOpcode::CmpSwap | WrOpcode::FetchAdd => {
            let mut original = [0; 8];
            if gather(0, &mut original).is_err() {
                return;
            }
            pen.atomic(&settings, &message, u64::from_ne_bytes(original));
        }
        WrOpcode::Flush | WrOpcode::AtomicWrite => {
            let packet =
                answer(&settings, Operation::ReadResponseOnly, message.first, Syndrome::Ack, message.number);
            pen.put(&packet, &[]);
        }
        _ => {
            let last = message.first.plus(message.packets - 1);
            pen.acknowledge(&settings, last, Syndrome::Ack, message.number);
        }
    }
    pen.write();
}

/// QP `to` of this process has refused request `at`; `timer` is its code of the time to wait.
#[cold]
pub fn refused(qp: &Qp, sq: &Requester, at: u64, to: Qpn, (nak, timer): (Nak, u8)) {
    let (Some(syndrome), Some((mut pen, mtu))) = (syndrome(nak, timer), Pen::of(qp, Via::Local, true)) else {
        return;
    };
    let message = qp.node.trace.flows.lock().answered(qp.num, to, sq.psn_of(at));
    let settings = Settings { transport: transport(qp.kind), remote_qpn: qp.num, psn: message.first, mtu };
    pen.acknowledge(&settings, message.first, syndrome, message.number.wrapping_sub(1) & 0xff_ffff);
    pen.write();
}

fn syndrome(nak: Nak, timer: u8) -> Option<Syndrome> {
    Some(match nak {
        Nak::Rnr => Syndrome::Rnr(timer),
        Nak::InvalidRequest => Syndrome::Nak(NakCode::InvalidRequest),
        Nak::RemoteAccess => Syndrome::Nak(NakCode::RemoteAccess),
        Nak::RemoteOp => Syndrome::Nak(NakCode::RemoteOperational),
        Nak::Silent => return None,
    })
}

/// Datagram `at` as it will go; `None` where its bytes cannot be had.
#[cold]
pub fn datagram(qp: &Qp, sq: &Requester, at: u64, ah: &Ah) -> Option<Written> {
    let mut out = Outbox::new();
    let room = out.push(&datagram_packet(qp, sq, at), sq.queue.wqe(at).length as usize);
    sq.gather(qp, at, 0, RunMut::of(room)).ok()?;
    Some(Written { route: route(&ah.address), out })
}

/// A datagram that is ready to be written.
pub struct Written {
    route: Route,
    out: Outbox,
}

impl Written {
    /// It has gone.
    pub fn write(self, node: &Node, via: Via) {
        Pen { node, via, inbound: false, route: self.route, out: self.out }.write();
    }
}

/// An entry of a ring: an answer of ours, or anything that a peer has written.
#[cold]
pub fn entry(node: &Node, h: &Header, bytes: Run<'_>, inbound: bool) {
    // What goes past the peer to a third process has numbers of its own.
    if !is_on() || h.kind == FAILED || h.flags & FOREIGN != 0 {
        return;
    }
    if h.kind < ACK && h.flags & DATAGRAM != 0 {
        return datagram_entry(node, h, bytes, inbound);
    }
    let (dst, src) = (Qpn(h.dst_qpn & 0xff_ffff), Qpn(h.src_qpn & 0xff_ffff));
    let Some(qp) = node.qp(if inbound { dst } else { src }) else { return };
    let Some((mut pen, mtu)) = Pen::of(&qp, Via::Shm, inbound) else { return };
    let (seq, mut rest) = (Psn::new(h.seq), bytes);
    let settings = |psn| Settings { transport: transport(qp.kind), remote_qpn: dst, psn, mtu };
    let mut gather = |_: u32, room: &mut [u8]| -> Result<(), ()> {
        if rest.len() < room.len() {
            return Err(());
        }
        let (now, later) = rest.split(room.len());
        rest = later;
        RunMut::of(room).fill(now).map_err(|_| ())
    };
    let mut flows = node.trace.flows.lock();
    let done = if h.kind < ACK {
        let Some(op) = op_of_entry(h) else { return };
        let message = flows.request(src, dst, seq, taken(&op, mtu));
        let numbers = flows.numbers(src, dst, seq);
        if h.flags & FIRST != 0 {
            numbers.arrived = 0;
        }
        let from = numbers.arrived;
        numbers.arrived = from.saturating_add(bytes.len() as u32);
        drop(flows);
        if pushes(op.opcode) {
            pen.push(&op, &settings(message.first), (from, bytes.len() as u32), gather)
        } else {
            pen.pull(&op, &settings(message.first));
            Ok(())
        }
    } else {
        let message = flows.answered(dst, src, seq);
        drop(flows);
        let to = settings(message.first);
        match (h.kind, h.ext) {
            (ACK, _) => {
                let last = message.first.plus(message.packets - 1);
                pen.acknowledge(&to, last, Syndrome::Ack, message.number);
            }
            (NAK, _) => {
                let said = match Refusal::decode(h.imm) {
                    Some(Refusal::Nak(nak, timer)) => syndrome(nak, timer),
                    // On a wire there would be no answer.
                    Some(Refusal::Gone) | None => None,
                };
                let Some(said) = said else { return };
                pen.acknowledge(&to, message.first, said, message.number.wrapping_sub(1) & 0xff_ffff);
            }
            (ATOMIC_ANSWER, Ext::Rdma { addr: original, .. }) => pen.atomic(&to, &message, original),
            (READ_DATA, _) => {
                let part = (h.imm, bytes.len() as u32, h.total);
                if pen.respond(&to, &message, part, &mut gather).is_err() {
                    return;
                }
            }
            _ => return,
        }
        Ok(())
    };
    if done.is_ok() {
        pen.write();
    }
}

fn op_of_entry(h: &Header) -> Option<Op> {
    let opcode = WrOpcode::from_raw(h.kind.into()).filter(|op| !op.is_local())?;
    let (mut remote_addr, mut rkey, mut srqn, mut compare_add, mut swap) = (0, Key(0), 0, 0, 0);
    match h.ext {
        Ext::None => {}
        Ext::Rdma { addr, rkey: key, aux } => (remote_addr, rkey, srqn) = (addr, Key(key), aux),
        Ext::Atomic { addr, rkey: key, aux, swap_add, compare } => {
            (remote_addr, rkey, srqn, compare_add, swap) = (addr, Key(key), aux, compare, swap_add);
        }
    }
    Some(Op {
        opcode,
        length: h.total,
        remote_addr,
        rkey,
        imm: h.imm,
        compare_add,
        swap,
        srqn: srqn & 0xff_ffff,
        solicited: h.flags & SOLICITED != 0,
        fence: false,
        signaled: true,
    })
}

/// A datagram, whose addresses its GRH tells.
fn datagram_entry(node: &Node, h: &Header, bytes: Run<'_>, inbound: bool) {
    let Ext::Rdma { rkey: qkey, .. } = h.ext else { return };
    if !inbound || bytes.len() < GRH_BYTES || bytes.len() > GRH_BYTES + Qp::MAX_DATAGRAM as usize {
        return;
    }
    let (head, rest) = bytes.split(GRH_BYTES);
    let mut grh = [0; GRH_BYTES];
    let mut payload = vec![0; rest.len()];
    if RunMut::of(&mut grh).fill(head).is_err() || RunMut::of(&mut payload).fill(rest).is_err() {
        return;
    }
    let (src, dst, traffic_class, hop_limit) = addresses(&grh);
    let route = Route { ip: IpUdp::new(src, dst, UDP_PORT), traffic_class, hop_limit };
    let imm = (h.kind == WrOpcode::SendImm.raw() as u8).then_some(h.imm);
    let operation = if imm.is_some() { Operation::SendOnlyImm } else { Operation::SendOnly };
    let bth = Bth {
        solicited: h.flags & SOLICITED != 0,
        ..Bth::new(Opcode::new(Transport::Ud, operation), Qpn(h.dst_qpn & 0xff_ffff), Psn::new(h.seq))
    };
    let deth = Deth { qkey, src_qpn: Qpn(h.src_qpn & 0xff_ffff) };
    let mut pen = Pen { node, via: Via::Shm, inbound, route, out: Outbox::new() };
    pen.put(&Packet { deth: Some(deth), imm, ..Packet::new(bth) }, &payload);
    pen.write();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_numbered_from_the_first_message_on_and_keep_their_numbers() {
        let mut flows = Flows::default();
        let (a, b) = (Qpn(0x100), Qpn(0x200));
        let psn = |n| Psn::new(n);
        let first = flows.request(a, b, psn(0xff_fffe), 3);
        assert_eq!((first.first, first.number), (psn(0xff_fffe), 1));
        let second = flows.request(a, b, psn(0xff_ffff), 1);
        assert_eq!((second.first, second.number), (psn(1), 2), "behind the first one's packets");
        let again = flows.request(a, b, psn(0xff_fffe), 3);
        assert_eq!((again.first, again.number), (psn(0xff_fffe), 1), "what is sent again keeps its numbers");
        assert_eq!(flows.answered(a, b, psn(0xff_ffff)).first, psn(1));
        assert_eq!(flows.request(b, a, psn(7), 1).first, psn(7), "the other direction counts by itself");
        let unknown = flows.answered(a, b, psn(500));
        assert_eq!((unknown.first, unknown.packets), (psn(500), 1));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut flows = Flows::default();
        for n in 0..3 * REMEMBERED as u32 {
            flows.request(Qpn(1), Qpn(2), Psn::new(n), 2);
        }
        assert_eq!(flows.numbers(Qpn(1), Qpn(2), Psn::new(0)).messages.len(), REMEMBERED);
        for n in 0..3 * CONNECTIONS as u32 {
            flows.request(Qpn(n), Qpn(2), Psn::new(n), 2);
            assert!(flows.0.len() <= CONNECTIONS);
        }
    }
}
