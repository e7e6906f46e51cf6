//! A connected QP whose peer is on another host: its packets, answers and timers.
mod hurry;
mod short;

use super::pace::{Destination, Pace};
use super::route::Route;
use super::sides::{Receives, Sends};
use super::{Path, port};
use crate::soft::ah::Address;
use crate::soft::cq::Taker;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::qp::attr::Attributes;
use crate::soft::qp::requester::Requester as SendHalf;
use crate::soft::qp::responder::Responder as ReceiveHalf;
use crate::soft::stats::Event;
use crate::soft::transport::requester::{Patience, Requester};
use crate::soft::transport::responder::Responder;
use crate::soft::transport::unreliable::{Receiver, Sender};
use crate::soft::transport::{Burst, Outbox, Settings};
use crate::soft::types::{QpState, QpType};
use crate::soft::wire::{IpUdp, Packet, Transport, UDP_PORT, aeth, bth, cnp, icrc};
use crate::sys::{clock, lock::Lock};
use hurry::Hurry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What goes to the kernel at once: what it takes as one datagram, and twice as much is what the allocator does not take a mapping of its own
/// for, which might lie where the application has unmapped registered memory.
const BURST: Burst = Burst { packets: 64, bytes: 64_000 };
/// Bytes of an acknowledgement.
const ACKNOWLEDGEMENT: usize = bth::LEN + aeth::LEN + icrc::LEN;
/// Packets of READ responses in a row, before others get their turn.
const ANSWERS: usize = 1024;
/// The least time between two CNPs of a flow, nanoseconds.
const NOTIFY_EVERY: u64 = 50_000;
/// What is sent so soon after a message of the peer is an answer or the next question, nanoseconds.
const TALK: u64 = 100_000;
/// How long answers and requests wait when the socket is full, nanoseconds.
const FULL_PAUSE: u64 = 100_000;

/// The UDP side of a connected QP, from RTR until RESET.
#[derive(Debug)]
pub struct Flow {
    route: Route,
    /// The ends of packets that come from the peer.
    from_peer: icrc::Ends,
    /// Taken while the send half's lock is held.
    sending: Lock<Option<Sending>>,
    /// Taken while the receive half's lock is held.
    receiving: Lock<Receiving>,
    connection: Connection,
    /// The deadline that a timer of the node stands for, 0 for none, and whether that may be late.
    alarm: AtomicU64,
    is_patient: AtomicBool,
    /// Answers wait for their next turn.
    unfinished: AtomicBool,
    /// A message is being taken, or its answer has not left: set before anybody can see that it has come.
    owes: AtomicBool,
    /// The host that it shares with other flows, and whether it has something under way there.
    destination: Arc<Destination>,
    is_active: AtomicBool,
    /// When the peer was last told of congestion.
    notified: AtomicU64,
    /// When an acknowledgement began to wait; 0: none waits.
    owes_since: AtomicU64,
    /// Whether the next ones wait.
    hurry: Hurry,
    /// When a message last came.
    spoken_to: AtomicU64,
}

/// When the answer to a packet must leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// There is none.
    Never,
    /// It may wait for the application's own answer.
    Later,
    #[allow(missing_docs)]
    Now,
}

impl Due {
    /// `owes`: there is one; `may_wait`: it acknowledges a message that the application may answer.
    fn of(owes: bool, may_wait: bool) -> Self {
        match owes {
            true if may_wait => Due::Later,
            true => Due::Now,
            false => Due::Never,
        }
    }

    /// After one more packet.
    pub(super) fn and(self, other: Due) -> Due {
        match (self, other) {
            (Due::Never, due) | (due, Due::Never) => due,
            _ => Due::Now,
        }
    }
}

