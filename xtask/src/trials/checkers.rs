//! Checkers over the library and the C programs: AddressSanitizer and valgrind's memcheck and helgrind. They run cargo's tests of C programs
//! with another library, compiler options and a wrapper (`tests/toolchain/programs.rs`).
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    apt,
    report::{Ctx, Trial},
    run, stage, test,
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "asan", limit: Duration::from_secs(900), run: asan },
    Trial { name: "memcheck", limit: Duration::from_secs(900), run: memcheck },
    Trial { name: "helgrind", limit: Duration::from_secs(900), run: helgrind },
];

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// A forked child forgets what the threads of its parent held: no leak of anybody's.
const FORKS: [&str; 6] = ["forks", "children", "device_memory", "import", "multicast", "open_qp_processes"];

/// Programs of one process. What passes between threads by an atomic alone, as the wire to another process does, helgrind does not
/// see: it would report each look at such a thing.
const ALONE: [&str; 19] = [
    "--exact",
    "access_errors",
    "atomics",
    "cq_ex",
    "events",
    "inline_sge",
    "lifecycle",
    "moderation",
    "parent_domain",
    "posting",
    "qp_states",
    "queue_events",
    "rc_loopback",
    "regions",
    "srq",
    "threads",
    "ud_grh",
    "windows",
    "xrc",
];

