//! The sending half of a reliable connection: requests become packets, acknowledgements become completions.
//!
//! Packets are counted in 64 bits from the connection's first one; only the low 24 bits, from the first PSN on, are
//! on the wire. `una <= send <= next`: the oldest unacknowledged, the next to be sent, the first without a request.
mod answers;
mod short;

use super::segment::{self, packets, payload, pulls, pushes};
use super::timing::{Expired, Timing};
use super::window::Window;
use super::{Burst, Op, Outbox, SendSide, Settings, WINDOW};
use crate::soft::stats::Event;
use crate::soft::types::{Psn, WcStatus, WrOpcode};
use crate::soft::wire::{Bth, bth, icrc};
use std::collections::VecDeque;
use std::ops::ControlFlow::{self, Break, Continue};

/// How persistent a requester is (the attributes of the move to RTS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// The local ACK timeout's code: 4.096 us * 2^code, 0 is for ever.
    pub timeout: u8,
    /// Retries after timeouts, 0 to 7. A sequence error costs none: a peer that reports it is there.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// READs and atomics outstanding at most.
    pub max_rd_atomic: u8,
}

/// A request, or a piece of a READ, that has its packet numbers. Local requests have none.
#[derive(Debug)]
struct Flight {
    wqe: u64,
    op: Op,
    first: u64,
    packets: u32,
    /// Where in the message it starts, and how long it is.
    offset: u32,
    length: u32,
    /// Packets acknowledged, or responses taken.
    done: u32,
    ends_wqe: bool,
}

impl Flight {
    fn is_done(&self) -> bool {
        self.done == self.packets
    }
    fn awaits_data(&self) -> bool {
        pulls(self.op.opcode) && !self.is_done()
    }
}

/// The sending half.
#[derive(Debug)]
pub struct Requester {
    to: Settings,
    patience: Patience,
    timing: Timing,
    flights: VecDeque<Flight>,
    next_wqe: u64,
    /// How far the READ `next_wqe` is cut into flights, bytes.
    cut: u32,
    send: u64,
    next: u64,
    /// Behind the youngest packet that was ever sent.
    sent: u64,
    window: Window,
    /// Flights that wait for data.
    pulling: u32,
    unasked: u32,
    /// The peer has messages of its own, and more of ours are likely to follow them.
    in_talk: bool,
    retries: u8,
    rnr_retries: u8,
    /// Where the last implied loss was seen: one resend for each place.
    lost_at: Option<u64>,
    /// The packet that met no receive last, until a sequence error behind it was seen.
    unready_at: Option<u64>,
    /// A request that failed on this side; reported when its turn comes.
    broken: Option<(u64, WcStatus)>,
    dead: bool,
}

impl Requester {
    /// A half whose first request is number `wqe` of the send queue.
    pub fn new(to: Settings, patience: Patience, wqe: u64) -> Self {
        Self {
            to,
            patience,
            timing: Timing::new(patience.timeout),
            flights: VecDeque::new(),
            next_wqe: wqe,
            cut: 0,
            send: 0,
            next: 0,
            sent: 0,
            window: Window::new(),
            pulling: 0,
            unasked: 0,
            in_talk: false,
            retries: patience.retry_cnt,
            rnr_retries: patience.rnr_retry,
            lost_at: None,
            unready_at: None,
            broken: None,
            dead: false,
        }
    }

    /// Changes how persistent it is (`ibv_modify_qp` in RTS or SQD).
    pub fn set_patience(&mut self, patience: Patience) {
        if patience != self.patience {
            self.timing.set_timeout(patience.timeout);
            self.retries = self.retries.min(patience.retry_cnt);
            self.rnr_retries = self.rnr_retries.min(patience.rnr_retry);
            self.patience = patience;
        }
    }

    /// Lets the window grow to so many packets, 1 to [`LARGEST_WINDOW`](super::LARGEST_WINDOW).
    pub fn limit_window(&mut self, packets: u32) {
        self.window.limit(packets);
    }

    /// Says whether both ends answer each other: a short message whose completion nobody waits for is then acknowledged with
    /// later ones. The last one of a talk costs a probe.
    pub fn set_in_talk(&mut self, in_talk: bool) {
        self.in_talk = in_talk;
    }

    /// Packets that were acknowledged, and times that some were lost, so far.
    pub fn history(&self) -> (u64, u64) {
        (self.una(), self.window.losses())
    }

    /// The network is congested on the way to the peer.
    pub fn congested(&mut self, now: u64) {
        self.window.congested(now, self.timing.round_trip());
    }

    /// The number of the oldest packet that is not acknowledged.
    pub fn oldest(&self) -> Psn {
        self.psn(self.una())
    }

    /// When `timeout` is to be called, if at all.
    pub fn deadline(&self) -> Option<u64> {
        self.timing.deadline()
    }

    /// The deadline is what the receiver asked for, not one before which an answer comes.
    pub fn waits(&self) -> bool {
        self.timing.waits()
    }

