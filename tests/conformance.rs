//! The conformance suite of `tests/conformance/` within one process; `cargo xtask test conformance` runs it on every path.
mod toolchain;

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use toolchain::{
    Scratch, gcc, our_include,
    programs::{assert_loads_ours, library_folder, root},
    run, try_run,
};

/// The program, built against our headers, and the folder of our library.
fn build() -> (Scratch, PathBuf, Scratch) {
    let (dir, lib) = (Scratch::new("conformance"), library_folder());
    let program = dir.path("conformance");
    let mut sources: Vec<PathBuf> = fs::read_dir(root().join("tests/conformance"))
        .expect("the suite")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    sources.sort();
    let mut cc = gcc(&our_include());
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(sources);
    run(cc.arg("-o").arg(&program).arg("-L").arg(lib.path("")).arg("-libverbs"));
    assert_loads_ours(&program, &lib.path(""));
    (dir, program, lib)
}

#[test]
fn every_case_within_a_process_is_as_specified_or_listed() {
    let (_dir, program, lib) = build();
    let names = run(Command::new(&program).arg("--list").env("LD_LIBRARY_PATH", lib.path("")));
    let unique: BTreeSet<&str> = names.lines().collect();
    assert_eq!(unique.len(), names.lines().count(), "two cases have one name");
    let mut suite = Command::new(&program);
    suite.env("LD_LIBRARY_PATH", lib.path("")).env("ANYVERBS_SOFT", "1");
    suite.args(["--quiet", "--device", "urxe0", "--skip", "*/max-message", "--deviations"]);
    suite.arg(root().join("tests/conformance/deviations/urxe.tsv"));
    let out = try_run(&mut suite);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains(" 0 failed, ") && text.contains(" 0 skipped"), "{text}");
}
