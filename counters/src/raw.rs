//! The words that the library counts in, and the counters that they make.
//!
//! The fast path adds to three words for a request: one for its opcode, one for its payload, and where it is longer than a
//! packet one more. Packets and headers follow from these when somebody asks. A half of a QP has two tallies: requests over memory,
//! whose packets are those that they would be on a wire, and requests over UDP, whose packets are counted one by one as
//! events.
use crate::table::{Counter, Values};

/// Places for opcodes, by the numbers of verbs.h.
pub const OPS: usize = 16;
/// Where payload begins in a tally: 4-byte words, by opcode.
pub const PAYLOAD: usize = OPS;
/// Packets beyond the first of SENDs and WRITEs.
pub const MORE: usize = 2 * OPS;
/// Packets beyond the first of READ responses.
pub const READ_MORE: usize = MORE + 1;
/// READs whose response has more than one packet.
pub const READ_LONG: usize = MORE + 2;
/// Words of a tally.
pub const TALLY: usize = 36;

/// Words of events.
pub const EVENTS: usize = 40;

/// Words of one half: the tally of memory, that of UDP, events.
pub const HALF: usize = 2 * TALLY + EVENTS;
/// Where the tally of UDP begins in a half.
pub const WIRE: usize = TALLY;
/// Where events begin in a half.
pub const EVENTS_AT: usize = 2 * TALLY;

/// Words that describe a QP.
pub const DESCRIPTION: usize = 32;
/// Where the halves begin in a record; each in cache lines of its own.
pub const SENDER: usize = DESCRIPTION;
#[allow(missing_docs)]
pub const RECEIVER: usize = SENDER + HALF;
/// Words of a record.
pub const RECORD: usize = RECEIVER + HALF;

const _: () = assert!(RECORD == 256 && HALF.is_multiple_of(8) && READ_LONG < TALLY);
const _: () = assert!(crate::table::COUNT <= crate::file::VALUES);

/// Words of what a QP has done to its peer's memory without the peer's help.
pub const DIRECT: usize = 8;
/// WRITEs, their payload, their packets beyond the first; READs, their payload, packets beyond the first, long ones.
pub type Direct = [u64; DIRECT];

/// What is counted as it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Event {
    /// Packets that no tally stands for, and their 4-byte words.
    XmitPackets,
    #[allow(missing_docs)]
    XmitWords,
    #[allow(missing_docs)]
    RcvPackets,
    #[allow(missing_docs)]
    RcvWords,
    /// Which of all packets were for a group.
    McastXmit,
    #[allow(missing_docs)]
    McastRcv,
    /// Packets sent again; they are among those sent.
    Retransmitted,
    /// A requester began to send again.
    WentBack,
    /// The local ACK timeout ran out.
    Timeout,
    /// An answer showed that something was lost.
    ImpliedLoss,
    #[allow(missing_docs)]
    RnrNakReceived,
    #[allow(missing_docs)]
    RnrNakSent,
    #[allow(missing_docs)]
    SequenceNakReceived,
    #[allow(missing_docs)]
    Duplicate,
    #[allow(missing_docs)]
    OutOfSequence,
    /// A datagram found no receive.
    NoReceive,
    /// Requests that failed, by status.
    RetryExceeded,
    #[allow(missing_docs)]
    RnrRetryExceeded,
    #[allow(missing_docs)]
    RemoteInvalid,
    #[allow(missing_docs)]
    RemoteAccess,
    /// All that failed but were not flushed.
    SendFailed,
    #[allow(missing_docs)]
    SendFlushed,
    #[allow(missing_docs)]
    ReceiveFailed,
    #[allow(missing_docs)]
    ReceiveFlushed,
    #[allow(missing_docs)]
    ReceiveTooShort,
    /// A request of the peer was refused for its key or rights.
    AccessRefused,
    #[allow(missing_docs)]
    BadIcrc,
    /// Wrong header, length or pad.
    Malformed,
    #[allow(missing_docs)]
    BadPkey,
    #[allow(missing_docs)]
    BadQkey,
    /// No QP wanted the packet.
    Dropped,
    #[allow(missing_docs)]
    EcnMarked,
    #[allow(missing_docs)]
    CnpSent,
    #[allow(missing_docs)]
    CnpReceived,
}

