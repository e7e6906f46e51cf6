//! The Base Transport Header, first in every packet (IBA 9.2).
use super::{Error, Opcode, be16, be24, put24, view};
use crate::soft::types::{Psn, Qpn};

/// Bytes of the header.
pub const LEN: usize = 12;

/// The partition key of every urxe packet: the default partition, full member.
pub const DEFAULT_PKEY: u16 = 0xffff;

view! {
    /// A BTH in place.
    BthView, LEN
}

impl<T: AsRef<[u8]>> BthView<T> {
    /// The opcode as it stands; see [`Opcode::from_raw`].
    pub fn opcode(&self) -> u8 {
        self.bytes()[0]
    }
    /// The solicited-event bit.
    pub fn solicited(&self) -> bool {
        self.bytes()[1] & 0x80 != 0
    }
    /// The migration-request bit.
    pub fn migreq(&self) -> bool {
        self.bytes()[1] & 0x40 != 0
    }
    /// How many bytes of padding follow the payload, 0 to 3.
    pub fn pad(&self) -> u8 {
        self.bytes()[1] >> 4 & 3
    }
    /// The transport version; 0 in all that exist.
    pub fn version(&self) -> u8 {
        self.bytes()[1] & 0xf
    }
    /// The partition key.
    pub fn pkey(&self) -> u16 {
        be16(self.bytes(), 2)
    }
    /// Forward congestion, seen by this packet on its way.
    pub fn fecn(&self) -> bool {
        self.bytes()[4] & 0x80 != 0
    }
    /// Backward congestion: slow down.
    pub fn becn(&self) -> bool {
        self.bytes()[4] & 0x40 != 0
    }
    /// The destination queue pair.
    pub fn dest_qpn(&self) -> Qpn {
        Qpn(be24(self.bytes(), 5))
    }
    /// Whether the sender asks for an acknowledgement.
    pub fn ack_req(&self) -> bool {
        self.bytes()[8] & 0x80 != 0
    }
    /// The packet's sequence number.
    pub fn psn(&self) -> Psn {
        Psn::new(be24(self.bytes(), 9))
    }
}

/// A BTH as a value. Congestion bits are sent as 0; MigReq is sent as 1 (migrated), which NICs insist on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Raise a solicited event at the receiver.
    pub solicited: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// The partition key.
    pub pkey: u16,
    /// The destination queue pair.
    pub dest_qpn: Qpn,
    /// Asks for an acknowledgement.
    pub ack_req: bool,
    /// The packet's sequence number.
    pub psn: Psn,
    /// Backward congestion: the sender of this packet's request is to slow down. Never sent.
    pub becn: bool,
}

impl Bth {
    /// A header with nothing asked for, in the default partition.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            pad: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn,
            ack_req: false,
            psn,
            becn: false,
        }
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Version` or `Opcode` when it is not one that urxe speaks.
    pub fn parse<T: AsRef<[u8]>>(view: &BthView<T>) -> Result<Self, Error> {
        if view.version() != 0 {
            return Err(Error::Version);
        }
        Ok(Self {
            opcode: Opcode::from_raw(view.opcode()).ok_or(Error::Opcode(view.opcode()))?,
            solicited: view.solicited(),
            pad: view.pad(),
            pkey: view.pkey(),
            dest_qpn: view.dest_qpn(),
            ack_req: view.ack_req(),
            psn: view.psn(),
            becn: view.becn(),
        })
    }

    /// Writes the header into the first [`LEN`] bytes of `b`.
    pub fn emit(&self, b: &mut [u8]) {
        b[0] = self.opcode.raw();
        b[1] = u8::from(self.solicited) << 7 | 0x40 | (self.pad & 3) << 4;
        b[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        b[4] = 0;
        put24(b, 5, self.dest_qpn.0);
        b[8] = u8::from(self.ack_req) << 7;
        put24(b, 9, self.psn.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::wire::{Operation, Transport};

    const BYTES: [u8; LEN] = [0x24, 0xf0, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bth = Bth::parse(&BthView::new_checked(BYTES).unwrap()).unwrap();
        assert_eq!(bth.opcode, Opcode::new(Transport::Uc, Operation::SendOnly));
        assert_eq!((bth.solicited, bth.pad, bth.ack_req), (true, 3, true));
        assert_eq!((bth.pkey, bth.dest_qpn, bth.psn.get()), (0xffff, Qpn(0x123456), 0xabcdef));
        let mut out = [0xaa; LEN];
        bth.emit(&mut out);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn short_or_strange_headers_are_refused() {
        assert_eq!(BthView::new_checked(&BYTES[..11]).err(), Some(Error::Truncated));
        let mut bad = BYTES;
        bad[1] |= 1;
        assert_eq!(Bth::parse(&BthView::new_checked(bad).unwrap()), Err(Error::Version));
        bad = BYTES;
        bad[0] = 0x1f;
        assert_eq!(Bth::parse(&BthView::new_checked(bad).unwrap()), Err(Error::Opcode(0x1f)));
    }
}
