//! The results that the guest tells, as one table with a row for each suite and a column for each library; and what must hold.
use std::collections::{BTreeMap, BTreeSet};

use super::inside::Column;
use crate::report::Ctx;

/// Suite, kernels or `*`, case (one that ends in `*` stands for all that begin so), and why it fails. With `?` before the case
/// it may pass; with `~` it fails at random with each library, also where Debian's happens to pass.
const LISTED: &str = include_str!("listed.tsv");

/// What became of a case in a column.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Pass,
    Skip(String),
    Fail(String),
}

/// Counts of a suite in a column.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: usize,
    skipped: usize,
    failed: usize,
}

#[derive(Default)]
pub struct Table {
    release: String,
    cases: BTreeMap<(String, String), [Option<Said>; 3]>,
    /// Cases that are counted only: by suite and what is counted.
    counts: BTreeMap<(String, String), [usize; 3]>,
    /// Failures that another run followed: suite, case and column, and why.
    again: Vec<(String, String)>,
    /// Seconds of each suite.
    times: Vec<(String, String)>,
}

impl Table {
    /// From the guest's lines.
    pub fn read(release: &str, text: &str) -> Table {
        let mut table = Table { release: release.to_string(), ..Table::default() };
        for line in text.lines() {
            let Some(line) = line.strip_prefix("@\t") else { continue };
            let fields: Vec<&str> = line.split('\t').collect();
            let [suite, column, case, verdict, why] = fields[..] else { continue };
            if verdict == "time" {
                table.times.push((suite.to_string(), why.to_string()));
                continue;
            }
            let Some(at) = Column::ALL.iter().position(|c| c.name() == column) else { continue };
            if verdict == "again" {
                table.again.push((format!("{suite}, {case}, {column}"), why.to_string()));
                continue;
            }
            let key = (suite.to_string(), case.to_string());
            let said = match verdict {
                "pass" => Said::Pass,
                "skip" => Said::Skip(why.to_string()),
                "count" => {
                    table.counts.entry(key).or_default()[at] += why.parse().unwrap_or(0);
                    continue;
                }
                _ => Said::Fail(why.to_string()),
            };
            table.cases.entry(key).or_default()[at] = Some(said);
        }
        table
    }

    /// A check for each case and column of ours, for each case of Debian's that fails, and for each suite.
    pub fn judge(&self, ctx: &mut Ctx<'_>, suites: &[&str]) {
        for (name, why) in &self.again {
            println!("  again kernel-{}: {name}: {why}", self.release);
        }
        let mut used = BTreeSet::new();
        for ((suite, case), row) in &self.cases {
            for (i, said) in row.iter().enumerate() {
                let name = format!("{suite}, {case}, {}", Column::ALL[i].name());
                if let Some(result) = self.verdict(suite, case, row, said.as_ref(), &mut used) {
                    ctx.check(name, result);
                }
            }
        }
        for suite in suites {
            let done = self.times.iter().any(|(name, _)| name == suite);
            // A suite may be for our provider alone.
            let some = (0..3).all(|i| self.passes(suite, i) > 0 || i > 0 && !self.ran(suite, i));
            let result = if done && some {
                Ok(())
            } else {
                Err("it did not come to its end, or nothing passed".to_string())
            };
            ctx.check(format!("{suite} ran"), result);
        }
        for line in lines().filter(|l| suites.contains(&l.suite) && l.is_of(&self.release)) {
            if !line.may_pass && !used.contains(line.case) {
                let why = Err("nothing of it fails any more".to_string());
                ctx.check(format!("listed {}, {}", line.suite, line.case), why);
            }
        }
    }

