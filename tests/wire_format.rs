//! Random packets of every opcode for judges that know RoCEv2 on their own: `cargo xtask test wire-format` runs this.
use ibverbs::soft::types::{Key, Psn, Qpn};
use ibverbs::soft::wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, IpUdp, Opcode, Packet, Reth, Syndrome, UDP_PORT, icrc,
};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A small random number generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A packet of this opcode with everything else random.
fn packet(r: &mut Random, opcode: Opcode) -> Packet {
    let has = |h| opcode.headers().contains(h);
    let qpn = |r: &mut Random| Qpn(r.below(1 << 24) as u32);
    let bth = Bth {
        solicited: r.below(2) == 0,
        ack_req: r.below(2) == 0,
        ..Bth::new(opcode, qpn(r), Psn::new(r.next() as u32))
    };
    let syndrome = Syndrome::from_raw(r.below(32) as u8).unwrap_or(Syndrome::Ack);
    Packet {
        deth: has(Headers::DETH).then(|| Deth { qkey: r.next() as u32, src_qpn: qpn(r) }),
        srqn: has(Headers::XRCETH).then(|| r.below(1 << 24) as u32),
        feth: has(Headers::FETH).then_some(Feth { types: 1, level: 2 }),
        reth: has(Headers::RETH).then(|| Reth {
            va: r.next(),
            rkey: Key(r.next() as u32),
            length: r.next() as u32,
        }),
        atomic_eth: has(Headers::ATOMIC_ETH).then(|| AtomicEth {
            va: r.next(),
            rkey: Key(r.next() as u32),
            swap_or_add: r.next(),
            compare: r.next(),
        }),
        aeth: has(Headers::AETH).then(|| Aeth { syndrome, msn: r.below(1 << 24) as u32 }),
        atomic_ack: has(Headers::ATOMIC_ACK).then(|| r.next()),
        imm: has(Headers::IMM).then(|| r.next() as u32),
        ieth: has(Headers::IETH).then(|| Key(r.next() as u32)),
        ..Packet::new(bth)
    }
}

fn addresses(r: &mut Random) -> IpUdp {
    let mut ip = |v6: bool| -> IpAddr {
        if v6 {
            Ipv6Addr::from(u128::from(r.next()) | 0xfd00 << 112).into()
        } else {
            Ipv4Addr::from(0x0a00_0000 | r.next() as u32 & 0xff_ffff).into()
        }
    };
    let v6 = ip(false) < ip(false);
    let (src, dst) = (ip(v6), ip(v6));
    IpUdp { src, dst, src_port: 0xc000 | r.next() as u16, dst_port: UDP_PORT }
}

#[test]
fn random_packets_are_read_as_they_were_written() {
    let seed = std::env::var("ANYVERBS_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("ANYVERBS_SEED={seed}");
    let mut r = Random(seed);
    let opcodes: Vec<Opcode> = (0..=255).filter_map(Opcode::from_raw).collect();
    assert!(opcodes.len() > 60);
    let mut lines = String::new();
    for n in 0..10_000 {
        let opcode = opcodes[n % opcodes.len()];
        let packet = packet(&mut r, opcode);
        let room = if opcode.operation.has_payload() { r.below(4097) as usize } else { 0 };
        let payload = if n % 3 == 0 { room.min(64) } else { room };
        let mut datagram = vec![0; packet.datagram_len(payload)];
        packet.emit(payload, &mut datagram);
        let start = packet.header_len();
        datagram[start..start + payload].iter_mut().for_each(|b| *b = r.next() as u8);
        let ip = addresses(&mut r);
        icrc::seal(&ip, &mut datagram);
        assert_eq!(icrc::check(&ip, &datagram), icrc::Verdict::Exact);
        let (read, range) = Packet::parse(&datagram).expect("our own packets are sound");
        let pad = payload.wrapping_neg() as u8 & 3;
        assert_eq!(read, Packet { bth: Bth { pad, ..packet.bth }, ..packet });
        assert_eq!(range, start..start + payload);
        let hex = datagram.iter().fold(String::new(), |mut s, b| {
            let _ = write!(s, "{b:02x}");
            s
        });
        let _ = writeln!(lines, "{} {} {} {hex}", ip.src, ip.dst, ip.src_port);
    }
    if let Some(file) = std::env::var_os("ANYVERBS_PACKETS") {
        std::fs::write(file, lines).expect("the file that ANYVERBS_PACKETS names");
    }
}
