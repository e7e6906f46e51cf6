//! Judge: Open MPI over UCX's rc_v on urxe0: messages of all sizes, sums and one-sided accesses of two ranks give right results.
use std::time::Duration;

use crate::{
    apt,
    place::Place,
    report::{Ctx, Judge, Trial, twice},
    run, stage,
    trials::{here, view::under},
};

pub const TRIALS: &[Trial] = &[Trial { name: "mpi", limit: Duration::from_secs(150), run: mpi }];

const NEEDS: &[apt::Need] =
    &[("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev"), ("ucx_info", "ucx-utils")];

fn mpi(ctx: &mut Ctx<'_>) {
    if let Err(why) = apt::ensure(NEEDS) {
        return ctx.skip("mpirun", &why);
    }
    let program = ctx.stage.public.path().join("bin/exchange").display().to_string();
    let source = stage::root().join("c-tests/mpi/exchange.c").display().to_string();
    let built = run::run(
        run::command("mpicc", ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", &program, &source]),
        Duration::from_secs(60),
    );
    if let Err(why) = built.and_then(run::Outcome::success) {
        return ctx.check("mpicc", Err(why));
    }
    let place = here(ctx).with_env("UCX_NET_DEVICES", "urxe0:1").with_env("UCX_WARN_UNUSED_ENV_VARS", "n");
    let mut verdict = Judge::new("Open MPI".into());
    for (name, tls, more) in [
        ("messages and sums, rc_v", "rc_v,self", &[][..]),
        ("one-sided, rc_v", "rc_v,self", &["windows"]),
        ("messages and sums, ud_v", "ud_v,self", &[]),
    ] {
        let result = twice(name, || right(&place.clone().with_env("UCX_TLS", tls), &program, more));
        *(if result.is_ok() { &mut verdict.passed } else { &mut verdict.failed }) += 1;
        ctx.check(name, result);
    }
    // Nothing else than urxe0 has carried it.
    let without = place.with_env("UCX_TLS", "rc_v,self").with_env("ANYVERBS_SOFT", "0");
    let refused = match right(&without, &program, &[]) {
        Ok(()) => Err("it runs without urxe0, too".to_string()),
        Err(_) => Ok(()),
    };
    ctx.check("not without urxe0", refused);
    ctx.judge(verdict);
}

/// Both ranks say that all is right.
fn right(place: &Place, program: &str, more: &[&str]) -> Result<(), String> {
    // Only UCX, and only this host.
    let words = "mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx --mca osc ucx --mca btl ^openib,tcp,vader";
    let words: Vec<&str> = words.split(' ').chain([program]).chain(more.iter().copied()).collect();
    let outcome = run::run(under(place, &words), Duration::from_secs(60))?.success()?;
    let said = |rank| outcome.out.contains(&format!("rank {rank}: all right"));
    if said(0) && said(1) { Ok(()) } else { Err(format!("{outcome}")) }
}
