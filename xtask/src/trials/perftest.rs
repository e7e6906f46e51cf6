//! Debian's perftest: its eight programs over every transport that each one has, server and client in two processes of one
//! host, and on two hosts.
//!
//! Both sides must exit with 0, and the client must report as many sizes and iterations as were asked for. perftest 4.5
//! has no data checks for host memory (its `-c` is the transport).
use std::time::Duration;

use crate::{
    place::{Ends, Place},
    report::{Ctx, Judge, Trial, twice},
    run::{self, Outcome},
    trials::{
        here,
        lanes::{beside, lanes, turn},
        nothing_left, traces,
    },
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "perftest", limit: Duration::from_secs(1500), run: perftest },
    Trial { name: "perftest-wire", limit: Duration::from_secs(1200), run: two_hosts },
];

/// Enough for the slowest on a machine that has other work; with `-a` for each of 23 sizes.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_ALL: Duration = Duration::from_secs(240);

/// Programs (without `ib_`), transports, arguments of both sides: each program over each of the transports that it has.
type Row = (&'static str, &'static str, &'static str);

const BW: &str = "send_bw write_bw read_bw atomic_bw";
const LAT: &str = "send_lat write_lat read_lat atomic_lat";
const WAITING_BW: &str = "send_bw read_bw atomic_bw";
const ALL: &str = "RC UC UD XRC";

/// With `-a` the programs measure the processor's clock anew for each size, a quarter of a second each.
const ROWS: &[Row] = &[
    (BW, ALL, "-n 100"),
    (BW, ALL, "-n 5"),
    (BW, ALL, "-n 100 -b"),
    (BW, ALL, "-n 100 -t 1"),
    (BW, ALL, "-n 160 -l 16"),
    (BW, ALL, "-n 100 -q 8"),
    (BW, ALL, "-n 160 -q 8 -l 16 -b"),
    (BW, "RC", "-n 400 -t 400"),
    (BW, "RC", "-n 100 -N"),
    (BW, "RC", "-n 100 -Q 10"),
    (BW, "RC", "-n 100 -q 8 --mr_per_qp"),
    (BW, "RC", "-n 100 --reversed"),
    (WAITING_BW, ALL, "-n 100 -e"),
    (WAITING_BW, ALL, "-n 100 -e -b -q 8"),
    ("send_bw read_bw", "RC XRC", "-n 20 -s 1048576 -e"),
    ("send_bw write_bw", ALL, "-n 100 -s 64 -I 64"),
    ("send_bw write_bw", ALL, "-n 100 -s 64 -I 64 -b -q 8"),
    ("send_bw", ALL, "-n 100 --use-srq"),
    ("send_bw", ALL, "-n 100 --use-srq -b -e"),
    ("send_bw", "RC XRC", "-n 100 --use-srq -q 8"),
    ("send_bw", "RC XRC", "-n 1000 -s 4096 -t 128 -r 16"),
    ("send_bw", "RC UC UD", "-n 160 --recv_post_list 16"),
    ("send_bw", "RC", "-n 100 -m 256"),
    ("send_bw", "RC", "-n 100 -m 4096"),
    ("read_bw atomic_bw", ALL, "-n 100 -o 1"),
    ("read_bw atomic_bw", ALL, "-n 400 -o 16 -t 200 -q 8"),
    ("write_bw read_bw atomic_bw", "RC", "-n 100 -Q 1 --perform_warm_up"),
    ("atomic_bw", ALL, "-n 100 -A CMP_AND_SWAP -b"),
    ("send_bw write_bw", "RC UC", "-n 10 -a"),
    ("send_bw", "UD XRC", "-n 10 -a"),
    ("read_bw", "RC", "-n 10 -a"),
    ("send_bw", "RC", "-n 10 -a -b"),
    ("send_bw", "RC", "-n 10 -a -e"),
    (LAT, ALL, "-n 100"),
    (LAT, "RC", "-n 5"),
    ("send_lat read_lat atomic_lat", ALL, "-n 100 -e"),
    ("send_lat write_lat", ALL, "-n 100 -s 64 -I 64"),
    ("send_lat write_lat", "RC UC XRC", "-n 100 -s 65536 -I 0"),
    ("send_lat", ALL, "-n 100 --use-srq"),
    ("send_lat", "RC", "-n 10 -a"),
    ("atomic_lat", ALL, "-n 100 -A CMP_AND_SWAP"),
];

/// Programs, arguments, and what the program says when it refuses them, with any device.
const REFUSED: &[Row] = &[
    ("send_bw send_lat write_bw write_lat read_bw read_lat atomic_bw atomic_lat", "-n 1", "between 5 and"),
    ("send_lat write_lat read_lat atomic_lat", "-q 8", "Multiple QPs only available on bw tests"),
    ("send_lat write_lat read_lat atomic_lat", "-b", "Bidirectional is only available in BW test"),
    ("send_lat write_lat read_lat atomic_lat", "-l 16", "Post list is supported in BW tests only"),
    ("write_bw write_lat", "-e", "Events feature not available on WRITE verb"),
    ("write_bw write_lat read_bw read_lat atomic_bw atomic_lat", "--use-srq", "in SEND tests"),
    (
        "write_bw write_lat read_bw read_lat atomic_bw atomic_lat",
        "-c UD",
        "UD connection only possible in SEND",
    ),
    ("read_bw read_lat atomic_bw atomic_lat", "-c UC", "UC connection not possible in READ/ATOMIC"),
    ("read_bw read_lat atomic_bw atomic_lat", "-I 64", "Inline feature not available on READ/Atomic"),
    ("atomic_bw atomic_lat", "-a", "Message size cannot be changed for Atomic tests"),
];

/// What ends with no device, and why.
const HOPELESS: &[(&str, &str)] = &[
    (
        "--perform_warm_up without -Q 1",
        "waits for a completion of each request though it asks for one in a hundred",
    ),
    (
        "ib_send_bw -c UC|UD --use-srq -q 8, or -r less than -n",
        "sends more than the receiver has posted receives for; an unreliable transport drops it, and the receiver counts",
    ),
];

fn perftest(ctx: &mut Ctx<'_>) {
    let before = traces();
    let place = here(ctx);
    let mut verdict = Judge::new("perftest".into());
    let ends = Ends::both(&place);
    for cell in ROWS.iter().flat_map(cells) {
        let name = cell.name();
        let result = cell.run(&name, &ends);
        ctx.case(&mut verdict, name, result);
    }
    for &(programs, args, says) in REFUSED {
        for program in programs.split(' ') {
            match refusal(&place, program, args, says) {
                Ok(line) => {
                    verdict.skip("the program refuses it");
                    ctx.skip(format!("ib_{program} {args}"), &format!("the tool refuses it: {line}"));
                }
                Err(why) => ctx.case(&mut verdict, format!("ib_{program} {args}"), Err(why)),
            }
        }
    }
    for (what, why) in HOPELESS {
        verdict.skip("no device can");
        ctx.skip(what, &format!("no device can: the tool {why}"));
    }
    ctx.judge(verdict);
    ctx.check("leaves nothing behind", nothing_left(&before));
}

/// Every cell of the matrix, over one lane each; the lanes take turns along rows and columns.
fn two_hosts(ctx: &mut Ctx<'_>) {
    let Some(lanes) = lanes(ctx) else { return };
    let mut verdict = Judge::new("perftest, two hosts".into());
    let mut jobs = Vec::new();
    for (at, row) in ROWS.iter().enumerate() {
        for (column, cell) in cells(row).enumerate() {
            match cell.on_the_wire() {
                Ok(cell) => jobs.push((turn(at, column, &cell.args), cell)),
                Err(why) => {
                    verdict.skip("unreliable, and more than a socket buffer holds");
                    ctx.skip(cell.name(), why);
                }
            }
        }
    }
    beside(
        &lanes,
        jobs,
        |lane, cell| cell.run(&format!("{}, {}", cell.name(), lane.name), &lane.ends),
        |lane, cell, result| ctx.case(&mut verdict, format!("{}, {}", cell.name(), lane.name), result),
    );
    ctx.judge(verdict);
}

/// A program and the arguments of both sides.
pub struct Cell {
    program: &'static str,
    args: String,
}

impl Cell {
    /// `program` without its `ib_`.
    pub fn new(program: &'static str, args: &str) -> Cell {
        Cell { program, args: args.to_string() }
    }
    /// The same between two hosts. Nothing slows down an unreliable sender, and a receiver that counts waits for ever for a
    /// message that its socket's buffer had no room for: all of them together must fit there.
    fn on_the_wire(&self) -> Result<Cell, &'static str> {
        let unreliable = self.args.contains("UC") || self.args.contains("UD");
        if self.program != "send_bw" || !unreliable || self.args.contains("-s ") {
            return Ok(Cell::new(self.program, &self.args));
        }
        if self.args.contains("UC") && self.args.contains("-a") {
            return Err("messages of 8 MiB overrun a socket buffer, and the receiver counts");
        }
        let size = if self.args.contains("-a") { "" } else { " -s 1024" };
        Ok(Cell::new(self.program, &format!("{}{size}", self.args)))
    }
    pub fn name(&self) -> String {
        format!("ib_{} {}", self.program, self.args)
    }
    /// Runs it, again where the program has races of its own. A blocking talk has none where replies come behind acknowledgements.
    fn run(&self, name: &str, ends: &Ends) -> Result<(), String> {
        let is_reliable = self.args.contains("-c RC") || self.args.contains("-c XRC");
        if self.program == "send_lat" && is_reliable && self.args.contains("-e") {
            return pair(ends, self);
        }
        twice(name, || pair(ends, self))
    }
}