/// What both directions have in common.
#[derive(Clone, Copy, Debug)]
struct Connection {
    transport: Transport,
    remote_qpn: crate::soft::types::Qpn,
    mtu: u32,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one of each flow, and reliable ones are the rule")]
enum Sending {
    /// With what is known of its history.
    Reliable(Requester, (u64, u64)),
    Unreliable(Sender),
}

#[derive(Debug)]
enum Receiving {
    Reliable(Responder, Pace),
    Unreliable(Receiver),
}

impl Flow {
    /// The flow of a QP that moves to RTR with these attributes.
    pub(super) fn new(qp: &Qp, route: Route, attributes: &Attributes, destination: Arc<Destination>) -> Self {
        let transport = match qp.kind {
            QpType::Uc => Transport::Uc,
            QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
            QpType::Rc | QpType::Ud => Transport::Rc,
        };
        let connection =
            Connection { transport, remote_qpn: attributes.dest_qpn, mtu: attributes.path_mtu.bytes() };
        let from = connection.settings(attributes.rq_psn);
        let receiving = if transport == Transport::Uc {
            Receiving::Unreliable(Receiver::new(from))
        } else {
            let (reads, timer) = (attributes.max_dest_rd_atomic, attributes.min_rnr_timer);
            Receiving::Reliable(Responder::new(from, reads, timer), Pace::default())
        };
        let from_peer = IpUdp::new(route.path().dst, route.path().src, UDP_PORT);
        Self {
            route,
            from_peer: icrc::Ends::new(from_peer),
            sending: Lock::new(None),
            receiving: Lock::new(receiving),
            connection,
            alarm: AtomicU64::new(0),
            is_patient: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            destination,
            is_active: AtomicBool::new(false),
            notified: AtomicU64::new(0),
            owes_since: AtomicU64::new(0),
            hurry: Hurry::default(),
            spoken_to: AtomicU64::new(0),
        }
    }

    /// The kernel may cut its packets from larger ones: IPv6 has no ids, and of IPv4 this way is known to count them.
    fn joins(&self) -> bool {
        self.path().dst.is_ipv6() || self.destination.counts_ids()
    }

    /// Where its packets go.
    pub fn path(&self) -> &Path {
        self.route.path()
    }

    /// Sends what is ready; true if that was more than one burst. The caller holds the send half's lock.
    pub fn pump(&self, qp: &Qp, sq: &mut SendHalf) -> bool {
        let now = clock::now_ns();
        let mut sending = self.sending.lock();
        if !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
            return false;
        }
        let sending = sending.get_or_insert_with(|| self.connection.sending(sq));
        if let Sending::Reliable(r, known) = sending {
            r.set_patience(patience(sq));
            r.set_in_talk(now.saturating_sub(self.spoken_to.load(Ordering::Relaxed)) < TALK);
            let history = r.history();
            if history != *known {
                self.destination.tell(now, history.0 - known.0, history.1 > known.1);
                *known = history;
            }
            r.limit_window(self.destination.share(self.connection.mtu));
        }
        let (mut full, mut bursts, begun) = (false, 0, sq.queue.next);
        port::with_outbox(|out| {
            loop {
                let mut side = Sends { qp, sq, taker: &mut Taker::nobody() };
                let more = match sending {
                    Sending::Reliable(r, _) => r.transmit(now, &mut side, out, BURST),
                    Sending::Unreliable(s) => {
                        s.resume(side.sq.queue.next, side.sq.queue.tail);
                        s.transmit(&mut side, out, BURST)
                    }
                };
                side.sq.stats.sent(out.len(), out.bytes());
                if !out.is_empty() && self.owes.load(Ordering::Acquire) {
                    self.pay_along(qp, now, out, side.sq.faults.is_none());
                }
                let chance = side.sq.faults.as_mut().map(|faults| &mut faults.chance);
                qp.node.udp.send(qp.node, &self.route, out, self.joins(), chance);
                if !more {
                    break;
                }
                bursts += 1;
                full = !qp.node.udp.has_room();
                if full {
                    break;
                }
            }
        });
        if sq.queue.next != begun {
            // The application has just posted it, or a pause is over: then that was long ago.
            self.hurry.answered(now.saturating_sub(self.spoken_to.load(Ordering::Relaxed)));
        }
        if full {
            self.set_alarm(qp, Some(now + FULL_PAUSE), false);
        }
        if let Sending::Reliable(r, _) = sending {
            self.set_alarm(qp, r.deadline(), !r.waits());
            self.set_active(!r.is_idle());
        }
        bursts > 0
    }

