//! Our packets before judges that know RoCEv2 on their own: scapy computes their ICRCs, tshark decodes them, from a file of
//! random ones of every opcode and from the wire.
use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use super::netns::{Net, SERVER};
use crate::{
    report::{Ctx, Trial},
    run, stage,
    trials::pair_at,
};

pub const TRIALS: &[Trial] =
    &[Trial { name: "wire-format", limit: Duration::from_secs(900), run: wire_format }];

fn wire_format(ctx: &mut Ctx<'_>) {
    let folder = folder();
    if let Err(why) = fs::create_dir_all(&folder) {
        return ctx.check("making a folder", Err(why.to_string()));
    }
    let [packets, pcap, live] = ["packets", "packets.pcap", "live.pcapng"].map(|name| folder.join(name));
    let mut write = stage::cargo(&["test", "-q", "--test", "wire_format"]);
    write.env("ANYVERBS_PACKETS", &packets).env("CARGO_TERM_COLOR", "never");
    let written = run::run(write, Duration::from_secs(400)).and_then(|o| o.success()).map(drop);
    let failed = written.is_err();
    ctx.check("10000 random packets of every opcode", written);
    if failed {
        return;
    }
    match scapy(&folder) {
        Err(why) => ctx.skip("scapy", &why),
        Ok(scapy) => {
            let script = stage::root().join("xtask/icrc.py");
            let cmd = run::command("python3", [script, scapy, packets.clone(), pcap.clone()]);
            let outcome = run::run(cmd, Duration::from_secs(400)).and_then(|o| o.success());
            ctx.check("their ICRCs are those that scapy computes", outcome.map(drop));
            ctx.check("tshark decodes them with the opcodes as written", same_opcodes(&packets, &pcap));
        }
    }
    if run::is_root() {
        ctx.check("tshark decodes what is on the wire", from_the_wire(ctx, &live));
    } else {
        ctx.skip("a capture", "needs root");
    }
}

/// The folder where scapy lies, and other files of this trial.
pub fn folder() -> std::path::PathBuf {
    stage::target().join("wire-format")
}

/// A folder with scapy from the Python registry; Debian's does not know RoCE over IPv6.
pub fn scapy(folder: &Path) -> Result<std::path::PathBuf, String> {
    let to = folder.join("python");
    if !to.join("scapy/contrib/roce.py").exists() {
        let mut cmd = run::command("python3", ["-m", "pip", "install", "-q", "--no-deps", "--target"]);
        cmd.arg(&to).arg("scapy");
        run::run(cmd, Duration::from_secs(120))?
            .success()
            .map_err(|_| "pip cannot install it".to_string())?;
    }
    Ok(to)
}

/// The opcodes of the packets in a capture, in order; `Err` names what tshark finds malformed.
fn opcodes(pcap: &Path) -> Result<Vec<u8>, String> {
    // Short payloads look like RPC to its heuristics.
    let words = ["--disable-protocol", "rpcordma", "-Y", "udp.port==4791", "-T", "fields", "-e"];
    let mut cmd = run::command("tshark", words);
    cmd.args(["infiniband.bth.opcode", "-e", "_ws.malformed", "-r"]).arg(pcap);
    let out = run::run(cmd, Duration::from_secs(120))?.success()?.out;
    out.lines()
        .enumerate()
        .map(|(n, line)| {
            let (opcode, malformed) = line.split_once('\t').unwrap_or((line, ""));
            match opcode.parse() {
                Ok(opcode) if malformed.is_empty() => Ok(opcode),
                _ => Err(format!("packet {n}: opcode {opcode:?}, malformed {malformed:?}")),
            }
        })
        .collect()
}

fn same_opcodes(packets: &Path, pcap: &Path) -> Result<(), String> {
    let text = fs::read_to_string(packets).map_err(|e| e.to_string())?;
    let first_byte = |line: &str| u8::from_str_radix(line.split(' ').nth(3)?.get(..2)?, 16).ok();
    let written: Vec<u8> = text.lines().filter_map(first_byte).collect();
    if opcodes(pcap)? == written { Ok(()) } else { Err("other opcodes than written".into()) }
}

/// WRITE, READ, atomics and SEND between two namespaces, captured on the server's side.
fn from_the_wire(ctx: &Ctx<'_>, file: &Path) -> Result<(), String> {
    let net = Net::new()?;
    let places = [0, 1].map(|side| net.place(ctx.stage, side).with_env("ANYVERBS_GSO", "0"));
    let _ = fs::remove_file(file);
    let mut cmd = run::command("ip", ["netns", "exec", &net.names[0], "tshark", "-q", "-i", "veth0"]);
    cmd.args(["-B", "64", "-f", "udp port 4791", "-w"]).arg(file);
    let mut tshark = run::spawn(cmd)?;
    // It says so before it captures; the file is there when it does.
    if !run::until(Duration::from_secs(30), || file.exists()) {
        return Err(format!("{}", tshark.finish(Duration::from_millis(1))));
    }
    let traffic = pair_at(SERVER, "/rdma", &places[0], &places[1], &[], Duration::from_secs(60));
    // What the kernel still holds is lost with SIGINT: the file grows no more when all has come.
    let mut before = 0;
    run::until(Duration::from_secs(20), || {
        std::thread::sleep(Duration::from_millis(700));
        let now = fs::metadata(file).map_or(0, |m| m.len());
        now == std::mem::replace(&mut before, now)
    });
    tshark.signal(libc::SIGINT);
    if !tshark.ended(Duration::from_secs(20)) {
        return Err("tshark does not end".into());
    }
    traffic?;
    let seen: BTreeSet<u8> = opcodes(file)?.into_iter().collect();
    // SEND, WRITE and READ of one and of several packets, their answers, both atomics.
    let wanted = [
        0x00, 0x01, 0x02, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14,
    ];
    let missing: Vec<u8> = wanted.into_iter().filter(|opcode| !seen.contains(opcode)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not seen: {missing:02x?}; seen: {seen:02x?}")) }
}
