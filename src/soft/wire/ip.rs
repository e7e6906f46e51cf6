//! The IP and UDP headers that a datagram socket hides: their pseudo form for the ICRC, and the GRH made of them.
use super::UDP_PORT;
use crate::soft::types::Gid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a GRH, and of the area before a UD receive's payload.
pub const GRH_LEN: usize = 40;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTO_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

/// What is known of the headers around a UDP payload. Both addresses are of one family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpUdp {
    /// The sender.
    pub src: IpAddr,
    /// The receiver.
    pub dst: IpAddr,
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port: 4791.
    pub dst_port: u16,
}

impl IpUdp {
    /// Between these two addresses, from this port to the RoCEv2 port.
    pub const fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Self {
        Self { src, dst, src_port, dst_port: UDP_PORT }
    }

    /// Calls `with` on the headers as the ICRC sees them: fields that routers change are ones; IPv4 has this id, and DF.
    /// `None` when the families differ.
    pub(super) fn with_masked<R>(&self, id: u16, payload: usize, with: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut b = [0xff; IPV6_LEN + UDP_LEN];
        let ip = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ipv4(&mut b, src, dst, payload);
                b[4..6].copy_from_slice(&id.to_be_bytes());
                b[1] = 0xff;
                b[8] = 0xff;
                b[10..12].fill(0xff);
                IPV4_LEN
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ipv6(&mut b, src, dst, payload);
                b[0] = 0x6f;
                b[1..4].fill(0xff);
                b[7] = 0xff;
                IPV6_LEN
            }
            _ => return None,
        };
        b[ip..ip + 2].copy_from_slice(&self.src_port.to_be_bytes());
        b[ip + 2..ip + 4].copy_from_slice(&self.dst_port.to_be_bytes());
        b[ip + 4..ip + 6].copy_from_slice(&((UDP_LEN + payload) as u16).to_be_bytes());
        b[ip + 6..ip + 8].fill(0xff);
        Some(with(&b[..ip + UDP_LEN]))
    }

    /// The 40 bytes before a UD receive's payload, for a datagram of `payload` bytes: an IPv6 header, or 20 zero
    /// bytes and an IPv4 header whose checksum is right (Annex A17.4.5.2).
    pub fn grh(&self, payload: usize, traffic_class: u8, hop_limit: u8) -> [u8; GRH_LEN] {
        let mut b = [0; GRH_LEN];
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = &mut b[GRH_LEN - IPV4_LEN..];
                ipv4(header, src, dst, payload);
                header[1] = traffic_class;
                header[8] = hop_limit;
                let sum = checksum(header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (src, dst) => {
                ipv6(&mut b, to_v6(src), to_v6(dst), payload);
                b[0] |= traffic_class >> 4;
                b[1] = traffic_class << 4;
                b[7] = hop_limit;
            }
        }
        b
    }

    /// Appends an Ethernet frame with this UDP payload; IPv4 has this id. The hardware addresses are made of the others.
    pub fn frame(&self, id: u16, traffic_class: u8, hop_limit: u8, payload: &[u8], to: &mut Vec<u8>) {
        let mut headers = self.grh(payload.len(), traffic_class, hop_limit);
        let v4 = headers[0] >> 4 != 6;
        let (ip, addresses) = if v4 { (GRH_LEN - IPV4_LEN, 12) } else { (0, 8) };
        let ip = &mut headers[ip..];
        if v4 {
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let (src, dst) = ip[addresses..].split_at((ip.len() - addresses) / 2);
        for address in [dst, src] {
            // Locally administered.
            to.extend([2, 0]);
            to.extend(&address[address.len() - 4..]);
        }
        to.extend(if v4 { [0x08, 0x00] } else { [0x86, 0xdd] });
        let mut udp = [0; UDP_LEN];
        let length = (UDP_LEN + payload.len()) as u16;
        udp[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        udp[4..6].copy_from_slice(&length.to_be_bytes());
        let pseudo = [&ip[addresses..], &[0, PROTO_UDP], &length.to_be_bytes()];
        let sum = pseudo.into_iter().chain([&udp[..], payload]).fold(0, |sum, part| sum + words(part));
        // A sum of zero would say that there is none.
        let sum = match fold(sum) {
            0xffff => 0xffff,
            sum => !sum,
        };
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        to.extend(&*ip);
        to.extend(udp);
        to.extend(payload);
    }
}

/// Where the datagram went whose GRH this is.
pub fn destination(grh: &[u8; GRH_LEN]) -> Gid {
    if grh[0] >> 4 == 6 {
        let mut raw = [0; 16];
        raw.copy_from_slice(&grh[24..]);
        return Gid(raw);
    }
    Gid::from_ip(Ipv4Addr::new(grh[36], grh[37], grh[38], grh[39]).into())
}

/// Source, destination, traffic class and hop limit of the datagram whose GRH this is.
pub fn addresses(grh: &[u8; GRH_LEN]) -> (IpAddr, IpAddr, u8, u8) {
    if grh[0] >> 4 == 6 {
        let [src, dst] = [8, 24].map(|at| {
            let mut raw = [0; 16];
            raw.copy_from_slice(&grh[at..at + 16]);
            IpAddr::from(raw)
        });
        return (src, dst, grh[0] << 4 | grh[1] >> 4, grh[7]);
    }
    let [src, dst] = [32, 36].map(|at| IpAddr::from([grh[at], grh[at + 1], grh[at + 2], grh[at + 3]]));
    (src, dst, grh[21], grh[28])
}

fn ipv4(b: &mut [u8], src: Ipv4Addr, dst: Ipv4Addr, payload: usize) {
    b[..IPV4_LEN].fill(0);
    b[0] = 0x45;
    b[2..4].copy_from_slice(&((IPV4_LEN + UDP_LEN + payload) as u16).to_be_bytes());
    b[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    b[9] = PROTO_UDP;
    b[12..16].copy_from_slice(&src.octets());
    b[16..20].copy_from_slice(&dst.octets());
}

fn ipv6(b: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr, payload: usize) {
    b[..8].fill(0);
    b[0] = 0x60;
    b[4..6].copy_from_slice(&((UDP_LEN + payload) as u16).to_be_bytes());
    b[6] = PROTO_UDP;
    b[8..24].copy_from_slice(&src.octets());
    b[24..40].copy_from_slice(&dst.octets());
}

fn to_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    }
}

