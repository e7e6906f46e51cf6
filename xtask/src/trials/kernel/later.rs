//! Opcodes that came after Linux 6.1, FLUSH and ATOMIC WRITE: those cases of the conformance suite, each told by itself. Debian's
//! library has no FLUSH, and its provider posts ATOMIC WRITE by `ibv_wr_*` only. Then FLUSH of ranges that are many packets long.
use std::time::Duration;

use super::{
    inside::{Column, DEVICE, Guest},
    tell::{skipped, told},
};
use crate::{run, stage::root};

const SUITE: &str = "later";
const CASES: [&str; 2] = ["rc/flush/*", "rc/atomic-write/*"];
const LIMIT: Duration = Duration::from_secs(300);

pub fn later(guest: &Guest) {
    told(SUITE, Column::Native, "FLUSH of ranges below and above the path MTU", flushes(guest));
    let columns = Column::ALL.map(|column| (column, run(guest, column)));
    for (column, lines) in columns {
        match lines {
            Ok(lines) => lines.iter().for_each(|line| tell(column, line)),
            Err(why) => told(SUITE, column, "the suite", Err(why)),
        }
    }
}

fn flushes(guest: &Guest) -> Result<(), String> {
    let outcome = run::run(guest.command(Column::Native, "/flushes", [""; 0]), LIMIT)?.success()?;
    if outcome.out.ends_with("done\n") { Ok(()) } else { Err(outcome.to_string()) }
}

fn run(guest: &Guest, column: Column) -> Result<Vec<String>, String> {
    let mut words: Vec<String> =
        ["--device", DEVICE, "--gid", &guest.gid, "--wait", "1500"].map(String::from).to_vec();
    words.extend(CASES.iter().flat_map(|case| ["--case".to_string(), case.to_string()]));
    let files: &[&str] =
        if column == Column::Native { &["rxe", "rxe-later"] } else { &["rxe", "rxe-later", "librxe-later"] };
    for file in files {
        let file = root().join(format!("tests/conformance/deviations/{file}.tsv"));
        words.extend(["--deviations".to_string(), file.display().to_string()]);
    }
    let outcome = run::run(guest.command(column, "/conformance", words), LIMIT)?;
    // The last line counts the verdicts.
    if !outcome.out.lines().last().is_some_and(|line| line.contains(" passed, ")) {
        return Err(outcome.to_string());
    }
    Ok(outcome.out.lines().map(String::from).collect())
}

/// A line of the program: `pass CASE`, or a verdict, the case and why.
fn tell(column: Column, line: &str) {
    let Some((verdict, rest)) = line.split_once(' ') else { return };
    let (case, why) = rest.split_once(": ").unwrap_or((rest, ""));
    match verdict {
        "pass" | "deviates" => told(SUITE, column, case, Ok(())),
        "skip" => skipped(SUITE, column, case, why),
        "FAIL" => told(SUITE, column, case, Err(why.to_string())),
        _ => {}
    }
}
