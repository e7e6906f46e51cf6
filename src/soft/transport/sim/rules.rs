//! Single rules of reliable connections: who waits how long, counts what, and fails how.
use super::*;
use crate::soft::wire::{Aeth, Bth, NakCode, Opcode, Operation, Syndrome};

const PATIENCE: Patience = Patience { timeout: 14, retry_cnt: 3, rnr_retry: 2, max_rd_atomic: 2 };
const TIMEOUT: u64 = 4096 << 14;

fn is(operation: Operation) -> impl Fn(&Packet) -> bool {
    move |p| p.bth.opcode.operation == operation
}

fn nak(code: NakCode) -> impl Fn(&Packet) -> bool {
    move |p| p.aeth.is_some_and(|a| a.syndrome == Syndrome::Nak(code))
}

#[test]
fn silence_ends_in_retry_exceeded_after_the_configured_time() {
    let mut net = Net::new(1, PATIENCE);
    net.faults.lose = 1000;
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 3000]);
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![2; 10]);
    while net.hosts[0].sends.done.is_empty() && net.step(1 << 40) {}
    assert_eq!(net.hosts[0].sends.done, [(0, WcStatus::RetryExcErr)]);
    let waits = [1, 2, 4, 4].map(|n| n * TIMEOUT).map(|t| t.min(250 * MS));
    assert_eq!(net.now, waits.iter().sum::<u64>(), "the first try and three retries");
    assert!(!net.step(1 << 40), "a failed requester wants nothing");
}

#[test]
fn missing_receive_is_retried_as_often_as_configured() {
    let mut net = Net::new(2, PATIENCE);
    net.hosts[1].responder.set_rnr_timer(18);
    net.hosts[1].receives.posted = 0;
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 100]);
    net.run(1 << 40);
    assert_eq!(net.hosts[0].sends.done, [(0, WcStatus::RnrRetryExcErr)]);
    assert_eq!(net.count(0, is(Operation::SendOnly)), 3);
    let times: Vec<u64> = net.sent.iter().filter(|s| s.1 == 0).map(|s| s.0).collect();
    assert!(times.windows(2).all(|w| w[1] - w[0] >= 4_096_000), "4.096 ms apart at least: {times:?}");
}

#[test]
fn late_receive_lets_the_send_through() {
    for opcode in [WrOpcode::Send, WrOpcode::WriteImm] {
        let mut net = Net::new(3, Patience { rnr_retry: 7, ..PATIENCE });
        net.hosts[1].receives.posted = 0;
        net.hosts[0].sends.post(opcode, 0, (0..1000).map(|i| i as u8).collect());
        assert!(!net.run(5 * MS));
        net.hosts[1].receives.posted = 1;
        assert!(net.run(10 * MS));
        assert_eq!(net.hosts[1].receives.arrived[0].0.len(), 1000, "{opcode:?}");
    }
}

/// rxe refuses what comes behind the RNR NAK with a sequence error, each time, sometimes after the next try.
#[test]
fn sequence_errors_behind_a_missing_receive_cost_no_retry() {
    let mut net = Net::new(15, Patience { rnr_retry: 7, ..PATIENCE });
    let host = &mut net.hosts[0];
    for _ in 0..3 {
        host.sends.post(WrOpcode::Send, 0, vec![1; 10]);
    }
    let (mut now, mut out) = (0, Outbox::new());
    host.requester.transmit(now, &mut host.sends, &mut out, BURST);
    let first = Packet::parse(out.iter().next().expect("a packet")).unwrap().0.bth;
    let acknowledge = Opcode::new(Transport::Rc, Operation::Acknowledge);
    let answer = |syndrome| {
        let bth = Bth::new(acknowledge, first.dest_qpn, first.psn);
        Packet { aeth: Some(Aeth { syndrome, msn: 0 }), ..Packet::new(bth) }
    };
    for round in 0..20 {
        host.requester.receive(now, &answer(Syndrome::Rnr(1)), &[], &mut host.sends);
        let late = round % 2 == 1;
        if late {
            now += MS;
            host.requester.timeout(now, &mut host.sends);
            host.requester.transmit(now, &mut host.sends, &mut out, BURST);
        }
        host.requester.receive(now, &answer(Syndrome::Nak(NakCode::PsnSequence)), &[], &mut host.sends);
        now += MS;
        host.requester.timeout(now, &mut host.sends);
        host.requester.transmit(now, &mut host.sends, &mut out, BURST);
    }
    assert_eq!(host.sends.done, []);
}

