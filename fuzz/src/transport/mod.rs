//! Two ends of a connection, with whatever an input does between them: requests, time, loss, repetition, other order, and
//! where the input says so packets that no honest peer sends, each with a right ICRC.
//!
//! Always: nothing panics; requests begin and complete once and in order; memory is touched within its bounds and not after
//! an error; a packet makes us do and keep no more than a bounded amount. Without forgery: all data is exact, atomics are
//! carried out once, and everything completes in the end.
mod end;
mod forge;
mod sides;

use crate::input::Input;
use end::End;
use ibverbs::soft::transport::requester::Patience;
use ibverbs::soft::transport::{Settings, WINDOW};
use ibverbs::soft::types::{Psn, Qpn, WcStatus, WrOpcode};
use ibverbs::soft::wire::Transport;

/// Decisions of one input at most.
const STEPS: usize = 600;
/// Requests of one end at most.
const REQUESTS: usize = 32;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Plays one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    if !world.is_hostile {
        world.end_well();
    }
}

/// How both ends are set up.
#[derive(Clone, Copy, Debug)]
struct Setup {
    transport: Transport,
    mtu: u32,
    patience: Patience,
    max_dest_rd_atomic: u8,
    rnr_timer: u8,
    window: u32,
}

#[derive(Debug)]
struct World {
    setup: Setup,
    is_hostile: bool,
    now: u64,
    ends: [End; 2],
    /// Once is enough for an input.
    flooded: bool,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let is_hostile = input.below(2) == 1;
        let transport = input.pick(&[Transport::Rc, Transport::Xrc, Transport::Uc]);
        let max_rd_atomic = input.pick(&[4, 1, 2, 16, 0]);
        let patience = Patience {
            timeout: input.pick(&[0, 1, 14, 31]),
            retry_cnt: input.pick(&[7, 0, 1]),
            rnr_retry: input.pick(&[7, 0, 1]),
            max_rd_atomic,
        };
        let setup = Setup {
            transport,
            mtu: input.pick(&[256, 512]),
            patience,
            max_dest_rd_atomic: if is_hostile { input.pick(&[4, 0, 1, 16]) } else { max_rd_atomic.max(4) },
            rnr_timer: input.pick(&[1, 0, 31]),
            window: input.pick(&[WINDOW, 1, 2, 8]),
        };
        let psns = [Psn::new(0xff_fff8), Psn::new(0)];
        let ends = [0, 1].map(|own: usize| {
            let settings = |psn| Settings { transport, remote_qpn: Qpn(1 - own as u32), psn, mtu: setup.mtu };
            End::new(&setup, own, settings(psns[own]), settings(psns[1 - own]))
        });
        Self { setup, is_hostile, now: 0, ends, flooded: false }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.below(if self.is_hostile { 15 } else { 10 });
        let own = input.below(2) as usize;
        match what {
            0 => self.post(own, input),
            1 => self.ends[own].receives.post(input.below(8)),
            2 => {
                // A life's worth at most: times are counted in 64 bits.
                self.now += input.pick(&[US, 50 * US, MS, 10 * MS, 300 * MS, 20_000 * MS]);
                self.ends.iter_mut().for_each(|end| end.timeout(self.now));
            }
            3 => self.transmit(own, 1 + input.below(16) as usize),
            4 => self.answer(own, 1 + input.below(16) as usize),
            5 => self.deliver(own, 0),
            6 => {
                let at = input.below(16) as usize;
                self.deliver(own, at);
            }
            7 => drop(self.ends[own].inbox.pop_front()),
            8 => {
                let at = input.below(16) as usize;
                if let Some(packet) = self.ends[own].inbox.get(at).cloned() {
                    self.ends[own].take(self.now, &packet);
                }
            }
            9 => {
                for _ in 0..input.below(24) {
                    self.transmit(own, 8);
                    self.answer(own, 8);
                    self.deliver(own, 0);
                    self.deliver(1 - own, 0);
                }
            }
            10 => {
                let packet = forge::any(&self.setup, &self.ends[own], input);
                self.ends[own].take(self.now, &packet);
            }
            11 => {
                let at = input.below(16) as usize;
                if let Some(mut packet) = self.ends[own].inbox.remove(at) {
                    forge::spoil(&mut packet, input);
                    self.ends[own].take(self.now, &packet);
                }
            }
            12 => {
                let packet = forge::raw(input);
                self.ends[own].take(self.now, &packet);
            }
            13 if !self.flooded => {
                self.flooded = true;
                let mut packet = forge::any(&self.setup, &self.ends[own], input);
                let (count, stride) = (input.below(4) * 700, input.below(3));
                self.flood(own, &mut packet, count, stride);
            }
            _ => self.ends[own].disturb(self.now, &self.setup, input),
        }
    }

    /// The same packet many times, each with a number `stride` below the one before it.
    fn flood(&mut self, own: usize, packet: &mut [u8], count: u32, stride: u32) {
        for _ in 0..count {
            self.ends[own].take(self.now, packet);
            forge::step_back(&self.ends[own], packet, stride);
        }
    }

    /// Posts a request; places of requests are apart, so that the outcome does not depend on timing.
    fn post(&mut self, own: usize, input: &mut Input<'_>) {
        let end = &mut self.ends[own];
        if end.sends.requests.len() == REQUESTS {
            return;
        }
        use WrOpcode::*;
        let opcode = match self.setup.transport {
            Transport::Uc => input.pick(&[Send, SendImm, Write, WriteImm, LocalInv]),
            Transport::Xrc => {
                input.pick(&[Send, SendImm, SendInv, Write, WriteImm, Read, CmpSwap, FetchAdd, LocalInv])
            }
            _ => input.pick(&[
                Send,
                SendImm,
                SendInv,
                Write,
                WriteImm,
                Read,
                CmpSwap,
                FetchAdd,
                LocalInv,
                Flush,
                AtomicWrite,
            ]),
        };
        let mtu = self.setup.mtu;
        let length = match input.below(4) {
            0 => input.below(9),
            1 => mtu * input.below(4),
            2 => input.below(3 * mtu),
            _ => u32::MAX,
        };
        let fence = input.below(8) == 7;
        end.sends.post(opcode, length, fence);
    }

    fn transmit(&mut self, own: usize, budget: usize) {
        let [a, b] = &mut self.ends;
        let (from, to) = if own == 0 { (a, b) } else { (b, a) };
        from.transmit(self.now, budget, &mut to.inbox);
    }

    fn answer(&mut self, own: usize, budget: usize) {
        let [a, b] = &mut self.ends;
        let (from, to) = if own == 0 { (a, b) } else { (b, a) };
        from.answer(budget, &mut to.inbox);
    }

    fn deliver(&mut self, to: usize, at: usize) {
        if let Some(packet) = self.ends[to].inbox.remove(at) {
            self.ends[to].take(self.now, &packet);
        }
    }

    /// The network is good from now on: everything that was posted completes, exactly.
    fn end_well(&mut self) {
        self.ends.iter_mut().for_each(|end| end.receives.post(1 << 20));
        let is_done = |end: &End| end.is_failed() || end.sends.done.len() == end.sends.requests.len();
        for round in 0.. {
            for own in 0..2 {
                self.transmit(own, 64);
                self.answer(own, 64);
            }
            for own in 0..2 {
                (0..self.ends[own].inbox.len()).for_each(|_| self.deliver(own, 0));
            }
            let is_quiet = self.ends.iter().all(|end| end.inbox.is_empty() && !end.has_replies());
            if is_quiet && self.ends.iter().all(is_done) {
                break;
            }
            assert!(round < 2_000, "not done: {:?}", self.ends);
            if is_quiet && let Some(next) = self.ends.iter().filter_map(End::deadline).min() {
                self.now = self.now.max(next);
                self.ends.iter_mut().for_each(|end| end.timeout(self.now));
            }
            if self.ends.iter().any(End::is_failed) && round > 500 {
                // Who has given up leaves the other one to its own timeouts.
                break;
            }
        }
        for own in 0..2 {
            let [a, b] = &self.ends;
            let (from, to) = if own == 0 { (a, b) } else { (b, a) };
            if let Some(status) = from.sends.failure() {
                let patience = &self.setup.patience;
                let may_fail = match status {
                    WcStatus::RetryExcErr => patience.timeout != 0,
                    WcStatus::RnrRetryExcErr => patience.rnr_retry < 7,
                    WcStatus::LocQpOpErr => patience.max_rd_atomic == 0,
                    _ => false,
                };
                // The end that failed first takes the other one's requests with it.
                assert!(may_fail || to.is_failed(), "{status:?}");
            } else if !to.is_failed() {
                assert_eq!(from.sends.done.len(), from.sends.requests.len());
            }
            sides::verify(&from.sends, &to.receives, self.setup.transport);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibverbs::soft::wire::{Bth, Opcode, Operation, Packet, Reth};

    /// Two thousand READs that were carried out before are asked for again, each with a number of its own.
    #[test]
    fn a_flood_of_repeated_reads_is_kept_within_bounds() {
        let mut world = World::new(&mut Input::new(&[1]));
        let read = Packet {
            reth: Some(Reth { va: 0, rkey: sides::RKEY, length: 8 }),
            ..Packet::new(Bth::new(
                Opcode::new(Transport::Rc, Operation::ReadRequest),
                Qpn(1),
                Psn::new(0xff_fff0),
            ))
        };
        let mut datagram = vec![0; read.datagram_len(0)];
        read.emit(0, &mut datagram);
        forge::step_back(&world.ends[1], &mut datagram, 0);
        world.flood(1, &mut datagram, 2100, 1);
        assert!(world.ends[1].has_replies());
    }
}
