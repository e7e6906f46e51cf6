//! The receiving half of a reliable connection: packets in order become requests, answers become packets.
use super::replies::{Replies, Reply};
use super::segment::packets;
use super::{Arrival, Burst, End, Outbox, ReceiveSide, Refusal, Settings};
use crate::soft::stats::Event;
use crate::soft::types::{MAX_MESSAGE, Psn, WrOpcode};
use crate::soft::wire::{Aeth, Bth, NakCode, Opcode, Operation, Packet, Syndrome, Transport};

/// The message whose packets are arriving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Open {
    Nothing,
    Send,
    Write,
}

/// The receiving half.
#[derive(Debug)]
pub struct Responder {
    from: Settings,
    max_dest_rd_atomic: u8,
    /// The code of the time that an RNR NAK asks to wait.
    rnr_timer: u8,
    expected: Psn,
    msn: u32,
    open: Open,
    /// The last packet's bytes are placed, and only its receive is missing.
    waits_for_receive: bool,
    /// A NAK is out: later packets are dropped in silence until the expected one comes.
    nak_sent: bool,
    replies: Replies,
    /// SENDs or WRITEs were done behind the last answer, and nobody has asked for theirs.
    unasked: bool,
    dead: bool,
    /// The refusal that it died of, for a requester that did not hear it.
    last_word: Option<(Psn, Syndrome)>,
    /// READs that were asked for again after their responses had left.
    repeats: u64,
}

impl Responder {
    /// A half that expects the packet `from.psn` first. `rnr_timer` is a code of IBA table 46.
    pub fn new(from: Settings, max_dest_rd_atomic: u8, rnr_timer: u8) -> Self {
        Self {
            from,
            max_dest_rd_atomic,
            rnr_timer,
            expected: from.psn,
            msn: 0,
            open: Open::Nothing,
            waits_for_receive: false,
            nak_sent: false,
            replies: Replies::new(max_dest_rd_atomic),
            unasked: false,
            dead: false,
            last_word: None,
            repeats: 0,
        }
    }

    /// It has refused a request for good, and says so again to whoever asks again.
    pub fn has_last_word(&self) -> bool {
        self.last_word.is_some()
    }

    /// READs that were asked for again so far although they had been answered: their responses came too fast for the way or the peer.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Changes the time that RNR NAKs ask for (`IBV_QP_MIN_RNR_TIMER`).
    pub fn set_rnr_timer(&mut self, code: u8) {
        self.rnr_timer = code;
    }

    /// Answers wait to be sent.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// The only answer that waits acknowledges a whole SEND or WRITE: nothing is lost by sending it a little later.
    pub fn owes_acknowledgement(&self) -> bool {
        self.open == Open::Nothing && self.replies.is_acknowledgement()
    }

    /// Takes a request packet; the answer comes by `transmit`.
    pub fn receive(&mut self, packet: &Packet, payload: &[u8], side: &mut impl ReceiveSide) {
        if packet.bth.opcode.transport != self.from.transport {
            return;
        }
        let psn = packet.bth.psn;
        if self.dead {
            if let Some((at, syndrome)) = self.last_word.filter(|w| psn.since(w.0) <= 0)
                && self.replies.is_empty()
                && !packet.bth.opcode.operation.is_response()
            {
                self.nak(at, syndrome);
            }
            return;
        }
        match psn.since(self.expected) {
            0 => {
                self.nak_sent = false;
                let before = self.expected;
                if let Err(refusal) = self.in_order(packet, payload, side) {
                    if refusal == Refusal::NotReady {
                        side.count(Event::RnrNakSent);
                    }
                    self.refuse(psn, refusal);
                } else if self.expected != before {
                    // READs and atomics are acknowledged by their data.
                    let pushes = is_push(packet.bth.opcode.operation);
                    self.unasked = pushes && !packet.bth.ack_req;
                    if pushes && packet.bth.ack_req {
                        self.acknowledge();
                    }
                }
            }
            1.. if !self.nak_sent => {
                side.count(Event::OutOfSequence);
                self.nak_sent = true;
                // soft-RoCE goes back for one NAK, and for the next one only if an ACK came between: or it waits for its timeout.
                self.acknowledge_all();
                self.nak(self.expected, Syndrome::Nak(NakCode::PsnSequence));
            }
            1.. => side.count(Event::OutOfSequence),
            _ => {
                side.count(Event::Duplicate);
                self.repeated(packet);
            }
        }
    }

