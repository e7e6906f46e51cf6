//! `docs/COMPAT.md` says what stands behind every exported name. It is derived from the map and from the sources of
//! `src/entry`; `ANYVERBS_UPDATE_DOCS=1 cargo test --test compat_doc` writes it anew.
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Functions that answer, but not for every case that the name promises.
const PARTIAL: [(&str, &str); 2] = [
    ("ibv_import_mr", "within a process; EOPNOTSUPP in another, see below"),
    ("ibv_import_pd", "within a process; EOPNOTSUPP in another, see below"),
];

/// Defaults of the ops table that do the work themselves.
const WORKING_DEFAULTS: [&str; 4] = ["alloc_buf", "free_buf", "reg_mr_ex", "query_qp_data_in_order"];

#[test]
fn compat_document_is_up_to_date() {
    let document = root().join("docs/COMPAT.md");
    let text = compose();
    if std::env::var_os("ANYVERBS_UPDATE_DOCS").is_some() {
        fs::write(&document, &text).unwrap();
    }
    let now = fs::read_to_string(&document).unwrap_or_default();
    assert!(now == text, "docs/COMPAT.md is stale: ANYVERBS_UPDATE_DOCS=1 cargo test --test compat_doc");
}

/// What stands behind a name in a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    Done,
    Partial(String),
    Absent,
}

impl Status {
    fn row(&self) -> String {
        match self {
            Status::Done => "done |".to_owned(),
            Status::Partial(why) => format!("partial | {why}"),
            Status::Absent => "absent | answers EOPNOTSUPP".to_owned(),
        }
    }
}

fn compose() -> String {
    let nodes = nodes();
    let bound = bound();
    let urxe = urxe_slots();
    let slots = slots();
    let status = |name: &str, node: &str| {
        let target = bound
            .get(&(name.to_owned(), node.to_owned()))
            .unwrap_or_else(|| panic!("no export! line in src/entry binds {name} in {node}"));
        let slot = name.trim_start_matches('_').trim_start_matches("ibv_");
        if target.contains("absent::") {
            return Status::Absent;
        }
        if let Some((_, why)) = PARTIAL.iter().find(|(n, _)| name.starts_with(n)) {
            return Status::Partial((*why).to_owned());
        }
        let refused = slots.contains(slot) && !urxe.contains(slot) && !WORKING_DEFAULTS.contains(&slot);
        if refused {
            Status::Partial("passed to the provider; urxe does not have it".to_owned())
        } else {
            Status::Done
        }
    };
    let mut out = String::from(HEAD);
    let mut sums = String::new();
    let mut body = String::new();
    for (node, names) in nodes.iter().filter(|(node, _)| !node.contains("PRIVATE")) {
        writeln!(body, "\n## {node}\n\n| name | status | note |\n| --- | --- | --- |").unwrap();
        let rows: Vec<Status> = names.iter().map(|name| status(name, node)).collect();
        for (name, status) in names.iter().zip(&rows) {
            writeln!(body, "| {name} | {} |", status.row()).unwrap();
        }
        sum(&mut sums, node, &rows);
    }
    let mut private = BTreeMap::<&str, BTreeMap<Status, Vec<&str>>>::new();
    for (node, names) in nodes.iter().filter(|(node, _)| node.contains("PRIVATE")) {
        let rows: Vec<Status> = names.iter().map(|name| status(name, node)).collect();
        sum(&mut sums, node, &rows);
        let number = node.rsplit('_').next().unwrap();
        for (name, status) in names.iter().zip(rows) {
            private.entry(name).or_default().entry(status).or_default().push(number);
        }
    }
    body += "\n## IBVERBS_PRIVATE_34, 57, 59, 64 and 65\n\n| name | nodes | status | note |\n| --- | --- | --- | --- |\n";
    for (name, by_status) in private {
        for (status, numbers) in by_status {
            writeln!(body, "| {name} | {} | {} |", numbers.join(", "), status.row()).unwrap();
        }
    }
    body +=
        "\n## The ops table\n\nVerbs that verbs.h defines inline reach the provider through these slots.\n\n";
    let (has, lacks): (Vec<&str>, Vec<&str>) =
        slots.iter().map(|s| s.as_str()).partition(|s| urxe.contains(*s));
    writeln!(body, "urxe fills: {}.\n", list(&has)).unwrap();
    writeln!(body, "The table's default answers for: {}.", list(&lacks)).unwrap();
    out += &sums;
    out += &body;
    out += &differences("Where urxe differs from a network card", "differences");
    out += &differences("Kernel devices: where the library differs from rdma-core's", "differences-kernel");
    out + &judges()
}

