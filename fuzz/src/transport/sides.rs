//! What the two halves of an end drive: a send queue, and memory with receives. Both hold their callers to the rules.
use ibverbs::soft::stats::Event;
use ibverbs::soft::transport::{Arrival, End, Op, ReceiveSide, Refusal, SendSide};
use ibverbs::soft::types::{Key, WcStatus, WrOpcode};
use ibverbs::soft::wire::Transport;
use std::sync::LazyLock;

pub(super) const RKEY: Key = Key(0x77);
/// Bytes that each request has for itself in its peer's memory.
pub(super) const PLACE: usize = 1280;
/// The word that additions go to, and the one that is swapped; behind them, what READs read.
const COUNTER: u64 = (PLACE * super::REQUESTS) as u64;
const SWAPPED: u64 = COUNTER + 8;
const READABLE: u64 = COUNTER + 64;
/// Bytes of a READ at most: more packets than one request asks for.
const LONGEST_READ: usize = 9_000;
pub(super) const MEMORY: usize = READABLE as usize + LONGEST_READ + super::REQUESTS;
/// Bytes that a receive holds.
const ROOM: usize = PLACE;

/// What the memory of both ends begins with.
static INITIAL: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    [0, 1].map(|own| {
        let mut memory: Vec<u8> = (0..MEMORY).map(|i| (i * 31 + (i >> 8) * 3 + own) as u8).collect();
        memory[COUNTER as usize..][..16].fill(0);
        memory
    })
});

/// A request, and its payload or what it brought.
#[derive(Debug)]
pub(super) struct Request {
    pub op: Op,
    pub data: Vec<u8>,
}

impl Request {
    /// What arrives of it as a message.
    fn message(&self) -> Option<Arrived> {
        use WrOpcode::*;
        let imm = matches!(self.op.opcode, SendImm | WriteImm).then_some(self.op.imm);
        let arrives = matches!(self.op.opcode, Send | SendImm | SendInv | WriteImm);
        arrives.then(|| (hash(EMPTY, &self.data), self.data.len(), imm))
    }
}

/// A send queue.
#[derive(Debug)]
pub(super) struct Sends {
    pub requests: Vec<Request>,
    /// The outcome of each request that is through.
    pub done: Vec<WcStatus>,
    begun: u64,
    /// The request whose memory turns out to be bad.
    pub bad: Option<u64>,
    calls: usize,
}

impl Sends {
    pub fn new() -> Self {
        let (requests, done) = (Vec::with_capacity(super::REQUESTS), Vec::with_capacity(super::REQUESTS));
        Self { requests, done, begun: 0, bad: None, calls: 0 }
    }

    pub fn post(&mut self, opcode: WrOpcode, length: u32, fence: bool) {
        let n = self.requests.len();
        let place = (n * PLACE) as u64;
        let most = if opcode == WrOpcode::Read { LONGEST_READ } else { PLACE };
        let mut length = (length as usize).min(most);
        let (mut compare_add, mut swap) = (n as u64 + 1, 0);
        let remote_addr = match opcode {
            WrOpcode::FetchAdd => COUNTER,
            WrOpcode::CmpSwap => {
                let before = self.requests.iter().filter(|r| r.op.opcode == WrOpcode::CmpSwap).count() as u64;
                (compare_add, swap) = (before, before + 1);
                SWAPPED
            }
            WrOpcode::Read => READABLE + n as u64,
            WrOpcode::Write | WrOpcode::WriteImm | WrOpcode::Flush | WrOpcode::AtomicWrite => place,
            _ => 0,
        };
        match opcode {
            WrOpcode::FetchAdd | WrOpcode::CmpSwap | WrOpcode::AtomicWrite => length = 8,
            WrOpcode::Flush => {
                (length, compare_add, swap) = (0, PLACE as u64, 1);
            }
            WrOpcode::LocalInv => length = 0,
            _ => {}
        }
        let op = Op {
            opcode,
            length: length as u32,
            remote_addr,
            rkey: RKEY,
            imm: n as u32,
            compare_add,
            swap,
            srqn: 5,
            solicited: n.is_multiple_of(3),
            fence,
            signaled: n.is_multiple_of(2),
        };
        let data = (0..length).map(|i| (i * 13 + (i >> 8) * 5 + n * 7 + 1) as u8).collect();
        self.requests.push(Request { op, data });
    }

