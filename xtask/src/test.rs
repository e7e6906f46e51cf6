//! `cargo xtask test [--distro sid] [-v] [FILTER...]`: cargo's tests, then the trials, then one closing line.
use std::{
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    apt,
    beside::Beside,
    report::Tally,
    run::{self, Outcome},
    stage,
    trials::{self, sid},
};

/// The step of cargo's own tests.
const CARGO_TEST: &str = "cargo-test";

/// Runs what `args` ask for; `Ok(true)` when everything that had to run did and passed.
pub fn test(args: &[String]) -> Result<bool, String> {
    let mut tally = Tally::default();
    let (mut distro, mut filters) = (None, Vec::new());
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--distro" => distro = Some(words.next().ok_or("--distro needs a name")?.as_str()),
            "-v" | "--verbose" => tally.verbose = true,
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            word => filters.push(word),
        }
    }
    let steps = match distro {
        None => steps(),
        Some("sid") => sid::TRIALS.iter().map(|trial| trial.name).collect(),
        Some(other) => return Err(format!("unknown distribution {other}; there is sid")),
    };
    let unknown = |word: &&&str| !steps.iter().any(|step| step.contains(**word));
    if let Some(word) = filters.iter().find(unknown) {
        return Err(format!("no step has {word:?} in its name; there are {}", steps.join(" ")));
    }
    apt::ensure(apt::TEST)?;
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|part| name.contains(part));
    match distro {
        Some(_) => {
            let stage = stage::stage()?;
            sid::TRIALS.iter().filter(|t| chosen(t.name)).for_each(|trial| tally.trial(trial, &stage));
        }
        None => {
            if chosen(CARGO_TEST) {
                cargo_test(&mut tally);
            }
            let trials: Vec<_> = trials::all().filter(|t| chosen(t.name)).collect();
            let beside: Vec<_> = trials::beside().filter(|b| chosen(b.name)).map(Beside::start).collect();
            let some = !trials.is_empty();
            if some {
                let stage = stage::stage()?;
                trials.into_iter().for_each(|trial| tally.trial(trial, &stage));
            }
            beside.into_iter().for_each(|step| step.finish(&mut tally, some));
        }
    }
    Ok(tally.close(distro.is_none() && filters.is_empty()))
}

/// The names of all steps, in order.
pub fn steps() -> Vec<&'static str> {
    let trials = trials::all().map(|trial| trial.name);
    [CARGO_TEST].into_iter().chain(trials).chain(trials::beside().map(|step| step.name)).collect()
}

/// Unit and integration tests by cargo; its tests are counted one by one.
fn cargo_test(tally: &mut Tally) {
    let step = CARGO_TEST;
    tally.repeatable(step, |tally| {
        let mut cmd: Command = stage::cargo(&["test", "--workspace", "--no-fail-fast"]);
        cmd.env("CARGO_TERM_COLOR", "never");
        let start = Instant::now();
        match run::run(cmd, Duration::from_secs(1200)) {
            Ok(outcome) => _ = count(&outcome, |name, result| tally.check(step, name, result)),
            Err(why) => tally.check(step, "cargo test", Err(why)),
        }
        start.elapsed()
    });
}

/// Hands each test that `cargo test` reports to `check`, prints everything where one failed, and returns how many there were.
pub fn count(outcome: &Outcome, mut check: impl FnMut(&str, Result<(), String>)) -> usize {
    let mut counted = 0;
    for line in outcome.out.lines() {
        let Some(test) = line.strip_prefix("test ") else { continue };
        if let Some(name) = test.strip_suffix(" ... ok") {
            check(name, Ok(()));
            counted += 1;
        } else if let Some(name) = test.strip_suffix(" ... FAILED") {
            check(name, Err("failed".into()));
            counted += 1;
        }
    }
    if !outcome.ok() {
        println!("{}\n{}", outcome.out, run::tail(&outcome.err, 60));
        check("cargo test", Err(format!("exit code {:?}", outcome.code)));
    }
    if counted == 0 {
        check("tests", Err("none ran".into()));
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_there_is_not_is_refused_with_the_names_of_all() {
        for words in [&["nosuchstep"][..], &["doctor", "nosuchstep"]] {
            let why = test(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>()).unwrap_err();
            assert!(
                why.starts_with("no step has \"nosuchstep\" in its name; there are cargo-test "),
                "{why}"
            );
        }
    }
}
