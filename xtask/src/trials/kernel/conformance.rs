//! Our conformance suite on rxe, in parts that run beside each other, since most of its time is waiting for what rxe does not
//! do. What a device, a kernel or a provider does otherwise stands in tests/conformance/deviations.
use std::{collections::BTreeSet, process::Command, time::Duration};

use super::{
    inside::{Column, DEVICE, Guest},
    tell::{self, counted, told},
};
use crate::{
    run::{self, Child},
    stage::root,
};

const SUITE: &str = "conformance";
/// More than processors: most of them sleep.
const PARTS: usize = 12;
const LIMIT: Duration = Duration::from_secs(800);

pub fn conformance(guest: &Guest) {
    for column in Column::ALL {
        let parts: Result<Vec<Child>, String> = (0..PARTS).map(|i| start(guest, column, i)).collect();
        let failing = match parts {
            Ok(parts) => read(column, parts),
            Err(why) => {
                told(SUITE, column, "starting", Err(why));
                continue;
            }
        };
        for (case, why) in failing {
            let mut first = Some(why);
            let run = || first.take().map_or_else(|| alone(guest, column, &case), Err);
            match tell::retried(SUITE, column, &case, run) {
                // Counted as all that come out well: the other columns do not tell the case.
                Ok(()) => counted(SUITE, column, "so when run again", 1),
                Err(why) => told(SUITE, column, &case, Err(why)),
            }
        }
    }
}

fn start(guest: &Guest, column: Column, i: usize) -> Result<Child, String> {
    run::spawn(command(guest, column, &["--part", &format!("{i}/{PARTS}")]))
}

/// One case, as the parts run it.
fn alone(guest: &Guest, column: Column, case: &str) -> Result<(), String> {
    let outcome = run::run(command(guest, column, &["--case", case]), LIMIT)?;
    match (failures(&outcome.out).next(), numbers(outcome.out.lines().last().unwrap_or(""))) {
        (Some((_, why)), _) => Err(why),
        (None, Some(_)) => Ok(()),
        (None, None) => Err(outcome.to_string()),
    }
}

fn command(guest: &Guest, column: Column, args: &[&str]) -> Command {
    let mut words: Vec<String> =
        ["--device", DEVICE, "--gid", &guest.gid, "--wait", "1500", "--quiet"].map(String::from).to_vec();
    let files: &[&str] = if column == Column::Native { &["rxe"] } else { &["rxe", "librxe"] };
    for file in files {
        let file = root().join(format!("tests/conformance/deviations/{file}.tsv"));
        words.extend(["--deviations".to_string(), file.display().to_string()]);
    }
    words.extend(args.iter().map(|arg| arg.to_string()));
    guest.command(column, "/conformance", words)
}

/// Cases that failed, and why.
fn failures(out: &str) -> impl Iterator<Item = (String, String)> {
    out.lines().filter_map(|line| line.strip_prefix("FAIL ")).map(|what| {
        let (case, why) = what.split_once(": ").unwrap_or((what, ""));
        (case.to_string(), why.to_string())
    })
}

/// Counts what came out, and tells which deviations no part has seen; what failed.
fn read(column: Column, parts: Vec<Child>) -> Vec<(String, String)> {
    let mut unused: Option<BTreeSet<String>> = None;
    let mut failing = Vec::new();
    for (i, part) in parts.into_iter().enumerate() {
        let outcome = part.finish(LIMIT);
        failing.extend(failures(&outcome.out));
        let here = outcome.out.lines().filter_map(|l| l.strip_prefix("unused ")).map(String::from).collect();
        unused = Some(match unused {
            None => here,
            Some(before) => before.intersection(&here).cloned().collect(),
        });
        match numbers(outcome.out.lines().last().unwrap_or("")) {
            Some([passed, deviating, skipped]) => {
                counted(SUITE, column, "as specified", passed);
                counted(SUITE, column, "deviate as listed", deviating);
                counted(SUITE, column, "not offered", skipped);
            }
            None => told(SUITE, column, &format!("part {i}"), Err(outcome.to_string())),
        }
    }
    for line in unused.into_iter().flatten() {
        told(SUITE, column, "a listed deviation that is not there any more", Err(line));
    }
    failing
}

/// `N passed, N failed, N deviating, N skipped`, without the failed.
fn numbers(line: &str) -> Option<[usize; 3]> {
    let mut words = line.split(", ").map(|part| part.split(' '));
    let mut next = |what: &str| {
        let mut part = words.next()?;
        let number = part.next()?.parse().ok()?;
        (part.next() == Some(what)).then_some(number)
    };
    let (passed, _, deviating, skipped) =
        (next("passed")?, next("failed")?, next("deviating")?, next("skipped")?);
    Some([passed, deviating, skipped])
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn the_last_line_is_read() {
        assert_eq!(numbers("15 passed, 2 failed, 951 deviating, 3 skipped"), Some([15, 951, 3]));
        assert_eq!(numbers("killed"), None);
    }
}