#[test]
fn lost_packet_costs_one_nak_and_a_resend_from_there() {
    let mut net = Net::new(4, PATIENCE);
    // The third packet, once.
    net.filter = Some(|net, from, p| {
        from == 0
            && net.count(0, is(Operation::SendMiddle)) == 2
            && p.bth.opcode.operation == Operation::SendMiddle
    });
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![9; 10 * MTU as usize]);
    assert!(net.run(MS), "repaired by the NAK, before any timer");
    assert_eq!(net.count(1, nak(NakCode::PsnSequence)), 1);
    assert_eq!(net.count(0, |_| true), 10 + 8);
}

/// soft-RoCE goes back for one NAK, and for the next one only if an ACK came between.
#[test]
fn sequence_error_has_the_acknowledgement_of_what_came_before_it() {
    let mut net = Net::new(22, PATIENCE);
    net.filter = Some(|net, from, p| {
        let lost = |n| net.count(0, is(p.bth.opcode.operation)) == n;
        from == 0 && p.bth.opcode.operation == Operation::SendMiddle && [2, 24].into_iter().any(lost)
    });
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![9; 20 * MTU as usize]);
    assert!(net.run(MS));
    let answers: Vec<&Packet> = net.sent.iter().filter(|s| s.1 == 1).map(|s| &s.2).collect();
    let naks: Vec<usize> = (0..answers.len()).filter(|i| nak(NakCode::PsnSequence)(answers[*i])).collect();
    assert_eq!(naks.len(), 2, "{answers:?}");
    for at in naks {
        let [before, refused] = [answers[at - 1], answers[at]];
        assert_eq!(before.aeth.map(|a| a.syndrome), Some(Syndrome::Ack));
        assert_eq!(before.bth.psn.plus(1), refused.bth.psn);
    }
}

/// It would take an ACK with the number of an atomic or READ for its response.
#[test]
fn sequence_error_behind_an_atomic_or_read_comes_alone() {
    for opcode in [WrOpcode::FetchAdd, WrOpcode::Read] {
        let mut net = Net::new(23, PATIENCE);
        net.filter = Some(|net, from, p| {
            from == 0 && is(Operation::SendFirst)(p) && net.count(0, is(Operation::SendFirst)) == 1
        });
        net.hosts[0].sends.post(opcode, 0, vec![0; 8]);
        net.hosts[0].sends.post(WrOpcode::Send, 0, vec![9; 3 * MTU as usize]);
        assert!(net.run(MS));
        assert_eq!(
            (net.count(1, nak(NakCode::PsnSequence)), net.count(1, is(Operation::Acknowledge))),
            (1, 2),
            "{opcode:?}"
        );
    }
}

#[test]
fn lost_tail_is_repaired_by_a_probe_long_before_the_timeout() {
    let mut net = Net::new(5, PATIENCE);
    net.filter = Some(|net, from, _| from == 0 && net.sent.len() == 4);
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![9; 4 * MTU as usize]);
    assert!(net.run(TIMEOUT / 4));
    assert_eq!(net.hosts[1].receives.arrived.len(), 1);
}