/// The ones' complement sum of 16-bit words (RFC 1071).
fn checksum(b: &[u8]) -> u16 {
    !fold(words(b))
}

/// The sum of 16-bit words; an odd byte is the upper half of one.
fn words(b: &[u8]) -> u32 {
    b.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |low| u32::from(*low))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_grh_has_a_valid_header_at_offset_20() {
        let ip = IpUdp::new("10.9.1.2".parse().unwrap(), "10.9.1.1".parse().unwrap(), 0xc001);
        let grh = ip.grh(88, 0x62, 33);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20..30], [0x45, 0x62, 0, 116, 0, 0, 0x40, 0, 33, 17]);
        assert_eq!(grh[32..], [10, 9, 1, 2, 10, 9, 1, 1]);
        assert_eq!(addresses(&grh), (ip.src, ip.dst, 0x62, 33));
        assert_eq!(checksum(&grh[20..]), 0);
    }

    #[test]
    fn frames_have_headers_whose_checksums_are_right() {
        for (src, dst, ethertype, header) in
            [("10.9.1.2", "10.9.1.1", 0x0800, 20), ("fd00::1", "fd00::2", 0x86dd, 40)]
        {
            let ip = IpUdp::new(src.parse().unwrap(), dst.parse().unwrap(), 0xc001);
            for len in [16, 17, 300] {
                let payload: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
                let mut frame = Vec::new();
                ip.frame(0x1234, 0x62, 33, &payload, &mut frame);
                assert_eq!(frame.len(), 14 + header + UDP_LEN + payload.len());
                assert_eq!((frame[5], frame[11]), (if header == 20 { 1 } else { 2 }, 3 - frame[5]));
                assert_eq!(u16::from_be_bytes([frame[12], frame[13]]), ethertype);
                let (net, udp) = frame[14..].split_at(header);
                let addresses = if header == 20 { &net[12..] } else { &net[8..] };
                if header == 20 {
                    assert_eq!((checksum(net), &net[4..6]), (0, &[0x12, 0x34][..]));
                }
                let length = (udp.len() as u32).to_be_bytes();
                let sum = words(addresses) + words(&[0, PROTO_UDP]) + words(&length) + words(udp);
                assert_eq!(fold(sum), 0xffff);
                assert_eq!(udp[UDP_LEN..], payload);
            }
        }
    }

    #[test]
    fn ipv6_grh_is_the_header() {
        let ip = IpUdp::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0xc001);
        let grh = ip.grh(88, 0x62, 33);
        assert_eq!(grh[..8], [0x66, 0x20, 0, 0, 0, 96, 17, 33]);
        assert_eq!((grh[23], grh[39]), (1, 2));
        assert_eq!(addresses(&grh), (ip.src, ip.dst, 0x62, 33));
    }
}
