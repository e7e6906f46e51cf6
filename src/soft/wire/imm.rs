//! The Immediate Extended Transport Header: four bytes that travel as the application stored them (IBA 9.3.6).
use super::{Error, view};

/// Bytes of the header.
pub const LEN: usize = 4;

view! {
    /// An ImmDt in place.
    ImmView, LEN
}

impl<T: AsRef<[u8]>> ImmView<T> {
    /// The four bytes of `imm_data`, as an integer in memory order (verbs calls it `__be32`).
    pub fn imm(&self) -> u32 {
        let b = self.bytes();
        u32::from_ne_bytes([b[0], b[1], b[2], b[3]])
    }
}

/// Reads a header: `imm_data` in memory order.
///
/// # Errors
/// `Truncated` when `b` is too short.
pub fn parse(b: &[u8]) -> Result<u32, Error> {
    Ok(ImmView::new_checked(b)?.imm())
}

/// Writes `imm_data` into the first [`LEN`] bytes of `b`.
pub fn emit(imm: u32, b: &mut [u8]) {
    b[..LEN].copy_from_slice(&imm.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_in_memory_order() {
        let bytes = [0xde, 0xad, 0xbe, 0xef];
        let imm = parse(&bytes).unwrap();
        assert_eq!(imm.to_ne_bytes(), bytes);
        let mut out = [0; LEN];
        emit(imm, &mut out);
        assert_eq!(out, bytes);
        assert_eq!(parse(&bytes[..3]), Err(Error::Truncated));
    }
}
