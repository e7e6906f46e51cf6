//! Many runs: two hundred in a row, and thirty-two pairs at once.
use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    pingpong::Run,
    report::{Ctx, Trial},
    trials::{here, nothing_left, traces},
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "rc-200-in-a-row", limit: Duration::from_secs(240), run: in_a_row },
    Trial { name: "rc-32-pairs", limit: Duration::from_secs(90), run: at_once },
];

fn in_a_row(ctx: &mut Ctx<'_>) {
    let (place, before) = (here(ctx), traces());
    let bad: Vec<String> = (0..200)
        .filter_map(|i| {
            let result = Run::new("ibv_rc_pingpong", &place, &place, "-g 0 -c").good();
            result.err().map(|why| format!("run {i}: {why}"))
        })
        .take(3)
        .collect();
    let check = if bad.is_empty() { Ok(()) } else { Err(bad.join("\n  ")) };
    ctx.check("200 runs of ibv_rc_pingpong -c", check);
    ctx.check("leave nothing behind", nothing_left(&before));
}

fn at_once(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    let start = Instant::now();
    let limit = Duration::from_secs(60);
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let pairs: Vec<_> = (0..32)
            .map(|_| {
                scope.spawn(|| {
                    Run::new("ibv_rc_pingpong", &place, &place, "-g 0 -c").within(limit).good().map(drop)
                })
            })
            .collect();
        pairs.into_iter().map(|pair| pair.join().unwrap_or_else(|_| Err("panicked".into()))).collect()
    });
    for (i, result) in results.into_iter().enumerate() {
        ctx.check(format!("pair {i} of 32"), result);
    }
    let took = start.elapsed();
    println!("  32 pairs at once took {:.1} s", took.as_secs_f64());
    ctx.check("within 60 s", if took <= limit { Ok(()) } else { Err(format!("{took:?}")) });
}
