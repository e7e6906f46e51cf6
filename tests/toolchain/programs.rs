//! The C programs of `c-tests/`: built, run on this build's library, and compared with `c-tests/expected/`.
//!
//! For sanitizers and the like: `ANYVERBS_TEST_LIBRARY` names a built libibverbs.so to load instead, `ANYVERBS_TEST_CFLAGS` adds
//! options of the C compiler, `ANYVERBS_TEST_WRAP` is put before each program; words are separated by spaces. With another
//! library, programs are built against our headers alone.
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::{Scratch, gcc, our_include, run, system_include};

/// A program and the folder of the library it shall load.
pub struct Build {
    headers: &'static str,
    program: PathBuf,
    lib: PathBuf,
    _keep: [Option<Scratch>; 2],
}

/// Where one side of a pair runs.
#[derive(Default)]
pub struct Place {
    /// Put before the command, as `ip netns exec NAME`.
    pub wrap: Vec<String>,
    /// Its IPv4 address as the other side sees it; None: 127.0.0.1.
    pub address: Option<&'static str>,
}

/// The workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The program built against each set of headers that the machine has.
pub fn builds(name: &str) -> Vec<Build> {
    let mut builds = vec![build(name, "our headers", &our_include())];
    if std::env::var_os("ANYVERBS_TEST_LIBRARY").is_none()
        && let Some(system) = system_include()
    {
        builds.push(build(name, "installed headers", &system));
    }
    builds
}

/// The program built against our headers, which are newer than those of some distributions.
pub fn our_build(name: &str) -> Build {
    build(name, "our headers", &our_include())
}

/// The program built against our headers, in a folder that every user can read.
pub fn public_build(name: &str, folder: &Path) -> Build {
    let mine = build(name, "our headers", &our_include());
    let (program, lib) = (folder.join(name), folder.join("lib"));
    fs::create_dir_all(&lib).expect("a folder");
    let library = fs::canonicalize(mine.lib.join("libibverbs.so.1")).expect("our library");
    fs::copy(library, lib.join("libibverbs.so.1")).expect("a copy");
    fs::copy(&mine.program, &program).expect("a copy");
    for path in [folder, &lib, &lib.join("libibverbs.so.1"), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    Build { headers: mine.headers, program, lib, _keep: [None, None] }
}

/// A folder with the `.so.1` link, without which the loader would silently take the system's library.
pub fn library_folder() -> Scratch {
    let own = || std::env::current_exe().expect("this test").with_file_name("libibverbs.so");
    let built = std::env::var_os("ANYVERBS_TEST_LIBRARY").map_or_else(own, PathBuf::from);
    let folder = Scratch::new("lib");
    for name in ["libibverbs.so", "libibverbs.so.1"] {
        symlink(&built, folder.path(name)).expect("a link");
    }
    folder
}

/// The words of an environment variable.
pub fn words(variable: &str) -> Vec<String> {
    let text = std::env::var(variable).unwrap_or_default();
    text.split_whitespace().map(String::from).collect()
}

/// A compiler of C programs, with what `ANYVERBS_TEST_CFLAGS` adds.
pub fn compiler(include: &Path) -> Command {
    let mut cc = gcc(include);
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    cc.args(words("ANYVERBS_TEST_CFLAGS"));
    cc
}

/// A command that runs `program` under `wrap` and what `ANYVERBS_TEST_WRAP` says.
pub fn wrapped(wrap: &[String], program: &Path) -> Command {
    let more = words("ANYVERBS_TEST_WRAP");
    let mut words = wrap.iter().chain(&more).map(AsRef::as_ref).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    command
}

/// Panics unless `program` would load the library in `lib`.
pub fn assert_loads_ours(program: &Path, lib: &Path) {
    let mut trace = Command::new(program);
    let list = run(trace.env("LD_LIBRARY_PATH", lib).env("LD_TRACE_LOADED_OBJECTS", "1"));
    let ours = lib.join("libibverbs.so.1").display().to_string();
    assert!(list.contains(&ours), "loads another library:\n{list}");
}

/// Runs a program by itself.
pub fn run_alone(name: &str, build: &Build) {
    let out = finish(build.spawn(&Place::default(), &[]), build, "");
    assert_same(&format!("{name} ({})", build.headers), &expected(name), &out);
}

/// Runs a program as server and as client.
pub fn run_pair(name: &str, build: &Build, server_at: &Place, client_at: &Place) {
    let address = server_at.address;
    let mut server = build.spawn(server_at, &[&["server"], address.as_slice()].concat());
    let mut lines = BufReader::new(server.stdout.take().expect("its stdout"));
    let mut first = String::new();
    lines.read_line(&mut first).expect("a line");
    let Some(port) = first.strip_prefix("port ") else {
        panic!("{name}: the server said {first:?} and {}", finish(server, build, "server"));
    };
    let client = build.spawn(client_at, &[&["client", port.trim()], address.as_slice()].concat());
    let client = finish(client, build, "client");
    let mut out = String::new();
    lines.read_to_string(&mut out).expect("UTF-8");
    finish(server, build, "server");
    assert_same(&format!("{name} client ({})", build.headers), &expected(&format!("{name}.client")), &client);
    assert_same(&format!("{name} server ({})", build.headers), &expected(&format!("{name}.server")), &out);
}

impl Build {
    fn spawn(&self, place: &Place, args: &[&str]) -> Child {
        let mut command = wrapped(&place.wrap, &self.program);
        command.args(args).env("LD_LIBRARY_PATH", &self.lib).env("ANYVERBS_SOFT", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }
}

fn build(name: &str, headers: &'static str, include: &Path) -> Build {
    let (dir, folder) = (Scratch::new(name), library_folder());
    let (program, lib) = (dir.path(name), folder.path(""));
    let mut cc = compiler(include);
    cc.arg(root().join("c-tests").join(format!("{name}.c"))).arg("-o").arg(&program);
    run(cc.arg("-L").arg(&lib).arg("-libverbs"));
    assert_loads_ours(&program, &lib);
    Build { headers, program, lib, _keep: [Some(dir), Some(folder)] }
}

/// Waits for the program, which must succeed, and returns what it printed.
fn finish(child: Child, build: &Build, role: &str) -> String {
    let out = child.wait_with_output().expect("it ends");
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let program = build.program.display();
    assert!(out.status.success(), "{program} {role} ({}): {}\n{stdout}{stderr}", build.headers, out.status);
    stdout.into_owned()
}

fn expected(name: &str) -> String {
    let path = root().join("c-tests/expected").join(format!("{name}.txt"));
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn assert_same(what: &str, expected: &str, got: &str) {
    if expected == got {
        return;
    }
    let different: Vec<String> = (0..expected.lines().count().max(got.lines().count()))
        .map(|i| (expected.lines().nth(i), got.lines().nth(i)))
        .filter(|(e, g)| e != g)
        .map(|(e, g)| format!("expected: {}\n     got: {}", e.unwrap_or("(end)"), g.unwrap_or("(end)")))
        .collect();
    panic!("{what}:\n{}", different.join("\n"));
}
