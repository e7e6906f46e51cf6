//! ibverbs-utils with every option that the kernel's rxe has, C programs of ours, and what follows devices that come and go.
//! What only looks prints the same in all columns.
use std::{fs, time::Duration};

use super::{
    inside::{ADDRESS, Column, DEVICE, Guest},
    tell::{alike, tried},
};
use crate::{
    pingpong::Run,
    run::{self, Outcome},
};

/// Slow: software emulation, perhaps on a machine that has other work.
const LIMIT: Duration = Duration::from_secs(60);

/// Programs that only look, or are refused alike. `GID` stands for rxe0's index.
const LOOKS: &[&str] = &[
    "ibv_devices",
    "ibv_devinfo",
    "ibv_devinfo -l",
    "ibv_devinfo -v",
    "ibv_devinfo -d rxe0 -i 1 -v",
    "ibv_devinfo -d rxe0 -i 2",
    "ibv_devinfo -d nothing",
    "ibv_rc_pingpong -d rxe0 -g GID -i 2",
    "ibv_rc_pingpong -d rxe0 -g GID -o",
    "ibv_rc_pingpong -d rxe0 -g GID -o -P",
    "ibv_rc_pingpong -d rxe0 -g GID -O",
    "ibv_rc_pingpong -d rxe0 -g GID -t",
    "ibv_rc_pingpong -d rxe0 -g GID -j",
    "ibv_srq_pingpong -d rxe0 -g GID -o",
    "ibv_xsrq_pingpong -d rxe0 -g GID",
];

/// Pingpongs with their arguments.
const PINGPONGS: &[&str] = &[
    "rc -c -n 40",
    "rc -c -n 40 -e",
    "rc -c -n 40 -N",
    "rc -c -n 40 -N -e",
    "rc -c -n 20 -s 65536 -m 4096",
    "rc -c -n 20 -r 2 -l 1",
    "rc -c -n 10 -s 1",
    "uc -c -n 40",
    "uc -c -n 40 -e -r 16",
    "ud -c -n 40 -s 1024",
    "ud -c -n 40 -e",
    "srq -c -n 40",
    "srq -c -n 40 -e -q 3",
];

/// Programs of `c-tests` that print the same on rxe with any library.
pub const PROGRAMS: &[&str] = &["rc_loopback", "atomics", "overrun"];

const SUITE: &str = "tools";

pub fn tools(guest: &Guest) {
    for look in LOOKS {
        let words = look.replace("GID", &guest.gid);
        same(guest, look, &words.split(' ').collect::<Vec<_>>());
    }
    for program in PROGRAMS {
        same(guest, program, &[&guest.own(program)]);
    }
    for row in PINGPONGS {
        for column in Column::ALL {
            tried(SUITE, column, &format!("pingpong {row}"), || pingpong(guest, row, column, column));
        }
    }
    for column in Column::OURS {
        let row = "rc -c -n 40 -e";
        let debian = Column::Debian;
        tried(SUITE, column, "pingpong with Debian's server", || pingpong(guest, row, debian, column));
        tried(SUITE, column, "pingpong with Debian's client", || pingpong(guest, row, column, debian));
        tried(SUITE, column, "urxe0 behind kernel devices where it is asked for", || beside(guest, column));
    }
    for column in Column::ALL {
        tried(SUITE, column, "events of a port", || port_events(guest, column));
    }
    same(guest, "the list without a device that went", &["ibv_devices"]);
}

/// Both of ours print and return what Debian's does.
fn same(guest: &Guest, case: &str, words: &[&str]) {
    let (program, args) = words.split_first().expect("a program");
    let show = |column: Column| {
        let outcome = run::run(guest.command(column, program, args), LIMIT)?;
        if outcome.code.is_some() { Ok(outcome) } else { Err(outcome.to_string()) }
    };
    alike(SUITE, case, show, compare);
}

