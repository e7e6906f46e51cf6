//! RoCEv2 formats, one header per file: a checked view over bytes, and a plain value with `parse` and `emit`.
//!
//! All fields are big endian on the wire except the ICRC. `opcode` says which headers follow the BTH, `packet`
//! reads and writes a whole UDP payload, `icrc` protects it, `ip` stands for the headers that a socket hides.
#![forbid(unsafe_code)]
pub mod aeth;
pub mod atomic_ack;
pub mod atomic_eth;
pub mod bth;
pub mod cnp;
pub mod deth;
pub mod feth;
pub mod icrc;
pub mod ieth;
pub mod imm;
pub mod ip;
pub mod opcode;
pub mod packet;
pub mod reth;
pub mod short;
pub mod xrceth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use ip::IpUdp;
pub use opcode::{Headers, Opcode, Operation, Transport};
pub use packet::Packet;
pub use reth::Reth;

/// The UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// The largest payload that one packet carries.
pub const MAX_PAYLOAD: usize = 4096;

/// Room for any packet: BTH, the longest run of extended headers, payload, ICRC.
pub const MAX_DATAGRAM: usize = bth::LEN + 40 + MAX_PAYLOAD + icrc::LEN;

/// Why bytes are not a RoCEv2 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Shorter than the headers, pad and ICRC that it claims.
    Truncated,
    /// The transport version is not 0.
    Version,
    /// No such opcode, or one that urxe does not speak.
    Opcode(u8),
    /// A syndrome that the IB specification reserves.
    Syndrome(u8),
}

pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

pub(crate) fn be24(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

pub(crate) fn put24(b: &mut [u8], at: usize, value: u32) {
    b[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

/// A read-only view of a header of fixed length, whose length is checked once.
macro_rules! view {
    ($(#[$meta:meta])* $name:ident, $len:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<T: AsRef<[u8]>>(T);

        impl<T: AsRef<[u8]>> $name<T> {
            /// A view of the first bytes of `buffer`.
            ///
            /// # Errors
            /// `Truncated` when the header does not fit.
            pub fn new_checked(buffer: T) -> Result<Self, $crate::soft::wire::Error> {
                if buffer.as_ref().len() < $len { Err($crate::soft::wire::Error::Truncated) } else { Ok(Self(buffer)) }
            }

            fn bytes(&self) -> &[u8] {
                self.0.as_ref()
            }
        }
    };
}
pub(crate) use view;
