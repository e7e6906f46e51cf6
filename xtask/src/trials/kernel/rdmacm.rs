//! Programs of other projects between two processes on rxe: perftest, and by Debian's librdmacm rping, ucmatose,
//! rsockets and qperf.
use std::time::Duration;

use super::{
    inside::{ADDRESS, Column, DEVICE, Guest},
    tell::{told, tried},
};
use crate::{
    run::{self, Outcome},
    trials::perftest,
};

/// Slow: software emulation, perhaps on a machine that has other work.
const LIMIT: Duration = Duration::from_secs(60);

/// Programs, transports, arguments of both sides; and whether the row is one of the usual run.
const PERFTEST: &[(&str, &str, &str, bool)] = &[
    ("send_bw write_bw read_bw atomic_bw", "RC UC UD", "-n 20", true),
    ("send_lat write_lat read_lat atomic_lat", "RC UC UD", "-n 20", true),
    ("send_bw", "RC UC UD", "-n 20 -e", true),
    ("send_bw", "RC UD", "-n 20 --use-srq", true),
    ("send_bw write_bw", "RC", "-n 20 -R", true),
    ("send_bw read_bw", "RC", "-n 10 -s 65536 -b", true),
    ("send_bw write_bw", "RC UC UD", "-n 20 -s 64 -I 64", false),
    ("send_bw write_bw read_bw atomic_bw", "RC UC UD", "-n 20 -b", false),
    ("send_bw write_bw read_bw atomic_bw", "RC UC UD", "-n 20 -t 1", false),
    ("send_bw write_bw read_bw atomic_bw", "RC UC UD", "-n 80 -l 8", false),
    ("send_bw write_bw read_bw atomic_bw", "RC UC UD", "-n 20 -q 4", false),
    ("send_bw read_bw atomic_bw", "RC", "-n 20 -e -b -q 2", false),
    ("send_bw", "RC", "-n 20 --use-srq -q 4", false),
    ("send_bw", "RC", "-n 20 -m 4096 -s 65536", false),
    ("send_bw write_bw read_bw", "RC", "-n 5 -a", false),
    ("send_lat read_lat atomic_lat", "RC", "-n 20 -e", false),
    ("send_lat write_lat", "RC UC UD", "-n 20 -s 64 -I 64", false),
    ("send_lat", "RC UD", "-n 20 --use-srq", false),
    ("atomic_bw atomic_lat", "RC", "-n 20 -A CMP_AND_SWAP", false),
    ("send_lat write_lat read_lat atomic_lat", "RC", "-n 20 -R", false),
];

pub fn perftest(guest: &Guest) {
    for &(programs, transports, args, usual) in PERFTEST {
        if !usual && !guest.whole {
            continue;
        }
        for program in programs.split(' ') {
            for transport in transports.split(' ').filter(|t| perftest::has(program, t)) {
                let args = format!("-c {transport} {args}");
                let case = format!("ib_{program} {args}");
                for column in Column::ALL {
                    tried("perftest", column, &case, || measured(guest, column, program, &args));
                }
            }
        }
    }
}

/// Both sides exit with 0, and the client reports all that was asked for.
fn measured(guest: &Guest, column: Column, program: &str, args: &str) -> Result<(), String> {
    let port = run::port();
    let port_arg = port.to_string();
    let fixed = ["-F", "-d", DEVICE, "-x", &guest.gid, "-p", &port_arg];
    let words: Vec<&str> = fixed.into_iter().chain(args.split_whitespace()).collect();
    let command = |host: &[&str]| guest.command(column, &format!("ib_{program}"), words.iter().chain(host));
    // With -R it listens by the RDMA connection manager.
    let listens = if args.contains("-R") { None } else { Some(port) };
    let (_, client) = pair(command(&[]), command(&[ADDRESS]), listens)?;
    perftest::reported(&client, args)
}

