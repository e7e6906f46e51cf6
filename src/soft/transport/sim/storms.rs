//! Thousands of random worlds: every kind of fault at once, tiny windows, every MTU, number wrap, processes that are
//! not scheduled, peers that vanish. Data exact, each request one completion in order, atomics exactly once, and
//! errors only where the retries are truly exhausted.
use super::super::LARGEST_WINDOW;
use super::*;
use crate::soft::stats::Event;
use crate::soft::wire::{Operation, Syndrome};

/// Where the peer's memory holds what: each WRITE and ATOMIC WRITE has a place of its own, below the counter.
const PLACE: u64 = 16_384;
const REQUESTS: usize = 12;
const COUNTER: u64 = PLACE * REQUESTS as u64;
const SWAPPED: u64 = COUNTER + 8;
const READABLE: u64 = COUNTER + 64;
const MEMORY: usize = (READABLE + PLACE + REQUESTS as u64) as usize / 251 + 1;
/// The shortest local ACK timeout.
const FLOOR: u64 = 8 * MS;

fn world(seed: u64) -> (Setup, Faults) {
    let mut random = Random(seed ^ 0x5eed);
    let r = &mut random;
    let near_wrap = Psn::new(0xff_ffff - r.below(40) as u32);
    let max_rd_atomic = r.pick(&[1, 2, 4, 16]);
    let setup = Setup {
        mtu: r.pick(&[256, 512, 1024, 2048, 4096]),
        psns: [near_wrap, Psn::new(r.next() as u32)],
        patience: Patience {
            timeout: r.pick(&[1, 12, 14, 16]),
            retry_cnt: r.pick(&[3, 7, 7]),
            rnr_retry: 7,
            max_rd_atomic,
        },
        max_dest_rd_atomic: r.pick(&[max_rd_atomic, 16]),
        rnr_timer: r.pick(&[1, 6, 12]),
        window: r.pick(&[1, 2, 3, 8, 64, LARGEST_WINDOW]),
        memory: MEMORY,
    };
    let faults = Faults {
        lose: r.pick(&[0, 1, 5, 10, 50, 100, 200, 300]),
        repeat: r.pick(&[0, 5, 50, 200]),
        damage: r.pick(&[0, 2, 20, 100]),
        delay: r.pick(&[US, 10 * US, 500 * US, 4 * MS]),
        jitter: r.pick(&[0, 5 * US, 100 * US, 2 * MS]),
        naps: r.pick(&[0, 0, 5, 30]),
        nap: r.pick(&[MS, 20 * MS, 60 * MS]),
        room: r.pick(&[8, 70, 1000]),
    };
    (setup, faults)
}

/// Posts one random request from `own`.
fn post(net: &mut Net, own: usize, n: usize, mtu: u32, swaps: &mut u64) {
    let mtu = u64::from(mtu);
    let size = match net.random.below(5) {
        0 => 0,
        1 => net.random.below(64),
        2 => net.random.below(4) * mtu,
        3 => net.random.below(PLACE),
        _ => (net.random.below(40) * mtu + net.random.below(2)).min(PLACE),
    };
    let fill: Vec<u8> = (0..size).map(|i| (i * 13 + (i >> 8) * 5 + n as u64 * 7) as u8).collect();
    let place = n as u64 * PLACE;
    let (op, at, data) = match net.random.below(12) {
        0 => (WrOpcode::Send, 0, fill),
        1 => (WrOpcode::SendImm, 0, fill),
        2 => (WrOpcode::SendInv, 0, fill),
        3 => (WrOpcode::Write, place, fill),
        4 => (WrOpcode::WriteImm, place, fill),
        5 => (WrOpcode::FetchAdd, COUNTER, vec![0; 8]),
        6 => (WrOpcode::CmpSwap, SWAPPED, vec![0; 8]),
        7 => (WrOpcode::LocalInv, 0, Vec::new()),
        8 => (WrOpcode::Flush, place, Vec::new()),
        9 => (WrOpcode::AtomicWrite, place, vec![0; 8]),
        _ => (WrOpcode::Read, READABLE + n as u64, vec![0xee; size as usize]),
    };
    let first = word(net, 1 - own, SWAPPED);
    let at = net.hosts[own].sends.post(op, at, data) as usize;
    let (fence, signaled) = (net.random.chance(10), net.random.chance(50));
    let op = &mut net.hosts[own].sends.requests[at].0;
    (op.fence, op.signaled) = (fence, signaled);
    if op.opcode == WrOpcode::CmpSwap {
        // Each one finds what the one before it left.
        (op.compare_add, op.swap) = (first.wrapping_add(*swaps), first.wrapping_add(*swaps + 1));
        *swaps += 1;
    }
}