/// Differences and reasons, from a file of `docs`.
fn differences(title: &str, file: &str) -> String {
    let text = fs::read_to_string(root().join(format!("docs/{file}.tsv"))).unwrap();
    let mut out = format!("\n## {title}\n\n| call | what and why |\n| --- | --- |\n");
    for line in text.lines() {
        writeln!(out, "| {} |", line.replace('\t', " | ")).unwrap();
    }
    out
}

/// What the judges say, as `ANYVERBS_UPDATE_DOCS=1 cargo xtask test` wrote it down, and why tests are skipped.
fn judges() -> String {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap_or_default();
    let rows = |text: &str| -> String {
        text.lines().map(|line| format!("| {} |\n", line.replace('\t', " | "))).collect()
    };
    let mut out = String::from(
        "\n## Judges\n\nSuites and programs that others wrote, behaviours that programs have stumbled over, and our conformance suite, run\non urxe0 by `cargo xtask test`, which prints this table at its end.\n\n",
    );
    out += "| judge | run | passed | failed | skipped | why |\n| --- | --- | --- | --- | --- | --- |\n";
    out += &rows(&read("docs/judges.tsv"));
    out += "\nWhat the pyverbs suite skips, and why; a skip that is not listed here fails the judge.\n\n";
    out += "| test | kind | reason |\n| --- | --- | --- |\n";
    out += &rows(&read("xtask/src/trials/pyverbs_skips.tsv"));
    out += "\nWhere urxe0 differs from what our own suite (`tests/conformance`) expects; any other difference fails the judge.\n\n";
    out += "| where | cases | why |\n| --- | --- | --- |\n";
    for (file, place) in [("urxe", "everywhere"), ("urxe-wire", "between hosts")] {
        out += &deviations(&read(&format!("tests/conformance/deviations/{file}.tsv")), place);
    }
    out
}

/// Cases and reasons of a file of deviations.
fn deviations(text: &str, place: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.fold(String::new(), |out, line| {
        let columns: Vec<&str> = line.split('\t').collect();
        out + &format!("| {place} | `{}` | {} |\n", columns[0].trim_start_matches('?'), columns[2])
    })
}

const HEAD: &str = "\
# What stands behind every exported name

Generated by `tests/compat_doc.rs` from `abi/libibverbs.map` and `src/entry`; do not edit.

`done`: as rdma-core's. `partial`: as the note says. `absent`: the name is there, so that programs load, and says
EOPNOTSUPP by its own convention (NULL with errno, a positive errno value, -1 with errno).

| node | done | partial | absent |
| --- | --- | --- | --- |
";

