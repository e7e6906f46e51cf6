//! `cargo xtask fuzz [SECONDS [TARGET]]` and `fuzz merge`: the targets of `fuzz/` under libFuzzer, with AddressSanitizer, debug
//! assertions and coverage, on a stable toolchain and without cargo-fuzz.
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    run::{self, Outcome},
    stage,
    stage::root,
};

/// Targets (`fuzz/src/lib.rs`), and of a hundred seconds how many each gets.
const TARGETS: [(&str, u64); 6] =
    [("transport", 35), ("node", 25), ("ring", 12), ("handshake", 12), ("packet", 8), ("text", 8)];
/// Seconds of processor time where no number is given.
pub const SECONDS: u64 = 300;
/// Seconds that libFuzzer runs at a time, by the clock.
const SLICE: u64 = 20;
/// Bytes of an input at most.
const LONGEST: u32 = 2048;
/// And of one that is kept.
const LONGEST_KEPT: usize = 512;
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// One thing that was checked.
pub type Check = (String, Result<(), String>);

/// A built fuzzer.
pub struct Fuzzer {
    binary: PathBuf,
    /// Its folder: what was found since it was made, and inputs that fail.
    place: PathBuf,
    seed: u32,
}

/// What a target has had.
struct Progress {
    name: &'static str,
    share: u64,
    /// Processor time, in clock ticks.
    ticks: u64,
    slices: u32,
    executions: u64,
    /// Points covered, and features: points with counts and comparisons.
    coverage: u64,
    features: u64,
    failed: Option<String>,
}

