//! `include/anyverbs.h` is what cbindgen makes of the sources, and compiles in every dialect of C and C++ beside verbs.h.
mod toolchain;

use std::{collections::BTreeSet, fs};

use toolchain::{DIALECTS, Scratch, have, our_include, try_run};

const TYPES: &str = include_str!("../src/abi/extension.rs");
const FUNCTIONS: &str = include_str!("../src/entry/extension.rs");

/// What stands at the head of the header.
const HEAD: &str = "\
/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What anyverbs offers beyond verbs: to programs that link with libibverbs.so.1 of anyverbs, or look the names up with
 * dlsym(3). Calls that return int give 0 or a positive errno value, which errno has as well: EINVAL for an argument that
 * is NULL or wrong, EOPNOTSUPP for objects of devices that are not anyverbs' own, EIO in a forked child for objects of
 * its parent. With ANYVERBS_EXPLAIN=1 a refused call says why in one line.
 *
 * Made by cbindgen: ANYVERBS_UPDATE_HEADER=1 cargo test --test extension.
 */";

#[test]
fn the_header_is_what_the_sources_say() {
    let made = header();
    let place = our_include().join("anyverbs.h");
    if std::env::var_os("ANYVERBS_UPDATE_HEADER").is_some() {
        fs::write(&place, &made).expect("include/anyverbs.h");
    }
    let there = fs::read_to_string(&place).unwrap_or_default();
    assert!(
        made == there,
        "include/anyverbs.h is stale: ANYVERBS_UPDATE_HEADER=1 cargo test --test extension"
    );
}

#[test]
fn it_declares_every_name_of_its_node() {
    let map = include_str!("../abi/libibverbs.map");
    let node = map.split("\nANYVERBS_1.0 {").nth(1).expect("the node").split('}').next().expect("its end");
    let names = node.lines().filter_map(|l| l.trim().strip_suffix(';')).map(str::to_owned);
    let promised: BTreeSet<String> = names.collect();
    let declared: BTreeSet<String> = header()
        .lines()
        .filter_map(|l| l.split_once('(')?.0.rsplit([' ', '*']).next().map(str::to_owned))
        .filter(|name| name.starts_with("anyverbs_"))
        .collect();
    assert_eq!(promised, declared);
}

#[test]
fn it_compiles_in_every_dialect() {
    let dir = Scratch::new("extension");
    let text = "#include <anyverbs.h>\nint main(void) { return anyverbs_version() == 0; }\n";
    let mut tried = 0;
    for (compiler, language, std) in DIALECTS.into_iter().filter(|d| have(d.0)) {
        let source = dir.write("x.c", text);
        let mut command = std::process::Command::new(compiler);
        command.args([
            "-x",
            language,
            &format!("-std={std}"),
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
        ]);
        let out = try_run(command.arg("-I").arg(our_include()).arg(&source));
        assert!(out.status.success(), "{compiler} {std}: {}", String::from_utf8_lossy(&out.stderr));
        tried += 1;
    }
    assert!(tried > 0, "no C compiler");
}

/// The header that the sources make.
fn header() -> String {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        cpp_compat: true,
        header: Some(HEAD.into()),
        include_guard: Some("ANYVERBS_H".into()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h", "infiniband/verbs.h"].map(String::from).to_vec(),
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        line_length: 110,
        tab_width: 4,
        usize_is_size_t: true,
        ..cbindgen::Config::default()
    };
    config.enumeration.rename_variants = cbindgen::RenameRule::QualifiedScreamingSnakeCase;
    for name in ["ibv_context", "ibv_qp"] {
        config.export.rename.insert(name.into(), format!("struct {name}"));
    }
    // `export!` gives the names of their nodes to functions that the compiler knows under mangled ones.
    let exported = FUNCTIONS
        .replace("\npub unsafe extern \"C\" fn", "\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn")
        .replace("\npub extern \"C\" fn", "\n#[unsafe(no_mangle)]\npub extern \"C\" fn");
    let dir = Scratch::new("cbindgen");
    let sources = [dir.write("types.rs", TYPES), dir.write("functions.rs", &exported)];
    let builder = sources.iter().fold(cbindgen::Builder::new(), |b, source| b.with_src(source));
    let mut text = Vec::new();
    builder.with_config(config).generate().expect("a header").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}
