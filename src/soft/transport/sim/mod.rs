//! Two ends joined by a network that loses, repeats, reorders and damages packets, in virtual time from a seed.
mod faults;
mod hostile;
mod rules;
mod sides;
mod storms;

use super::requester::{Patience, Requester};
use super::responder::Responder;
use super::{Arrival, Burst, End, Op, Outbox, ReceiveSide, Refusal, SendSide, Settings};
use crate::soft::types::{Key, Psn, Qpn, WcStatus, WrOpcode};
use crate::soft::wire::short::Short;
use crate::soft::wire::{IpUdp, Packet, Transport, icrc};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a host sends in one go.
const BURST: Burst = Burst { packets: 16, bytes: 64_000 };

pub use sides::{Receives, Sends};

pub const RKEY: Key = Key(0x77);
pub const MTU: u32 = 256;
pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;

/// A small random number generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub fn thousandths(&mut self, n: u64) -> bool {
        n != 0 && self.below(1000) < n
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// One end: both halves, what they drive, and the process around them.
pub struct Host {
    pub requester: Requester,
    pub responder: Responder,
    pub sends: Sends,
    pub receives: Receives,
    /// Packets that the process has not looked at.
    socket: VecDeque<Vec<u8>>,
    /// The process does nothing before this time.
    naps_until: u64,
    /// It has vanished.
    pub gone: bool,
    /// The oldest unacknowledged packet, and when it became that.
    pub oldest: (Psn, u64),
}

/// What the network does to packets, and what else disturbs; odds in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub lose: u64,
    pub repeat: u64,
    pub damage: u64,
    /// What each packet takes, nanoseconds.
    pub delay: u64,
    /// Extra delay of up to this many nanoseconds, which reorders.
    pub jitter: u64,
    /// A process is not scheduled for up to `nap` nanoseconds after this share of its turns.
    pub naps: u64,
    #[allow(missing_docs)]
    pub nap: u64,
    /// Packets that a socket holds.
    pub room: usize,
}

impl Default for Faults {
    fn default() -> Self {
        Self { lose: 0, repeat: 0, damage: 0, delay: 10 * US, jitter: 0, naps: 0, nap: 0, room: usize::MAX }
    }
}

/// How the two ends are set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub mtu: u32,
    /// The first numbers of both directions.
    pub psns: [Psn; 2],
    pub patience: Patience,
    /// READs and atomics that a responder takes.
    pub max_dest_rd_atomic: u8,
    pub rnr_timer: u8,
    /// Packets under way at most.
    pub window: u32,
    /// Multiples of 251 bytes.
    pub memory: usize,
}

type Event = Reverse<(u64, u64, usize, Vec<u8>)>;

/// Two hosts and the packets between them.
pub struct Net {
    pub hosts: [Host; 2],
    pub now: u64,
    pub random: Random,
    pub faults: Faults,
    /// Every packet that was sent: sender, packet; the filter may drop it.
    pub filter: Option<fn(&mut Net, usize, &Packet) -> bool>,
    pub sent: Vec<(u64, usize, Packet)>,
    flying: BinaryHeap<Event>,
    serial: u64,
}

impl Net {
    pub fn new(seed: u64, patience: Patience) -> Self {
        let setup = Setup {
            mtu: MTU,
            psns: [Psn::new(0xff_fff0), Psn::new(seed as u32 * 7919)],
            patience,
            max_dest_rd_atomic: 4,
            rnr_timer: 1,
            window: super::WINDOW,
            memory: 4178,
        };
        Self::with(seed, &setup)
    }

    pub fn with(seed: u64, setup: &Setup) -> Self {
        let host = |own: usize| {
            let settings = |psn| Settings {
                transport: Transport::Rc,
                remote_qpn: Qpn(1 - own as u32),
                psn,
                mtu: setup.mtu,
            };
            let mut requester = Requester::new(settings(setup.psns[own]), setup.patience, 0);
            requester.limit_window(setup.window);
            Host {
                requester,
                responder: Responder::new(
                    settings(setup.psns[1 - own]),
                    setup.max_dest_rd_atomic,
                    setup.rnr_timer,
                ),
                sends: Sends::default(),
                receives: Receives {
                    memory: (0..251).map(|i| i ^ own as u8).collect::<Vec<u8>>().repeat(setup.memory),
                    posted: 1 << 20,
                    arrived: Vec::new(),
                    abandoned: 0,
                    refuse: false,
                    atomic_writes: 0,
                    flushed: Vec::new(),
                    current: None,
                    failed: false,
                    counts: Default::default(),
                },
                socket: VecDeque::new(),
                naps_until: 0,
                gone: false,
                oldest: (setup.psns[own], 0),
            }
        };
        Self {
            hosts: [host(0), host(1)],
            now: 0,
            random: Random(seed),
            faults: Faults::default(),
            filter: None,
            sent: Vec::new(),
            flying: BinaryHeap::new(),
            serial: 0,
        }
    }

    /// Lets both ends send what they may.
    pub fn pump(&mut self) {
        for own in 0..2 {
            let mut out = Outbox::new();
            let host = &mut self.hosts[own];
            if !host.acts(self.now) {
                continue;
            }
            while host.requester.transmit(self.now, &mut host.sends, &mut out, BURST) {}
            while host.responder.transmit(&mut host.receives, &mut out, BURST) {}
            let datagrams: Vec<Vec<u8>> = out.iter().map(<[u8]>::to_vec).collect();
            for datagram in datagrams {
                self.launch(own, datagram);
            }
        }
    }