const _: () = assert!((Event::CnpReceived as usize) < EVENTS);

/// Opcodes by the numbers of verbs.h.
const WRITE: usize = 0;
const WRITE_IMM: usize = 1;
const SEND: usize = 2;
const SEND_IMM: usize = 3;
const READ: usize = 4;
const CMP_SWAP: usize = 5;
const FETCH_ADD: usize = 6;
const SEND_INV: usize = 9;
const FLUSH: usize = 14;
const ATOMIC_WRITE: usize = 15;

/// Types of QPs by the numbers of verbs.h.
const RC: u64 = 2;
const UD: u64 = 4;
const XRC_SEND: u64 = 9;
const XRC_RECV: u64 = 10;

/// What is acknowledged: opcode, and words of the headers between BTH and payload, or behind it.
const PUSHES: [(usize, u64); 7] =
    [(SEND, 0), (SEND_IMM, 1), (SEND_INV, 1), (WRITE, 4), (WRITE_IMM, 5), (ATOMIC_WRITE, 4), (FLUSH, 5)];
/// BTH and ICRC.
const AROUND: u64 = 4;
const RETH: u64 = 4;
const ATOMIC_ETH: u64 = 7;
const DETH: u64 = 2;
const AETH: u64 = 1;
const ATOMIC_ACK: u64 = 2;

/// 4-byte words of an acknowledgement, BTH to ICRC.
pub const ACK_WORDS: u64 = AROUND + AETH;

/// Packets and their 4-byte words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    #[allow(missing_docs)]
    pub packets: u64,
    #[allow(missing_docs)]
    pub words: u64,
}

/// The packets that the requests of a tally stand for, and those of their answers.
pub fn traffic(kind: u64, tally: &[u64]) -> (Traffic, Traffic) {
    let pushes: u64 = PUSHES.iter().map(|&(op, _)| tally[op]).sum();
    let atomics = tally[CMP_SWAP] + tally[FETCH_ADD];
    let requests = pushes + tally[MORE] + tally[READ] + atomics;
    let each = match kind {
        UD => AROUND + DETH,
        XRC_SEND | XRC_RECV => AROUND + 1,
        _ => AROUND,
    };
    let headers: u64 = PUSHES.iter().map(|&(op, words)| tally[op] * words).sum();
    let payload: u64 = PUSHES.iter().map(|&(op, _)| tally[PAYLOAD + op]).sum();
    let asked = Traffic {
        packets: requests,
        words: requests * each + headers + payload + tally[READ] * RETH + atomics * ATOMIC_ETH,
    };
    if !matches!(kind, RC | XRC_SEND | XRC_RECV) {
        return (asked, Traffic::default());
    }
    let responses = tally[READ] + tally[READ_MORE];
    let answered = Traffic {
        packets: pushes + responses + atomics,
        words: pushes * ACK_WORDS
            + responses * AROUND
            + (tally[READ] + tally[READ_LONG]) * AETH
            + tally[PAYLOAD + READ]
            + atomics * (AROUND + AETH + ATOMIC_ACK),
    };
    (asked, answered)
}

/// The first packet and the rest of `length` bytes.
pub fn packets(length: u64, mtu: u64) -> u64 {
    length.div_ceil(mtu.max(1)).max(1)
}

/// The traffic of one request of `length` bytes, cut at `mtu`.
pub fn traffic_of(kind: u64, op: usize, length: u64, mtu: u64) -> (Traffic, Traffic) {
    let mut tally = [0; TALLY];
    tally[op] = 1;
    tally[PAYLOAD + op] = length.div_ceil(4);
    let more = packets(length, mtu) - 1;
    match op {
        READ => (tally[READ_MORE], tally[READ_LONG]) = (more, u64::from(more > 0)),
        _ => tally[MORE] = more,
    }
    traffic(kind, &tally)
}

