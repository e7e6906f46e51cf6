//! Where reasons go: nowhere, to stderr, or to the log file, as the environment asks (design D10).
use ibverbs::sys::log::{Level, explain, log};
use std::path::PathBuf;
use std::process::{Command, Output};

/// What the children of these tests run; in the test run itself it does nothing.
#[test]
fn speak() {
    if std::env::var_os("EXPLAIN_TEST_CHILD").is_some() {
        explain(format_args!("ibv_x qp=0x012abc: expected y"));
        log(Level::Debug, format_args!("a detail"));
    }
}

fn child(environment: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "speak", "--nocapture"])
        .env_remove("ANYVERBS_EXPLAIN")
        .env_remove("VERBS_LOG_LEVEL")
        .env_remove("VERBS_LOG_FILE")
        .env("EXPLAIN_TEST_CHILD", "1")
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

/// A path in a folder of its own, which goes with it.
struct LogFile(PathBuf);

impl LogFile {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("explain-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir.join("log"))
    }
    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap_or_default()
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

#[test]
fn unasked_the_library_is_silent() {
    let file = LogFile::new("silent");
    for environment in [
        &[][..],
        &[("ANYVERBS_EXPLAIN", "0")],
        &[("VERBS_LOG_LEVEL", "4")],
        &[("VERBS_LOG_FILE", file.name())],
        &[("VERBS_LOG_LEVEL", "0"), ("VERBS_LOG_FILE", file.name())],
    ] {
        let output = child(environment);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{environment:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("ibv_x"), "{environment:?}");
        assert_eq!(file.text(), "");
    }
}

#[test]
fn explain_says_it_on_stderr_in_one_line() {
    let output = child(&[("ANYVERBS_EXPLAIN", "1")]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "anyverbs: ibv_x qp=0x012abc: expected y\n");
}

#[test]
fn the_log_file_grows_by_what_its_level_admits() {
    let file = LogFile::new("levels");
    child(&[("VERBS_LOG_LEVEL", "1"), ("VERBS_LOG_FILE", file.name())]);
    assert_eq!(file.text(), "anyverbs: ibv_x qp=0x012abc: expected y\n");
    let output = child(&[("VERBS_LOG_LEVEL", "0x4"), ("VERBS_LOG_FILE", file.name())]);
    assert_eq!(file.text().lines().collect::<Vec<_>>()[2..], ["anyverbs: a detail"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_log_file_that_does_not_open_changes_nothing() {
    let output = child(&[("VERBS_LOG_LEVEL", "4"), ("VERBS_LOG_FILE", "/proc/no/such/file")]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