    /// Notes whether something is under way. The lock of `sending` is held, or nobody else has the flow any more.
    fn set_active(&self, active: bool) {
        if self.is_active.load(Ordering::Relaxed) != active {
            self.is_active.store(active, Ordering::Relaxed);
            self.destination.count(active);
        }
    }

    /// A packet of the peer has met congestion on its way: the peer is told, as often as NICs do.
    pub(super) fn notify(&self, qp: &Qp) {
        let rq = qp.rq.lock();
        rq.stats.event(Event::EcnMarked, 1);
        let (now, last) = (clock::now_ns(), self.notified.load(Ordering::Relaxed));
        if now.saturating_sub(last) >= NOTIFY_EVERY {
            self.notified.store(now, Ordering::Relaxed);
            port::with_outbox(|out| {
                out.push_bytes(&cnp::emit(self.connection.remote_qpn));
                rq.stats.event(Event::CnpSent, 1);
                rq.stats.sent(out.len(), out.bytes());
                qp.node.udp.send(qp.node, &self.route, out, self.joins(), None);
            });
        }
    }

    /// A CNP: our packets have met congestion. Called with no lock held.
    pub(super) fn slow_down(&self, qp: &Qp) {
        let sq = qp.sq.lock();
        sq.stats.event(Event::CnpReceived, 1);
        sq.stats.received(1, cnp::LEN);
        if let Some(Sending::Reliable(r, _)) = &mut *self.sending.lock() {
            r.congested(clock::now_ns());
        }
    }

    /// Takes a packet that came from the peer for `qp` at `now`. Called with no lock held; `answer` follows once the batch is
    /// through, or later.
    pub(super) fn receive(
        &self,
        qp: &Qp,
        now: u64,
        packet: &Packet,
        payload: &[u8],
        taker: &mut Taker<'_>,
    ) -> Due {
        let (opcode, bytes) = (packet.bth.opcode, packet.datagram_len(payload.len()));
        if opcode.transport != self.connection.transport {
            count_dropped(qp, bytes);
            return Due::Never;
        }
        if opcode.operation.is_response() {
            let mut sq = qp.sq.lock();
            sq.stats.received(1, bytes);
            if matches!(qp.state(), QpState::Rts | QpState::Sqd)
                && let Some(Sending::Reliable(r, _)) = &mut *self.sending.lock()
            {
                r.receive(now, packet, payload, &mut Sends { qp, sq: &mut sq, taker });
            }
            return Due::Never;
        }
        let mut rq = qp.rq.lock();
        rq.stats.received(1, bytes);
        let listens = rq.listens(qp);
        match &mut *self.receiving.lock() {
            // A refusal that moved the QP to ERR may have been lost.
            Receiving::Reliable(r, _) if listens || (qp.state() == QpState::Err && r.has_last_word()) => {
                r.set_rnr_timer(rq.min_rnr_timer);
                self.owes.store(true, Ordering::Release);
                r.receive(packet, payload, &mut Receives { qp, rq: &mut rq });
                // Only what completes a receive may make the application answer.
                let completes =
                    opcode.operation.ends() && (opcode.operation.is_send() || packet.imm.is_some());
                if completes {
                    self.spoken_to.store(now, Ordering::Relaxed);
                }
                let owes = r.has_replies();
                self.owes.store(owes, Ordering::Release);
                Due::of(owes, completes && r.owes_acknowledgement())
            }
            Receiving::Unreliable(r) if listens => {
                r.receive(packet, payload, &mut Receives { qp, rq: &mut rq });
                Due::Never
            }
            _ => {
                rq.stats.event(Event::Dropped, 1);
                Due::Never
            }
        }
    }

    /// An acknowledgement is ready and may wait from `now` on; false: it may not, since the last one waited too long, or it has
    /// left with an answer already.
    pub(super) fn owe(&self, now: u64) -> bool {
        if !self.owes.load(Ordering::Relaxed) {
            return false;
        }
        if self.hurry.passes() {
            return false;
        }
        self.owes_since.store(now, Ordering::Relaxed);
        true
    }

