//! The Datagram Extended Transport Header of UD packets (IBA 9.3.2).
use super::{Error, be24, be32, put24, view};
use crate::soft::types::Qpn;

/// Bytes of the header.
pub const LEN: usize = 8;

view! {
    /// A DETH in place.
    DethView, LEN
}

impl<T: AsRef<[u8]>> DethView<T> {
    /// The Q_Key that must equal the receiver's.
    pub fn qkey(&self) -> u32 {
        be32(self.bytes(), 0)
    }
    /// The sender's queue pair.
    pub fn src_qpn(&self) -> Qpn {
        Qpn(be24(self.bytes(), 5))
    }
}

/// A DETH as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// The Q_Key that must equal the receiver's.
    pub qkey: u32,
    /// The sender's queue pair.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Reads a header.
    ///
    /// # Errors
    /// `Truncated` when `b` is too short.
    pub fn parse(b: &[u8]) -> Result<Self, Error> {
        let view = DethView::new_checked(b)?;
        Ok(Self { qkey: view.qkey(), src_qpn: view.src_qpn() })
    }

    /// Writes the header into the first [`LEN`] bytes of `b`.
    pub fn emit(&self, b: &mut [u8]) {
        b[..4].copy_from_slice(&self.qkey.to_be_bytes());
        b[4] = 0;
        put24(b, 5, self.src_qpn.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bytes = [0x11, 0x11, 0x11, 0x12, 0x00, 0x00, 0x10, 0x05];
        let deth = Deth::parse(&bytes).unwrap();
        assert_eq!(deth, Deth { qkey: 0x1111_1112, src_qpn: Qpn(0x1005) });
        let mut out = [0xaa; LEN];
        deth.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Deth::parse(&bytes[..7]), Err(Error::Truncated));
    }
}