    /// A SEND of one packet with so much payload and this number is the next thing that can come.
    #[inline]
    pub fn expects_send(&self, psn: Psn, payload: usize) -> bool {
        psn == self.expected
            && !self.dead
            && self.open == Open::Nothing
            && payload <= self.from.mtu as usize
            && self.from.transport == Transport::Rc
    }

    /// Such a SEND has been carried out, or refused for good; it asked for an acknowledgement or not.
    #[inline]
    pub fn sent(&mut self, result: Result<(), Refusal>, asked: bool) {
        self.nak_sent = false;
        if let Err(refusal) = result {
            return self.refuse(self.expected, refusal);
        }
        self.msn = next(self.msn);
        self.expected = self.expected.plus(1);
        self.unasked = !asked;
        if asked {
            self.acknowledge();
        }
    }

    /// Puts answers into `out`, up to a burst; true when more could be sent at once.
    pub fn transmit(&mut self, side: &mut impl ReceiveSide, out: &mut Outbox, burst: Burst) -> bool {
        let before = out.len();
        while !out.is_full(before, burst) {
            let Some(reply) = self.replies.front_mut() else { return false };
            let done = match reply {
                Reply::Ack { psn, syndrome, msn } => {
                    let opcode = Opcode::new(self.from.transport, Operation::Acknowledge);
                    let aeth = Aeth { syndrome: *syndrome, msn: *msn };
                    out.push_aeth(&Bth::new(opcode, self.from.remote_qpn, *psn), &aeth);
                    true
                }
                Reply::Atomic { psn, original, msn } => {
                    let packet = answer(&self.from, Operation::AtomicAcknowledge, *psn, Syndrome::Ack, *msn);
                    out.push(&Packet { atomic_ack: Some(*original), ..packet }, 0);
                    true
                }
                Reply::Read { psn, rkey, va, left, started, msn, .. } => {
                    let n = (*left).min(self.from.mtu);
                    let operation = match (*started, *left == n) {
                        (false, true) => Operation::ReadResponseOnly,
                        (false, false) => Operation::ReadResponseFirst,
                        (true, false) => Operation::ReadResponseMiddle,
                        (true, true) => Operation::ReadResponseLast,
                    };
                    let packet = answer(&self.from, operation, *psn, Syndrome::Ack, *msn);
                    let read = if operation == Operation::ReadResponseMiddle {
                        let bytes = out.push_bare(&packet.bth, n as usize);
                        side.read_summing(*rkey, *va, bytes).map(|sum| out.set_sum(sum))
                    } else {
                        let bytes = out.push(&packet, n as usize);
                        if n > 0 { side.read(*rkey, *va, bytes) } else { Ok(()) }
                    };
                    if let Err(refusal) = read {
                        let at = *psn;
                        out.retract();
                        self.replies.clear();
                        self.refuse(at, refusal);
                        continue;
                    }
                    *psn = psn.plus(1);
                    *va = va.wrapping_add(u64::from(n));
                    *left -= n;
                    *started = true;
                    *left == 0
                }
            };
            if done {
                self.replies.pop();
            }
        }
        !self.replies.is_empty()
    }

