//! The settings: which there are, and that what means nothing is told once where reasons are asked for.
use ibverbs::core::{device, providers};
use ibverbs::soft::lid::Lids;
use ibverbs::sys::settings::{SETTINGS, WORKSHOP};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What the children of these tests run; in the test run itself it does nothing.
#[test]
fn look() {
    if std::env::var_os("SETTINGS_TEST_CHILD").is_none() {
        return;
    }
    for _ in 0..2 {
        device::list(providers());
        // What opening a device reads.
        Lids::given();
    }
}

/// What a program that lists devices twice says of settings.
fn told(environment: &[(&str, &str)]) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "look", "--nocapture"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ANYVERBS_")) {
        child.env_remove(name);
    }
    child.env("SETTINGS_TEST_CHILD", "1").env("ANYVERBS_SOFT", "1").env("ANYVERBS_EXPLAIN", "1");
    let output = child.envs(environment.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().filter(|line| line.contains("ANYVERBS_")).map(String::from).collect()
}

#[test]
fn good_settings_are_not_told() {
    assert_eq!(told(&[]), [""; 0]);
    let good = [("ANYVERBS_GSO", "0"), ("ANYVERBS_PROVIDER", "plugin"), ("ANYVERBS_DEVICES", "2")];
    assert_eq!(told(&good), [""; 0]);
}

#[test]
fn a_setting_that_there_is_not_is_told_once() {
    let lines = told(&[("ANYVERBS_FOO", "1")]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("anyverbs: ANYVERBS_FOO: no such setting; "), "{lines:?}");
    assert_eq!(told(&[("ANYVERBS_FOO", "1"), ("ANYVERBS_EXPLAIN", "0")]), [""; 0]);
}

#[test]
fn any_word_but_0_asks_for_reasons() {
    let lines = told(&[("ANYVERBS_EXPLAIN", "yes")]);
    assert_eq!(lines, ["anyverbs: ANYVERBS_EXPLAIN=\"yes\": expected 0 or 1; it is taken as 1"]);
    assert_eq!(told(&[("ANYVERBS_EXPLAIN", ""), ("ANYVERBS_SOFT", "yes")]), [""; 0]);
}

#[test]
fn a_wrong_value_is_told_once() {
    for (name, value) in [
        ("ANYVERBS_SOFT", "yes"),
        ("ANYVERBS_GSO", "no"),
        ("ANYVERBS_DIRECT", "off"),
        ("ANYVERBS_PROVIDER", "plug"),
        ("ANYVERBS_PEER_DEATH", "software"),
        ("ANYVERBS_DEVICES", "many"),
        ("ANYVERBS_DEVICE_NAME", "a/b"),
        ("ANYVERBS_LIDS", "here"),
    ] {
        let lines = told(&[(name, value)]);
        assert_eq!(lines.len(), 1, "{name}={value}: {lines:?}");
        assert!(lines[0].starts_with(&format!("anyverbs: {name}")), "{lines:?}");
    }
}

#[test]
fn variables_of_tests_and_xtask_are_not_told() {
    let others: Vec<(&str, &str)> = WORKSHOP.iter().map(|name| (*name, "1")).collect();
    assert_eq!(told(&others), [""; 0]);
}

#[test]
fn readme_lists_every_setting_and_no_other() {
    let rows = read("README.md");
    let rows = rows.lines().filter(|line| line.starts_with("| `ANYVERBS_"));
    let listed: Vec<String> = rows.map(|row| names(row).into_iter().next().unwrap()).collect();
    let known: BTreeSet<String> = SETTINGS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(listed.len(), known.len(), "{listed:?}");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), known);
}

#[test]
fn man_page_lists_every_setting_and_no_other() {
    let page = read("docs/man/anyverbs.1");
    let items = page.lines().filter(|line| line.starts_with(".B ANYVERBS_"));
    let listed: Vec<String> = items.flat_map(names).collect();
    let known: BTreeSet<String> = SETTINGS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(listed.len(), known.len(), "{listed:?}");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), known);
}

#[test]
fn every_variable_in_the_sources_is_known() {
    let mut known: BTreeSet<String> = SETTINGS.iter().map(|(name, _)| name.to_string()).collect();
    known.extend(WORKSHOP.map(String::from));
    // A symbol node, names of our C header, the prefix alone, and one that tests misspell.
    let others = ["ANYVERBS_1", "ANYVERBS_H", "ANYVERBS_PATH_UDP", "ANYVERBS_", "ANYVERBS_FOO"];
    known.extend(others.map(String::from));
    let mut unknown = BTreeSet::new();
    for folder in ["src", "view", "tools", "counters", "fuzz/src", "xtask", "tests", "c-tests", "docs"] {
        for file in
            files(&root().join(folder)).into_iter().filter(|file| !file.ends_with("tests/settings.rs"))
        {
            // Binaries that somebody left there name nothing.
            let text = fs::read_to_string(&file).unwrap_or_default();
            unknown.extend(names(&text).into_iter().filter(|name| !known.contains(name)));
        }
    }
    assert_eq!(unknown, BTreeSet::new());
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            all.extend(files(&entry.path()));
        } else {
            all.push(entry.path());
        }
    }
    all
}

/// The names of variables of ours in a text, in its order.
fn names(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let name = |(at, _)| {
        let rest = &text[at..];
        rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())].to_string()
    };
    text.match_indices("ANYVERBS_").map(name).collect()
}
