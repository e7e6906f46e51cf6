//! Instructions, counted by callgrind, of what programs do often (`c-tests/kernel/cost.c`) and of `ibv_devices` as a whole.
//! System calls count as the few instructions around them.
use std::{env, fs, path::Path, time::Duration};

use super::{
    inside::{Column, Guest},
    tell::{counted, told},
};
use crate::{apt, guest, report::Ctx, run, stage, trials::pyverbs};

const SUITE: &str = "cost";
const LIMIT: Duration = Duration::from_secs(300);
/// Rows that there are at least.
const LEAST: usize = 20;
/// What an allocation may cost more in one process than in another.
const ALLOCATOR: f64 = 250.0;
/// The row of a whole program.
const WHOLE: &str = "ibv_devices, the whole process";

/// In the guest: tells the instructions of each row, one call's or one cycle's.
pub fn cost(guest: &Guest) {
    for column in Column::ALL {
        match whole(guest, column).and_then(|n| rows(guest, column).map(|rows| (n, rows))) {
            Ok((n, rows)) => {
                counted(SUITE, column, WHOLE, n);
                rows.iter().for_each(|(name, n)| counted(SUITE, column, name, *n));
            }
            Err(why) => told(SUITE, column, "callgrind", Err(why)),
        }
    }
}

fn whole(guest: &Guest, column: Column) -> Result<usize, String> {
    let dir = Scratch::new(column)?;
    let file = format!("--callgrind-out-file={}/out", dir.0);
    let cmd = guest.command(column, "valgrind", ["--tool=callgrind", &file, "ibv_devices"]);
    run::run(cmd, LIMIT)?.success()?;
    let text = fs::read_to_string(format!("{}/out", dir.0)).map_err(|e| e.to_string())?;
    field(&text, "summary:").ok_or("no summary".into())
}

/// What each dump says: its name, and instructions of one repetition.
fn rows(guest: &Guest, column: Column) -> Result<Vec<(String, usize)>, String> {
    let dir = Scratch::new(column)?;
    let file = format!("--callgrind-out-file={}/out", dir.0);
    let program = guest.own("cost");
    let words = ["--tool=callgrind", "--collect-atstart=no", &file, &program];
    let cmd = guest.command(column, "valgrind", words);
    let outcome = run::run(cmd, LIMIT)?.success()?;
    if !outcome.out.contains("counted") {
        return Err(outcome.to_string());
    }
    let mut rows = Vec::new();
    for number in 1.. {
        let Ok(text) = fs::read_to_string(format!("{}/out.{number}", dir.0)) else { break };
        let row = text.lines().find_map(|line| line.strip_prefix("desc: Trigger: Client Request: "));
        let Some((rounds, name)) = row.and_then(|row| row.split_once(' ')) else { continue };
        let rounds: usize = rounds.parse().map_err(|_| format!("a row without a number: {rounds} {name}"))?;
        let total = field(&text, "summary:").or_else(|| field(&text, "totals:"));
        rows.push((name.to_string(), total.ok_or("no total")? / rounds));
    }
    if rows.is_empty() { Err(format!("callgrind wrote nothing: {outcome}")) } else { Ok(rows) }
}

fn field(text: &str, name: &str) -> Option<usize> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// A folder that goes with its value.
struct Scratch(String);

