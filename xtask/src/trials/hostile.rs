//! A peer that breaks the rules loses its connection, and nothing else happens.
use std::{path::Path, time::Duration};

use crate::{
    pingpong::Run,
    place::Place,
    report::{Ctx, Trial},
    run,
    trials::{Random, here, nothing_left, traces, users::paths},
};

pub const TRIALS: &[Trial] = &[Trial { name: "hostile", limit: Duration::from_secs(480), run: hostile }];

fn hostile(ctx: &mut Ctx<'_>) {
    let before = traces();
    let mut random = Random::announce("noise");
    for (path, victim, bad) in paths(ctx) {
        for i in 0..4 {
            let seed = random.below(1 << 40).to_string();
            let check = against_victim(&victim, &bad, "rings", Some(&seed));
            ctx.check(format!("noise in the rings, {path}, round {i}, seed {seed}"), check);
        }
        for role in ["unsealed", "truncated"] {
            ctx.check(format!("{role} memfd, {path}"), against_victim(&victim, &bad, role, None));
        }
    }
    for i in 0..5 {
        let seed = random.below(1 << 40).to_string();
        ctx.check(format!("nonsense at the socket, round {i}, seed {seed}"), knocked(ctx, &seed));
    }
    ctx.check("nothing is left", nothing_left(&before));
    let place = here(ctx);
    ctx.check(
        "a new pair works at once",
        Run::new("ibv_rc_pingpong", &place, &place, "-g 0 -c").good().map(drop),
    );
}

/// The victim must say that it is unharmed, whatever becomes of the hostile one.
fn against_victim(victim: &Place, bad: &Place, role: &str, seed: Option<&str>) -> Result<(), String> {
    let port = run::port().to_string();
    let victim = run::spawn(victim.command("/hostile", ["victim", "127.0.0.1", &port]))?;
    let args = [Some(role), Some("127.0.0.1"), Some(&port), seed];
    let bad = run::spawn(bad.command("/hostile", args.into_iter().flatten()))?;
    let bad = bad.finish(Duration::from_secs(15));
    let victim = victim.finish(Duration::from_secs(10));
    if bad.out.contains("spoilt 0 ") {
        return Err(format!("the hostile one found no ring to spoil: {bad}"));
    }
    if victim.ok() && victim.out.contains("unharmed") {
        return Ok(());
    }
    Err(format!("victim: {victim}\n    hostile: {bad}"))
}

/// Nonsense at every abstract socket that a running pair has; the pair goes on.
fn knocked(ctx: &Ctx<'_>, seed: &str) -> Result<(), String> {
    let place = here(ctx);
    let others = super::abstract_names(Path::new("/proc/self/net/unix"));
    let port = run::port();
    let port_arg = port.to_string();
    let args = ["-g", "0", "-c", "-n", "200000", "-s", "64", "-p", &port_arg];
    let mut server = run::spawn(place.command("ibv_rc_pingpong", args))?;
    server.listens(port, Duration::from_secs(10))?;
    let names = |pid: u32| super::abstract_names(Path::new(&format!("/proc/{pid}/net/unix")));
    let client = run::spawn(place.command("ibv_rc_pingpong", args.into_iter().chain(["127.0.0.1"])))?;
    let pid = server.pid();
    if !run::until(Duration::from_secs(5), || names(pid).iter().filter(|n| !others.contains(n)).count() >= 2)
    {
        return Err("the pair shows no abstract sockets".into());
    }
    // The listing shows a NUL as '@', the first of them included.
    let hex: Vec<String> = names(pid)
        .into_iter()
        .filter(|n| !others.contains(n))
        .map(|n| n.bytes().map(|b| if b == b'@' { 0 } else { b }).map(|b| format!("{b:02x}")).collect())
        .collect();
    let knock = run::run(
        place.command("/hostile", ["knock", seed].into_iter().chain(hex.iter().map(String::as_str))),
        Duration::from_secs(20),
    )?;
    let (client, server) = (client.finish(Duration::from_secs(90)), server.finish(Duration::from_secs(5)));
    if !knock.ok()
        || !client.ok()
        || !server.ok()
        || format!("{}{}", client.out, server.out).contains("invalid data")
    {
        return Err(format!("server: {server}\n    client: {client}\n    knock: {knock}"));
    }
    Ok(())
}
