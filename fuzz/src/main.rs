//! The fuzzer. `ANYVERBS_FUZZ` names the target; the arguments are libFuzzer's.
#![no_main]
use anyverbs_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static CHOSEN: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("ANYVERBS_FUZZ").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("ANYVERBS_FUZZ={name:?} names no target"))
});

fuzz_target!(|data: &[u8]| (CHOSEN.run)(data));