    fn launch(&mut self, from: usize, mut datagram: Vec<u8>) {
        let (packet, _) = Packet::parse(&datagram).expect("our own packets are sound");
        self.sent.push((self.now, from, packet));
        if let Some(filter) = self.filter
            && filter(self, from, &packet)
        {
            return;
        }
        icrc::seal(&addresses(from), &mut datagram);
        let copies = 1 + u64::from(self.random.thousandths(self.faults.repeat));
        for _ in 0..copies {
            if self.random.thousandths(self.faults.lose) {
                continue;
            }
            let mut bytes = datagram.clone();
            if self.random.thousandths(self.faults.damage) {
                let bit = self.random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let delay = self.faults.delay + self.random.below(self.faults.jitter + 1);
            self.serial += 1;
            self.flying.push(Reverse((self.now + delay, self.serial, 1 - from, bytes)));
        }
    }

    /// Moves on to the next thing that happens, no later than `until`; false when nothing does.
    pub fn step(&mut self, until: u64) -> bool {
        self.pump();
        let arrival = self.flying.peek().map(|Reverse(e)| e.0);
        let turns = self.hosts.iter().filter_map(|h| {
            let wants = if h.socket.is_empty() { h.requester.deadline() } else { Some(self.now) };
            wants.filter(|_| !h.gone).map(|at| at.max(h.naps_until))
        });
        let Some(next) = turns.chain(arrival).min().filter(|&t| t <= until) else { return false };
        self.now = self.now.max(next);
        while let Some(Reverse((at, ..))) = self.flying.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, _, to, bytes))) = self.flying.pop() else { break };
            let socket = &mut self.hosts[to].socket;
            if socket.len() < self.faults.room {
                socket.push_back(bytes);
            }
        }
        for own in 0..2 {
            if !self.hosts[own].acts(self.now) {
                continue;
            }
            // Packets first: what they bring may make a deadline void.
            while let Some(bytes) = self.hosts[own].socket.pop_front() {
                self.deliver(own, &bytes);
            }
            let host = &mut self.hosts[own];
            host.note_progress(self.now);
            host.requester.timeout(self.now, &mut host.sends);
            if self.random.thousandths(self.faults.naps) {
                self.hosts[own].naps_until = self.now + self.random.below(self.faults.nap + 1);
            }
        }
        true
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        if icrc::check(&addresses(1 - to), bytes) != icrc::Verdict::Exact {
            return;
        }
        let Ok((packet, payload)) = Packet::parse(bytes) else { return };
        let host = &mut self.hosts[to];
        // Half of those that may go the short way do.
        if packet.bth.psn.get() % 2 == 1 && host.takes_short(self.now, bytes) {
            return;
        }
        if packet.bth.opcode.operation.is_response() {
            host.requester.receive(self.now, &packet, &bytes[payload], &mut host.sends);
        } else {
            host.responder.receive(&packet, &bytes[payload], &mut host.receives);
        }
    }

    /// Runs until every posted request is done, or until `limit`; false at the limit.
    pub fn run(&mut self, limit: u64) -> bool {
        let done = |net: &Net| net.hosts.iter().all(|h| h.sends.done.len() == h.sends.requests.len());
        while !done(self) && self.step(limit) {}
        done(self)
    }

    /// Requests of `kind` sent by `from`.
    pub fn count(&self, from: usize, is: impl Fn(&Packet) -> bool) -> usize {
        self.sent.iter().filter(|(_, f, p)| *f == from && is(p)).count()
    }
}

impl Host {
    /// As the link takes a SEND of one packet and an acknowledgement; false: nothing has been done.
    fn takes_short(&mut self, now: u64, bytes: &[u8]) -> bool {
        match Short::parse(bytes) {
            Some(Short::Acknowledge { psn }) => {
                self.requester.receive_acknowledgement(now, psn, &mut self.sends);
                true
            }
            Some(Short::Send { psn, solicited, asks, payload }) => {
                if !self.responder.expects_send(psn, payload.len()) {
                    return false;
                }
                let arrival = Arrival {
                    opcode: WrOpcode::Send,
                    total: Some(payload.len() as u32),
                    remote_addr: 0,
                    rkey: Key::default(),
                    compare_add: 0,
                    swap: 0,
                    srqn: 0,
                };
                let side = &mut self.receives;
                let result = match side.begin(&arrival) {
                    Err(Refusal::NotReady) => return false,
                    Err(refusal) => Err(refusal),
                    Ok(()) => side
                        .place(&bytes[payload])
                        .and_then(|()| side.finish(End { solicited, ..End::default() })),
                };
                self.responder.sent(result, asks);
                true
            }
            None => false,
        }
    }

    fn acts(&self, now: u64) -> bool {
        !self.gone && self.naps_until <= now
    }

    fn note_progress(&mut self, now: u64) {
        let oldest = self.requester.oldest();
        if oldest != self.oldest.0 || self.requester.is_idle() {
            self.oldest = (oldest, now);
        }
    }
}

fn addresses(from: usize) -> IpUdp {
    let ip = |n: usize| std::net::Ipv4Addr::new(10, 0, 0, n as u8 + 1).into();
    IpUdp::new(ip(from), ip(1 - from), 4791)
}
