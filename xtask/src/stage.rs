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
    programs("c-tests/trials", &lib, &bin)?;
    programs("c-tests/bench", &lib, &bin)?;
    let public = publish(&lib, &bin).map_err(|e| format!("copying the library for other users: {e}"))?;
    Ok(Stage { lib, public })
}

/// Builds the release library and makes the folder with the links; returns it. `ANYVERBS_LIBRARY` names a built one to take instead.
pub fn library() -> Result<PathBuf, String> {
    let built = match env::var_os("ANYVERBS_LIBRARY") {
        Some(file) => PathBuf::from(file),
        None => {
            run::inherit(cargo(&["build", "--release", "--package", "ibverbs", "--lib"]))?;
            target().join("release/libibverbs.so")
        }
    };
    let lib = target().join("anyverbs/lib");
    lay_out(&built, &lib).map_err(|e| format!("{}: {e}", lib.display()))?;
    Ok(lib)
}

/// Copies `built` into `lib` under its full name, with the links `libibverbs.so -> .so.1 -> full name`.
pub fn lay_out(built: &Path, lib: &Path) -> io::Result<()> {
    fs::create_dir_all(lib)?;
    // Replaced by rename: a process that has the old file mapped keeps it.
    let new = lib.join(".new");
    fs::copy(built, &new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
    fs::rename(&new, lib.join(FULL_NAME))?;
    for (link, to) in [(SONAME, FULL_NAME), ("libibverbs.so", SONAME)] {
        let link = lib.join(link);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(to, link)?;
    }
    Ok(())
}

/// Compiles each C file of `folder` into a program in `bin`, against our headers and our library.
fn programs(folder: &str, lib: &Path, bin: &Path) -> Result<(), String> {
    fs::create_dir_all(bin).map_err(|e| format!("{}: {e}", bin.display()))?;
    let folder = root().join(folder);
    let mut sources: Vec<PathBuf> = fs::read_dir(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "c"))
        .collect();
    sources.sort();
    for source in sources {
        let name = source.file_stem().expect("a C file has a name");
        let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-o"]);
        cc.arg(bin.join(name)).arg(&source);
        cc.arg("-I").arg(root().join("include")).arg("-L").arg(lib).args(["-libverbs"]);
        run::run(cc, Duration::from_secs(120))?.success()?;
    }
    Ok(())
}

fn publish(lib: &Path, bin: &Path) -> io::Result<Public> {
    let public = Public(env::temp_dir().join(format!("anyverbs-test-{}", std::process::id())));
    let _ = fs::remove_dir_all(public.path());
    for dir in [public.path().to_path_buf(), public.path().join("lib"), public.path().join("bin")] {
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    }
    lay_out(&lib.join(FULL_NAME), &public.path().join("lib"))?;
    for entry in fs::read_dir(bin)? {
        let entry = entry?;
        let to = public.path().join("bin").join(entry.file_name());
        fs::copy(entry.path(), &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    Ok(public)
}
