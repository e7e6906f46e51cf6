//! Packets on their way out: bytes back to back, without ICRC and address.
use crate::soft::wire::{IpUdp, Packet, icrc};

/// Datagrams to be sealed and sent by the link.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    sealed: bool,
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

    /// From datagram `i` on, how many of at most `most` have one size, except that the last may be shorter; together no
    /// more than `bytes`. One at least, unless there is none.
    pub fn run(&self, i: usize, most: usize, bytes: usize) -> usize {
        let Some(size) = (i < self.len()).then(|| self.range(i).len()) else { return 0 };
        let (mut n, mut total) = (1, size);
        while n < most && i + n < self.len() {
            let next = self.range(i + n).len();
            if next > size || total + next > bytes {
                break;
            }
            total += next;
            n += 1;
            if next < size {
                break;
            }
        }
        n
    }

    /// The bytes of `n` datagrams from `i` on, which lie back to back.
    pub fn span_mut(&mut self, i: usize, n: usize) -> &mut [u8] {
        let (start, end) = (self.range(i).start, self.range(i + n - 1).end);
        &mut self.bytes[start..end]
    }

    /// Datagram `i`.
    pub fn get_mut(&mut self, i: usize) -> &mut [u8] {
        let range = self.range(i);
        &mut self.bytes[range]
    }

    /// Gives all that is in it its ICRC, for packets that leave one by one.
    pub fn seal(&mut self, ip: &IpUdp) {
        for i in 0..self.len() {
            icrc::seal(ip, self.get_mut(i));
        }
        self.sealed = true;
    }

    /// All that is in it has its ICRC, right or wrong: the link leaves it as it is.
    pub fn set_sealed(&mut self) {
        self.sealed = true;
    }

    /// `set_sealed` was said.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.sealed = false;
    }

    fn range(&self, i: usize) -> std::ops::Range<usize> {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        start..self.ends[i]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_one_size_with_a_shorter_end() {
        let mut out = Outbox::new();
        for len in [40, 30, 30, 30, 20, 20, 25, 9] {
            out.push_bytes(&vec![len as u8; len]);
        }
        let runs = |i, most, bytes| out.run(i, most, bytes);
        assert_eq!(
            (runs(0, 64, 1000), runs(1, 64, 1000), runs(5, 64, 1000), runs(8, 64, 1000)),
            (2, 4, 1, 0)
        );
        assert_eq!((runs(1, 3, 1000), runs(1, 64, 80), runs(1, 64, 1)), (3, 2, 1));
        assert_eq!(out.span_mut(1, 4).len(), 110);
    }
}
