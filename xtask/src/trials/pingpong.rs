//! rdma-core's five pingpong programs with every option that each one's usage lists: on one host in the four ways, and
//! between two hosts.
use std::{fs, path::Path, time::Duration};

use crate::{
    pingpong::Run,
    place::{Ends, Place, User, Via},
    report::{Ctx, Judge, Trial},
    run,
    trials::{
        four_ways, here,
        lanes::{LANES, beside, lanes, turn},
        nothing_left, traces,
    },
};

pub const TRIALS: &[Trial] = &[
    Trial {
        name: "pingpong-rc",
        limit: Duration::from_secs(300),
        run: |ctx| matrix(ctx, "ibv_rc_pingpong", RC),
    },
    Trial {
        name: "pingpong-uc",
        limit: Duration::from_secs(240),
        run: |ctx| matrix(ctx, "ibv_uc_pingpong", UC),
    },
    Trial { name: "pingpong-ud", limit: Duration::from_secs(240), run: ud },
    Trial {
        name: "pingpong-srq",
        limit: Duration::from_secs(300),
        run: |ctx| matrix(ctx, "ibv_srq_pingpong", SRQ),
    },
    Trial { name: "pingpong-xsrq", limit: Duration::from_secs(240), run: xsrq },
    Trial { name: "pingpong-long", limit: Duration::from_secs(300), run: long },
    Trial { name: "pingpong-illegal", limit: Duration::from_secs(120), run: illegal },
    Trial { name: "pingpong-wire", limit: Duration::from_secs(400), run: two_hosts },
];

/// Enough on a machine that has other work: both sides poll, and four pairs may at once.
const LIMIT: Duration = Duration::from_secs(60);