impl Scratch {
    fn new(column: Column) -> Result<Scratch, String> {
        let path = env::temp_dir().join(format!("anyverbs-cost-{}-{}", std::process::id(), column.name()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|e| e.to_string())?;
        Ok(Scratch(path.display().to_string()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A row of the closing table: instructions in each column.
struct Row {
    name: String,
    counts: [f64; 3],
}

impl Row {
    /// Why a column of ours is not as good as Debian's library. The counts are exact, so there is no slack for our provider; Debian's
    /// takes its memory by calloc, which costs it 130 or 320 instructions as the heap lies, with either library.
    fn verdict(&self, column: Column) -> Result<(), String> {
        let [ours, debian] = [column, Column::Debian].map(|column| self.counts[column as usize]);
        let slack = if column == Column::Plugin && self.allocates() { ALLOCATOR } else { 0.0 };
        if ours <= debian + slack {
            return Ok(());
        }
        Err(format!("{ours} instructions, Debian's library {debian}: {:.3}", ours / debian))
    }

    /// Whether it is a cycle of an object that holds a queue.
    fn allocates(&self) -> bool {
        self.name.split(' ').any(|word| ["CQ", "QP", "SRQ"].contains(&word))
    }
}

/// The step `kernel-cost`: nothing takes more instructions than with Debian's library, neither with our provider nor with Debian's
/// on our library.
pub fn trial(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("instructions on the kernel's rxe", "needs root");
    }
    let scratch = pyverbs::Folder(env::temp_dir().join(format!("anyverbs-test-{}-cost", std::process::id())));
    let measured = ensure().and_then(|()| measure(ctx.stage.public.path(), &scratch.0));
    match measured.and_then(|text| read(&text)) {
        Ok(rows) => {
            print(&rows);
            for row in &rows {
                for column in Column::OURS {
                    ctx.check(format!("{}, {}", row.name, column.name()), row.verdict(column));
                }
            }
        }
        Err(why) => ctx.check("counting", Err(why)),
    }
}

/// `cargo xtask bench kernel`: boots the guest and prints the rows with their ratios; `Err` where one is above 1.
pub fn bench() -> Result<(), String> {
    ensure()?;
    let stage = stage::stage()?;
    let scratch =
        pyverbs::Folder(env::temp_dir().join(format!("anyverbs-bench-{}-cost", std::process::id())));
    let rows = read(&measure(stage.public.path(), &scratch.0)?)?;
    print(&rows);
    let short = rows.iter().filter(|row| row.verdict(Column::Native).is_err()).count();
    if short == 0 { Ok(()) } else { Err(format!("{short} rows above Debian's")) }
}

fn ensure() -> Result<(), String> {
    apt::ensure(&[("valgrind", "valgrind"), ("/usr/include/valgrind/callgrind.h", "valgrind")])
}

fn measure(public: &Path, scratch: &Path) -> Result<String, String> {
    fs::create_dir_all(scratch.join("bin")).map_err(|e| e.to_string())?;
    stage::system_program("kernel/cost", &scratch.join("bin/cost"))?;
    let me = env::current_exe().map_err(|e| e.to_string())?;
    let words = [&me, Path::new("in-guest"), public, scratch].map(|p| p.display().to_string());
    let mut words = words.to_vec();
    words.extend(["usual", SUITE].map(String::from));
    let limit = 900;
    let cmd = guest::command(&words, limit)?;
    Ok(run::run(cmd, Duration::from_secs(u64::from(limit) + 15))?.success()?.out)
}

/// What the guest has told.
fn read(text: &str) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["@", SUITE, column, name, "count", n] => {
                let at = Column::ALL.iter().position(|c| c.name() == column).ok_or("a strange column")?;
                let n: f64 = n.parse().map_err(|_| format!("not a number: {n}"))?;
                match rows.iter_mut().find(|row| row.name == name) {
                    Some(row) => row.counts[at] = n,
                    None => {
                        let counts = std::array::from_fn(|i| if i == at { n } else { 0.0 });
                        rows.push(Row { name: name.to_string(), counts });
                    }
                }
            }
            ["@", SUITE, column, _, "fail", why] => return Err(format!("{column}: {why}")),
            _ => {}
        }
    }
    let whole = rows.len() >= LEAST && rows.iter().all(|row| row.counts.iter().all(|&n| n > 0.0));
    if whole { Ok(rows) } else { Err(format!("rows are missing:\n{}", run::tail(text, 40))) }
}

fn print(rows: &[Row]) {
    println!("instructions (callgrind) on the kernel's rxe, one run\n");
    println!("{:<34} {:>10} {:>10} {:>10} {:>14}", "", "native", "plugin", "Debian", "native/Debian");
    for row in rows {
        let Row { name, counts: [native, plugin, debian] } = row;
        let verdict = if row.verdict(Column::Native).is_err() { "SHORT" } else { "" };
        println!("{name:<34} {native:>10} {plugin:>10} {debian:>10} {:>14.2} {verdict}", native / debian);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(native: usize) -> String {
        let mut text = String::new();
        for row in 0..LEAST {
            for (column, n) in [("native", native), ("plugin", 60), ("Debian", 60)] {
                text += &format!("@\tcost\t{column}\trow {row}\tcount\t{n}\n");
            }
        }
        text
    }

    #[test]
    fn one_instruction_more_than_debians_is_too_many() {
        let verdict = |native| read(&told(native)).unwrap()[0].verdict(Column::Native);
        assert_eq!(verdict(60), Ok(()));
        assert_eq!(verdict(61), Err("61 instructions, Debian's library 60: 1.017".into()));
    }

    #[test]
    fn only_where_debians_provider_allocates_a_queue_it_has_slack() {
        let allocates = |name: &str| Row { name: name.into(), counts: [0.0; 3] }.allocates();
        assert!(["CQ", "extended QP", "SRQ"].map(allocates).iter().all(|&it| it));
        assert!(!["poll, empty", "MR", "SEND of 32 bytes"].map(allocates).iter().any(|&it| it));
    }

    #[test]
    fn rows_that_are_missing_are_no_success() {
        assert!(read("").is_err());
        let text = told(60);
        assert!(read(text.rsplit_once("@\t").unwrap().0).is_err());
        assert!(read(&format!("{text}@\tcost\tnative\tcallgrind\tfail\tno total\n")).is_err());
    }
}
