//! `cargo xtask bench`: latency and bandwidth over urxe0 beside their floors, all in one run, as medians; target/bench.json.
use std::{collections::BTreeMap, fs, time::Duration};

use crate::{
    place::{Place, User, Via},
    run, stage,
};

/// One line of the table: a figure, its floor, and the limit that their ratio must keep.
struct Row {
    what: &'static str,
    figure: &'static str,
    floor: &'static str,
    floor_is: &'static str,
    limit: Option<Limit>,
}

#[derive(Clone, Copy)]
enum Limit {
    /// figure / floor at most this.
    Most(f64),
    /// figure / floor at least this.
    Least(f64),
}

const fn row(
    what: &'static str,
    figure: &'static str,
    floor: &'static str,
    floor_is: &'static str,
    limit: Option<Limit>,
) -> Row {
    Row { what, figure, floor, floor_is, limit }
}

const ROWS: &[Row] = &[
    row("SEND 8 B, few completions", "send8_few_ns", "hop_ns", "cache-line hops", None),
    row("SEND 8 B, one way", "send8_ns", "hop_ns", "cache-line hops", Some(Limit::Most(3.0))),
    row("WRITE 8 B", "write8_ns", "pvw8_ns", "process_vm_writev", Some(Limit::Most(1.5))),
    row("READ 8 B", "read8_ns", "pvr8_ns", "process_vm_readv", None),
    row("WRITE 64 KiB", "write64k_gbs", "pvw64k_gbs", "process_vm_writev", None),
    row("READ 64 KiB", "read64k_gbs", "pvr64k_gbs", "process_vm_readv", None),
    row("SEND 64 KiB", "send64k_gbs", "memcpy64k_gbs", "memcpy", None),
    row("WRITE 1 MiB", "write1m_gbs", "pvw1m_gbs", "process_vm_writev", Some(Limit::Least(0.8))),
    row("READ 1 MiB", "read1m_gbs", "pvr1m_gbs", "process_vm_readv", Some(Limit::Least(0.8))),
    row("SEND 1 MiB", "send1m_gbs", "memcpy1m_gbs", "memcpy", None),
];

/// Runs five repetitions, or as many as the argument says.
pub fn bench(args: &[String]) -> Result<(), String> {
    let repetitions: u32 =
        args.first().map_or(Ok(5), |n| n.parse().map_err(|_| format!("not a number: {n}")))?;
    let stage = stage::stage()?;
    let place = Place::new(stage.lib.parent().ok_or("no folder")?, Via::Path, User::Me);
    let words = [run::port().to_string(), repetitions.to_string()];
    let limit = Duration::from_secs(60 + 20 * u64::from(repetitions));
    let outcome = run::run(place.command("/bench", words), limit)?.success()?;
    let medians = medians(&outcome.out);
    let get = |name: &str| medians.get(name).copied().ok_or(format!("the program did not print {name}"));
    println!(
        "medians of {repetitions} interleaved repetitions, one run, each process on a core of its own\n"
    );
    println!("{:<26} {:>12} {:>12} {:>8}  floor", "", "measured", "floor", "ratio");
    let mut short = 0;
    for row in ROWS {
        let (figure, floor) = (get(row.figure)?, get(row.floor)?);
        let ratio = figure / floor;
        let unit = if row.figure.ends_with("_ns") { "ns" } else { "GB/s" };
        let verdict = match row.limit {
            None => String::new(),
            Some(limit) => {
                let (kept, text) = match limit {
                    Limit::Most(most) => (ratio <= most, format!("at most {most}")),
                    Limit::Least(least) => (ratio >= least, format!("at least {least}")),
                };
                short += usize::from(!kept);
                format!("   {text}: {}", if kept { "pass" } else { "SHORT" })
            }
        };
        println!(
            "{:<26} {:>12} {:>12} {ratio:>8.2}  {}{verdict}",
            row.what,
            format!("{figure:.2} {unit}"),
            format!("{floor:.2} {unit}"),
            row.floor_is
        );
    }
    let json: Vec<String> = medians.iter().map(|(name, value)| format!("  \"{name}\": {value:.4}")).collect();
    let file = stage::target().join("bench.json");
    fs::write(&file, format!("{{\n{}\n}}\n", json.join(",\n")))
        .map_err(|e| format!("{}: {e}", file.display()))?;
    println!("\n{} figures in {}; {short} short of their limit", medians.len(), file.display());
    Ok(())
}

/// The median of each name's values; `hop_ns` is printed twice a repetition.
fn medians(text: &str) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(' ')
            && let Ok(value) = value.trim().parse()
        {
            all.entry(name.to_string()).or_default().push(value);
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    all.into_iter().map(|(name, values)| (name, median(values))).collect()
}
