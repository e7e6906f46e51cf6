//! One layout three times: our header, rdma-core's header, and the Rust mirrors in `src/abi`.
mod toolchain;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use toolchain::{
    declarations,
    dwarf::{self, Types},
    including, our_include,
};

const HEADERS: [&str; 4] = ["verbs.h", "sa.h", "opcode.h", "tm_types.h"];

/// Types that grew after release 44, with their sizes then and now. Their old fields stay where they were.
const GREW_SINCE_44: [(&str, u64, u64); 3] = [
    ("struct ibv_port_attr", 52, 56),
    ("struct ibv_qp_ex", 352, 360),
    ("struct ib_uverbs_query_port_resp_ex", 48, 48),
];

/// Grows at its head: fields keep their distance from `context`.
const GROWS_AT_ITS_HEAD: &str = "verbs_context";

/// A filler of release 44 that has a name now.
const NAMED_SINCE_44: [(&str, u64); 1] = [("ib_uverbs_query_port_resp_ex.reserved", 6)];

/// Public types that the library itself never touches.
const WITHOUT_MIRROR: [&str; 7] = [
    "ibv_fd_arr",
    "ibv_path_data",
    "ibv_path_record",
    "ibv_rvh",
    "ibv_sa_mcmember_rec",
    "ibv_sa_service_rec",
    "ibv_tmh",
];

