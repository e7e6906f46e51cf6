//! A datagram with the headers that its opcode wants, and a payload of a length near the limits.
use crate::input::Input;
use ibverbs::soft::wire::{Aeth, AtomicEth, Bth, Deth, Feth, Headers, Packet, Reth, Syndrome};

/// The bytes of one, without its ICRC; the headers that `bth`'s opcode has take their numbers from here.
pub fn of(input: &mut Input<'_>, bth: Bth, deth: Deth, reth: Reth, syndrome: Syndrome, mtu: u32) -> Vec<u8> {
    let headers = bth.opcode.headers();
    let has = |header| headers.contains(header);
    let Reth { va, rkey, .. } = reth;
    let packet = Packet {
        deth: has(Headers::DETH).then_some(deth),
        srqn: has(Headers::XRCETH).then_some(input.byte().into()),
        feth: has(Headers::FETH).then_some(Feth { types: 3, level: 0 }),
        reth: has(Headers::RETH).then_some(reth),
        atomic_eth: has(Headers::ATOMIC_ETH).then_some(AtomicEth { va, rkey, swap_or_add: 1, compare: 2 }),
        aeth: has(Headers::AETH).then_some(Aeth { syndrome, msn: input.byte().into() }),
        atomic_ack: has(Headers::ATOMIC_ACK).then_some(3),
        imm: has(Headers::IMM).then_some(4),
        ieth: has(Headers::IETH).then_some(rkey),
        ..Packet::new(bth)
    };
    let payload = match input.below(8) {
        0 | 1 => 0,
        2 | 3 => mtu,
        4 => mtu + 1,
        5 => 8,
        6 => 4096,
        _ => input.below(mtu),
    };
    let mut bytes = vec![7; packet.datagram_len(payload as usize)];
    packet.emit(payload as usize, &mut bytes);
    bytes
}
