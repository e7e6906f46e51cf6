//! Every input that is kept, a line each in hexadecimal: what the fuzzer found worth keeping (`corpus/`), and what once failed
//! (`crashes/`, with a comment).
use anyverbs_fuzz::TARGETS;
use std::{fs, panic, path::Path};

/// Runs the inputs in a file, if it is there; how many there are.
fn inputs_of(folder: &str, name: &str, run: fn(&[u8])) -> usize {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name).with_extension("hex");
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut count = 0;
    for line in lines.filter(|line| !line.is_empty()) {
        let bytes: Vec<u8> =
            (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).unwrap()).collect();
        assert!(panic::catch_unwind(|| run(&bytes)).is_ok(), "{name} fails with {line}");
        count += 1;
    }
    count
}

#[test]
fn inputs_that_are_kept_do_no_harm() {
    for target in &TARGETS {
        let kept = inputs_of("corpus", target.name, target.run);
        assert!(kept > 0, "no inputs for {}", target.name);
    }
}

#[test]
fn inputs_that_once_failed_do_no_harm() {
    for target in &TARGETS {
        inputs_of("crashes", target.name, target.run);
    }
}

#[test]
fn an_empty_input_does_no_harm() {
    TARGETS.iter().for_each(|target| (target.run)(&[]));
}
