//! The Atomic ACK Extended Transport Header: the value before the operation (IBA 9.5.2).
use super::{Error, be64, view};

/// Bytes of the header.
pub const LEN: usize = 8;

view! {
    /// An AtomicAckETH in place.
    AtomicAckView, LEN
}

impl<T: AsRef<[u8]>> AtomicAckView<T> {
    /// The value at the remote address before the operation, in host order.
    pub fn original(&self) -> u64 {
        be64(self.bytes(), 0)
    }
}

/// Reads a header: the original value in host order.
///
/// # Errors
/// `Truncated` when `b` is too short.
pub fn parse(b: &[u8]) -> Result<u64, Error> {
    Ok(AtomicAckView::new_checked(b)?.original())
}

/// Writes the header into the first [`LEN`] bytes of `b`.
pub fn emit(original: u64, b: &mut [u8]) {
    b[..LEN].copy_from_slice(&original.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_and_writes_the_same_bytes() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(parse(&bytes), Ok(0x0102_0304_0506_0708));
        let mut out = [0xaa; LEN];
        emit(0x0102_0304_0506_0708, &mut out);
        assert_eq!(out, bytes);
        assert_eq!(parse(&bytes[..7]), Err(Error::Truncated));
    }
}
