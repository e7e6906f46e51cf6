//! Two ends joined by a network that loses, repeats, reorders and damages packets, in virtual time from a seed.
mod faults;
mod hostile;
mod rules;

use super::requester::{Patience, Requester};
use super::responder::Responder;
use super::{Arrival, End, Op, Outbox, ReceiveSide, Refusal, SendSide, Settings};
use crate::soft::types::{Key, Psn, Qpn, WcStatus, WrOpcode};
use crate::soft::wire::{IpUdp, Packet, Transport, icrc};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
}

/// A send queue: requests with their payload, or the place for what they bring.
#[derive(Default)]
pub struct Sends {
    pub requests: Vec<(Op, Vec<u8>)>,
    pub done: Vec<(u64, WcStatus)>,
    pub begun: u64,
    pub bad_source: Option<u64>,
}

impl Sends {
    pub fn post(&mut self, opcode: WrOpcode, remote_addr: u64, data: Vec<u8>) -> u64 {
        let op = Op {
            opcode,
            length: data.len() as u32,
            remote_addr,
            rkey: RKEY,
            imm: self.requests.len() as u32,
            compare_add: 1,
            swap: 99,
            srqn: 0,
            solicited: false,
            fence: false,
        };
        self.requests.push((op, data));
        self.requests.len() as u64 - 1
    }
}

