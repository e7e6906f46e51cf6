//! What the guest tells: a line for each result, which `table` reads.
//!
//! A case that fails runs again, in the column where it failed: soft-RoCE and programs have races of their own, and an emulated
//! machine makes them likely. What failed before is told as `again` and printed all the same.
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::inside::Column;
use crate::run;

/// How often a case runs at most.
pub const TRIES: usize = 3;
/// For how long all cases together run again: where much fails, once shows it, and the guest has an end.
const BUDGET: Duration = Duration::from_secs(240);

/// Nanoseconds of it that are gone.
static SPENT: AtomicU64 = AtomicU64::new(0);

/// Runs a case and tells its result.
pub fn tried(suite: &str, column: Column, case: &str, run: impl FnMut() -> Result<(), String>) {
    told(suite, column, case, retried(suite, column, case, run));
}

/// Runs a case, again where it fails; its result is the caller's to tell.
pub fn retried(
    suite: &str,
    column: Column,
    case: &str,
    run: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    until_good(run, may_rerun, |why| again(suite, column, case, why))
}

/// Until it is good, [`TRIES`] times at most; tells of each failure that another run follows.
fn until_good(
    mut run: impl FnMut() -> Result<(), String>,
    mut may_rerun: impl FnMut() -> bool,
    mut again: impl FnMut(&str),
) -> Result<(), String> {
    let mut result = run();
    for _ in 1..TRIES {
        let Err(why) = &result else { break };
        if !may_rerun() {
            break;
        }
        again(why);
        result = rerun(&mut run);
    }
    result
}

/// Whether any of the budget is left.
pub fn may_rerun() -> bool {
    Duration::from_nanos(SPENT.load(Relaxed)) < BUDGET
}

/// Takes what it lasts from the budget.
pub fn rerun<T>(run: impl FnOnce() -> T) -> T {
    let start = run::monotonic_ns();
    let result = run();
    SPENT.fetch_add(run::monotonic_ns() - start, Relaxed);
    result
}

/// A case that with our library must give what it gives with Debian's, by `compare`. Where it does not, both run again: either
/// may have been the odd one.
pub fn alike<T>(
    suite: &str,
    case: &str,
    run: impl Fn(Column) -> Result<T, String>,
    compare: impl Fn(&T, &T) -> Result<(), String>,
) {
    let mut debian = Err(String::new());
    tried(suite, Column::Debian, case, || {
        debian = run(Column::Debian);
        debian.as_ref().map(drop).map_err(Clone::clone)
    });
    for column in Column::OURS {
        let mut first = true;
        tried(suite, column, case, || {
            if !first {
                debian = run(Column::Debian);
            }
            first = false;
            compare(&run(column)?, debian.as_ref()?)
        });
    }
}

/// What `alike` compares where nothing may differ.
pub fn equal<T: PartialEq + std::fmt::Debug>(mine: &T, debian: &T) -> Result<(), String> {
    if mine == debian { Ok(()) } else { Err(format!("{mine:?}, and Debian's {debian:?}")) }
}

/// Tells the result of a case in one line.
pub fn told(suite: &str, column: Column, case: &str, result: Result<(), String>) {
    let (verdict, why) = match result {
        Ok(()) => ("pass", String::new()),
        Err(why) => ("fail", why),
    };
    tell(suite, column, case, verdict, &why);
}

/// Tells that a case failed and runs once more.
pub fn again(suite: &str, column: Column, case: &str, why: &str) {
    tell(suite, column, case, "again", why);
}

/// Tells that a case cannot run on this device.
pub fn skipped(suite: &str, column: Column, case: &str, why: &str) {
    tell(suite, column, case, "skip", why);
}

/// Tells of cases that are counted only.
pub fn counted(suite: &str, column: Column, what: &str, n: usize) {
    tell(suite, column, what, "count", &n.to_string());
}

fn tell(suite: &str, column: Column, case: &str, verdict: &str, why: &str) {
    let mut why = why.replace(['\n', '\t', '\r'], " ");
    if why.len() > 900 {
        let cut = (0..=900).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0);
        why.truncate(cut);
    }
    println!("@\t{suite}\t{}\t{case}\t{verdict}\t{why}", column.name());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a case that fails so often first, and what is told.
    fn outcome(failures: usize, budget: usize) -> (bool, Vec<String>) {
        let (mut runs, mut reruns, mut told) = (0, 0, Vec::new());
        let case = || {
            runs += 1;
            if runs <= failures { Err(format!("run {runs}")) } else { Ok(()) }
        };
        let may_rerun = || {
            reruns += 1;
            reruns <= budget
        };
        let good = until_good(case, may_rerun, |why| told.push(why.to_string())).is_ok();
        (good, told)
    }

    #[test]
    fn a_case_that_fails_runs_again_and_what_failed_is_told() {
        let told = |n: usize| (1..=n).map(|i| format!("run {i}")).collect::<Vec<_>>();
        assert_eq!(outcome(0, 9), (true, told(0)));
        assert_eq!(outcome(1, 9), (true, told(1)));
        assert_eq!(outcome(TRIES - 1, 9), (true, told(TRIES - 1)));
        assert_eq!(outcome(TRIES, 9), (false, told(TRIES - 1)), "the last failure is the result");
    }

    #[test]
    fn without_a_budget_nothing_runs_again() {
        assert_eq!(outcome(1, 0), (false, vec![]));
        assert_eq!(outcome(2, 1), (false, vec!["run 1".to_string()]));
    }
}
