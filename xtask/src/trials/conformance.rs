//! Our own conformance suite (tests/conformance) on urxe0: both ends in one process, in two, of two users,
//! and between two hosts by IPv4 and IPv6 at two MTUs.
//!
//! A difference from what the specification promises must stand in tests/conformance/deviations with its reason.
use std::{collections::BTreeMap, process::Command, time::Duration};

use crate::{
    place::{Ends, Place, User, Via},
    report::{Ctx, Judge, Trial},
    run::{self, Outcome},
    stage::root,
    trials::{
        here,
        lanes::{beside, lanes},
        nothing_left, traces,
    },
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "conformance", limit: Duration::from_secs(600), run: one_host },
    Trial { name: "conformance-wire", limit: Duration::from_secs(600), run: two_hosts },
];

const LIMIT: Duration = Duration::from_secs(290);
/// The program must not have lost its cases.
const CASES: usize = 1300;

fn one_host(ctx: &mut Ctx<'_>) {
    let before = traces();
    let place = here(ctx);
    let ring = place.clone().with_env("ANYVERBS_DIRECT", "0");
    judge(ctx, "one process", run::run(command(&place, &[], &[]), LIMIT), CASES);
    judge(ctx, "two processes", run::run(command(&place, &["--fork"], &[]), LIMIT), CASES);
    // What goes directly between processes otherwise; messages of 2 GiB went by ring already as SENDs.
    let one_sided = ["--fork", "--case", "*/write*", "--case", "*/read/*", "--skip", "*/max-message"];
    judge(ctx, "two processes, by ring", run::run(command(&ring, &one_sided, &[]), LIMIT), 200);
    let small = ["--fork", "--skip", "*/max-message"];
    let infiniband = place.clone().with_env("ANYVERBS_LINK_LAYER", "infiniband");
    judge(ctx, "InfiniBand link layer", run::run(command(&infiniband, &small, &[]), LIMIT), CASES);
    if run::is_root() {
        let nobody = Place::new(ctx.stage.public.path(), Via::Path, User::Nobody);
        let ends = Ends { server: nobody, ..Ends::both(&place) };
        judge(ctx, "two users", two(&ends, &[], &[]), CASES);
    } else {
        ctx.skip("two users", "needs root");
    }
    ctx.check("leaves nothing behind", nothing_left(&before));
}

/// Over UDP: everything over each of the lanes, then what is reliable where packets are lost.
fn two_hosts(ctx: &mut Ctx<'_>) {
    let Some(lanes) = lanes(ctx) else { return };
    // What is lost of the unreliable ones stays lost.
    let reliable = ["--case", "rc/*", "--case", "xrc/*", "--case", "state/rc/*", "--wait", "40000"];
    for (lost, args, paths, least) in [(0, &[][..], &["urxe-wire"][..], CASES), (1, &reliable, &[], 700)] {
        let mut suffix = String::new();
        if lost > 0 {
            if let Err(why) = lanes.iter().try_for_each(|lane| lane.net.lose(lost)) {
                return ctx.check("rules that drop packets", Err(why));
            }
            suffix = format!(", {lost} % lost");
        }
        let mut outcomes = BTreeMap::new();
        let jobs = (0..lanes.len()).map(|n| (n, n));
        beside(&lanes, jobs, |lane, _| two(&lane.ends, args, paths), |_, n, o| drop(outcomes.insert(n, o)));
        for (n, outcome) in outcomes {
            judge(ctx, &format!("two hosts, {}{suffix}", lanes[n].name), outcome, least);
        }
    }
    for lane in &lanes {
        ctx.check(format!("{}: packets were dropped", lane.name), lane.net.dropped().map(drop));
    }
}

/// Two processes, on one host or two. Messages of 2 GiB are left out.
fn two(ends: &Ends, args: &[&str], paths: &[&str]) -> Result<Outcome, String> {
    let at = format!("{}:{}", ends.host, run::port());
    let [passive_gid, active_gid] = ends.gids.map(|gid| gid.to_string());
    let passive_args = [&["--listen", &at, "--gid", &passive_gid], args].concat();
    let server = run::spawn(command(&ends.server, &passive_args, &[]))?;
    let args = [&["--connect", &at, "--gid", &active_gid, "--skip", "*/max-message"], args].concat();
    let client = run::run(command(&ends.client, &args, paths), LIMIT)?;
    let server = server.finish(if client.code.is_some() { LIMIT } else { Duration::from_secs(2) });
    if server.ok() { Ok(client) } else { Err(format!("passive end: {server}\n    active end: {client}")) }
}

/// The program on urxe0 with the deviations that it has on each path, and those of `paths`.
fn command(place: &Place, args: &[&str], paths: &[&str]) -> Command {
    let mut words: Vec<String> =
        ["--device", "urxe0"].into_iter().chain(args.iter().copied()).map(String::from).collect();
    // As `nobody` the program may not be able to read the workspace; the active end is ours.
    if !args.contains(&"--listen") {
        for name in ["urxe"].iter().chain(paths) {
            let file = root().join(format!("tests/conformance/deviations/{name}.tsv"));
            words.extend(["--deviations".to_string(), file.display().to_string()]);
        }
    }
    place.command("/conformance", words)
}

/// A line of the closing table from the lines of the program, and a check for each case that failed.
fn judge(ctx: &mut Ctx<'_>, name: &str, outcome: Result<Outcome, String>, least: usize) {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return ctx.check(name, Err(why)),
    };
    let mut verdict = Judge::new(format!("conformance, {name}"));
    for line in outcome.out.lines() {
        if line.starts_with("pass ") {
            verdict.passed += 1;
        } else if line.starts_with("deviates ") {
            verdict.skip("deviates as listed");
        } else if let Some((_, why)) = line.strip_prefix("skip ").and_then(|rest| rest.split_once(": ")) {
            // urxe0 has all that the cases need.
            verdict.failed += 1;
            ctx.check(format!("{name}: {line}"), Err(why.to_string()));
        } else if let Some(what) = line.strip_prefix("FAIL ") {
            verdict.failed += 1;
            let (case, why) = what.split_once(": ").unwrap_or((what, ""));
            ctx.check(format!("{name}: {case}"), Err(why.to_string()));
        } else if line.starts_with("seed ") {
            println!("  {name}: {line}");
        }
    }
    let run = verdict.passed + verdict.failed + verdict.skipped.values().sum::<usize>();
    let whole = match outcome.out.lines().last() {
        Some(last) if last.contains(" passed, ") && run >= least => Ok(()),
        _ => Err(format!("{run} cases, expected {least} at least: {outcome}")),
    };
    ctx.check(format!("{name}: {run} cases, {} as specified", verdict.passed), whole);
    ctx.judge(verdict);
}
