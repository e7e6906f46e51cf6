//! `kill -9` of either side at random moments: the other side notices within a second, cleans up, exits; nothing is left.
use std::time::Duration;

use crate::{
    pingpong::Run,
    place::Place,
    report::{Ctx, Trial},
    run::{self, Child, Outcome},
    trials::{Random, here, nothing_left, traces},
};

/// From the kill to the survivor's knowledge.
const NOTICE: Duration = Duration::from_secs(1);
/// Exit needs a moment more on a machine with two busy cores.
const EXIT: Duration = Duration::from_millis(1500);

pub const TRIALS: &[Trial] = &[
    Trial { name: "kill-rc-pingpong", limit: Duration::from_secs(300), run: rc_pingpong },
    Trial {
        name: "kill-outstanding",
        limit: Duration::from_secs(300),
        run: |ctx| own_program(ctx, &["", "events"], 100),
    },
    Trial {
        name: "kill-forked",
        limit: Duration::from_secs(200),
        run: |ctx| own_program(ctx, &["fork"], 20),
    },
];

fn rc_pingpong(ctx: &mut Ctx<'_>) {
    let (place, before) = (here(ctx), traces());
    let mut random = Random::announce("moments of the kills");
    for i in 0..100 {
        let args = if i % 3 == 2 { "-g 0 -n 100000000 -e" } else { "-g 0 -n 100000000" };
        let kill_server = random.below(2) == 0;
        // Half of them early, while the two are still meeting.
        let moment = if random.below(2) == 0 { random.below(30_000) } else { random.below(250_000) };
        let name = format!(
            "kill {i} of the {} after {moment} us ({args})",
            if kill_server { "server" } else { "client" }
        );
        ctx.check(name, one_rc_kill(&place, args, kill_server, Duration::from_micros(moment)));
    }
    ctx.check("nothing is left", nothing_left(&before));
    ctx.check(
        "a new pair works at once",
        Run::new("ibv_rc_pingpong", &place, &place, "-g 0 -c").good().map(drop),
    );
}

fn one_rc_kill(place: &Place, args: &str, kill_server: bool, moment: Duration) -> Result<(), String> {
    let port = run::port();
    let port_arg = ["-p".to_string(), port.to_string()];
    let words: Vec<String> = args.split_whitespace().map(String::from).collect();
    let mut server = run::spawn(place.command("ibv_rc_pingpong", port_arg.iter().chain(&words)))?;
    server.listens(port, Duration::from_secs(10))?;
    let host = ["127.0.0.1".to_string()];
    let mut client =
        run::spawn(place.command("ibv_rc_pingpong", port_arg.iter().chain(&words).chain(&host)))?;
    std::thread::sleep(moment);
    let (victim, survivor) = if kill_server { (&mut server, client) } else { (&mut client, server) };
    victim.kill();
    victim.ended(Duration::from_secs(5));
    if !kill_server && survivor.is_listening(port) {
        return Ok(()); // The client died before it had called: the server rightly waits for another.
    }
    exits(survivor, &[0, 1])
}

/// The survivor ends by itself, with one of `codes`, soon.
fn exits(survivor: Child, codes: &[i32]) -> Result<(), String> {
    let outcome = survivor.finish(NOTICE + EXIT);
    match outcome.code {
        Some(code) if codes.contains(&code) => Ok(()),
        _ => Err(format!("survivor: {outcome}")),
    }
}

fn own_program(ctx: &mut Ctx<'_>, modes: &[&str], kills: usize) {
    let (place, before) = (here(ctx), traces());
    let mut random = Random::announce("moments of the kills");
    let mut slowest = Duration::ZERO;
    for i in 0..kills {
        let mode = modes[i % modes.len()];
        let kill_server = random.below(2) == 0;
        let moment = random.below(60_000);
        let who = if kill_server { "server" } else { "client" };
        let result = one_own_kill(&place, mode, kill_server, Duration::from_micros(moment));
        let check = result.map(|noticed| slowest = slowest.max(noticed));
        ctx.check(format!("kill {i} of the {who} {moment} us into its traffic [{mode}]"), check);
    }
    println!("  slowest notice: {} ms", slowest.as_millis());
    ctx.check("nothing is left", nothing_left(&before));
    ctx.check(
        "a new pair works at once",
        Run::new("ibv_rc_pingpong", &place, &place, "-g 0 -c").good().map(drop),
    );
}

fn one_own_kill(place: &Place, mode: &str, kill_server: bool, moment: Duration) -> Result<Duration, String> {
    let port = run::port();
    let start = |role: &str| {
        let args = [role.to_string(), "127.0.0.1".into(), port.to_string(), mode.to_string()];
        run::spawn(place.command("/kill_peer", args.iter().filter(|a| !a.is_empty())))
    };
    let mut server = start("server")?;
    let mut client = start("client")?;
    for side in [&mut server, &mut client] {
        side.says("running", Duration::from_secs(10))?;
    }
    std::thread::sleep(moment);
    let (victim, survivor) = if kill_server { (server, client) } else { (client, server) };
    let killed = run::monotonic_ns();
    victim.kill();
    // The victim's group lives on until it is dropped: with `fork` there is a child in it.
    let outcome = survivor.finish(NOTICE + EXIT);
    drop(victim);
    let noticed = stamp(&outcome, "noticed ")?;
    stamp(&outcome, "destroyed ")?;
    if outcome.code != Some(0) {
        return Err(format!("survivor: {outcome}"));
    }
    let after = Duration::from_nanos(noticed.saturating_sub(killed));
    if after > NOTICE { Err(format!("noticed only after {after:?}")) } else { Ok(after) }
}

fn stamp(outcome: &Outcome, key: &str) -> Result<u64, String> {
    let line = outcome.out.lines().find_map(|l| l.strip_prefix(key));
    line.and_then(|n| n.parse().ok()).ok_or_else(|| format!("never {}: {outcome}", key.trim()))
}
