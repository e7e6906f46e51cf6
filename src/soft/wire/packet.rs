//! A whole UDP payload: BTH, the extended headers that its opcode names, payload, pad, ICRC.
use super::{
    Aeth, AtomicEth, Bth, Deth, Error, Feth, Headers, Reth, aeth, atomic_ack, atomic_eth, bth, deth, feth,
    icrc, ieth, imm, reth, xrceth,
};
use crate::soft::types::Key;
use std::ops::Range;

/// The headers of a packet as values. Which of the options are set follows from the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// What it is, whereto, and its number.
    pub bth: Bth,
    /// Q_Key and source of a UD packet.
    pub deth: Option<Deth>,
    /// The shared receive queue of an XRC request.
    pub srqn: Option<u32>,
    /// How far a FLUSH reaches.
    pub feth: Option<Feth>,
    /// Remote memory of a WRITE, READ, FLUSH or ATOMIC WRITE.
    pub reth: Option<Reth>,
    /// Remote memory and operands of an atomic.
    pub atomic_eth: Option<AtomicEth>,
    /// The verdict of a response.
    pub aeth: Option<Aeth>,
    /// The original value that an atomic's response brings.
    pub atomic_ack: Option<u64>,
    /// Immediate data in memory order.
    pub imm: Option<u32>,
    /// The key to invalidate.
    pub ieth: Option<Key>,
}

impl Packet {
    /// A packet with no extended headers yet.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            srqn: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Reads a UDP payload: the headers, and where its payload stands. The ICRC is not checked here.
    ///
    /// # Errors
    /// Why it is not a packet that urxe speaks.
    pub fn parse(datagram: &[u8]) -> Result<(Self, Range<usize>), Error> {
        let end = datagram.len().checked_sub(icrc::LEN).ok_or(Error::Truncated)?;
        let b = &datagram[..end];
        let bth = Bth::parse(&bth::BthView::new_checked(b)?)?;
        let headers = bth.opcode.headers();
        let mut packet = Self::new(bth);
        let payload_end = end.checked_sub(bth.pad as usize).ok_or(Error::Truncated)?;
        if headers.is_empty() {
            return if payload_end < bth::LEN {
                Err(Error::Truncated)
            } else {
                Ok((packet, bth::LEN..payload_end))
            };
        }
        let mut at = bth::LEN;
        // The part of `b` where this header stands, when there is one; a short packet fails in its parser.
        let mut next = |header: Headers, len: usize| -> Result<Option<&[u8]>, Error> {
            if !headers.contains(header) {
                return Ok(None);
            }
            let part = b.get(at..at + len).ok_or(Error::Truncated)?;
            at += len;
            Ok(Some(part))
        };
        packet.deth = next(Headers::DETH, deth::LEN)?.map(Deth::parse).transpose()?;
        packet.srqn = next(Headers::XRCETH, xrceth::LEN)?.map(xrceth::parse).transpose()?;
        packet.feth = next(Headers::FETH, feth::LEN)?.map(Feth::parse).transpose()?;
        packet.reth = next(Headers::RETH, reth::LEN)?.map(Reth::parse).transpose()?;
        packet.atomic_eth = next(Headers::ATOMIC_ETH, atomic_eth::LEN)?.map(AtomicEth::parse).transpose()?;
        packet.aeth = next(Headers::AETH, aeth::LEN)?.map(Aeth::parse).transpose()?;
        packet.atomic_ack = next(Headers::ATOMIC_ACK, atomic_ack::LEN)?.map(atomic_ack::parse).transpose()?;
        packet.imm = next(Headers::IMM, imm::LEN)?.map(imm::parse).transpose()?;
        packet.ieth = next(Headers::IETH, ieth::LEN)?.map(ieth::parse).transpose()?;
        if payload_end < at { Err(Error::Truncated) } else { Ok((packet, at..payload_end)) }
    }

    /// Bytes of BTH and extended headers: where the payload starts.
    pub fn header_len(&self) -> usize {
        if self.bth.opcode.headers().is_empty() {
            return bth::LEN;
        }
        let len = |set: bool, len: usize| if set { len } else { 0 };
        bth::LEN
            + len(self.deth.is_some(), deth::LEN)
            + len(self.srqn.is_some(), xrceth::LEN)
            + len(self.feth.is_some(), feth::LEN)
            + len(self.reth.is_some(), reth::LEN)
            + len(self.atomic_eth.is_some(), atomic_eth::LEN)
            + len(self.aeth.is_some(), aeth::LEN)
            + len(self.atomic_ack.is_some(), atomic_ack::LEN)
            + len(self.imm.is_some(), imm::LEN)
            + len(self.ieth.is_some(), ieth::LEN)
    }

    /// Bytes of the whole UDP payload when the packet carries `payload` bytes.
    pub fn datagram_len(&self, payload: usize) -> usize {
        self.header_len() + payload.next_multiple_of(4) + icrc::LEN
    }

