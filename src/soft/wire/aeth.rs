//! The ACK Extended Transport Header: acknowledged, not ready, or refused (IBA 9.3.5).
use super::{Error, be24, put24, view};

/// Bytes of the header.
pub const LEN: usize = 4;

/// The credit code that says nothing about credits; urxe sends no other.
pub const NO_CREDITS: u8 = 0x1f;

view! {
    /// An AETH in place.
    AethView, LEN
}

impl<T: AsRef<[u8]>> AethView<T> {
    /// The syndrome as it stands; see [`Syndrome::from_raw`].
    pub fn syndrome(&self) -> u8 {
        self.bytes()[0]
    }
    /// Messages that the responder has completed, modulo 2^24.
    pub fn msn(&self) -> u32 {
        be24(self.bytes(), 1)
    }
}

/// Why a responder refuses (NAK codes of IBA table 45).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequence = 0,
    /// The request breaks the rules.
    InvalidRequest = 1,
    /// Key, range or permission.
    RemoteAccess = 2,
    /// The responder failed on its own account.
    RemoteOperational = 3,
}

/// What an AETH says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Everything up to the packet's PSN has arrived; the credit code is not used.
    Ack,
    /// No receive is posted: wait as long as the 5-bit timer code says.
    Rnr(u8),
    /// The request at the packet's PSN is refused.
    Nak(NakCode),
}

impl Syndrome {
    /// The meaning of a syndrome byte.
    ///
    /// # Errors
    /// `Syndrome` when the specification reserves it.
    pub const fn from_raw(raw: u8) -> Result<Self, Error> {
        match (raw >> 5, raw & 0x1f) {
            (0, _) => Ok(Self::Ack),
            (1, timer) => Ok(Self::Rnr(timer)),
            (3, 0) => Ok(Self::Nak(NakCode::PsnSequence)),
            (3, 1) => Ok(Self::Nak(NakCode::InvalidRequest)),
            (3, 2) => Ok(Self::Nak(NakCode::RemoteAccess)),
            (3, 3) => Ok(Self::Nak(NakCode::RemoteOperational)),
            _ => Err(Error::Syndrome(raw)),
        }
    }

    /// The byte that stands for it.
    pub const fn raw(self) -> u8 {
        match self {
            Self::Ack => NO_CREDITS,
            Self::Rnr(timer) => 0x20 | (timer & 0x1f),
            Self::Nak(code) => 0x60 | code as u8,
        }
    }
}

/// An AETH as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// Reads a header.
    ///
    /// # Errors
    /// `Truncated`, or `Syndrome` when that is reserved.
    pub fn parse(b: &[u8]) -> Result<Self, Error> {
        let view = AethView::new_checked(b)?;
        Ok(Self { syndrome: Syndrome::from_raw(view.syndrome())?, msn: view.msn() })
    }

    /// Writes the header into the first [`LEN`] bytes of `b`.
    pub fn emit(&self, b: &mut [u8]) {
        b[0] = self.syndrome.raw();
        put24(b, 1, self.msn);
    }
}

/// How long an RNR timer code asks to wait, in nanoseconds (IBA table 46): 0.01 ms to 655.36 ms.
pub const fn rnr_nanos(code: u8) -> u64 {
    const TENS_OF_US: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    TENS_OF_US[(code & 0x1f) as usize] as u64 * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_read_and_write_the_same_byte() {
        let bytes: [([u8; 4], Syndrome); 4] = [
            ([0x1f, 0, 0, 1], Syndrome::Ack),
            ([0x2e, 0, 0, 1], Syndrome::Rnr(14)),
            ([0x60, 0, 0, 1], Syndrome::Nak(NakCode::PsnSequence)),
            ([0x63, 0, 0, 1], Syndrome::Nak(NakCode::RemoteOperational)),
        ];
        for (bytes, syndrome) in bytes {
            let aeth = Aeth::parse(&bytes).unwrap();
            assert_eq!(aeth, Aeth { syndrome, msn: 1 });
            let mut out = [0xaa; LEN];
            aeth.emit(&mut out);
            assert_eq!(out, bytes);
        }
        assert_eq!(Syndrome::from_raw(0x05), Ok(Syndrome::Ack), "a credit count is an ACK");
        for reserved in [0x40, 0x64, 0x7f, 0x80] {
            assert_eq!(Syndrome::from_raw(reserved), Err(Error::Syndrome(reserved)));
        }
    }

    #[test]
    fn rnr_codes_have_the_specified_times() {
        assert_eq!(rnr_nanos(0), 655_360_000);
        assert_eq!(rnr_nanos(1), 10_000);
        assert_eq!(rnr_nanos(12), 640_000);
        assert_eq!(rnr_nanos(31), 491_520_000);
    }
}