/// Server, client, and what the client must say. `PORT` and `ADDRESS` stand for themselves.
const PAIRS: &[(&str, &str, &str, bool)] = &[
    ("rping -s -a ADDRESS -p PORT -C 5", "rping -c -a ADDRESS -p PORT -C 5 -V", "", true),
    ("ucmatose -b ADDRESS -p PORT", "ucmatose -s ADDRESS -p PORT", "return status 0", true),
    ("rdma_server -p PORT", "rdma_client -s ADDRESS -p PORT", "rdma_client: end 0", true),
    ("rstream -b ADDRESS -p PORT -I 5", "rstream -s ADDRESS -p PORT -I 5", "", true),
    ("rping -s -a ADDRESS -p PORT -C 50 -S 8192", "rping -c -a ADDRESS -p PORT -C 50 -S 8192 -V", "", false),
    ("ucmatose -b ADDRESS -p PORT -c 4", "ucmatose -s ADDRESS -p PORT -c 4", "return status 0", false),
    ("cmtime -b ADDRESS -p PORT -c 5", "cmtime -s ADDRESS -p PORT -c 5", "", false),
];

/// qperf's tests that end with a figure above nothing: those that connect by rdma_cm. The others address by LID, which rxe
/// refuses.
const QPERF: &[(&str, &str, bool)] = &[
    ("rc_lat", "latency", true),
    ("rc_bw", "bw", true),
    ("rc_rdma_write_lat", "latency", true),
    ("rc_bi_bw", "bw", false),
    ("rc_rdma_read_lat", "latency", false),
    ("rc_rdma_write_bw", "bw", false),
    ("rc_rdma_write_poll_lat", "latency", false),
    ("rc_compare_swap_mr", "msg_rate", false),
    ("rc_fetch_add_mr", "msg_rate", false),
];

const SUITE: &str = "rdmacm";

pub fn rdmacm(guest: &Guest) {
    for &(server, client, says, usual) in PAIRS {
        if !usual && !guest.whole {
            continue;
        }
        for column in Column::ALL {
            let case = client.replace(" -p PORT", "");
            tried(SUITE, column, &case, || meet(guest, column, server, client, says));
        }
    }
    for column in Column::ALL {
        if let Err(why) = qperf(guest, column) {
            told(SUITE, column, "qperf", Err(why));
        }
    }
}

fn meet(guest: &Guest, column: Column, server: &str, client: &str, says: &str) -> Result<(), String> {
    let port = run::port().to_string();
    let command = |line: &str| {
        let line = line.replace("PORT", &port).replace("ADDRESS", ADDRESS);
        let (program, args) = line.split_once(' ').expect("a program and its arguments");
        guest.command(column, program, args.split(' '))
    };
    let (_, client) = pair(command(server), command(client), None)?;
    if client.out.contains(says) { Ok(()) } else { Err(client.to_string()) }
}

/// One server serves all tests.
fn qperf(guest: &Guest, column: Column) -> Result<(), String> {
    let port = run::port();
    let at = port.to_string();
    let mut server = run::spawn(guest.command(column, "qperf", ["-lp", &at]))?;
    server.listens(port, LIMIT)?;
    for &(test, figure, usual) in QPERF {
        if !usual && !guest.whole {
            continue;
        }
        let one = || {
            let words = ["-lp", &at, ADDRESS, "-cm", "1", "-t", "1", test];
            let text = run::run(guest.command(column, "qperf", words), LIMIT)?.success()?.out;
            crate::trials::qperf::plausible(&text, figure)
        };
        tried(SUITE, column, &format!("qperf {test}"), one);
    }
    Ok(())
}

/// Runs a server, then a client; both must exit with 0. A server whose port cannot be watched is given the time until a
/// client that comes too early has come again.
fn pair(
    server: std::process::Command,
    client: std::process::Command,
    port: Option<u16>,
) -> Result<(Outcome, Outcome), String> {
    let mut server = run::spawn(server)?;
    match port {
        Some(port) => server.listens(port, LIMIT)?,
        None => {
            // Listening by rdma_cm shows in no table of sockets, but in the files that it opens.
            let opened = format!("/proc/{}/fd", server.pid());
            run::until(Duration::from_secs(10), || {
                let files = std::fs::read_dir(&opened).into_iter().flatten().flatten();
                let mut links = files.filter_map(|f| std::fs::read_link(f.path()).ok());
                links.any(|link| link.starts_with("/dev/infiniband"))
            });
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    let client = run::run(client, LIMIT)?;
    let server = server.finish(if client.ok() { LIMIT } else { Duration::from_secs(1) });
    if client.ok() && server.ok() {
        Ok((server, client))
    } else {
        Err(format!("client: {client} server: {server}"))
    }
}
