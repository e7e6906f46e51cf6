//! The RDMA Extended Transport Header: where a WRITE goes or a READ comes from (IBA 9.3.3).
use super::{Error, be32, be64, view};
use crate::soft::types::Key;

/// Bytes of the header.
pub const LEN: usize = 16;

view! {
    /// A RETH in place.
    RethView, LEN
}

impl<T: AsRef<[u8]>> RethView<T> {
    /// The remote address.
    pub fn va(&self) -> u64 {
        be64(self.bytes(), 0)
    }
    /// The remote region's key.
    pub fn rkey(&self) -> Key {
        Key(be32(self.bytes(), 8))
    }
    /// Bytes of the whole message.
    pub fn length(&self) -> u32 {
        be32(self.bytes(), 12)
    }
}

/// A RETH as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// The remote address.
    pub va: u64,
    /// The remote region's key.
    pub rkey: Key,
    /// Bytes of the whole message.
    pub length: u32,
}

impl Reth {
    /// Reads a header.
    ///
    /// # Errors
    /// `Truncated` when `b` is too short.
    pub fn parse(b: &[u8]) -> Result<Self, Error> {
        let view = RethView::new_checked(b)?;
        Ok(Self { va: view.va(), rkey: view.rkey(), length: view.length() })
    }

    /// Writes the header into the first [`LEN`] bytes of `b`.
    pub fn emit(&self, b: &mut [u8]) {
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..16].copy_from_slice(&self.length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bytes = [0, 0, 0x7f, 0xff, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x02, 0x9a, 0, 1, 0, 0];
        let reth = Reth::parse(&bytes).unwrap();
        assert_eq!(reth, Reth { va: 0x7fff_1234_5678, rkey: Key(0x29a), length: 65536 });
        let mut out = [0xaa; LEN];
        reth.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Reth::parse(&bytes[..15]), Err(Error::Truncated));
    }
}
