//! An idle process with an open device and a connected QP uses no CPU time.
use std::time::Duration;

use crate::{
    place::Place,
    report::{Ctx, Trial},
    run,
    trials::here,
};

pub const TRIALS: &[Trial] = &[Trial { name: "idle", limit: Duration::from_secs(60), run: idle }];

fn idle(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    check_idle(ctx, "one host", "127.0.0.1", &place, &place);
}

/// Two checks on a connected pair that has nothing to do.
pub fn check_idle(ctx: &mut Ctx<'_>, name: &str, host: &str, server: &Place, client: &Place) {
    match watch(host, server, client) {
        Err(why) => ctx.check(format!("{name}: two idle processes"), Err(why)),
        Ok([before, after]) => {
            let same = |a: [u64; 2], b: [u64; 2], what: &str| {
                if a == b { Ok(()) } else { Err(format!("{what} went from {a:?} to {b:?} in 10 s")) }
            };
            ctx.check(format!("{name}: no CPU ticks in 10 s"), same(before.ticks, after.ticks, "CPU ticks"));
            let woken = same(before.switches, after.switches, "context switches");
            ctx.check(format!("{name}: no thread woke up in 10 s"), woken);
        }
    }
}

/// What server and client have used so far.
struct Used {
    ticks: [u64; 2],
    switches: [u64; 2],
}

fn watch(host: &str, server: &Place, client: &Place) -> Result<[Used; 2], String> {
    let port = run::port().to_string();
    let mut server = run::spawn(server.command("/idle", ["server", host, &port]))?;
    let mut client = run::spawn(client.command("/idle", ["client", host, &port]))?;
    for side in [&mut server, &mut client] {
        side.says("idle", Duration::from_secs(10))?;
    }
    let ticks = |pid| run::cpu_ticks(pid).ok_or(format!("no /proc/{pid}/stat"));
    let used = || {
        let pids = [server.pid(), client.pid()];
        Ok::<_, String>(Used { ticks: [ticks(pids[0])?, ticks(pids[1])?], switches: pids.map(switches) })
    };
    // What the last message started may end: a second is granted before the count begins.
    std::thread::sleep(Duration::from_secs(1));
    let before = used()?;
    std::thread::sleep(Duration::from_secs(10));
    Ok([before, used()?])
}

/// Voluntary and other context switches of all threads.
fn switches(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .flat_map(|status| {
            let counts = status.lines().filter(|l| l.contains("ctxt_switches"));
            counts.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).collect::<Vec<_>>()
        })
        .sum()
}