/// The peer was not scheduled for a while: it has all that was sent, and takes it in its own time.
#[test]
fn what_was_only_answered_late_is_not_sent_again() {
    const MANY: u32 = 400;
    for opcode in [WrOpcode::Write, WrOpcode::Read] {
        let mut net = Net::new(21, PATIENCE);
        net.hosts[0].requester.limit_window(200);
        net.hosts[0].sends.post(opcode, 0, vec![9; (MANY * MTU) as usize]);
        assert!(!net.run(70 * US));
        net.hosts[1].naps_until = 10 * MS;
        assert!(net.run(TIMEOUT / 2), "{opcode:?}");
        let [requests, responses] = [0, 1].map(|host| net.count(host, |_| true));
        match opcode {
            WrOpcode::Write => assert!(requests <= MANY as usize + 8, "{requests}"),
            _ => assert!(responses <= MANY as usize && net.hosts[1].responder.repeats() == 0, "{responses}"),
        }
        assert_eq!(net.hosts[0].requester.history().1, 0, "no loss: {opcode:?}");
    }
}

#[test]
fn lost_ack_of_a_read_between_writes_changes_nothing_twice() {
    // WRITE, READ, WRITE, of which the READ's response is lost: the ACK of the second WRITE shows it.
    let mut net = Net::new(6, PATIENCE);
    net.filter = Some(|net, from, p| {
        from == 1
            && p.bth.opcode.operation == Operation::ReadResponseOnly
            && net.count(1, is(Operation::ReadResponseOnly)) == 1
    });
    net.hosts[0].sends.post(WrOpcode::Write, 0, vec![1; 100]);
    net.hosts[0].sends.post(WrOpcode::Read, 0, vec![0; 100]);
    net.hosts[0].sends.post(WrOpcode::Write, 200, vec![3; 100]);
    assert!(net.run(MS), "repaired by the implied NAK");
    assert_eq!(net.hosts[0].sends.requests[1].1, vec![1; 100]);
    assert_eq!(net.hosts[1].receives.memory[200..300], [3; 100]);
}

#[test]
fn read_restarts_in_the_middle() {
    let mut net = Net::new(7, PATIENCE);
    // The third response packet, once.
    net.filter = Some(|net, from, p| {
        from == 1
            && p.bth.opcode.operation == Operation::ReadResponseMiddle
            && net.count(1, is(Operation::ReadResponseMiddle)) == 2
    });
    net.hosts[0].sends.post(WrOpcode::Read, 77, vec![0; 10 * MTU as usize]);
    assert!(net.run(MS));
    let requests: Vec<_> = net.sent.iter().filter(|s| s.1 == 0).map(|s| s.2.reth.unwrap()).collect();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[1].va, requests[1].length), (77 + 2 * 256, 8 * 256));
    assert!(net.hosts[0].sends.requests[0].1 == net.hosts[1].receives.memory[77..77 + 2560]);
}

#[test]
fn lost_result_of_an_atomic_is_replayed_not_repeated() {
    for opcode in [WrOpcode::FetchAdd, WrOpcode::CmpSwap] {
        let mut net = Net::new(8, PATIENCE);
        net.hosts[1].receives.memory[..8].copy_from_slice(&1u64.to_ne_bytes());
        net.filter = Some(|net, from, _| from == 1 && net.count(1, is(Operation::AtomicAcknowledge)) == 1);
        net.hosts[0].sends.post(opcode, 0, vec![0; 8]);
        assert!(net.run(TIMEOUT / 2));
        assert_eq!(net.hosts[0].sends.requests[0].1, 1u64.to_ne_bytes());
        let after = if opcode == WrOpcode::FetchAdd { 2u64 } else { 99 };
        assert_eq!(net.hosts[1].receives.memory[..8], after.to_ne_bytes());
    }
}

