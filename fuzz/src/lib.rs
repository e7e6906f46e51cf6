//! What others send to us and may write where we read, as fuzz targets.
//!
//! A target takes any bytes, makes of them what a stranger could do, and panics where an invariant does not hold.
//! `cargo xtask fuzz` runs them under libFuzzer with AddressSanitizer; cargo's tests run every input that is kept.
mod datagram;
pub mod handshake;
pub mod input;
pub mod meter;
pub mod node;
pub mod packet;
pub mod ring;
pub mod text;
pub mod transport;

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    /// Its name, which is also that of its folders of inputs.
    pub name: &'static str,
    /// Takes one input.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target { name: "packet", run: packet::run },
    Target { name: "transport", run: transport::run },
    Target { name: "ring", run: ring::run },
    Target { name: "handshake", run: handshake::run },
    Target { name: "text", run: text::run },
    Target { name: "node", run: node::run },
];
