//! The trials: real programs and hard edges, one file a theme. Each file has its table of [`Trial`]s.
use std::{fs, path::Path, time::Duration};

use crate::{
    beside::Beside,
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
};

mod behaviour;
mod bulk;
mod checkers;
mod conformance;
mod congestion;
mod doctor;
mod faults;
mod forged;
mod fuzz;
mod guest;
mod hardware;
mod host_bench;
mod hostile;
mod idle;
mod install;
pub mod kernel;
mod kill;
mod lanes;
mod load;
mod mpi;
mod multicast;
pub mod netns;
mod order;
mod perftest;
mod pingpong;
mod port;
mod pyverbs;
mod qperf;
mod shareable;
pub mod sid;
mod simulation;
mod stats;
mod tools;
mod trace;
mod ucx;
mod users;
mod view;
mod wire;
mod wire_bench;
mod wire_format;

/// All trials of the default run, in order.
pub fn all() -> impl Iterator<Item = &'static Trial> {
    [
        simulation::TRIALS,
        tools::TRIALS,
        install::TRIALS,
        pingpong::TRIALS,
        bulk::TRIALS,
        users::TRIALS,
        shareable::TRIALS,
        order::TRIALS,
        kill::TRIALS,
        idle::TRIALS,
        hostile::TRIALS,
        load::TRIALS,
        checkers::TRIALS,
        port::TRIALS,
        wire::TRIALS,
        forged::TRIALS,
        multicast::TRIALS,
        congestion::TRIALS,
        faults::TRIALS,
        trace::TRIALS,
        stats::TRIALS,
        wire_format::TRIALS,
        wire_bench::TRIALS,
        host_bench::TRIALS,
        behaviour::TRIALS,
        conformance::TRIALS,
        perftest::TRIALS,
        qperf::TRIALS,
        hardware::TRIALS,
        guest::TRIALS,
        kernel::TRIALS,
        pyverbs::TRIALS,
        view::TRIALS,
        doctor::TRIALS,
        ucx::TRIALS,
        mpi::TRIALS,
    ]
    .into_iter()
    .flatten()
}

/// What runs beside them.
pub fn beside() -> impl Iterator<Item = &'static Beside> {
    fuzz::BESIDE.iter()
}

/// Our library by path, as we are.
fn here(ctx: &Ctx<'_>) -> Place {
    Place::new(ctx.stage.public.path(), Via::Path, User::Me)
}

/// By path and by preload, as root and as nobody: the four ways that the issue asks for.
fn four_ways(ctx: &mut Ctx<'_>) -> Vec<Place> {
    let folder = ctx.stage.public.path().to_path_buf();
    let users: &[User] = if run::is_root() {
        &[User::Me, User::Nobody]
    } else {
        ctx.skip("as another user", "needs root");
        &[User::Me]
    };
    let ways = users.iter().flat_map(|&user| [Via::Path, Via::Preload].map(|via| (via, user)));
    ways.map(|(via, user)| Place::new(&folder, via, user)).collect()
}

/// Runs `/program server|client 127.0.0.1 PORT more...` in two places; both must exit with 0.
fn pair_of(
    program: &str,
    server: &Place,
    client: &Place,
    more: &[&str],
    limit: Duration,
) -> Result<(), String> {
    pair_at("127.0.0.1", program, server, client, more, limit)
}

/// The same with the server at another address.
fn pair_at(
    host: &str,
    program: &str,
    server: &Place,
    client: &Place,
    more: &[&str],
    limit: Duration,
) -> Result<(), String> {
    pair_says(host, program, server, client, more, limit).map(drop)
}

/// The same, and what the client prints.
fn pair_says(
    host: &str,
    program: &str,
    server: &Place,
    client: &Place,
    more: &[&str],
    limit: Duration,
) -> Result<String, String> {
    let port = run::port().to_string();
    let args = |role| [role, host, &port].into_iter().chain(more.iter().copied());
    let server = run::spawn(server.command(program, args("server")))?;
    let client = run::spawn(client.command(program, args("client")))?;
    let client = client.finish(limit);
    let server = server.finish(if client.ok() { Duration::from_secs(5) } else { Duration::from_secs(2) });
    if client.ok() && server.ok() {
        return Ok(client.out);
    }
    Err(format!("server: {server}\n    client: {client}"))
}

/// What a process could leave behind: everything in /dev/shm, in the folders that every program of the machine uses what
/// is named after our trade, and processes of ours that still hold an abstract socket.
fn traces() -> Vec<String> {
    let ours = |name: &str| ["verbs", "urxe", "rdma", "shm", "ring"].iter().any(|part| name.contains(part));
    let mut all = held_sockets();
    for dir in ["/dev/shm", "/tmp", "/run", "/var/tmp"] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if dir == "/dev/shm" || (ours(&name) && !name.starts_with("anyverbs-test-")) {
                all.push(format!("{dir}/{name}"));
            }
        }
    }
    all
}

/// `process PID holds @NAME` for each abstract socket of a process that we started.
fn held_sockets() -> Vec<String> {
    let mut all = Vec::new();
    let mut names = abstract_sockets(Path::new("/proc/self/net/unix"));
    // What runs beside the trials.
    names.retain(|(_, name)| !name.starts_with("@anyverbs-fuzz-"));
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if !run::is_ours(pid) {
            continue;
        }
        for fd in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let to = fs::read_link(fd.path()).unwrap_or_default().display().to_string();
            let held = names.iter().find(|(inode, _)| to == format!("socket:[{inode}]"));
            all.extend(held.map(|(_, name)| format!("process {pid} holds {name}")));
        }
    }
    all
}

/// The abstract socket names in a `/proc/PID/net/unix`.
fn abstract_names(table: &Path) -> Vec<String> {
    abstract_sockets(table).into_iter().map(|(_, name)| name).collect()
}

/// Inode and name of each abstract socket in a `/proc/PID/net/unix`.
fn abstract_sockets(table: &Path) -> Vec<(String, String)> {
    let text = fs::read(table).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(6);
            let (inode, name) = (fields.next()?, fields.next()?);
            name.starts_with('@').then(|| (inode.to_string(), name.to_string()))
        })
        .collect()
}

/// `Ok` as soon as nothing is there that was not there `before`; what just exited may take a moment.
fn nothing_left(before: &[String]) -> Result<(), String> {
    let left = || -> Vec<String> {
        traces().into_iter().filter(|t| !before.contains(t) && t != "/tmp/xrc_domain").collect()
    };
    run::until(Duration::from_secs(3), || left().is_empty());
    let left = left();
    if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", "))) }
}

/// A small generator for random moments; its seed is printed by who makes one.
struct Random(u64);

impl Random {
    /// Seeded from ANYVERBS_SEED, else from the clock; prints the seed.
    fn announce(what: &str) -> Random {
        let given = std::env::var("ANYVERBS_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| run::monotonic_ns() ^ u64::from(std::process::id()) << 32) | 1;
        println!("  {what}: ANYVERBS_SEED={seed}");
        Random(seed)
    }
    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
