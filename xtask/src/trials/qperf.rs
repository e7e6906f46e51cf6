//! qperf: its RDMA tests, one server process for all. Each must end with a figure.
//!
//! qperf addresses by LID and without GRH, so the port is made to look like InfiniBand's.
use std::time::Duration;

use crate::{
    place::Place,
    report::{Ctx, Judge, Trial, twice},
    run,
    trials::{here, nothing_left, traces},
};

pub const TRIALS: &[Trial] = &[Trial { name: "qperf", limit: Duration::from_secs(300), run: qperf }];

const LIMIT: Duration = Duration::from_secs(30);

/// Test, options, and the figure that it ends with. Few can count (`-n`); the others take a second. They wait
/// for events; with -cp1 they poll.
const TESTS: &[(&str, &str, &str)] = &[
    ("rc_lat", "-t 1", "latency"),
    ("rc_lat", "-t 1 -m 64K", "latency"),
    ("rc_lat", "-t 1 -cp1", "latency"),
    ("rc_bw", "-n 20000", "bw"),
    ("rc_bw", "-t 1", "bw"),
    ("rc_bw", "-t 1 -m 1M", "bw"),
    ("rc_bw", "-t 1 -cp1", "bw"),
    ("rc_bi_bw", "-t 1", "bw"),
    ("uc_lat", "-t 1", "latency"),
    ("uc_bw", "-t 1", "recv_bw"),
    ("uc_bi_bw", "-t 1", "recv_bw"),
    ("uc_lat", "-t 1 -cp1", "latency"),
    ("ud_lat", "-t 1", "latency"),
    ("ud_lat", "-t 1 -cp1", "latency"),
    ("ud_bw", "-t 1", "recv_bw"),
    ("ud_bi_bw", "-t 1", "recv_bw"),
    ("rc_rdma_read_lat", "-t 1", "latency"),
    ("rc_rdma_read_bw", "-t 1", "bw"),
    ("rc_rdma_read_bw", "-t 1 -nr 16", "bw"),
    ("rc_rdma_write_lat", "-t 1", "latency"),
    ("rc_rdma_write_bw", "-t 1", "bw"),
    ("rc_rdma_write_poll_lat", "-t 1", "latency"),
    ("uc_rdma_write_lat", "-t 1", "latency"),
    ("uc_rdma_write_bw", "-t 1", "recv_bw"),
    ("uc_rdma_write_poll_lat", "-t 1", "latency"),
    ("rc_compare_swap_mr", "-t 1", "msg_rate"),
    ("rc_fetch_add_mr", "-t 1", "msg_rate"),
    ("ver_rc_compare_swap", "-t 1", "msg_rate"),
    ("ver_rc_fetch_add", "-t 1", "msg_rate"),
];

/// Listed in qperf's help, but Debian's build does not have them.
const REFUSED: &[&str] = &["xrc_lat", "xrc_bw", "xrc_bi_bw"];

fn qperf(ctx: &mut Ctx<'_>) {
    let before = traces();
    let place = here(ctx).with_env("ANYVERBS_LINK_LAYER", "infiniband");
    let port = run::port();
    let listen = ["-lp".to_string(), port.to_string()];
    let server = run::spawn(place.command("qperf", &listen));
    let mut server = match server.and_then(|mut s| s.listens(port, LIMIT).map(|()| s)) {
        Ok(server) => server,
        Err(why) => return ctx.check("server", Err(why)),
    };
    let mut verdict = Judge::new("qperf".into());
    for (test, options, figure) in TESTS {
        let name = format!("qperf {options} {test}");
        let run = || one(&place, port, test, options).and_then(|text| plausible(&text, figure));
        ctx.case(&mut verdict, &name, twice(&name, run));
    }
    for test in REFUSED {
        match one(&place, port, test, "-t 1") {
            Err(why) if why.contains("bad test") => {
                verdict.skip("not in Debian's build");
                ctx.skip(format!("qperf {test}"), "Debian's qperf is built without it: bad test");
            }
            other => ctx.case(&mut verdict, format!("qperf {test}"), Err(format!("not refused: {other:?}"))),
        }
    }
    ctx.check(
        "the server lives through all",
        if server.ended(Duration::ZERO) { Err("it ended".into()) } else { Ok(()) },
    );
    let quit = one(&place, port, "quit", "");
    ctx.check("the server ends when told", quit.and_then(|_| server.finish(LIMIT).success().map(drop)));
    ctx.judge(verdict);
    ctx.check("leaves nothing behind", nothing_left(&before));
}

fn one(place: &Place, port: u16, test: &str, options: &str) -> Result<String, String> {
    let port = port.to_string();
    let words = ["-lp", &port, "127.0.0.1"].into_iter().chain(options.split_whitespace()).chain([test]);
    Ok(run::run(place.command("qperf", words), LIMIT)?.success()?.out)
}

/// `text` has the figure, above nothing.
fn plausible(text: &str, figure: &str) -> Result<(), String> {
    let value = text.lines().filter_map(|line| line.split_once('=')).find(|(name, _)| name.trim() == figure);
    let number = value.and_then(|(_, value)| value.split_whitespace().next()?.parse::<f64>().ok());
    match number {
        Some(number) if number > 0.0 => Ok(()),
        _ => Err(format!("no {figure} above 0 in: {text}")),
    }
}