#[test]
fn lost_answer_of_a_flush_or_an_atomic_write_is_replayed_not_repeated() {
    for opcode in [WrOpcode::Flush, WrOpcode::AtomicWrite] {
        let mut net = Net::new(14, PATIENCE);
        net.filter = Some(|net, from, _| from == 1 && net.count(1, is(Operation::ReadResponseOnly)) == 1);
        let length = if opcode == WrOpcode::Flush { 0 } else { 8 };
        let at = net.hosts[0].sends.post(opcode, 16, vec![0; length]) as usize;
        net.hosts[0].sends.requests[at].0.swap = 0x102;
        assert!(net.run(TIMEOUT / 2));
        assert_eq!(net.count(1, is(Operation::ReadResponseOnly)), 2);
        let peer = &net.hosts[1].receives;
        if opcode == WrOpcode::Flush {
            assert_eq!(peer.flushed, [(16, 1, 0x102)], "as posted, once");
        } else {
            assert_eq!((peer.atomic_writes, &peer.memory[16..24]), (1, &1u64.to_ne_bytes()[..]));
        }
    }
}

#[test]
fn refusals_fail_the_request_with_their_own_status() {
    let access = |net: &mut Net| net.hosts[0].sends.requests[1].0.rkey = Key(1);
    let operational = |net: &mut Net| net.hosts[1].receives.refuse = true;
    type Case = (WrOpcode, fn(&mut Net), WcStatus);
    let cases: [Case; 5] = [
        (WrOpcode::Write, access, WcStatus::RemAccessErr),
        (WrOpcode::Read, access, WcStatus::RemAccessErr),
        (WrOpcode::FetchAdd, access, WcStatus::RemAccessErr),
        (WrOpcode::AtomicWrite, access, WcStatus::RemAccessErr),
        (WrOpcode::Send, operational, WcStatus::RemOpErr),
    ];
    for (opcode, spoil, status) in cases {
        let mut net = Net::new(9, PATIENCE);
        net.hosts[0].sends.post(WrOpcode::Read, 0, vec![0; 600]);
        net.hosts[0].sends.post(opcode, 0, vec![0; 8]);
        net.hosts[0].sends.post(WrOpcode::Read, 0, vec![0; 8]);
        spoil(&mut net);
        while net.hosts[0].sends.done.iter().all(|d| d.1 == WcStatus::Success) && net.step(1 << 40) {}
        assert_eq!(net.hosts[0].sends.done, [(0, WcStatus::Success), (1, status)], "{opcode:?}");
    }
}

#[test]
fn lost_refusals_are_said_again() {
    for opcode in [WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd] {
        let mut net = Net::new(16, PATIENCE);
        // The first two, and the acknowledgement of what went before.
        net.filter = Some(|net, from, _| from == 1 && net.count(1, |_| true) <= 3);
        net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 8]);
        let at = net.hosts[0].sends.post(opcode, 0, vec![0; 8]) as usize;
        net.hosts[0].sends.requests[at].0.rkey = Key(1);
        assert!(net.run(TIMEOUT));
        assert_eq!(
            net.hosts[0].sends.done,
            [(0, WcStatus::Success), (1, WcStatus::RemAccessErr)],
            "{opcode:?}"
        );
    }
}

#[test]
fn sequence_errors_cost_no_retry_and_repeated_ones_no_resend() {
    let mut net = Net::new(17, Patience { retry_cnt: 0, ..PATIENCE });
    net.faults.repeat = 1000;
    // Each fourth packet, the first time.
    net.filter = Some(|net, from, p| {
        from == 0 && p.bth.psn.get() % 4 == 0 && net.count(0, |q| q.bth.psn == p.bth.psn) == 1
    });
    net.hosts[0].sends.post(WrOpcode::Write, 0, vec![9; 40 * MTU as usize]);
    assert!(net.run(TIMEOUT));
    assert_eq!(net.hosts[0].sends.done, [(0, WcStatus::Success)]);
}

#[test]
fn no_more_reads_and_atomics_are_outstanding_than_agreed() {
    let mut net = Net::new(10, PATIENCE);
    for i in 0..8 {
        net.hosts[0].sends.post(WrOpcode::Read, i * 100, vec![0; 100]);
    }
    net.pump();
    assert_eq!(net.sent.len(), 2);
    assert!(net.run(MS));
    let mut none = Net::new(10, Patience { max_rd_atomic: 0, ..PATIENCE });
    none.hosts[0].sends.post(WrOpcode::Read, 0, vec![0; 100]);
    assert!(none.run(MS));
    assert_eq!(none.hosts[0].sends.done, [(0, WcStatus::LocQpOpErr)]);
}

