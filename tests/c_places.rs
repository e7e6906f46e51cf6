//! The pairs of `c-tests/` print the same wherever their two processes are: other users, other hosts, lossy networks.
//! Needs root, `ip` and `nft`; says so where they are missing.
mod toolchain;

use std::{
    env, fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use toolchain::{
    have,
    programs::{Place, builds, our_build, public_build, run_pair},
    run, try_run,
};

const PAIRS: [&str; 5] = ["messages", "rdma_read", "rdma_write", "remote_errors", "windows_remote"];

#[test]
fn between_two_users() {
    if !is_root() || !have("setpriv") {
        return eprintln!("skipped: needs root and setpriv");
    }
    let folder = env::temp_dir().join(format!("anyverbs-c-places-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
    let words: Vec<String> = words.map(String::from).to_vec();
    let nobody = Place { wrap: words, address: None };
    for name in PAIRS {
        let build = public_build(name, &folder);
        run_pair(name, &build, &nobody, &Place::default());
        run_pair(name, &build, &Place::default(), &nobody);
    }
    fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn between_two_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    for name in PAIRS {
        run_pair(name, &builds(name)[0], &hosts.server(), &hosts.client());
    }
    // Its headers are newer than those of some distributions.
    for name in ["placements", "comp_cntr_remote"] {
        run_pair(name, &our_build(name), &hosts.server(), &hosts.client());
    }
}

#[test]
fn between_two_hosts_that_lose_packets() {
    let Some(hosts) = Hosts::new() else { return };
    if !have("nft") || !hosts.lose_one_in_a_hundred() {
        return eprintln!("skipped: needs nft with numgen");
    }
    for name in ["rdma_read", "rdma_write"] {
        run_pair(name, &builds(name)[0], &hosts.server(), &hosts.client());
    }
}

/// Two network namespaces joined by a wire, gone when dropped.
struct Hosts([String; 2]);

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

impl Hosts {
    fn new() -> Option<Hosts> {
        if !is_root() || !try_run(Command::new("ip").arg("netns")).status.success() {
            eprintln!("skipped: needs root and ip netns");
            return None;
        }
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let unique =
            format!("{}-{}", std::process::id(), NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let hosts = Hosts(["a", "b"].map(|side| format!("anyverbs-c-{unique}-{side}")));
        let [a, b] = &hosts.0;
        for host in [a, b] {
            run(Command::new("ip").args(["netns", "add", host]));
            // Nobody else is on this wire: an address need not wait whether somebody has it.
            let at_once = "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad || true";
            run(Command::new("ip").args(["netns", "exec", host, "sh", "-c", at_once]));
        }
        let wire = ["link", "add", "wire", "netns", a, "type", "veth", "peer", "name", "wire", "netns", b];
        run(Command::new("ip").args(wire));
        for (host, address) in [a, b].into_iter().zip(ADDRESSES) {
            let of_host = |words: &[&str]| run(Command::new("ip").args(["-n", host]).args(words));
            of_host(&["addr", "add", &format!("{address}/24"), "dev", "wire"]);
            of_host(&["link", "set", "lo", "up"]);
            of_host(&["link", "set", "wire", "up"]);
        }
        hosts.settle();
        Some(hosts)
    }

    /// Waits for the addresses that the kernel gives by itself: a later one is an event at the port, which the pairs report as stray.
    fn settle(&self) {
        let is_settled = |host: &String| {
            let shown = try_run(Command::new("ip").args(["-n", host, "-6", "addr", "show", "dev", "wire"]));
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            shown.contains("scope link") && !shown.contains("tentative")
        };
        let end = Instant::now() + Duration::from_secs(20);
        while Path::new("/proc/net/if_inet6").exists() && !self.0.iter().all(is_settled) {
            assert!(Instant::now() < end, "no link-local addresses within 20 s");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn server(&self) -> Place {
        Place { wrap: self.inside(0), address: Some(ADDRESSES[0]) }
    }

    fn client(&self) -> Place {
        Place { wrap: self.inside(1), address: Some(ADDRESSES[1]) }
    }

    fn inside(&self, side: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.0[side]].map(String::from).to_vec()
    }

    fn lose_one_in_a_hundred(&self) -> bool {
        let rules = [
            "add table inet loss",
            "add chain inet loss in { type filter hook input priority 0; }",
            "add rule inet loss in udp dport 4791 numgen random mod 100 0 drop",
        ];
        self.0.iter().all(|host| {
            let mut each = rules
                .iter()
                .map(|rule| Command::new("ip").args(["netns", "exec", host, "nft", rule]).status());
            each.all(|status| status.is_ok_and(|s| s.success()))
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", host]).status();
        }
    }
}

fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}
