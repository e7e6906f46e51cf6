//! Beside the system's own libibverbs, where there is one: pure functions answer alike, and everything that was built
//! for it loads with ours.
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

#[test]
fn pure_functions_answer_as_the_systems_do() {
    let Some(system) = system_library() else {
        return eprintln!("skipped: no libibverbs.so.1 on this system");
    };
    let work = Work::new("pure");
    let program = work.build("pure");
    let answers = |lib: &Path| {
        let out = Command::new(&program).arg(lib).output().unwrap();
        assert!(out.status.success(), "{}", text(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let ours = answers(&work.0.join("libibverbs.so.1"));
    let ours: Vec<&str> = ours.lines().collect();
    let theirs = answers(&system);
    assert!(theirs.lines().count() > 100);
    for line in theirs.lines() {
        let (call, answer) = line.split_once(" =").unwrap();
        let same = ours.contains(&line);
        // An older library does not know the newest values.
        let newer =
            matches!(answer.trim(), "unknown" | "-1" | "0") && ours.iter().any(|l| l.starts_with(call));
        assert!(same || newer, "theirs: {line}\nours: {:?}", ours.iter().find(|l| l.starts_with(call)));
    }
}

#[test]
fn whatever_needs_the_systems_library_loads_with_ours() {
    let Some(system) = system_library() else {
        return eprintln!("skipped: no libibverbs.so.1 on this system");
    };
    let dir = system.parent().unwrap();
    let mut dependants: Vec<PathBuf> = [dir, &dir.join("libibverbs")]
        .into_iter()
        .flat_map(naming_libibverbs)
        .filter(|p| needs_libibverbs(p))
        .collect();
    dependants.sort();
    dependants.dedup();
    let work = Work::new("load");
    let program = work.build("load");
    let load = |folder: &Path| {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&program).args(&dependants).env("LD_LIBRARY_PATH", folder);
        command.output().unwrap()
    };
    let (ours, theirs) = (load(&work.0), load(dir));
    // What cannot be loaded alone with the system's library either, a plugin for example, is no complaint about ours.
    let ends_alike = ours.status.success() || ours.status.code() == theirs.status.code();
    let (ours, theirs) = (text(&ours), text(&theirs));
    let complaints: Vec<&str> = ours.lines().filter(|line| !theirs.lines().any(|l| l == *line)).collect();
    assert!(ends_alike && complaints.is_empty(), "of {}:\n{ours}", dependants.len());
}

/// A folder with our library as the loader looks for it; removed at the end.
struct Work(PathBuf);

impl Work {
    fn new(name: &str) -> Self {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("system-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let built = std::env::current_exe().unwrap().with_file_name("libibverbs.so");
        fs::copy(built, dir.join("libibverbs.so.1")).unwrap();
        Self(dir)
    }

    /// The program of `c-tests/<name>.c`.
    fn build(&self, name: &str) -> PathBuf {
        let program = self.0.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c-tests").join(name).with_extension("c");
        let out = Command::new("cc")
            .args(["-Wall", "-Werror", "-o"])
            .args([&program, &source])
            .arg("-ldl")
            .output();
        let out = out.unwrap();
        assert!(out.status.success(), "{}", text(&out));
        program
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn system_library() -> Option<PathBuf> {
    let arch = std::env::consts::ARCH;
    [format!("/usr/lib/{arch}-linux-gnu"), "/usr/lib64".into(), "/usr/lib".into()]
        .iter()
        .map(|dir| Path::new(dir).join("libibverbs.so.1"))
        .find(|so| so.exists())
}

/// The files of a folder in which the library's name stands, behind whatever links.
fn naming_libibverbs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let objects: Vec<PathBuf> = entries.filter(|p| p.to_string_lossy().contains(".so")).collect();
    if objects.is_empty() {
        return Vec::new();
    }
    let out = Command::new("grep")
        .args(["-lsF", "-d", "skip", "libibverbs.so.1", "--"])
        .args(objects)
        .output()
        .unwrap();
    String::from_utf8_lossy(&out.stdout).lines().filter_map(|l| fs::canonicalize(l).ok()).collect()
}

fn needs_libibverbs(file: &Path) -> bool {
    Command::new("readelf").arg("-d").arg(file).env("LC_ALL", "C").output().is_ok_and(|out| {
        text(&out).lines().any(|l| l.contains("(NEEDED)") && l.contains("[libibverbs.so.1]"))
    })
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}
