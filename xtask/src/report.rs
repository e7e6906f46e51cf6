//! Steps and checks: what passed, what failed, what could not run; and the closing line.
use std::{
    fmt::Display,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::{judges, run, stage::Stage};

pub use crate::judges::Judge;

/// A named step with its limit; a step that runs past it is killed and has failed.
pub struct Trial {
    pub name: &'static str,
    pub limit: Duration,
    pub run: fn(&mut Ctx<'_>),
}

/// What a trial works with.
pub struct Ctx<'a> {
    pub stage: &'a Stage,
    pub tally: &'a mut Tally,
    step: &'static str,
}

/// Steps that run once more where something in them failed. More that fail are no accident of a busy machine.
const REPEATS: usize = 3;

/// Counts of all steps.
#[derive(Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub verbose: bool,
    failures: Vec<String>,
    judges: Vec<Judge>,
    /// What failed in the first run of each step that ran once more.
    repeated: Vec<Vec<String>>,
    /// What fails now runs once more.
    is_first: bool,
}

impl Ctx<'_> {
    /// Records one check.
    pub fn check(&mut self, name: impl Display, result: Result<(), String>) {
        // A step past its limit has failed as a whole; what it could not start any more is not worth a line each.
        if !run::stopped() {
            self.tally.check(self.step, name, result);
        }
    }
    /// Records one case of a judge, which has its line also when it passes.
    pub fn case(&mut self, judge: &mut Judge, name: impl Display, result: Result<(), String>) {
        if run::stopped() {
            return;
        }
        *(if result.is_ok() { &mut judge.passed } else { &mut judge.failed }) += 1;
        if result.is_ok() && !self.tally.verbose {
            println!("  pass {}: {name}", self.step);
        }
        self.check(name, result);
    }
    /// Records that something cannot run as this user.
    pub fn skip(&mut self, name: impl Display, why: &str) {
        println!("SKIP {}: {name}: {why}", self.step);
        self.tally.skipped += 1;
    }
    /// Adds a row to the closing table.
    pub fn judge(&mut self, judge: Judge) {
        self.tally.judges.push(judge);
    }
}

/// Runs a case of a program that is not ours, and once more where it fails: such programs have races of their own. What
/// failed first is printed all the same.
pub fn twice(name: &str, mut case: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    case().or_else(|why| {
        println!("  again {name}: {why}");
        case()
    })
}

impl Tally {
    /// Records one check of `step`.
    pub fn check(&mut self, step: &str, name: impl Display, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                if self.verbose {
                    println!("  pass {step}: {name}");
                }
            }
            Err(why) => {
                self.failed += 1;
                println!("{} {step}: {name}: {why}", if self.is_first { "  again" } else { "FAIL" });
                self.failures.push(format!("{step}: {name}"));
            }
        }
    }
    /// Runs one trial under its limit and prints its line; where something fails, once more.
    pub fn trial(&mut self, trial: &Trial, stage: &Stage) {
        self.repeatable(trial.name, |tally| {
            let start = Instant::now();
            tally.watched(trial, stage);
            start.elapsed()
        });
    }
    /// A `step` that runs once more where something fails. The second run counts; what failed in the first one is printed again
    /// at the end.
    pub fn repeatable(&mut self, name: &str, mut checks: impl FnMut(&mut Tally) -> Duration) {
        let mut attempt = |is_first| {
            let mut tally = Tally { verbose: self.verbose, is_first, ..Tally::default() };
            tally.step(name, &mut checks);
            tally
        };
        let may_repeat = self.repeated.len() < REPEATS;
        let mut tally = attempt(may_repeat);
        if may_repeat && tally.failed > 0 {
            self.repeated.push(tally.failures);
            tally = attempt(false);
        }
        self.passed += tally.passed;
        self.failed += tally.failed;
        self.skipped += tally.skipped;
        self.failures.append(&mut tally.failures);
        self.judges.append(&mut tally.judges);
    }
    fn watched(&mut self, trial: &Trial, stage: &Stage) {
        let (done, watch) = mpsc::channel::<()>();
        let limit = trial.limit;
        let dog = thread::spawn(move || {
            let over = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if over {
                run::kill_all();
            }
            over
        });
        let mut ctx = Ctx { stage, tally: self, step: trial.name };
        (trial.run)(&mut ctx);
        drop(done);
        if dog.join().unwrap_or(true) {
            self.check(trial.name, "time", Err(format!("ran past its limit of {} s", limit.as_secs())));
        }
        run::allow();
    }
    /// Records what `checks` does, which tells how long it took, as the step `name`, and prints its line; none is a failure.
    pub fn step(&mut self, name: &str, checks: impl FnOnce(&mut Tally) -> Duration) {
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped);
        let took = checks(self);
        if (passed, failed, skipped) == (self.passed, self.failed, self.skipped) {
            self.check(name, "checks", Err("made none".into()));
        }
        let verdict = match self.failed > failed {
            true if self.is_first => "AGAIN",
            true => "FAIL",
            false => "PASS",
        };
        let (p, f) = (self.passed - passed, self.failed - failed);
        println!("{verdict} {name}: {p} passed, {f} failed in {:.1} s", took.as_secs_f64());
    }
    /// Prints the judges' table, what failed, also at first only, and the closing line; true when nothing failed and something ran. `whole`:
    /// every step was to run.
    pub fn close(&self, whole: bool) -> bool {
        judges::close(&self.judges, whole);
        if !self.repeated.is_empty() {
            println!("\nfailed at first, so that the step ran once more:");
            self.repeated.iter().flatten().for_each(|f| println!("  {f}"));
        }
        if !self.failures.is_empty() {
            println!("\nfailed:");
            self.failures.iter().for_each(|f| println!("  {f}"));
        }
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        println!("{} passed, {} failed{skipped}", self.passed, self.failed);
        self.failed == 0 && self.passed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step whose check fails in its first `bad` runs.
    fn run(tally: &mut Tally, bad: usize) {
        let mut runs = 0;
        tally.repeatable("step", |tally| {
            runs += 1;
            tally.check("step", "check", if runs > bad { Ok(()) } else { Err("not yet".into()) });
            Duration::ZERO
        });
    }

    #[test]
    fn a_step_that_fails_runs_once_more_and_the_second_run_counts() {
        let mut tally = Tally::default();
        run(&mut tally, 1);
        assert_eq!((tally.passed, tally.failed), (1, 0));
        assert_eq!(tally.repeated, [["step: check"]]);
        run(&mut tally, 2);
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (1, 1, 1));
    }

    #[test]
    fn only_a_few_steps_run_once_more() {
        let mut tally = Tally::default();
        (0..REPEATS + 2).for_each(|_| run(&mut tally, 1));
        assert_eq!((tally.passed, tally.failed), (REPEATS, 2));
    }

    #[test]
    fn a_step_without_checks_fails_twice() {
        let mut tally = Tally::default();
        tally.repeatable("step", |_| Duration::ZERO);
        assert_eq!((tally.passed, tally.failed, tally.repeated.len()), (0, 1, 1));
    }
}
