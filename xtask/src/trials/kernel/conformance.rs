//! Our conformance suite on rxe, in parts that run beside each other, since most of its time is waiting for what rxe does not
//! do. What a device, a kernel or a provider does otherwise stands in tests/conformance/deviations.
use std::{collections::BTreeSet, time::Duration};

use super::{
    inside::{Column, DEVICE, Guest},
    tell::{counted, told},
};
use crate::{
    run::{self, Child},
    stage::root,
};

const SUITE: &str = "conformance";
const PARTS: usize = 12;
const LIMIT: Duration = Duration::from_secs(800);

pub fn conformance(guest: &Guest) {
    // The usual run has no time for what does not concern us.
    let columns: &[Column] = if guest.whole { &Column::ALL } else { &[Column::Native] };
    for &column in columns {
        let files: &[&str] = if column == Column::Native { &["rxe"] } else { &["rxe", "librxe"] };
        let parts: Result<Vec<Child>, String> = (0..PARTS).map(|i| start(guest, column, i, files)).collect();
        match parts {
            Ok(parts) => read(column, parts),
            Err(why) => told(SUITE, column, "starting", Err(why)),
        }
    }
}

fn start(guest: &Guest, column: Column, i: usize, files: &[&str]) -> Result<Child, String> {
    let part = format!("{i}/{PARTS}");
    let mut words: Vec<String> =
        ["--device", DEVICE, "--gid", &guest.gid, "--wait", "1500", "--quiet", "--part", &part]
            .map(String::from)
            .to_vec();
    for file in files {
        let file = root().join(format!("tests/conformance/deviations/{file}.tsv"));
        words.extend(["--deviations".to_string(), file.display().to_string()]);
    }
    run::spawn(guest.command(column, "/conformance", words))
}

/// Tells what failed, counts the rest, and tells which deviations no part has seen.
fn read(column: Column, parts: Vec<Child>) {
    let mut unused: Option<BTreeSet<String>> = None;
    for (i, part) in parts.into_iter().enumerate() {
        let outcome = part.finish(LIMIT);
        for line in outcome.out.lines() {
            if let Some(what) = line.strip_prefix("FAIL ") {
                let (case, why) = what.split_once(": ").unwrap_or((what, ""));
                told(SUITE, column, case, Err(why.to_string()));
            }
        }
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