    /// What is wrong with a result; none where there is nothing to check.
    fn verdict(
        &self,
        suite: &str,
        case: &str,
        row: &[Option<Said>; 3],
        said: Option<&Said>,
        used: &mut BTreeSet<&'static str>,
    ) -> Option<Result<(), String>> {
        let debian = row[2].as_ref();
        match said {
            // A case, or a suite, of some columns only.
            None if debian.is_none() => None,
            None => Some(Err("was not run".into())),
            Some(Said::Pass) => Some(Ok(())),
            // Refusing what Debian's library takes and fails is no worse.
            Some(Said::Skip(why)) => match debian {
                Some(Said::Skip(_) | Said::Fail(_)) => None,
                _ => Some(Err(format!("skipped ({why}), and not by Debian's library"))),
            },
            Some(Said::Fail(why)) => {
                let line = lines().find(|l| l.suite == suite && l.is_of(&self.release) && l.means(case));
                match line {
                    Some(line) if line.at_random || !matches!(debian, Some(Said::Pass)) => {
                        used.insert(line.case);
                        None
                    }
                    Some(_) => Some(Err(format!("{why} (Debian's library passes)"))),
                    None => Some(Err(why.clone())),
                }
            }
        }
    }

    /// Whether a column has any result of a suite.
    fn ran(&self, suite: &str, column: usize) -> bool {
        self.cases.iter().any(|((s, _), row)| s == suite && row[column].is_some())
    }

    fn passes(&self, suite: &str, column: usize) -> usize {
        let counted: usize =
            self.counts.iter().filter(|((s, _), _)| s == suite).map(|(_, numbers)| numbers[column]).sum();
        self.count(suite, column).passed + counted
    }

    fn count(&self, suite: &str, column: usize) -> Counts {
        let mut counts = Counts::default();
        for (_, row) in self.cases.iter().filter(|((s, _), _)| s == suite) {
            match &row[column] {
                Some(Said::Pass) => counts.passed += 1,
                Some(Said::Skip(_)) => counts.skipped += 1,
                Some(Said::Fail(_)) => counts.failed += 1,
                None => {}
            }
        }
        counts
    }

    /// A row for each suite, in the order in which they ran; and for what is counted.
    pub fn print(&self) {
        println!(
            "\nkernel {:<27} {:>20} {:>20} {:>20} {:>9}",
            self.release, "native", "plugin", "Debian", "seconds"
        );
        for (suite, seconds) in &self.times {
            if self.cases.keys().any(|(s, _)| s == suite) {
                let cell = |column: usize| {
                    let c = self.count(suite, column);
                    format!("{} / {} / {}", c.passed, c.failed, c.skipped)
                };
                let cells = [0, 1, 2].map(cell);
                println!("{suite:<34} {:>20} {:>20} {:>20} {seconds:>9}", cells[0], cells[1], cells[2]);
            }
            for ((_, what), n) in self.counts.iter().filter(|((s, _), _)| s == suite) {
                let name = format!("{suite}, {what}");
                println!("{name:<34} {:>20} {:>20} {:>20}", n[0], n[1], n[2]);
            }
        }
        println!("(passed / failed as listed or not / skipped; {} runs again)\n", self.again.len());
    }
}

/// A line of the list.
struct Line {
    suite: &'static str,
    kernels: &'static str,
    case: &'static str,
    may_pass: bool,
    at_random: bool,
}

impl Line {
    fn is_of(&self, release: &str) -> bool {
        self.kernels == "*" || self.kernels == release
    }
    fn means(&self, case: &str) -> bool {
        self.case.strip_suffix('*').map_or(self.case == case, |start| case.starts_with(start))
    }
}

fn lines() -> impl Iterator<Item = Line> {
    parse(LISTED)
}

/// Whether a case is listed as failing each time on a kernel that says it is this one (`6.1.0-50-amd64`).
pub fn always_fails(suite: &str, case: &str, kernel: &str) -> bool {
    let here = |line: &Line| line.kernels == "*" || kernel.starts_with(&format!("{}.", line.kernels));
    lines().any(|line| line.suite == suite && !line.may_pass && here(&line) && line.means(case))
}

