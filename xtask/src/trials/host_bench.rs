//! The C programs of `bench` measure what they say, once and briefly: no figure is judged here.
use std::{collections::BTreeSet, time::Duration};

use crate::{
    place::Place,
    report::{Ctx, Trial},
    run,
    trials::here,
};

pub const TRIALS: &[Trial] =
    &[Trial { name: "host-bench", limit: Duration::from_secs(200), run: host_bench }];

/// Program, arguments, and the names that it prints.
const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "bench",
        "1 2",
        "hop_ns send8_ns send8_few_ns pvw8_ns write8_ns pvr8_ns read8_ns memcpy64k_gbs pvw64k_gbs write64k_gbs pvr64k_gbs \
         read64k_gbs memcpy1m_gbs pvw1m_gbs write1m_gbs pvr1m_gbs read1m_gbs send64k_gbs send1m_gbs pvw64k_whole_gbs pvr64k_whole_gbs pvw1m_whole_gbs pvr1m_whole_gbs",
    ),
    ("floors", "1 2", "round_ns eventfd_ns shared1m_gbs"),
    ("atomics", "1 2", "fadd_polling_ns fadd_idle_ns"),
    (
        "mapped",
        "1 2",
        "memfd_write8_ns memfd_write1m_gbs buffer_write8_ns buffer_write1m_gbs dm_write8_ns dm_write1m_gbs",
    ),
    ("many", "1 2", "qp1_ns qp256_ns"),
    ("rate", "1 200 1 polls", "mps pairs"),
    ("rate", "1 200 3 waits", "mps pairs"),
    (
        "setup",
        "10 30",
        "reg1m_few_ns cq_few_ns qp_few_ns connect_few_ns first_few_ns reg1m_many_ns cq_many_ns qp_many_ns connect_many_ns \
         first_many_ns",
    ),
];

fn host_bench(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    for (program, args, names) in PROGRAMS {
        ctx.check(format!("{program} {args}"), figures(&place, program, args, names));
    }
    ctx.check("count", count(&place));
}

/// Each name is printed with a number above 0, and nothing else is.
fn figures(place: &Place, program: &str, args: &str, names: &str) -> Result<(), String> {
    let command = place.command(&format!("/{program}"), args.split(' '));
    let out = run::run(command, Duration::from_secs(60))?.success()?.out;
    let mut printed = BTreeSet::new();
    for line in out.lines() {
        let (name, value) = line.split_once(' ').ok_or(format!("no figure: {line}"))?;
        // Where there is other work, the time of a rate may be over before anything is sent.
        let least = if program == "rate" { 0.0 } else { f64::MIN_POSITIVE };
        if !value.parse::<f64>().is_ok_and(|value| value >= least) {
            return Err(format!("no number: {line}"));
        }
        printed.insert(name);
    }
    let wanted: BTreeSet<&str> = names.split_whitespace().collect();
    if printed == wanted { Ok(()) } else { Err(format!("{printed:?} instead of {wanted:?}")) }
}

/// Without a counter of instructions.
fn count(place: &Place) -> Result<(), String> {
    let port = run::port().to_string();
    let command = |role: &str| place.command("/count", [role, port.as_str(), "50"]);
    let server = run::spawn(command("server"))?;
    run::run(command("client"), Duration::from_secs(20))?.success()?;
    server.finish(Duration::from_secs(5)).success().map(drop)
}