fn word(net: &Net, host: usize, at: u64) -> u64 {
    let at = at as usize;
    u64::from_ne_bytes(net.hosts[host].receives.memory[at..at + 8].try_into().unwrap())
}

/// Checks what `own` asked for against what its peer holds; what was not completed may be done or not.
fn verify(net: &Net, own: usize, counter: u64, failed: bool) {
    let (host, peer) = (&net.hosts[own], &net.hosts[1 - own].receives);
    let completed = host.sends.done.iter().filter(|d| d.1 == WcStatus::Success).count();
    assert!(failed || completed == host.sends.requests.len());
    let (mut arrivals, mut adds, mut writes, mut flushes) = (peer.arrived.iter(), 0, 0, 0);
    let mut cut = false;
    for (n, (op, data)) in host.sends.requests.iter().enumerate() {
        let sure = n < completed;
        match op.opcode {
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv | WrOpcode::WriteImm => {
                let imm = matches!(op.opcode, WrOpcode::SendImm | WrOpcode::WriteImm).then_some(op.imm);
                let next = if cut { None } else { arrivals.next() };
                cut = next.is_none();
                assert!(!(sure && cut), "message {n} is complete and has not arrived");
                assert!(
                    next.is_none_or(|(got, got_imm)| got == data && *got_imm == imm),
                    "message {n} is damaged"
                );
            }
            WrOpcode::FetchAdd if sure => {
                let before = u64::from_ne_bytes(data[..].try_into().unwrap());
                assert_eq!(before, counter.wrapping_add(adds), "an addition was lost or repeated");
                adds += 1;
            }
            WrOpcode::CmpSwap if sure => {
                let before = u64::from_ne_bytes(data[..].try_into().unwrap());
                assert_eq!(before, op.compare_add, "a swap was lost or repeated");
            }
            WrOpcode::Read if sure => {
                let at = op.remote_addr as usize;
                assert!(*data == peer.memory[at..at + data.len()], "READ {n} brought other bytes");
            }
            WrOpcode::Write if sure => {
                let at = op.remote_addr as usize;
                assert!(*data == peer.memory[at..at + data.len()], "WRITE {n} left other bytes");
            }
            WrOpcode::AtomicWrite if sure => writes += 1,
            WrOpcode::Flush if sure => flushes += 1,
            _ => {}
        }
    }
    assert!(arrivals.next().is_none(), "a message arrived twice");
    if failed {
        assert!(peer.atomic_writes >= writes && peer.flushed.len() >= flushes);
    } else {
        assert_eq!((peer.atomic_writes, peer.flushed.len()), (writes, flushes), "each once");
        assert_eq!(word(net, 1 - own, COUNTER), counter.wrapping_add(adds));
    }
}

/// The request packet has this number, or the READ that it asks for covers it.
fn asks_for(packet: &Packet, psn: Psn, mtu: u32) -> bool {
    let operation = packet.bth.opcode.operation;
    let is_read = operation == Operation::ReadRequest;
    let numbers = packet.reth.filter(|_| is_read).map_or(1, |r| r.length.div_ceil(mtu).max(1));
    !operation.is_response() && (0..numbers as i32).contains(&psn.since(packet.bth.psn))
}

/// What an end has counted is what its packets show.
fn verify_counts(net: &Net, own: usize, mtu: u32) {
    let host = &net.hosts[own];
    let (mut repeated, mut rnr, mut end) = (0, 0, None::<Psn>);
    for (_, _, packet) in net.sent.iter().filter(|(_, from, _)| *from == own) {
        let operation = packet.bth.opcode.operation;
        if operation.is_response() {
            rnr += u64::from(packet.aeth.is_some_and(|a| matches!(a.syndrome, Syndrome::Rnr(_))));
            continue;
        }
        repeated += u64::from(end.is_some_and(|end| packet.bth.psn.since(end) < 0));
        let takes = packet.reth.filter(|_| operation == Operation::ReadRequest);
        let behind = packet.bth.psn.plus(takes.map_or(1, |r| r.length.div_ceil(mtu).max(1)));
        end = Some(end.filter(|end| behind.since(*end) < 0).unwrap_or(behind));
    }
    let sends = &host.sends.counts;
    assert_eq!(sends.of(Event::Retransmitted), repeated, "host {own} counts other packets as sent again");
    assert!(repeated == 0 || sends.of(Event::WentBack) > 0);
    assert!(host.receives.counts.of(Event::RnrNakSent) >= rnr, "host {own} sent {rnr} RNR NAKs");
    let loses_nothing = net.faults.lose == 0 && net.faults.damage == 0 && net.faults.room == usize::MAX;
    let in_order = net.faults.jitter == 0 && net.faults.repeat == 0 && net.faults.naps == 0;
    let all_there = net.hosts.iter().all(|h| !h.gone) && rnr == 0;
    if loses_nothing && in_order && all_there && repeated == 0 {
        let receives = &net.hosts[1 - own].receives.counts;
        assert_eq!(receives.of(Event::Duplicate) + receives.of(Event::OutOfSequence), 0, "host {}", 1 - own);
    }
}

