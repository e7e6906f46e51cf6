//! How a message is cut into packets: counts, offsets, operations and headers.
use super::{Op, Settings};
use crate::soft::types::{Key, Psn, WrOpcode};
use crate::soft::wire::{AtomicEth, Bth, Feth, Opcode, Operation, Packet, Reth, Transport};

/// Packets of `length` bytes: at least one.
pub(in crate::soft) const fn packets(length: u32, mtu: u32) -> u32 {
    if length == 0 { 1 } else { length.div_ceil(mtu) }
}

/// Bytes of packet `i` of `length` bytes.
pub(in crate::soft) const fn payload(length: u32, mtu: u32, i: u32) -> u32 {
    let left = length - i * mtu;
    if left < mtu { left } else { mtu }
}

/// Travels as SEND or WRITE: payload goes out, acknowledgements come back.
pub(in crate::soft) const fn pushes(opcode: WrOpcode) -> bool {
    use WrOpcode::*;
    matches!(opcode, Send | SendImm | SendInv | Write | WriteImm)
}

/// Is answered with data, if only an empty response: FLUSH and ATOMIC WRITE.
pub(in crate::soft) const fn pulls(opcode: WrOpcode) -> bool {
    use WrOpcode::*;
    matches!(opcode, Read | CmpSwap | FetchAdd | Flush | AtomicWrite)
}

/// The operation of a SEND's or WRITE's packet by its place.
fn operation(opcode: WrOpcode, first: bool, last: bool) -> Operation {
    use Operation::*;
    let table = match opcode {
        WrOpcode::Send => [SendMiddle, SendLast, SendFirst, SendOnly],
        WrOpcode::SendImm => [SendMiddle, SendLastImm, SendFirst, SendOnlyImm],
        WrOpcode::SendInv => [SendMiddle, SendLastInv, SendFirst, SendOnlyInv],
        WrOpcode::Write => [WriteMiddle, WriteLast, WriteFirst, WriteOnly],
        _ => [WriteMiddle, WriteLastImm, WriteFirst, WriteOnlyImm],
    };
    table[usize::from(first) * 2 + usize::from(last)]
}

/// Headers of packet `i` of `count` of a SEND or WRITE.
pub(in crate::soft) fn push_packet(op: &Op, to: &Settings, psn: Psn, i: u32, count: u32) -> Packet {
    let (first, last) = (i == 0, i + 1 == count);
    let mut packet = request(operation(op.opcode, first, last), op, to, psn);
    if first && matches!(op.opcode, WrOpcode::Write | WrOpcode::WriteImm) {
        packet.reth = Some(Reth { va: op.remote_addr, rkey: op.rkey, length: op.length });
    }
    if last {
        match op.opcode {
            WrOpcode::SendImm | WrOpcode::WriteImm => packet.imm = Some(op.imm),
            WrOpcode::SendInv => packet.ieth = Some(Key(op.imm)),
            _ => {}
        }
        packet.bth.solicited = op.solicited && op.opcode != WrOpcode::Write;
    }
    packet
}

/// The one header of packet `i` of `count` of a SEND or WRITE, if it has no other, as nearly all have.
#[inline]
pub(super) fn bare_bth(op: &Op, to: &Settings, psn: Psn, i: u32, count: u32) -> Option<Bth> {
    let (first, last) = (i == 0, i + 1 == count);
    let is_bare = match op.opcode {
        WrOpcode::Send => true,
        WrOpcode::Write => !first,
        WrOpcode::WriteImm => !first && !last,
        _ => !last,
    };
    if !is_bare || to.transport == Transport::Xrc {
        return None;
    }
    let bth = Bth::new(Opcode::new(to.transport, operation(op.opcode, first, last)), to.remote_qpn, psn);
    Some(Bth { solicited: last && op.solicited && op.opcode == WrOpcode::Send, ..bth })
}

/// The header of a SEND that is one packet.
#[inline]
pub(super) fn send_only(to: &Settings, psn: Psn) -> Bth {
    Bth::new(Opcode::new(to.transport, Operation::SendOnly), to.remote_qpn, psn)
}

/// A READ request for `length` bytes from `offset` of the message.
pub(in crate::soft) fn read_packet(op: &Op, to: &Settings, psn: Psn, offset: u32, length: u32) -> Packet {
    let reth = Reth { va: op.remote_addr.wrapping_add(u64::from(offset)), rkey: op.rkey, length };
    let packet = request(Operation::ReadRequest, op, to, psn);
    Packet { reth: Some(reth), bth: Bth { ack_req: true, ..packet.bth }, ..packet }
}

