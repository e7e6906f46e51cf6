//! The Flush Extended Transport Header: how far a FLUSH reaches (IBA 1.6, 9.3.8).
use super::{Error, be32, view};

/// Bytes of the header.
pub const LEN: usize = 4;

/// What a FLUSH asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// Placement types: 1 global visibility, 2 persistence; 4 bits.
    pub types: u8,
    /// Selectivity level: 0 a range, 1 the whole region; 2 bits.
    pub level: u8,
}

view! {
    /// A FETH in place.
    FethView, LEN
}

impl<T: AsRef<[u8]>> FethView<T> {
    /// The placement types.
    pub fn types(&self) -> u8 {
        be32(self.bytes(), 0) as u8 & 0xf
    }
    /// The selectivity level.
    pub fn level(&self) -> u8 {
        (be32(self.bytes(), 0) >> 4) as u8 & 3
    }
}

impl Feth {
    /// Reads a header; reserved bits are ignored.
    ///
    /// # Errors
    /// `Truncated` when `b` is too short.
    pub fn parse(b: &[u8]) -> Result<Self, Error> {
        let view = FethView::new_checked(b)?;
        Ok(Self { types: view.types(), level: view.level() })
    }

    /// Writes the header into the first [`LEN`] bytes of `b`.
    pub fn emit(&self, b: &mut [u8]) {
        let word = u32::from(self.types & 0xf) | u32::from(self.level & 3) << 4;
        b[..LEN].copy_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bytes = [0, 0, 0, 0x12];
        let feth = Feth::parse(&bytes).unwrap();
        assert_eq!(feth, Feth { types: 2, level: 1 });
        let mut out = [0xaa; LEN];
        feth.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Feth::parse(&bytes[..3]), Err(Error::Truncated));
    }
}
