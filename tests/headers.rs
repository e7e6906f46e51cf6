//! Our public headers compile first and alone in every dialect, and declare what rdma-core's declare.
mod toolchain;

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use toolchain::{DIALECTS, Scratch, declarations, dwarf, have, including, our_include, try_run};

/// Headers that programs include by themselves and that all releases of rdma-core install.
const EVERYWHERE: [&str; 5] = ["verbs.h", "sa.h", "opcode.h", "tm_types.h", "ib.h"];

/// Names that release 44 spells differently although the ABI is the same.
const SINCE_44: [&str; 4] = ["__ibv_reg_mr", "__ibv_reg_mr_iova", "verbs_get_ctx_op", "ETHERNET_LL_SIZE"];

#[test]
fn every_header_compiles_alone_in_every_dialect() {
    let dir = Scratch::new("alone");
    let mut tried = 0;
    for (compiler, language, std) in DIALECTS {
        if !have(compiler) {
            eprintln!("skipped: {compiler} is not installed");
            continue;
        }
        for header in headers(&our_include().join("infiniband")) {
            let text = format!("#include <infiniband/{header}>\nint main(void) {{ return 0; }}\n");
            compile(compiler, language, std, &dir, &text);
            tried += 1;
        }
    }
    assert!(tried > 0, "no C compiler");
}

/// Projects that build with `-pedantic -Werror` include ours by `-I`, where gcc has no mercy of system headers.
#[test]
fn headers_are_pedantic_c11() {
    let dir = Scratch::new("pedantic");
    for header in headers(&our_include().join("infiniband")) {
        let source =
            dir.write("t.c", &format!("#include <infiniband/{header}>\nint main(void) {{ return 0; }}\n"));
        let mut gcc = toolchain::gcc(&our_include());
        gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]).arg(&source);
        toolchain::run(&mut gcc);
    }
}

#[test]
fn every_inline_call_compiles_at_all_levels_of_optimisation() {
    let dir = Scratch::new("calls");
    let names = declarations::functions(&our_include(), &including(&EVERYWHERE));
    let mut text =
        including(&EVERYWHERE) + "#undef ibv_query_port\n#undef ibv_reg_mr\n#undef ibv_reg_mr_iova\n";
    text += "typedef void (*any)(void);\nextern const any all[];\nconst any all[] = {\n";
    for name in names.iter().map(|f| function_name(f)) {
        text += &format!("    (any){name},\n");
    }
    text += "};\n";
    for level in ["-O0", "-O2", "-Os"] {
        let source = dir.write("calls.c", &text);
        let mut gcc = toolchain::gcc(&our_include());
        gcc.args(["-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", level, "-c"]).arg(&source);
        toolchain::run(gcc.arg("-o").arg(dir.path("calls.o")));
    }
}

#[test]
fn static_provider_lists_expand() {
    let dir = Scratch::new("static");
    for list in ["rxe", "mlx5,rxe,efa", "all"] {
        let text = format!(
            "#define RDMA_STATIC_PROVIDERS {list}\n{}void *f(void);\nvoid *f(void) {{ return ibv_get_device_list(0); }}\n",
            including(&["verbs.h"])
        );
        compile("gcc", "c", "gnu17", &dir, &text);
    }
}

#[test]
fn macros_over_exported_functions_work_in_c_and_cxx() {
    let dir = Scratch::new("macros");
    let text = including(&["verbs.h"])
        + "struct ibv_mr *plain(struct ibv_pd *pd, void *p);\n\
           struct ibv_mr *plain(struct ibv_pd *pd, void *p)\n{\n\
           return ibv_reg_mr(pd, p, 8, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);\n}\n\
           struct ibv_mr *relaxed(struct ibv_pd *pd, void *p);\n\
           struct ibv_mr *relaxed(struct ibv_pd *pd, void *p)\n{\n\
           return ibv_reg_mr_iova(pd, p, 8, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);\n}\n\
           int port(struct ibv_context *c, struct ibv_port_attr *a);\n\
           int port(struct ibv_context *c, struct ibv_port_attr *a)\n{\n\
           return ibv_query_port(c, 1, a) + ibv_is_qpt_supported(4, IBV_QPT_RC);\n}\n";
    for (compiler, language, std) in DIALECTS.into_iter().filter(|d| have(d.0)) {
        compile(compiler, language, std, &dir, &text);
    }
    // A program without optional flags must not need ibv_reg_mr_iova2, which old libraries lack.
    let source = dir.write("symbols.c", &text);
    let object = dir.path("symbols.o");
    toolchain::run(toolchain::gcc(&our_include()).args(["-O1", "-c"]).arg(&source).arg("-o").arg(&object));
    let symbols = toolchain::run(Command::new("nm").arg("-u").arg(&object));
    let symbols: BTreeSet<&str> = symbols.split_whitespace().filter(|s| s.starts_with("ibv_")).collect();
    assert_eq!(symbols, BTreeSet::from(["ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_query_port"]));
}