    /// Sends the acknowledgement that waits. Called with no lock held.
    pub(super) fn pay(&self, qp: &Qp) {
        self.reply(qp, &mut qp.rq.lock());
        self.paid(clock::now_ns());
    }

    /// The QP has taken its last message: what it has taken is acknowledged, whether it was asked for or not, since nobody will
    /// be there to ask. Called with no lock held.
    pub(super) fn part(&self, qp: &Qp) {
        let mut rq = qp.rq.lock();
        let owes = match &mut *self.receiving.lock() {
            Receiving::Reliable(r, _) => r.acknowledge_all(),
            Receiving::Unreliable(_) => false,
        };
        if owes {
            self.reply(qp, &mut rq);
        }
    }

    /// Sends the acknowledgement of what has come before `out` leaves, which may be the answer: a program that has the answer finds
    /// what it answers complete. One that has waited for it goes along, behind a packet that the kernel takes as one with it (`joins`):
    /// the receiver takes such a pair's acknowledgement first. The send half's lock is held.
    #[inline(never)]
    fn pay_along(&self, qp: &Qp, now: u64, out: &mut Outbox, joins: bool) {
        // A thread that takes a message holds it until that is done.
        let mut rq = qp.rq.lock();
        let waited = self.owes_since.load(Ordering::Relaxed) != 0;
        let is_pair = waited && joins && self.joins() && out.len() == 1 && out.bytes() > ACKNOWLEDGEMENT;
        let mut receiving = self.receiving.lock();
        let Receiving::Reliable(r, _) = &mut *receiving else { return };
        if !r.owes_acknowledgement() {
            return;
        }
        if is_pair && qp.node.udp.joins() {
            let (packets, bytes) = (out.len(), out.bytes());
            r.transmit(&mut Receives { qp, rq: &mut rq }, out, Burst { packets: 1, ..BURST });
            rq.stats.sent(out.len() - packets, out.bytes() - bytes);
            self.owes.store(r.has_replies(), Ordering::Release);
        } else {
            drop(receiving);
            self.reply(qp, &mut rq);
        }
        self.paid(now);
    }

    fn paid(&self, now: u64) {
        let since = self.owes_since.swap(0, Ordering::Relaxed);
        if since != 0 {
            self.hurry.waited(now.saturating_sub(since));
        }
    }

    /// Sends what received packets have made possible: answers, if they are `due`, and further requests; true if that was more than a
    /// burst. Called with no lock held.
    pub(super) fn answer(&self, qp: &Qp, due: Due) -> bool {
        let replied = due == Due::Now && self.reply(qp, &mut qp.rq.lock());
        let mut sq = qp.sq.lock();
        if self.rests(&sq) { replied } else { self.pump(qp, &mut sq) | replied }
    }

    /// All that was posted is acknowledged: there is nothing to send.
    fn rests(&self, sq: &SendHalf) -> bool {
        let has_more = sq.queue.next != sq.queue.head;
        let rests =
            !has_more && matches!(&*self.sending.lock(), Some(Sending::Reliable(r, _)) if r.is_idle());
        if rests {
            self.set_active(false);
        }
        rests
    }

