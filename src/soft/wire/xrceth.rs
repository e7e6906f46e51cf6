//! The XRC Extended Transport Header: the shared receive queue that an XRC request goes to (IBA Annex A14).
use super::{Error, be24, put24, view};

/// Bytes of the header.
pub const LEN: usize = 4;

view! {
    /// An XRCETH in place.
    XrcEthView, LEN
}

impl<T: AsRef<[u8]>> XrcEthView<T> {
    /// The number of the shared receive queue.
    pub fn srqn(&self) -> u32 {
        be24(self.bytes(), 1)
    }
}

/// Reads a header: the number of the shared receive queue.
///
/// # Errors
/// `Truncated` when `b` is too short.
pub fn parse(b: &[u8]) -> Result<u32, Error> {
    Ok(XrcEthView::new_checked(b)?.srqn())
}

/// Writes the header into the first [`LEN`] bytes of `b`.
pub fn emit(srqn: u32, b: &mut [u8]) {
    b[0] = 0;
    put24(b, 1, srqn);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bytes = [0, 0x01, 0x02, 0x03];
        assert_eq!(parse(&bytes), Ok(0x010203));
        let mut out = [0xaa; LEN];
        emit(0x010203, &mut out);
        assert_eq!(out, bytes);
        assert_eq!(parse(&bytes[..3]), Err(Error::Truncated));
    }
}
