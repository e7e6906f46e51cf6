//! Judge: how verbs behave where programs have stumbled before, as `c-tests/behaviour` has it, each a named test.
use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use crate::{
    place::Place,
    report::{Ctx, Judge, Trial},
    run, stage,
    trials::here,
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "behaviour", limit: Duration::from_secs(400), run: one_host },
    Trial { name: "behaviour-wire", limit: Duration::from_secs(300), run: two_hosts },
];

/// Where the sources are.
pub const FOLDER: &str = "c-tests/behaviour";

fn one_host(ctx: &mut Ctx<'_>) {
    let mut verdict = Judge::new("behaviours".into());
    let place = here(ctx);
    for program in programs() {
        behaviours(ctx, &mut verdict, &place, &program);
    }
    ctx.judge(verdict);
}

/// Tests of two processes, these on two hosts: by IPv4 at MTU 1500, and by IPv6 at 9000.
fn two_hosts(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two hosts", "needs root");
    }
    let mut verdict = Judge::new("behaviours, two hosts".into());
    for (mtu, gid) in [("1500", "0"), ("9000", "1")] {
        let place = here(ctx).with_env("C_TESTS_HOSTS", mtu).with_env("C_TESTS_GID", gid);
        for program in programs() {
            behaviours(ctx, &mut verdict, &place, &program);
        }
    }
    ctx.judge(verdict);
}

/// Runs the tests of a program that it has for this place.
fn behaviours(ctx: &mut Ctx<'_>, verdict: &mut Judge, place: &Place, program: &str) {
    let path = format!("/behaviour-{program}");
    let listed = run::run(place.command(&path, ["--list"]), Duration::from_secs(10));
    let names = match listed.and_then(run::Outcome::success) {
        Ok(outcome) if outcome.out.is_empty() => return,
        Ok(outcome) => outcome.out,
        Err(why) => return ctx.case(verdict, program, Err(why)),
    };
    let outcome = run::run(place.command(&path, [""; 0]), Duration::from_secs(200));
    let (said, why) = match outcome {
        Ok(outcome) => (outcome.out.clone(), outcome.to_string()),
        Err(why) => (String::new(), why),
    };
    let results: BTreeMap<&str, Result<(), String>> = said.lines().filter_map(result).collect();
    let skips: BTreeMap<&str, &str> = said.lines().filter_map(skipped).collect();
    for name in names.lines() {
        if let Some(why) = skips.get(name) {
            verdict.skip("no network namespaces here");
            ctx.skip(format!("{program}: {name}"), why);
            continue;
        }
        let result = results.get(name).cloned().unwrap_or_else(|| Err(why.clone()));
        ctx.case(verdict, format!("{program}: {name}"), result);
    }
}

/// `ok NAME` or `FAIL NAME: why`.
fn result(line: &str) -> Option<(&str, Result<(), String>)> {
    match line.split_once(' ')? {
        ("ok", name) => Some((name, Ok(()))),
        ("FAIL", rest) => rest.split_once(": ").map(|(name, why)| (name, Err(why.to_string()))),
        _ => None,
    }
}

/// `skip NAME: why`.
fn skipped(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("skip ")?.split_once(": ")
}

/// The names of the programs.
fn programs() -> Vec<String> {
    let sources = fs::read_dir(stage::root().join(FOLDER)).into_iter().flatten().flatten();
    let name = |path: &Path| Some(path.file_name()?.to_str()?.strip_suffix(".c")?.to_string());
    let mut programs: Vec<String> = sources.filter_map(|entry| name(&entry.path())).collect();
    programs.sort();
    programs
}