/// Each program of a row over each transport that it has.
fn cells(&(programs, transports, args): &Row) -> impl Iterator<Item = Cell> {
    programs.split(' ').flat_map(move |program| {
        let transports = transports.split(' ').filter(|transport| has(program, transport));
        transports.map(move |transport| Cell::new(program, &format!("-c {transport} {args}")))
    })
}

/// Transports that the programs have for their operation.
pub fn has(program: &str, transport: &str) -> bool {
    match transport {
        "UD" => program.starts_with("send"),
        "UC" => program.starts_with("send") || program.starts_with("write"),
        _ => true,
    }
}

/// The program with these arguments.
fn command(
    place: &Place,
    program: &str,
    gid: usize,
    port: u16,
    args: &str,
    host: &str,
) -> std::process::Command {
    let (port, gid) = (port.to_string(), gid.to_string());
    let fixed = ["-d", "urxe0", "-x", &gid, "-p", &port];
    let words = fixed.into_iter().chain(args.split_whitespace()).chain(host.split_whitespace());
    place.command(&format!("ib_{program}"), words)
}

/// Runs server and client; both must exit with 0 and the client report all that was asked for.
pub fn pair(ends: &Ends, Cell { program, args }: &Cell) -> Result<(), String> {
    let port = run::port();
    let mut server = run::spawn(command(&ends.server, program, ends.gids[0], port, args, ""))?;
    server.listens(port, LIMIT)?;
    let client = run::spawn(command(&ends.client, program, ends.gids[1], port, args, ends.host))?;
    let client = client.finish(if args.contains("-a") { LIMIT_ALL } else { LIMIT });
    let server = server.finish(if client.ok() { LIMIT } else { Duration::from_secs(2) });
    if !client.ok() || !server.ok() {
        return Err(format!("server: {server}\n    client: {client}"));
    }
    reported(&client, args)
}

