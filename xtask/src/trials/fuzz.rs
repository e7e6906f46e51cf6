//! Fuzzing (`cargo xtask fuzz`) beside the trials: five minutes of processor time, or what the trials leave of that.
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    beside::Beside,
    fuzz::{Check, Fuzzer, SECONDS},
};

pub const BESIDE: &[Beside] = &[Beside { name: "fuzz", run: five_minutes }];

/// Seconds that it gets in any case.
const AT_LEAST: u64 = 60;

fn five_minutes(over: &AtomicBool) -> Vec<Check> {
    match Fuzzer::build() {
        Ok(fuzzer) => {
            fuzzer.run(None, |spent| spent >= SECONDS || (over.load(Ordering::Relaxed) && spent >= AT_LEAST))
        }
        Err(why) => vec![("the fuzzer builds".into(), Err(why))],
    }
}
