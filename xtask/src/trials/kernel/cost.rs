//! Instructions, counted by callgrind, of what programs do often (`c-tests/kernel/cost.c`) and of `ibv_devices` as a whole.
//! System calls count as the few instructions around them.
use std::{env, fs, path::Path, time::Duration};

use super::{
    inside::{Column, Guest},
    tell::{counted, told},
};
use crate::{apt, guest, run, stage};

const SUITE: &str = "cost";
const LIMIT: Duration = Duration::from_secs(300);
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

/// `cargo xtask bench kernel`: boots the guest and prints the rows with their ratios; `Err` where one is above 1.
pub fn bench() -> Result<(), String> {
    apt::ensure(&[("valgrind", "valgrind"), ("/usr/include/valgrind/callgrind.h", "valgrind")])?;
    let stage = stage::stage()?;
    let scratch = env::temp_dir().join(format!("anyverbs-bench-{}", std::process::id()));
    let result = measure(stage.public.path(), &scratch);
    let _ = fs::remove_dir_all(&scratch);
    let short = print(&result?)?;
    if short == 0 { Ok(()) } else { Err(format!("{short} rows above Debian's")) }
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

/// The table; how many rows are above 1.
fn print(text: &str) -> Result<usize, String> {
    let mut rows: Vec<(String, [f64; 3])> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["@", SUITE, column, name, "count", n] => {
                let at = Column::ALL.iter().position(|c| c.name() == column).ok_or("a strange column")?;
                let n: f64 = n.parse().map_err(|_| format!("not a number: {n}"))?;
                match rows.iter_mut().find(|row| row.0 == name) {
                    Some(row) => row.1[at] = n,
                    None => {
                        rows.push((name.to_string(), std::array::from_fn(|i| if i == at { n } else { 0.0 })))
                    }
                }
            }
            ["@", SUITE, column, _, "fail", why] => return Err(format!("{column}: {why}")),
            _ => {}
        }
    }
    if rows.iter().any(|row| row.1.contains(&0.0)) || rows.len() < 10 {
        return Err(format!("rows are missing: {rows:?}\n{}", run::tail(text, 20)));
    }
    println!("instructions (callgrind) on the kernel's rxe, one run\n");
    println!("{:<34} {:>10} {:>10} {:>10} {:>14}", "", "native", "plugin", "Debian", "native/Debian");
    let mut short = 0;
    for (name, [native, plugin, debian]) in &rows {
        let ratio = native / debian;
        short += usize::from(ratio > 1.0);
        let verdict = if ratio > 1.0 { "SHORT" } else { "" };
        println!("{name:<34} {native:>10} {plugin:>10} {debian:>10} {ratio:>14.2} {verdict}");
    }
    Ok(short)
}