    pub fn failure(&self) -> Option<WcStatus> {
        self.done.last().copied().filter(|status| *status != WcStatus::Success)
    }

    pub fn take_calls(&mut self) -> usize {
        std::mem::take(&mut self.calls)
    }

    /// Request `n` is under way.
    fn current(&mut self, n: u64) -> &mut Request {
        self.calls += 1;
        assert!(self.failure().is_none(), "nothing is done after a failure");
        assert!(n < self.begun && n >= self.done.len() as u64, "request {n} is not under way");
        &mut self.requests[n as usize]
    }
}

impl SendSide for Sends {
    fn op(&self, n: u64) -> Option<Result<Op, WcStatus>> {
        let request = self.requests.get(n as usize).filter(|_| self.failure().is_none())?;
        Some(if self.bad == Some(n) && n.is_multiple_of(2) {
            Err(WcStatus::LocLenErr)
        } else {
            Ok(request.op)
        })
    }
    fn begun(&mut self, n: u64) {
        self.calls += 1;
        assert_eq!(self.begun, n, "requests begin once and in order");
        assert!(self.failure().is_none() && (n as usize) < self.requests.len());
        self.begun += 1;
    }
    fn gather(&mut self, n: u64, offset: u32, to: &mut [u8]) -> Result<(), WcStatus> {
        let is_bad = self.bad == Some(n);
        let from = &self.current(n).data[offset as usize..][..to.len()];
        to.copy_from_slice(from);
        if is_bad { Err(WcStatus::LocProtErr) } else { Ok(()) }
    }
    fn scatter(&mut self, n: u64, offset: u32, bytes: &[u8]) -> Result<(), WcStatus> {
        let is_bad = self.bad == Some(n);
        let request = self.current(n);
        assert!(matches!(request.op.opcode, WrOpcode::Read | WrOpcode::CmpSwap | WrOpcode::FetchAdd));
        request.data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        if is_bad { Err(WcStatus::LocProtErr) } else { Ok(()) }
    }
    fn complete(&mut self, n: u64) {
        self.current(n);
        assert_eq!(self.done.len() as u64, n, "completions come once and in order");
        self.done.push(WcStatus::Success);
    }
    fn fail(&mut self, n: u64, status: WcStatus) {
        self.calls += 1;
        assert!(self.failure().is_none(), "one failure is enough");
        assert_eq!(self.done.len() as u64, n, "a failure follows all that went before");
        assert!(status != WcStatus::Success && (n as usize) < self.requests.len());
        self.done.push(status);
    }
    fn count(&mut self, _: Event) {}
}

/// A message that has arrived: its bytes as a hash, how many, and its immediate data.
type Arrived = (u64, usize, Option<u32>);

#[derive(Debug)]
struct Open {
    arrival: Arrival,
    placed: usize,
    hash: u64,
    has_taken: bool,
}

/// A receive half.
#[derive(Debug)]
pub(super) struct Receives {
    memory: Vec<u8>,
    posted: u32,
    arrived: Vec<Arrived>,
    adds: usize,
    atomic_writes: usize,
    flushes: usize,
    open: Option<Open>,
    is_reliable: bool,
    /// The QP has gone to ERR.
    pub failed: bool,
    /// The region is gone for the time being.
    pub is_revoked: bool,
    /// Its receives are bad.
    pub refuses: bool,
    calls: usize,
}

impl Receives {
    pub fn new(own: usize, transport: Transport) -> Self {
        Self {
            memory: INITIAL[own].clone(),
            posted: 4,
            arrived: Vec::with_capacity(super::REQUESTS),
            adds: 0,
            atomic_writes: 0,
            flushes: 0,
            open: None,
            is_reliable: transport != Transport::Uc,
            failed: false,
            is_revoked: false,
            refuses: false,
            calls: 0,
        }
    }

