//! One end: both halves, what they drive, the packets that wait for it, and what it costs.
use super::{Setup, sides::Receives, sides::Sends};
use crate::{input::Input, meter};
use ibverbs::soft::transport::requester::Requester;
use ibverbs::soft::transport::responder::Responder;
use ibverbs::soft::transport::unreliable::{Receiver, Sender};
use ibverbs::soft::transport::{self, Arrival, Burst, Outbox, ReceiveSide, Refusal, Settings, WINDOW};
use ibverbs::soft::types::{Key, WrOpcode};
use ibverbs::soft::wire::bth::DEFAULT_PKEY;
use ibverbs::soft::wire::short::Short;
use ibverbs::soft::wire::{IpUdp, Packet, Transport, cnp, icrc};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// Packets that wait at most; a socket holds no more either.
const INBOX: usize = 256;
/// What one end may keep on the heap, whatever it is sent: its flights, and answers that wait.
const KEPT: isize = 64 << 10;
/// Calls into the sides that one packet may cause: a window of completions, and a few of its own.
const CALLS: usize = 2 * WINDOW as usize + 8;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one of each end")]
enum Sending {
    Reliable(Requester),
    Unreliable(Sender),
}

#[derive(Debug)]
enum Receiving {
    Reliable(Responder),
    Unreliable(Receiver),
}

#[derive(Debug)]
pub(super) struct End {
    own: usize,
    sending: Sending,
    receiving: Receiving,
    pub sends: Sends,
    pub receives: Receives,
    pub inbox: VecDeque<Vec<u8>>,
    /// Bytes that the halves hold on the heap.
    held: isize,
    transport: Transport,
}

impl End {
    pub fn new(setup: &Setup, own: usize, to: Settings, from: Settings) -> Self {
        let mut held = 0;
        let (sending, receiving) = meter::count_into(&mut held, || {
            if setup.transport == Transport::Uc {
                return (Sending::Unreliable(Sender::new(to, 0)), Receiving::Unreliable(Receiver::new(from)));
            }
            let mut requester = Requester::new(to, setup.patience, 0);
            requester.limit_window(setup.window);
            let responder = Responder::new(from, setup.max_dest_rd_atomic, setup.rnr_timer);
            (Sending::Reliable(requester), Receiving::Reliable(responder))
        });
        Self {
            own,
            sending,
            receiving,
            sends: Sends::new(),
            receives: Receives::new(own, setup.transport),
            inbox: VecDeque::with_capacity(INBOX),
            held,
            transport: setup.transport,
        }
    }

    /// It has gone to ERR.
    pub fn is_failed(&self) -> bool {
        self.receives.failed || self.sends.failure().is_some()
    }

    pub fn deadline(&self) -> Option<u64> {
        match &self.sending {
            Sending::Reliable(r) if !self.is_failed() => r.deadline(),
            _ => None,
        }
    }

    pub fn has_replies(&self) -> bool {
        match &self.receiving {
            Receiving::Reliable(r) => r.has_replies(),
            Receiving::Unreliable(_) => false,
        }
    }

    /// The other one.
    pub fn peer(&self) -> usize {
        1 - self.own
    }

    /// The number of the packet that the peer acknowledges next.
    pub fn oldest(&self) -> u32 {
        match &self.sending {
            Sending::Reliable(r) => r.oldest().get(),
            Sending::Unreliable(_) => 0,
        }
    }

    fn settle(&mut self) {
        assert!(self.held <= KEPT, "{} bytes are kept", self.held);
        let calls = self.sends.take_calls() + self.receives.take_calls();
        assert!(calls <= CALLS, "{calls} calls");
    }

    pub fn timeout(&mut self, now: u64) {
        let failed = self.is_failed();
        if let Sending::Reliable(r) = &mut self.sending
            && !failed
            && r.deadline().is_some_and(|at| at <= now)
        {
            meter::count_into(&mut self.held, || r.timeout(now, &mut self.sends));
            self.settle();
        }
    }

    /// Sends requests.
    pub fn transmit(&mut self, now: u64, budget: usize, to: &mut VecDeque<Vec<u8>>) {
        if self.is_failed() {
            return;
        }
        let (sending, sends) = (&mut self.sending, &mut self.sends);
        let out = meter::count_into(&mut self.held, || {
            let mut out = Outbox::new();
            match sending {
                Sending::Reliable(r) => r.transmit(now, sends, &mut out, burst(budget)),
                Sending::Unreliable(s) => s.transmit(sends, &mut out, burst(budget)),
            };
            out
        });
        // A burst may go on to the end of a run.
        self.send(out, 2 * budget - 1, to);
        // Local requests and completions of UC are as many as were posted.
        self.sends.take_calls();
    }

    /// Sends answers.
    pub fn answer(&mut self, budget: usize, to: &mut VecDeque<Vec<u8>>) {
        let Receiving::Reliable(r) = &mut self.receiving else { return };
        let receives = &mut self.receives;
        let out = meter::count_into(&mut self.held, || {
            let mut out = Outbox::new();
            r.transmit(receives, &mut out, burst(budget));
            out
        });
        self.send(out, 2 * budget - 1, to);
        self.settle();
    }

