//! The guest's half of `bench wire`: perftest between two urxe0 beside perftest between two devices of the kernel's rxe,
//! in one boot. The processor is emulated: ratios only.
use std::time::Duration;

use super::table::{Judged, Limit, Row, Samples, row};
use crate::{
    apt, guest, run,
    stage::{Stage, root},
};

const SLOWER: Option<Limit> = Some(Limit::Most(1.0));
const FASTER: Option<Limit> = Some(Limit::Least(1.0));

/// "Latency and bandwidth at least as good."
const ROWS: [Row<'_>; 9] = [
    row("guest: SEND 64 B one way", "guest.urxe_send64_ns", "guest.rxe_send64_ns", "kernel rxe", SLOWER),
    row("guest: SEND 64 B one way", "guest.urxe_send64_ns", "guest.udp_send64_ns", "UDP echo", None),
    row("guest: UDP echo", "guest.udp_send64_ns", "guest.rxe_send64_ns", "kernel rxe", None),
    row("guest: WRITE 64 KiB", "guest.urxe_write64k_gbs", "guest.rxe_write64k_gbs", "kernel rxe", FASTER),
    row("guest: WRITE 1 MiB", "guest.urxe_write1m_gbs", "guest.rxe_write1m_gbs", "kernel rxe", FASTER),
    row("guest: SEND 64 KiB", "guest.urxe_send64k_gbs", "guest.rxe_send64k_gbs", "kernel rxe", FASTER),
    row("guest: SEND 1 MiB", "guest.urxe_send1m_gbs", "guest.rxe_send1m_gbs", "kernel rxe", FASTER),
    row("guest: READ 64 KiB", "guest.urxe_read64k_gbs", "guest.rxe_read64k_gbs", "kernel rxe", FASTER),
    row("guest: READ 1 MiB", "guest.urxe_read1m_gbs", "guest.rxe_read1m_gbs", "kernel rxe", FASTER),
];

/// Adds the figures of `repetitions` rounds in one guest.
pub fn measure(stage: &Stage, repetitions: u32, samples: &mut Samples) -> Result<(), String> {
    apt::ensure(&[("ib_send_bw", "perftest")])?;
    let script = root().join("xtask/guest-bench.sh").display().to_string();
    let lib = stage.public.path().join("lib").display().to_string();
    let words = ["bash".into(), script, lib, repetitions.to_string()];
    // A round takes half a minute where nothing else runs.
    let seconds = 200 + 150 * repetitions;
    let limit = Duration::from_secs(u64::from(seconds) + 30);
    let outcome = run::run(guest::command(&words, seconds)?, limit)?.success()?;
    let missing: Vec<&str> =
        outcome.out.lines().skip_while(|line| !line.starts_with("no figure")).take(12).collect();
    if !missing.is_empty() {
        return Err(missing.join("\n"));
    }
    if !outcome.out.contains("bench done") {
        return Err(format!("{outcome}"));
    }
    samples.read("guest.", &outcome.out);
    Ok(())
}

/// The rows of what was measured.
pub fn judge(samples: &Samples) -> Result<Vec<Judged>, String> {
    samples.judge(&ROWS)
}