/// The command.
pub fn fuzz(args: &[String]) -> Result<(), String> {
    let fuzzer = Fuzzer::build()?;
    if args.first().is_some_and(|word| word == "merge") {
        return TARGETS.iter().try_for_each(|(name, _)| fuzzer.merge(name));
    }
    let seconds = match args.first() {
        Some(word) => word.parse().map_err(|_| format!("{word} is no number of seconds"))?,
        None => SECONDS,
    };
    let checks = fuzzer.run(args.get(1).map(String::as_str), |spent| spent >= seconds);
    let failed: Vec<String> =
        checks.into_iter().filter_map(|(name, result)| Some(format!("{name}: {}", result.err()?))).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

impl Fuzzer {
    /// Builds it. The seed is ANYVERBS_SEED or the clock's, and is printed.
    pub fn build() -> Result<Fuzzer, String> {
        let place = stage::target().join("fuzz");
        // Trials that run beside it go first, but must not keep it from being built.
        let mut build = run::command("nice", ["-n", "10", "cargo"]);
        build.current_dir(root());
        build.args(["build", "--quiet", "--release", "-p", "anyverbs-fuzz", "--features", "libfuzzer"]);
        build.args(["--target", TRIPLE]).env("CARGO_TARGET_DIR", &place);
        // The stable toolchain carries the sanitizer's runtime, but not the permission to ask for it.
        build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS.join(" "));
        for (name, value) in [("DEBUG_ASSERTIONS", "true"), ("LTO", "off"), ("CODEGEN_UNITS", "16")] {
            build.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
        }
        run::run(build, Duration::from_secs(1500))?.success()?;
        let given = env::var("ANYVERBS_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = given.unwrap_or_else(run::monotonic_ns);
        let seed = seed as u32 & 0x7fff_ffff | 1;
        println!("  fuzz: ANYVERBS_SEED={seed}");
        Ok(Fuzzer { binary: place.join(TRIPLE).join("release/fuzz"), place, seed })
    }

    /// Fuzzes all targets, or `only` one, by turns and on one processor that nobody else wants, until that is `enough`
    /// seconds of its time, or all have failed.
    pub fn run(&self, only: Option<&str>, enough: impl Fn(u64) -> bool) -> Vec<Check> {
        let new = |(name, share)| Progress {
            name,
            share,
            ticks: 0,
            slices: 0,
            executions: 0,
            coverage: 0,
            features: 0,
            failed: None,
        };
        let mut all: Vec<Progress> = TARGETS.into_iter().map(new).collect();
        all.retain(|target| only.is_none_or(|name| name == target.name));
        if all.is_empty() {
            return vec![("targets".into(), Err("there is no such target".into()))];
        }
        loop {
            let spent = all.iter().map(|t| t.ticks).sum::<u64>() / run::TICKS;
            let is_through = enough(spent) && all.iter().all(|t| t.executions > 0 || t.failed.is_some());
            let next = all.iter_mut().filter(|t| t.failed.is_none()).min_by_key(|t| t.ticks * 100 / t.share);
            let Some(target) = next.filter(|_| !is_through) else { break };
            if let Err(why) = self.slice(target) {
                target.failed = Some(why);
            }
        }
        all.into_iter()
            .map(|t| {
                println!(
                    "  fuzz {}: {} executions in {} s, {} points covered, {} features",
                    t.name,
                    t.executions,
                    t.ticks / run::TICKS,
                    t.coverage,
                    t.features
                );
                (t.name.to_string(), t.failed.map_or(Ok(()), Err))
            })
            .collect()
    }

    fn slice(&self, target: &mut Progress) -> Result<(), String> {
        let name = target.name;
        let (found, crashes) = (self.place.join("found").join(name), self.place.join("crashes"));
        for folder in [&found, &crashes] {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        let mut cmd = self.command(name);
        cmd.arg(format!("-seed={}", self.seed.wrapping_add(target.slices)));
        cmd.arg(format!("-max_total_time={SLICE}")).arg(format!("-max_len={LONGEST}"));
        // How long an input takes depends on who else wants the processor; how much it does, targets count.
        cmd.args(["-timeout=100", "-rss_limit_mb=1500", "-print_final_stats=1"]);
        cmd.arg(format!("-artifact_prefix={}/{name}-", crashes.display()));
        cmd.arg(&found).arg(self.unpack(name)?);
        let mut child = run::spawn(cmd)?;
        let (end, mut ticks) = (Instant::now() + Duration::from_secs(SLICE + 600), 0);
        while !child.ended(Duration::from_millis(200)) && Instant::now() < end {
            ticks = run::cpu_ticks(child.pid()).unwrap_or(ticks);
        }
        let outcome = child.finish(Duration::from_millis(1));
        target.ticks += ticks.max(1);
        target.slices += 1;
        if !outcome.ok() {
            let at = outcome.err.lines().find_map(|line| line.split_once("Test unit written to "));
            let input =
                at.and_then(|(_, path)| fs::read(path).ok()).map_or("none".into(), |bytes| hex(&bytes));
            return Err(format!("input {input} (a line for fuzz/crashes/{name}.hex): {}", excerpt(&outcome)));
        }
        target.learn(&outcome.err);
        Ok(())
    }

    /// Makes the inputs in the repository anew, from them and from what was found: the fewest that cover as much.
    fn merge(&self, name: &str) -> Result<(), String> {
        let new = self.place.join("merged").join(name);
        empty(&new)?;
        let mut cmd = self.command(name);
        cmd.args(["-set_cover_merge=1", "-timeout=100"]).arg(format!("-max_len={LONGEST}"));
        cmd.arg(&new).arg(self.unpack(name)?).arg(self.place.join("found").join(name));
        run::run(cmd, Duration::from_secs(1800))?.success()?;
        let entries = fs::read_dir(&new).map_err(|e| e.to_string())?.flatten();
        let mut lines: Vec<String> =
            entries.filter_map(|entry| fs::read(entry.path()).ok()).map(|bytes| hex(&bytes)).collect();
        lines.retain(|line| !line.is_empty() && line.len() <= 2 * LONGEST_KEPT);
        lines.sort_by_key(|line| (line.len(), line.clone()));
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        println!("{name}: {} inputs, {} bytes", lines.len(), text.len() / 2);
        let file = kept("corpus", name);
        fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// The inputs in the repository as files, which libFuzzer wants; their folder.
    fn unpack(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.place.join("kept").join(name);
        empty(&folder)?;
        let texts =
            ["corpus", "crashes"].map(|which| fs::read_to_string(kept(which, name)).unwrap_or_default());
        for (number, line) in texts.iter().flat_map(|text| text.lines()).enumerate() {
            let digits = line.split('#').next().unwrap_or_default().trim();
            let byte = |i: usize| u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok();
            let bytes = (0..digits.len() / 2).map(byte).collect::<Option<Vec<u8>>>();
            let bytes = bytes.ok_or_else(|| format!("an input of {name} is not hexadecimal: {line}"))?;
            fs::write(folder.join(number.to_string()), bytes).map_err(|e| e.to_string())?;
        }
        Ok(folder)
    }

    fn command(&self, name: &str) -> Command {
        let mut cmd = idle(&self.binary.display().to_string());
        cmd.env("ANYVERBS_FUZZ", name).env("RUST_BACKTRACE", "1");
        cmd
    }
}

/// What cargo-fuzz gives to the compiler.
const FLAGS: [&str; 7] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Zsanitizer=address",
    "-Cforce-frame-pointers=yes",
];

/// A program that gets what others leave of the processors.
fn idle(program: &str) -> Command {
    run::command("chrt", ["--idle", "0", program])
}

/// Where the inputs of a target are kept, a line each.
fn kept(which: &str, name: &str) -> PathBuf {
    root().join("fuzz").join(which).join(name).with_extension("hex")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a folder, with nothing in it.
fn empty(folder: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

/// What a reader needs of a failure.
fn excerpt(outcome: &Outcome) -> String {
    let lines: Vec<&str> = outcome.err.lines().collect();
    let starts = |line: &&str| ["panicked at", "ERROR:", "libFuzzer"].iter().any(|word| line.contains(word));
    let at = lines.iter().position(starts).unwrap_or(lines.len().saturating_sub(30));
    format!(
        "code {:?}, signal {:?}\n{}",
        outcome.code,
        outcome.signal,
        lines[at..].iter().take(40).copied().collect::<Vec<_>>().join("\n")
    )
}

impl Progress {
    /// Takes the figures from what libFuzzer says at its end.
    fn learn(&mut self, text: &str) {
        let number = |word: Option<&str>| word.and_then(|w| w.parse().ok()).unwrap_or(0);
        let executed = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        self.executions += number(executed.map(str::trim));
        let last = text.lines().rfind(|line| line.contains("cov: ")).unwrap_or_default();
        let words: Vec<&str> = last.split_whitespace().collect();
        let behind =
            |what| number(words.iter().position(|w| *w == what).and_then(|i| words.get(i + 1)).copied());
        (self.coverage, self.features) = (behind("cov:"), behind("ft:"));
    }
}