/// How the C programs run.
struct Checker {
    library: PathBuf,
    cflags: &'static str,
    wrap: String,
    env: Vec<(&'static str, String)>,
}

/// The library built with AddressSanitizer and debug assertions, programs with gcc's runtime of it.
fn asan(ctx: &mut Ctx<'_>) {
    let folder = stage::target().join("asan");
    let mut build = stage::cargo(&["build", "--release", "-p", "ibverbs", "--target", TARGET]);
    build.env("CARGO_TARGET_DIR", &folder).env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    // The stable toolchain carries the runtime, but not the permission to ask for it.
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    if let Err(why) = run::run(build, Duration::from_secs(600)).and_then(|o| o.success()) {
        return ctx.check("the library builds", Err(why));
    }
    let with = |leaks: bool| Checker {
        library: folder.join(TARGET).join("release/libibverbs.so"),
        cflags: "-fsanitize=address",
        wrap: String::new(),
        // The runtime's own end of a cancelled thread writes to a stack that it thinks is still in use: use_sigaltstack.
        env: vec![("ASAN_OPTIONS", format!("use_sigaltstack=0:detect_leaks={}", u8::from(leaks)))],
    };
    guilty(ctx, &with(true), &[("after", "heap-use-after-free"), ("leak", "LeakSanitizer")]);
    // `shortage` limits its address space, of which the sanitizer needs terabytes.
    let skip: Vec<&str> = FORKS.iter().copied().chain(["shortage"]).collect();
    programs(ctx, &with(true), &["c_programs", "stress", "c_places"], &[], &skip);
    programs(ctx, &with(false), &["c_programs", "stress"], &FORKS, &[]);
}

/// The release library under valgrind.
fn memcheck(ctx: &mut Ctx<'_>) {
    if let Err(why) = apt::ensure(apt::CHECKERS) {
        return ctx.check("valgrind", Err(why));
    }
    let suppressions = stage::root().join("c-tests/memcheck.supp");
    let with = |leaks: &str| Checker {
        library: stage::target().join("release/libibverbs.so"),
        cflags: "-g",
        wrap: format!(
            "valgrind -q --error-exitcode=99 --fair-sched=yes --trace-children=yes \
             --trace-children-skip=/bin/*,/usr/bin/*,/sbin/*,/usr/sbin/* --suppressions={} {leaks}",
            suppressions.display()
        ),
        env: vec![("C_TESTS_SECONDS", "300".into())],
    };
    let leaks = with("--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite");
    guilty(ctx, &leaks, &[("after", "Invalid read"), ("leak", "definitely lost")]);
    // `remote_errors` has peers write to memory that it has unmapped; `shortage` limits descriptors and memory that valgrind
    // needs itself; the children of `forks` wait long for a processor that valgrind gives to one thread at a time; valgrind
    // does not know what pkg-config is asked for; it puts the two buffers of `mistakes` side by side, whose addresses then read
    // otherwise; `first_contact` is about what happens within microseconds.
    let others = ["shortage", "remote_errors", "pkg_config", "mistakes", "first_contact"];
    let skip: Vec<&str> = FORKS.iter().copied().chain(others).collect();
    programs(ctx, &leaks, &["c_programs"], &[], &skip);
    programs(
        ctx,
        &with(""),
        &["c_programs"],
        &["device_memory", "import", "multicast", "open_qp_processes"],
        &[],
    );
    programs(ctx, &leaks, &["stress"], &["two_crowds"], &[]);
}

/// A build whose locks tell helgrind of themselves, under valgrind.
fn helgrind(ctx: &mut Ctx<'_>) {
    let folder = stage::target().join("helgrind");
    let mut build = stage::cargo(&["build", "--release", "-p", "ibverbs"]);
    build.env("CARGO_TARGET_DIR", &folder).env("RUSTFLAGS", "--cfg anyverbs_helgrind");
    let built = run::run(build, Duration::from_secs(600)).and_then(|o| o.success()).map(drop);
    if let Err(why) = apt::ensure(apt::CHECKERS).and(built) {
        return ctx.check("valgrind, and a library for it", Err(why));
    }
    let checker = Checker {
        library: folder.join("release/libibverbs.so"),
        cflags: "-g",
        wrap: format!(
            "valgrind --tool=helgrind -q --error-exitcode=99 --fair-sched=yes --history-level=approx --suppressions={}",
            stage::root().join("c-tests/helgrind.supp").display()
        ),
        env: vec![("C_TESTS_SECONDS", "300".into()), ("ANYVERBS_MEMBARRIER", "0".into())],
    };
    guilty(ctx, &checker, &[("race", "Possible data race")]);
    programs(ctx, &checker, &["c_programs"], &ALONE, &[]);
}

/// A checker that finds nothing where something is has found nothing elsewhere either.
fn guilty(ctx: &mut Ctx<'_>, checker: &Checker, faults: &[(&str, &str)]) {
    let (lib, bin) = (stage::target().join("checked/lib"), stage::target().join("checked/guilty"));
    let built = stage::lay_out(&checker.library, &lib).map_err(|e| e.to_string()).and_then(|()| {
        let mut cc = run::command("cc", ["-std=gnu11", "-O1", "-g", "-pthread", checker.cflags, "-o"]);
        cc.arg(&bin)
            .arg(stage::root().join("c-tests/heavy/guilty.c"))
            .arg("-I")
            .arg(stage::root().join("include"));
        cc.arg("-L").arg(&lib).arg("-libverbs");
        run::run(cc, Duration::from_secs(60))?.success().map(drop)
    });
    if let Err(why) = built {
        return ctx.check("a guilty program builds", Err(why));
    }
    for (mode, found) in faults {
        let outcome = run::run(checked(checker, &lib, &bin, mode), Duration::from_secs(60));
        let result =
            outcome.and_then(|o| if !o.ok() && o.err.contains(found) { Ok(()) } else { Err(o.to_string()) });
        ctx.check(format!("{found} is found"), result);
    }
}

fn checked(checker: &Checker, lib: &Path, program: &Path, arg: &str) -> Command {
    let words: Vec<&str> = checker.wrap.split_whitespace().collect();
    let program = program.display().to_string();
    let line: Vec<&str> = words.into_iter().chain([program.as_str(), arg]).collect();
    let mut cmd = run::command(line[0], &line[1..]);
    cmd.env("LD_LIBRARY_PATH", lib).env("ANYVERBS_SOFT", "1");
    cmd.envs(checker.env.iter().map(|(name, value)| (*name, value)));
    cmd
}

/// Cargo's tests of C programs: those whose names contain one of `only` (all of them without), but none of `skip`.
fn programs(ctx: &mut Ctx<'_>, checker: &Checker, tests: &[&str], only: &[&str], skip: &[&str]) {
    let mut args = vec!["test", "--no-fail-fast"];
    tests.iter().for_each(|test| args.extend(["--test", test]));
    args.push("--");
    args.extend(only);
    skip.iter().for_each(|name| args.extend(["--skip", name]));
    let mut cmd = stage::cargo(&args);
    cmd.env("CARGO_TERM_COLOR", "never").env("ANYVERBS_TEST_LIBRARY", &checker.library);
    cmd.env("ANYVERBS_TEST_CFLAGS", checker.cflags).env("ANYVERBS_TEST_WRAP", &checker.wrap);
    cmd.envs(checker.env.iter().map(|(name, value)| (*name, value)));
    match run::run(cmd, Duration::from_secs(800)) {
        Ok(outcome) => drop(test::count(&outcome, |name, result| ctx.check(name, result))),
        Err(why) => ctx.check("cargo test", Err(why)),
    }
}
