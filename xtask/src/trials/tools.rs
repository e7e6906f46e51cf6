//! `ibv_devices`, `ibv_devinfo` and `ibv_asyncwatch` show a sane urxe0.
use std::{process::Command, time::Duration};

use crate::{
    place::Place,
    report::{Ctx, Trial},
    run,
    trials::four_ways,
};

const LIMIT: Duration = Duration::from_secs(10);

pub const TRIALS: &[Trial] = &[Trial { name: "tools", limit: Duration::from_secs(120), run: tools }];

fn tools(ctx: &mut Ctx<'_>) {
    for place in four_ways(ctx) {
        let label = place.label();
        let shows = |cmd: Command, needles: &[&str]| {
            let outcome = run::run(cmd, LIMIT)?.success()?;
            match needles.iter().find(|n| !outcome.out.contains(**n)) {
                Some(needle) => Err(format!("no {needle:?} in: {outcome}")),
                None if !outcome.err.is_empty() => Err(format!("speaks on stderr: {outcome}")),
                None => Ok(()),
            }
        };
        let none: [&str; 0] = [];
        ctx.check(
            format!("ibv_devices, {label}"),
            shows(place.command("ibv_devices", none), &["node GUID", "urxe0"]),
        );
        ctx.check(
            format!("ibv_devinfo, {label}"),
            shows(
                place.command("ibv_devinfo", none),
                &[
                    "hca_id:\turxe0",
                    "InfiniBand (0)",
                    "phys_port_cnt:",
                    "PORT_ACTIVE (4)",
                    "4096 (5)",
                    "Ethernet",
                ],
            ),
        );
        ctx.check(
            format!("ibv_devinfo -v, {label}"),
            shows(
                place.command("ibv_devinfo", ["-v"]),
                &[
                    "max_mr_size:",
                    "max_srq:",
                    "atomic_cap:",
                    "num_comp_vectors:",
                    "GID[  0]:",
                    "RoCE v2",
                    "odp",
                ],
            ),
        );
        ctx.check(
            format!("ibv_devinfo -l, {label}"),
            shows(place.command("ibv_devinfo", ["-l"]), &["1 HCA found:", "\turxe0"]),
        );
        ctx.check(
            format!("ibv_devinfo -d urxe0 -i 1, {label}"),
            shows(place.command("ibv_devinfo", ["-d", "urxe0", "-i", "1"]), &["urxe0"]),
        );
        ctx.check(
            format!("ibv_devinfo -d nosuch fails, {label}"),
            fails(place.command("ibv_devinfo", ["-d", "nosuch"]), 255),
        );
        ctx.check(format!("ibv_asyncwatch, {label}"), watches(&place));
    }
}

/// Exits with exactly `code`.
fn fails(cmd: Command, code: i32) -> Result<(), String> {
    let outcome = run::run(cmd, LIMIT)?;
    if outcome.code == Some(code) { Ok(()) } else { Err(format!("not exit code {code}: {outcome}")) }
}

/// `ibv_asyncwatch` prints its line, then waits without using the processor, until it is stopped.
fn watches(place: &Place) -> Result<(), String> {
    let none: [&str; 0] = [];
    let mut watch = run::spawn(place.command("ibv_asyncwatch", none))?;
    watch.says("urxe0: async event FD ", LIMIT)?;
    if watch.ended(Duration::from_millis(300)) {
        return Err(format!("did not wait: {}", watch.finish(LIMIT)));
    }
    watch.signal(libc::SIGTERM);
    let outcome = watch.finish(LIMIT);
    if outcome.signal == Some(libc::SIGTERM) {
        Ok(())
    } else {
        Err(format!("not stopped by SIGTERM: {outcome}"))
    }
}
