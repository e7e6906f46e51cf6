//! Datagrams to multicast groups between two hosts: each queue pair in a group gets each of them once, in whichever process of
//! whichever host, and nobody else does.
use std::time::Duration;

use super::netns::{Net, SERVER, gid_index};
use crate::{
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run::{self, Child},
};

pub const TRIALS: &[Trial] = &[Trial { name: "multicast", limit: Duration::from_secs(150), run: multicast }];

/// Messages of each sender.
const COUNT: usize = 200;
/// The processes, by host: two of them send.
const PROCESSES: [(usize, &str); 5] =
    [(0, "sends"), (0, "listens"), (0, "listens"), (1, "sends"), (1, "listens")];
const SENDERS: usize = 2;
/// An address of the first host, and two groups that its family reaches: the second one of which nobody sends to.
const FAMILIES: [(&str, &str, &str, &str); 2] = [
    ("IPv4", SERVER, "::ffff:239.77.1.1", "::ffff:239.77.1.2"),
    ("IPv6", "fd77::1", "ff15::77:1", "ff15::77:2"),
];

fn multicast(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two namespaces", "needs root");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let place = |host: usize, user| {
        Place::new(ctx.stage.public.path(), Via::Path, user)
            .inside(&["ip", "netns", "exec", &net.names[host]])
            .with_env("ANYVERBS_SOFT", "1")
    };
    let places = [0, 1].map(|host| [place(host, User::Me), place(host, User::Nobody)]);
    for (family, address, group, other) in FAMILIES {
        let result = gid_index(&places[0][0], address)
            .and_then(|gid| round(&net, &places, &gid.to_string(), [group, other]));
        ctx.check(format!("{family}: each message once to each member"), result);
    }
}

/// All processes, of two users, in `groups[0]` and `groups[1]`; messages go to the first.
fn round(net: &Net, places: &[[Place; 2]; 2], gid: &str, groups: [&str; 2]) -> Result<(), String> {
    let (count, senders) = (COUNT.to_string(), SENDERS.to_string());
    let mut processes = Vec::new();
    for (i, (host, role)) in PROCESSES.into_iter().enumerate() {
        let place = places[host][i % 2].clone().with_env("C_TESTS_GID", gid);
        let args = [groups[0], groups[1], &count, &senders, role];
        let mut child = run::spawn(place.command("/multicast", args))?;
        child.says("ready", Duration::from_secs(20))?;
        processes.push((role, child));
    }
    let joined = (0..2).all(|host| groups.iter().all(|group| is_joined(net, host, group)));
    if !joined {
        return Err("the kernel does not know of both groups on both hosts".into());
    }
    go(&processes, "sends");
    for (_, child) in &mut processes {
        child.says("left", Duration::from_secs(40))?;
    }
    if let Some(group) = groups.iter().find(|group| (0..2).any(|host| is_joined(net, host, group))) {
        return Err(format!("{group} was not left"));
    }
    go(&processes, "");
    let total = SENDERS * COUNT;
    let wanted = format!(
        "qp 0: {total} once, 0 again, 0 wrong\nqp 1: {total} once, 0 again, 0 wrong\nqp 2: 0 once, 0 again, 0 wrong\n"
    );
    for (role, child) in processes {
        let outcome = child.finish(Duration::from_secs(10)).success()?;
        if outcome.out != format!("ready\n{wanted}left\n") {
            return Err(format!("who {role}: {}{}", outcome.out, outcome.err));
        }
    }
    Ok(())
}

/// Lets those go on whose role ends so.
fn go(processes: &[(&str, Child)], role: &str) {
    processes
        .iter()
        .filter(|(own, _)| own.ends_with(role))
        .for_each(|(_, child)| child.signal(libc::SIGUSR1));
}

/// Whether the kernel of a host is in the group on the interface between the two.
fn is_joined(net: &Net, host: usize, group: &str) -> bool {
    let group = group.trim_start_matches("::ffff:");
    let list = run::command("ip", ["-n", &net.names[host], "maddr", "show", "dev", "veth0"]);
    let listed = run::run(list, Duration::from_secs(10)).map(|o| o.out).unwrap_or_default();
    listed.lines().any(|line| line.split_whitespace().nth(1) == Some(group))
}
