//! Traces on request: what goes over every path is in the file, as tshark and scapy read it, and no trace hurts traffic.
use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::id,
    time::Duration,
};

use super::netns::{Net, SERVER};
use super::wire_format;
use crate::{
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run, stage,
    trials::{here, pair_at},
};

pub const TRIALS: &[Trial] = &[Trial { name: "trace", limit: Duration::from_secs(300), run: trace }];

const LIMIT: Duration = Duration::from_secs(60);

/// Opcodes of RC: SEND, WRITE and READ of one and of several packets, their answers, both atomics.
const ALL: [u8; 17] =
    [0x00, 0x01, 0x02, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14];

fn trace(ctx: &mut Ctx<'_>) {
    let folder = Folder::new();
    let host = here(ctx);
    let mut seen = Vec::new();
    let mut check = |ctx: &mut Ctx<'_>, what: &str, outcome: Result<Vec<Frame>, String>| {
        let outcome = outcome.map(|frames| seen.extend(frames));
        ctx.check(what, outcome);
    };
    check(ctx, "in one process", in_one_process(&folder, &host));
    check(ctx, "two processes write one file", between_processes(&folder, &host));
    check(ctx, "datagrams between processes", datagrams(&folder, &host));
    ctx.check("at run time", at_run_time(&folder, &host));
    ctx.check("anyverbs trace", command(ctx.stage.public.path(), &folder, &host));
    match small_disk(&folder) {
        Ok(disk) => ctx.check("a full disk ends the trace, not the traffic", full(&folder, &disk, &host)),
        Err(why) => ctx.skip("a full disk", &why),
    }
    if run::is_root() {
        check(ctx, "between hosts, with faults", between_hosts(ctx.stage.public.path(), &folder));
    } else {
        ctx.skip("between hosts", "needs root");
    }
    match wire_format::scapy(&wire_format::folder()) {
        Ok(scapy) => ctx.check("ICRCs are those that scapy computes", icrcs(&folder, &scapy, &seen)),
        Err(why) => ctx.skip("scapy", &why),
    }
}

/// A packet as tshark tells it.
struct Frame {
    via: String,
    opcode: u8,
    src: String,
    dst: String,
    port: String,
    payload: String,
}

/// The packets of a trace; `Err` where one is malformed or the file is cut short.
fn frames(file: &Path) -> Result<Vec<Frame>, String> {
    let mode = fs::metadata(file).map_err(|e| format!("{}: {e}", file.display()))?.permissions().mode();
    if mode & 0o777 != 0o600 {
        return Err(format!("others may read it: {mode:o}"));
    }
    // It tells more than a pipe's end keeps. Short payloads look like RPC to its heuristics.
    let told = file.with_extension("fields");
    let words = ["--disable-protocol", "rpcordma", "-T", "fields"];
    let mut cmd = run::command("sh", ["-c", "to=$1; shift; exec tshark \"$@\" > \"$to\"", "sh"]);
    cmd.arg(&told).args(words);
    for field in [
        "frame.interface_name",
        "infiniband.bth.opcode",
        "_ws.malformed",
        "ip.src",
        "ip.dst",
        "udp.srcport",
        "udp.payload",
        "ipv6.src",
        "ipv6.dst",
    ] {
        cmd.args(["-e", field]);
    }
    cmd.arg("-r").arg(file);
    run::run(cmd, LIMIT)?.success()?;
    let text = fs::read_to_string(&told).map_err(|e| e.to_string())?;
    text.lines()
        .map(|line| {
            let mut column = line.split('\t').map(str::to_string).collect::<Vec<_>>();
            column.resize(9, String::new());
            let opcode = column[1].parse().ok().filter(|_| column[2].is_empty());
            let opcode = opcode.ok_or_else(|| format!("malformed: {line}"))?;
            let [src, dst] =
                [(3, 7), (4, 8)].map(|(v4, v6)| column[if column[v4].is_empty() { v6 } else { v4 }].clone());
            let (port, payload) = (column[5].clone(), column[6].clone());
            Ok(Frame { via: column[0].clone(), opcode, src, dst, port, payload })
        })
        .collect()
}

