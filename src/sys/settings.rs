//! Settings by environment variables: which there are, and those that are one of a few words. Not obeyed in a setuid program.
use super::log::{self, explain};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What most of them say: the one word that changes something, and the one that says what holds anyway.
const SWITCH: &[&str] = &["0", "1"];

/// Every setting of the library with the words that it may be; none where it is a text that its reader judges. README.md and the man page have the same list.
pub const SETTINGS: [(&str, &[&str]); 15] = [
    ("ANYVERBS_DEVICES", &[]),
    ("ANYVERBS_DEVICE_NAME", &[]),
    ("ANYVERBS_DIRECT", SWITCH),
    (log::EXPLAIN, SWITCH),
    ("ANYVERBS_FAULTS", &[]),
    ("ANYVERBS_GSO", SWITCH),
    ("ANYVERBS_LIDS", &[]),
    ("ANYVERBS_LINK_LAYER", &[]),
    ("ANYVERBS_MEMBARRIER", SWITCH),
    ("ANYVERBS_PCAP", &[]),
    ("ANYVERBS_PEER_DEATH", &["hardware"]),
    ("ANYVERBS_PROVIDER", &["plugin"]),
    ("ANYVERBS_PTRACER", SWITCH),
    ("ANYVERBS_SIGSEGV", SWITCH),
    ("ANYVERBS_SOFT", SWITCH),
];

/// What our tests and xtask read: the programs that they start have it too, and it is nothing to tell of.
pub const WORKSHOP: [&str; 16] = [
    "ANYVERBS_FUZZ",
    "ANYVERBS_GUEST_CACHE",
    "ANYVERBS_GUEST_SECONDS",
    "ANYVERBS_KERNEL",
    "ANYVERBS_LIBRARY",
    "ANYVERBS_ORACLE_INCLUDE",
    "ANYVERBS_PACKETS",
    "ANYVERBS_SEED",
    "ANYVERBS_SIM_SEEDS",
    "ANYVERBS_SOAK_SECONDS",
    "ANYVERBS_TEST_CFLAGS",
    "ANYVERBS_TEST_LIBRARY",
    "ANYVERBS_TEST_RUN",
    "ANYVERBS_TEST_WRAP",
    "ANYVERBS_UPDATE_DOCS",
    "ANYVERBS_UPDATE_HEADER",
];

/// The place among its words of what the setting says. None where it is not set, is empty, or says something else, which is told.
pub fn choose(name: &str) -> Option<usize> {
    let words = SETTINGS.iter().find(|(known, _)| *known == name)?.1;
    let said = if super::is_setuid() { None } else { std::env::var_os(name) }?;
    let chosen = words.iter().position(|word| said == *word);
    if chosen.is_none() && !said.is_empty() {
        // Who misspells this one would otherwise not be told of it.
        let then = if name == log::EXPLAIN { "taken as 1" } else { "ignored" };
        refuse(name, format_args!("{name}={said:?}: expected {}; it is {then}", words.join(" or ")));
    }
    chosen
}

/// The setting is 0; 1 says what holds anyway.
pub fn is_off(name: &str) -> bool {
    choose(name) == Some(0)
}

/// Explains what is wrong with the value of a setting, once in a process: some are read again and again.
pub fn refuse(name: &str, reason: fmt::Arguments<'_>) {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let bit = SETTINGS.iter().position(|(known, _)| *known == name).map_or(0, |at| 1 << at);
    if bit == 0 || TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        explain(reason);
    }
}

/// Explains, at the first call, which variables of our name mean nothing and which have none of their words: what is read only later, or
/// never, would pass unseen.
pub fn check() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) || !log::enabled() || super::is_setuid() {
        return;
    }
    for (name, _) in SETTINGS.iter().filter(|(_, words)| !words.is_empty()) {
        choose(name);
    }
    let known = || SETTINGS.iter().map(|(name, _)| *name);
    for (name, _) in std::env::vars_os() {
        let is_ours = name.as_bytes().starts_with(b"ANYVERBS_");
        if is_ours && !known().chain(WORKSHOP).any(|other| name == other) {
            let all: Vec<&str> = known().filter_map(|name| name.strip_prefix("ANYVERBS_")).collect();
            explain(format_args!("{}: no such setting; there are {}", name.display(), all.join(", ")));
        }
    }
}
