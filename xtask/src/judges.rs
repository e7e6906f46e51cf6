//! The judges' table: a row for each suite, in a fixed order, printed at the end of a run. `docs/judges.tsv` keeps the rows,
//! and `docs/COMPAT.md` shows them.
use std::{collections::BTreeMap, fs, time::Duration};

use crate::{run, stage};

/// How the names of the judges begin, in the order of the table.
const JUDGES: [&str; 8] =
    ["ping-pongs", "pyverbs", "perftest", "qperf", "UCX", "Open MPI", "behaviours", "conformance"];

/// Name, run, passed, failed, skipped, and why.
type Row = [String; 6];

/// What a suite says of us: one row of the table.
pub struct Judge {
    pub name: String,
    pub passed: usize,
    pub failed: usize,
    /// How many were skipped for which reason.
    pub skipped: BTreeMap<&'static str, usize>,
}

impl Judge {
    /// A judge who has seen nothing yet.
    pub fn new(name: String) -> Judge {
        Judge { name, passed: 0, failed: 0, skipped: BTreeMap::new() }
    }
    /// Counts a test that was skipped for this reason.
    pub fn skip(&mut self, kind: &'static str) {
        *self.skipped.entry(kind).or_default() += 1;
    }
    fn row(&self) -> Row {
        let skipped: usize = self.skipped.values().sum();
        let why: Vec<String> = self.skipped.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
        let run = self.passed + self.failed + skipped;
        let [run, passed, failed, skipped] = [run, self.passed, self.failed, skipped].map(|n| n.to_string());
        [self.name.clone(), run, passed, failed, skipped, why.join(", ")]
    }
}

/// Prints the table. After a `whole` run it has a row for every judge, also for one that could not run, and a word about
/// rows that `docs/judges.tsv` has otherwise. With ANYVERBS_UPDATE_DOCS the rows go there, and into `docs/COMPAT.md`.
pub fn close(judges: &[Judge], whole: bool) {
    let mut rows: Vec<Row> = judges.iter().map(Judge::row).collect();
    if whole {
        let absent: Vec<&str> =
            JUDGES.into_iter().filter(|judge| !rows.iter().any(|row| row[0].starts_with(judge))).collect();
        let zero = || "0".to_string();
        rows.extend(
            absent.iter().map(|judge| [judge.to_string(), zero(), zero(), zero(), zero(), "not run".into()]),
        );
    }
    if rows.is_empty() {
        return;
    }
    rows.sort_by_key(place);
    print(&rows);
    let file = stage::root().join("docs/judges.tsv");
    let kept = parse(&fs::read_to_string(&file).unwrap_or_default());
    if std::env::var_os("ANYVERBS_UPDATE_DOCS").is_some() {
        let text: String = merged(kept, rows).iter().map(|row| format!("{}\n", row.join("\t"))).collect();
        if let Err(e) = fs::write(&file, text) {
            println!("{}: {e}", file.display());
        }
        // The document is made from the rows.
        let compose = run::run(stage::cargo(&["test", "--test", "compat_doc"]), Duration::from_secs(600));
        if let Err(why) = compose.and_then(run::Outcome::success) {
            println!("docs/COMPAT.md: {why}");
        }
    } else if whole {
        let other: Vec<&str> =
            rows.iter().filter(|row| !kept.contains(row)).map(|row| row[0].as_str()).collect();
        if !other.is_empty() {
            println!("docs/COMPAT.md has other rows for {} (ANYVERBS_UPDATE_DOCS=1)", other.join("; "));
        }
    }
}

/// Where a row stands: by its judge; rows of one judge keep their order.
fn place(row: &Row) -> usize {
    JUDGES.iter().position(|judge| row[0].starts_with(judge)).unwrap_or(JUDGES.len())
}

fn print(rows: &[Row]) {
    let head = ["judge", "run", "passed", "failed", "skipped", "why"].map(String::from);
    let wide = |i: usize| rows.iter().chain([&head]).map(|r| r[i].len()).max().unwrap_or(0);
    println!();
    for row in [&head].into_iter().chain(rows) {
        let cells: Vec<String> = (0..6).map(|i| format!("{:width$}", row[i], width = wide(i))).collect();
        println!("{}", cells.join("  ").trim_end());
    }
}

fn parse(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let mut cells = line.split('\t').map(String::from);
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    };
    text.lines().map(row).collect()
}

/// The rows kept so far, with those of this run in the place of older ones of their names, in the table's order.
fn merged(mut kept: Vec<Row>, new: Vec<Row>) -> Vec<Row> {
    for row in new {
        match kept.iter_mut().find(|old| old[0] == row[0]) {
            Some(old) => *old = row,
            None => kept.push(row),
        }
    }
    kept.sort_by_key(place);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_judge_in_order_and_none_that_failed() {
        let text = fs::read_to_string(stage::root().join("docs/judges.tsv")).unwrap();
        let rows = parse(&text);
        for judge in JUDGES {
            let of_it: Vec<&Row> = rows.iter().filter(|row| row[0].starts_with(judge)).collect();
            assert!(!of_it.is_empty(), "{judge} has no row");
            for row in of_it {
                let [run, passed, failed, skipped] = [1, 2, 3, 4].map(|i| row[i].parse::<usize>().unwrap());
                assert!(run == passed + skipped && failed == 0 && passed > 0, "{row:?}");
                assert!(skipped == 0 || !row[5].is_empty(), "{row:?}: skipped without a reason");
            }
        }
        assert!(rows.is_sorted_by_key(place));
        assert!(rows.iter().all(|row| place(row) < JUDGES.len()), "a row of no judge");
    }

    #[test]
    fn new_rows_take_the_place_of_old_ones() {
        let row = |name: &str, run: &str| [name, run, run, "0", "0", ""].map(String::from);
        let kept = vec![row("pyverbs, IPv4 GID", "1"), row("qperf", "2")];
        let all = merged(kept, vec![row("qperf", "3"), row("perftest", "4")]);
        assert_eq!(all, [row("pyverbs, IPv4 GID", "1"), row("perftest", "4"), row("qperf", "3")]);
    }
}