fn sum(out: &mut String, node: &str, rows: &[Status]) {
    let count = |f: fn(&Status) -> bool| rows.iter().filter(|s| f(s)).count();
    let done = count(|s| *s == Status::Done);
    let absent = count(|s| *s == Status::Absent);
    writeln!(out, "| {node} | {done} | {} | {absent} |", rows.len() - done - absent).unwrap();
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Nodes in the order of the map, with their names.
fn nodes() -> Vec<(String, Vec<String>)> {
    let mut nodes: Vec<(String, Vec<String>)> = Vec::new();
    for line in include_str!("../abi/libibverbs.map").lines().map(str::trim) {
        if let Some(node) = line.strip_suffix(" {") {
            nodes.push((node.to_owned(), Vec::new()));
        } else if let Some(name) = line.strip_suffix(';')
            && !name.starts_with('}')
            && !name.starts_with("local")
        {
            nodes.last_mut().unwrap().1.push(name.to_owned());
        }
    }
    nodes
}

/// Name and node to the Rust function that `export!` and its relatives bind to it.
fn bound() -> BTreeMap<(String, String), String> {
    const PRIVATE: [u32; 5] = [34, 57, 59, 64, 65];
    let mut bound = BTreeMap::new();
    let mut bind = |name: &str, node: &str, f: &str| {
        bound.insert((name.to_owned(), node.to_owned()), f.to_owned());
    };
    for source in sources(&root().join("src/entry")) {
        for call in calls(&source, "export!(") {
            // rust_fn => "name" @@ "NODE"
            let quoted: Vec<&str> = call.split('"').collect();
            if let [f, name, _, node, ..] = quoted[..] {
                bind(name, node, f);
            }
        }
        for call in calls(&source, "export_private!(") {
            // 34 to 57: rust_fn => "name"
            let quoted: Vec<&str> = call.split('"').collect();
            let [head, name, ..] = quoted[..] else { continue };
            let Some((range, f)) = head.split_once(':') else { continue };
            let mut ends = range.split(" to ").filter_map(|n| n.trim().parse().ok());
            let Some(first) = ends.next() else { continue };
            let last: u32 = ends.next().unwrap_or(65);
            for n in PRIVATE.iter().filter(|n| (first..=last).contains(*n)) {
                bind(name, &format!("IBVERBS_PRIVATE_{n}"), f);
            }
        }
        for block in blocks(&source, "absent_since! {") {
            // 34: "name" convention; ...
            let Some((first, names)) = block.split_once(':') else { continue };
            let first: u32 = first.trim().parse().unwrap();
            for name in names.split('"').skip(1).step_by(2) {
                for n in PRIVATE.iter().filter(|n| **n >= first) {
                    bind(name, &format!("IBVERBS_PRIVATE_{n}"), "absent::");
                }
            }
        }
        for block in blocks(&source, "register! {") {
            // rust_fn 34 "name" @ "NODE"; ...
            for line in block.lines() {
                if let [f, name, _, node, ..] = line.split('"').collect::<Vec<_>>()[..] {
                    bind(name, node, f);
                }
            }
        }
        for call in calls(&source, "export_bool!(") {
            let quoted: Vec<&str> = call.split('"').collect();
            for node in quoted.iter().skip(3).step_by(2) {
                bind(quoted[1], node.trim_start_matches('@'), "data");
            }
        }
    }
    bound
}

fn sources(dir: &Path) -> Vec<String> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "rs"))
        .map(|f| fs::read_to_string(f).unwrap())
        .collect()
}

/// The arguments of each call of a macro.
fn calls<'a>(source: &'a str, start: &str) -> Vec<&'a str> {
    source.split(start).skip(1).filter_map(|rest| rest.split_once(");").map(|(call, _)| call)).collect()
}

/// The bodies of each block that begins at the start of a line.
fn blocks<'a>(source: &'a str, start: &str) -> Vec<&'a str> {
    let start = format!("\n{start}\n");
    source
        .split(start.as_str())
        .skip(1)
        .filter_map(|rest| rest.split_once("\n}").map(|(body, _)| body))
        .collect()
}

/// The slots of the ops table.
fn slots() -> BTreeSet<String> {
    let source = fs::read_to_string(root().join("src/abi/ops.rs")).unwrap();
    let table = source.split("\nops! {").nth(1).unwrap();
    table.lines().filter_map(|l| l.trim().split_once(": fn(").map(|(slot, _)| slot.to_owned())).collect()
}

/// The slots that urxe's own table fills.
fn urxe_slots() -> BTreeSet<String> {
    let soft = root().join("src/soft");
    let mut dirs: Vec<PathBuf> = vec![soft.clone(), soft.join("verbs")];
    dirs.retain(|d| d.is_dir());
    let fills = |line: &str| {
        let (slot, value) = line.trim().split_once(": ")?;
        value.starts_with("Some(").then(|| slot.to_owned())
    };
    dirs.iter()
        .flat_map(|d| sources(d))
        .flat_map(|s| s.lines().filter_map(fills).collect::<Vec<_>>())
        .collect()
}
