//! The functions and macros of a header, from the compiler's own lists.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{Scratch, gcc, run};

/// Prototypes, one a line, of what files below `infiniband/` declare; parameter names are dropped where gcc drops them.
pub fn functions(include: &Path, text: &str) -> BTreeSet<String> {
    let dir = Scratch::new("functions");
    let (source, list) = (dir.write("t.c", text), dir.path("list"));
    run(gcc(include).arg("-fsyntax-only").arg("-aux-info").arg(&list).arg(&source));
    let list = fs::read_to_string(&list).expect("gcc's list");
    let ours = list.lines().filter(|l| l.starts_with("/* ") && l.contains("/infiniband/"));
    ours.filter_map(|l| l.split("*/ ").nth(1))
        .map(|l| l.split("; /*").next().unwrap_or(l).trim().to_string())
        .collect()
}

/// Macros that files below `infiniband/` define: name (with parameters) to text, include guards left out.
pub fn macros(include: &Path, text: &str) -> BTreeMap<String, String> {
    let dir = Scratch::new("macros");
    let all = run(gcc(include).args(["-E", "-dD"]).arg(dir.write("t.c", text)));
    let mut inside = false;
    let mut found = BTreeMap::new();
    for line in all.lines() {
        if line.starts_with("# ") {
            inside = line.contains("/infiniband/");
        } else if let Some(define) = line.strip_prefix("#define ").filter(|_| inside) {
            let end = match define.find(['(', ' ']) {
                Some(at) if define[at..].starts_with('(') => define.find(')').map_or(define.len(), |p| p + 1),
                Some(at) => at,
                None => define.len(),
            };
            let value = define[end..].trim();
            if !value.is_empty() {
                found.insert(define[..end].to_string(), value.to_string());
            }
        } else if let Some(name) = line.strip_prefix("#undef ") {
            found.retain(|k, _| k.split('(').next() != Some(name.trim()));
        }
    }
    found
}

/// The values of macros that are integer constants, as the compiler sees them.
pub fn values(include: &Path, text: &str, names: &[&str]) -> BTreeMap<String, i64> {
    let dir = Scratch::new("values");
    let prints: String =
        names.iter().map(|n| format!("    printf(\"{n} %lld\\n\", (long long)({n}));\n")).collect();
    let source = dir.write("t.c", &format!("#include <stdio.h>\n{text}\nint main(void)\n{{\n{prints}}}\n"));
    run(gcc(include).arg(&source).arg("-o").arg(dir.path("t")));
    let out = run(&mut std::process::Command::new(dir.path("t")));
    let pair = |l: &str| l.split_once(' ').map(|(n, v)| (n.to_string(), v.parse().expect("a number")));
    out.lines().filter_map(pair).collect()
}
