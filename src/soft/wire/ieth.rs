//! The Invalidate Extended Transport Header: the key that a SEND with invalidate ends (IBA 9.3.7).
use super::{Error, be32, view};
use crate::soft::types::Key;

/// Bytes of the header.
pub const LEN: usize = 4;

view! {
    /// An IETH in place.
    IethView, LEN
}

impl<T: AsRef<[u8]>> IethView<T> {
    /// The key to invalidate at the receiver.
    pub fn rkey(&self) -> Key {
        Key(be32(self.bytes(), 0))
    }
}

/// Reads a header.
///
/// # Errors
/// `Truncated` when `b` is too short.
pub fn parse(b: &[u8]) -> Result<Key, Error> {
    Ok(IethView::new_checked(b)?.rkey())
}

/// Writes the header into the first [`LEN`] bytes of `b`.
pub fn emit(rkey: Key, b: &mut [u8]) {
    b[..LEN].copy_from_slice(&rkey.0.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bytes = [0, 0, 0x12, 0x34];
        assert_eq!(parse(&bytes), Ok(Key(0x1234)));
        let mut out = [0xaa; LEN];
        emit(Key(0x1234), &mut out);
        assert_eq!(out, bytes);
        assert_eq!(parse(&bytes[..3]), Err(Error::Truncated));
    }
}
