//! Packets on their way out: bytes back to back, without ICRC and address.
use crate::soft::wire::{Aeth, Bth, IpUdp, MAX_DATAGRAM, Packet, aeth, bth, icrc};

/// What leaves together: as much as the kernel takes as one datagram.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// Packets at most,
    pub packets: usize,
    /// and their bytes.
    pub bytes: usize,
}

/// Datagrams to be sealed and sent by the link.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Never shorter than it was: behind the last end lies what former packets left, and nothing is cleared to be written.
    bytes: Vec<u8>,
    ends: Vec<End>,
    sealed: bool,
    /// The youngest of those runs of datagrams that the kernel can take as one: their number, the size of all but the last,
    /// and whether a shorter one has ended it.
    last_run: (usize, usize, bool),
}

/// Where a datagram ends, and the sum of its payload, if that is known.
#[derive(Clone, Copy, Debug)]
struct End {
    at: usize,
    sum: Option<u32>,
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

    /// Bytes of all datagrams.
    pub fn bytes(&self) -> usize {
        self.ends.last().map_or(0, |end| end.at)
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a packet; the caller fills in the payload that is returned, which holds anything. So does the ICRC, four bytes.
    pub fn push(&mut self, packet: &Packet, payload: usize) -> &mut [u8] {
        let header = packet.header_len();
        let datagram = self.grow(packet.datagram_len(payload));
        packet.emit(payload, datagram);
        &mut datagram[header..header + payload]
    }

    /// Adds a packet that has no header but the BTH, as [`push`](Self::push) does.
    #[inline]
    pub fn push_bare(&mut self, bth: &Bth, payload: usize) -> &mut [u8] {
        let pad = payload.wrapping_neg() & 3;
        let datagram = self.grow(bth::LEN + payload + pad + icrc::LEN);
        Bth { pad: pad as u8, ..*bth }.emit(datagram);
        let (bytes, rest) = datagram[bth::LEN..].split_at_mut(payload);
        rest[..pad].fill(0);
        bytes
    }

    /// Adds an acknowledgement or a refusal, as [`push`](Self::push) does.
    #[inline]
    pub fn push_aeth(&mut self, bth: &Bth, aeth: &Aeth) {
        let datagram = self.grow(bth::LEN + aeth::LEN + icrc::LEN);
        bth.emit(datagram);
        aeth.emit(&mut datagram[bth::LEN..]);
    }

    /// Adds a datagram as it is; its last four bytes are the ICRC, of anything.
    pub fn push_bytes(&mut self, datagram: &[u8]) {
        self.grow(datagram.len()).copy_from_slice(datagram);
    }

    /// Room for one more datagram.
    fn grow(&mut self, len: usize) -> &mut [u8] {
        let start = self.bytes();
        if self.bytes.len() < start + len {
            // No more than needed: the allocator would take a mapping of its own, which might lie where the application has
            // unmapped registered memory.
            self.bytes.reserve_exact(start + len - self.bytes.len());
            self.bytes.resize(start + len, 0);
        }
        let (n, size, ended) = self.last_run;
        self.last_run = match self.ends.is_empty() || ended || len > size {
            true => (1, len, false),
            false => (n + 1, size, len < size),
        };
        self.ends.push(End { at: start + len, sum: None });
        &mut self.bytes[start..start + len]
    }

    /// Takes the youngest packet back.
    pub fn retract(&mut self) {
        self.ends.pop();
    }

    /// What it has got since there were `before` datagrams is a burst: either its last packets can leave as one that has no room for another,
    /// or it is nearly two in all. A message begins with a longer packet, and what follows it is to be whole again.
    pub fn is_full(&self, before: usize, burst: Burst) -> bool {
        let new = self.len() - before;
        if new == 0 {
            return false;
        }
        let (n, size, ended) = self.last_run;
        let (n, bytes) = (n.min(new), self.bytes() - self.range(before).start);
        n >= burst.packets
            || (!ended && (n + 1) * size > burst.bytes)
            || new + 1 >= 2 * burst.packets
            || bytes + MAX_DATAGRAM > 2 * burst.bytes
    }

    /// The next packet begins a run: the youngest one is whole, or there is none.
    pub fn is_between_runs(&self, burst: Burst) -> bool {
        let (n, size, ended) = self.last_run;
        self.is_empty() || ended || n >= burst.packets || (n + 1) * size > burst.bytes
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

    /// Tells the sum of the youngest packet's payload (`icrc::sum`), which has no header but the BTH.
    #[inline]
    pub fn set_sum(&mut self, sum: Option<u32>) {
        if let Some(end) = self.ends.last_mut() {
            end.sum = sum;
        }
    }

    /// Gives datagram `i`, which goes between these ends, its ICRC, as one that leaves with this IPv4 id.
    #[inline]
    pub fn seal_with_id(&mut self, ends: &icrc::Ends, i: usize, id: u16) {
        let sum = self.ends[i].sum;
        let datagram = self.get_mut(i);
        match sum {
            Some(sum) => ends.seal_summed(id, datagram, sum),
            None => ends.seal(id, datagram),
        }
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
        self.ends.clear();
        self.sealed = false;
    }

    fn range(&self, i: usize) -> std::ops::Range<usize> {
        let start = if i == 0 { 0 } else { self.ends[i - 1].at };
        start..self.ends[i].at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::types::{Psn, Qpn};
    use crate::soft::wire::{NakCode, Opcode, Operation, Syndrome, Transport};

    #[test]
    fn what_former_packets_left_is_in_none() {
        let mut out = Outbox::new();
        out.push_bytes(&[0xaa; 200]);
        out.clear();
        assert!(out.is_empty() && out.iter().next().is_none());
        out.push_bytes(&[1; 20]);
        out.push_bytes(&[2; 30]);
        out.retract();
        out.push_bytes(&[3; 10]);
        assert_eq!(out.iter().collect::<Vec<_>>(), [&[1; 20][..], &[3; 10]]);
    }

    #[test]
    fn a_burst_is_full_when_its_last_run_is() {
        let mut out = Outbox::new();
        let burst = Burst { packets: 4, bytes: 60_000 };
        let push = |out: &mut Outbox, len: usize| {
            out.push_bytes(&vec![0; len]);
            out.is_full(0, burst)
        };
        assert_eq!([50, 40, 40, 40].map(|n| push(&mut out, n)), [false; 4], "the second ends a run of two");
        assert_eq!([40, 40].map(|n| push(&mut out, n)), [false, true]);
        out.clear();
        let grow = [10, 20, 30, 40, 50, 60, 70].map(|n| push(&mut out, n));
        assert_eq!(grow, [false, false, false, false, false, false, true]);
        out.clear();
        assert!(!out.is_full(0, burst));
    }

    #[test]
    fn a_burst_of_short_packets_has_more_of_them_than_one_of_long_ones() {
        let burst = Burst { packets: 64, bytes: 64_000 };
        for (len, packets) in [(24, 64), (1040, 61), (4112, 15)] {
            let mut out = Outbox::new();
            while !out.is_full(0, burst) {
                out.push_bytes(&vec![0; len]);
            }
            assert_eq!(out.len(), packets, "{len}");
            assert_eq!(out.run(0, 64, 65_000), packets, "{len}");
        }
    }

    #[test]
    fn a_bare_packet_is_one_without_further_headers() {
        let opcode = Opcode::new(Transport::Rc, Operation::SendMiddle);
        let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn(0x1001), Psn::new(7)) };
        let mut out = Outbox::new();
        for length in [0, 1, 7, 256] {
            out.clear();
            out.push(&Packet::new(bth), length).fill(9);
            out.push_bare(&bth, length).fill(9);
            // The ICRC is of anything.
            let datagrams: Vec<&[u8]> = out.iter().map(|d| &d[..d.len() - icrc::LEN]).collect();
            assert_eq!(datagrams[0], datagrams[1]);
        }
    }

    #[test]
    fn an_acknowledgement_is_a_packet_with_an_aeth() {
        let bth = Bth::new(Opcode::new(Transport::Xrc, Operation::Acknowledge), Qpn(0x1001), Psn::new(7));
        let mut out = Outbox::new();
        for syndrome in [Syndrome::Ack, Syndrome::Rnr(14), Syndrome::Nak(NakCode::RemoteAccess)] {
            out.clear();
            let aeth = Aeth { syndrome, msn: 0x12_3456 };
            out.push(&Packet { aeth: Some(aeth), ..Packet::new(bth) }, 0);
            out.push_aeth(&bth, &aeth);
            let datagrams: Vec<&[u8]> = out.iter().map(|d| &d[..d.len() - icrc::LEN]).collect();
            assert_eq!(datagrams[0], datagrams[1]);
        }
    }

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
