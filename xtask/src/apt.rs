//! Debian packages that a step needs: installed when we are root, named when we are not.
use std::{process::Command, sync::Once, time::Duration};

use crate::run;

/// What a step needs: a program, and the package that has it.
pub type Need = (&'static str, &'static str);

/// rdma-core's example programs.
pub const IBVERBS_UTILS: Need = ("ibv_rc_pingpong", "ibverbs-utils");
/// Debian's own library and headers, the oracle of several tests.
pub const IBVERBS_DEV: Need = ("/usr/include/infiniband/verbs.h", "libibverbs-dev");

/// The yardstick of `bench wire`.
pub const IPERF: Need = ("iperf3", "iperf3");

/// What checks the library while programs run.
pub const CHECKERS: &[Need] = &[("valgrind", "valgrind")];

/// Everything that `cargo xtask test` uses beside the Rust toolchain.
pub const TEST: &[Need] = &[
    IBVERBS_UTILS,
    IBVERBS_DEV,
    ("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "ibverbs-providers"),
    ("cc", "gcc"),
    ("c++", "g++"),
    ("readelf", "binutils"),
    ("pkg-config", "pkg-config"),
    ("dpkg-gensymbols", "dpkg-dev"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("setpriv", "util-linux"),
    ("tshark", "tshark"),
    ("python3", "python3"),
    ("ib_send_bw", "perftest"),
    ("qperf", "qperf"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("gunzip", "gzip"),
];

/// Makes sure that all of `needs` are there; `Err` names the packages to install.
pub fn ensure(needs: &[Need]) -> Result<(), String> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !run::is_root() || !run::have("apt-get") {
        return Err(format!("install first: apt-get install {list}"));
    }
    static UPDATED: Once = Once::new();
    UPDATED.call_once(|| drop(run::run(apt(&["update"]), Duration::from_secs(300))));
    eprintln!("installing {list}");
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(&missing);
    run::run(apt(&args), Duration::from_secs(900))?.success()?;
    match self::missing(needs) {
        none if none.is_empty() => Ok(()),
        still => Err(format!("installed, yet not there: {}", still.join(" "))),
    }
}

fn missing(needs: &[Need]) -> Vec<&'static str> {
    let there = |what: &str| {
        if what.starts_with('/') { std::path::Path::new(what).exists() } else { run::have(what) }
    };
    needs.iter().filter(|need| !there(need.0)).map(|need| need.1).collect()
}

fn apt(args: &[&str]) -> Command {
    let mut cmd = run::command("apt-get", ["-qq"].iter().chain(args));
    cmd.env("DEBIAN_FRONTEND", "noninteractive");
    cmd
}
