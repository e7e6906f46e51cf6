//! `anyverbs doctor` tells what is wrong here, and why.
use std::time::Duration;

use crate::{
    place::{Place, Via},
    report::{Ctx, Trial},
    run,
    trials::here,
};

pub const TRIALS: &[Trial] = &[Trial { name: "doctor", limit: Duration::from_secs(60), run: doctor }];

const LIMIT: Duration = Duration::from_secs(15);

fn doctor(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    by_itself(ctx, &place);
    without_network(ctx, &place);
    for (name, value, code, lines) in [
        (
            "ANYVERBS_FAULTS",
            "nonsense",
            1,
            &["BAD  devices: none opens", "note library says: ANYVERBS_FAULTS: \"nonsense\": expected "][..],
        ),
        ("ANYVERBS_SOFT", "0", 1, &["BAD  devices: none is listed: ANYVERBS_SOFT=0 hides them"]),
        ("ANYVERBS_GSO", "no", 0, &["note library says: ANYVERBS_GSO=\"no\": expected 0 or 1"]),
        ("ANYVERBS_FOO", "1", 0, &["note library says: ANYVERBS_FOO: no such setting"]),
    ] {
        // Asked for or not.
        for explain in ["0", "1"] {
            let place = place.clone().with_env(name, value).with_env("ANYVERBS_EXPLAIN", explain);
            ctx.check(format!("{name}={value}, explanations {explain}"), says(&place, code, lines));
        }
    }
}

/// A host that has the loopback interface alone, up or down, reaches no other.
fn without_network(ctx: &mut Ctx<'_>, place: &Place) {
    if !run::is_root() {
        return ctx.skip("without a network", "needs root");
    }
    for (what, script) in [("lo is down", "exec \"$@\""), ("lo is up", "ip link set lo up && exec \"$@\"")] {
        let place = place.clone().inside(&["unshare", "-n", "sh", "-c", script, "sh"]);
        let told = says(&place, 0, &["note UDP port 4791: free, but only lo has addresses"]);
        ctx.check(format!("without a network, {what}"), told);
    }
}

/// Names the library that a program gets without `anyverbs run`: ours by path and by preload, or the distribution's.
fn by_itself(ctx: &mut Ctx<'_>, place: &Place) {
    for via in [Via::Path, Via::Preload] {
        let place = place.clone().by(via);
        let ours = "ok   a program by itself: loads libibverbs.so.1 of these libraries";
        ctx.check(format!("what a program loads, {}", place.label()), says(&place, 0, &[ours]));
    }
    let place = place.clone().by(Via::System);
    let other = says(&place, 0, &["note a program by itself: loads /"]);
    let none = "note a program by itself: finds no libibverbs.so.1: start programs by `anyverbs run`";
    let check = other.or_else(|_| says(&place, 0, &[none]));
    ctx.check(format!("what a program loads, {}", place.label()), check);
}

/// Exits with this code, has a line that begins with each of these, and none twice.
fn says(place: &Place, code: i32, lines: &[&str]) -> Result<(), String> {
    let told = run::run(place.command("/anyverbs", ["doctor"]), LIMIT)?;
    let begins = |begin: &str| told.out.lines().filter(|line| line.starts_with(begin)).count();
    if let Some(missing) = lines.iter().find(|begin| begins(begin) != 1) {
        return Err(format!("{} lines {missing:?} in: {told}", begins(missing)));
    }
    match told.code == Some(code) && told.err.is_empty() {
        true => Ok(()),
        false => Err(format!("not exit code {code} in silence: {told}")),
    }
}
