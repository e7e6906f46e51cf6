//! UC: the same packets without answers. A message that misses a packet is dropped as a whole.
use super::responder::push_arrival;
use super::segment::{self, packets, payload, pushes};
use super::{Burst, End, Outbox, ReceiveSide, Refusal, SendSide, Settings};
use crate::soft::stats::Event;
use crate::soft::types::{Psn, WcStatus};
use crate::soft::wire::Packet;

/// The sending half.
#[derive(Debug)]
pub struct Sender {
    to: Settings,
    psn: Psn,
    wqe: u64,
    /// Packets of request `wqe` that are sent.
    sent: u32,
    dead: bool,
}

impl Sender {
    /// A half whose first request is number `wqe` of the send queue.
    pub fn new(to: Settings, wqe: u64) -> Self {
        Self { to, psn: to.psn, wqe, sent: 0, dead: false }
    }

    /// Puts up to a burst of packets into `out`; requests complete with their last one. True when more could be sent.
    pub fn transmit(&mut self, side: &mut impl SendSide, out: &mut Outbox, burst: Burst) -> bool {
        let before = out.len();
        while !self.dead {
            let op = match side.op(self.wqe) {
                Some(Ok(op)) => op,
                Some(Err(status)) => return self.fail(side, status),
                None => return false,
            };
            if out.is_full(before, burst) {
                return true;
            }
            if self.sent == 0 {
                side.begun(self.wqe);
            }
            if pushes(op.opcode) {
                let count = packets(op.length, self.to.mtu);
                let i = self.sent;
                let packet = segment::push_packet(&op, &self.to, self.psn, i, count);
                let bytes = out.push(&packet, payload(op.length, self.to.mtu, i) as usize);
                if let Err(status) = side.gather(self.wqe, i * self.to.mtu, bytes) {
                    out.retract();
                    return self.fail(side, status);
                }
                self.psn = self.psn.plus(1);
                self.sent += 1;
                if self.sent < count {
                    continue;
                }
                self.sent = 0;
            } else if segment::pulls(op.opcode) {
                return self.fail(side, WcStatus::LocQpOpErr);
            }
            self.wqe += 1;
            side.complete(self.wqe - 1);
        }
        false
    }

    /// Goes on with request `wqe` after a failure (SQE back to RTS); those before `tail` are complete.
    pub fn resume(&mut self, wqe: u64, tail: u64) {
        if self.dead || self.wqe < tail {
            (self.wqe, self.sent, self.dead) = (wqe, 0, false);
        }
    }

    fn fail(&mut self, side: &mut impl SendSide, status: WcStatus) -> bool {
        self.dead = true;
        side.fail(self.wqe, status);
        false
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    mtu: usize,
    expected: Psn,
    /// A message is arriving, and whether it is a SEND.
    open: Option<bool>,
}

impl Receiver {
    /// A half that expects the packet `from.psn` first; any other that starts a message will do.
    pub fn new(from: Settings) -> Self {
        Self { mtu: from.mtu as usize, expected: from.psn, open: None }
    }

    /// Takes a packet.
    pub fn receive(&mut self, packet: &Packet, payload: &[u8], side: &mut impl ReceiveSide) {
        let operation = packet.bth.opcode.operation;
        let in_order = packet.bth.psn == self.expected;
        self.expected = packet.bth.psn.plus(1);
        if !in_order {
            side.count(Event::OutOfSequence);
        }
        if self.open.is_some() && (!in_order || operation.starts()) {
            self.open = None;
            side.abandon();
        }
        if operation.starts() {
            if let Err(refusal) = side.begin(&push_arrival(packet, payload.len())) {
                side.count(if refusal == Refusal::NotReady { Event::NoReceive } else { Event::Dropped });
                return;
            }
            self.open = Some(operation.is_send());
        }
        let fits = if operation.is_full() { payload.len() == self.mtu } else { payload.len() <= self.mtu };
        if self.open != Some(operation.is_send()) || !fits {
            if self.open.take().is_some() {
                side.abandon();
            }
            return;
        }
        // A refusal has dropped the message.
        let mut kept = payload.is_empty() || side.place(payload).is_ok();
        if kept && operation.ends() {
            let end = End { imm: packet.imm, invalidate: packet.ieth, solicited: packet.bth.solicited };
            if side.finish(end).is_err() {
                side.abandon();
            }
            kept = false;
        }
        if !kept {
            self.open = None;
        }
    }
}
