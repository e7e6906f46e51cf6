//! The C compilers of the machine, the headers they are pointed at, and what a header declares.
#![allow(dead_code)]

pub mod declarations;
pub mod dwarf;
pub mod programs;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

/// A dialect: compiler, `-x` language, `-std=`.
pub type Dialect = (&'static str, &'static str, &'static str);

/// Every dialect in which programs include our headers.
pub const DIALECTS: [Dialect; 10] = [
    ("gcc", "c", "c99"),
    ("gcc", "c", "c11"),
    ("gcc", "c", "gnu11"),
    ("gcc", "c", "gnu17"),
    ("g++", "c++", "c++11"),
    ("g++", "c++", "gnu++17"),
    ("g++", "c++", "gnu++20"),
    ("clang", "c", "gnu11"),
    ("clang", "c", "gnu17"),
    ("clang++", "c++", "gnu++20"),
];

/// The folder to put behind `-I` for our headers.
pub fn our_include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The installed rdma-core headers, or None with a line that says so.
pub fn system_include() -> Option<PathBuf> {
    let dir = PathBuf::from("/usr/include");
    if dir.join("infiniband/verbs.h").exists() {
        return Some(dir);
    }
    eprintln!("skipped: no /usr/include/infiniband/verbs.h (package libibverbs-dev)");
    None
}

/// Headers of rdma-core 65, where `ANYVERBS_ORACLE_INCLUDE` names the folder above `infiniband/`.
pub fn oracle_include() -> Option<PathBuf> {
    match std::env::var_os("ANYVERBS_ORACLE_INCLUDE") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => {
            eprintln!("skipped: ANYVERBS_ORACLE_INCLUDE is not set");
            None
        }
    }
}

/// Whether the machine has this program.
pub fn have(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// A folder of this test run's own, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder below cargo's own temporary folder.
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
        fs::create_dir_all(&dir).expect("a scratch folder");
        Scratch(dir)
    }

    /// Path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("a scratch file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a command; panics with its stderr when it fails.
pub fn run(command: &mut Command) -> String {
    let out = try_run(command);
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8 output")
}

/// Runs a command whatever comes of it.
pub fn try_run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// `gcc` on C, with one folder of headers before the system's.
pub fn gcc(include: &Path) -> Command {
    let mut c = Command::new("gcc");
    c.args(["-x", "c", "-std=gnu17"]);
    // /usr/include as -I would change the order of the compiler's own folders.
    if include != Path::new("/usr/include") {
        c.arg("-I").arg(include);
    }
    c
}

/// C text that includes these headers of `infiniband/`.
pub fn including(headers: &[&str]) -> String {
    headers.iter().map(|h| format!("#include <infiniband/{h}>\n")).collect()
}
