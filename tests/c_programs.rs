//! The C programs of `c-tests/`, built against our headers and against the installed ones, each run on our library: all
//! print what `c-tests/expected/` says. Every program ends itself by an alarm when it hangs.
mod toolchain;

use std::{fs, process::Command};

use toolchain::{
    Scratch, have, our_include,
    programs::{
        Place, assert_loads_ours, builds, library_folder, our_build, root, run_alone, run_pair, words,
    },
    run,
};

/// One test for each program that runs alone.
macro_rules! programs {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            builds(stringify!($name)).iter().for_each(|build| run_alone(stringify!($name), build));
        }
    )*};
}

programs! {
    access_errors atomics big cq_ex device_memory events first_contact forks import inline_sge lid lifecycle limits limits_sizes mistakes moderation multicast open_qp open_qp_processes overrun
    parent_domain posting queue_events qp_states query rc_loopback regions shortage srq threads ud_grh windows xrc xrc_processes
}

/// One test for each program that is a server and a client.
macro_rules! pairs {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let here = Place::default();
            builds(stringify!($name)).iter().for_each(|build| run_pair(stringify!($name), build, &here, &here));
        }
    )*};
}

pairs! { messages rdma_read read_asleep rdma_write remote_errors windows_remote }

/// Programs that need headers newer than those of some distributions: built against ours only.
#[test]
fn buffers() {
    run_alone("buffers", &our_build("buffers"));
}

#[test]
fn comp_cntr() {
    run_alone("comp_cntr", &our_build("comp_cntr"));
}

#[test]
fn comp_cntr_remote() {
    let here = Place::default();
    run_pair("comp_cntr_remote", &our_build("comp_cntr_remote"), &here, &here);
}

#[test]
fn dm_export() {
    run_alone("dm_export", &our_build("dm_export"));
}

#[test]
fn placements() {
    let here = Place::default();
    run_pair("placements", &our_build("placements"), &here, &here);
}

#[test]
fn port_events() {
    let veth = ["-rn", "ip", "link", "add", "pe0", "type", "veth", "peer", "name", "pe1"];
    if !Command::new("unshare").args(veth).status().is_ok_and(|s| s.success()) {
        eprintln!("skipped: no network namespaces of veth pairs here");
        return;
    }
    builds("port_events").iter().for_each(|build| run_alone("port_events", build));
}

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
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"]).args(words("ANYVERBS_TEST_CFLAGS"));
    cc.arg(root().join("c-tests/query.c"));
    run(cc.args(flags.split_whitespace()).arg("-pthread").arg("-o").arg(&program));
    assert_loads_ours(&program, &lib.path(""));
}
