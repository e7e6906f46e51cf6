//! A peer that sends anything at all: nothing panics, nothing is carried out after an error, honest ends stay exact.
use super::*;
use crate::soft::transport::unreliable::Receiver;
use crate::soft::wire::{Aeth, AtomicEth, Bth, Feth, Headers, Opcode, Reth, Syndrome};

const PATIENCE: Patience = Patience { timeout: 12, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 4 };

/// A packet that parses, with numbers near those in use.
fn anything(random: &mut Random, transport: Transport, psn: Psn) -> (Packet, Vec<u8>) {
    let opcode = loop {
        let raw = random.below(32) as u8 | transport as u8;
        if let Some(opcode) = Opcode::from_raw(raw) {
            break opcode;
        }
    };
    let near = psn.plus((random.below(7) as u32).wrapping_sub(3));
    let has = |h| opcode.headers().contains(h);
    let length = [0, 1, MTU, MTU + 1, 5 * MTU, 1 << 31, u32::MAX][random.below(7) as usize];
    let va = [0, 8, 12, 1 << 20, u64::MAX - 7][random.below(5) as usize];
    let rkey = Key(if random.chance(80) { RKEY.0 } else { random.next() as u32 });
    let syndrome = loop {
        if let Ok(syndrome) = Syndrome::from_raw(random.next() as u8) {
            break syndrome;
        }
    };
    let packet = Packet {
        feth: has(Headers::FETH).then_some(Feth { types: 3, level: 0 }),
        reth: has(Headers::RETH).then_some(Reth { va, rkey, length }),
        atomic_eth: has(Headers::ATOMIC_ETH).then_some(AtomicEth { va, rkey, swap_or_add: 1, compare: 2 }),
        aeth: has(Headers::AETH).then_some(Aeth { syndrome, msn: random.next() as u32 & 0xff_ffff }),
        atomic_ack: has(Headers::ATOMIC_ACK).then_some(3),
        imm: has(Headers::IMM).then_some(4),
        ieth: has(Headers::IETH).then_some(rkey),
        ..Packet::new(Bth { ack_req: random.chance(50), ..Bth::new(opcode, Qpn(1), near) })
    };
    let payload = [0, 0, 1, 8, MTU - 1, MTU, MTU + 1][random.below(7) as usize];
    (packet, vec![7; payload as usize])
}

#[test]
fn responder_survives_any_packet() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut net = Net::new(seed, PATIENCE);
        let host = &mut net.hosts[1];
        host.receives.posted = 3;
        let mut out = Outbox::new();
        let mut psn = Psn::new(0xff_fff0);
        for _ in 0..200 {
            let (packet, payload) = anything(&mut random, Transport::Rc, psn);
            if !packet.bth.opcode.operation.is_response() {
                host.responder.receive(&packet, &payload, &mut host.receives);
            }
            host.responder.transmit(&mut host.receives, &mut out, BURST);
            if let Some(last) = out.iter().last() {
                psn = Packet::parse(last).unwrap().0.bth.psn.plus(1);
            }
            out.clear();
        }
    }
}

#[test]
fn unreliable_receiver_survives_any_packet() {
    for seed in 0..100 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut net = Net::new(seed, PATIENCE);
        let settings = Settings { transport: Transport::Uc, remote_qpn: Qpn(1), psn: Psn::new(0), mtu: MTU };
        let mut receiver = Receiver::new(settings);
        for i in 0..200 {
            let (packet, payload) = anything(&mut random, Transport::Uc, Psn::new(i));
            // A UC QP drops the message and goes on.
            net.hosts[1].receives.failed = false;
            receiver.receive(&packet, &payload, &mut net.hosts[1].receives);
        }
    }
}

#[test]
fn requester_survives_any_answer() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut net = Net::new(seed, PATIENCE);
        let host = &mut net.hosts[0];
        for n in 0..10 {
            let opcode = [WrOpcode::Send, WrOpcode::Read, WrOpcode::Write, WrOpcode::FetchAdd]
                [random.below(4) as usize];
            let size = if opcode == WrOpcode::FetchAdd { 8 } else { random.below(2000) };
            host.sends.post(opcode, n * 2000, vec![0; size as usize]);
        }
        let mut out = Outbox::new();
        let (mut now, mut psn) = (0, Psn::new(0xff_fff0));
        for _ in 0..200 {
            now += random.below(1000) * US;
            host.requester.timeout(now, &mut host.sends);
            host.requester.transmit(now, &mut host.sends, &mut out, BURST);
            if let Some(any) = out.iter().nth(random.below(16) as usize) {
                psn = Packet::parse(any).unwrap().0.bth.psn;
            }
            out.clear();
            let (packet, payload) = anything(&mut random, Transport::Rc, psn);
            if packet.bth.opcode.operation.is_response() {
                host.requester.receive(now, &packet, &payload, &mut host.sends);
            }
        }
    }
}

#[test]
fn parser_survives_any_bytes() {
    let mut random = Random(1);
    let mut bytes = [0u8; 80];
    for _ in 0..100_000 {
        let len = random.below(80) as usize;
        bytes.iter_mut().for_each(|b| *b = random.next() as u8);
        bytes[1] &= 0xf0;
        if let Ok((packet, payload)) = Packet::parse(&bytes[..len]) {
            assert!(payload.end + icrc::LEN <= len && payload.start == packet.header_len());
        }
        icrc::check(&addresses(0), &bytes[..len]);
    }
}