fn parse(text: &'static str) -> impl Iterator<Item = Line> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut columns = line.split('\t');
        let (suite, kernels, case) = (columns.next()?, columns.next()?, columns.next()?);
        let at_random = case.starts_with('~');
        let may_pass = at_random || case.starts_with('?');
        Some(Line { suite, kernels, case: case.trim_start_matches(['?', '~']), may_pass, at_random })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[&str]) -> Table {
        Table::read("6.1", &lines.join("\n"))
    }

    /// Whether each result that is checked holds, by column.
    fn results(table: &Table) -> Vec<(usize, bool)> {
        let mut all = Vec::new();
        for ((suite, case), row) in &table.cases {
            for (i, said) in row.iter().enumerate() {
                let verdict = table.verdict(suite, case, row, said.as_ref(), &mut BTreeSet::new());
                all.extend(verdict.map(|v| (i, v.is_ok())));
            }
        }
        all
    }

    #[test]
    fn ours_must_pass_what_debian_passes() {
        let told = table(&["@\ts\tnative\tc\tfail\twhy", "noise", "@\ts\tDebian\tc\tpass\t"]);
        assert_eq!(results(&told), [(0, false), (1, false), (2, true)]);
    }

    #[test]
    fn a_failure_of_debian_alone_must_be_listed_too() {
        let told =
            table(&["@\ts\tnative\tc\tpass\t", "@\ts\tplugin\tc\tpass\t", "@\ts\tDebian\tc\tfail\twhy"]);
        assert_eq!(results(&told), [(0, true), (1, true), (2, false)]);
    }

    #[test]
    fn a_skip_is_one_of_all_columns() {
        let skip = |column: &str| format!("@\ts\t{column}\tc\tskip\twhy");
        let all = ["native", "plugin", "Debian"].map(skip);
        assert_eq!(results(&table(&all.each_ref().map(|s| s.as_str()))), []);
        let one = table(&[&all[0], "@\ts\tplugin\tc\tpass\t", "@\ts\tDebian\tc\tpass\t"]);
        assert_eq!(results(&one), [(0, false), (1, true), (2, true)]);
    }

    #[test]
    fn what_failed_and_passed_then_passes_and_is_kept() {
        let table = table(&["@\ts\tnative\tc\tagain\twhy", "@\ts\tnative\tc\tpass\t"]);
        assert_eq!(results(&table), [(0, true)]);
        assert_eq!(table.again, [("s, c, native".to_string(), "why".to_string())]);
    }

    #[test]
    fn what_fails_at_random_may_fail_where_debian_passes_and_pass_in_all_columns() {
        let fails = |case: &str| {
            let rows = [("native", "fail"), ("plugin", "pass"), ("Debian", "pass")];
            let rows = rows.map(|(column, verdict)| format!("@\tpyverbs\t{column}\t{case}\t{verdict}\twhy"));
            results(&Table::read("6.12", &rows.join("\n")))
        };
        assert_eq!(fails("test_cq.CQTest.test_resize_cq"), [(1, true), (2, true)]);
        assert_eq!(fails("test_cq.CQTest.test_other"), [(0, false), (1, true), (2, true)]);
        let marks: Vec<_> = parse("s\t*\t~a\twhy\ns\t*\t?b\twhy\ns\t*\tc\twhy").collect();
        let marks: Vec<_> = marks.iter().map(|l| (l.case, l.may_pass, l.at_random)).collect();
        assert_eq!(marks, [("a", true, true), ("b", true, false), ("c", false, false)]);
    }

    #[test]
    fn what_always_fails_does_so_on_its_kernel() {
        let test = "test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write";
        assert!(always_fails("pyverbs", test, "6.1.0-57-amd64"));
        assert!(!always_fails("pyverbs", test, "6.12.117+deb12-amd64"));
        assert!(
            !always_fails("pyverbs", "test_cq.CQTest.test_resize_cq", "6.12.117+deb12-amd64"),
            "at random"
        );
    }

    #[test]
    fn every_line_of_the_list_has_a_reason() {
        for line in LISTED.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            assert!(columns.len() == 4 && columns.iter().all(|c| !c.is_empty()), "{line}");
        }
    }
}
