//! Steps that run beside the trials, on what those leave of the processors.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{fuzz::Check, report::Tally};

/// A step that starts before the trials and whose outcome is taken behind them.
pub struct Beside {
    pub name: &'static str,
    /// Ends soon when the flag says that the trials are through.
    pub run: fn(&AtomicBool) -> Vec<Check>,
}

/// One that has been started.
pub struct Running {
    name: &'static str,
    over: Arc<AtomicBool>,
    thread: JoinHandle<(Vec<Check>, Duration)>,
}

impl Beside {
    /// Starts it.
    pub fn start(&self) -> Running {
        let (run, over) = (self.run, Arc::new(AtomicBool::new(false)));
        let flag = over.clone();
        let timed = move || {
            let start = Instant::now();
            (run(&flag), start.elapsed())
        };
        Running { name: self.name, over, thread: thread::spawn(timed) }
    }
}

impl Running {
    /// Waits for its end and records its checks. `hurry`: trials have run beside it, and are through.
    pub fn finish(self, tally: &mut Tally, hurry: bool) {
        self.over.store(hurry, Ordering::Relaxed);
        let panicked = || (vec![("its thread".into(), Err("panicked".into()))], Duration::ZERO);
        let (checks, took) = self.thread.join().unwrap_or_else(|_| panicked());
        tally.step(self.name, |tally| {
            checks.into_iter().for_each(|(name, result)| tally.check(self.name, name, result));
            took
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_hears_that_the_trials_are_through_and_its_checks_count() {
        fn waits(over: &AtomicBool) -> Vec<Check> {
            let end = Instant::now() + Duration::from_secs(10);
            while !over.load(Ordering::Relaxed) && Instant::now() < end {
                thread::yield_now();
            }
            vec![("heard".into(), if over.load(Ordering::Relaxed) { Ok(()) } else { Err("no".into()) })]
        }
        let mut tally = Tally::default();
        Beside { name: "waits", run: waits }.start().finish(&mut tally, true);
        assert_eq!((tally.passed, tally.failed), (1, 0));
    }

    #[test]
    fn a_step_that_panics_or_checks_nothing_has_failed() {
        let mut tally = Tally::default();
        Beside { name: "panics", run: |_| panic!("on purpose") }.start().finish(&mut tally, false);
        Beside { name: "nothing", run: |_| Vec::new() }.start().finish(&mut tally, false);
        assert_eq!((tally.passed, tally.failed), (0, 2));
    }
}
