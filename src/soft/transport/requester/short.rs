//! The usual request in one step: a SEND that is one packet, behind all that was sent before.
use super::{Flight, Requester, segment};
use crate::soft::transport::{Op, Outbox, SendSide, WINDOW};
use crate::soft::types::WrOpcode;
use crate::soft::wire::{Bth, Transport};
use std::ops::ControlFlow::{self, Break, Continue};

impl Requester {
    /// Whether `op`, which is next, is such a request.
    #[inline]
    pub(super) fn is_short(&self, op: &Op) -> bool {
        op.opcode == WrOpcode::Send
            && op.length <= self.to.mtu
            && !op.fence
            && self.to.transport != Transport::Xrc
    }

    /// Begins and sends it, as `begin` and then `send_one` do any request. Breaks when the window is full, or it fails here.
    #[inline]
    pub(super) fn send_short(
        &mut self,
        now: u64,
        op: Op,
        side: &mut impl SendSide,
        out: &mut Outbox,
    ) -> ControlFlow<()> {
        let (wqe, number) = (self.next_wqe, self.next);
        let in_flight = (number - self.una()) as u32;
        side.begun(wqe);
        self.next_wqe += 1;
        self.next += 1;
        let (length, may_wait) = (op.length, self.in_talk && !op.signaled);
        let solicited = op.solicited;
        self.flights.push_back(Flight {
            wqe,
            op,
            first: number,
            packets: 1,
            offset: 0,
            length,
            done: 0,
            ends_wqe: true,
        });
        let room = self.window.size().min(WINDOW);
        if in_flight >= room {
            return Break(());
        }
        let asks = !may_wait || self.unasked + 1 >= self.window.ack_every() || in_flight + 1 >= room;
        let bth = Bth { solicited, ack_req: asks, ..segment::send_only(&self.to, self.psn(number)) };
        if let Err(status) = side.gather(wqe, 0, out.push_bare(&bth, length as usize)) {
            out.retract();
            return self.breaks(side, wqe, status);
        }
        if asks {
            self.timing.time(number, now);
        }
        self.unasked = if asks { 0 } else { self.unasked + 1 };
        self.send = number + 1;
        self.sent = self.send;
        Continue(())
    }
}
