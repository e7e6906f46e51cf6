//! What comes back: acknowledgements, refusals, READ responses, atomic results.
use super::{Requester, segment};
use crate::soft::stats::Event;
use crate::soft::transport::SendSide;
use crate::soft::transport::segment::{pulls, pushes};
use crate::soft::types::{Psn, WcStatus, WrOpcode};
use crate::soft::wire::{NakCode, Operation, Packet, Syndrome, aeth};

impl Requester {
    /// Takes a packet for which `operation.is_response()`. Afterwards `transmit` may have more to send.
    pub fn receive(&mut self, now: u64, packet: &Packet, payload: &[u8], side: &mut impl SendSide) {
        self.timing.hear();
        if packet.bth.becn {
            self.congested(now);
        }
        let Some(number) = self.number_of(packet.bth.psn) else { return };
        match (packet.bth.opcode.operation, packet.aeth) {
            (Operation::Acknowledge, Some(aeth)) => match aeth.syndrome {
                Syndrome::Ack => self.acknowledged(now, number, side),
                Syndrome::Rnr(code) => self.not_ready(now, number, code, side),
                Syndrome::Nak(code) => self.refused(now, number, code, side),
            },
            _ => self.data(now, number, packet, payload, side),
        }
    }

    /// The same for an acknowledgement that says nothing else.
    pub fn receive_acknowledgement(&mut self, now: u64, psn: Psn, side: &mut impl SendSide) {
        self.timing.hear();
        if let Some(number) = self.number_of(psn) {
            self.acknowledged(now, number, side);
        }
    }

    /// The packet under way that an answer with this number is to. Behind: a repeated answer. Beyond all that was sent: not for this
    /// connection.
    #[inline]
    fn number_of(&self, psn: Psn) -> Option<u64> {
        let una = self.una();
        let ahead = psn.since(self.psn(una));
        let number = una + u64::try_from(ahead).ok()?;
        (!self.dead && number < self.sent).then_some(number)
    }

    fn acknowledged(&mut self, now: u64, number: u64, side: &mut impl SendSide) {
        if self.acknowledge(now, number + 1, side) {
            side.count(Event::ImpliedLoss);
            self.implied_loss(now, side);
        }
    }

    /// All packets before `upto` have arrived. READs and atomics among them are not done by that; true when one
    /// stands in the way, whose response must have been lost.
    fn acknowledge(&mut self, now: u64, upto: u64, side: &mut impl SendSide) -> bool {
        let before = self.una();
        let mut lost = false;
        for flight in &mut self.flights {
            if flight.first >= upto {
                break;
            }
            if flight.awaits_data() {
                lost = true;
                break;
            }
            if pushes(flight.op.opcode) {
                let arrived = (upto - flight.first).min(u64::from(flight.packets)) as u32;
                flight.done = flight.done.max(arrived);
            }
        }
        self.retire(side);
        self.progress(now, before, false);
        lost
    }

    /// `pulled`: by data, of which each packet acknowledges itself only.
    fn progress(&mut self, now: u64, before: u64, pulled: bool) {
        let una = self.una();
        if una > before && !self.dead {
            self.retries = self.patience.retry_cnt;
            self.rnr_retries = self.patience.rnr_retry;
            let late = self.timing.is_late(now);
            let had_arrived =
                self.window.widen((una - before) as u32, (self.sent - before) as u32, late && pulled);
            if had_arrived && late {
                self.send = self.sent;
            }
            self.timing.progress(now, una, self.sent > una);
        }
    }

    /// An answer shows that an earlier one, or its request, was lost.
    fn implied_loss(&mut self, now: u64, side: &mut impl SendSide) {
        let una = self.una();
        if self.dead || self.lost_at == Some(una) {
            return;
        }
        self.lost_at = Some(una);
        self.window.narrow();
        self.go_back(now, una, side);
    }

    fn not_ready(&mut self, now: u64, number: u64, code: u8, side: &mut impl SendSide) {
        side.count(Event::RnrNakReceived);
        self.acknowledge(now, number, side);
        if self.dead || self.timing.waits() {
            return;
        }
        if self.una() != number {
            return self.implied_loss(now, side);
        }
        if self.patience.rnr_retry < 7 {
            if self.rnr_retries == 0 {
                return self.fail_oldest(side, WcStatus::RnrRetryExcErr);
            }
            self.rnr_retries -= 1;
        }
        self.unready_at = Some(number);
        self.go_back(now, number, side);
        self.timing.wait_for_receiver(now + aeth::rnr_nanos(code));
    }

    fn refused(&mut self, now: u64, number: u64, code: NakCode, side: &mut impl SendSide) {
        if code == NakCode::PsnSequence {
            side.count(Event::SequenceNakReceived);
        }
        self.acknowledge(now, number, side);
        if self.dead {
            return;
        }
        if self.una() != number {
            return self.implied_loss(now, side);
        }
        let status = match code {
            // rxe refuses the packets behind an RNR NAK as well. They are sent again anyway, and nothing was lost.
            NakCode::PsnSequence if self.timing.waits() || self.unready_at == Some(number) => {
                self.unready_at = None;
                return;
            }
            // The same refusal again, of packets that have long been followed by others, finds `lost_at` here.
            NakCode::PsnSequence => return self.implied_loss(now, side),
            NakCode::InvalidRequest => WcStatus::RemInvReqErr,
            NakCode::RemoteAccess => WcStatus::RemAccessErr,
            NakCode::RemoteOperational => WcStatus::RemOpErr,
        };
        self.fail_oldest(side, status);
    }

    /// A READ response or an atomic's result.
    fn data(&mut self, now: u64, number: u64, packet: &Packet, payload: &[u8], side: &mut impl SendSide) {
        let Some(flight) = self.flights.iter().find(|f| f.awaits_data()) else { return };
        let (first, expected) = (flight.first, flight.first + u64::from(flight.done));
        if number < expected {
            return;
        }
        // A response acknowledges all requests before its own.
        self.acknowledge(now, first, side);
        if self.dead {
            return;
        }
        if number > expected {
            side.count(Event::ImpliedLoss);
            return self.implied_loss(now, side);
        }
        let Some(flight) = self.flights.front_mut().filter(|f| f.first == first && pulls(f.op.opcode)) else {
            return;
        };
        let (wqe, i) = (flight.wqe, flight.done);
        let opcode = flight.op.opcode;
        let outcome = if matches!(opcode, WrOpcode::Flush | WrOpcode::AtomicWrite) {
            let is_empty = packet.atomic_ack.is_none() && payload.is_empty();
            if is_empty { Ok(()) } else { Err(WcStatus::BadRespErr) }
        } else if opcode == WrOpcode::Read {
            let wanted = segment::payload(flight.length, self.to.mtu, i);
            if packet.atomic_ack.is_some() || payload.len() != wanted as usize {
                Err(WcStatus::BadRespErr)
            } else {
                side.scatter(wqe, flight.offset + i * self.to.mtu, payload)
            }
        } else {
            match packet.atomic_ack {
                Some(original) => side.scatter(wqe, 0, &original.to_ne_bytes()),
                None => Err(WcStatus::BadRespErr),
            }
        };
        if let Err(status) = outcome {
            return self.fail(side, wqe, status);
        }
        flight.done += 1;
        let before = number;
        self.retire(side);
        self.progress(now, before, true);
    }
}