fn compare(ours: &Outcome, debian: &Outcome) -> Result<(), String> {
    if (ours.code, ours.signal) != (debian.code, debian.signal) {
        return Err(format!("{ours}; Debian's: {debian}"));
    }
    for (mine, theirs) in [(&ours.out, &debian.out), (&ours.err, &debian.err)] {
        if mine == theirs {
            continue;
        }
        let differs = mine.lines().zip(theirs.lines()).find(|(a, b)| a != b);
        let (a, b) = differs.unwrap_or(("lines", "another number of lines"));
        return Err(format!("{a:?}, and Debian's {b:?}"));
    }
    Ok(())
}

fn pingpong(guest: &Guest, row: &str, server: Column, client: Column) -> Result<(), String> {
    let (kind, args) = row.split_once(' ').unwrap_or((row, ""));
    let program = format!("ibv_{kind}_pingpong");
    let (server, client) = (guest.place(server), guest.place(client));
    let args = format!("-d {DEVICE} -g {} {args}", guest.gid);
    Run::new(&program, &server, &client, &args).to(ADDRESS).within(LIMIT).good().map(drop)
}

/// urxe0 comes after the kernel's devices.
fn beside(guest: &Guest, column: Column) -> Result<(), String> {
    let none: [&str; 0] = [];
    let mut cmd = guest.command(column, "ibv_devices", none);
    cmd.env("ANYVERBS_SOFT", "1");
    let shown = run::run(cmd, LIMIT)?.success()?;
    let names: Vec<&str> =
        shown.out.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    if names == ["rxe0", "vrxe", "urxe0"] { Ok(()) } else { Err(format!("the list is {names:?}")) }
}

/// A soft-RoCE device that goes with its value, and its interface.
pub struct Brief;

impl Brief {
    pub const NAME: &str = "brief";
    pub const NETDEV: &str = "dummy9";
    const ADDRESS: &str = "10.9.9.1/24";

    pub fn new() -> Result<Brief, String> {
        let this = Brief;
        ip(&format!("link add {} type dummy", Self::NETDEV))?;
        ip(&format!("addr add {} dev {}", Self::ADDRESS, Self::NETDEV))?;
        ip(&format!("link set {} up", Self::NETDEV))?;
        let words = format!("link add {} type rxe netdev {}", Self::NAME, Self::NETDEV);
        command("rdma", &words)?;
        Ok(this)
    }

    /// The index of its IPv4 GID.
    pub fn gid(&self) -> Result<String, String> {
        let row = |i: &u32| {
            let path = format!("/sys/class/infiniband/{}/ports/1/gids/{i}", Self::NAME);
            fs::read_to_string(path).unwrap_or_default()
        };
        let mut found = None;
        run::until(Duration::from_secs(10), || {
            found = (0..16).find(|i| row(i).trim().ends_with(":ffff:0a09:0901"));
            found.is_some()
        });
        found.map(|i| i.to_string()).ok_or("no GID of its address".into())
    }
}

impl Drop for Brief {
    fn drop(&mut self) {
        // One or the other may be gone.
        let _ = command("rdma", &format!("link delete {}", Self::NAME));
        let _ = ip(&format!("link delete {}", Self::NETDEV));
    }
}

/// `ip` with these words.
pub fn ip(words: &str) -> Result<(), String> {
    command("ip", words)
}

/// A program with space-separated words.
pub fn command(program: &str, words: &str) -> Result<(), String> {
    run::run(run::command(program, words.split(' ')), Duration::from_secs(20))?.success().map(drop)
}

/// Who waits for a port's events is told of them.
fn port_events(guest: &Guest, column: Column) -> Result<(), String> {
    let brief = Brief::new()?;
    let args = ["-oL", "ibv_asyncwatch", "-d", Brief::NAME];
    let mut watch = run::spawn(guest.command(column, "stdbuf", args))?;
    watch.says("async event FD", LIMIT)?;
    ip(&format!("link set {} down", Brief::NETDEV))?;
    watch.says("IBV_EVENT_PORT_ERR", LIMIT)?;
    ip(&format!("link set {} up", Brief::NETDEV))?;
    watch.says("IBV_EVENT_PORT_ACTIVE", LIMIT)?;
    drop(watch);
    drop(brief);
    Ok(())
}
