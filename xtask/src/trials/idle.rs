//! An idle process with an open device and a connected QP uses no CPU time.
use std::{collections::BTreeMap, time::Duration};

use crate::{
    place::Place,
    report::{Ctx, Trial},
    run,
    trials::here,
};

pub const TRIALS: &[Trial] = &[Trial { name: "idle", limit: Duration::from_secs(90), run: idle }];

fn idle(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    check_idle(ctx, "one host", "127.0.0.1", &place, &place);
}

/// Two checks on a connected pair that has nothing to do. What happens in one span only came from elsewhere, as from a machine
/// whose addresses change: it is printed.
pub fn check_idle(ctx: &mut Ctx<'_>, name: &str, host: &str, server: &Place, client: &Place) {
    match watch(host, server, client) {
        Err(why) => ctx.check(format!("{name}: two idle processes"), Err(why)),
        Ok(spans) => {
            for (n, what) in ["no CPU ticks in 10 s", "no thread woke up in 10 s"].into_iter().enumerate() {
                let seen: Vec<&str> = spans.iter().map(|span| &*span[n]).filter(|s| !s.is_empty()).collect();
                let result = if seen.len() == SPANS { Err(seen.join("; then ")) } else { Ok(()) };
                if result.is_ok() {
                    seen.iter().for_each(|seen| println!("  {name}: not {what}, once: {seen}"));
                }
                ctx.check(format!("{name}: {what}"), result);
            }
        }
    }
}

const SPAN: Duration = Duration::from_secs(10);
/// Spans that are watched while something happens in each.
const SPANS: usize = 2;
/// What the last message has started has ended when nothing has happened for so long.
const QUIET: Duration = Duration::from_secs(1);
const UNTIL_QUIET: Duration = Duration::from_secs(20);

/// What server and client have used so far.
#[derive(PartialEq)]
struct Used {
    ticks: [u64; 2],
    /// By thread.
    switches: [BTreeMap<String, u64>; 2],
}

impl Used {
    fn of(pids: [u32; 2]) -> Result<Used, String> {
        let ticks = |pid| run::cpu_ticks(pid).ok_or(format!("no /proc/{pid}/stat"));
        Ok(Used { ticks: [ticks(pids[0])?, ticks(pids[1])?], switches: pids.map(switches) })
    }

    /// Whose CPU ticks, and which threads' switches, are others than `before`.
    fn since(&self, before: &Used) -> [String; 2] {
        let (mut ticks, mut threads) = (Vec::new(), Vec::new());
        for (n, side) in ["server", "client"].into_iter().enumerate() {
            if self.ticks[n] != before.ticks[n] {
                ticks.push(format!("{side} {} to {}", before.ticks[n], self.ticks[n]));
            }
            for (name, now) in &self.switches[n] {
                let then = before.switches[n].get(name).copied().unwrap_or(0);
                if then != *now {
                    threads.push(format!("{side}'s {name} switched {then} to {now} times"));
                }
            }
        }
        [ticks.join(", "), threads.join(", ")]
    }
}

fn watch(host: &str, server: &Place, client: &Place) -> Result<Vec<[String; 2]>, String> {
    let port = run::port().to_string();
    let mut server = run::spawn(server.command("/idle", ["server", host, &port]))?;
    let mut client = run::spawn(client.command("/idle", ["client", host, &port]))?;
    for side in [&mut server, &mut client] {
        side.says("idle", Duration::from_secs(10))?;
    }
    let pids = [server.pid(), client.pid()];
    let mut last = Used::of(pids)?;
    let quiet = run::until(UNTIL_QUIET, || {
        std::thread::sleep(QUIET);
        let before = Used::of(pids).map(|now| std::mem::replace(&mut last, now));
        before.is_ok_and(|before| before == last)
    });
    if !quiet {
        return Err(format!("never quiet for {QUIET:?} within {UNTIL_QUIET:?}"));
    }
    let mut spans: Vec<[String; 2]> = Vec::new();
    while spans.len() < SPANS && spans.last().is_none_or(|last| last.iter().any(|s| !s.is_empty())) {
        std::thread::sleep(SPAN);
        let now = Used::of(pids)?;
        spans.push(now.since(&last));
        last = now;
    }
    Ok(spans)
}

/// Voluntary and other context switches of each thread.
fn switches(pid: u32) -> BTreeMap<String, u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let counts = tasks.filter_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let name = status.lines().find_map(|l| l.strip_prefix("Name:"))?.trim();
        let counts = status.lines().filter(|l| l.contains("ctxt_switches"));
        let sum = counts.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
        Some((format!("{name} ({})", task.file_name().to_string_lossy()), sum))
    });
    counts.collect()
}
