//! qperf: its RDMA tests, one server process for all, on one host and between two. Each must end with a figure.
//!
//! qperf addresses by LID and without GRH, so the port is made to look like InfiniBand's; two hosts are given LIDs.
use std::time::Duration;

use crate::{
    place::{Ends, Place},
    report::{Ctx, Judge, Trial, twice},
    run::{self, Child},
    trials::{
        here,
        lanes::{LANES, Lane, beside, lanes},
        netns::{CLIENT, CLIENT_6, SERVER, SERVER_6},
        nothing_left, traces,
    },
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "qperf", limit: Duration::from_secs(300), run: qperf },
    Trial { name: "qperf-wire", limit: Duration::from_secs(300), run: two_hosts },
];

const LIMIT: Duration = Duration::from_secs(30);

/// Test, options, and the figure that it ends with.
type Test = (&'static str, &'static str, &'static str);

/// Few can count (`-n`); the others take a second. They wait
/// for events; with -cp1 they poll.
const TESTS: &[Test] = &[
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
    let ends = Ends::both(&here(ctx).with_env("ANYVERBS_LINK_LAYER", "infiniband"));
    let (mut server, port) = match listen(&ends.server) {
        Ok(server) => server,
        Err(why) => return ctx.check("server", Err(why)),
    };
    let mut verdict = Judge::new("qperf".into());
    for (test, options, figure) in TESTS {
        let name = format!("qperf {options} {test}");
        let run = || one(&ends, port, test, options).and_then(|text| plausible(&text, figure));
        ctx.case(&mut verdict, &name, twice(&name, run));
    }
    for test in REFUSED {
        match one(&ends, port, test, "-t 1") {
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
    ctx.check("the server ends when told", quit(&ends, port, server));
    ctx.judge(verdict);
    ctx.check("leaves nothing behind", nothing_left(&before));
}

/// Each test over one of the lanes, which take turns.
fn two_hosts(ctx: &mut Ctx<'_>) {
    let Some(mut lanes) = lanes(ctx) else { return };
    let mut servers = Vec::new();
    for (n, lane) in lanes.iter_mut().enumerate() {
        let [server, client] = if n & 2 == 0 { [SERVER, CLIENT] } else { [SERVER_6, CLIENT_6] };
        let lids = format!("1={server},2={client}");
        for place in [&mut lane.ends.server, &mut lane.ends.client] {
            *place =
                place.clone().with_env("ANYVERBS_LINK_LAYER", "infiniband").with_env("ANYVERBS_LIDS", &lids);
        }
        match listen(&lane.ends.server) {
            Ok(server) => servers.push(server),
            Err(why) => return ctx.check(format!("server, {}", lane.name), Err(why)),
        }
    }
    let ports: Vec<u16> = servers.iter().map(|(_, port)| *port).collect();
    let mut verdict = Judge::new("qperf, two hosts".into());
    let jobs = TESTS.iter().enumerate().map(|(at, test)| (at % LANES, (at % LANES, test)));
    let job = |lane: &Lane, &(n, (test, options, figure)): &(usize, &Test)| {
        let options = within(lane.ends.mtu, test, options);
        let run = || one(&lane.ends, ports[n], test, &options).and_then(|text| plausible(&text, figure));
        twice(&format!("qperf {options} {test}, {}", lane.name), run)
    };
    beside(&lanes, jobs, job, |lane, (_, (test, options, _)), result| {
        ctx.case(&mut verdict, format!("qperf {options} {test}, {}", lane.name), result);
    });
    for (lane, (server, port)) in lanes.iter().zip(servers) {
        ctx.check(format!("the server ends when told, {}", lane.name), quit(&lane.ends, port, server));
    }
    ctx.judge(verdict);
}

/// The options, with which nothing is larger than the path allows: qperf takes a path MTU and datagrams of 2048 bytes.
fn within(mtu: u32, test: &str, options: &str) -> String {
    let size = if test.starts_with("ud_") && test.ends_with("bw") && mtu < 2048 {
        format!(" -m {mtu}")
    } else {
        String::new()
    };
    format!("{options} -mt {}{size}", mtu.min(2048))
}

/// A server that listens, and its port.
fn listen(place: &Place) -> Result<(Child, u16), String> {
    let port = run::port();
    let mut server = run::spawn(place.command("qperf", ["-lp".to_string(), port.to_string()]))?;
    server.listens(port, LIMIT)?;
    Ok((server, port))
}

fn quit(ends: &Ends, port: u16, server: Child) -> Result<(), String> {
    one(ends, port, "quit", "")?;
    server.finish(LIMIT).success().map(drop)
}

fn one(ends: &Ends, port: u16, test: &str, options: &str) -> Result<String, String> {
    let port = port.to_string();
    let words = ["-lp", &port, ends.host].into_iter().chain(options.split_whitespace()).chain([test]);
    Ok(run::run(ends.client.command("qperf", words), LIMIT)?.success()?.out)
}

/// `text` has the figure, above nothing.
pub fn plausible(text: &str, figure: &str) -> Result<(), String> {
    let value = text.lines().filter_map(|line| line.split_once('=')).find(|(name, _)| name.trim() == figure);
    let number = value.and_then(|(_, value)| value.split_whitespace().next()?.parse::<f64>().ok());
    match number {
        Some(number) if number > 0.0 => Ok(()),
        _ => Err(format!("no {figure} above 0 in: {text}")),
    }
}