#[test]
fn bad_local_memory_fails_in_its_turn() {
    let mut net = Net::new(11, PATIENCE);
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 1000]);
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![2; 1000]);
    net.hosts[0].sends.bad_source = Some(1);
    assert!(net.run(MS));
    assert_eq!(net.hosts[0].sends.done, [(0, WcStatus::Success), (1, WcStatus::LocProtErr)]);
}

#[test]
fn window_and_acknowledgement_requests_keep_their_bounds() {
    let mut net = Net::new(12, PATIENCE);
    net.hosts[0].sends.post(WrOpcode::Write, 0, vec![1; 200 * MTU as usize]);
    net.pump();
    assert_eq!(net.sent.len(), super::super::WINDOW as usize);
    let asking: Vec<usize> = (0..64).filter(|&i| net.sent[i].2.bth.ack_req).collect();
    assert_eq!(asking, [15, 31, 47, 63]);
    assert!(net.run(MS));
    assert_eq!(net.count(0, |_| true), 200);
}

/// What the kernel is given at once is not cut short by a window that is many times as large.
#[test]
fn what_leaves_together_is_whole_where_the_window_is_wide() {
    const PACKETS: u32 = 4000;
    let mut net = Net::new(22, PATIENCE);
    let host = &mut net.hosts[0];
    host.requester.limit_window(super::super::LARGEST_WINDOW);
    host.sends.post(WrOpcode::Write, 0, vec![1; (PACKETS * MTU) as usize]);
    let (mut asked, mut sizes) = (VecDeque::new(), Vec::new());
    while host.sends.done.is_empty() {
        let mut out = Outbox::new();
        let more = host.requester.transmit(0, &mut host.sends, &mut out, BURST);
        let bths = out.iter().map(|datagram| Packet::parse(datagram).unwrap().0.bth);
        asked.extend(bths.filter(|bth| bth.ack_req));
        sizes.push(out.len());
        if !more {
            // The oldest answer comes.
            let of: Bth = asked.pop_front().expect("an answer is on its way");
            let bth = Bth::new(Opcode::new(Transport::Rc, Operation::Acknowledge), of.dest_qpn, of.psn);
            let aeth = Some(Aeth { syndrome: Syndrome::Ack, msn: 0 });
            host.requester.receive(0, &Packet { aeth, ..Packet::new(bth) }, &[], &mut host.sends);
        }
    }
    assert_eq!(sizes.iter().sum::<usize>(), PACKETS as usize);
    let sent: Vec<usize> = sizes.into_iter().filter(|n| *n > 0).collect();
    let late = &sent[sent.len() / 2..sent.len() - 1];
    assert!(late.iter().all(|n| *n == BURST.packets), "{sent:?}");
}

/// Neither end asks for each acknowledgement while both have messages; what nothing follows is asked for by a probe.
#[test]
fn short_messages_of_a_talk_are_acknowledged_together() {
    for in_talk in [false, true] {
        let mut net = Net::new(20, PATIENCE);
        net.hosts[0].requester.set_in_talk(in_talk);
        for _ in 0..20 {
            let at = net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 64]) as usize;
            net.hosts[0].sends.requests[at].0.signaled = false;
        }
        net.pump();
        let asking = net.count(0, |p| p.bth.ack_req);
        assert_eq!(asking, if in_talk { 1 } else { 20 });
        assert!(net.run(20 * MS));
        assert_eq!((net.hosts[1].receives.arrived.len(), net.hosts[0].sends.done.len()), (20, 20));
        assert_eq!(net.count(0, |_| true), if in_talk { 21 } else { 20 });
        net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 64]);
        net.pump();
        assert!(net.sent.last().is_some_and(|s| s.2.bth.ack_req), "somebody waits for this one");
    }
}

