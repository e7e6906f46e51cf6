//! Packets on their way out: bytes back to back, without ICRC and address.
use crate::soft::wire::Packet;

/// Datagrams to be sealed and sent by the link.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Datagrams in it.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a packet; the caller fills in the payload that is returned. The ICRC is four bytes of anything.
    pub fn push(&mut self, packet: &Packet, payload: usize) -> &mut [u8] {
        let start = self.bytes.len();
        let header = packet.header_len();
        self.bytes.resize(start + packet.datagram_len(payload), 0);
        packet.emit(payload, &mut self.bytes[start..]);
        self.ends.push(self.bytes.len());
        &mut self.bytes[start + header..start + header + payload]
    }

    /// Adds a datagram as it is; its last four bytes are the ICRC, of anything.
    pub fn push_bytes(&mut self, datagram: &[u8]) {
        self.bytes.extend(datagram);
        self.ends.push(self.bytes.len());
    }

    /// Takes the youngest packet back.
    pub fn retract(&mut self) {
        self.ends.pop();
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// The datagrams in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|i| &self.bytes[self.range(i)])
    }

    /// Datagram `i`.
    pub fn get_mut(&mut self, i: usize) -> &mut [u8] {
        let range = self.range(i);
        &mut self.bytes[range]
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn range(&self, i: usize) -> std::ops::Range<usize> {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        start..self.ends[i]
    }
}
