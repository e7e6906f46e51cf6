//! The invariant CRC: Ethernet's CRC-32 over a pseudo packet, stored least significant byte first (IBA A17, 7.8.1).
use super::{IpUdp, bth};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the trailer.
pub const LEN: usize = 4;

/// The CRC of the eight 0xff bytes that stand for the missing LRH; as a raw register, 0xdebb20e3.
const PREFIX: u32 = !0xdebb_20e3;
const POLY: u32 = 0xedb8_8320;
/// Where the congestion bits stand in the BTH.
const MASKED: usize = 4;
/// What of a byte of ones four bytes later stands in the register.
const BACK_FOUR: u32 = multiply(back(4), 0xff);

/// What the receive check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All 32 bits agree.
    Exact,
    /// They agree for one IPv4 id, which a socket does not show: a 16-bit check.
    WithId(u16),
    /// Damaged.
    Bad,
}

/// Stores the ICRC in the last four bytes of `datagram`, a UDP payload that starts with the BTH.
/// For IPv4 the datagram must leave with id 0 and DF. Families that differ leave it untouched.
pub fn seal(ip: &IpUdp, datagram: &mut [u8]) {
    seal_with_id(ip, 0, datagram);
}

/// The same for a datagram that leaves with another IPv4 id; IPv6 has none.
pub fn seal_with_id(ip: &IpUdp, id: u16, datagram: &mut [u8]) {
    let Some(at) = datagram.len().checked_sub(LEN) else { return };
    if let Some(crc) = compute(ip, id, &datagram[..at], datagram.len()) {
        datagram[at..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Checks the ICRC of a received UDP payload. For IPv4, the id (and DF) that would explain a difference is solved
/// for: CRC is linear, so the difference, run backwards to the id field, is the difference of the header bytes.
pub fn check(ip: &IpUdp, datagram: &[u8]) -> Verdict {
    check_with_id(ip, 0, datagram)
}

/// The same for a datagram that probably came with this IPv4 id, which is then not solved for: `Exact`.
pub fn check_with_id(ip: &IpUdp, guess: u16, datagram: &[u8]) -> Verdict {
    let Some(at) = datagram.len().checked_sub(LEN) else { return Verdict::Bad };
    let Some(crc) = compute(ip, guess, &datagram[..at], datagram.len()) else { return Verdict::Bad };
    let difference =
        crc ^ u32::from_le_bytes([datagram[at], datagram[at + 1], datagram[at + 2], datagram[at + 3]]);
    if difference == 0 {
        return Verdict::Exact;
    }
    if ip.src.is_ipv6() {
        return Verdict::Bad;
    }
    // From the id field to the end: 16 bytes of IPv4 header, 8 of UDP, and the payload without the ICRC.
    let header = rewind(difference, 16 + 8 + at);
    let id = (header as u16).swap_bytes() ^ guess;
    // What is left is the flags: as sent with DF, or with the DF bit taken away.
    if matches!(header >> 16, 0 | 0x40) { Verdict::WithId(id) } else { Verdict::Bad }
}

fn compute(ip: &IpUdp, id: u16, covered: &[u8], udp_payload: usize) -> Option<u32> {
    if covered.len() < bth::LEN {
        return None;
    }
    Some(over(headers(ip, id, udp_payload)?, covered))
}

/// The CRC of what stands before the BTH.
fn headers(ip: &IpUdp, id: u16, udp_payload: usize) -> Option<u32> {
    ip.with_masked(id, udp_payload, |headers| update(PREFIX, headers))
}

/// The CRC with what begins with the BTH. Congestion bits count as ones: CRC is linear, so what is missing for that may stand
/// in the register before it, and the bytes are gone through as they are.
fn over(before: u32, covered: &[u8]) -> u32 {
    let missing = u32::from(!covered[MASKED]);
    let missing = if missing == 0xff { BACK_FOUR } else { rewind(missing, MASKED) };
    update(before ^ missing, covered)
}

fn update(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

/// Headers of packets between two ends, of the lengths that came last.
#[derive(Debug)]
pub struct Ends {
    ip: IpUdp,
    /// The length of a UDP payload, and the CRC of what stands before it with IPv4 id 0.
    known: [AtomicU64; 4],
}

impl Ends {
    /// Of packets with these addresses and ports.
    pub fn new(ip: IpUdp) -> Self {
        Self { ip, known: Default::default() }
    }

    /// These are the addresses and ports of its packets.
    #[inline]
    pub fn are(&self, ip: &IpUdp) -> bool {
        self.ip == *ip
    }

    #[inline]
    fn headers(&self, id: u16, udp_payload: usize) -> Option<u32> {
        let effect = match self.ip.src.is_ipv6() {
            true => 0,
            false => match ID_EFFECT.get(usize::from(id)) {
                Some(effect) => *effect,
                None => return headers(&self.ip, id, udp_payload),
            },
        };
        let known = &self.known[udp_payload / 4 % 4];
        let value = known.load(Ordering::Relaxed);
        if value >> 32 == udp_payload as u64 {
            return Some(value as u32 ^ effect);
        }
        let crc = headers(&self.ip, 0, udp_payload)?;
        known.store((udp_payload as u64) << 32 | u64::from(crc), Ordering::Relaxed);
        Some(crc ^ effect)
    }

    /// As [`seal`](Self::seal), for a datagram of BTH and payload, of a length that [`is_summed`], with the `sum` of the payload.
    #[inline]
    pub fn seal_summed(&self, id: u16, datagram: &mut [u8], sum: u32) {
        let udp_payload = datagram.len();
        let beyond = match udp_payload.wrapping_sub(bth::LEN + LEN) {
            1024 => &BEYOND[0],
            2048 => &BEYOND[1],
            4096 => &BEYOND[2],
            _ => return self.seal(id, datagram),
        };
        let Some(before) = self.headers(id, udp_payload) else { return };
        let front = !over(before, &datagram[..bth::LEN]);
        let moved = (0..).zip(front.to_le_bytes()).fold(0, |all, (i, b)| all ^ beyond[i][usize::from(b)]);
        datagram[udp_payload - LEN..].copy_from_slice(&(!(moved ^ sum)).to_le_bytes());
    }

    /// As [`seal_with_id`].
    #[inline]
    pub fn seal(&self, id: u16, datagram: &mut [u8]) {
        let udp_payload = datagram.len();
        let Some((covered, trailer)) = datagram.split_last_chunk_mut::<LEN>() else { return };
        if covered.len() >= bth::LEN
            && let Some(before) = self.headers(id, udp_payload)
        {
            *trailer = over(before, covered).to_le_bytes();
        }
    }

    /// Whether the ICRC is right of a packet that came with this IPv4 id; one that is not may have another.
    #[inline]
    pub fn check(&self, id: u16, datagram: &[u8]) -> bool {
        let Some((covered, trailer)) = datagram.split_last_chunk::<LEN>() else { return false };
        covered.len() >= bth::LEN
            && self
                .headers(id, datagram.len())
                .is_some_and(|before| over(before, covered) == u32::from_le_bytes(*trailer))
    }
}

/// Payloads of this length can be summed while they are copied: those of full packets.
#[inline]
pub const fn is_summed(payload: usize) -> bool {
    matches!(payload, 1024 | 2048 | 4096)
}

/// The CRC register after a payload, from zero; `folded` has the same as the payload.
#[inline]
pub fn sum(folded: &[u8; 64]) -> u32 {
    !update(!0, folded)
}

/// What an IPv4 id adds to the register before the BTH, for each that the kernel gives to packets which it cuts: behind it stand 14 bytes
/// of IPv4 and 8 of UDP.
static ID_EFFECT: [u32; 64] = {
    let (mut table, mut id) = ([0; 64], 0);
    while id < 64 {
        // Its second byte; the first one is 0.
        table[id] = multiply(power_of_bytes(1 + 14 + 8), id as u32);
        id += 1;
    }
    table
};

/// Where a register is taken by 1024, 2048 and 4096 zero bytes, for each of its bytes.
static BEYOND: [[[u32; 256]; 4]; 3] = [beyond(1024), beyond(2048), beyond(4096)];

const fn beyond(bytes: u32) -> [[u32; 256]; 4] {
    let (power, mut tables) = (power_of_bytes(bytes), [[0; 256]; 4]);
    let mut bit = 0;
    while bit < 32 {
        tables[bit / 8][1 << (bit % 8)] = multiply(power, 1 << bit);
        bit += 1;
    }
    let mut i = 0;
    while i < 1024 {
        let (table, value): (usize, usize) = (i / 256, i % 256);
        let rest = value & value.wrapping_sub(1);
        if rest != 0 {
            tables[table][value] = tables[table][rest] ^ tables[table][value ^ rest];
        }
        i += 1;
    }
    tables
}

/// x^(8 n), modulo the polynomial.
const fn power_of_bytes(n: u32) -> u32 {
    let (mut power, mut square, mut left) = (1 << 31, 1 << 23, n);
    while left > 0 {
        if left & 1 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        left >>= 1;
    }
    power
}

/// The register `bytes` zero bytes earlier.
fn rewind(register: u32, bytes: usize) -> u32 {
    let near = multiply(BACK[bytes & 0xff], register);
    if bytes < 256 { near } else { multiply(BACK_256[bytes >> 8 & 0xff], near) }
}

/// x^(-8 i), and x^(-2048 i), modulo the polynomial.
static BACK: [u32; 256] = powers(back(1));
static BACK_256: [u32; 256] = powers(multiply(BACK[255], BACK[1]));

const fn powers(base: u32) -> [u32; 256] {
    let mut table = [1 << 31; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = multiply(table[i - 1], base);
        i += 1;
    }
    table
}

/// x^(-8 n).
const fn back(n: u32) -> u32 {
    let mut register = 1 << 31;
    let mut i = 0;
    while i < 8 * n {
        register = if register >> 31 == 1 { (register ^ POLY) << 1 | 1 } else { register << 1 };
        i += 1;
    }
    register
}

/// The product of two polynomials whose bit 31 is x^0.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut i = 32;
    while i > 0 {
        i -= 1;
        product ^= b & 0u32.wrapping_sub(a >> i & 1);
        b = b >> 1 ^ (POLY & 0u32.wrapping_sub(b & 1));
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> IpUdp {
        IpUdp::new("10.9.1.2".parse().unwrap(), "10.9.1.1".parse().unwrap(), 0xc123)
    }

    /// A CRC computed bit by bit over an explicit pseudo packet, as the specification words it.
    fn slow(pseudo: &[u8]) -> u32 {
        let mut register = u32::MAX;
        for byte in [0xff; 8].iter().chain(pseudo) {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = register >> 1 ^ (POLY & 0u32.wrapping_sub(register & 1));
            }
        }
        !register
    }

    fn datagram(len: usize) -> Vec<u8> {
        let mut d: Vec<u8> = (0..len).map(|i| (i * 7 + 3) as u8).collect();
        d[4] = 0;
        d
    }

    /// The packet as a peer with its own IPv4 id and flags would seal it.
    fn sealed_with_id(ip: &IpUdp, len: usize, id: u16, flags: u8) -> Vec<u8> {
        let mut d = datagram(len);
        let pseudo = ip.with_masked(0, len, |h| {
            let mut p = h.to_vec();
            p[4..6].copy_from_slice(&id.to_be_bytes());
            p[6] = flags;
            p.extend(&d[..len - 4]);
            p[28 + 4] = 0xff;
            p
        });
        let crc = slow(&pseudo.unwrap());
        d[len - 4..].copy_from_slice(&crc.to_le_bytes());
        d
    }

    #[test]
    fn fixed_packet_has_the_crc_of_an_independent_computation() {
        // UC SEND Only of "hello!!!" to QPN 0x11, PSN 5, from 192.168.0.7:49152 to 192.168.0.8; CRC by zlib.
        let ip = IpUdp::new("192.168.0.7".parse().unwrap(), "192.168.0.8".parse().unwrap(), 49152);
        let mut d = vec![0x24, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 5];
        d.extend(b"hello!!!");
        d.extend([0; 4]);
        seal(&ip, &mut d);
        assert_eq!(d[20..], FIXED);
        assert_eq!(check(&ip, &d), Verdict::Exact);
    }
    const FIXED: [u8; 4] = [0xa5, 0xed, 0xe5, 0xa1];

    #[test]
    fn id_of_a_foreign_sender_is_solved_for() {
        for len in [16, 20, 64, 280, 1100, 4200] {
            for (id, flags) in [(0x0e52, 0x40), (1, 0x40), (0xffff, 0x40), (0x1234, 0)] {
                assert_eq!(
                    check(&v4(), &sealed_with_id(&v4(), len, id, flags)),
                    Verdict::WithId(id),
                    "{len} {id:#x}"
                );
                for guess in [0, 3, id] {
                    let verdict = check_with_id(&v4(), guess, &sealed_with_id(&v4(), len, id, flags));
                    let as_guessed = guess == id && flags == 0x40;
                    let expected = if as_guessed { Verdict::Exact } else { Verdict::WithId(id) };
                    assert_eq!(verdict, expected, "{len} {id:#x} {guess}");
                }
            }
            assert_eq!(check(&v4(), &sealed_with_id(&v4(), len, 0, 0x40)), Verdict::Exact);
            let mut own = datagram(len);
            seal_with_id(&v4(), 0x1234, &mut own);
            assert_eq!(own, sealed_with_id(&v4(), len, 0x1234, 0x40));
        }
    }

    #[test]
    fn damage_is_found() {
        let good = sealed_with_id(&v4(), 1044, 0x77, 0x40);
        let mut missed = 0;
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let masked = (32..40).contains(&bit);
            missed += usize::from(check(&v4(), &bad) != Verdict::Bad && !masked);
        }
        assert!(missed <= 1, "{missed} of {} single bit errors missed", good.len() * 8);
        assert_eq!(check(&v4(), &good[..3]), Verdict::Bad);
        assert_eq!(check(&v4(), &good[..15]), Verdict::Bad);
    }

    #[test]
    fn packets_between_two_ends_have_the_icrc_that_each_has_by_itself() {
        let v6 = IpUdp::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0xc001);
        for ip in [v4(), v6] {
            let ends = Ends::new(ip);
            assert!(ends.are(&ip) && !ends.are(&IpUdp { src_port: 1, ..ip }));
            for (len, id) in [(16, 0), (80, 0), (20, 1), (84, 0), (80, 1), (80, 0), (1100, 7), (16, 0)] {
                let (mut one, mut other) = (datagram(len), datagram(len));
                seal_with_id(&ip, id, &mut one);
                ends.seal(id, &mut other);
                assert_eq!(one, other, "{len}");
                assert!(ends.check(id, &one));
                for congestion in [0x80, 0x40, 0xff] {
                    one[4] = congestion;
                    assert!(ends.check(id, &one) && check_with_id(&ip, id, &one) == Verdict::Exact);
                }
                one[8] ^= 1;
                assert!(!ends.check(id, &one));
            }
            let mut short = [7; 15];
            ends.seal(0, &mut short);
            assert!(short == [7; 15] && !ends.check(0, &short) && !ends.check(0, &short[..3]));
        }
    }

    #[test]
    fn a_sum_of_the_payload_seals_as_the_payload_does() {
        let v6 = IpUdp::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0xc001);
        for ip in [v4(), v6] {
            let ends = Ends::new(ip);
            for payload in [1024, 1024, 2048, 4096, 4096, 100, 8] {
                for id in [0, 1, 14, 63, 64, 0x1234] {
                    let mut expected = datagram(bth::LEN + payload + LEN);
                    expected[4] = id as u8;
                    expected[8..12].copy_from_slice(&u32::from(id).wrapping_mul(0x0101_0307).to_be_bytes());
                    let (mut sealed, mut summed) = (expected.clone(), expected.clone());
                    let payload_sum = !update(!0, &expected[bth::LEN..bth::LEN + payload]);
                    seal_with_id(&ip, id, &mut expected);
                    ends.seal(id, &mut sealed);
                    ends.seal_summed(id, &mut summed, payload_sum);
                    assert!(sealed == expected && summed == expected, "{payload} {id} {ip:?}");
                    assert!(ends.check(id, &sealed));
                    sealed[bth::LEN + payload / 2] ^= 1;
                    assert!(!ends.check(id, &sealed));
                }
            }
        }
        let mut hasher = crc32fast::Hasher::new_with_initial(!0);
        hasher.update(&[7; 64]);
        assert_eq!(sum(&[7; 64]), !hasher.finalize());
    }

    #[test]
    fn ipv6_is_checked_in_full() {
        let ip = IpUdp::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0xc001);
        let mut d = datagram(300);
        seal(&ip, &mut d);
        assert_eq!(check(&ip, &d), Verdict::Exact);
        d[4] = 0x80;
        assert_eq!(check(&ip, &d), Verdict::Exact, "congestion bits are not covered");
        d[200] ^= 1;
        assert_eq!(check(&ip, &d), Verdict::Bad);
    }
}
