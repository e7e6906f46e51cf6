//! RC between two network namespaces beside plain UDP of the same shape and iperf3's TCP; target/bench-wire.json, and a page.
use std::time::Duration;

use super::{
    client::{self, Device},
    guest, own,
    table::{self, Judged, Limit, Samples, row},
    wire_page, write,
};
use crate::{
    apt,
    place::Place,
    run::{self, Child},
    stage::{self, Stage},
    trials::netns::{Net, SERVER, SERVER_6, gid_index},
};

/// MTU of the link, and the path MTU that fits it.
const MTUS: [(u32, u32); 2] = [(9000, 4096), (1500, 1024)];
/// BTH and ICRC: what a packet has around its payload.
const AROUND: u32 = 16;
/// What the kernel takes as one datagram, and the packets that it cuts it into, at most.
const DATAGRAM: u32 = 65_000;
const SEGMENTS: u32 = 64;
const MESSAGE: u32 = 1 << 20;
/// Messages of the two runs whose difference tells the instructions a packet.
const COUNTED: [u32; 2] = [32, 160];

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Extent {
    pub repetitions: u32,
    /// Milliseconds for each figure.
    pub each: u32,
    /// Whether instructions are counted, under callgrind.
    pub counts: bool,
    /// Whether iperf3 and perftest are measured as well, which takes some seconds each time.
    pub others: bool,
}

/// Measures, shows the table and writes the files; with ANYVERBS_UPDATE_DOCS also docs/PERFORMANCE-WIRE.md.
pub fn bench(repetitions: u32) -> Result<(), String> {
    if !run::is_root() {
        return Err("needs root: it makes two network namespaces".into());
    }
    let stage = stage::stage()?;
    let file = stage::target().join("bench-wire.json");
    let mut samples = measure(&stage, Extent { repetitions, each: 200, counts: true, others: true })?;
    println!(
        "medians of {repetitions} interleaved repetitions, one run; two network namespaces joined by veth, each end polls on a \
         core of its own\n"
    );
    let mut rows = judge(&samples, true)?;
    print!("{}", table::text(&rows));
    for side in ["sends", "receives"] {
        let figure = samples.median(&format!("instructions_{side}"))?;
        println!("WRITE 1 MiB, MTU 9000: {figure:.0} instructions of ours a packet on the side that {side}");
    }
    // What the guest cannot measure takes nothing away from what was measured here.
    let guest = guest::measure(&stage, repetitions, &mut samples);
    if guest.is_ok() {
        let more = guest::judge(&samples)?;
        print!("\n{}", table::text(&more));
        rows.extend(more);
    }
    samples.write(&file)?;
    let page = wire_page::compose(repetitions, &rows, &samples)?;
    write(&stage::target().join("PERFORMANCE-WIRE.md"), &page)?;
    if std::env::var_os("ANYVERBS_UPDATE_DOCS").is_some() {
        write(&stage::root().join("docs/PERFORMANCE-WIRE.md"), &page)?;
    }
    println!(
        "\n{} figures in {}, page beside it; {} short of their limit",
        samples.len(),
        file.display(),
        table::short(&rows)
    );
    guest
}

/// Both ends of the way.
struct Ends {
    net: Net,
    server: Place,
    client: Place,
}

impl Ends {
    fn new(stage: &Stage) -> Result<Ends, String> {
        let net = Net::new()?;
        let [server, client] = [0, 1].map(|host| net.place(stage, host));
        Ok(Ends { net, server, client })
    }

    /// Runs `program server|client HOST PORT more...`; what the client printed.
    fn pair(&self, program: &str, host: &str, more: &str) -> Result<String, String> {
        let port = run::port().to_string();
        let args = |role| [role, host, &port].into_iter().chain(more.split(' ')).map(str::to_string);
        let server = run::spawn(self.server.command(program, args("server")))?;
        let client =
            run::spawn(self.client.command(program, args("client")))?.finish(Duration::from_secs(20));
        match client.ok() {
            true => Ok(client.out),
            false => Err(format!("{client}\n    server: {}", server.finish(Duration::from_millis(100)))),
        }
    }

    /// Bytes a nanosecond of iperf3's TCP, as its receiver counts them.
    fn tcp(&self, host: &str) -> Result<f64, String> {
        let (port, limit) = (run::port(), Duration::from_secs(20));
        let words = |core: &str, more: &str| -> Vec<String> {
            let all = format!("{core} iperf3 -p {port} {more}");
            all.split(' ').map(str::to_string).collect()
        };
        let mut server: Child = run::spawn(self.server.command("/pin", words("1", "-s -1")))?;
        server.listens(port, limit)?;
        let client = run::run(self.client.command("/pin", words("0", &format!("-c {host} -t 1 -J"))), limit)?;
        let out = client.success()?.out;
        let rate =
            out.split_once("\"sum_received\"").and_then(|(_, rest)| rest.split_once("\"bits_per_second\":"));
        let rate = rate.and_then(|(_, rest)| rest.split([',', '}']).next()?.trim().parse::<f64>().ok());
        rate.map(|bits| bits / 8e9).ok_or(format!("iperf3 says no rate: {out}"))
    }

    /// Nanoseconds that a WRITE takes to a peer that looks at its memory alone, by the GIDs of this address of the server.
    fn watched(&self, address: &str) -> Result<f64, String> {
        let device = Device { name: "urxe0", gid: gid_index(&self.server, address)?.to_string() };
        let places = [&self.server, &self.client];
        client::measure_between(places, SERVER, &device, "watched_ns", "write_lat", "-s 64 -n 5000")
    }