/// The counters of a QP. `direct`: what its peer has done to its memory without its help.
pub fn values(kind: u64, record: &[u64], direct: &Direct) -> Values {
    let mut all = Values::default();
    let (sender, receiver) = (&record[SENDER..][..HALF], &record[RECEIVER..][..HALF]);
    let (sent, answers) = traffic(kind, &sender[..TALLY]);
    let (requests, answered) = traffic(kind, &receiver[..TALLY]);
    let mut quiet = [0; TALLY];
    [
        quiet[WRITE],
        quiet[PAYLOAD + WRITE],
        quiet[MORE],
        quiet[READ],
        quiet[PAYLOAD + READ],
        quiet[READ_MORE],
        quiet[READ_LONG],
        _,
    ] = *direct;
    let (done_here, answered_for) = traffic(kind, &quiet);
    let xmit = [sent, answered, answered_for];
    let rcv = [answers, requests, done_here];
    add_events(&mut all, &sender[EVENTS_AT..]);
    add_events(&mut all, &receiver[EVENTS_AT..]);
    let mut add = |counter: Counter, n: u64| all[counter] = all[counter].wrapping_add(n);
    for t in xmit {
        add(Counter::PortXmitPackets, t.packets);
        add(Counter::UnicastXmitPackets, t.packets);
        add(Counter::SentPkts, t.packets);
        add(Counter::PortXmitData, t.words);
    }
    for t in rcv {
        add(Counter::PortRcvPackets, t.packets);
        add(Counter::UnicastRcvPackets, t.packets);
        add(Counter::RcvdPkts, t.packets);
        add(Counter::PortRcvData, t.words);
    }
    // How many of each, whichever way they came.
    let sum = |half: &[u64], ops: &[usize]| ops.iter().map(|op| half[*op] + half[WIRE + op]).sum::<u64>();
    add(Counter::RdmaSends, sum(sender, &[SEND, SEND_IMM, SEND_INV]));
    add(Counter::RdmaRecvs, sum(receiver, &[SEND, SEND_IMM, SEND_INV, WRITE_IMM]));
    add(Counter::RxWriteRequests, sum(receiver, &[WRITE, WRITE_IMM, ATOMIC_WRITE]) + quiet[WRITE]);
    add(Counter::RxReadRequests, sum(receiver, &[READ]) + quiet[READ]);
    add(Counter::RxAtomicRequests, sum(receiver, &[CMP_SWAP, FETCH_ADD]));
    all
}

