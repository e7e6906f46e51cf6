//! Random traffic both ways over a bad network: data exact, completions in order, atomics exactly once.
use super::*;
use crate::soft::transport::unreliable::{Receiver, Sender};

const PATIENCE: Patience = Patience { timeout: 12, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 4 };
const COUNTER: u64 = 1 << 19;

/// Posts one random request from `own`; regions are apart, so that the outcome does not depend on timing.
fn post(net: &mut Net, own: usize, n: usize) {
    let size = match net.random.below(4) {
        0 => 0,
        1 => net.random.below(64),
        2 => net.random.below(4) * u64::from(MTU),
        _ => net.random.below(6_000),
    };
    let fill: Vec<u8> = (0..size).map(|i| (i * 13 + n as u64 * 7) as u8).collect();
    let place = n as u64 * 6_000;
    let (op, at, data) = match net.random.below(10) {
        0 => (WrOpcode::Send, 0, fill),
        1 => (WrOpcode::SendImm, 0, fill),
        2 => (WrOpcode::SendInv, 0, fill),
        3 => (WrOpcode::Write, place, fill),
        4 => (WrOpcode::WriteImm, place, fill),
        5 => (WrOpcode::FetchAdd, COUNTER, vec![0; 8]),
        6 => (WrOpcode::LocalInv, 0, Vec::new()),
        7 => (WrOpcode::Flush, place, Vec::new()),
        8 => (WrOpcode::AtomicWrite, place, vec![0; 8]),
        _ => (WrOpcode::Read, COUNTER + 4096 + n as u64, vec![0xee; size as usize]),
    };
    let at = net.hosts[own].sends.post(op, at, data) as usize;
    net.hosts[own].sends.requests[at].0.fence = net.random.chance(10);
}

/// Checks what `own` asked for against what its peer holds.
fn verify(net: &Net, own: usize, initial_counter: u64) {
    let (host, peer) = (&net.hosts[own], &net.hosts[1 - own]);
    assert!(host.sends.done.iter().all(|d| d.1 == WcStatus::Success), "{:?}", host.sends.done);
    let (mut writes, mut flushes) = (0, 0);
    let (mut arrivals, mut adds) = (peer.receives.arrived.iter(), 0);
    for (op, data) in &host.sends.requests {
        match op.opcode {
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv | WrOpcode::WriteImm => {
                let imm = matches!(op.opcode, WrOpcode::SendImm | WrOpcode::WriteImm).then_some(op.imm);
                let (got, got_imm) = arrivals.next().expect("every message arrives");
                assert!(got == data && *got_imm == imm, "message {} is damaged", op.imm);
            }
            WrOpcode::FetchAdd => {
                let before = u64::from_ne_bytes(data[..].try_into().unwrap());
                assert_eq!(before, initial_counter.wrapping_add(adds), "an addition was lost or repeated");
                adds += 1;
            }
            WrOpcode::Read => {
                let at = op.remote_addr as usize;
                assert!(
                    *data == peer.receives.memory[at..at + data.len()],
                    "READ {} brought other bytes",
                    op.imm
                );
            }
            WrOpcode::AtomicWrite => {
                let at = op.remote_addr as usize;
                assert_eq!(peer.receives.memory[at..at + 8], op.compare_add.to_ne_bytes());
                writes += 1;
            }
            WrOpcode::Flush => flushes += 1,
            _ => {}
        }
    }
    assert_eq!((peer.receives.atomic_writes, peer.receives.flushed.len()), (writes, flushes), "each once");
    assert!(arrivals.next().is_none(), "a message arrived twice");
}

fn storm(seed: u64, faults: Faults, receives_late: bool) {
    let mut net = Net::new(seed, PATIENCE);
    net.faults = faults;
    let counter = |net: &Net, own: usize| {
        let at = COUNTER as usize;
        u64::from_ne_bytes(net.hosts[own].receives.memory[at..at + 8].try_into().unwrap())
    };
    let initial = [counter(&net, 0), counter(&net, 1)];
    for n in 0..20 {
        for own in 0..2 {
            post(&mut net, own, n);
        }
    }
    if receives_late {
        net.hosts.iter_mut().for_each(|h| h.receives.posted = 1);
    }
    let mut limit = 0;
    while !net.run(limit) {
        limit += 200 * US;
        net.now = net.now.max(limit);
        if receives_late && net.random.chance(30) {
            net.hosts.iter_mut().for_each(|h| h.receives.posted += 1);
        }
        assert!(limit < 60_000 * MS, "seed {seed}: not done within a virtual minute");
    }
    for own in 0..2 {
        verify(&net, own, initial[1 - own]);
    }
}

#[test]
fn everything_arrives_over_a_good_network() {
    (0..50).for_each(|seed| storm(seed, Faults::default(), false));
}

#[test]
fn everything_arrives_once_over_a_bad_network() {
    for seed in 0..200 {
        println!("seed {seed}");
        let faults = Faults {
            lose: seed % 12 * 10,
            repeat: seed % 7 * 10,
            damage: seed % 5 * 10,
            jitter: seed % 4 * 30 * US,
            ..Faults::default()
        };
        storm(seed, faults, false);
    }
}

#[test]
fn everything_arrives_once_when_receives_are_late() {
    for seed in 1000..1100 {
        println!("seed {seed}");
        let faults = Faults {
            lose: seed % 6 * 10,
            repeat: seed % 3 * 10,
            jitter: seed % 2 * 20 * US,
            ..Faults::default()
        };
        storm(seed, faults, true);
    }
}

#[test]
fn unreliable_messages_arrive_whole_or_not_at_all() {
    for seed in 0..50 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let settings =
            Settings { transport: Transport::Uc, remote_qpn: Qpn(1), psn: Psn::new(0xff_fffc), mtu: MTU };
        let (mut sender, mut receiver) = (Sender::new(settings, 0), Receiver::new(settings));
        let Net { hosts: [Host { mut sends, .. }, Host { mut receives, .. }], .. } = Net::new(seed, PATIENCE);
        for n in 0..40u64 {
            let fill = (0..random.below(1500)).map(|i| (i + n) as u8).collect();
            let opcode = if random.chance(30) { WrOpcode::WriteImm } else { WrOpcode::SendImm };
            sends.post(opcode, n * 2000, fill);
        }
        let posted = receives.posted;
        let mut out = Outbox::new();
        while sender.transmit(&mut sends, &mut out, BURST) {}
        assert_eq!(sends.done.len(), 40, "sending is all there is to it");
        for datagram in out.iter() {
            if !random.chance(seed % 30) {
                let (packet, payload) = Packet::parse(datagram).unwrap();
                receiver.receive(&packet, &datagram[payload], &mut receives);
            }
        }
        let mut next = 0;
        for (data, imm) in &receives.arrived {
            let n = imm.unwrap() as usize;
            assert!(n >= next && *data == sends.requests[n].1, "message {n} is damaged or out of order");
            next = n + 1;
        }
        assert!(seed % 30 != 0 || receives.arrived.len() == 40);
        let open = u32::from(posted - receives.posted != receives.arrived.len() as u32);
        assert!(
            posted - receives.posted - open == receives.arrived.len() as u32,
            "a lost message keeps no receive"
        );
    }
}
