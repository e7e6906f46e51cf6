//! In one boot of the guest: urxe0 in one namespace against the kernel's rxe with Debian's provider in the other, in both
//! roles; then the kernel's rxe with our library and its provider, beside Debian's own library.
use std::{collections::HashSet, env, fs, path::Path, time::Duration};

use crate::{
    guest,
    report::{Ctx, Trial},
    run,
    stage::{self, root},
    trials::Random,
};

pub const TRIALS: &[Trial] = &[Trial { name: "guest", limit: Duration::from_secs(LIMIT), run: interop }];

const LIMIT: u64 = 1500;
/// How long perftest's bandwidth runs take, seconds, unless `ANYVERBS_GUEST_SECONDS` says otherwise.
const SECONDS: u64 = 5;

/// Runs between urxe0 and vrxe, once with either as server: who meets how, the GIDs' family, program and arguments
/// (`guest-wire.sh`). `$D` is perftest's duration.
const WIRE: &[&str] = &[
    "pingpong 4 ibv_rc_pingpong -c -n 100 -s 1 -m 256",
    "pingpong 4 ibv_rc_pingpong -c -n 4 -s 1048576 -m 256",
    "pingpong 6 ibv_rc_pingpong -c -n 20 -s 65536 -m 512",
    "pingpong 4 ibv_rc_pingpong -c -n 10 -s 1048576 -m 1024",
    "pingpong 6 ibv_rc_pingpong -c -n 10 -s 1048576 -m 2048",
    "pingpong 4 ibv_rc_pingpong -c -n 20 -s 1048576 -m 4096",
    "pingpong 6 ibv_rc_pingpong -c -n 100 -s 4096 -m 4096 -e",
    "pingpong 4 ibv_uc_pingpong -c -n 50 -r 16 -s 1 -m 256",
    "pingpong 6 ibv_uc_pingpong -c -n 20 -r 16 -s 65536 -m 1024",
    "pingpong 4 ibv_uc_pingpong -c -n 10 -r 16 -s 1048576 -m 4096",
    "pingpong 4 ibv_ud_pingpong -c -n 100 -s 1",
    "pingpong 6 ibv_ud_pingpong -c -n 100 -s 4096",
    "pingpong 4 ibv_ud_pingpong -c -n 50 -s 512 -e",
    "program 4 messages",
    "program 6 rdma_read",
    "program 4 rdma_write",
    "program 4 groups -a -j veth0",
    "program 6 groups -j veth0",
    "perftest 4 ib_send_lat -n 200",
    "perftest 6 ib_write_lat -n 200",
    "perftest 4 ib_read_lat -n 200",
    "perftest 6 ib_atomic_lat -n 200",
    "perftest 4 ib_send_bw $D",
    "perftest 6 ib_write_bw $D",
    "perftest 4 ib_read_bw $D",
    "perftest 6 ib_atomic_bw $D",
];

/// The same with packets that get lost each way, in percent.
const LOSSY: &[(u32, &[&str])] = &[
    (1, &["pingpong 4 ibv_rc_pingpong -c -n 50 -s 65536 -m 4096", "perftest 6 ib_write_bw -n 100 -u 16"]),
    (5, &["perftest 4 ib_write_bw -n 50 -u 16", "perftest 4 ib_read_bw -n 50 -u 16"]),
];

/// Programs of `c-tests` with a host at either end.
const PAIRS: [&str; 5] = ["messages", "rdma_read", "rdma_write", "stress/hosts", "kernel/groups"];

/// Lines of guest-kernel.sh: tools, then rows for each provider.
const KERNEL: usize = 4 + PROVIDERS.len() * 18;
/// Who serves rxe0.
const PROVIDERS: [&str; 2] = ["native", "plugin"];
/// Programs of `c-tests` that behave alike on rxe with both libraries.
const PROGRAMS: [&str; 3] = ["rc_loopback", "atomics", "overrun"];

