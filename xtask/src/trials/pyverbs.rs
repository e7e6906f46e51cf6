//! Judge: rdma-core's own pyverbs suite, as Debian ships it, on urxe0 by an IPv4 and an IPv6 GID.
//!
//! It runs in Debian's own Python from a copy of the package's files, without the modules for mlx5, efa and CUDA. A test may
//! be skipped only if `pyverbs_skips.tsv` says why; at least [`ENOUGH`] pass, those of test_rdmacm not counted.
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    apt,
    report::{Ctx, Judge, Trial},
    run,
    trials::here,
};

pub const TRIALS: &[Trial] = &[Trial { name: "pyverbs", limit: Duration::from_secs(420), run: pyverbs }];

/// Where the package puts its tests; where documentation is not installed, they are taken from the package itself.
const TESTS: &str = "usr/share/doc/rdma-core/tests";
const NEEDS: &[apt::Need] = &[
    ("/usr/bin/python3", "python3"),
    ("/usr/lib/python3/dist-packages/pyverbs/__init__.py", "python3-pyverbs"),
];
/// Tests that pass, those of test_rdmacm not counted.
const ENOUGH: usize = 130;
/// Test, kind, reason; a name that ends in `*` stands for all that begin so.
const SKIPS: &str = include_str!("pyverbs_skips.tsv");

fn pyverbs(ctx: &mut Ctx<'_>) {
    let folder = Folder(env::temp_dir().join(format!("anyverbs-test-{}-pyverbs", std::process::id())));
    if let Err(why) = apt::ensure(NEEDS).and_then(|()| unpack(&folder.0)) {
        return ctx.check("the suite", Err(why));
    }
    let gids = match gids(ctx) {
        Ok(gids) => gids,
        Err(why) => return ctx.check("GIDs", Err(why)),
    };
    for (family, index) in ["IPv4", "IPv6"].into_iter().zip(gids) {
        match index {
            Some(index) => judge(ctx, &folder.0, family, &index),
            None => ctx.skip(family, "this host has no such address"),
        }
    }
}

/// A folder that goes with its value.
pub struct Folder(pub PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Lays the suite out in `folder`/tests.
pub fn unpack(folder: &Path) -> Result<(), String> {
    let io = |e: std::io::Error| format!("{}: {e}", folder.display());
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(io)?;
    let mut from = Path::new("/").join(TESTS);
    if !from.join("run_tests.py").exists() {
        let mut fetch = run::command("apt-get", ["-qq", "download", "python3-pyverbs"]);
        fetch.current_dir(folder);
        run::run(fetch, Duration::from_secs(120))?.success()?;
        let mut open = run::command("sh", ["-c", "dpkg-deb -x python3-pyverbs_*.deb package"]);
        open.current_dir(folder);
        run::run(open, Duration::from_secs(60))?.success()?;
        from = folder.join("package").join(TESTS);
    }
    let to = folder.join("tests");
    fs::create_dir_all(&to).map_err(io)?;
    let mut packed = Vec::new();
    for entry in fs::read_dir(&from).map_err(|e| format!("{}: {e}", from.display()))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if ["test_mlx5", "test_efa", "test_cuda"].iter().any(|other| name.starts_with(other)) {
            continue;
        }
        fs::copy(entry.path(), to.join(&name)).map_err(io)?;
        if name.ends_with(".gz") {
            packed.push(to.join(name));
        }
    }
    run::run(run::command("gunzip", packed), Duration::from_secs(60))?.success().map(drop)
}

/// The index of the first IPv4 and of the first IPv6 GID, as `ibv_devinfo` shows them.
fn gids(ctx: &Ctx<'_>) -> Result<[Option<String>; 2], String> {
    let shown = run::run(here(ctx).command("ibv_devinfo", ["-v"]), Duration::from_secs(10))?.success()?;
    let rows: Vec<(&str, &str)> = shown
        .out
        .lines()
        .filter_map(|line| line.trim().strip_prefix("GID[")?.split_once("]:"))
        .map(|(index, gid)| (index.trim(), gid.trim()))
        .collect();
    let first = |wanted: &dyn Fn(&str) -> bool| rows.iter().find(|r| wanted(r.1)).map(|r| r.0.to_string());
    let mapped = |gid: &str| gid.starts_with("::ffff:");
    let routed = first(&|gid| !mapped(gid) && !gid.starts_with("fe80"));
    Ok([first(&mapped), routed.or_else(|| first(&|gid| !mapped(gid)))])
}

