//! The kernel's soft-RoCE in the guest, each case in three columns: our own provider, Debian's compiled provider on our library,
//! and Debian's library. What Debian's library passes, both of ours must pass; what it does not is listed with its reason.
//!
//! `inside` runs in the guest and `tell`s each case's result in a line; `table` reads the lines and judges; the other files are
//! the suites. A case that fails runs again, which is printed. ANYVERBS_KERNEL names the suites to run instead of the usual
//! ones, with spaces between; with `whole` among them they run with all their rows.
mod commands;
mod conformance;
pub mod cost;
mod inside;
mod later;
mod python;
mod rdmacm;
mod resize;
mod table;
mod tell;
mod tools;
mod unplug;

use std::{env, fs, path::Path, time::Duration};

use crate::{
    apt, guest,
    report::{Ctx, Trial},
    run, stage,
    trials::pyverbs,
};
use table::Table;

pub use inside::{gid_of_rxe0, inside};

pub const TRIALS: &[Trial] = &[
    Trial { name: "kernel-6.1", limit: Duration::from_secs(3100), run: |ctx| on(ctx, "6.1", "", ALL) },
    Trial { name: "kernel-6.12", limit: Duration::from_secs(3100), run: |ctx| on(ctx, "6.12", "6.12", FEW) },
    Trial { name: "kernel-cost", limit: Duration::from_secs(1000), run: cost::trial },
];

/// What runs on Debian 12's own kernel, and on the later one.
const ALL: &[&str] =
    &["tools", "commands", "resize", "unplug", "rdmacm", "perftest", "pyverbs", "conformance"];
const FEW: &[&str] = &["commands", "resize", "unplug", "later", "pyverbs"];

const NEEDS: &[apt::Need] = &[
    ("rping", "rdmacm-utils"),
    ("/usr/bin/python3", "python3"),
    ("/usr/lib/python3/dist-packages/pyverbs/__init__.py", "python3-pyverbs"),
];

/// Programs of `c-tests/kernel`.
const PROGRAMS: [&str; 4] = ["commands", "resize", "trace", "unplug"];

fn on(ctx: &mut Ctx<'_>, release: &'static str, kernel: &str, suites: &[&str]) {
    if !run::is_root() {
        return ctx.skip("kernel rxe", "needs root");
    }
    let scratch =
        pyverbs::Folder(env::temp_dir().join(format!("anyverbs-test-{}-kernel", std::process::id())));
    let prepared = prepare(ctx, &scratch.0);
    let me = match prepared.and_then(|()| env::current_exe().map_err(|e| e.to_string())) {
        Ok(me) => me,
        Err(why) => return ctx.check("preparing", Err(why)),
    };
    let paths = [&me, &ctx.stage.public.path().to_path_buf(), &scratch.0].map(|p| p.display().to_string());
    let [me, public, scratch] = paths;
    let said = env::var("ANYVERBS_KERNEL").unwrap_or_default();
    let whole = said.split(' ').any(|word| word == "whole");
    let size = if whole { "whole" } else { "usual" };
    let named: Vec<&str> = said.split(' ').filter(|word| !word.is_empty() && *word != "whole").collect();
    let suites = if named.is_empty() { suites } else { &named };
    let mut words: Vec<String> = vec![me, "in-guest".into(), public, scratch, size.into()];
    words.extend(suites.iter().map(|s| s.to_string()));
    let limit = if whole { 3000 } else { 1400 };
    let outcome = guest::command_on(kernel, &words, limit)
        .and_then(|cmd| run::run(cmd, Duration::from_secs(u64::from(limit) + 15)));
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return ctx.check("starting the guest", Err(why)),
    };
    let table = Table::read(release, &outcome.out);
    table.judge(ctx, suites);
    table.print();
    let whole =
        if outcome.ok() { Ok(()) } else { Err(format!("{outcome}\n{}", run::tail(&outcome.out, 40))) };
    ctx.check("the guest ran to its end", whole);
}

/// All that the guest, whose root is this machine's, finds there.
fn prepare(ctx: &Ctx<'_>, scratch: &Path) -> Result<(), String> {
    apt::ensure(NEEDS)?;
    pyverbs::unpack(scratch)?;
    let bin = scratch.join("bin");
    fs::create_dir_all(&bin).map_err(|e| format!("{}: {e}", bin.display()))?;
    for program in PROGRAMS {
        stage::system_program(&format!("kernel/{program}"), &bin.join(program))?;
    }
    for program in tools::PROGRAMS {
        stage::system_program(program, &bin.join(program))?;
    }
    for program in ["conformance", "flushes"] {
        fs::copy(ctx.stage.public.path().join("bin").join(program), bin.join(program))
            .map_err(|e| format!("{program}: {e}"))?;
    }
    Ok(())
}
