//! rdma-core's suite in Python. Tests that fail, and are not known to do so each time, run again in a process of their own,
//! without the others before them.
use std::{fs, process::Command, time::Duration};

use super::{
    inside::{Column, DEVICE, Guest},
    table,
    tell::{self, TRIES, skipped, told},
};
use crate::{
    run::{self, Outcome},
    trials::pyverbs::{self, Verdict},
};

const SUITE: &str = "pyverbs";
const LIMIT: Duration = Duration::from_secs(400);
const LIMIT_AGAIN: Duration = Duration::from_secs(120);

pub fn python(guest: &Guest) {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    for column in Column::ALL {
        let outcome = match run::run(command(guest, column, &[]), LIMIT) {
            Ok(outcome) => outcome,
            Err(why) => {
                told(SUITE, column, "the suite", Err(why));
                continue;
            }
        };
        // A suite that does not end, or ends by a signal, has failed: that is no test's bad luck.
        told(SUITE, column, "the suite", complete(&outcome));
        let mut failing = Vec::new();
        for (test, result) in &pyverbs::results(&outcome.err) {
            match result {
                Verdict::Failed(how) if table::always_fails(SUITE, test, &kernel) => {
                    told(SUITE, column, test, Err(why(&outcome, test, how)));
                }
                Verdict::Failed(how) => failing.push((test.to_string(), why(&outcome, test, how))),
                good => tell_good(column, test, good),
            }
        }
        for _ in 1..TRIES {
            if failing.is_empty() || !tell::may_rerun() {
                break;
            }
            failing = tell::rerun(|| again(guest, column, failing));
        }
        for (test, why) in failing {
            told(SUITE, column, &test, Err(why));
        }
    }
}

/// Runs these tests again and tells what passes now; those that still fail, and why.
fn again(guest: &Guest, column: Column, failing: Vec<(String, String)>) -> Vec<(String, String)> {
    for (test, why) in &failing {
        tell::again(SUITE, column, test, why);
    }
    let names: Vec<String> = failing.iter().map(|(test, _)| format!("tests.{test}")).collect();
    let outcome = match run::run(command(guest, column, &names), LIMIT_AGAIN) {
        Ok(outcome) => outcome,
        Err(_) => return failing,
    };
    let results = pyverbs::results(&outcome.err);
    let ended = complete(&outcome);
    let mut still = Vec::new();
    for (test, _) in failing {
        match (results.get(test.as_str()), &ended) {
            (Some(Verdict::Failed(how)), _) => {
                let why = why(&outcome, &test, how);
                still.push((test, why));
            }
            (Some(good), Ok(())) => tell_good(column, &test, good),
            (_, ended) => {
                let why = ended.clone().err().unwrap_or_else(|| "it did not run again".into());
                still.push((test, why));
            }
        }
    }
    still
}

fn command(guest: &Guest, column: Column, tests: &[String]) -> Command {
    // By its path: another Python may come first.
    let program = "/usr/bin/python3";
    let args = [program, "tests/run_tests.py", "--dev", DEVICE, "--port", "1", "--gid", &guest.gid, "-v"];
    let words = args.into_iter().chain(tests.iter().map(String::as_str));
    let mut cmd = guest.command(column, "env", words);
    cmd.current_dir(&guest.scratch);
    cmd.envs([("PYTHONWARNINGS", "ignore"), ("PYTHONUNBUFFERED", "1"), ("PYTHONDONTWRITEBYTECODE", "1")]);
    cmd
}

/// Whether each test that ran has a result, and at least one ran.
fn complete(outcome: &Outcome) -> Result<(), String> {
    let results = pyverbs::results(&outcome.err).len();
    let number = pyverbs::told(&outcome.err);
    if number == Some(results) && results > 0 {
        Ok(())
    } else {
        Err(format!("{results} results were read; {outcome}"))
    }
}

fn why(outcome: &Outcome, test: &str, how: &str) -> String {
    format!("{how} {}", run::tail(&pyverbs::traceback(&outcome.err, test), 4))
}

fn tell_good(column: Column, test: &str, result: &Verdict) {
    match result {
        Verdict::Skipped(why) => skipped(SUITE, column, test, why),
        _ => told(SUITE, column, test, Ok(())),
    }
}
