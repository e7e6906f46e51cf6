//! Bytes that come in on UDP 4791, or by a message of another process that got them: parsed, checked, written again.
use crate::input::Input;
use ibverbs::soft::link::udp::share;
use ibverbs::soft::types::Qpn;
use ibverbs::soft::wire::{IpUdp, MAX_PAYLOAD, Packet, cnp, icrc, ip};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One datagram, or a message with several.
pub fn run(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else { return };
    match how {
        0 => share::packets(bytes).for_each(|received| {
            assert!(received.datagram.len() <= bytes.len());
            datagram(&received.ip, received.datagram);
            let grh = received.ip.grh(
                received.datagram.len().min(MAX_PAYLOAD),
                received.traffic_class,
                received.hop_limit,
            );
            ip::destination(&grh);
        }),
        1 => sealed(bytes),
        _ => datagram(&addresses(how), bytes),
    }
}

fn addresses(how: u8) -> IpUdp {
    let v6 = |n| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
    let v4 = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
    match how & 3 {
        0 => IpUdp::new(v6(1), v6(2), 0xc000),
        1 => IpUdp::new(v4(1), v6(2), 0xc000),
        _ => IpUdp::new(v4(1), v4(2), 0xc000),
    }
}

/// What is read and written again is the same, but for what a reader ignores.
fn datagram(ip: &IpUdp, bytes: &[u8]) {
    icrc::check(ip, bytes);
    let is_cnp = cnp::is_cnp(bytes);
    let Ok((packet, payload)) = Packet::parse(bytes) else { return };
    assert!(!is_cnp, "a CNP is no packet of a transport");
    assert!(payload.start == packet.header_len() && payload.start <= payload.end);
    assert_eq!(payload.end + usize::from(packet.bth.pad) + icrc::LEN, bytes.len());
    assert!(Qpn::new(packet.bth.dest_qpn.slot(), packet.bth.dest_qpn.index()) == packet.bth.dest_qpn);
    let body = &bytes[payload.clone()];
    let mut again = vec![0xa5; packet.datagram_len(body.len())];
    packet.emit(body.len(), &mut again);
    again[payload.clone()].copy_from_slice(body);
    let (other, place) = Packet::parse(&again).expect("what is written can be read");
    assert_eq!(&again[place], body);
    // Pad follows from the payload, and BECN is never sent.
    let mut expected = packet;
    (expected.bth.pad, expected.bth.becn) = (other.bth.pad, false);
    assert_eq!(other, expected);
}

/// A sealed datagram passes, with any id that the kernel may give it, and one with a bit turned does not pass as it is.
fn sealed(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let ip = addresses(input.byte());
    let (id, bit) = (input.word() as u16, input.word() as usize);
    let mut datagram = input.bytes(MAX_PAYLOAD + 100).to_vec();
    if datagram.len() < 16 || ip.src.is_ipv4() != ip.dst.is_ipv4() {
        return;
    }
    icrc::seal_with_id(&ip, id, &mut datagram);
    assert_ne!(icrc::check(&ip, &datagram), icrc::Verdict::Bad);
    icrc::seal(&ip, &mut datagram);
    assert_eq!(icrc::check(&ip, &datagram), icrc::Verdict::Exact);
    let bit = bit % (datagram.len() * 8);
    // The byte with the congestion bits is not covered.
    if bit / 8 != 4 {
        datagram[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(icrc::check(&ip, &datagram), icrc::Verdict::Exact);
    }
}