/// Runs the suite with one GID.
fn judge(ctx: &mut Ctx<'_>, folder: &Path, family: &str, gid: &str) {
    let place = here(ctx).with_env("PYTHONWARNINGS", "ignore").with_env("PYTHONUNBUFFERED", "1");
    let place = place.with_env("PYTHONDONTWRITEBYTECODE", "1").with_env("ANYVERBS_SOFT", "1");
    // By its path: another Python may come first.
    let args =
        ["/usr/bin/python3", "tests/run_tests.py", "--dev", "urxe0", "--port", "1", "--gid", gid, "-v"];
    let mut cmd: Command = place.command("env", args);
    cmd.current_dir(folder);
    let outcome = match run::run(cmd, Duration::from_secs(180)) {
        Ok(outcome) => outcome,
        Err(why) => return ctx.check(family, Err(why)),
    };
    let results = results(&outcome.err);
    let complete = match told(&outcome.err) {
        Some(told) if told == results.len() && outcome.ok() => Ok(()),
        _ => Err(format!("{} results were read; {outcome}", results.len())),
    };
    ctx.check(format!("{family}: the suite ends well"), complete);

    let mut verdict = Judge::new(format!("pyverbs, {family} GID"));
    let mut counted = 0;
    for (test, result) in &results {
        let check = match result {
            Verdict::Passed => {
                verdict.passed += 1;
                counted += usize::from(!test.starts_with("test_rdmacm."));
                Ok(())
            }
            Verdict::Skipped(why) => match reason(test) {
                Some((kind, _)) => {
                    verdict.skip(kind);
                    continue;
                }
                None => {
                    verdict.failed += 1;
                    Err(format!("skipped without a reason that we know: {why}"))
                }
            },
            Verdict::Failed(how) => {
                verdict.failed += 1;
                Err(format!("{how}\n{}", traceback(&outcome.err, test)))
            }
        };
        ctx.check(format!("{family}: {test}"), check);
    }
    let enough = if counted >= ENOUGH { Ok(()) } else { Err(format!("{counted} pass")) };
    ctx.check(format!("{family}: at least {ENOUGH} pass without test_rdmacm"), enough);
    ctx.judge(verdict);
}

/// How many tests the suite says it ran.
pub fn told(text: &str) -> Option<usize> {
    text.lines().find_map(|l| l.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())
}

pub enum Verdict {
    Passed,
    Skipped(String),
    Failed(&'static str),
}

/// `unittest -v` names a test, then perhaps its description and what it says itself, and ends a line with the result.
pub fn results(text: &str) -> BTreeMap<&str, Verdict> {
    let mut results = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some((_, name)) = line.split_once(" (tests.").filter(|_| line.starts_with("test_"))
            && let Some((name, _)) = name.split_once(')')
        {
            current = Some(name);
        }
        let last = line.rsplit(" ... ").next().unwrap_or(line);
        let verdict = match last {
            "ok" => Verdict::Passed,
            "FAIL" => Verdict::Failed("FAIL"),
            "ERROR" => Verdict::Failed("ERROR"),
            _ => match last.strip_prefix("skipped ") {
                Some(why) => Verdict::Skipped(why.trim_matches(['\'', '"']).to_string()),
                None => continue,
            },
        };
        if let Some(name) = current.take() {
            results.insert(name, verdict);
        }
    }
    results
}

/// Why a test may be skipped: a word or two, and a sentence.
fn reason(test: &str) -> Option<(&'static str, &'static str)> {
    SKIPS.lines().find_map(|line| {
        let mut columns = line.split('\t');
        let (name, kind, why) = (columns.next()?, columns.next()?, columns.next()?);
        let meant = name.strip_suffix('*').map_or(name == test, |start| test.starts_with(start));
        meant.then_some((kind, why))
    })
}

/// What the suite says about a test that failed.
pub fn traceback(text: &str, test: &str) -> String {
    let lines = text.lines().skip_while(|line| {
        !((line.starts_with("ERROR: ") || line.starts_with("FAIL: ")) && line.contains(&format!("{test})")))
    });
    // The next one's begins, or after the last comes the sum.
    let lines = lines.take_while(|line| !line.starts_with("====") && !line.starts_with("Ran "));
    let text: String = lines.map(|line| format!("      {line}\n")).collect();
    text.trim_end_matches(['-', ' ', '\n']).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_with_descriptions_and_noise() {
        let text = "\
test_a (tests.test_x.T.test_a) ... ok
test_b (tests.test_x.T.test_b)
Queries and ... says so ... skipped 'Not supported'
test_c (tests.test_x.T.test_c) ... a number = 2
ok
test_d (tests.test_y.T.test_d)
Something ... ERROR

======================================================================
ERROR: test_d (tests.test_y.T.test_d)
Something
----------------------------------------------------------------------
Traceback
AssertionError: not so

----------------------------------------------------------------------
Ran 4 tests in 0.1s

FAILED (failures=1)
";
        let read = results(text);
        assert_eq!(read.len(), 4);
        assert!(matches!(read["test_x.T.test_a"], Verdict::Passed));
        assert!(matches!(&read["test_x.T.test_b"], Verdict::Skipped(why) if why == "Not supported"));
        assert!(matches!(read["test_x.T.test_c"], Verdict::Passed));
        assert!(matches!(read["test_y.T.test_d"], Verdict::Failed("ERROR")));
        let traceback = traceback(text, "test_y.T.test_d");
        assert!(traceback.contains("Traceback") && traceback.ends_with("      AssertionError: not so\n"));
    }

    #[test]
    fn every_skip_has_a_kind_and_a_reason() {
        for line in SKIPS.lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            assert!(columns.len() == 3 && columns.iter().all(|c| !c.is_empty()), "{line}");
        }
        assert_eq!(reason("test_rss_traffic.RSSTrafficTest.test_rss_traffic").unwrap().0, "RSS");
        assert!(reason("test_qp.QPTest.test_create_rc_qp").is_none());
    }
}
