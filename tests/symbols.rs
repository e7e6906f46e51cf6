//! The built library exports exactly what `abi/libibverbs.map` promises, and nothing that a distribution's has is missing.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Name and node.
type Symbol = (String, String);

/// Names that must not have a default version: a program linked today shall not get them.
const NEVER_DEFAULT: [&str; 1] = ["ibv_register_driver"];

#[test]
fn library_exports_what_the_map_promises() {
    let promised: BTreeSet<Symbol> = promised().into_iter().collect();
    let exported: BTreeSet<Symbol> = exported(&library()).into_keys().collect();
    assert_eq!(promised.difference(&exported).collect::<Vec<_>>(), Vec::<&Symbol>::new(), "missing");
    assert_eq!(exported.difference(&promised).collect::<Vec<_>>(), Vec::<&Symbol>::new(), "not promised");
}

#[test]
fn each_name_has_one_default_in_its_newest_node() {
    let newest: BTreeMap<String, String> = promised().into_iter().collect();
    let mut defaults = BTreeMap::<String, Vec<String>>::new();
    for ((name, node), default) in exported(&library()) {
        if default {
            defaults.entry(name).or_default().push(node);
        }
    }
    for (name, node) in newest {
        let expected = if NEVER_DEFAULT.contains(&&*name) { None } else { Some(vec![node]) };
        assert_eq!(defaults.remove(&name), expected, "{name}");
    }
    assert!(defaults.is_empty(), "{defaults:?}");
}

#[test]
fn every_node_has_its_marker() {
    let marked: BTreeSet<String> =
        dynsyms(&library()).into_iter().filter(|s| s.absolute).map(|s| s.name).collect();
    let nodes: BTreeSet<String> = promised().into_iter().map(|(_, node)| node).collect();
    assert_eq!(marked, nodes);
}

#[test]
fn the_providers_variable_is_one_byte_in_all_nodes() {
    let places: BTreeSet<String> = readelf(&["--dyn-syms"], &library())
        .lines()
        .filter(|l| l.contains(" verbs_allow_disassociate_destroy@"))
        .map(|l| l.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" "))
        .collect();
    assert!(places.len() == 1 && places.first().unwrap().ends_with(" 1 OBJECT"), "{places:?}");
}

#[test]
fn library_names_itself_as_rdma_core_does() {
    let dynamic = readelf(&["-d"], &library());
    assert!(dynamic.contains("Library soname: [libibverbs.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn nothing_of_the_systems_library_is_missing() {
    let Some(system) = system_library() else {
        return eprintln!("skipped: no libibverbs.so.1 on this system");
    };
    let ours = exported(&library());
    for ((name, node), default) in exported(&system) {
        let here = ours.get(&(name.clone(), node.clone()));
        assert!(here.is_some(), "{name}@{node} of {} is missing", system.display());
        if !node.contains("PRIVATE") {
            assert_eq!(here, Some(&default), "{name}@{node} is default in one of the two");
        }
    }
}

#[test]
fn dpkg_gensymbols_sees_no_symbol_go() {
    let known =
        fs::read_dir("/var/lib/dpkg/info").into_iter().flatten().flatten().map(|e| e.path()).find(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("libibverbs1") && name.ends_with(".symbols")
        });
    let tool = Command::new("dpkg-gensymbols").arg("--version").output().is_ok_and(|o| o.status.success());
    let Some(known) = known.filter(|_| tool) else {
        return eprintln!("skipped: no dpkg-gensymbols or symbols file");
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gensymbols-{}", std::process::id()));
    fs::create_dir_all(dir.join("debian")).unwrap();
    fs::write(
        dir.join("debian/control"),
        "Source: x\nMaintainer: x <x@x>\n\nPackage: libibverbs1\nArchitecture: any\n",
    )
    .unwrap();
    let so = dir.join("libibverbs.so.1");
    fs::copy(library(), &so).unwrap();
    let out = Command::new("dpkg-gensymbols")
        .args(["-c1", "-plibibverbs1", "-v9999"])
        .args([format!("-e{}", so.display()), format!("-I{}", known.display())])
        .arg(format!("-O{}", dir.join("out").display()))
        .current_dir(&dir)
        .output()
        .unwrap();
    let now = fs::read_to_string(dir.join("out"));
    fs::remove_dir_all(&dir).unwrap();
    let missing: Vec<String> =
        now.unwrap_or_default().lines().filter(|l| l.contains("#MISSING")).map(str::to_owned).collect();
    assert!(
        out.status.success() && missing.is_empty(),
        "{missing:#?}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// The library of this build, beside the test program.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libibverbs.so")
}

/// The system's library.
fn system_library() -> Option<PathBuf> {
    let arch = std::env::consts::ARCH;
    [format!("/usr/lib/{arch}-linux-gnu"), "/usr/lib64".into(), "/usr/lib".into()]
        .iter()
        .map(|dir| Path::new(dir).join("libibverbs.so.1"))
        .find(|so| so.exists())
}

/// The map's names with their nodes, in the order of the file.
fn promised() -> Vec<Symbol> {
    let (mut node, mut symbols) = (String::new(), Vec::new());
    for line in include_str!("../abi/libibverbs.map").lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            node = name.to_owned();
        } else if let Some(name) = line.strip_suffix(';')
            && !name.starts_with('}')
            && !name.starts_with("local")
        {
            symbols.push((name.to_owned(), node.clone()));
        }
    }
    symbols
}

/// What a library defines, but for node markers; true for a default version.
fn exported(so: &Path) -> BTreeMap<Symbol, bool> {
    dynsyms(so).into_iter().filter(|s| !s.absolute).map(|s| ((s.name, s.node), s.default)).collect()
}

struct DynSym {
    name: String,
    node: String,
    default: bool,
    absolute: bool,
}

fn dynsyms(so: &Path) -> Vec<DynSym> {
    let parse = |line: &str| {
        let field: Vec<&str> = line.split_whitespace().collect();
        if field.len() < 8 || field[6] == "UND" || !matches!(field[4], "GLOBAL" | "WEAK") {
            return None;
        }
        let (name, version) = field[7].split_once('@').unwrap_or((field[7], ""));
        let node = version.trim_start_matches('@').to_owned();
        let default = version.starts_with('@');
        Some(DynSym { name: name.to_owned(), node, default, absolute: field[6] == "ABS" })
    };
    readelf(&["--dyn-syms"], so).lines().filter_map(parse).collect()
}

fn readelf(args: &[&str], file: &Path) -> String {
    let out = Command::new("readelf").arg("-W").args(args).arg(file).env("LC_ALL", "C").output().unwrap();
    assert!(out.status.success(), "readelf {}", file.display());
    String::from_utf8(out.stdout).unwrap()
}