    /// Writes headers and pad for `payload` bytes into `b`, of [`datagram_len`](Self::datagram_len) bytes. The caller
    /// writes the payload at [`header_len`](Self::header_len) and then calls [`icrc::seal`].
    pub fn emit(&self, payload: usize, b: &mut [u8]) {
        let pad = payload.wrapping_neg() & 3;
        Bth { pad: pad as u8, ..self.bth }.emit(b);
        let mut at = bth::LEN;
        if self.bth.opcode.headers().is_empty() {
            return b[at + payload..at + payload + pad].fill(0);
        }
        let mut next = |len: usize| {
            at += len;
            at - len
        };
        if let Some(h) = self.deth {
            h.emit(&mut b[next(deth::LEN)..]);
        }
        if let Some(srqn) = self.srqn {
            xrceth::emit(srqn, &mut b[next(xrceth::LEN)..]);
        }
        if let Some(h) = self.feth {
            h.emit(&mut b[next(feth::LEN)..]);
        }
        if let Some(h) = self.reth {
            h.emit(&mut b[next(reth::LEN)..]);
        }
        if let Some(h) = self.atomic_eth {
            h.emit(&mut b[next(atomic_eth::LEN)..]);
        }
        if let Some(h) = self.aeth {
            h.emit(&mut b[next(aeth::LEN)..]);
        }
        if let Some(original) = self.atomic_ack {
            atomic_ack::emit(original, &mut b[next(atomic_ack::LEN)..]);
        }
        if let Some(value) = self.imm {
            imm::emit(value, &mut b[next(imm::LEN)..]);
        }
        if let Some(rkey) = self.ieth {
            ieth::emit(rkey, &mut b[next(ieth::LEN)..]);
        }
        b[at + payload..at + payload + pad].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::types::{Psn, Qpn};
    use crate::soft::wire::{Opcode, Operation, Transport};

    /// WRITE Only with immediate: 5 bytes to 0x1000, QPN 0x1001, PSN 7, AckReq.
    const WRITE: [u8; 44] = [
        0x0b, 0x70, 0xff, 0xff, 0, 0, 0x10, 0x01, 0x80, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 2, 0, 0,
        0, 5, 0xde, 0xad, 0xbe, 0xef, b'h', b'e', b'l', b'l', b'o', 0, 0, 0, 9, 9, 9, 9,
    ];

    #[test]
    fn packet_reads_and_writes_the_same_bytes() {
        let (packet, payload) = Packet::parse(&WRITE).unwrap();
        assert_eq!(&WRITE[payload.clone()], b"hello");
        assert_eq!(packet.reth, Some(Reth { va: 0x1000, rkey: Key(0x102), length: 5 }));
        assert_eq!(packet.imm.map(u32::to_ne_bytes), Some([0xde, 0xad, 0xbe, 0xef]));
        assert_eq!((packet.header_len(), packet.datagram_len(5)), (payload.start, WRITE.len()));
        let mut out = WRITE;
        out[..payload.start].fill(0xaa);
        out[payload.end..40].fill(0xaa);
        packet.emit(5, &mut out);
        assert_eq!(out, WRITE);
    }

    #[test]
    fn every_opcode_survives_a_round_trip() {
        for opcode in (0..=255).filter_map(Opcode::from_raw) {
            let headers = opcode.headers();
            let has = |h| headers.contains(h);
            let packet = Packet {
                deth: has(Headers::DETH).then_some(Deth { qkey: 1, src_qpn: Qpn(2) }),
                srqn: has(Headers::XRCETH).then_some(3),
                feth: has(Headers::FETH).then_some(Feth { types: 3, level: 1 }),
                reth: has(Headers::RETH).then_some(Reth { va: 4, rkey: Key(5), length: 6 }),
                atomic_eth: has(Headers::ATOMIC_ETH).then_some(AtomicEth {
                    va: 8,
                    rkey: Key(7),
                    swap_or_add: 8,
                    compare: 9,
                }),
                aeth: has(Headers::AETH)
                    .then_some(Aeth { syndrome: crate::soft::wire::Syndrome::Ack, msn: 10 }),
                atomic_ack: has(Headers::ATOMIC_ACK).then_some(11),
                imm: has(Headers::IMM).then_some(12),
                ieth: has(Headers::IETH).then_some(Key(13)),
                ..Packet::new(Bth { pad: 2, ..Bth::new(opcode, Qpn(0x1001), Psn::new(14)) })
            };
            let mut b = vec![0; packet.datagram_len(6)];
            packet.emit(6, &mut b);
            let (start, mut used) = (packet.header_len(), vec![0xaa; b.len()]);
            packet.emit(6, &mut used);
            assert!(
                used[..start] == b[..start] && used[start + 6..start + 8] == [0; 2],
                "{opcode:?} left bytes"
            );
            assert_eq!(Packet::parse(&b), Ok((packet, packet.header_len()..packet.header_len() + 6)));
            for short in 0..packet.header_len() + 2 + icrc::LEN {
                assert_eq!(Packet::parse(&b[..short]), Err(Error::Truncated), "{opcode:?} cut to {short}");
            }
        }
    }

    #[test]
    fn longest_headers_fit_the_room_for_a_datagram() {
        let opcode = Opcode::new(Transport::Xrc, Operation::CmpSwap);
        assert!(opcode.headers().contains(Headers::XRCETH | Headers::ATOMIC_ETH));
        const { assert!(xrceth::LEN + atomic_eth::LEN <= 40 && xrceth::LEN + reth::LEN + imm::LEN <= 40) };
    }
}