    pub fn post(&mut self, n: u32) {
        self.posted = self.posted.saturating_add(n);
    }

    pub fn take_calls(&mut self) -> usize {
        std::mem::take(&mut self.calls)
    }

    fn called(&mut self) {
        self.calls += 1;
        assert!(!self.failed, "nothing is carried out after an error");
    }

    fn refuse<T>(&mut self, why: Refusal) -> Result<T, Refusal> {
        self.open = None;
        self.failed |= self.is_reliable;
        Err(why)
    }

    fn span(&mut self, rkey: Key, va: u64, n: usize) -> Result<std::ops::Range<usize>, Refusal> {
        match va.checked_add(n as u64) {
            Some(end) if rkey == RKEY && !self.is_revoked && end <= MEMORY as u64 => {
                Ok(va as usize..end as usize)
            }
            _ => self.refuse(Refusal::Access),
        }
    }

    fn take(&mut self) -> Result<(), Refusal> {
        self.posted = self.posted.checked_sub(1).ok_or(Refusal::NotReady)?;
        if self.refuses { self.refuse(Refusal::Operational) } else { Ok(()) }
    }
}

fn is_write(arrival: &Arrival) -> bool {
    matches!(arrival.opcode, WrOpcode::Write | WrOpcode::WriteImm)
}

