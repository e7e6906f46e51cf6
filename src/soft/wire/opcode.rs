//! The opcode table: which transport, which operation, and which headers follow the BTH (IBA table 38).

macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident = $value:literal, $headers:expr;)*) => {
        /// The low five bits of an opcode, as RC numbers them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Operation { $($(#[$meta])* $name = $value),* }

        impl Operation {
            const fn from_raw(raw: u8) -> Option<Self> {
                match raw { $($value => Some(Self::$name),)* _ => None }
            }
            /// The headers of this operation on RC.
            const fn headers(self) -> Headers {
                match self { $(Self::$name => $headers),* }
            }
        }
    };
}

bitflags::bitflags! {
    /// Extended headers, in the order in which they follow the BTH.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Headers: u16 {
        #[allow(missing_docs)] const DETH = 1;
        #[allow(missing_docs)] const XRCETH = 1 << 1;
        #[allow(missing_docs)] const RETH = 1 << 2;
        #[allow(missing_docs)] const ATOMIC_ETH = 1 << 3;
        #[allow(missing_docs)] const AETH = 1 << 4;
        #[allow(missing_docs)] const ATOMIC_ACK = 1 << 5;
        #[allow(missing_docs)] const IMM = 1 << 6;
        #[allow(missing_docs)] const IETH = 1 << 7;
        #[allow(missing_docs)] const FETH = 1 << 8;
    }
}

const NONE: Headers = Headers::empty();
const WRITE_IMM: Headers = Headers::RETH.union(Headers::IMM);
const FLUSH: Headers = Headers::FETH.union(Headers::RETH);
const ATOMIC_ACK: Headers = Headers::AETH.union(Headers::ATOMIC_ACK);

operations! {
    /// First packet of a SEND.
    SendFirst = 0x00, NONE;
    /// Neither first nor last of a SEND.
    SendMiddle = 0x01, NONE;
    /// Last of a SEND.
    SendLast = 0x02, NONE;
    /// Last of a SEND with immediate.
    SendLastImm = 0x03, Headers::IMM;
    /// A SEND in one packet.
    SendOnly = 0x04, NONE;
    /// A SEND with immediate in one packet.
    SendOnlyImm = 0x05, Headers::IMM;
    /// First of a WRITE.
    WriteFirst = 0x06, Headers::RETH;
    /// Neither first nor last of a WRITE.
    WriteMiddle = 0x07, NONE;
    /// Last of a WRITE.
    WriteLast = 0x08, NONE;
    /// Last of a WRITE with immediate.
    WriteLastImm = 0x09, Headers::IMM;
    /// A WRITE in one packet.
    WriteOnly = 0x0a, Headers::RETH;
    /// A WRITE with immediate in one packet.
    WriteOnlyImm = 0x0b, WRITE_IMM;
    /// A READ, which takes as many PSNs as its response has packets.
    ReadRequest = 0x0c, Headers::RETH;
    /// First packet of a READ's response.
    ReadResponseFirst = 0x0d, Headers::AETH;
    /// Neither first nor last of a READ's response.
    ReadResponseMiddle = 0x0e, NONE;
    /// Last of a READ's response.
    ReadResponseLast = 0x0f, Headers::AETH;
    /// A READ's response in one packet.
    ReadResponseOnly = 0x10, Headers::AETH;
    /// ACK or NAK.
    Acknowledge = 0x11, Headers::AETH;
    /// An atomic's response.
    AtomicAcknowledge = 0x12, ATOMIC_ACK;
    /// Compare and swap.
    CmpSwap = 0x13, Headers::ATOMIC_ETH;
    /// Fetch and add.
    FetchAdd = 0x14, Headers::ATOMIC_ETH;
    /// Last of a SEND with invalidate.
    SendLastInv = 0x16, Headers::IETH;
    /// A SEND with invalidate in one packet.
    SendOnlyInv = 0x17, Headers::IETH;
    /// A FLUSH.
    Flush = 0x1c, FLUSH;
    /// Eight bytes that are written at once.
    AtomicWrite = 0x1d, Headers::RETH;
}

impl Operation {
    /// Starts a message: FIRST, ONLY, and requests of one packet.
    pub const fn starts(self) -> bool {
        use Operation::*;
        matches!(
            self,
            SendFirst
                | SendOnly
                | SendOnlyImm
                | SendOnlyInv
                | WriteFirst
                | WriteOnly
                | WriteOnlyImm
                | ReadRequest
                | CmpSwap
                | FetchAdd
                | Flush
                | AtomicWrite
        )
    }

