//! Network namespaces joined by veth, as hosts of one link.
use std::{
    process::id,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    place::{Place, User, Via},
    run,
    stage::Stage,
};

/// Addresses of the first two hosts of a [`Net`].
pub const SERVER: &str = "10.77.0.1";
pub const CLIENT: &str = "10.77.0.2";
pub const SERVER_6: &str = "fd77::1";
pub const CLIENT_6: &str = "fd77::2";

/// The MTU of a new [`Net`].
pub const ETHERNET: u32 = 1500;

/// Namespaces on one link, removed when dropped.
pub struct Net {
    /// For `ip netns exec`; number n, from 0, has 10.77.0.n+1 and fd77::n+1.
    pub names: Vec<String>,
    /// Where more than two meet.
    hub: Option<String>,
}

impl Net {
    /// Two hosts, joined directly; needs root.
    pub fn new() -> Result<Net, String> {
        Net::of(2)
    }
    /// Two hosts, or more that are joined by a bridge in a namespace of its own; needs root.
    pub fn of(hosts: usize) -> Result<Net, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let stem = format!("anyverbs-{}-{}", id(), MADE.fetch_add(1, Ordering::Relaxed));
        let names: Vec<String> =
            (0..hosts).map(|n| format!("{stem}{}", char::from(b'a' + n as u8))).collect();
        let hub = (hosts > 2).then(|| format!("{stem}-hub"));
        // From here on, dropping it removes what was made.
        let net = Net { names, hub };
        for name in net.namespaces() {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            // Nobody else is on these links: an address need not wait whether somebody has it, and `settle` takes milliseconds.
            let at_once = "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad || true";
            let args = ["netns", "exec", name, "sh", "-c", at_once];
            run::run(run::command("ip", args), Duration::from_secs(10))?.success()?;
        }
        match &net.hub {
            None => {
                let [a, b] = [&net.names[0], &net.names[1]];
                ip(&format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"))?;
            }
            Some(hub) => {
                ip(&format!("-n {hub} link add hub type bridge"))?;
                ip(&format!("-n {hub} link set hub up"))?;
                for (n, name) in net.names.iter().enumerate() {
                    ip(&format!("-n {hub} link add port{n} type veth peer name veth0 netns {name}"))?;
                    ip(&format!("-n {hub} link set port{n} master hub"))?;
                    ip(&format!("-n {hub} link set port{n} up"))?;
                }
            }
        }
        for (n, name) in net.names.iter().enumerate() {
            let n = n + 1;
            ip(&format!("-n {name} addr add 10.77.0.{n}/24 dev veth0"))?;
            ip(&format!("-n {name} -6 addr add fd77::{n}/64 dev veth0 nodad"))?;
            ip(&format!("-n {name} link set veth0 up"))?;
        }
        net.settle(1)?;
        Ok(net)
    }
    /// Waits until the kernel has given every host's interfaces, so many, their own addresses: until then, rows of GID tables
    /// come and go, and an index that one program has found is another address's for the next.
    pub fn settle(&self, interfaces: usize) -> Result<(), String> {
        let is_settled = |name: &String| {
            addresses(name).is_ok_and(|shown| {
                let links = shown.lines().filter(|line| line.contains("scope link")).count();
                links == interfaces && !shown.contains("tentative")
            })
        };
        let settled = run::until(Duration::from_secs(20), || self.names.iter().all(is_settled));
        if settled { Ok(()) } else { Err("no link-local addresses within 20 s".into()) }
    }
    fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.names.iter().chain(&self.hub)
    }
    /// Our library by path in one of the hosts.
    pub fn place(&self, stage: &Stage, host: usize) -> Place {
        Place::new(stage.public.path(), Via::Path, User::Me)
            .inside(&["ip", "netns", "exec", &self.names[host]])
            .with_env("ANYVERBS_SOFT", "1")
    }
    /// One more address of a host's interface.
    pub fn add_address(&self, host: usize, address: &str) -> Result<(), String> {
        ip(&format!("-n {} addr add {address} dev veth0", self.names[host]))
    }
    /// The MTU of every host's interface from now on.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), String> {
        self.names.iter().try_for_each(|name| ip(&format!("-n {name} link set veth0 mtu {mtu}")))
    }
    fn nft(&self, host: usize, rule: &str) -> Result<String, String> {
        let args = ["netns", "exec", &self.names[host], "nft", rule];
        Ok(run::run(run::command("ip", args), Duration::from_secs(10))?.success()?.out)
    }
    /// From now on this many packets of RoCE v2 in a hundred are lost, each way. A datagram that the kernel cuts into
    /// packets later is one here, and lost as a whole.
    pub fn lose(&self, percent: u32) -> Result<(), String> {
        for host in 0..self.names.len() {
            // What was lost before is so no more.
            let rules = format!(
                "add table inet lossy; delete table inet lossy; add table inet lossy; \
                 add chain inet lossy out {{ type filter hook output priority 0 ; }}; \
                 add rule inet lossy out udp dport 4791 numgen random mod 100 < {percent} counter drop"
            );
            self.nft(host, &rules)?;
        }
        Ok(())
    }
    /// How many datagrams the rules of [`Net::lose`] have dropped so far; `Err` if one of them has dropped none.
    pub fn dropped(&self) -> Result<u64, String> {
        let mut sum = 0;
        for host in 0..self.names.len() {
            let rules = self.nft(host, "list ruleset")?;
            let count =
                rules.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            sum += count.filter(|n: &u64| *n > 0).ok_or(rules)?;
        }
        Ok(sum)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.namespaces() {
            // Also after a step that ran past its limit, where `run` starts nothing any more.
            let _ = run::command("ip", ["netns", "del", name]).status();
        }
    }
}

/// Where in the GID table of a place an address stands.
pub fn gid_index(place: &Place, address: &str) -> Result<usize, String> {
    let outcome = run::run(place.command("ibv_devinfo", ["-v"]), Duration::from_secs(20))?.success()?;
    let shown = if address.contains(':') { address.to_string() } else { format!("::ffff:{address}") };
    let gids = outcome.out.lines().filter_map(|l| l.trim().strip_prefix("GID[")?.split_once("]:"));
    let found = gids.filter(|(_, gid)| gid.trim().split(',').next().is_some_and(|g| g.trim() == shown));
    found.filter_map(|(n, _)| n.trim().parse().ok()).next().ok_or_else(|| outcome.out.clone())
}

fn ip(args: &str) -> Result<(), String> {
    ask_ip(args).map(drop)
}

fn ask_ip(args: &str) -> Result<String, String> {
    Ok(run::run(run::command("ip", args.split_whitespace()), Duration::from_secs(10))?.success()?.out)
}

/// The IPv6 addresses of a namespace, a line each.
fn addresses(name: &str) -> Result<String, String> {
    ask_ip(&format!("-n {name} -o -6 addr show"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program may look up a GID's index and another one use it a moment later.
    #[test]
    fn hosts_have_all_their_addresses_when_they_have_been_made() {
        if !run::is_root() {
            return;
        }
        for hosts in [2, 3] {
            let net = Net::of(hosts).unwrap();
            let now: Vec<String> = net.names.iter().map(|name| addresses(name).unwrap()).collect();
            std::thread::sleep(Duration::from_secs(3));
            for (name, before) in net.names.iter().zip(now) {
                assert_eq!(before, addresses(name).unwrap());
            }
        }
    }
}