    /// Every begun request is acknowledged.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Puts what may be sent now into `out`, a burst or nearly two; true when more could be sent at once.
    pub fn transmit(&mut self, now: u64, side: &mut impl SendSide, out: &mut Outbox, burst: Burst) -> bool {
        let (before, mut more) = (out.len(), false);
        while !self.dead && !self.timing.waits() {
            if out.is_full(before, burst) {
                more = true;
                break;
            }
            let step = if self.send == self.next {
                self.begin(now, side, out)
            } else if out.is_between_runs(burst) && self.waits_for_room(burst) {
                Break(())
            } else {
                self.send_one(now, side, out)
            };
            if step.is_break() {
                break;
            }
        }
        if !self.dead && !self.timing.waits() && self.sent > self.una() {
            self.timing.start(now);
        }
        more
    }

    /// What was waited for at `deadline` did not come; `transmit` then goes on. True when that was a local ACK timeout.
    pub fn timeout(&mut self, now: u64, side: &mut impl SendSide) -> bool {
        let expired = self.timing.expired(now);
        match expired {
            Some(Expired::Timeout) if self.retries == 0 => {
                side.count(Event::Timeout);
                self.fail_oldest(side, WcStatus::RetryExcErr);
                return true;
            }
            Some(Expired::Timeout) => {
                side.count(Event::Timeout);
                self.retries -= 1;
            }
            Some(Expired::Probe) => {}
            Some(Expired::Rnr) | None => return false,
        }
        // One packet first: its answer tells what else is missing.
        self.window.probe();
        self.lost_at = None;
        self.go_back(now, self.una(), side);
        expired == Some(Expired::Timeout)
    }

    /// Gives the next request its packet numbers, and sends it where it is the usual one; breaks when there is none, or it has to
    /// wait.
    fn begin(&mut self, now: u64, side: &mut impl SendSide, out: &mut Outbox) -> ControlFlow<()> {
        let waits_for_local = self.flights.back().is_some_and(|f| f.packets == 0);
        if self.broken.is_some() || waits_for_local {
            return Break(());
        }
        let wqe = self.next_wqe;
        let op = match side.op(wqe) {
            Some(Ok(op)) => op,
            Some(Err(status)) => return self.breaks(side, wqe, status),
            None => return Break(()),
        };
        if self.is_short(&op) {
            return self.send_short(now, op, side, out);
        }
        // Pieces of one READ count one by one: each takes a place among the responder's resources.
        if (op.fence && self.cut == 0 && self.pulling > 0)
            || (pulls(op.opcode) && self.pulling >= u32::from(self.patience.max_rd_atomic.max(1)))
        {
            return Break(());
        }
        if pulls(op.opcode) && self.patience.max_rd_atomic == 0 {
            return self.breaks(side, wqe, WcStatus::LocQpOpErr);
        }
        if self.cut == 0 {
            side.begun(wqe);
        }
        let (offset, length) = match op.opcode {
            WrOpcode::Read => (self.cut, (op.length - self.cut).min(self.window.read_chunk() * self.to.mtu)),
            _ => (0, op.length),
        };
        let count = match op.opcode {
            WrOpcode::CmpSwap | WrOpcode::FetchAdd | WrOpcode::Flush | WrOpcode::AtomicWrite => 1,
            opcode if pushes(opcode) || pulls(opcode) => packets(length, self.to.mtu),
            _ => 0,
        };
        let ends_wqe = op.opcode != WrOpcode::Read || offset + length == op.length;
        self.cut = if ends_wqe { 0 } else { offset + length };
        self.next_wqe += u64::from(ends_wqe);
        self.flights.push_back(Flight {
            wqe,
            op,
            first: self.next,
            packets: count,
            offset,
            length,
            done: 0,
            ends_wqe,
        });
        self.next += u64::from(count);
        self.pulling += u32::from(pulls(op.opcode));
        self.retire(side);
        Continue(())
    }

    /// The window would cut short what leaves together, which is small beside it: answers that make room, asked for four times in a window, are on
    /// their way.
    fn waits_for_room(&self, burst: Burst) -> bool {
        let Some(flight) = self.flights.iter().rev().find(|f| f.first <= self.send) else { return false };
        if pulls(flight.op.opcode) || flight.packets == 1 {
            return false;
        }
        let whole = (burst.bytes / (self.to.mtu as usize + bth::LEN + icrc::LEN)).min(burst.packets) as u32;
        let left = flight.packets - (self.send - flight.first) as u32;
        let (room, under_way) = (self.window.size(), (self.send - self.una()) as u32);
        room >= 6 * whole && room.saturating_sub(under_way) < whole.min(left)
    }