/// Each of `wanted` was seen on `via`.
fn has(frames: &[Frame], via: &str, wanted: &[u8]) -> Result<(), String> {
    let mut counts = BTreeMap::<u8, u32>::new();
    frames.iter().filter(|f| f.via == via).for_each(|f| *counts.entry(f.opcode).or_default() += 1);
    let missing: Vec<&u8> = wanted.iter().filter(|opcode| !counts.contains_key(opcode)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{via}: no {missing:02x?} among {counts:02x?}")) }
}

fn count(frames: &[Frame], via: &str, opcode: u8) -> usize {
    frames.iter().filter(|f| f.via == via && f.opcode == opcode).count()
}

/// SENDs of three packets, acknowledged and refused, and datagrams.
fn in_one_process(folder: &Folder, host: &Place) -> Result<Vec<Frame>, String> {
    let mut all = Vec::new();
    for args in [&["local"][..], &["local", "ud"]] {
        let file = folder.file(&format!("local{}.pcapng", args.len()));
        let place = host.clone().with_env("ANYVERBS_PCAP", &file.display().to_string());
        run::run(place.command("/faults", args), LIMIT)?.success()?;
        all.extend(frames(&file)?);
    }
    has(&all, "local", &[0x00, 0x01, 0x02, 0x11, 0x65])?;
    // Of three packets each: 3 times 100, and the ends of queue pairs.
    let (first, last) = (count(&all, "local", 0), count(&all, "local", 2));
    match (first, last, count(&all, "local", 0x65)) {
        (300.., _, 400) if first == last => Ok(all),
        counts => Err(format!("SENDs begun and ended, datagrams: {counts:?}")),
    }
}

/// Each end writes what it sends and receives into the same file: both see all but direct accesses.
fn between_processes(folder: &Folder, host: &Place) -> Result<Vec<Frame>, String> {
    let file = folder.file("shm.pcapng");
    let place = host.clone().with_env("ANYVERBS_PCAP", &file.display().to_string());
    pair_at("127.0.0.1", "/rdma", &place, &place, &[], LIMIT)?;
    let all = frames(&file)?;
    if count(&all, "direct", 0x0a) > 0 {
        has(&all, "direct", &[0x06, 0x07, 0x08, 0x0a, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11])?;
        has(&all, "shm", &[0x00, 0x01, 0x02, 0x04, 0x11, 0x12, 0x13, 0x14])?;
    } else {
        has(&all, "shm", &ALL)?;
    }
    // Atomics: a hundred, and their answers, at both ends.
    let atomics = [0x12, 0x13, 0x14].map(|opcode| count(&all, "shm", opcode));
    if atomics != [200, 100, 100] {
        return Err(format!("atomics: {atomics:?}"));
    }
    // The same through the rings alone.
    let file = folder.file("rings.pcapng");
    let place =
        host.clone().with_env("ANYVERBS_PCAP", &file.display().to_string()).with_env("ANYVERBS_DIRECT", "0");
    pair_at("127.0.0.1", "/rdma", &place, &place, &[], LIMIT)?;
    let rings = frames(&file)?;
    has(&rings, "shm", &ALL)?;
    Ok(all.into_iter().chain(rings).collect())
}

fn datagrams(folder: &Folder, host: &Place) -> Result<Vec<Frame>, String> {
    let file = folder.file("ud-%p.pcapng");
    let place = host.clone().with_env("ANYVERBS_PCAP", &file.display().to_string());
    pair_at("127.0.0.1", "/faults", &place, &place, &["ud"], LIMIT)?;
    let mut all = Vec::new();
    let files = folder.named("ud-")?;
    for file in &files {
        let frames = frames(file)?;
        if count(&frames, "shm", 0x65) != 400 {
            return Err(format!("{} datagrams", frames.len()));
        }
        all.extend(frames);
    }
    if files.len() == 2 { Ok(all) } else { Err(format!("files: {files:?}")) }
}

fn at_run_time(folder: &Folder, host: &Place) -> Result<(), String> {
    for traced in 0..2 {
        let file = folder.file(&format!("part-{traced}.pcapng")).display().to_string();
        let port = run::port().to_string();
        let args = |role, traces| [role, "127.0.0.1", &port, if traces { file.as_str() } else { "-" }];
        let server = run::spawn(host.command("/trace", args("server", traced == 0)))?;
        run::run(host.command("/trace", args("client", traced == 1)), LIMIT)?.success()?;
        server.finish(Duration::from_secs(5)).success()?;
        let frames = frames(Path::new(&file))?;
        if count(&frames, "shm", 0x04) != 10 || count(&frames, "shm", 0x11) == 0 {
            return Err(format!("{} SENDs, {} in all", count(&frames, "shm", 0x04), frames.len()));
        }
    }
    Ok(())
}

/// `anyverbs trace FILE PROGRAM` begins anew each time, and touches nothing that is no trace.
fn command(public: &Path, folder: &Folder, host: &Place) -> Result<(), String> {
    let (file, other) = (folder.file("command.pcapng"), folder.file("diary"));
    let program = public.join("bin/faults").display().to_string();
    let traced = |file: &Path| {
        host.command("/anyverbs", ["trace", &file.display().to_string(), &program, "local", "uc"])
    };
    let mut before = None;
    for _ in 0..2 {
        run::run(traced(&file), LIMIT)?.success()?;
        let frames = frames(&file)?.len();
        if frames != 400 || before.replace(frames).is_some_and(|before| before != frames) {
            return Err(format!("{frames} frames"));
        }
    }
    fs::write(&other, "dear diary").map_err(|e| e.to_string())?;
    let refused = run::run(traced(&other), LIMIT)?;
    let kept = fs::read_to_string(&other).is_ok_and(|text| text == "dear diary");
    if refused.code == Some(126) && kept { Ok(()) } else { Err(format!("not refused: {refused}")) }
}

fn full(folder: &Folder, disk: &Disk, host: &Place) -> Result<(), String> {
    let file = disk.0.join("full.pcapng");
    let place =
        host.clone().with_env("ANYVERBS_PCAP", &file.display().to_string()).with_env("ANYVERBS_EXPLAIN", "1");
    let outcome = run::run(place.command("/faults", ["local"]), LIMIT)?.success()?;
    if outcome.err.lines().filter(|line| line.ends_with("the trace ends here: ENOSPC")).count() != 1 {
        return Err(format!("not one line that it ends: {outcome}"));
    }
    let copy = folder.file("full.pcapng");
    fs::copy(&file, &copy).map_err(|e| e.to_string())?;
    if frames(&copy)?.is_empty() { Err("nothing in it".into()) } else { Ok(()) }
}

/// Both ends see the same packets, but for those that faults take between the trace of one and that of the other: none.
fn between_hosts(public: &Path, folder: &Folder) -> Result<Vec<Frame>, String> {
    let net = Net::new()?;
    let files = ["server", "client"].map(|end| folder.file(&format!("udp-{end}.pcapng")));
    let place = |end: usize| {
        Place::new(public, Via::Path, User::Me)
            .inside(&["ip", "netns", "exec", &net.names[end]])
            .with_env("ANYVERBS_SOFT", "1")
            .with_env("ANYVERBS_PCAP", &files[end].display().to_string())
            .with_env("ANYVERBS_FAULTS", "loss=1%,dup=1%,delay=50us")
    };
    pair_at(SERVER, "/rdma", &place(0), &place(1), &[], LIMIT)?;
    let [server, client] = files.map(|file| frames(&file));
    let (server, client) = (server?, client?);
    for frames in [&server, &client] {
        has(frames, "udp", &ALL)?;
    }
    Ok(server.into_iter().chain(client).collect())
}

/// Scapy computes the ICRCs of packets of each kind and way that was seen.
fn icrcs(folder: &Folder, scapy: &Path, seen: &[Frame]) -> Result<(), String> {
    let file = folder.file("packets");
    let mut taken = BTreeMap::<(&str, u8), u32>::new();
    let few = seen.iter().filter(|f| {
        let taken = taken.entry((&f.via, f.opcode)).or_default();
        *taken += 1;
        *taken <= 40
    });
    let lines: Vec<String> = few.map(|f| format!("{} {} {} {}\n", f.src, f.dst, f.port, f.payload)).collect();
    fs::write(&file, lines.concat()).map_err(|e| e.to_string())?;
    let mut cmd = run::command("python3", [stage::root().join("xtask/icrc.py")]);
    cmd.arg(scapy).arg(&file).args(["-", &lines.len().max(500).to_string()]);
    run::run(cmd, Duration::from_secs(120))?.success().map(drop)
}

/// A folder of this trial's, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("anyverbs-test-trace-{}", id()));
        let _ = fs::create_dir_all(&folder);
        Self(folder)
    }
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn named(&self, start: &str) -> Result<Vec<PathBuf>, String> {
        let entries = fs::read_dir(&self.0).map_err(|e| e.to_string())?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let ours = names.filter(|name| name.starts_with(start) && name.ends_with(".pcapng"));
        Ok(ours.map(|name| self.0.join(name)).collect())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file system of 128 KiB, gone when dropped.
struct Disk(PathBuf);

fn small_disk(folder: &Folder) -> Result<Disk, String> {
    if !run::is_root() {
        return Err("needs root".into());
    }
    let place = folder.file("disk");
    fs::create_dir_all(&place).map_err(|e| e.to_string())?;
    let mut cmd = run::command("mount", ["-t", "tmpfs", "-o", "size=128k", "none"]);
    cmd.arg(&place);
    run::run(cmd, LIMIT)?.success()?;
    Ok(Disk(place))
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut cmd = run::command("umount", ["-l"]);
        cmd.arg(&self.0);
        let _ = run::run(cmd, LIMIT);
    }
}
