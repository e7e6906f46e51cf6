//! The C programs of `c-tests/`, built against our headers and against the installed ones, each run on our library: all
//! print what `c-tests/expected/` says. Every program ends itself by an alarm when it hangs.
mod toolchain;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use toolchain::{Scratch, gcc, have, our_include, run, system_include};

/// One test for each program that runs alone.
macro_rules! programs {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            alone(stringify!($name));
        }
    )*};
}

programs! {
    access_errors, atomics, big, cq_ex, device_memory, events, forks, inline_sge, overrun, posting, qp_states, query, rc_loopback, srq, threads,
    ud_grh, xrc,
}

/// One test for each program that is a server and a client.
macro_rules! pairs {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            pair(stringify!($name));
        }
    )*};
}

pairs! { messages, rdma_read, rdma_write, remote_errors }

#[test]
fn every_expected_output_has_its_program() {
    for entry in fs::read_dir(root().join("c-tests/expected")).expect("c-tests/expected") {
        let file = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        let program = file.split('.').next().expect("a name");
        assert!(include_str!("c_programs.rs").contains(program), "{file} is not compared");
    }
}

#[test]
fn a_program_builds_by_pkg_config() {
    if !have("pkg-config") {
        eprintln!("skipped: pkg-config is not installed");
        return;
    }
    let (dir, lib) = (Scratch::new("pkg-config"), library_folder());
    let template = fs::read_to_string(root().join("pkgconfig/libibverbs.pc.in")).expect("the template");
    let text = template
        .replace("@prefix@", "/nonexistent")
        .replace("@libdir@", &lib.path("").display().to_string())
        .replace("@includedir@", &our_include().display().to_string())
        .replace("@VERSION@", "1.18.65.0");
    dir.write("libibverbs.pc", &text);
    let query = |option: &str| {
        run(Command::new("pkg-config").env("PKG_CONFIG_PATH", dir.path("")).arg(option).arg("libibverbs"))
    };
    assert_eq!(query("--modversion").trim(), "1.18.65.0");
    let program = dir.path("query");
    let flags = query("--cflags") + &query("--libs");
    let mut cc = Command::new("gcc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"]).arg(root().join("c-tests/query.c"));
    run(cc.args(flags.split_whitespace()).arg("-pthread").arg("-o").arg(&program));
    assert_loads_ours(&program, &lib);
}

fn alone(name: &str) {
    let expected = expected(name);
    for build in builds(name) {
        let out = finish(build.spawn(&[]), &build, "");
        assert_same(&format!("{name} ({})", build.headers), &expected, &out);
    }
}

fn pair(name: &str) {
    let (at_server, at_client) = (expected(&format!("{name}.server")), expected(&format!("{name}.client")));
    for build in builds(name) {
        let mut server = build.spawn(&["server"]);
        let mut lines = BufReader::new(server.stdout.take().expect("its stdout"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("a line");
        let Some(port) = first.strip_prefix("port ") else {
            panic!("{name}: the server said {first:?} and {}", finish(server, &build, ""));
        };
        let client = finish(build.spawn(&["client", port.trim()]), &build, "client");
        let mut out = String::new();
        lines.read_to_string(&mut out).expect("UTF-8");
        finish(server, &build, "server");
        assert_same(&format!("{name} client ({})", build.headers), &at_client, &client);
        assert_same(&format!("{name} server ({})", build.headers), &at_server, &out);
    }
}

/// A program and the folder of the library it shall load.
struct Build {
    headers: &'static str,
    program: PathBuf,
    lib: Scratch,
    _dir: Scratch,
}

impl Build {
    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = Command::new(&self.program);
        command.args(args).env("LD_LIBRARY_PATH", self.lib.path("")).env("ANYVERBS_SOFT", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }
}

/// The program built against each set of headers that the machine has.
fn builds(name: &str) -> Vec<Build> {
    let mut builds = vec![build(name, "our headers", &our_include())];
    if let Some(system) = system_include() {
        builds.push(build(name, "installed headers", &system));
    }
    builds
}

fn build(name: &str, headers: &'static str, include: &Path) -> Build {
    let (dir, lib) = (Scratch::new(name), library_folder());
    let program = dir.path(name);
    let mut cc = gcc(include);
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    cc.arg(root().join("c-tests").join(format!("{name}.c"))).arg("-o").arg(&program);
    run(cc.arg("-L").arg(lib.path("")).arg("-libverbs"));
    assert_loads_ours(&program, &lib);
    Build { headers, program, lib, _dir: dir }
}

/// Without the `.so.1` link the loader would silently take the system's library.
fn library_folder() -> Scratch {
    let built = std::env::current_exe().expect("this test").with_file_name("libibverbs.so");
    let folder = Scratch::new("lib");
    for name in ["libibverbs.so", "libibverbs.so.1"] {
        symlink(&built, folder.path(name)).expect("a link");
    }
    folder
}

fn assert_loads_ours(program: &Path, lib: &Scratch) {
    let mut trace = Command::new(program);
    let list = run(trace.env("LD_LIBRARY_PATH", lib.path("")).env("LD_TRACE_LOADED_OBJECTS", "1"));
    let ours = lib.path("libibverbs.so.1").display().to_string();
    assert!(list.contains(&ours), "loads another library:\n{list}");
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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
