//! Packets that are what most of them are in a talk, read with one look: a SEND that is one packet, and an acknowledgement. What
//! is out of the ordinary about them, and all others, is for [`Packet`](super::Packet).
use super::{Operation, Transport, aeth, be24, bth, icrc};
use crate::soft::types::Psn;
use std::ops::Range;

const SEND: u8 = super::Opcode::new(Transport::Rc, Operation::SendOnly).raw();
const ACKNOWLEDGE: u8 = super::Opcode::new(Transport::Rc, Operation::Acknowledge).raw();
/// The bits of the BTH's second byte that tell of a SEND; MigReq means nothing here.
const SOLICITED: u8 = 0x80;
const VERSION: u8 = 0x0f;
/// Backward congestion.
const BECN: u8 = 0x40;
/// Of a syndrome, what tells an acknowledgement; its other bits are credits.
const KIND: u8 = 0xe0;

/// Such a packet, in the default partition, in which nothing is said of congestion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Short {
    /// RC SEND Only.
    Send {
        #[allow(missing_docs)]
        psn: Psn,
        /// Raise a solicited event.
        solicited: bool,
        /// It asks for an acknowledgement.
        asks: bool,
        /// Where its payload stands.
        payload: Range<usize>,
    },
    /// RC Acknowledge that is no refusal.
    Acknowledge {
        #[allow(missing_docs)]
        psn: Psn,
    },
}

impl Short {
    /// Reads a UDP payload, if it is one. The ICRC is not checked here.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let (covered, _) = datagram.split_last_chunk::<{ icrc::LEN }>()?;
        let (head, rest) = covered.split_first_chunk::<{ bth::LEN }>()?;
        let is_plain =
            head[1] & VERSION == 0 && head[2] & 0x7f == 0x7f && head[3] == 0xff && head[4] & BECN == 0;
        let (pad, psn) = (usize::from(head[1] >> 4 & 3), Psn::new(be24(head, 9)));
        match head[0] {
            _ if !is_plain || pad > rest.len() => None,
            SEND => Some(Short::Send {
                psn,
                solicited: head[1] & SOLICITED != 0,
                asks: head[8] & 0x80 != 0,
                payload: bth::LEN..covered.len() - pad,
            }),
            ACKNOWLEDGE if rest.len() == aeth::LEN && pad == 0 && rest[0] & KIND == 0 => {
                Some(Short::Acknowledge { psn })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::types::Qpn;
    use crate::soft::wire::{Aeth, Bth, NakCode, Opcode, Packet, Syndrome};

    fn bytes(packet: &Packet, payload: usize) -> Vec<u8> {
        let mut b = vec![9; packet.datagram_len(payload)];
        packet.emit(payload, &mut b);
        b
    }

    fn packet(transport: Transport, operation: Operation) -> Packet {
        let opcode = Opcode::new(transport, operation);
        Packet::new(Bth { ack_req: true, solicited: true, ..Bth::new(opcode, Qpn(0x1001), Psn::new(7)) })
    }

    #[test]
    fn a_short_packet_says_what_the_whole_look_says() {
        for length in [0, 1, 5, 64, 4096] {
            for (asks, solicited) in [(false, true), (true, false)] {
                let mut whole = packet(Transport::Rc, Operation::SendOnly);
                (whole.bth.ack_req, whole.bth.solicited) = (asks, solicited);
                let b = bytes(&whole, length);
                let (parsed, payload) = Packet::parse(&b).unwrap();
                let psn = parsed.bth.psn;
                assert_eq!(Short::parse(&b), Some(Short::Send { psn, solicited, asks, payload }));
            }
        }
        let ack = |syndrome| {
            let packet = packet(Transport::Rc, Operation::Acknowledge);
            Short::parse(&bytes(&Packet { aeth: Some(Aeth { syndrome, msn: 3 }), ..packet }, 0))
        };
        assert_eq!(ack(Syndrome::Ack), Some(Short::Acknowledge { psn: Psn::new(7) }));
        assert_eq!([ack(Syndrome::Rnr(3)), ack(Syndrome::Nak(NakCode::PsnSequence))], [None, None]);
    }

    #[test]
    fn what_is_out_of_the_ordinary_is_none() {
        use Operation::*;
        let others = [SendFirst, SendMiddle, SendLast, SendOnlyImm, SendOnlyInv, WriteMiddle]
            .map(|o| (Transport::Rc, o));
        for (transport, operation) in others.into_iter().chain([(Transport::Uc, SendOnly)]) {
            assert_eq!(Short::parse(&bytes(&packet(transport, operation), 64)), None, "{operation:?}");
        }
        let good = bytes(&packet(Transport::Rc, SendOnly), 64);
        for (at, value) in [(0, 0xff), (1, 0x41), (2, 0), (3, 0xfe), (4, 0x40)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Short::parse(&bad), None, "byte {at}");
        }
        let whole = bytes(&packet(Transport::Rc, SendOnly), 1);
        assert!(Short::parse(&whole).is_some());
        for short in 0..bth::LEN + icrc::LEN + 3 {
            assert_eq!(Short::parse(&whole[..short]), None, "cut to {short}");
        }
    }
}