impl SendSide for Sends {
    fn op(&self, n: u64) -> Option<Result<Op, WcStatus>> {
        self.requests.get(n as usize).map(|r| Ok(r.0))
    }
    fn begun(&mut self, n: u64) {
        assert_eq!(self.begun, n, "requests begin once and in order");
        self.begun += 1;
    }
    fn gather(&mut self, n: u64, offset: u32, to: &mut [u8]) -> Result<(), WcStatus> {
        if self.bad_source == Some(n) {
            return Err(WcStatus::LocProtErr);
        }
        to.copy_from_slice(&self.requests[n as usize].1[offset as usize..][..to.len()]);
        Ok(())
    }
    fn scatter(&mut self, n: u64, offset: u32, bytes: &[u8]) -> Result<(), WcStatus> {
        self.requests[n as usize].1[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn complete(&mut self, n: u64) {
        assert_eq!(self.done.len() as u64, n, "completions come once and in order");
        self.done.push((n, WcStatus::Success));
    }
    fn fail(&mut self, n: u64, status: WcStatus) {
        assert_eq!(self.done.len() as u64, n, "a failure follows all that went before");
        self.done.push((n, status));
    }
}

/// A receive half: memory that the peer reaches, and receives.
pub struct Receives {
    pub memory: Vec<u8>,
    pub posted: u32,
    pub arrived: Vec<(Vec<u8>, Option<u32>)>,
    pub abandoned: u32,
    pub refuse: bool,
    pub atomic_writes: u32,
    /// Address, bytes, and types with level.
    pub flushed: Vec<(u64, u64, u64)>,
    current: Option<(Arrival, Vec<u8>, bool)>,
    failed: bool,
}

impl Receives {
    fn span(&self, rkey: Key, va: u64, n: u64) -> Result<std::ops::Range<usize>, Refusal> {
        let end = va.checked_add(n).ok_or(Refusal::Access)?;
        if rkey != RKEY || end > self.memory.len() as u64 {
            return Err(Refusal::Access);
        }
        Ok(va as usize..end as usize)
    }
    fn take(&mut self) -> Result<(), Refusal> {
        self.posted = self.posted.checked_sub(1).ok_or(Refusal::NotReady)?;
        Ok(())
    }
}

impl ReceiveSide for Receives {
    fn begin(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        assert!(!self.failed, "nothing is carried out after an error");
        self.current = None;
        if self.refuse {
            self.failed = true;
            return Err(Refusal::Operational);
        }
        let mut taken = false;
        if matches!(arrival.opcode, WrOpcode::Write | WrOpcode::WriteImm) {
            self.span(arrival.rkey, arrival.remote_addr, u64::from(arrival.total.unwrap())).inspect_err(
                |_| {
                    self.failed = true;
                },
            )?;
        } else {
            self.take()?;
            taken = true;
        }
        self.current = Some((*arrival, Vec::new(), taken));
        Ok(())
    }
    fn place(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let (arrival, data, _) = self.current.as_mut().expect("a message is open");
        let at = arrival.remote_addr as usize + data.len();
        data.extend_from_slice(bytes);
        if matches!(arrival.opcode, WrOpcode::Write | WrOpcode::WriteImm) {
            if arrival.total.is_some_and(|total| data.len() > total as usize) {
                (self.failed, self.current) = (true, None);
                return Err(Refusal::Invalid);
            }
            self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }
    fn finish(&mut self, end: End) -> Result<(), Refusal> {
        let (arrival, _, taken) = self.current.as_ref().expect("a message is open");
        let write = matches!(arrival.opcode, WrOpcode::Write | WrOpcode::WriteImm);
        if write && end.imm.is_some() && !taken {
            self.take()?;
        }
        let (_, data, _) = self.current.take().unwrap();
        if !write || end.imm.is_some() {
            self.arrived.push((data, end.imm));
        }
        Ok(())
    }
    fn abandon(&mut self) {
        if let Some((_, _, true)) = self.current.take() {
            self.posted += 1;
        }
        self.abandoned += 1;
    }
    fn check_read(&mut self, a: &Arrival) -> Result<(), Refusal> {
        self.span(a.rkey, a.remote_addr, u64::from(a.total.unwrap()))
            .map(drop)
            .inspect_err(|_| self.failed = true)
    }
    fn read(&mut self, rkey: Key, va: u64, to: &mut [u8]) -> Result<(), Refusal> {
        to.copy_from_slice(&self.memory[self.span(rkey, va, to.len() as u64)?]);
        Ok(())
    }
    fn atomic(&mut self, a: &Arrival) -> Result<u64, Refusal> {
        let span = self.span(a.rkey, a.remote_addr, 8)?;
        let before = u64::from_ne_bytes(self.memory[span.clone()].try_into().unwrap());
        let after = match a.opcode {
            WrOpcode::FetchAdd => before.wrapping_add(a.compare_add),
            _ if before == a.compare_add => a.swap,
            _ => before,
        };
        self.memory[span].copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }
    fn atomic_write(&mut self, a: &Arrival) -> Result<(), Refusal> {
        let span = self.span(a.rkey, a.remote_addr, 8).inspect_err(|_| self.failed = true)?;
        self.memory[span].copy_from_slice(&a.compare_add.to_ne_bytes());
        self.atomic_writes += 1;
        Ok(())
    }
    fn flush(&mut self, a: &Arrival) -> Result<(), Refusal> {
        self.flushed.push((a.remote_addr, a.compare_add, a.swap));
        Ok(())
    }
    fn violated(&mut self) {
        self.failed = true;
    }
}

/// One end: both halves and what they drive.
pub struct Host {
    pub requester: Requester,
    pub responder: Responder,
    pub sends: Sends,
    pub receives: Receives,
}

/// What the network does to packets, in percent each.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lose: u64,
    pub repeat: u64,
    pub damage: u64,
    /// Extra delay of up to this many nanoseconds, which reorders.
    pub jitter: u64,
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
        let psns = [Psn::new(0xff_fff0), Psn::new(seed as u32 * 7919)];
        let host = |own: usize| {
            let settings =
                |psn| Settings { transport: Transport::Rc, remote_qpn: Qpn(1 - own as u32), psn, mtu: MTU };
            Host {
                requester: Requester::new(settings(psns[own]), patience, 0),
                responder: Responder::new(settings(psns[1 - own]), 4, 1),
                sends: Sends::default(),
                receives: Receives {
                    memory: (0..251).map(|i| i ^ own as u8).collect::<Vec<u8>>().repeat(4178),
                    posted: 1 << 20,
                    arrived: Vec::new(),
                    abandoned: 0,
                    refuse: false,
                    atomic_writes: 0,
                    flushed: Vec::new(),
                    current: None,
                    failed: false,
                },
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
            while host.requester.transmit(self.now, &mut host.sends, &mut out, 16) {}
            while host.responder.transmit(&mut host.receives, &mut out, 16) {}
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
        let copies = 1 + u64::from(self.random.chance(self.faults.repeat));
        for _ in 0..copies {
            if self.random.chance(self.faults.lose) {
                continue;
            }
            let mut bytes = datagram.clone();
            if self.random.chance(self.faults.damage) {
                let bit = self.random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let delay = 10 * US + self.random.below(self.faults.jitter + 1);
            self.serial += 1;
            self.flying.push(Reverse((self.now + delay, self.serial, 1 - from, bytes)));
        }
    }

    /// Moves on to the next thing that happens, no later than `until`; false when nothing does.
    pub fn step(&mut self, until: u64) -> bool {
        self.pump();
        let arrival = self.flying.peek().map(|Reverse(e)| e.0);
        let deadlines = self.hosts.iter().filter_map(|h| h.requester.deadline());
        let Some(next) = deadlines.chain(arrival).min().filter(|&t| t <= until) else { return false };
        self.now = self.now.max(next);
        for host in &mut self.hosts {
            host.requester.timeout(self.now, &mut host.sends);
        }
        while let Some(Reverse((at, ..))) = self.flying.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, _, to, bytes))) = self.flying.pop() else { break };
            self.deliver(to, &bytes);
        }
        true
    }

    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        if icrc::check(&addresses(1 - to), bytes) != icrc::Verdict::Exact {
            return;
        }
        let Ok((packet, payload)) = Packet::parse(bytes) else { return };
        let host = &mut self.hosts[to];
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

fn addresses(from: usize) -> IpUdp {
    let ip = |n: usize| std::net::Ipv4Addr::new(10, 0, 0, n as u8 + 1).into();
    IpUdp::new(ip(from), ip(1 - from), 4791)
}
