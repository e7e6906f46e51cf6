//! What the entries of a ring mean. Requests have their opcode as kind; the rest answers them.
use crate::soft::qp::Nak;

/// SENDs without immediate data, of `total` bytes each, as many as the payload holds; the first has the number `seq`.
pub const SENDS: u8 = 0x1f;

/// Everything up to and including `seq` is accepted.
pub const ACK: u8 = 0x20;
/// Request `seq` is refused; `imm` says why.
pub const NAK: u8 = 0x21;
/// A piece of what READ `seq` asked for, from offset `imm`.
pub const READ_DATA: u8 = 0x22;
/// The value before atomic `seq`, in the RDMA extension's address.
pub const ATOMIC_ANSWER: u8 = 0x23;

/// XRC: what the peer of this QP, `seq`, has sent to an SRQ of the writer was refused; `imm` is the event that
/// says how, if there is one.
pub const FAILED: u8 = 0x24;

/// The first entry of a message.
pub const FIRST: u8 = 1;
/// The last entry of a message.
pub const LAST: u8 = 2;
/// The sender asked for a solicited event.
pub const SOLICITED: u8 = 4;
/// A datagram: the payload begins with its GRH, the extension's rkey is the Q_Key, `spare` the service level.
pub const DATAGRAM: u8 = 8;
/// In a datagram's `spare`: the sender's address had no GRH.
pub const NO_GRH: u16 = 0x100;
/// The sender wants acknowledgements.
pub const RELIABLE: u8 = 16;

/// XRC: a message to an SRQ of this process over a QP of another, or the answer to one.
pub const FOREIGN: u8 = 32;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// By the message rules; RNR comes with its timer code.
    Nak(Nak, u8),
    /// No QP listens: on a wire there would be no answer at all.
    Gone,
}

impl Refusal {
    /// As a number in `imm`.
    pub fn encode(self) -> u32 {
        match self {
            Refusal::Nak(Nak::Rnr, timer) => 1 | (timer as u32) << 8,
            Refusal::Nak(Nak::InvalidRequest, _) => 2,
            Refusal::Nak(Nak::RemoteAccess, _) => 3,
            Refusal::Nak(Nak::RemoteOp, _) => 4,
            // Silence is what nobody's answer would be.
            Refusal::Nak(Nak::Silent, _) | Refusal::Gone => 5,
        }
    }

    /// From `imm`; a peer may have written anything.
    pub fn decode(n: u32) -> Option<Self> {
        Some(match n & 0xff {
            1 => Refusal::Nak(Nak::Rnr, (n >> 8) as u8 & 31),
            2 => Refusal::Nak(Nak::InvalidRequest, 0),
            3 => Refusal::Nak(Nak::RemoteAccess, 0),
            4 => Refusal::Nak(Nak::RemoteOp, 0),
            5 => Refusal::Gone,
            _ => return None,
        })
    }
}