    /// Sends the packet at `send`; breaks when the window is full or a request is broken.
    fn send_one(&mut self, now: u64, side: &mut impl SendSide, out: &mut Outbox) -> ControlFlow<()> {
        let Some(flight) = self.flights.iter().rev().find(|f| f.first <= self.send) else { return Break(()) };
        if self.broken.is_some_and(|(wqe, _)| flight.wqe >= wqe) {
            return Break(());
        }
        let i = (self.send - flight.first) as u32;
        let in_flight = (self.send - self.una()) as u32;
        let psn = self.psn(self.send);
        let (takes, asks);
        if pulls(flight.op.opcode) {
            takes = flight.packets - i;
            asks = true;
            if in_flight > 0 && in_flight + takes > self.window.size() {
                return Break(());
            }
            let (op, to) = (&flight.op, &self.to);
            match op.opcode {
                WrOpcode::Read => {
                    let at = i * to.mtu;
                    let (offset, length) = (flight.offset + at, flight.length - at);
                    out.push(&segment::read_packet(op, to, psn, offset, length), 0);
                }
                WrOpcode::Flush => _ = out.push(&segment::flush_packet(op, to, psn), 0),
                WrOpcode::AtomicWrite => {
                    let bytes = op.compare_add.to_ne_bytes();
                    let packet = segment::atomic_write_packet(op, to, psn);
                    out.push(&packet, bytes.len()).copy_from_slice(&bytes);
                }
                _ => _ = out.push(&segment::atomic_packet(op, to, psn), 0),
            }
        } else {
            takes = 1;
            // Of short messages more under way would only mean that fewer leave together.
            let room = if flight.packets > 1 { self.window.size() } else { self.window.size().min(WINDOW) };
            if in_flight >= room {
                return Break(());
            }
            let may_wait = self.in_talk && flight.packets == 1 && !flight.op.signaled;
            asks = (i + 1 == flight.packets && !may_wait)
                || self.unasked + 1 >= self.window.ack_every()
                || in_flight + 1 >= room;
            let (wqe, at) = (flight.wqe, i * self.to.mtu);
            let length = payload(flight.length, self.to.mtu, i) as usize;
            let gathered = match segment::bare_bth(&flight.op, &self.to, psn, i, flight.packets) {
                Some(bth) => side
                    .gather_summing(wqe, at, out.push_bare(&Bth { ack_req: asks, ..bth }, length))
                    .map(|sum| out.set_sum(sum)),
                None => {
                    let mut packet = segment::push_packet(&flight.op, &self.to, psn, i, flight.packets);
                    packet.bth.ack_req = asks;
                    side.gather(wqe, at, out.push(&packet, length))
                }
            };
            if let Err(status) = gathered {
                out.retract();
                return self.breaks(side, wqe, status);
            }
        }
        if asks && self.send >= self.sent {
            self.timing.time(self.send, now);
        }
        if self.send < self.sent {
            side.count(Event::Retransmitted);
        }
        self.unasked = if asks { 0 } else { self.unasked + 1 };
        self.send += u64::from(takes);
        self.sent = self.sent.max(self.send);
        Continue(())
    }

    /// The oldest packet that is not acknowledged.
    fn una(&self) -> u64 {
        self.flights.front().map_or(self.next, |f| f.first + u64::from(f.done))
    }

    fn psn(&self, number: u64) -> Psn {
        self.to.psn.plus(number as u32)
    }

    /// Sends from packet `to` on again.
    fn go_back(&mut self, now: u64, to: u64, side: &mut impl SendSide) {
        side.count(Event::WentBack);
        self.send = to.max(self.una());
        self.unasked = 0;
        self.timing.again(now);
    }

    /// Completes what is done at the front, and reports a broken request whose turn has come.
    fn retire(&mut self, side: &mut impl SendSide) {
        loop {
            let front = self.flights.front();
            if let Some((wqe, status)) = self.broken
                && front.is_none_or(|f| f.wqe >= wqe)
            {
                return self.fail(side, wqe, status);
            }
            if !front.is_some_and(Flight::is_done) {
                break;
            }
            let Some(flight) = self.flights.pop_front() else { break };
            self.pulling -= u32::from(pulls(flight.op.opcode));
            if flight.ends_wqe {
                side.complete(flight.wqe);
            }
        }
        self.send = self.send.max(self.una());
    }

    /// Request `wqe` fails on this side, when its turn comes.
    fn breaks(&mut self, side: &mut impl SendSide, wqe: u64, status: WcStatus) -> ControlFlow<()> {
        self.broken = Some((wqe, status));
        self.retire(side);
        Break(())
    }

    fn fail_oldest(&mut self, side: &mut impl SendSide, status: WcStatus) {
        if let Some(wqe) = self.flights.front().map(|f| f.wqe) {
            self.fail(side, wqe, status);
        }
    }

    fn fail(&mut self, side: &mut impl SendSide, wqe: u64, status: WcStatus) {
        self.dead = true;
        self.flights.clear();
        self.pulling = 0;
        self.timing.stop();
        side.fail(wqe, status);
    }
}