/// The least time without progress after which `patience` is exhausted.
fn endurance(patience: &Patience) -> u64 {
    (4096 << patience.timeout).max(FLOOR) * (u64::from(patience.retry_cnt) + 1)
}

/// Runs one world; true if both ends completed all.
fn storm(seed: u64) -> bool {
    let (setup, faults) = world(seed);
    let mut net = Net::with(seed, &setup);
    net.faults = faults;
    net.hosts.iter_mut().for_each(|h| h.requester.set_in_talk(seed.is_multiple_of(2)));
    let counters = [1, 0].map(|peer| word(&net, peer, COUNTER));
    let mut swaps = [0; 2];
    for n in 0..REQUESTS {
        for (own, swaps) in swaps.iter_mut().enumerate() {
            post(&mut net, own, n, setup.mtu, swaps);
        }
    }
    let late = net.random.chance(20);
    if late {
        net.hosts.iter_mut().for_each(|h| h.receives.posted = 1);
    }
    let vanishes = if net.random.chance(10) { Some(net.random.below(20 * MS)) } else { None };
    let mut failed = [false; 2];
    let mut slice = 0;
    loop {
        slice += 200 * US;
        let ended = |net: &Net, failed: &[bool; 2]| {
            (0..2).all(|i| {
                let h = &net.hosts[i];
                h.gone || failed[i] || h.sends.done.len() == h.sends.requests.len()
            })
        };
        while !ended(&net, &failed) && net.step(slice) {
            for (own, failed) in failed.iter_mut().enumerate() {
                let host = &net.hosts[own];
                let Some((_, status)) = host.sends.done.last().filter(|d| d.1 != WcStatus::Success) else {
                    continue;
                };
                if !*failed {
                    *failed = true;
                    assert_eq!(*status, WcStatus::RetryExcErr, "host {own}");
                    let (oldest, since) = host.oldest;
                    let waited = net.now - since;
                    assert!(waited >= endurance(&setup.patience), "host {own} gave up after {waited} ns");
                    let tries = net.count(own, |p| asks_for(p, oldest, setup.mtu));
                    assert!(tries > usize::from(setup.patience.retry_cnt), "host {own} tried {tries} times");
                }
            }
        }
        net.now = net.now.max(slice);
        if ended(&net, &failed) {
            break;
        }
        if late && net.random.chance(30) {
            net.hosts.iter_mut().for_each(|h| h.receives.posted += 1);
        }
        if vanishes.is_some_and(|at| at <= net.now) {
            net.hosts[1].gone = true;
        }
        assert!(net.now < 120_000 * MS, "not done within two virtual minutes");
    }
    for own in 0..2 {
        if !net.hosts[own].gone {
            verify(&net, own, counters[own], failed[own]);
        }
        verify_counts(&net, own, setup.mtu);
    }
    !failed.contains(&true)
}

#[test]
fn whatever_the_network_does_nothing_is_lost_repeated_or_damaged() {
    let count = std::env::var("ANYVERBS_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000);
    let first = std::env::var("ANYVERBS_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
    let whole = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let whole = &whole;
            scope.spawn(move || {
                for seed in (first + worker..first + count).step_by(workers as usize) {
                    let outcome = std::panic::catch_unwind(|| storm(seed));
                    match outcome {
                        Ok(all) => whole.fetch_add(u64::from(all), std::sync::atomic::Ordering::Relaxed),
                        Err(_) => panic!("ANYVERBS_SEED={seed} {:?}", world(seed)),
                    };
                }
            });
        }
    });
    let whole = whole.into_inner();
    println!("{whole} of {count} worlds completed every request");
    assert!(whole * 10 >= count * 8, "only {whole} of {count} worlds completed every request");
}
