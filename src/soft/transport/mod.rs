//! PSNs, segmentation, ACK, RNR, retry and timers for udp, sans-I/O: packets and `now` in, packets and a deadline out.
//!
//! `requester` and `responder` are the two halves of a reliable connection, `unreliable` is UC; UD needs neither.
//! Both drive the message rules through the traits below, so that the tests can stand in for them. Time is a count
//! of nanoseconds from anywhere.
#![forbid(unsafe_code)]
mod outbox;
mod replies;
pub mod requester;
pub mod responder;
pub(in crate::soft) mod segment;
#[cfg(test)]
mod sim;
mod timing;
pub mod unreliable;
mod window;

use super::stats::Event;
use super::types::{Key, Psn, Qpn, WcStatus, WrOpcode};
use super::wire::Transport;

pub use outbox::{Burst, Outbox};

/// Packets of one connection that may be under way at first; kernel soft-RoCE has no more.
pub const WINDOW: u32 = 64;
/// And after much success.
pub const LARGEST_WINDOW: u32 = 512;

/// A work request, as far as its packets are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// SEND, WRITE, READ, FLUSH and atomics travel; anything else is local and takes its turn without a packet.
    pub opcode: WrOpcode,
    /// Payload bytes; 8 for atomics, 0 for FLUSH.
    pub length: u32,
    /// Where RDMA and atomics go.
    pub remote_addr: u64,
    #[allow(missing_docs)]
    pub rkey: Key,
    /// Immediate data in memory order, or the key to invalidate.
    pub imm: u32,
    /// Compare value, or the addend; the bytes of an ATOMIC WRITE as they lie in memory; the bytes that a FLUSH covers.
    pub compare_add: u64,
    /// The value to swap in; placement types of a FLUSH, and above 8 bits its selectivity level.
    pub swap: u64,
    /// XRC: the destination SRQ.
    pub srqn: u32,
    /// Raise a solicited event.
    pub solicited: bool,
    /// Wait for earlier READs and atomics.
    pub fence: bool,
    /// The application waits for its completion.
    pub signaled: bool,
}

/// The send queue as the transport sees it. Requests are numbered as they are posted.
pub trait SendSide {
    /// Request `n`, if it is posted and may begin; or how it fails before anything is sent.
    fn op(&self, n: u64) -> Option<Result<Op, WcStatus>>;
    /// Request `n` begins, all before it have.
    fn begun(&mut self, n: u64);
    /// Copies payload of request `n` from `offset` into `to`.
    ///
    /// # Errors
    /// How the request fails.
    fn gather(&mut self, n: u64, offset: u32, to: &mut [u8]) -> Result<(), WcStatus>;
    /// The same for all that a packet carries; where that comes with the copy, its sum (`icrc::sum`).
    ///
    /// # Errors
    /// As of `gather`.
    #[inline]
    fn gather_summing(&mut self, n: u64, offset: u32, to: &mut [u8]) -> Result<Option<u32>, WcStatus> {
        self.gather(n, offset, to).map(|()| None)
    }
    /// Copies what a READ or atomic (8 bytes, host order) brought to `offset` of request `n`'s memory.
    ///
    /// # Errors
    /// How the request fails.
    fn scatter(&mut self, n: u64, offset: u32, bytes: &[u8]) -> Result<(), WcStatus>;
    /// Request `n` is done, all before it are.
    fn complete(&mut self, n: u64);
    /// Request `n` has failed, all before it are done; the rest is flushed.
    fn fail(&mut self, n: u64, status: WcStatus);
    /// Something to be counted has happened.
    fn count(&mut self, what: Event);
}

/// Why a responder refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No receive is posted; nothing has changed.
    NotReady,
    /// The request breaks the rules.
    Invalid,
    /// The key does not allow it.
    Access,
    /// The responder's own receive is bad.
    Operational,
    /// Refused without an answer.
    Silent,
}

/// An arriving request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    #[allow(missing_docs)]
    pub opcode: WrOpcode,
    /// Bytes of the whole message; a SEND of several packets tells only at its end.
    pub total: Option<u32>,
    /// Where RDMA and atomics go.
    pub remote_addr: u64,
    #[allow(missing_docs)]
    pub rkey: Key,
    /// As in [`Op`].
    pub compare_add: u64,
    /// As in [`Op`].
    pub swap: u64,
    /// XRC: the SRQ that the sender names.
    pub srqn: u32,
}

/// What the last packet of a SEND or WRITE says.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// Immediate data in memory order.
    pub imm: Option<u32>,
    /// The key to invalidate.
    pub invalidate: Option<Key>,
    /// Raise a solicited event.
    pub solicited: bool,
}

/// The receive half as the transport sees it. A refusal other than `NotReady` has moved the QP to ERR where the
/// transport is reliable.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait ReceiveSide {
    /// A SEND or WRITE begins.
    fn begin(&mut self, arrival: &Arrival) -> Result<(), Refusal>;
    /// Its next bytes.
    fn place(&mut self, bytes: &[u8]) -> Result<(), Refusal>;
    /// It ends; `NotReady` (WRITE with immediate) leaves it open.
    fn finish(&mut self, end: End) -> Result<(), Refusal>;
    /// It is given up: a packet was lost.
    fn abandon(&mut self);
    /// May the requester read here?
    fn check_read(&mut self, arrival: &Arrival) -> Result<(), Refusal>;
    /// Copies a piece of it.
    fn read(&mut self, rkey: Key, va: u64, to: &mut [u8]) -> Result<(), Refusal>;
    /// The same for all that a packet carries; where that comes with the copy, its sum (`icrc::sum`).
    #[inline]
    fn read_summing(&mut self, rkey: Key, va: u64, to: &mut [u8]) -> Result<Option<u32>, Refusal> {
        self.read(rkey, va, to).map(|()| None)
    }
    /// Carries out an atomic: the value before it.
    fn atomic(&mut self, arrival: &Arrival) -> Result<u64, Refusal>;
    /// Carries out an ATOMIC WRITE.
    fn atomic_write(&mut self, arrival: &Arrival) -> Result<(), Refusal>;
    /// Carries out a FLUSH.
    fn flush(&mut self, arrival: &Arrival) -> Result<(), Refusal>;
    /// The packet breaks the protocol: the QP goes to ERR.
    fn violated(&mut self);
    /// Something to be counted has happened.
    fn count(&mut self, what: Event);
}

/// One direction of a connection, fixed when the QP is connected.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// RC or XRC (or UC).
    pub transport: Transport,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The first packet's number.
    pub psn: Psn,
    /// Payload of full packets, bytes.
    pub mtu: u32,
}

#[cfg(test)]
mod tests {
    #[test]
    fn window_is_what_soft_roce_holds() {
        const { assert!(super::WINDOW <= 64) };
    }
}
