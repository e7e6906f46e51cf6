//! Faults on request: what must survive them does, chance is the seed's alone, and a wrong wish is no wish.
use std::{collections::BTreeSet, path::Path, time::Duration};

use super::netns::{Net, SERVER};
use crate::{
    place::Place,
    report::{Ctx, Trial},
    run,
    trials::{here, pair_at},
};

pub const TRIALS: &[Trial] = &[Trial { name: "faults", limit: Duration::from_secs(240), run: faults }];

const LIMIT: Duration = Duration::from_secs(60);
/// What a reliable connection has to survive.
const STORM: &str = "loss=5%,dup=1%,reorder=2%,corrupt=1%,rnr=2%,delay=200us,seed=11";

fn faults(ctx: &mut Ctx<'_>) {
    let host = here(ctx);
    let none: [&str; 0] = [];
    ctx.check("at run time, in one process", alone(&host, &["local"]).map(drop));
    ctx.check("at run time, between processes", pair_at("127.0.0.1", "/faults", &host, &host, &none, LIMIT));
    storm(ctx, "between processes", "127.0.0.1", &host, &host);
    for kind in ["uc", "ud"] {
        let local = |seed| alone(&host.clone().with_env("ANYVERBS_FAULTS", &spec(seed)), &["local", kind]);
        ctx.check(format!("{kind} in one process"), chance(local));
        ctx.check(
            format!("{kind} between processes"),
            chance(|seed| numbers("127.0.0.1", &host, &host, kind, seed)),
        );
    }
    ctx.check("a wrong item is named, and no device opens", refused(&host));
    ctx.check("anyverbs faults", command(ctx.stage.public.path(), &host));
    if !run::is_root() {
        return ctx.skip("between hosts", "needs root");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let [server, client] = [0, 1].map(|host| net.place(ctx.stage, host));
    ctx.check("at run time, between hosts", pair_at(SERVER, "/faults", &server, &client, &none, LIMIT));
    storm(ctx, "between hosts", SERVER, &server, &client);
    for kind in ["uc", "ud"] {
        let outcome = chance(|seed| numbers(SERVER, &server, &client, kind, seed));
        ctx.check(format!("{kind} between hosts"), outcome);
    }
}

/// Everything arrives, both ends at fault.
fn storm(ctx: &mut Ctx<'_>, where_: &str, host: &str, server: &Place, client: &Place) {
    let [server, client] = [server, client].map(|place| place.clone().with_env("ANYVERBS_FAULTS", STORM));
    for (program, args) in [("/rdma", &[][..]), ("/order", &["100"])] {
        ctx.check(
            format!("{program} in a storm {where_}"),
            pair_at(host, program, &server, &client, args, LIMIT),
        );
    }
}

fn spec(seed: u64) -> String {
    format!("loss=10%,dup=2%,corrupt=2%,seed={seed}")
}

/// The same seed loses the same messages, another one others; `numbers` gives those that arrived, and what was told of it.
fn chance(numbers: impl Fn(u64) -> Result<String, String>) -> Result<(), String> {
    let [first, again, other] = [7, 7, 8].map(numbers);
    let (first, again, other) = (first?, again?, other?);
    let arrived: Vec<u32> = first
        .lines()
        .find(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| line.split_whitespace().filter_map(|n| n.parse().ok()).collect())
        .unwrap_or_default();
    let different: BTreeSet<u32> = arrived.iter().copied().collect();
    let told = format!("lost {},", 400 - different.len());
    match () {
        () if first != again => Err(format!("the same seed, but\n{first}\n{again}")),
        () if first == other => Err("another seed, but the same messages".into()),
        () if different.len() > 380 => Err(format!("nearly nothing was lost: {first}")),
        () if arrived.len() == different.len() => Err(format!("nothing came twice: {first}")),
        () if !first.contains(&told) => Err(format!("{told}, but it says: {first}")),
        () => Ok(()),
    }
}

/// A run of `/faults` by itself: what it prints.
fn alone(place: &Place, args: &[&str]) -> Result<String, String> {
    run::run(place.command("/faults", args), LIMIT)?.success().map(|outcome| outcome.out)
}

/// Numbers from a client at fault to a server that is not: what both print.
fn numbers(host: &str, server: &Place, client: &Place, kind: &str, seed: u64) -> Result<String, String> {
    let port = run::port().to_string();
    let server = run::spawn(server.command("/faults", ["server", host, &port, kind]))?;
    let client = client.clone().with_env("ANYVERBS_FAULTS", &spec(seed));
    let client = run::run(client.command("/faults", ["client", host, &port, kind]), LIMIT)?.success()?;
    Ok(server.finish(Duration::from_secs(5)).success()?.out + &client.out)
}

/// `anyverbs faults` loses what the variable loses.
fn command(public: &Path, place: &Place) -> Result<(), String> {
    let program = public.join("bin/faults").display().to_string();
    let by_command = place.command("/anyverbs", ["faults", &spec(7), &program, "local", "ud"]);
    let by_command = run::run(by_command, LIMIT)?.success()?.out;
    let by_variable = alone(&place.clone().with_env("ANYVERBS_FAULTS", &spec(7)), &["local", "ud"])?;
    if by_command == by_variable { Ok(()) } else { Err(format!("{by_command}\n{by_variable}")) }
}

fn refused(place: &Place) -> Result<(), String> {
    let place =
        place.clone().with_env("ANYVERBS_FAULTS", "loss=1%,delay=soon").with_env("ANYVERBS_EXPLAIN", "1");
    let outcome = run::run(place.command("/faults", ["local"]), LIMIT)?;
    let line = outcome.err.lines().any(|l| l.contains("ANYVERBS_FAULTS: \"delay=soon\": expected a time"));
    if outcome.code == Some(1) && line { Ok(()) } else { Err(format!("it goes on: {outcome}")) }
}