/// Adds what events stand for.
pub fn add_events(all: &mut Values, events: &[u64]) {
    use Counter as C;
    let at = |event: Event| events[event as usize];
    let mut add = |counters: &[Counter], n: u64| {
        for &counter in counters {
            all[counter] = all[counter].wrapping_add(n);
        }
    };
    add(&[C::PortXmitPackets, C::SentPkts, C::UnicastXmitPackets], at(Event::XmitPackets));
    add(&[C::PortRcvPackets, C::RcvdPkts, C::UnicastRcvPackets], at(Event::RcvPackets));
    add(&[C::PortXmitData], at(Event::XmitWords));
    add(&[C::PortRcvData], at(Event::RcvWords));
    add(&[C::MulticastXmitPackets], at(Event::McastXmit));
    add(&[C::UnicastXmitPackets], at(Event::McastXmit).wrapping_neg());
    add(&[C::MulticastRcvPackets], at(Event::McastRcv));
    add(&[C::UnicastRcvPackets], at(Event::McastRcv).wrapping_neg());
    add(&[C::RetransPkts], at(Event::Retransmitted));
    add(&[C::CompleterRetryErr], at(Event::WentBack));
    add(&[C::LocalAckTimeoutErr], at(Event::Timeout));
    add(&[C::ImpliedNakSeqErr], at(Event::ImpliedLoss));
    add(&[C::RcvdRnrErr, C::RnrNakRetryErr], at(Event::RnrNakReceived));
    add(&[C::SendRnrErr, C::OutOfBuffer], at(Event::RnrNakSent));
    add(&[C::OutOfBuffer, C::RxDrops], at(Event::NoReceive));
    add(&[C::RcvdSeqErr, C::PacketSeqErr], at(Event::SequenceNakReceived));
    add(&[C::DuplicateRequest], at(Event::Duplicate));
    add(&[C::OutOfSeqRequest, C::OutOfSequence], at(Event::OutOfSequence));
    add(&[C::RetryExceededErr], at(Event::RetryExceeded));
    add(&[C::RetryRnrExceededErr], at(Event::RnrRetryExceeded));
    add(&[C::ReqRemoteInvalidRequest], at(Event::RemoteInvalid));
    add(&[C::ReqRemoteAccessErrors], at(Event::RemoteAccess));
    add(&[C::ReqCqeError], at(Event::SendFailed));
    add(&[C::ReqCqeFlushError], at(Event::SendFlushed));
    add(&[C::RespCqeError], at(Event::ReceiveFailed));
    add(&[C::RespCqeFlushError], at(Event::ReceiveFlushed));
    add(&[C::RespLocalLengthError], at(Event::ReceiveTooShort));
    add(&[C::RespRemoteAccessErrors], at(Event::AccessRefused));
    add(&[C::RxIcrcEncapsulated, C::PortRcvErrors], at(Event::BadIcrc));
    add(&[C::PortRcvErrors], at(Event::Malformed));
    add(&[C::PortRcvConstraintErrors], at(Event::BadPkey));
    add(&[C::QkeyViolations], at(Event::BadQkey));
    add(&[C::RxDrops], at(Event::Dropped));
    add(&[C::NpEcnMarkedRocePackets], at(Event::EcnMarked));
    add(&[C::NpCnpSent], at(Event::CnpSent));
    add(&[C::RpCnpHandled], at(Event::CnpReceived));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stand_for_the_packets_that_they_would_be_on_a_wire() {
        let of = |kind, op, length| {
            let (asked, answered) = traffic_of(kind, op, length, 1024);
            (asked.packets, asked.words * 4, answered.packets, answered.words * 4)
        };
        // BTH 12, AETH 4, ICRC 4.
        assert_eq!(of(RC, SEND, 8), (1, 24, 1, 20));
        assert_eq!(of(RC, SEND, 0), (1, 16, 1, 20));
        assert_eq!(of(RC, SEND_IMM, 9), (1, 16 + 12 + 4, 1, 20));
        assert_eq!(of(RC, WRITE, 1025), (2, 32 + 16 + 1028, 1, 20));
        // Of three responses, the one in the middle has no AETH.
        assert_eq!(of(RC, READ, 3000), (1, 32, 3, 3 * 16 + 2 * 4 + 3000));
        assert_eq!(of(RC, FETCH_ADD, 8), (1, 44, 1, 28));
        assert_eq!(of(3, SEND, 8), (1, 24, 0, 0));
        assert_eq!(of(UD, SEND, 8), (1, 32, 0, 0));
        assert_eq!(of(XRC_SEND, SEND, 2048), (2, 2 * 20 + 2048, 1, 20));
    }

    #[test]
    fn both_ends_of_a_request_count_the_same_packets() {
        let mut ends = [[0; RECORD]; 2];
        for (n, op) in
            [WRITE, WRITE_IMM, SEND, SEND_IMM, READ, CMP_SWAP, FETCH_ADD, SEND_INV, FLUSH].iter().enumerate()
        {
            for (end, half) in ends.iter_mut().zip([SENDER, RECEIVER]) {
                end[half + op] = 3 + n as u64;
                end[half + PAYLOAD + op] = 100;
            }
        }
        let [a, b] = ends.map(|end| values(RC, &end, &[0; DIRECT]));
        assert_eq!(a[Counter::PortXmitPackets], b[Counter::PortRcvPackets]);
        assert_eq!(a[Counter::PortRcvData], b[Counter::PortXmitData]);
        assert!(a[Counter::PortXmitData] > 0 && b[Counter::PortXmitPackets] > 0);
    }
}
