//! The programs of `c-tests/behaviour/`: named tests that assert by themselves, built against our headers and run on this
//! build's library. `cargo xtask test` runs them on the release library and counts them as a judge.
mod toolchain;

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use toolchain::{
    Scratch, gcc, our_include,
    programs::{assert_loads_ours, library_folder, root},
    run, try_run,
};

/// One test for each program.
macro_rules! programs {
    ($($name:ident)*) => {
        const PROGRAMS: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                all_hold(stringify!($name));
            }
        )*
    };
}

programs! { polling lists posting sizes flush transitions srq peer access atomics overruns notify acks datagrams rnr windows forking devices versions psns mapped mixed runs replies }

/// A built program, the library it loads, and the folders of both.
struct Program(PathBuf, [Scratch; 2]);

fn build(name: &str) -> Program {
    let (dir, lib) = (Scratch::new(name), library_folder());
    let program = dir.path(name);
    let mut cc = gcc(&our_include());
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    cc.arg(folder().join(format!("{name}.c"))).arg("-o").arg(&program);
    run(cc.arg("-L").arg(lib.path("")).arg("-libverbs"));
    assert_loads_ours(&program, &lib.path(""));
    Program(program, [dir, lib])
}

impl Program {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.env("LD_LIBRARY_PATH", self.1[1].path("")).env("ANYVERBS_SOFT", "1").stdin(Stdio::null());
        command
    }
}

fn folder() -> PathBuf {
    root().join("c-tests/behaviour")
}

/// Runs all tests of a program; each has its own process and limit there.
fn all_hold(name: &str) {
    let program = build(name);
    let out = try_run(&mut program.command());
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().filter(|line| line.starts_with("skip ")).for_each(|line| eprintln!("{line}"));
    let held = |line: &&str| line.starts_with("ok ") || line.starts_with("skip ");
    let bad: Vec<&str> = text.lines().filter(|line| !held(line)).collect();
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && bad.is_empty(), "{name}: {}\n{}\n{why}", out.status, bad.join("\n"));
    assert!(text.lines().count() > 0, "{name} has no tests");
}

/// Every C file of the folder is run.
#[test]
fn every_program_is_run() {
    let sources: BTreeSet<String> = fs::read_dir(folder())
        .expect("the folder")
        .filter_map(|entry| Some(entry.ok()?.file_name().into_string().ok()?.strip_suffix(".c")?.to_string()))
        .collect();
    assert_eq!(sources, PROGRAMS.iter().map(|name| name.to_string()).collect());
}

/// The tests that the table names are there, and every behaviour has some.
#[test]
fn the_table_names_tests_that_are_there() {
    let table = fs::read_to_string(folder().join("README.md")).expect("the table");
    let mut sources: String = PROGRAMS
        .iter()
        .map(|name| fs::read_to_string(folder().join(format!("{name}.c"))).expect("a source"))
        .collect();
    sources.retain(|c| !c.is_whitespace());
    let rows: Vec<(u32, &str, &str)> = table
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, number, program, test, ..] = cells[..] else { return None };
            let number: u32 = number.strip_prefix('B')?.split(' ').next()?.parse().ok()?;
            Some((number, program, test.trim_matches('`')))
        })
        .collect();
    let mut named = BTreeSet::new();
    for (number, program, test) in &rows {
        assert!(PROGRAMS.contains(program), "B{number}: no program {program}");
        let there = [format!("({test})"), format!("({test},")].iter().any(|form| sources.contains(form));
        assert!(there, "B{number}: {program} has no test {test}");
        assert!(named.insert(*test), "{test} is named twice");
    }
    for name in PROGRAMS {
        let list = run(build(name).command().arg("--list"));
        for test in list.lines() {
            assert!(named.contains(test), "the table lacks {test} of {name}");
        }
    }
    let numbers: BTreeSet<u32> = rows.iter().map(|r| r.0).collect();
    assert_eq!(numbers.into_iter().collect::<Vec<_>>(), BEHAVIOURS);
}

/// The behaviours that need no librdmacm.
const BEHAVIOURS: [u32; 33] = [
    1, 3, 4, 6, 8, 9, 10, 12, 13, 14, 16, 18, 19, 20, 21, 23, 25, 26, 27, 28, 31, 32, 33, 34, 35, 36, 37, 39,
    40, 42, 43, 44, 45,
];
