//! An idle process with an open device and a connected QP uses no CPU time.
use std::time::Duration;

use crate::{
    report::{Ctx, Trial},
    run,
    trials::here,
};

pub const TRIALS: &[Trial] = &[Trial { name: "idle", limit: Duration::from_secs(60), run: idle }];

fn idle(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    let port = run::port().to_string();
    let result = (|| {
        let mut server = run::spawn(place.command("/idle", ["server", "127.0.0.1", &port]))?;
        let mut client = run::spawn(place.command("/idle", ["client", "127.0.0.1", &port]))?;
        for side in [&mut server, &mut client] {
            side.says("idle", Duration::from_secs(10))?;
        }
        // What the last message started may end: a second is granted before the count begins.
        std::thread::sleep(Duration::from_secs(1));
        let ticks = |pid| run::cpu_ticks(pid).ok_or(format!("no /proc/{pid}/stat"));
        let before = [ticks(server.pid())?, ticks(client.pid())?];
        let switches = [switches(server.pid()), self::switches(client.pid())];
        std::thread::sleep(Duration::from_secs(10));
        let after = [ticks(server.pid())?, ticks(client.pid())?];
        let woken = [self::switches(server.pid()), self::switches(client.pid())];
        Ok::<_, String>((before, after, switches, woken))
    })();
    match result {
        Err(why) => ctx.check("two idle processes", Err(why)),
        Ok((before, after, switches, woken)) => {
            let same = |a: [u64; 2], b: [u64; 2], what: &str| {
                if a == b { Ok(()) } else { Err(format!("{what} went from {a:?} to {b:?} in 10 s")) }
            };
            ctx.check("no CPU ticks in 10 s", same(before, after, "CPU ticks"));
            ctx.check("no thread woke up in 10 s", same(switches, woken, "context switches"));
        }
    }
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