/// A compare-and-swap or fetch-and-add.
pub(in crate::soft) fn atomic_packet(op: &Op, to: &Settings, psn: Psn) -> Packet {
    let (operation, swap_or_add, compare) = match op.opcode {
        WrOpcode::CmpSwap => (Operation::CmpSwap, op.swap, op.compare_add),
        _ => (Operation::FetchAdd, op.compare_add, 0),
    };
    let eth = AtomicEth { va: op.remote_addr, rkey: op.rkey, swap_or_add, compare };
    let packet = request(operation, op, to, psn);
    Packet { atomic_eth: Some(eth), bth: Bth { ack_req: true, ..packet.bth }, ..packet }
}

/// An ATOMIC WRITE, whose 8 bytes follow.
pub(in crate::soft) fn atomic_write_packet(op: &Op, to: &Settings, psn: Psn) -> Packet {
    let reth = Reth { va: op.remote_addr, rkey: op.rkey, length: op.length };
    let packet = request(Operation::AtomicWrite, op, to, psn);
    Packet { reth: Some(reth), bth: Bth { ack_req: true, ..packet.bth }, ..packet }
}

/// A FLUSH.
pub(in crate::soft) fn flush_packet(op: &Op, to: &Settings, psn: Psn) -> Packet {
    let feth = Feth { types: op.swap as u8, level: (op.swap >> 8) as u8 };
    let reth = Reth { va: op.remote_addr, rkey: op.rkey, length: op.compare_add as u32 };
    let packet = request(Operation::Flush, op, to, psn);
    Packet { feth: Some(feth), reth: Some(reth), bth: Bth { ack_req: true, ..packet.bth }, ..packet }
}

fn request(operation: Operation, op: &Op, to: &Settings, psn: Psn) -> Packet {
    let packet = Packet::new(Bth::new(Opcode::new(to.transport, operation), to.remote_qpn, psn));
    Packet { srqn: (to.transport == Transport::Xrc).then_some(op.srqn), ..packet }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::types::Qpn;

    #[test]
    fn messages_are_cut_at_the_mtu() {
        assert_eq!((packets(0, 1024), packets(1024, 1024), packets(1025, 1024)), (1, 1, 2));
        assert_eq!((payload(1025, 1024, 0), payload(1025, 1024, 1), payload(0, 1024, 0)), (1024, 1, 0));
        assert_eq!(packets(1 << 31, 256), 1 << 23);
        assert_eq!(payload(1 << 31, 256, (1 << 23) - 1), 256);
    }

    #[test]
    fn a_bare_packet_is_the_one_that_has_no_other_header() {
        use WrOpcode::{Send, SendImm, SendInv, Write, WriteImm};
        for (opcode, transport) in [Send, SendImm, SendInv, Write, WriteImm]
            .into_iter()
            .flat_map(|opcode| [Transport::Rc, Transport::Uc, Transport::Xrc].map(|t| (opcode, t)))
        {
            let to = Settings { transport, remote_qpn: Qpn(0x1001), psn: Psn::new(0), mtu: 1024 };
            for (solicited, count, i) in [false, true]
                .into_iter()
                .flat_map(|s| [(1, 0), (3, 0), (3, 1), (3, 2)].map(|(n, i)| (s, n, i)))
            {
                let op = Op {
                    opcode,
                    length: 3000,
                    remote_addr: 1,
                    rkey: Key(2),
                    imm: 3,
                    compare_add: 0,
                    swap: 0,
                    srqn: 4,
                    solicited,
                    fence: false,
                    signaled: true,
                };
                let whole = push_packet(&op, &to, Psn::new(7), i, count);
                let is_bare = whole == Packet::new(whole.bth);
                let expected = is_bare.then_some(whole.bth);
                assert_eq!(
                    bare_bth(&op, &to, Psn::new(7), i, count),
                    expected,
                    "{opcode} {transport:?} {i} of {count}"
                );
            }
        }
    }

    #[test]
    fn operations_follow_the_place() {
        assert_eq!(operation(WrOpcode::SendInv, false, true), Operation::SendLastInv);
        assert_eq!(operation(WrOpcode::WriteImm, true, true), Operation::WriteOnlyImm);
        assert_eq!(operation(WrOpcode::Write, true, false), Operation::WriteFirst);
        assert_eq!(operation(WrOpcode::SendImm, false, false), Operation::SendMiddle);
    }
}