    /// Instructions of both ends, the sender's first, for `messages` WRITEs.
    fn instructions(&self, messages: u32) -> Result<[f64; 2], String> {
        let port = run::port();
        let limit = Duration::from_secs(100);
        let valgrind = |place: &Place, role: &str| {
            let program = place.own("wire").display().to_string();
            let (port, messages, path) = (port.to_string(), messages.to_string(), MTUS[0].1.to_string());
            let (quiet, bytes) = ("--callgrind-out-file=/dev/null", MESSAGE.to_string());
            let words = [quiet, &program, role, SERVER, &port, "count", &messages, &bytes, &path, "4"];
            run::spawn(place.command("valgrind", ["--tool=callgrind"].into_iter().chain(words)))
        };
        let server = valgrind(&self.server, "server")?;
        let client = valgrind(&self.client, "client")?.finish(limit).success()?;
        let server = server.finish(limit).success()?;
        let collected = |text: &str| own::collected(text).ok_or(format!("callgrind says no number: {text}"));
        Ok([collected(&client.err)?, collected(&server.err)?])
    }
}

/// Measures every figure once a repetition, figures and floors interleaved, since both drift.
pub fn measure(stage: &Stage, extent: Extent) -> Result<Samples, String> {
    if extent.others {
        apt::ensure(&[apt::IPERF, ("ib_write_lat", "perftest")])?;
    }
    let ends = Ends::new(stage)?;
    let mut samples = Samples::default();
    for _ in 0..extent.repetitions {
        for (mtu, path) in MTUS {
            ends.net.set_mtu(mtu)?;
            for (family, host) in [(4, SERVER), (6, SERVER_6)] {
                once(&ends, extent, &mut samples, (mtu, path), family, host)?;
            }
        }
    }
    if extent.counts {
        ends.net.set_mtu(MTUS[0].0)?;
        let [few, many] = [ends.instructions(COUNTED[0])?, ends.instructions(COUNTED[1])?];
        let packets = f64::from((COUNTED[1] - COUNTED[0]) * MESSAGE / MTUS[0].1);
        for (i, side) in ["sends", "receives"].iter().enumerate() {
            samples.add(format!("instructions_{side}"), (many[i] - few[i]) / packets);
        }
    }
    Ok(samples)
}

fn once(
    ends: &Ends,
    Extent { each, others, .. }: Extent,
    samples: &mut Samples,
    (mtu, path): (u32, u32),
    family: u32,
    host: &str,
) -> Result<(), String> {
    let prefix = |what: &str| format!("{mtu}.v{family}.{what}_");
    let packet = path + AROUND;
    let bulk = (DATAGRAM / packet).min(SEGMENTS);
    let mut udp = |what: &str, args: String| -> Result<(), String> {
        samples.read(&prefix(what), &ends.pair("/udp", host, &args)?);
        Ok(())
    };
    udp("udp_echo", format!("echo {each} {} 1", 64 + AROUND))?;
    udp("udp_bulk", format!("blast {each} {packet} {bulk}"))?;
    udp("udp_small", format!("blast {each} {} {SEGMENTS}", 8 + AROUND))?;
    for (what, bytes) in
        [("lat1", 64), ("lat32", 64), ("write", MESSAGE), ("send", MESSAGE), ("read", MESSAGE), ("rate", 8)]
    {
        let args = format!("{what} {each} {bytes} {path} {family}");
        samples.read(&prefix(what), &ends.pair("/wire", SERVER, &args)?);
    }
    if others {
        samples.add(format!("{}gbs", prefix("tcp")), ends.tcp(host)?);
        samples.add(format!("{}ns", prefix("watched")), ends.watched(host)?);
    }
    Ok(())
}

/// The rows of what was measured, with what iperf3 and perftest measure or not.
pub fn judge(samples: &Samples, with_others: bool) -> Result<Vec<Judged>, String> {
    let mut lines = Vec::new();
    for (mtu, path) in MTUS {
        for family in [4, 6] {
            let way = format!("MTU {mtu}, IPv{family}");
            let name = |what: &str| format!("{mtu}.v{family}.{what}");
            let (tcp, bulk) = (name("tcp_gbs"), name("udp_bulk_gbs"));
            // The limits are for jumbo frames, latency's for all.
            let least = |limit| (path == 4096).then_some(Limit::Least(limit));
            let echo = Some(Limit::Most(1.5));
            for (what, figure, floor, floor_is, limit) in [
                ("SEND 64 B one way", "lat32_ns", name("udp_echo_ns"), "UDP echo", echo),
                ("SEND 64 B, all complete", "lat1_ns", name("udp_echo_ns"), "UDP echo", echo),
                ("WRITE 64 B, peer looks at memory", "watched_ns", name("udp_echo_ns"), "UDP echo", None),
                ("WRITE 1 MiB", "write_gbs", tcp.clone(), "iperf3 TCP", least(1.0)),
                ("WRITE 1 MiB", "write_gbs", bulk.clone(), "UDP with GSO and GRO", least(0.6)),
                ("SEND 1 MiB", "send_gbs", bulk.clone(), "UDP with GSO and GRO", None),
                ("READ 1 MiB", "read_gbs", bulk, "UDP with GSO and GRO", None),
                ("SEND 8 B, lists", "rate_mps", name("udp_small_mps"), "UDP with GSO and GRO", None),
            ] {
                if !with_others && (floor == tcp || figure == "watched_ns") {
                    continue;
                }
                lines.push((format!("{what}, {way}"), name(figure), floor, floor_is, limit));
            }
        }
    }
    let rows: Vec<_> =
        lines.iter().map(|(what, figure, floor, is, limit)| row(what, figure, floor, is, *limit)).collect();
    samples.judge(&rows)
}
