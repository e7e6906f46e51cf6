//! Two and three hosts: what our own programs check over RoCEv2 on UDP, also where packets are lost.
use std::{fmt, thread, time::Duration};

use super::{
    idle,
    lanes::{LANES, Lane, beside, lanes},
    netns::{CLIENT, Net, gid_index},
    pair_at, perftest,
};
use crate::{
    pingpong::Run,
    place::Ends,
    report::{Ctx, Trial, twice},
    run,
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "wire", limit: Duration::from_secs(200), run: wire },
    Trial { name: "wire-mesh", limit: Duration::from_secs(200), run: mesh },
    Trial { name: "wire-parting", limit: Duration::from_secs(200), run: parting },
    Trial { name: "wire-loss", limit: Duration::from_secs(400), run: loss },
];

const MINUTE: Duration = Duration::from_secs(60);

/// A program of ours whose two sides find each other at an address.
type Checked = (&'static str, &'static [&'static str]);

const CHECKED: &[Checked] = &[
    ("/rdma", &[]),
    ("/order", &["500"]),
    ("/unmapped", &["read"]),
    ("/unmapped", &["write"]),
    ("/unmapped", &["send"]),
    ("/unmapped", &["read-own"]),
    ("/unmapped", &["write-own"]),
    ("/unmapped", &["send-own"]),
];

fn wire(ctx: &mut Ctx<'_>) {
    let Some(lanes) = lanes(ctx) else { return };
    let jobs = (0..lanes.len()).flat_map(|n| CHECKED.iter().map(move |program| (n, program)));
    let job = |lane: &Lane, (program, more): &&Checked| checked(&lane.ends, program, more);
    beside(&lanes, jobs, job, |lane, (program, more), result| {
        ctx.check(format!("{program} {}, {}", more.join(" "), lane.name), result);
    });
    let ends = &lanes[0].ends;
    idle::check_idle(ctx, "two hosts", ends.host, &ends.server, &ends.client);
}

fn checked(ends: &Ends, program: &str, more: &[&str]) -> Result<(), String> {
    let [server, client] = [0, 1].map(|side| {
        let place = if side == 0 { &ends.server } else { &ends.client };
        place.clone().with_env("C_TESTS_GID", &ends.gids[side].to_string())
    });
    pair_at(ends.host, program, &server, &client, more, MINUTE)
}

/// How a program learns of its last message, and how it then ends.
const LEARNS: [&str; 4] = ["poll", "nap", "ninth", "quiet"];
const ENDS: [&str; 4] = ["destroy", "exit", "quit", "reset"];

/// Whoever has a message leaves at once: its sender must hear that it has come. Also where several processes share the port, of
/// which those that leave have packets of others: what comes for those that stay, as the ends of pairs the other way.
fn parting(ctx: &mut Ctx<'_>) {
    let Some(lanes) = lanes(ctx) else { return };
    let ways = LEARNS.iter().flat_map(|how| ENDS.map(|end| (*how, end)));
    let jobs = ways.enumerate().flat_map(|(i, way)| {
        let n = (i + i / LANES) % LANES;
        [n, LANES - 1 - n].map(|n| (n, way))
    });
    let job = |lane: &Lane, (how, end): &(&str, &str)| checked(&lane.ends, "/parting", &[how, end, "100"]);
    beside(&lanes, jobs, job, |lane, (how, end), result| {
        ctx.check(format!("/parting {how} {end}, {}", lane.name), result);
    });
    let jobs = (0..LANES).flat_map(|n| ENDS[..2].iter().map(move |end| (n, *end)));
    let job = |lane: &Lane, end: &&str| crossed(&lane.ends, end);
    beside(&lanes, jobs, job, |lane, end, result| {
        ctx.check(format!("/parting poll {end}, two pairs each way, {}", lane.name), result);
    });
}

fn crossed(ends: &Ends, end: &str) -> Result<(), String> {
    let Ends { server, client, gids, mtu, .. } = ends.clone();
    let back = Ends { server: client, client: server, host: CLIENT, gids: [gids[1], gids[0]], mtu };
    thread::scope(|scope| {
        let pair = |ends| scope.spawn(move || checked(ends, "/parting", &["poll", end, "100"]));
        let pairs = [ends, &back, ends, &back].map(pair);
        let results = pairs.map(|pair| pair.join().map_err(|_| "a thread of ours panicked".to_string())?);
        results.into_iter().collect()
    })
}

/// How the addresses of hosts begin, that of the first ends with 1.
const IPV4: &str = "10.77.0.";
const IPV6: &str = "fd77::";

/// Three hosts, each with 64 queue pairs to the others, all busy at once.
fn mesh(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("three namespaces", "needs root");
    }
    let net = match Net::of(3) {
        Ok(net) => net,
        Err(why) => return ctx.check("making three namespaces", Err(why)),
    };
    for (mtu, family, rounds, lost) in
        [(1500, IPV4, 60, 0), (9000, IPV6, 60, 0), (1500, IPV6, 30, 1), (9000, IPV4, 30, 5)]
    {
        let name = format!("64 queue pairs each, MTU {mtu}, {family}n, {lost} % lost");
        let ready = net.set_mtu(mtu).and_then(|()| if lost > 0 { net.lose(lost) } else { Ok(()) });
        ctx.check(&name, ready.and_then(|()| all_to_all(ctx, &net, family, rounds, lost == 0)));
        if lost > 0 {
            ctx.check(format!("{name}: packets were dropped"), net.dropped().map(drop));
        }
    }
}

/// Runs the program on every host; prints what came of what is not reliable where packets are lost.
fn all_to_all(ctx: &Ctx<'_>, net: &Net, family: &str, rounds: u32, exact: bool) -> Result<(), String> {
    let hosts: Vec<String> = (1..=net.names.len()).map(|n| format!("{IPV4}{n}")).collect();
    let port = run::port();
    let mode = if exact { "exact" } else { "may-lose" };
    let start = |me: usize| {
        let args = format!("{port} {rounds} {mode} {me} {}", hosts.join(" "));
        let place = net.place(ctx.stage, me);
        let gid = gid_index(&place, &format!("{family}{}", me + 1))?;
        let place = place.with_env("C_TESTS_GID", &gid.to_string());
        run::spawn(place.command("/mesh", args.split(' ')))
    };
    let children: Vec<_> = (0..hosts.len()).map(start).collect::<Result<_, _>>()?;
    let outcomes: Vec<_> = children.into_iter().map(|child| child.finish(MINUTE)).collect();
    let failed: Vec<String> = outcomes.iter().filter(|o| !o.ok()).map(|o| o.to_string()).collect();
    if !failed.is_empty() {
        return Err(failed.join("\n    "));
    }
    if !exact {
        let counts = outcomes.iter().map(|o| o.out.trim().replace('\n', ", "));
        counts.for_each(|text| println!("  {text}"));
    }
    Ok(())
}

/// What must arrive whole though packets are lost, and how many in a hundred, each way.
const LOSSY: &[(u32, &str, &str)] = &[
    (1, "ibv_rc_pingpong", "-c -n 500 -s 65536"),
    (1, "ibv_rc_pingpong", "-c -n 500"),
    (1, "ibv_rc_pingpong", "-c -n 500 -e"),
    (1, "ibv_srq_pingpong", "-c -n 200 -s 8192"),
    (1, "ibv_xsrq_pingpong", "-n 100 -s 16384"),
    (5, "ibv_rc_pingpong", "-c -n 200 -s 65536"),
    (5, "ibv_rc_pingpong", "-c -n 300"),
    (5, "ibv_rc_pingpong", "-c -n 300 -e -o"),
    (5, "ibv_rc_pingpong", "-c -n 300 -N"),
    (5, "ibv_srq_pingpong", "-c -n 100 -e"),
    (5, "ibv_xsrq_pingpong", "-n 100 -e"),
];

/// perftest over reliable connections where packets are lost.
const LOSSY_PERFTEST: &[(u32, &str, &str)] = &[
    (1, "write_bw", "-c RC -n 500"),
    (1, "send_bw", "-c RC -n 500 -e"),
    (1, "read_bw", "-c RC -n 500"),
    (1, "atomic_bw", "-c RC -n 500"),
    (1, "write_bw", "-c XRC -n 300 -q 4"),
    (5, "write_bw", "-c RC -n 300"),
    (5, "write_bw", "-c RC -n 300 -b -q 4"),
    (5, "send_bw", "-c RC -n 300"),
    (5, "read_bw", "-c RC -n 300"),
    (5, "atomic_bw", "-c RC -n 300"),
    (5, "send_bw", "-c XRC -n 200"),
    (5, "send_lat", "-c RC -n 300"),
    (5, "read_lat", "-c RC -n 200"),
];

enum Lossy {
    PingPong(&'static str, &'static str),
    Perftest(perftest::Cell),
    Checked(&'static Checked),
    Unreliable(&'static str),
}

/// Two lanes lose one packet in a hundred, two lose five.
fn loss(ctx: &mut Ctx<'_>) {
    let Some(lanes) = lanes(ctx) else { return };
    let percent = |n: usize| if n == 0 || n == 3 { 1 } else { 5 };
    for (n, lane) in lanes.iter().enumerate() {
        ctx.check(format!("{}: {} % lost", lane.name, percent(n)), lane.net.lose(percent(n)));
    }
    // The two lanes of a rate take turns.
    let lane = |rate: u32, turn: usize| if rate == 1 { [0, 3][turn % 2] } else { [1, 2][turn % 2] };
    let mut jobs = Vec::new();
    for (turn, &(rate, program, args)) in LOSSY.iter().enumerate() {
        jobs.push((lane(rate, turn), Lossy::PingPong(program, args)));
    }
    for (turn, &(rate, program, args)) in LOSSY_PERFTEST.iter().enumerate() {
        jobs.push((lane(rate, turn), Lossy::Perftest(perftest::Cell::new(program, args))));
    }
    for n in 0..lanes.len() {
        jobs.extend(CHECKED_LOSSY.iter().map(|program| (n, Lossy::Checked(program))));
        jobs.push((n, Lossy::Unreliable(["ibv_uc_pingpong", "ibv_ud_pingpong"][n % 2])));
    }
    beside(&lanes, jobs, lossy, |lane, job, result| ctx.check(format!("{job}, {}", lane.name), result));
    for lane in &lanes {
        ctx.check(format!("{}: packets were dropped", lane.name), lane.net.dropped().map(drop));
    }
}

const CHECKED_LOSSY: &[Checked] = &[("/rdma", &[]), ("/order", &["200"])];

fn lossy(lane: &Lane, job: &Lossy) -> Result<(), String> {
    match job {
        Lossy::PingPong(program, args) => {
            // Whoever is through first leaves, and cannot repeat the acknowledgement of the last message if that is lost: one run in
            // twenty at worst.
            let run = || Run::over(program, &lane.ends, args).within(MINUTE).good().map(drop);
            let name = job.to_string();
            twice(&name, || twice(&name, run))
        }
        Lossy::Perftest(cell) => perftest::pair(&lane.ends, cell),
        Lossy::Checked((program, more)) => checked(&lane.ends, program, more),
        Lossy::Unreliable(program) => {
            // They lose messages by design and then wait for ever; they must not end by a signal.
            let run = Run::over(program, &lane.ends, "-c -n 2000").within(Duration::from_secs(4));
            let pair = run.run()?;
            let crashed = [&pair.server, &pair.client].into_iter().find(|o| o.signal.is_some());
            crashed.map_or(Ok(()), |o| Err(o.to_string()))
        }
    }
}

impl fmt::Display for Lossy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lossy::PingPong(program, args) => write!(f, "{program} {args}"),
            Lossy::Perftest(cell) => f.write_str(&cell.name()),
            Lossy::Checked((program, more)) => write!(f, "{program} {}", more.join(" ")),
            Lossy::Unreliable(program) => write!(f, "{program} stays sane"),
        }
    }
}