/// The peer of whoever leaves would ask in vain.
#[test]
fn who_leaves_acknowledges_what_nobody_has_asked_for() {
    let mut net = Net::new(20, PATIENCE);
    net.hosts[0].requester.set_in_talk(true);
    for last in [3, 5] {
        for _ in net.hosts[0].sends.requests.len()..last {
            let at = net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 64]) as usize;
            net.hosts[0].sends.requests[at].0.signaled = false;
        }
        assert!(!net.run(net.now + MS / 2));
        assert_eq!(
            (net.hosts[1].receives.arrived.len(), net.hosts[0].sends.done.len()),
            (last, if last == 3 { 0 } else { 3 })
        );
        assert!(net.hosts[1].responder.acknowledge_all());
        assert!(net.run(net.now + MS / 2));
        assert!(!net.hosts[1].responder.acknowledge_all(), "once");
    }
    assert_eq!((net.count(0, |_| true), net.count(1, is(Operation::Acknowledge))), (5, 2));
    // What has its answer needs no other, which a peer would take for an atomic's.
    let at = net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 64]) as usize;
    net.hosts[0].sends.requests[at].0.signaled = false;
    net.hosts[0].sends.post(WrOpcode::FetchAdd, 0, vec![0; 8]);
    assert!(net.run(net.now + MS / 2));
    assert!(!net.hosts[1].responder.acknowledge_all());
}

#[test]
fn congestion_halves_what_is_under_way_once_in_a_round_trip() {
    let mut net = Net::new(18, PATIENCE);
    net.hosts[0].sends.post(WrOpcode::Write, 0, vec![1; 200 * MTU as usize]);
    let requester = &mut net.hosts[0].requester;
    (0..3).for_each(|i| requester.congested(MS + i));
    net.pump();
    assert_eq!(net.sent.len(), super::super::WINDOW as usize / 2);
    assert!(net.run(10 * MS));
    assert_eq!(net.count(0, |_| true), 200);
}

#[test]
fn a_loss_halves_the_window_which_then_grows_slowly() {
    let mut net = Net::new(19, PATIENCE);
    net.filter = Some(|net, from, p| {
        from == 0
            && p.bth.psn == Psn::new(0xff_fff0).plus(10)
            && net.count(0, |q| q.bth.psn == p.bth.psn) == 1
    });
    net.hosts[0].sends.post(WrOpcode::Write, 0, vec![1; 400 * MTU as usize]);
    assert!(net.run(TIMEOUT));
    let lost = net.sent.iter().find(|s| nak(NakCode::PsnSequence)(&s.2)).expect("a NAK").0;
    let after: Vec<u64> = net.sent.iter().filter(|s| s.1 == 0 && s.0 > lost).map(|s| s.0).collect();
    let bursts: Vec<usize> = after.chunk_by(|a, b| a == b).map(<[u64]>::len).collect();
    assert!((30..=33).contains(&bursts[0]) && bursts[3] < 50, "{bursts:?}");
}

#[test]
fn packets_out_of_place_are_refused_as_invalid() {
    let mut net = Net::new(13, PATIENCE);
    net.hosts[0].sends.post(WrOpcode::Send, 0, vec![1; 1000]);
    let mut out = Outbox::new();
    let host = &mut net.hosts[0];
    host.requester.transmit(0, &mut host.sends, &mut out, BURST);
    // The first packet as a middle one.
    let mut bytes = out.iter().next().unwrap().to_vec();
    bytes[0] = Operation::SendMiddle as u8;
    icrc::seal(&addresses(0), &mut bytes);
    net.deliver(1, &bytes);
    let host = &mut net.hosts[1];
    out.clear();
    host.responder.transmit(&mut host.receives, &mut out, BURST);
    let (packet, _) = Packet::parse(out.iter().next().unwrap()).unwrap();
    assert_eq!(packet.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::InvalidRequest));
}
