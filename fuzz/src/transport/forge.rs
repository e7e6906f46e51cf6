//! Packets that no honest peer sends, each with a right ICRC.
use super::Setup;
use super::end::{End, addresses};
use super::sides::{MEMORY, RKEY};
use crate::datagram;
use crate::input::Input;
use ibverbs::soft::types::{Key, Psn, Qpn};
use ibverbs::soft::wire::{Bth, Deth, IpUdp, Opcode, Packet, Reth, Syndrome, icrc};

/// A packet of any opcode that there is, with numbers near those in use.
pub(super) fn any(setup: &Setup, to: &End, input: &mut Input<'_>) -> Vec<u8> {
    let raw = if input.below(8) == 7 { input.byte() } else { setup.transport as u8 | input.below(32) as u8 };
    let Some(opcode) = Opcode::from_raw(raw) else { return raw_with(raw, input) };
    let last = to.inbox.back().and_then(|bytes| Packet::parse(bytes).ok()).map(|(packet, _)| packet.bth.psn);
    let base = match input.below(4) {
        0 => Psn::new(to.oldest()),
        1 => last.unwrap_or(Psn::new(0)),
        2 => Psn::new(if input.below(2) == 0 { 0xff_fff8 } else { 0 }),
        _ => Psn::new(input.word()),
    };
    let psn = base.plus(input.below(64).wrapping_sub(16));
    let mtu = setup.mtu;
    let length = match input.below(8) {
        0 => 0,
        1 => 1,
        2 => mtu,
        3 => mtu + 1,
        4 => input.below(MEMORY as u32),
        5 => 1 << 31,
        6 => (1 << 31) + 1,
        _ => u32::MAX - input.below(4096),
    };
    let va = match input.below(4) {
        0 => 0,
        1 => input.below(MEMORY as u32).into(),
        2 => MEMORY as u64 - 8,
        _ => u64::MAX - u64::from(input.below(16)),
    };
    let rkey = if input.below(8) == 7 { Key(input.word()) } else { RKEY };
    let syndrome = Syndrome::from_raw(input.byte()).unwrap_or(Syndrome::Ack);
    let bth =
        Bth { ack_req: input.below(2) == 1, solicited: input.below(2) == 1, ..Bth::new(opcode, Qpn(1), psn) };
    let deth = Deth { qkey: 1, src_qpn: Qpn(1) };
    let mut datagram = datagram::of(input, bth, deth, Reth { va, rkey, length }, syndrome, mtu);
    seal(to, &mut datagram);
    datagram
}

/// Changes one thing of a packet: a byte of its headers, or its length.
pub(super) fn spoil(datagram: &mut Vec<u8>, input: &mut Input<'_>) {
    match input.below(4) {
        0 => datagram.truncate(input.below(datagram.len() as u32 + 1) as usize),
        1 => datagram.extend(input.bytes(8)),
        _ => {
            let at = input.below(60.min(datagram.len() as u32)) as usize;
            datagram[at] = input.byte();
        }
    }
    // Whose it is is told by the ICRC alone: one of the two passes.
    let from = usize::from(input.below(2) == 1);
    icrc::seal(&addresses(from), datagram);
}

/// Takes `stride` from the packet's number.
pub(super) fn step_back(to: &End, datagram: &mut [u8], stride: u32) {
    if let Some(psn) = datagram.get_mut(9..12) {
        let before = u32::from_be_bytes([0, psn[0], psn[1], psn[2]]);
        psn.copy_from_slice(&before.wrapping_sub(stride).to_be_bytes()[1..]);
    }
    seal(to, datagram);
}

/// Any bytes.
pub(super) fn raw(input: &mut Input<'_>) -> Vec<u8> {
    let opcode = input.byte();
    raw_with(opcode, input)
}

fn raw_with(opcode: u8, input: &mut Input<'_>) -> Vec<u8> {
    let length = input.below(96) as usize;
    let mut datagram = vec![opcode];
    datagram.extend(input.bytes(length));
    let from = usize::from(input.below(2) == 1);
    icrc::seal(&addresses(from), &mut datagram);
    datagram
}

fn seal(to: &End, datagram: &mut [u8]) {
    let ip: IpUdp = addresses(to.peer());
    icrc::seal(&ip, datagram);
}