/// The client's table has a line for each size, each with all iterations of all QPs.
pub fn reported(client: &Outcome, args: &str) -> Result<(), String> {
    let number = |flag: &str| {
        let mut words = args.split_whitespace().skip_while(|w| *w != flag).skip(1);
        words.next().and_then(|w| w.parse::<u64>().ok())
    };
    let iterations = number("-n").unwrap_or(0) * number("-q").unwrap_or(1);
    let table = client.out.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let rows: Vec<Vec<f64>> = table
        .map(|line| line.split_whitespace().map_while(|w| w.parse().ok()).collect::<Vec<f64>>())
        .filter(|row| row.len() >= 4)
        .collect();
    // `-a` is 2 bytes to 8 MiB; to the MTU with UD.
    let sizes = match args.contains("-a") {
        false => 1,
        true if args.contains("UD") => 8,
        true => 23,
    };
    // The figures themselves may be rounded to nothing where two bytes waited for the processor.
    let complete = |row: &Vec<f64>| row[1] == iterations as f64;
    if rows.len() >= sizes && rows.iter().all(complete) {
        Ok(())
    } else {
        Err(format!("not {sizes} lines of {iterations} iterations: {client}"))
    }
}

/// The program alone refuses these arguments; the line that says so.
fn refusal(place: &Place, program: &str, args: &str, says: &str) -> Result<String, String> {
    let outcome = run::run(command(place, program, 0, run::port(), args, ""), LIMIT)?;
    let text = format!("{}{}", outcome.out, outcome.err);
    match text.lines().find(|line| line.contains(says)) {
        Some(line) if !outcome.ok() => Ok(line.trim().to_string()),
        _ => Err(format!("not refused: {outcome}")),
    }
}