/// Arguments of both sides, then of the server, then of the client.
type Row = (&'static str, &'static str, &'static str);

const fn both(args: &'static str) -> Row {
    (args, "", "")
}

const EVENTS: [Row; 3] = [both("-c -e"), ("-c", "-e", ""), ("-c", "", "-e")];

const RC: &[Row] = &[
    both(""),
    both("-c"),
    EVENTS[0],
    EVENTS[1],
    EVENTS[2],
    both("-c -t"),
    both("-c -t -e"),
    ("-c", "-t", ""),
    both("-c -o"),
    both("-c -o -e"),
    both("-c -O"),
    both("-c -o -P"),
    both("-c -O -P"),
    ("-c", "-o", ""),
    both("-c -j"),
    ("-c", "-j", ""),
    both("-c -N"),
    ("-c", "", "-N"),
    both("-c -N -t -e"),
    both("-c -N -j"),
    both("-c -r 1"),
    both("-c -r 1 -e"),
    both("-c -r 16"),
    both("-c -l 3"),
    both("-c -d urxe0 -i 1"),
    both("-c -m 256"),
    both("-c -m 512"),
    both("-c -m 1024"),
    both("-c -m 2048"),
    both("-c -m 4096"),
    both("-c -s 1"),
    both("-c -s 64"),
    both("-c -s 1024"),
    both("-c -s 4096"),
    both("-c -s 65536 -n 500"),
    both("-c -s 1048576 -n 100 -r 32"),
    both("-c -s 1048576 -n 100 -r 32 -e -o"),
    both("-c -s 65536 -n 200 -m 256 -N"),
];

const UC: &[Row] = &[
    both(""),
    both("-c"),
    EVENTS[0],
    EVENTS[1],
    EVENTS[2],
    both("-c -r 1"),
    both("-c -r 16"),
    both("-c -l 3"),
    both("-c -d urxe0 -i 1"),
    both("-c -m 256"),
    both("-c -m 512"),
    both("-c -m 1024"),
    both("-c -m 2048"),
    both("-c -m 4096"),
    both("-c -s 1"),
    both("-c -s 64"),
    both("-c -s 1024"),
    both("-c -s 4096"),
    both("-c -s 65536 -n 500"),
    both("-c -s 1048576 -n 100 -r 32"),
];

const UD: &[Row] = &[
    both(""),
    both("-c"),
    EVENTS[0],
    EVENTS[1],
    EVENTS[2],
    both("-c -r 1"),
    both("-c -r 16"),
    both("-c -l 3"),
    both("-c -d urxe0 -i 1"),
    both("-c -s 1"),
    both("-c -s 64"),
    both("-c -s 256"),
    both("-c -s 1024"),
];

const SRQ: &[Row] = &[
    both(""),
    both("-c"),
    EVENTS[0],
    EVENTS[1],
    EVENTS[2],
    both("-c -o"),
    both("-c -o -e"),
    both("-c -r 1 -q 1"),
    both("-c -q 1"),
    both("-c -q 7 -r 16"),
    both("-c -q 64 -n 100"),
    both("-c -l 3"),
    both("-c -d urxe0 -i 1"),
    both("-c -m 256"),
    both("-c -m 512"),
    both("-c -m 1024"),
    both("-c -m 2048"),
    both("-c -m 4096"),
    both("-c -s 1"),
    both("-c -s 64"),
    both("-c -s 1024"),
    both("-c -s 4096"),
    both("-c -s 65536 -n 100"),
    both("-c -s 1048576 -n 10 -r 16 -q 4"),
];

const XSRQ: &[Row] = &[
    both(""),
    both("-n 1000"),
    both("-n 100 -e"),
    ("-n 100", "-e", ""),
    ("-n 100", "", "-e"),
    both("-n 100 -o"),
    both("-n 100 -l 3"),
    both("-n 100 -d urxe0 -i 1"),
    both("-n 100 -m 256"),
    both("-n 100 -m 512"),
    both("-n 100 -m 1024"),
    both("-n 100 -m 2048"),
    both("-n 100 -m 4096"),
    both("-n 100 -s 1"),
    both("-n 100 -s 64"),
    both("-n 100 -s 1024"),
    both("-n 100 -s 4096"),
    both("-n 100 -s 65536"),
    both("-n 20 -s 1048576"),
];

/// Every program with its options.
const PROGRAMS: [(&str, &[Row]); 5] = [
    ("ibv_rc_pingpong", RC),
    ("ibv_uc_pingpong", UC),
    ("ibv_ud_pingpong", UD),
    ("ibv_srq_pingpong", SRQ),
    ("ibv_xsrq_pingpong", XSRQ),
];

fn matrix(ctx: &mut Ctx<'_>, program: &str, rows: &[Row]) {
    let before = traces();
    for place in four_ways(ctx) {
        for row in rows {
            one(ctx, program, &place, row);
        }
    }
    ctx.check("leaves nothing behind", nothing_left(&before));
}

fn one(ctx: &mut Ctx<'_>, program: &str, place: &Place, row: &Row) {
    ctx.check(format!("{}, {}", name(program, row), place.label()), good(program, &Ends::both(place), row));
}

fn name(program: &str, (args, server, client): &Row) -> String {
    format!("{program} {args} server[{server}] client[{client}]")
}

fn good(program: &str, ends: &Ends, (args, server, client): &Row) -> Result<(), String> {
    Run::over(program, ends, args).sides(server, client).within(LIMIT).good().map(drop)
}

/// Each row over two of the lanes that differ in both MTU and family, or over both families where only one MTU carries it.
fn two_hosts(ctx: &mut Ctx<'_>) {
    let Some(lanes) = lanes(ctx) else { return };
    let mut jobs = Vec::new();
    for (program, rows) in PROGRAMS {
        for (at, row) in rows.iter().enumerate() {
            jobs.extend([at % LANES, LANES - 1 - at % LANES].map(|n| (turn(n, 0, row.0), (program, *row))));
        }
    }
    let mut verdict = Judge::new("ping-pongs, two hosts".into());
    beside(
        &lanes,
        jobs,
        |lane, (program, row)| good(program, &lane.ends, row),
        |lane, (program, row), result| {
            ctx.case(&mut verdict, format!("{}, {}", name(program, &row), lane.name), result);
        },
    );
    for lane in &lanes {
        let most = format!("-c -s {}", lane.ends.mtu);
        let result = Run::over("ibv_ud_pingpong", &lane.ends, &most).good().map(drop);
        ctx.case(&mut verdict, format!("ibv_ud_pingpong {most}, the port's MTU, {}", lane.name), result);
        for program in ["ibv_rc_pingpong", "ibv_uc_pingpong"].iter().filter(|_| lane.ends.mtu < 4096) {
            let long = Run::over(program, &lane.ends, "-m 4096 -n 10");
            ctx.case(
                &mut verdict,
                format!("{program} -m 4096 is refused, {}", lane.name),
                says(&long, "Failed to modify QP to RTR"),
            );
        }
    }
    verdict.skip("an SRQ of another process");
    ctx.skip("ibv_xsrq_pingpong -c N", "its clients, on one host, are sent messages for each other's SRQs");
    ctx.judge(verdict);
    let _ = fs::remove_file("/tmp/xrc_domain");
}

fn ud(ctx: &mut Ctx<'_>) {
    matrix(ctx, "ibv_ud_pingpong", UD);
    let place = here(ctx);
    let mtu = match active_mtu(&place) {
        Ok(mtu) => mtu,
        Err(why) => return ctx.check("active MTU", Err(why)),
    };
    let most = format!("-c -g 0 -s {mtu}");
    ctx.check(
        format!("ibv_ud_pingpong {most}, the port's MTU"),
        Run::new("ibv_ud_pingpong", &place, &place, &most).good().map(drop),
    );
    let more = format!("-g 0 -s {}", mtu + 1);
    ctx.check(format!("ibv_ud_pingpong {more} is refused"), refused("ibv_ud_pingpong", &place, &more));
}

fn active_mtu(place: &Place) -> Result<u32, String> {
    let none: [&str; 0] = [];
    let info = run::run(place.command("ibv_devinfo", none), Duration::from_secs(10))?.success()?.out;
    let line = info.lines().find(|l| l.contains("active_mtu:")).ok_or("ibv_devinfo shows no active_mtu")?;
    let number = line.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    number.ok_or_else(|| format!("not a number: {line}"))
}

fn xsrq(ctx: &mut Ctx<'_>) {
    let domain = Path::new("/tmp/xrc_domain");
    for place in four_ways(ctx) {
        // The program leaves it behind with mode 0440, which the next user could not open.
        if place.via == Via::Path {
            let _ = fs::remove_file(domain);
        }
        for row in XSRQ {
            one(ctx, "ibv_xsrq_pingpong", &place, row);
        }
        for clients in [2, 5] {
            ctx.check(
                format!("ibv_xsrq_pingpong -c {clients}, {}", place.label()),
                several_clients(&Ends::both(&place), clients),
            );
        }
    }
    let _ = fs::remove_file(domain);
}

fn several_clients(ends: &Ends, clients: usize) -> Result<(), String> {
    let port = run::port();
    let args = |gid: usize, more: &str| -> Vec<String> {
        let text = format!("-p {port} -n 50 -g {gid} {more}");
        text.split_whitespace().map(String::from).collect()
    };
    let count = args(ends.gids[0], &format!("-c {clients}"));
    let mut server = run::spawn(ends.server.command("ibv_xsrq_pingpong", count))?;
    server.listens(port, Duration::from_secs(10))?;
    let to = args(ends.gids[1], ends.host);
    let children: Vec<_> = (0..clients)
        .map(|_| run::spawn(ends.client.command("ibv_xsrq_pingpong", &to)))
        .collect::<Result<_, _>>()?;
    for client in children {
        client.finish(Duration::from_secs(20)).success()?;
    }
    server.finish(Duration::from_secs(5)).success().map(drop)
}

/// A hundred thousand exchanges of each.
fn long(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    for (program, args) in [
        ("ibv_rc_pingpong", "-c -n 100000"),
        ("ibv_rc_pingpong", "-c -n 100000 -e"),
        ("ibv_rc_pingpong", "-c -n 100000 -N -t -s 64"),
        ("ibv_uc_pingpong", "-c -n 100000"),
        ("ibv_ud_pingpong", "-c -n 100000"),
        ("ibv_srq_pingpong", "-c -n 100000 -q 4"),
        ("ibv_xsrq_pingpong", "-n 10000"),
    ] {
        let run =
            Run::new(program, &place, &place, args).sides("-g 0", "-g 0").within(Duration::from_secs(90));
        ctx.check(format!("{program} {args}"), run.good().map(drop));
    }
    let _ = fs::remove_file("/tmp/xrc_domain");
}

/// Illegal uses fail as on a kernel device: exit code 1, not a crash, not a hang.
fn illegal(ctx: &mut Ctx<'_>) {
    let place = Place::new(ctx.stage.public.path(), Via::Path, User::Me);
    for (program, args) in [
        ("ibv_rc_pingpong", "-g 0 -d nosuch"),
        ("ibv_rc_pingpong", "-g 0 -i 2"),
        ("ibv_rc_pingpong", "-g 0 -m 300"),
        ("ibv_rc_pingpong", "-g 0 -j -s 1073741824"),
        ("ibv_rc_pingpong", "-g 0 -j -o"),
        ("ibv_rc_pingpong", "-g 0 -P"),
        ("ibv_uc_pingpong", "-g 0 -N"),
        ("ibv_uc_pingpong", "-g 0 -o"),
        ("ibv_ud_pingpong", "-g 0 -m 1024"),
        ("ibv_ud_pingpong", "-g 0 -i 3"),
        ("ibv_srq_pingpong", "-g 0 -r 1 -q 2"),
        ("ibv_srq_pingpong", "-g 0 -q 5000"),
        ("ibv_xsrq_pingpong", "-g 0 -r 1"),
    ] {
        ctx.check(format!("{program} {args} is refused"), refused(program, &place, args));
    }
    // These fail only once both sides have met.
    for (program, args, says) in [
        ("ibv_rc_pingpong", "", "Failed to modify QP to RTR"),
        ("ibv_uc_pingpong", "", "Failed to modify QP to RTR"),
        ("ibv_ud_pingpong", "", "Failed to create AH"),
        ("ibv_rc_pingpong", "-g 4000", "can't read sgid of index 4000"),
    ] {
        let run = Run::new(program, &place, &place, args);
        ctx.check(format!("{program} {args} (illegal) fails"), self::says(&run, says));
    }
    let _ = fs::remove_file("/tmp/xrc_domain");
}

/// The run fails on both sides and says this.
fn says(run: &Run<'_>, what: &str) -> Result<(), String> {
    let text = run.run_or_refused()?;
    if text.contains(what) { Ok(()) } else { Err(format!("no {what:?} in: {text}")) }
}

/// The server alone exits with 1 and says why.
fn refused(program: &str, place: &Place, args: &str) -> Result<(), String> {
    let port = run::port().to_string();
    let args = ["-p", &port].into_iter().chain(args.split_whitespace());
    let outcome = run::run(place.command(program, args), Duration::from_secs(10))?;
    if outcome.code == Some(1) && !(outcome.err.is_empty() && outcome.out.is_empty()) {
        Ok(())
    } else {
        Err(format!("not refused: {outcome}"))
    }
}

impl Run<'_> {
    /// What a pair says that must fail: both sides exit with 1, or the server does before it listens.
    fn run_or_refused(&self) -> Result<String, String> {
        match self.run() {
            Ok(pair) if pair.server.code == Some(1) && pair.client.code == Some(1) => {
                Ok(pair.server.err + &pair.client.err)
            }
            Ok(pair) => Err(format!("server: {}\n    client: {}", pair.server, pair.client)),
            Err(why) if why.contains("does not listen") => Ok(why),
            Err(why) => Err(why),
        }
    }
}