    /// A deadline has come. Called with no lock held.
    pub fn on_timer(&self, qp: &Qp, now: u64) {
        self.alarm.store(0, Ordering::Relaxed);
        if self.unfinished.load(Ordering::Relaxed) {
            self.reply(qp, &mut qp.rq.lock());
        }
        if self.is_due(now) {
            // The answer that did not come in time may only not have been read.
            qp.node.udp.take_waiting(qp.node);
        }
        let mut spent = false;
        let mut sq = qp.sq.lock();
        if !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
            return;
        }
        if let Some(Sending::Reliable(r, _)) = &mut *self.sending.lock()
            && r.deadline().is_some_and(|at| at <= now)
        {
            spent = r.timeout(now, &mut Sends { qp, sq: &mut sq, taker: &mut Taker::nobody() });
        }
        self.pump(qp, &mut sq);
        drop(sq);
        if spent {
            qp.node.udp.suspect(qp.node, now);
        }
    }

    fn is_due(&self, now: u64) -> bool {
        match &*self.sending.lock() {
            Some(Sending::Reliable(r, _)) => r.deadline().is_some_and(|at| at <= now),
            _ => false,
        }
    }

    /// Sends the answers; true if they were more than a burst.
    fn reply(&self, qp: &Qp, rq: &mut ReceiveHalf) -> bool {
        let mut receiving = self.receiving.lock();
        let Receiving::Reliable(r, pace) = &mut *receiving else { return false };
        if !r.has_replies() {
            return false;
        }
        let (mut more, mut pause, mut answers, mut bursts) = (true, 0, 0, 0);
        port::with_outbox(|out| {
            while answers < ANSWERS {
                more = r.transmit(&mut Receives { qp, rq }, out, BURST);
                rq.stats.sent(out.len(), out.bytes());
                answers += out.len();
                bursts += 1;
                let chance = rq.faults.as_mut().map(|faults| &mut faults.chance);
                qp.node.udp.send(qp.node, &self.route, out, self.joins(), chance);
                if !more {
                    break;
                }
                // What a slow network has not taken yet must not push out what follows.
                pause = if qp.node.udp.has_room() { pace.pause(r.repeats()) } else { FULL_PAUSE };
                if pause > 0 {
                    break;
                }
            }
        });
        self.owes.store(more, Ordering::Release);
        self.unfinished.store(more, Ordering::Relaxed);
        if more {
            self.set_alarm(qp, Some(clock::now_ns() + pause), false);
        }
        bursts > 1
    }

    /// Makes sure that a timer comes at `deadline` or before; an early one finds nothing to do and sets the next. `patient`: it may be
    /// a little late where a thread polls.
    fn set_alarm(&self, qp: &Qp, deadline: Option<u64>, patient: bool) {
        let Some(at) = deadline else { return };
        let set = self.alarm.load(Ordering::Relaxed);
        if set == 0 || at < set || !patient && self.is_patient.load(Ordering::Relaxed) {
            self.alarm.store(at, Ordering::Relaxed);
            self.is_patient.store(patient, Ordering::Relaxed);
            match patient {
                true => qp.node.timers.arm_patiently(qp, at),
                false => qp.node.timers.arm(qp, at),
            }
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.set_active(false);
    }
}

impl Connection {
    fn settings(&self, psn: crate::soft::types::Psn) -> Settings {
        Settings { transport: self.transport, remote_qpn: self.remote_qpn, psn, mtu: self.mtu }
    }

    fn sending(&self, sq: &SendHalf) -> Sending {
        let (to, first) = (self.settings(sq.psn), sq.queue.next);
        if self.transport == Transport::Uc {
            return Sending::Unreliable(Sender::new(to, first));
        }
        Sending::Reliable(Requester::new(to, patience(sq), first), (0, 0))
    }
}

/// A packet for `qp` that is not for its connection.
#[cold]
pub(super) fn count_dropped(qp: &Qp, bytes: usize) {
    let rq = qp.rq.lock();
    rq.stats.received(1, bytes);
    rq.stats.event(Event::Dropped, 1);
}

fn patience(sq: &SendHalf) -> Patience {
    Patience {
        timeout: sq.retry.timeout,
        retry_cnt: sq.retry.retry_cnt,
        rnr_retry: sq.retry.rnr_retry,
        max_rd_atomic: sq.max_rd_atomic,
    }
}

/// The way to an address.
pub(super) fn path_of(node: &Node, address: &Address) -> Path {
    let dst = address.dgid.ip();
    let link_local = matches!(dst, IpAddr::V6(a) if a.is_unicast_link_local());
    let interface = if link_local || dst.is_multicast() {
        node.gids().get(usize::from(address.sgid_index))
    } else {
        None
    };
    Path {
        interface: interface.map_or(0, |row| row.ifindex),
        traffic_class: address.traffic_class,
        hop_limit: address.hop_limit,
        ..Path::new(address.sgid.ip(), dst)
    }
}
