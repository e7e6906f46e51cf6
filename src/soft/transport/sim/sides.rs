//! What the two ends of a simulated connection drive: a send queue, and memory with receives.
use super::{Arrival, End, Key, Op, RKEY, ReceiveSide, Refusal, SendSide, WcStatus, WrOpcode};
use crate::soft::stats::Event;

/// A send queue: requests with their payload, or the place for what they bring.
#[derive(Default)]
pub struct Sends {
    pub requests: Vec<(Op, Vec<u8>)>,
    pub done: Vec<(u64, WcStatus)>,
    pub begun: u64,
    pub bad_source: Option<u64>,
    pub counts: Counts,
}

/// What happened, by [`Event`].
#[derive(Clone, Copy, Debug)]
pub struct Counts([u64; Event::CnpReceived as usize + 1]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; Event::CnpReceived as usize + 1])
    }
}

impl Counts {
    pub fn of(&self, what: Event) -> u64 {
        self.0[what as usize]
    }

    fn add(&mut self, what: Event) {
        self.0[what as usize] += 1;
    }
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
            signaled: true,
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
    fn count(&mut self, what: Event) {
        self.counts.add(what);
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
    /// The message that is arriving, its bytes so far, whether it has taken a receive.
    pub(super) current: Option<(Arrival, Vec<u8>, bool)>,
    pub failed: bool,
    pub counts: Counts,
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
    fn count(&mut self, what: Event) {
        self.counts.add(what);
    }
}