    fn in_order(
        &mut self,
        packet: &Packet,
        payload: &[u8],
        side: &mut impl ReceiveSide,
    ) -> Result<(), Refusal> {
        let operation = packet.bth.opcode.operation;
        if !self.is_proper(packet, payload.len()) {
            side.violated();
            return Err(Refusal::Invalid);
        }
        if is_push(operation) {
            return self.push(packet, payload, side);
        }
        if self.max_dest_rd_atomic == 0 || self.replies.data() >= usize::from(self.max_dest_rd_atomic) {
            side.violated();
            return Err(Refusal::Invalid);
        }
        let psn = packet.bth.psn;
        if let (Operation::Flush | Operation::AtomicWrite, Some(reth)) = (operation, packet.reth) {
            let arrival = |opcode| arrival(packet, opcode, reth.va, reth.rkey);
            if operation == Operation::Flush {
                let swap = packet.feth.map_or(0, |f| u64::from(f.types) | u64::from(f.level) << 8);
                let compare_add = u64::from(reth.length);
                side.flush(&Arrival { total: Some(0), compare_add, swap, ..arrival(WrOpcode::Flush) })?;
            } else {
                let bytes = payload.try_into().map_err(|_| Refusal::Invalid)?;
                let compare_add = u64::from_ne_bytes(bytes);
                side.atomic_write(&Arrival {
                    total: Some(8),
                    compare_add,
                    ..arrival(WrOpcode::AtomicWrite)
                })?;
            }
            self.msn = next(self.msn);
            self.expected = psn.plus(1);
            self.replies.push(empty_reply(psn, self.msn));
        } else if let Some(reth) = packet.reth {
            let arrival =
                Arrival { total: Some(reth.length), ..arrival(packet, WrOpcode::Read, reth.va, reth.rkey) };
            side.check_read(&arrival)?;
            self.msn = next(self.msn);
            self.expected = psn.plus(packets(reth.length, self.from.mtu));
            self.replies.push(read_reply((psn, self.expected), packet, self.msn));
        } else if let Some(eth) = packet.atomic_eth {
            let opcode = if operation == Operation::CmpSwap { WrOpcode::CmpSwap } else { WrOpcode::FetchAdd };
            let operands = match opcode {
                WrOpcode::CmpSwap => (eth.compare, eth.swap_or_add),
                _ => (eth.swap_or_add, 0),
            };
            let arrival = arrival(packet, opcode, eth.va, eth.rkey);
            let original = side.atomic(&Arrival {
                total: Some(8),
                compare_add: operands.0,
                swap: operands.1,
                ..arrival
            })?;
            self.msn = next(self.msn);
            self.expected = psn.plus(1);
            self.replies.keep(psn, original);
            self.replies.push(Reply::Atomic { psn, original, msn: self.msn });
        }
        Ok(())
    }

    /// A packet of a SEND or WRITE.
    fn push(&mut self, packet: &Packet, payload: &[u8], side: &mut impl ReceiveSide) -> Result<(), Refusal> {
        let operation = packet.bth.opcode.operation;
        if !self.waits_for_receive {
            if operation.starts() {
                side.begin(&push_arrival(packet, payload.len()))?;
                self.open = if operation.is_send() { Open::Send } else { Open::Write };
            }
            if !payload.is_empty() {
                side.place(payload)?;
            }
        }
        if operation.ends() {
            let end = End { imm: packet.imm, invalidate: packet.ieth, solicited: packet.bth.solicited };
            let finished = side.finish(end);
            self.waits_for_receive = finished == Err(Refusal::NotReady);
            finished?;
            self.open = Open::Nothing;
            self.msn = next(self.msn);
        }
        self.expected = self.expected.plus(1);
        Ok(())
    }

    /// The packet's place in its message and its length are as they must be.
    fn is_proper(&self, packet: &Packet, payload: usize) -> bool {
        let operation = packet.bth.opcode.operation;
        let mtu = self.from.mtu as usize;
        let place = match self.open {
            _ if self.waits_for_receive => operation.ends(),
            Open::Nothing => operation.starts(),
            Open::Send => operation.is_send() && !operation.starts(),
            Open::Write => operation.is_write() && !operation.starts(),
        };
        let length = if operation.is_full() {
            payload == mtu
        } else if !operation.has_payload() {
            payload == 0
        } else {
            payload <= mtu && (operation.starts() || payload > 0)
        };
        let length = length && (operation != Operation::AtomicWrite || payload == 8);
        let total = packet.reth.is_none_or(|r| r.length <= MAX_MESSAGE);
        let only = !(operation.is_write() && operation.starts() && operation.ends())
            || packet.reth.is_some_and(|r| r.length as usize == payload);
        place && length && total && only
    }

    fn acknowledge(&mut self) {
        self.replies.acknowledge(self.expected.plus(0xff_ffff), self.msn);
    }

    /// Acknowledges what nobody has asked for yet. True when an acknowledgement, and nothing else, waits
    /// to be sent.
    pub fn acknowledge_all(&mut self) -> bool {
        if self.unasked && !self.dead {
            self.unasked = false;
            self.acknowledge();
        }
        self.replies.is_acknowledgement()
    }

