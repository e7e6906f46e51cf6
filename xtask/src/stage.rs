//! The built library laid out as programs want it: a folder with the `.so.1` link, and one that every user can read.
use std::{
    env, fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::run;

/// SONAME, and the file name that rdma-core 65 uses under it.
pub const SONAME: &str = "libibverbs.so.1";
pub const FULL_NAME: &str = "libibverbs.so.1.18.65.0";
/// The preload library that shows urxe0 under /sys and /dev.
const VIEW: &str = "libanyverbs-view.so";

/// Where the library and our C programs lie.
pub struct Stage {
    /// `libibverbs.so`, `.so.1`: what LD_LIBRARY_PATH points at.
    pub lib: PathBuf,
    /// A copy of it and of our C programs that any user can read, removed when dropped.
    pub public: Public,
}

/// A folder in the temporary directory with mode 0755, removed when dropped.
pub struct Public(PathBuf);

impl Public {
    /// `lib` and `bin` are in it.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A cargo command in the workspace.
pub fn cargo(args: &[&str]) -> Command {
    let mut cmd = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cmd.args(args).current_dir(root());
    cmd
}

/// Builds the release library, our C programs, and lays them out.
pub fn stage() -> Result<Stage, String> {
    let lib = library()?;
    let bin = target().join("anyverbs/bin");
    let folders =
        [("trials", ""), ("bench", ""), ("heavy", ""), ("stress", "stress-"), ("behaviour", "behaviour-")];
    for (folder, prefix) in folders {
        programs(&format!("c-tests/{folder}"), prefix, &lib, &bin)?;
    }
    compile(&c_files("tests/conformance")?, &bin.join("conformance"), &lib)?;
    let public = publish(&lib, &bin).map_err(|e| format!("copying the library for other users: {e}"))?;
    Ok(Stage { lib, public })
}

/// Builds libraries and tools for release and lays them out as `lib` and `bin`; returns `lib`. `ANYVERBS_LIBRARY` names a built
/// libibverbs to take instead.
pub fn library() -> Result<PathBuf, String> {
    const ALL: [&str; 8] =
        ["build", "--release", "-p", "anyverbs-view", "-p", "anyverbs-tools", "-p", "ibverbs"];
    let (built, packages) = match env::var_os("ANYVERBS_LIBRARY") {
        Some(file) => (PathBuf::from(file), &ALL[..6]),
        None => (target().join("release/libibverbs.so"), &ALL[..]),
    };
    run::inherit(cargo(packages))?;
    let place = target().join("anyverbs");
    let lib = place.join("lib");
    lay_out(&built, &lib)
        .and_then(|()| lay_out_tools(&target().join("release"), &place))
        .map_err(|e| format!("{}: {e}", place.display()))?;
    Ok(lib)
}

/// Copies the view library and the `anyverbs` command from `built` into `place`/lib and `place`/bin.
pub fn lay_out_tools(built: &Path, place: &Path) -> io::Result<()> {
    fs::create_dir_all(place.join("lib"))?;
    fs::create_dir_all(place.join("bin"))?;
    replace(&built.join("libanyverbs_view.so"), &place.join("lib").join(VIEW), 0o644)?;
    replace(&built.join("anyverbs"), &place.join("bin/anyverbs"), 0o755)
}

/// Copies `built` into `lib` under its full name, with the links `libibverbs.so -> .so.1 -> full name`.
pub fn lay_out(built: &Path, lib: &Path) -> io::Result<()> {
    fs::create_dir_all(lib)?;
    replace(built, &lib.join(FULL_NAME), 0o644)?;
    for (link, to) in [(SONAME, FULL_NAME), ("libibverbs.so", SONAME)] {
        let link = lib.join(link);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(to, link)?;
    }
    Ok(())
}

/// Copies by rename: a process that has the old file mapped keeps it.
fn replace(from: &Path, to: &Path, mode: u32) -> io::Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, to)
}

/// Compiles each C file of `folder` into a program in `bin`, its name after `prefix`, against our headers and our library.
fn programs(folder: &str, prefix: &str, lib: &Path, bin: &Path) -> Result<(), String> {
    fs::create_dir_all(bin).map_err(|e| format!("{}: {e}", bin.display()))?;
    for source in c_files(folder)? {
        let name = format!("{prefix}{}", source.file_stem().expect("a C file has a name").display());
        compile(&[source], &bin.join(name), lib)?;
    }
    Ok(())
}

/// The C files of a folder of the workspace, sorted.
fn c_files(folder: &str) -> Result<Vec<PathBuf>, String> {
    let folder = root().join(folder);
    let mut sources: Vec<PathBuf> = fs::read_dir(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "c"))
        .collect();
    sources.sort();
    Ok(sources)
}

/// Compiles C files into one program.
fn compile(sources: &[PathBuf], program: &Path, lib: &Path) -> Result<(), String> {
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-o"]);
    cc.arg(program).args(sources);
    cc.arg("-I").arg(root().join("include")).arg("-L").arg(lib).args(["-libverbs"]);
    run::run(cc, Duration::from_secs(120))?.success().map(drop)
}

/// Compiles a program of `c-tests` against the system's headers and library, so that any libibverbs can run it.
pub fn system_program(name: &str, to: &Path) -> Result<(), String> {
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", "-o"]).arg(to);
    cc.arg(root().join("c-tests").join(name).with_extension("c")).arg("-libverbs");
    run::run(cc, Duration::from_secs(120))?.success().map(drop)
}

fn publish(lib: &Path, bin: &Path) -> io::Result<Public> {
    let public = Public(env::temp_dir().join(format!("anyverbs-test-{}", std::process::id())));
    let _ = fs::remove_dir_all(public.path());
    for dir in [public.path().to_path_buf(), public.path().join("lib"), public.path().join("bin")] {
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    }
    lay_out(&lib.join(FULL_NAME), &public.path().join("lib"))?;
    fs::copy(lib.join(VIEW), public.path().join("lib").join(VIEW))?;
    for entry in fs::read_dir(bin)? {
        let entry = entry?;
        let to = public.path().join("bin").join(entry.file_name());
        fs::copy(entry.path(), &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    Ok(public)
}