#[test]
fn our_header_has_the_layout_of_the_installed_one() {
    let Some(dir) = toolchain::system_include() else { return };
    let (ours, theirs) = (types(&our_include()), types(&dir));
    let grew: BTreeMap<_, _> = GREW_SINCE_44.into_iter().map(|(t, then, now)| (t, (then, now))).collect();
    let mut wrong = Vec::new();
    for (name, size) in &theirs.sizes {
        let here = ours.sizes.get(name).copied();
        let expected = match grew.get(name.as_str()) {
            Some((then, now)) if size == then => Some(*now),
            _ if name.ends_with(GROWS_AT_ITS_HEAD) => here.filter(|h| h >= size),
            _ => Some(*size),
        };
        if here != expected {
            wrong.push(format!("{name}: {here:?}, there {size}"));
        }
    }
    let context = |t: &Types| t.fields["verbs_context.context"].offset as i64;
    for (name, field) in &theirs.fields {
        let Some(here) = ours.fields.get(name) else {
            wrong.push(format!("{name}: not here"));
            continue;
        };
        let (mut a, mut b) = (here.offset as i64, field.offset as i64);
        if name.starts_with(GROWS_AT_ITS_HEAD) {
            (a, b) = (a - context(&ours), b - context(&theirs));
        }
        let renamed = NAMED_SINCE_44.contains(&(name, field.size));
        if a != b || (here.size, &here.of) != (field.size, &field.of) && !renamed {
            wrong.push(format!("{name}: {here:?}, there {field:?}"));
        }
    }
    assert!(theirs.sizes.len() > 120 && theirs.fields.len() > 900, "too little was read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn our_header_has_the_layout_of_release_65() {
    let Some(dir) = toolchain::oracle_include() else { return };
    let (ours, theirs) = (types(&our_include()), types(&dir));
    assert_eq!(ours.sizes, theirs.sizes);
    let different = theirs.fields.iter().filter(|(n, f)| ours.fields.get(*n) != Some(f));
    let different: Vec<String> =
        different.map(|(n, f)| format!("{n}: {:?}, there {f:?}", ours.fields.get(n))).collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(ours.fields.len(), theirs.fields.len());
    assert_eq!(ours.constants, theirs.constants);
}

#[test]
fn rust_mirrors_have_the_layout_of_our_header() {
    let ours = types(&our_include());
    let mirrors = mirrors(&ours);
    let mut wrong = Vec::new();
    let mut without = BTreeSet::new();
    let mut compared = 0;
    for (name, size) in &ours.sizes {
        let bare = name.split(' ').nth(1).expect("a name");
        if !(bare.starts_with("ibv_") || bare == "verbs_context") {
            continue;
        }
        let Some(mirror) = mirrors.sizes.get(name).or_else(|| mirrors.sizes.get(&format!("struct {bare}")))
        else {
            without.insert(bare);
            continue;
        };
        compared += 1;
        if mirror != size {
            wrong.push(format!("{name}: {size} bytes, in Rust {mirror}"));
        }
        if bare == "ibv_gid" {
            continue; // one array of bytes in Rust
        }
        let (c, rust) = (leaves(&ours, bare), leaves(&mirrors, bare));
        wrong.extend(c.symmetric_difference(&rust).map(|(at, size)| {
            let side = if c.contains(&(*at, *size)) { "C" } else { "Rust" };
            format!("{name}: {size} bytes at {at} only in {side}")
        }));
        let prefix = format!("{bare}.");
        for (path, field) in ours.fields.range(prefix.clone()..).take_while(|(p, _)| p.starts_with(&prefix)) {
            if let Some(m) =
                mirrors.fields.get(path).filter(|m| (m.offset, m.size) != (field.offset, field.size))
            {
                wrong.push(format!("{path}: {field:?}, in Rust {m:?}"));
            }
        }
    }
    assert_eq!(without, BTreeSet::from(WITHOUT_MIRROR));
    assert!(compared > 90, "compared only {compared} types");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rust_constants_have_the_values_of_our_header() {
    let text = including(&HEADERS);
    let ours = types(&our_include());
    let mut wrong = Vec::new();
    let rust = rust_constants();
    assert!(rust.len() > 250, "found only {} constants", rust.len());
    let macros = declarations::macros(&our_include(), &text);
    let (known, values): (Vec<_>, Vec<_>) = rust
        .iter()
        .filter(|(n, _)| ours.constants.contains_key(n.as_str()) || macros.contains_key(n.as_str()))
        .cloned()
        .unzip();
    // The compiler evaluates both: the header's name, and the expression that Rust has for it.
    let mut enumerators = text.clone();
    for (i, value) in values.iter().enumerate() {
        enumerators +=
            &format!("#define RUST_{i} ({})\n", value.replace("u64 <<", "ULL <<").replace('_', ""));
    }
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    let c = declarations::values(&our_include(), &text, &names);
    let indexes: Vec<String> = (0..values.len()).map(|i| format!("RUST_{i}")).collect();
    let indexes: Vec<&str> = indexes.iter().map(String::as_str).collect();
    let evaluated = declarations::values(&our_include(), &enumerators, &indexes);
    for (i, name) in known.iter().enumerate() {
        let (c, rust) = (c[name], evaluated[&format!("RUST_{i}")]);
        if c != rust && c as u32 != rust as u32 {
            wrong.push(format!("{name}: {c}, in Rust {rust}"));
        }
    }
    assert!(known.len() > 250, "compared only {} constants", known.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn types(include: &Path) -> Types {
    dwarf::types(include, &including(&HEADERS))
}

/// What the Rust mirrors look like once cbindgen has turned them into C. rustc's own offsets are asserted beside them.
fn mirrors(public: &Types) -> Types {
    let wanted: BTreeSet<&str> = public.sizes.keys().filter_map(|n| n.split(' ').nth(1)).collect();
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        no_includes: true,
        includes: ["stdint.h", "stdbool.h", "stddef.h", "pthread.h", "time.h"].map(String::from).to_vec(),
        after_includes: Some(
            "typedef struct timespec timespec;\ntypedef struct verbs_ex_private verbs_ex_private;\n#define ALIGNED(n) __attribute__((aligned(n)))".into(),
        ),
        ..cbindgen::Config::default()
    };
    config.layout.aligned_n = Some("ALIGNED".into());
    config.export.exclude = vec!["verbs_ex_private".into()];
    let mut builder = cbindgen::Builder::new();
    for (path, text) in abi_sources() {
        builder = builder.with_src(path);
        for line in text.lines() {
            let item = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub union "));
            let name = item.and_then(|i| i.split([' ', ';', '<', '(']).next());
            config.export.include.extend(name.filter(|n| wanted.contains(n)).map(String::from));
        }
    }
    let mut text = Vec::new();
    builder.with_config(config).generate().expect("src/abi as C").write(&mut text);
    dwarf::types(Path::new("/usr/include"), &String::from_utf8(text).expect("UTF-8"))
}

/// Every field that has no fields itself, as (offset, size): names of what C leaves anonymous do not matter.
fn leaves(types: &Types, of: &str) -> BTreeSet<(u64, u64)> {
    let mut found = BTreeSet::new();
    collect(types, of, 0, &mut found);
    found
}

fn collect(types: &Types, path: &str, base: u64, into: &mut BTreeSet<(u64, u64)>) {
    let prefix = format!("{path}.");
    let all = types.fields.range(prefix.clone()..).take_while(|(p, _)| p.starts_with(&prefix));
    for (p, field) in all.filter(|(p, _)| !p[prefix.len()..].contains('.')) {
        let inner = field.of.split(' ').nth(1).filter(|n| {
            matches!(field.of.split(' ').next(), Some("struct" | "union"))
                && !field.of.contains(['*', '(', '['])
                && types.fields.keys().any(|k| k.starts_with(&format!("{n}.")))
        });
        let own = types.fields.keys().any(|k| k.starts_with(&format!("{p}.")));
        match inner {
            _ if own => collect(types, p, base, into),
            Some(name) if name.starts_with("ib") && name != "ibv_gid" => {
                collect(types, name, base + field.offset, into)
            }
            _ => {
                into.insert((base + field.offset, field.size));
            }
        }
    }
}

/// Names and expressions of the integer constants in `src/abi`.
fn rust_constants() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (_, text) in abi_sources() {
        for line in text.lines().map(str::trim) {
            let line = match line.strip_prefix("pub const ") {
                Some(rest) => match rest.split_once(':') {
                    Some((name, rest)) => {
                        format!("{name} = {}", rest.split_once('=').map_or("", |(_, v)| v.trim()))
                    }
                    None => continue,
                },
                None => line.to_string(),
            };
            let Some((name, value)) = line.strip_suffix(';').and_then(|l| l.split_once(" = ")) else {
                continue;
            };
            let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let plain = |c: char| c.is_ascii_hexdigit() || "x_<> ()-|".contains(c);
            if name.starts_with("IB") && name.chars().all(upper) && value.chars().all(plain) {
                found.push((name.to_string(), value.to_string()));
            }
        }
    }
    found
}

fn abi_sources() -> Vec<(PathBuf, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/abi");
    let paths = fs::read_dir(&dir).expect("src/abi").map(|e| e.expect("an entry").path());
    let mut sources: Vec<_> = paths
        .filter(|p| p.extension().is_some_and(|e| e == "rs"))
        .map(|p| (p.clone(), fs::read_to_string(&p).expect("a source")))
        .collect();
    sources.sort();
    sources
}