/// FNV-1a, which goes on where it stopped.
fn hash(from: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(from, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

impl ReceiveSide for Receives {
    fn begin(&mut self, arrival: &Arrival) -> Result<(), Refusal> {
        self.called();
        assert!(
            self.open.is_none() || self.is_reliable,
            "a message of UC is given up before the next begins"
        );
        self.open = None;
        let mut has_taken = false;
        if is_write(arrival) {
            let total = arrival.total.expect("a WRITE tells its length") as usize;
            if total > 0 {
                self.span(arrival.rkey, arrival.remote_addr, total)?;
            }
            if arrival.opcode == WrOpcode::WriteImm {
                self.take()?;
                has_taken = true;
            }
        } else {
            self.take()?;
            has_taken = true;
            if arrival.total.is_some_and(|n| n as usize > ROOM) {
                return self.refuse(Refusal::Invalid);
            }
        }
        self.open = Some(Open { arrival: *arrival, placed: 0, hash: EMPTY, has_taken });
        Ok(())
    }
    fn place(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.called();
        let Some(open) = &mut self.open else { panic!("no message is open") };
        assert!(bytes.len() <= 4096);
        let (arrival, at) = (open.arrival, open.placed);
        open.placed += bytes.len();
        open.hash = hash(open.hash, bytes);
        if !is_write(&arrival) {
            return if open.placed > ROOM { self.refuse(Refusal::Invalid) } else { Ok(()) };
        }
        if arrival.total.is_some_and(|total| open.placed > total as usize) {
            return self.refuse(Refusal::Invalid);
        }
        let place = self.span(arrival.rkey, arrival.remote_addr.wrapping_add(at as u64), bytes.len())?;
        self.memory[place].copy_from_slice(bytes);
        Ok(())
    }
    fn finish(&mut self, end: End) -> Result<(), Refusal> {
        self.called();
        let Some(open) = &self.open else { panic!("no message is open") };
        let write = is_write(&open.arrival);
        if write && open.arrival.total.is_some_and(|total| open.placed != total as usize) {
            return self.refuse(Refusal::Invalid);
        }
        if write && end.imm.is_some() && !open.has_taken {
            self.take()?;
        }
        if let Some(open) = self.open.take()
            && (!write || end.imm.is_some())
            && self.arrived.len() < self.arrived.capacity()
        {
            self.arrived.push((open.hash, open.placed, end.imm));
        }
        Ok(())
    }
    fn abandon(&mut self) {
        self.called();
        if let Some(open) = self.open.take()
            && open.has_taken
        {
            self.posted += 1;
        }
    }
    fn check_read(&mut self, a: &Arrival) -> Result<(), Refusal> {
        self.called();
        match a.total.expect("a READ tells its length") {
            0 => Ok(()),
            total => self.span(a.rkey, a.remote_addr, total as usize).map(drop),
        }
    }
    fn read(&mut self, rkey: Key, va: u64, to: &mut [u8]) -> Result<(), Refusal> {
        // READs that came before what failed are still answered.
        self.calls += 1;
        let place = self.span(rkey, va, to.len())?;
        to.copy_from_slice(&self.memory[place]);
        Ok(())
    }
    fn atomic(&mut self, a: &Arrival) -> Result<u64, Refusal> {
        self.called();
        let place = self.span(a.rkey, a.remote_addr, 8)?;
        let before = u64::from_ne_bytes(self.memory[place.clone()].try_into().expect("8 bytes"));
        let after = match a.opcode {
            WrOpcode::FetchAdd => before.wrapping_add(a.compare_add),
            _ if before == a.compare_add => a.swap,
            _ => before,
        };
        self.adds += usize::from(a.opcode == WrOpcode::FetchAdd);
        self.memory[place].copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }
    fn atomic_write(&mut self, a: &Arrival) -> Result<(), Refusal> {
        self.called();
        let place = self.span(a.rkey, a.remote_addr, 8)?;
        self.memory[place].copy_from_slice(&a.compare_add.to_ne_bytes());
        self.atomic_writes += 1;
        Ok(())
    }
    fn flush(&mut self, _: &Arrival) -> Result<(), Refusal> {
        self.called();
        self.flushes += 1;
        Ok(())
    }
    fn violated(&mut self) {
        self.called();
        self.failed = true;
    }
    fn count(&mut self, _: Event) {}
}

/// Messages of UC are whole, but some may be missing, and what the network repeats or turns round arrives so.
fn verify_unreliable(sends: &Sends, peer: &Receives) {
    for got in &peer.arrived {
        assert!(
            sends.requests.iter().any(|request| request.message() == Some(*got)),
            "nobody has sent {got:?}"
        );
    }
}

/// Holds what `peer` has got against what was sent to it; of requests that failed some may be missing.
pub(super) fn verify(sends: &Sends, peer: &Receives, transport: Transport) {
    if transport == Transport::Uc {
        return verify_unreliable(sends, peer);
    }
    let all = sends.done.len() == sends.requests.len() && sends.failure().is_none();
    let completed = sends.done.iter().filter(|status| **status == WcStatus::Success).count();
    let (mut arrived, mut count, mut sum) = (peer.arrived.iter().peekable(), [0; 3], 0u64);
    for (n, request) in sends.requests.iter().enumerate() {
        let Request { op, data } = request;
        let is_sure = n < completed;
        let place = || op.remote_addr as usize..op.remote_addr as usize + data.len();
        match op.opcode {
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv | WrOpcode::WriteImm => {
                let came = arrived.next_if(|got| request.message() == Some(**got)).is_some();
                assert!(came || !is_sure, "message {n} is complete and has not arrived as it was");
            }
            WrOpcode::Write if is_sure => assert!(peer.memory[place()] == data[..], "WRITE {n} is damaged"),
            WrOpcode::Read if is_sure => assert!(peer.memory[place()] == data[..], "READ {n} is damaged"),
            WrOpcode::FetchAdd if is_sure => {
                let before = u64::from_ne_bytes(data[..].try_into().expect("8 bytes"));
                assert_eq!(before, sum, "an addition was lost or repeated");
                (count[0], sum) = (count[0] + 1, sum + op.compare_add);
            }
            WrOpcode::CmpSwap if is_sure => {
                let before = u64::from_ne_bytes(data[..].try_into().expect("8 bytes"));
                assert_eq!(before, op.compare_add, "a swap was lost or repeated");
            }
            WrOpcode::AtomicWrite => count[1] += 1,
            WrOpcode::Flush => count[2] += 1,
            _ => {}
        }
    }
    assert!(arrived.next().is_none(), "a message arrived twice, or out of order");
    let done = [peer.adds, peer.atomic_writes, peer.flushes];
    assert!(done[1] <= count[1] && done[2] <= count[2], "something was carried out twice");
    assert!(!all || done == count, "{done:?} instead of {count:?}");
}
