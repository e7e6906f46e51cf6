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

/// Counts of all steps.
#[derive(Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub verbose: bool,
    failures: Vec<String>,
    judges: Vec<Judge>,
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
                println!("FAIL {step}: {name}: {why}");
                self.failures.push(format!("{step}: {name}"));
            }
        }
    }
    /// Runs one trial under its limit and prints its line.
    pub fn trial(&mut self, trial: &Trial, stage: &Stage) {
        self.step(trial.name, |tally| {
            let start = Instant::now();
            tally.watched(trial, stage);
            start.elapsed()
        });
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
        let verdict = if self.failed > failed { "FAIL" } else { "PASS" };
        let (p, f) = (self.passed - passed, self.failed - failed);
        println!("{verdict} {name}: {p} passed, {f} failed in {:.1} s", took.as_secs_f64());
    }
    /// Prints the judges' table, what failed and the closing line; true when nothing failed and something ran. `whole`:
    /// every step was to run.
    pub fn close(&self, whole: bool) -> bool {
        judges::close(&self.judges, whole);
        if !self.failures.is_empty() {
            println!("\nfailed:");
            self.failures.iter().for_each(|f| println!("  {f}"));
        }
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        println!("{} passed, {} failed{skipped}", self.passed, self.failed);
        self.failed == 0 && self.passed > 0
    }
}
