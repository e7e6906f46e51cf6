//! Latency and bandwidth between two processes of this host, each on a core of its own; target/bench.json.
use std::time::Duration;

use super::table::{Limit, Row, Samples, row};
use crate::{
    place::{Place, User, Via},
    run, stage,
};

const ROWS: &[Row<'_>] = &[
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

/// Runs the repetitions and shows the table.
pub fn bench(repetitions: u32) -> Result<(), String> {
    let stage = stage::stage()?;
    let place = Place::new(stage.lib.parent().ok_or("no folder")?, Via::Path, User::Me);
    let words = [run::port().to_string(), repetitions.to_string()];
    let limit = Duration::from_secs(60 + 20 * u64::from(repetitions));
    let outcome = run::run(place.command("/bench", words), limit)?.success()?;
    let mut samples = Samples::default();
    samples.read("", &outcome.out);
    println!(
        "medians of {repetitions} interleaved repetitions, one run, each process on a core of its own\n"
    );
    let short = samples.show(ROWS)?;
    let file = stage::target().join("bench.json");
    samples.write(&file)?;
    println!("\n{} figures in {}; {short} short of their limit", samples.len(), file.display());
    Ok(())
}