#[test]
fn installed_headers_of_others_compile_on_ours() {
    let Some(system) = toolchain::system_include() else { return };
    let dir = Scratch::new("others");
    let others = ["infiniband/mlx5dv.h", "infiniband/efadv.h", "infiniband/mlx4dv.h", "rdma/rdma_verbs.h"];
    for header in others.into_iter().filter(|h| system.join(h).exists()) {
        let text = format!("#include <{header}>\nint main(void) {{ return 0; }}\n");
        for (compiler, language, std) in [("gcc", "c", "gnu17"), ("g++", "c++", "gnu++17")] {
            if have(compiler) {
                compile(compiler, language, std, &dir, &text);
            }
        }
    }
}

#[test]
fn everything_the_installed_headers_declare_is_declared_here() {
    if let Some(dir) = toolchain::system_include() {
        assert_no_less(&dir, &SINCE_44);
    }
}

#[test]
fn everything_release_65_declares_is_declared_here() {
    if let Some(dir) = toolchain::oracle_include() {
        assert_no_less(&dir, &["__ibv_reg_mr", "__ibv_reg_mr_iova", "verbs_get_ctx_op"]);
    }
}

/// Functions with their types, macros with their values, types and enumerators by name. Layout is `layout.rs`'s matter.
fn assert_no_less(theirs: &Path, but: &[&str]) {
    // `ib.h` comes with librdmacm-dev.
    let there = EVERYWHERE.into_iter().filter(|header| theirs.join("infiniband").join(header).exists());
    let text = including(&there.collect::<Vec<_>>());
    let mut missing = Vec::new();

    let ours = declarations::functions(&our_include(), &text);
    let wanted = declarations::functions(theirs, &text);
    assert!(wanted.len() > 150, "found only {} functions", wanted.len());
    missing.extend(wanted.difference(&ours).filter(|f| !but.contains(&function_name(f))).cloned());

    let ours = declarations::macros(&our_include(), &text);
    let wanted = declarations::macros(theirs, &text);
    assert!(wanted.len() > 40, "found only {} macros", wanted.len());
    let here = |name: &str| ours.keys().any(|k| k.split('(').next() == name.split('(').next());
    missing.extend(wanted.keys().filter(|n| !here(n)).map(|n| format!("#define {n}")));
    let numbers: Vec<&str> =
        wanted.keys().map(String::as_str).filter(|n| !n.contains('(') && is_constant_name(n)).collect();
    let (a, b) = (
        declarations::values(&our_include(), &text, &numbers),
        declarations::values(theirs, &text, &numbers),
    );
    missing.extend(b.iter().filter(|(n, v)| a.get(*n) != Some(v)).map(|(n, v)| format!("{n} = {v}")));
    let aliases =
        wanted.iter().filter(|(n, _)| !n.contains('(') && !is_constant_name(n) && !but.contains(&n.as_str()));
    missing.extend(aliases.filter(|(n, v)| ours.get(*n) != Some(v)).map(|(n, v)| format!("#define {n} {v}")));

    let (ours, wanted) = (dwarf::types(&our_include(), &text), dwarf::types(theirs, &text));
    missing.extend(wanted.sizes.keys().filter(|t| !ours.sizes.contains_key(*t)).cloned());
    missing.extend(wanted.fields.keys().filter(|f| !ours.fields.contains_key(*f)).cloned());
    missing.extend(
        wanted
            .constants
            .iter()
            .filter(|(n, v)| ours.constants.get(*n) != Some(v))
            .map(|(n, v)| format!("{n} = {v}")),
    );
    assert!(missing.is_empty(), "missing or different:\n{}", missing.join("\n"));
}

fn function_name(prototype: &str) -> &str {
    let before = prototype.split(" (").next().unwrap_or(prototype);
    before.rsplit([' ', '*']).next().unwrap_or(before)
}

fn is_constant_name(name: &str) -> bool {
    name.starts_with("IB") || name.starts_with("AF_") || name.starts_with("PF_") || name == "ETHERNET_LL_SIZE"
}

fn headers(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("our headers");
    let names = entries.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8"));
    names.filter(|n| n.ends_with(".h")).collect()
}

fn compile(compiler: &str, language: &str, std: &str, dir: &Scratch, text: &str) {
    let source = dir.write("t.src", text);
    let mut command = Command::new(compiler);
    command.args([
        "-x",
        language,
        &format!("-std={std}"),
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        "-I",
    ]);
    let out = try_run(command.arg(our_include()).arg(&source));
    assert!(out.status.success(), "{compiler} -std={std}:\n{text}\n{}", String::from_utf8_lossy(&out.stderr));
}
