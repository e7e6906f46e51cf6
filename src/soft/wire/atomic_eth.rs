//! The Atomic Extended Transport Header: operands of a compare-and-swap or fetch-and-add (IBA 9.3.4).
use super::{Error, be32, be64, view};
use crate::soft::types::Key;

/// Bytes of the header.
pub const LEN: usize = 28;

view! {
    /// An AtomicETH in place.
    AtomicEthView, LEN
}

impl<T: AsRef<[u8]>> AtomicEthView<T> {
    /// The remote address, a multiple of 8.
    pub fn va(&self) -> u64 {
        be64(self.bytes(), 0)
    }
    /// The remote region's key.
    pub fn rkey(&self) -> Key {
        Key(be32(self.bytes(), 8))
    }
    /// The value to swap in or to add.
    pub fn swap_or_add(&self) -> u64 {
        be64(self.bytes(), 12)
    }
    /// The value to compare with.
    pub fn compare(&self) -> u64 {
        be64(self.bytes(), 20)
    }
}

/// An AtomicETH as a value; operands in host order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// The remote address, a multiple of 8.
    pub va: u64,
    /// The remote region's key.
    pub rkey: Key,
    /// The value to swap in or to add.
    pub swap_or_add: u64,
    /// The value to compare with; 0 in a fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Reads a header.
    ///
    /// # Errors
    /// `Truncated` when `b` is too short.
    pub fn parse(b: &[u8]) -> Result<Self, Error> {
        let v = AtomicEthView::new_checked(b)?;
        Ok(Self { va: v.va(), rkey: v.rkey(), swap_or_add: v.swap_or_add(), compare: v.compare() })
    }

    /// Writes the header into the first [`LEN`] bytes of `b`.
    pub fn emit(&self, b: &mut [u8]) {
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bytes = [
            0, 0, 0, 0, 0, 0, 0x10, 0x08, 0, 0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0x55,
            0x66, 0x77, 0x88,
        ];
        let eth = AtomicEth::parse(&bytes).unwrap();
        let want = AtomicEth {
            va: 0x1008,
            rkey: Key(0x102),
            swap_or_add: 0x0102_0304_0506_0708,
            compare: 0x1122_3344_5566_7788,
        };
        assert_eq!(eth, want);
        let mut out = [0xaa; LEN];
        eth.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(AtomicEth::parse(&bytes[..27]), Err(Error::Truncated));
    }
}