    /// Ends a message: LAST, ONLY, and requests of one packet.
    pub const fn ends(self) -> bool {
        use Operation::*;
        !matches!(
            self,
            SendFirst | SendMiddle | WriteFirst | WriteMiddle | ReadResponseFirst | ReadResponseMiddle
        )
    }

    /// Comes back from a responder: READ responses and acknowledgements.
    pub const fn is_response(self) -> bool {
        matches!(self as u8, 0x0d..=0x12)
    }

    /// Belongs to a SEND.
    pub const fn is_send(self) -> bool {
        matches!(self as u8, 0x00..=0x05 | 0x16 | 0x17)
    }

    /// Belongs to a WRITE.
    pub const fn is_write(self) -> bool {
        matches!(self as u8, 0x06..=0x0b)
    }

    /// Must carry exactly the path MTU.
    pub const fn is_full(self) -> bool {
        use Operation::*;
        matches!(
            self,
            SendFirst | SendMiddle | WriteFirst | WriteMiddle | ReadResponseFirst | ReadResponseMiddle
        )
    }

    /// May carry payload at all.
    pub const fn has_payload(self) -> bool {
        !matches!(self as u8, 0x0c | 0x11..=0x14 | 0x1c)
    }
}

/// The top three bits of an opcode: the transports that urxe speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0x00,
    /// Unreliable connection.
    Uc = 0x20,
    /// Unreliable datagram.
    Ud = 0x60,
    /// Extended reliable connection.
    Xrc = 0xa0,
}

/// A BTH opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opcode {
    /// The transport.
    pub transport: Transport,
    /// The operation.
    pub operation: Operation,
}

impl Opcode {
    /// This operation on this transport, whether or not the pair exists; see [`from_raw`](Self::from_raw).
    pub const fn new(transport: Transport, operation: Operation) -> Self {
        Self { transport, operation }
    }

    /// The opcode of this byte, if urxe speaks it.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        let transport = match raw & 0xe0 {
            0x00 => Transport::Rc,
            0x20 => Transport::Uc,
            0x60 => Transport::Ud,
            0xa0 => Transport::Xrc,
            _ => return None,
        };
        let Some(operation) = Operation::from_raw(raw & 0x1f) else { return None };
        let exists = match transport {
            Transport::Rc => true,
            // As on kernel soft-RoCE.
            Transport::Xrc => (operation as u8) < 0x1c,
            Transport::Uc => (operation as u8) < 0x0c,
            Transport::Ud => matches!(operation, Operation::SendOnly | Operation::SendOnlyImm),
        };
        if exists { Some(Self { transport, operation }) } else { None }
    }

    /// The byte that stands for it.
    pub const fn raw(self) -> u8 {
        self.transport as u8 | self.operation as u8
    }

    /// The headers between BTH and payload.
    pub const fn headers(self) -> Headers {
        let own = self.operation.headers();
        match self.transport {
            Transport::Ud => own.union(Headers::DETH),
            Transport::Xrc if !self.operation.is_response() => own.union(Headers::XRCETH),
            _ => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_byte_comes_back() {
        let known: Vec<u8> = (0..=255).filter(|&b| Opcode::from_raw(b).is_some()).collect();
        assert!(known.iter().all(|&b| Opcode::from_raw(b).unwrap().raw() == b));
        assert_eq!(known.len(), 25 + 12 + 2 + 23);
    }

    #[test]
    fn headers_follow_the_table() {
        let headers = |raw| Opcode::from_raw(raw).unwrap().headers();
        assert_eq!(headers(0x00), NONE);
        assert_eq!(headers(0x0b), Headers::RETH | Headers::IMM);
        assert_eq!(headers(0x12), Headers::AETH | Headers::ATOMIC_ACK);
        assert_eq!(headers(0x65), Headers::DETH | Headers::IMM);
        assert_eq!(headers(0xac), Headers::XRCETH | Headers::RETH);
        assert_eq!(headers(0xad), Headers::AETH, "responses carry no XRCETH");
        for absent in [0x15, 0x2c, 0x36, 0x60, 0x44, 0x81] {
            assert_eq!(Opcode::from_raw(absent), None, "{absent:#x}");
        }
    }

    #[test]
    fn positions_are_told_apart() {
        assert!(Operation::SendOnly.starts() && Operation::SendOnly.ends());
        assert!(Operation::WriteFirst.starts() && !Operation::WriteFirst.ends());
        assert!(!Operation::SendLastImm.starts() && Operation::SendLastImm.ends());
        assert!(Operation::ReadRequest.ends() && !Operation::ReadRequest.has_payload());
        assert!(Operation::AtomicAcknowledge.is_response() && !Operation::CmpSwap.is_response());
    }
}
