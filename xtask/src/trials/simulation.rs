//! The wire's state machines in virtual time: ten thousand random worlds, in a build that is optimized enough for them.
use std::time::Duration;

use crate::{
    report::{Ctx, Trial},
    run, stage,
};

pub const TRIALS: &[Trial] =
    &[Trial { name: "simulation", limit: Duration::from_secs(600), run: ten_thousand_seeds }];

fn ten_thousand_seeds(ctx: &mut Ctx<'_>) {
    let mut build = stage::cargo(&["test", "--profile", "sim", "--lib", "--no-run", "-q"]);
    build.env("CARGO_TERM_COLOR", "never");
    let built = run::run(build, Duration::from_secs(400)).and_then(|o| o.success()).map(drop);
    if built.is_err() {
        return ctx.check("building", built);
    }
    let mut cmd = stage::cargo(&[
        "test",
        "--profile",
        "sim",
        "--lib",
        "-q",
        "transport::sim::storms",
        "--",
        "--nocapture",
    ]);
    cmd.env("ANYVERBS_SIM_SEEDS", "10000").env("RUST_BACKTRACE", "0");
    let outcome = run::run(cmd, Duration::from_secs(180)).and_then(|o| o.success()).and_then(|o| {
        let line = o.out.lines().find(|l| l.contains(" of 10000 worlds")).map(str::to_string);
        line.ok_or_else(|| o.to_string())
    });
    if let Ok(line) = &outcome {
        println!("  {line}");
    }
    ctx.check("10000 seeds", outcome.map(drop));
}