    fn send(&mut self, mut out: Outbox, most: usize, to: &mut VecDeque<Vec<u8>>) {
        assert!(out.len() <= most, "{} packets instead of {most}", out.len());
        for i in 0..out.len() {
            let datagram = out.get_mut(i);
            icrc::seal(&addresses(self.own), datagram);
            let (packet, payload) = Packet::parse(datagram).expect("our own packets are sound");
            assert!(packet.bth.opcode.transport == self.transport);
            assert!(packet.bth.opcode.operation.has_payload() || payload.is_empty());
            if to.len() < INBOX {
                to.push_back(datagram.to_vec());
            }
        }
        meter::count_into(&mut self.held, || drop(out));
    }

    /// Takes a datagram the short way, if it is one that may; false: nothing has been done.
    fn take_short(&mut self, now: u64, datagram: &[u8]) -> bool {
        let (Sending::Reliable(sender), Receiving::Reliable(receiver)) =
            (&mut self.sending, &mut self.receiving)
        else {
            return false;
        };
        let (sends, receives) = (&mut self.sends, &mut self.receives);
        match Short::parse(datagram) {
            Some(Short::Acknowledge { psn }) => {
                meter::count_into(&mut self.held, || sender.receive_acknowledgement(now, psn, sends));
                true
            }
            // Every other one goes the general way.
            Some(Short::Send { psn, solicited, asks, payload })
                if psn.get() % 2 == 1 && receiver.expects_send(psn, payload.len()) =>
            {
                meter::count_into(&mut self.held, || {
                    let result = match receives.begin(&arrival(payload.len())) {
                        Err(Refusal::NotReady) => return false,
                        Err(refusal) => Err(refusal),
                        Ok(()) => receives.place(&datagram[payload]).and_then(|()| {
                            receives.finish(transport::End { solicited, ..Default::default() })
                        }),
                    };
                    receiver.sent(result, asks);
                    true
                })
            }
            _ => false,
        }
    }

    /// Takes a datagram as the port and the flow of a QP do.
    pub fn take(&mut self, now: u64, datagram: &[u8]) {
        if icrc::check(&addresses(1 - self.own), datagram) == icrc::Verdict::Bad {
            return;
        }
        let failed = self.is_failed();
        if cnp::is_cnp(datagram) {
            if let Sending::Reliable(r) = &mut self.sending {
                r.congested(now);
            }
            return;
        }
        if !failed && self.transport == Transport::Rc && self.take_short(now, datagram) {
            return self.settle();
        }
        let Ok((packet, payload)) = Packet::parse(datagram) else { return };
        if packet.bth.pkey | 0x8000 != DEFAULT_PKEY
            || packet.deth.is_some()
            || packet.bth.opcode.transport != self.transport
        {
            return;
        }
        let payload = &datagram[payload];
        let (sends, receives) = (&mut self.sends, &mut self.receives);
        if packet.bth.opcode.operation.is_response() {
            if let Sending::Reliable(r) = &mut self.sending
                && !failed
            {
                meter::count_into(&mut self.held, || r.receive(now, &packet, payload, sends));
            }
        } else {
            match &mut self.receiving {
                Receiving::Reliable(r) if !failed || r.has_last_word() => {
                    meter::count_into(&mut self.held, || r.receive(&packet, payload, receives));
                }
                Receiving::Unreliable(r) if !failed => r.receive(&packet, payload, receives),
                _ => {}
            }
        }
        self.settle();
    }

    /// Something else happens to the end: its attributes change, its memory goes, its requests turn out to be bad.
    pub fn disturb(&mut self, now: u64, setup: &Setup, input: &mut Input<'_>) {
        match (input.below(7), &mut self.sending, &mut self.receiving) {
            (0, Sending::Reliable(r), _) => {
                let (timeout, retry_cnt) = (input.pick(&[0, 1, 14, 31]), input.pick(&[0, 1, 7]));
                r.set_patience(ibverbs::soft::transport::requester::Patience {
                    timeout,
                    retry_cnt,
                    ..setup.patience
                });
            }
            (1, Sending::Reliable(r), _) => r.limit_window(input.byte().into()),
            (2, Sending::Reliable(r), _) => r.congested(now),
            (3, _, Receiving::Reliable(r)) => r.set_rnr_timer(input.byte()),
            (4, ..) => self.sends.bad = Some(input.below(64).into()),
            (5, ..) => self.receives.is_revoked = !self.receives.is_revoked,
            _ => self.receives.refuses = !self.receives.refuses,
        }
    }
}

/// Of what `from` sends.
pub(super) fn addresses(from: usize) -> IpUdp {
    let ip = |n: usize| Ipv4Addr::new(10, 0, 0, n as u8 + 1).into();
    IpUdp::new(ip(from), ip(1 - from), 4791)
}

/// As many packets, of any size.
fn burst(packets: usize) -> Burst {
    Burst { packets, bytes: 1 << 30 }
}

/// A SEND of so many bytes.
fn arrival(length: usize) -> Arrival {
    Arrival {
        opcode: WrOpcode::Send,
        total: Some(length as u32),
        remote_addr: 0,
        rkey: Key::default(),
        compare_add: 0,
        swap: 0,
        srqn: 0,
    }
}
