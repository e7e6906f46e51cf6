//! Under load: what objects cost, a hundred thousand of each made and unmade, a thousand QPs to a thousand, a crowd of threads.
use std::{collections::HashMap, time::Duration};

use crate::{
    place::Place,
    report::{Ctx, Trial},
    run,
    trials::{Random, here},
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "load-memory", limit: Duration::from_secs(120), run: memory },
    Trial { name: "load-cycles", limit: Duration::from_secs(600), run: cycles },
    Trial { name: "load-1000-qps", limit: Duration::from_secs(240), run: many },
    Trial { name: "load-64-threads", limit: Duration::from_secs(240), run: crowd },
    Trial { name: "load-soak", limit: Duration::from_secs(3600), run: soak },
];

/// What may be used at most, in bytes: a measure of the program `memory`, asked for which, and the bound.
const BOUNDS: &[(&str, &str, u64)] = &[
    ("open", "", 4 << 20),
    ("qp-new", "qp", 32 << 10),
    ("qp-connected", "qp", 32 << 10),
    ("qp-used", "qp", 32 << 10),
    ("mr", "mr", 256),
];

/// An open device, an idle QP with 128 + 128 work requests, and a region stay within their bounds.
fn memory(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    for what in ["", "qp", "mr"] {
        let args = [what].into_iter().filter(|w| !w.is_empty());
        let outcome =
            run::run(place.command("/memory", args), Duration::from_secs(60)).and_then(|o| o.success());
        let measured: HashMap<String, u64> = match outcome {
            Ok(outcome) => outcome.out.lines().filter_map(measure).collect(),
            Err(why) => {
                ctx.check(format!("memory {what}"), Err(why));
                continue;
            }
        };
        for (name, _, bound) in BOUNDS.iter().filter(|(_, of, _)| *of == what) {
            let result = match measured.get(*name) {
                None => Err("was not measured".to_string()),
                Some(bytes) if bytes > bound => Err(format!("{bytes} bytes")),
                Some(bytes) => {
                    println!("  {name}: {bytes} bytes of {bound}");
                    Ok(())
                }
            };
            ctx.check(format!("{name} costs at most {bound} bytes"), result);
        }
    }
}

/// `NAME BYTES`; less than nothing is nothing.
fn measure(line: &str) -> Option<(String, u64)> {
    let (name, bytes) = line.split_once(' ')?;
    Some((name.to_string(), bytes.parse::<i64>().ok()?.max(0) as u64))
}

/// Memory and descriptors are the same after 100,000 more of each object.
fn cycles(ctx: &mut Ctx<'_>) {
    let outcome = run::run(here(ctx).command("/cycles", ["-n", "100000"]), Duration::from_secs(580));
    let result = outcome.and_then(|o| o.success()).and_then(|o| {
        o.out.lines().for_each(|line| println!("  {line}"));
        let kinds = o.out.lines().count();
        if kinds >= 20 { Ok(()) } else { Err(format!("{kinds} kinds of objects")) }
    });
    ctx.check("100,000 of each object made and unmade", result);
}

fn many(ctx: &mut Ctx<'_>) {
    for (path, place) in both_ways(ctx) {
        seeded(ctx, &format!("1,000 QPs to 1,000, {path}"), &place, "/stress-mixed", &["-n", "100", "many"]);
    }
}

fn crowd(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    seeded(ctx, "64 threads of one process", &place, "/crowd", &["-n", "8000"]);
    for (path, place) in both_ways(ctx) {
        seeded(ctx, &format!("64 threads to 64, {path}"), &place, "/crowd", &["-n", "4000", "pair"]);
    }
}

/// Random legal operations by four processes, some of which die: 30 s, or `ANYVERBS_SOAK_SECONDS` (600 for a full one).
fn soak(ctx: &mut Ctx<'_>) {
    let given = std::env::var("ANYVERBS_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    let seconds: u64 = given.unwrap_or(30).clamp(5, 3000);
    let seed = Random::announce("soak").below(1 << 40).to_string();
    let program = here(ctx).command("/soak", ["-s", &seed, "-n", &seconds.to_string()]);
    let result =
        run::run(program, Duration::from_secs(seconds + 180)).and_then(|o| o.success()).and_then(|o| {
            o.err.lines().for_each(|line| println!("  {line}"));
            if o.out == "ok\n" { Ok(()) } else { Err(o.to_string()) }
        });
    ctx.check(format!("{seconds} s of four processes, seed {seed}"), result);
}

/// With direct access to peers' memory, and without.
fn both_ways(ctx: &Ctx<'_>) -> [(&'static str, Place); 2] {
    let place = here(ctx);
    [("direct access", place.clone()), ("rings alone", place.with_env("ANYVERBS_DIRECT", "0"))]
}

/// A stress program, which says `ok`, with a seed that is told.
fn seeded(ctx: &mut Ctx<'_>, what: &str, place: &Place, program: &str, args: &[&str]) {
    let seed = Random::announce(what).below(1 << 40).to_string();
    let args = ["-s", &seed].into_iter().chain(args.iter().copied());
    let outcome = run::run(place.command(program, args), Duration::from_secs(110)).and_then(|o| o.success());
    let took = outcome.and_then(|o| if o.out == "ok\n" { Ok(o.took) } else { Err(o.to_string()) });
    if let Ok(took) = &took {
        println!("  {what}: exact after {:.1} s", took.as_secs_f64());
    }
    ctx.check(what, took.map(drop));
}