    /// A packet that was carried out before: its answer may have been lost.
    fn repeated(&mut self, packet: &Packet) {
        let psn = packet.bth.psn;
        match packet.bth.opcode.operation {
            Operation::ReadRequest => {
                let Some(reth) = packet.reth.filter(|r| r.length <= MAX_MESSAGE) else { return };
                let until = psn.plus(packets(reth.length, self.from.mtu));
                if until.since(self.expected) <= 0 && self.max_dest_rd_atomic > 0 {
                    let had_left = self.replies.repeat(read_reply((psn, until), packet, self.msn));
                    self.repeats += u64::from(had_left);
                }
            }
            Operation::CmpSwap | Operation::FetchAdd => {
                if let Some(original) = self.replies.kept(psn) {
                    self.replies.repeat(Reply::Atomic { psn, original, msn: self.msn });
                }
            }
            // Done already: only the answer comes again.
            Operation::Flush | Operation::AtomicWrite => {
                self.replies.repeat(empty_reply(psn, self.msn));
            }
            operation if is_push(operation) => {
                self.replies.acknowledge_again(psn, self.expected, self.msn);
            }
            _ => {}
        }
    }

    fn refuse(&mut self, psn: Psn, refusal: Refusal) {
        let syndrome = match refusal {
            Refusal::NotReady => {
                // What follows arrives too early; the requester comes back to this packet.
                self.nak_sent = true;
                Syndrome::Rnr(self.rnr_timer)
            }
            Refusal::Invalid => Syndrome::Nak(NakCode::InvalidRequest),
            Refusal::Access => Syndrome::Nak(NakCode::RemoteAccess),
            Refusal::Operational => Syndrome::Nak(NakCode::RemoteOperational),
            Refusal::Silent => {
                self.dead = true;
                return;
            }
        };
        self.dead = refusal != Refusal::NotReady;
        if self.dead {
            self.last_word = Some((psn, syndrome));
        }
        self.nak(psn, syndrome);
    }

    fn nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.replies.push(Reply::Ack { psn, syndrome, msn: self.msn });
    }
}

fn is_push(operation: Operation) -> bool {
    operation.is_send() || operation.is_write()
}

fn next(msn: u32) -> u32 {
    (msn + 1) & 0xff_ffff
}

/// An answer without payload; READ responses in the midst have no AETH.
pub(in crate::soft) fn answer(
    to: &Settings,
    operation: Operation,
    psn: Psn,
    syndrome: Syndrome,
    msn: u32,
) -> Packet {
    let packet = Packet::new(Bth::new(Opcode::new(to.transport, operation), to.remote_qpn, psn));
    let aeth = (operation != Operation::ReadResponseMiddle).then_some(Aeth { syndrome, msn });
    Packet { aeth, ..packet }
}

fn read_reply((psn, until): (Psn, Psn), packet: &Packet, msn: u32) -> Reply {
    let (rkey, va, left) = packet.reth.map_or_else(Default::default, |r| (r.rkey, r.va, r.length));
    Reply::Read { psn, until, rkey, va, left, started: false, msn }
}

/// A READ response of no bytes, which answers FLUSH and ATOMIC WRITE.
fn empty_reply(psn: Psn, msn: u32) -> Reply {
    let until = psn.plus(1);
    Reply::Read { psn, until, rkey: Default::default(), va: 0, left: 0, started: false, msn }
}

fn arrival(packet: &Packet, opcode: WrOpcode, remote_addr: u64, rkey: crate::soft::types::Key) -> Arrival {
    let srqn = packet.srqn.unwrap_or(0);
    Arrival { opcode, total: None, remote_addr, rkey, compare_add: 0, swap: 0, srqn }
}

/// What the first packet of a SEND or WRITE tells.
pub(super) fn push_arrival(packet: &Packet, payload: usize) -> Arrival {
    let operation = packet.bth.opcode.operation;
    let opcode = match operation {
        Operation::WriteOnlyImm => WrOpcode::WriteImm,
        Operation::SendOnlyImm => WrOpcode::SendImm,
        Operation::SendOnlyInv => WrOpcode::SendInv,
        o if o.is_write() => WrOpcode::Write,
        _ => WrOpcode::Send,
    };
    match packet.reth {
        Some(reth) => Arrival { total: Some(reth.length), ..arrival(packet, opcode, reth.va, reth.rkey) },
        None => {
            let total = operation.ends().then_some(payload as u32);
            Arrival { total, ..arrival(packet, opcode, 0, Default::default()) }
        }
    }
}