fn interop(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("kernel rxe", "needs root");
    }
    let folder = ctx.stage.public.path().to_path_buf();
    let (bin, rows_file) = (folder.join("bin"), folder.join("guest-rows"));
    let rows = rows();
    let built = build(&bin).and_then(|()| {
        fs::write(&rows_file, rows.join("\n") + "\n").map_err(|e| format!("{}: {e}", rows_file.display()))
    });
    if built.is_err() {
        return ctx.check("building the programs", built);
    }
    let path = |path: &Path| path.display().to_string();
    let script = |name: &str| path(&root().join("xtask").join(name));
    let both = r#"bash "$1" "$3" "$4" "$5"; bash "$2" "$3" "${@:6}""#;
    let mut words: Vec<String> = ["bash", "-c", both, "guest"].map(String::from).to_vec();
    words.extend([script("guest-wire.sh"), script("guest-kernel.sh"), path(&folder), path(&rows_file)]);
    words.push(path(&root().join("c-tests/expected")));
    words.extend(PROVIDERS.map(String::from));
    let limit = LIMIT - 20;
    let outcome =
        guest::command(&words, limit as u32).and_then(|cmd| run::run(cmd, Duration::from_secs(limit + 10)));
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return ctx.check("starting the guest", Err(why)),
    };
    // Some rows stand there more than once.
    let told = told(ctx, &outcome.out);
    let seen: HashSet<_> = told.iter().collect();
    for row in rows.iter().filter(|row| !seen.contains(*row)) {
        ctx.check(row, Err("did not run".into()));
    }
    let ended = outcome.out.contains("wire done") && outcome.out.contains("kernel done");
    let whole = if ended && told.len() == rows.len() + KERNEL { Ok(()) } else { Err(outcome.to_string()) };
    ctx.check("the guest ran to its end", whole);
}

/// A check for each line of guest-checks.sh; their names. Figures, and what failed and ran again, are printed.
pub fn told(ctx: &mut Ctx<'_>, out: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in out.lines() {
        if let Some(name) = line.strip_prefix("ok ") {
            names.push(name.to_string());
            ctx.check(name, Ok(()));
        } else if let Some(what) = line.strip_prefix("not ok ") {
            let (name, why) = what.split_once(": ").unwrap_or((what, ""));
            names.push(name.to_string());
            ctx.check(name, Err(why.to_string()));
        } else if line.starts_with("figure ") || line.starts_with("again ") {
            println!("  {line}");
        }
    }
    names
}

/// The lines of guest-wire.sh.
fn rows() -> Vec<String> {
    let seconds = env::var("ANYVERBS_GUEST_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SECONDS);
    let as_either = |rows: &[&str]| -> Vec<String> {
        let with = |server: &str, row: &str| {
            let (kind, rest) = row.split_once(' ').unwrap_or((row, ""));
            format!("{kind} {server} {rest}").replace("$D", &format!("-D {seconds}"))
        };
        rows.iter().flat_map(|row| ["ours", "kernel"].map(|server| with(server, row))).collect()
    };
    let mut seed = Random::announce("guest");
    let mut hosts =
        |server: &str, more: &str| format!("program {server} 46 hosts {more} -s {}", seed.below(u64::MAX));
    let mut all = as_either(WIRE);
    all.push(hosts("kernel", "-n 60"));
    for (percent, rows) in LOSSY {
        all.push(format!("netem {percent}%"));
        all.extend(as_either(rows));
        all.push(hosts("ours", "-l -n 20"));
        all.push("netem dropped".into());
    }
    all.push("netem off".into());
    all
}

/// The programs for Debian's library, and those of pairs for ours as well.
fn build(bin: &Path) -> Result<(), String> {
    for program in PROGRAMS.iter().chain(&PAIRS) {
        let name = program.rsplit('/').next().unwrap_or(program);
        let kernel = bin.join(format!("kernel-{name}"));
        stage::system_program(program, &kernel)?;
        fs::copy(&kernel, bin.join(name)).map_err(|e| format!("{}: {e}", kernel.display()))?;
    }
    Ok(())
}
