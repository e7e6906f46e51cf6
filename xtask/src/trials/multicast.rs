//! Datagrams to multicast groups between two hosts: each queue pair in a group gets each of them once, in whichever process of
//! whichever host, and nobody else does; so it gets those of a program that makes packets itself, and none of its damaged ones.
use std::time::Duration;

use super::{
    congestion::nft,
    netns::{Net, SERVER, SERVER_6, gid_index},
};
use crate::{
    place::{Place, User},
    report::{Ctx, Trial},
    run::{self, Child},
};

pub const TRIALS: &[Trial] = &[Trial { name: "multicast", limit: Duration::from_secs(150), run: multicast }];

/// Messages of each sender.
const COUNT: usize = 200;
/// The processes: host, what it does, and how many senders its queue pairs hear. What is forged comes with an address of the
/// second host, which takes nothing from outside that says so.
const PROCESSES: [(usize, &str, usize); 6] = [
    (0, "sends", 3),
    (0, "listens", 3),
    (0, "listens", 3),
    (1, "sends", 2),
    (1, "listens", 2),
    (1, "forges", 0),
];
/// An address of the first host, its interface, and two groups of the family: nobody sends to the second.
const WAYS: [(&str, &str, &str, [&str; 2]); 3] = [
    ("IPv4", SERVER, "veth0", ["::ffff:239.77.1.1", "::ffff:239.77.1.2"]),
    ("IPv6", SERVER_6, "veth0", ["ff15::77:1", "ff15::77:2"]),
    ("another interface", "10.78.0.1", "veth1", ["::ffff:239.77.2.1", "::ffff:239.77.2.2"]),
];

fn multicast(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two namespaces", "needs root");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let places = [0, 1].map(|host| [User::Me, User::Nobody].map(|user| net.place(ctx.stage, host).of(user)));
    ctx.check("a second link", second_link(&net));
    for (way, address, interface, groups) in WAYS {
        let result = gid_index(&places[0][0], address).and_then(|gid| {
            let places = places.each_ref().map(|host| {
                host.each_ref().map(|place| {
                    let place = place.clone().with_env("C_TESTS_GID", &gid.to_string());
                    place.with_env("C_TESTS_INTERFACE", interface)
                })
            });
            watch(&net, interface)?;
            round(&net, &places, interface, groups)?;
            went_by(&net, interface)
        });
        ctx.check(format!("{way}: each message once to each member"), result);
    }
}

/// Both hosts on a link of other addresses, too.
fn second_link(net: &Net) -> Result<(), String> {
    let [a, b] = [&net.names[0], &net.names[1]];
    for args in [
        format!("-n {a} link add veth1 type veth peer name veth1 netns {b}"),
        format!("-n {a} addr add 10.78.0.1/24 dev veth1"),
        format!("-n {b} addr add 10.78.0.2/24 dev veth1"),
        format!("-n {a} link set veth1 up"),
        format!("-n {b} link set veth1 up"),
    ] {
        run::run(run::command("ip", args.split_whitespace()), Duration::from_secs(10))?.success()?;
    }
    net.settle(2)
}

/// Counts from now on what leaves by another interface.
fn watch(net: &Net, interface: &str) -> Result<(), String> {
    for host in 0..2 {
        nft(net, host, "flush ruleset")?;
        nft(net, host, "add table inet ways")?;
        nft(net, host, "add chain inet ways out { type filter hook output priority 0 ; }")?;
        nft(net, host, &format!("add rule inet ways out udp dport 4791 oifname != {interface} counter"))?;
    }
    Ok(())
}

fn went_by(net: &Net, interface: &str) -> Result<(), String> {
    (0..2).try_for_each(|host| {
        let rules = nft(net, host, "list ruleset")?;
        let ok = rules.contains("counter packets 0 ");
        if ok { Ok(()) } else { Err(format!("not all went by {interface}: {rules}")) }
    })
}

/// All processes, of two users, in `groups[0]` and `groups[1]`; messages go to the first.
fn round(net: &Net, places: &[[Place; 2]; 2], interface: &str, groups: [&str; 2]) -> Result<(), String> {
    let count = COUNT.to_string();
    let mut processes = Vec::new();
    for (i, (host, role, heard)) in PROCESSES.into_iter().enumerate() {
        let place = &places[host][i % 2];
        let args = [groups[0], groups[1], &count, &heard.to_string(), role];
        let mut child = run::spawn(place.command("/multicast", args))?;
        child.says("ready", Duration::from_secs(20))?;
        processes.push((role, heard * COUNT, child));
    }
    let joined = (0..2).all(|host| groups.iter().all(|group| is_joined(net, host, interface, group)));
    if !joined {
        return Err("the kernel does not know of both groups on both hosts".into());
    }
    go(processes.iter().filter(|(role, ..)| *role != "listens"));
    for (.., child) in &mut processes {
        child.says("left", Duration::from_secs(40))?;
    }
    if let Some(group) = groups.iter().find(|group| (0..2).any(|host| is_joined(net, host, interface, group)))
    {
        return Err(format!("{group} was not left"));
    }
    go(processes.iter());
    for (role, total, child) in processes {
        let queue_pairs = [total, total, 0].into_iter().enumerate();
        let got: String =
            queue_pairs.map(|(qp, n)| format!("qp {qp}: {n} once, 0 again, 0 wrong\n")).collect();
        let wanted = format!("ready\n{}left\n", if total > 0 { &got } else { "" });
        let outcome = child.finish(Duration::from_secs(10)).success()?;
        if outcome.out != wanted {
            return Err(format!("who {role}: {}{}expected {wanted}", outcome.out, outcome.err));
        }
    }
    Ok(())
}

/// Lets processes go on.
fn go<'a>(processes: impl Iterator<Item = &'a (&'static str, usize, Child)>) {
    processes.for_each(|(.., child)| child.signal(libc::SIGUSR1));
}

/// Whether the kernel of a host is in the group on an interface.
fn is_joined(net: &Net, host: usize, interface: &str, group: &str) -> bool {
    let group = group.trim_start_matches("::ffff:");
    let list = run::command("ip", ["-n", &net.names[host], "maddr", "show", "dev", interface]);
    let listed = run::run(list, Duration::from_secs(10)).map(|o| o.out).unwrap_or_default();
    listed.lines().any(|line| line.split_whitespace().nth(1) == Some(group))
}
