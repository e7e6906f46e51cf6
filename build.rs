//! Link-time identity of libibverbs.so.1: SONAME, symbol versions, and that it stays loaded.
use std::{env, path::PathBuf, process::Command};

fn main() {
    let map = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("abi/libibverbs.map");
    println!("cargo::rerun-if-changed={}", map.display());
    link_arg("-Wl,-soname,libibverbs.so.1");
    link_arg(&format!("-Wl,--version-script={}", map.display()));
    // Background threads and dlclose do not mix.
    link_arg("-Wl,-z,nodelete");
    // GNU ld refuses rustc's own (anonymous) script next to ours; lld, mold and gold accept both.
    if let Some(dir) = bundled_lld() {
        link_arg(&format!("-B{}", dir.display()));
    }
    link_arg("-fuse-ld=lld");
}

fn link_arg(arg: &str) {
    println!("cargo::rustc-cdylib-link-arg={arg}");
}

fn bundled_lld() -> Option<PathBuf> {
    let out = Command::new(env::var_os("RUSTC")?).args(["--print", "sysroot"]).output().ok()?;
    let dir = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim())
        .join("lib/rustlib")
        .join(env::var("HOST").ok()?)
        .join("bin/gcc-ld");
    dir.join("ld.lld").exists().then_some(dir)
}
