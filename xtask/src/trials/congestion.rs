//! Routers that mark packets instead of dropping them (ECN): the peer answers with CNPs, the sender's window gets smaller, and all
//! bytes arrive; both ends count what the kernel's rules do. Without the application's traffic class saying so, no packet asks for it.
use std::time::Duration;

use super::netns::{CLIENT, Net, SERVER};
use crate::{
    report::{Ctx, Trial},
    run,
    trials::pair_says,
};

pub const TRIALS: &[Trial] = &[Trial { name: "ecn", limit: Duration::from_secs(90), run: ecn }];

/// What an nftables rule of ours counts, by its comment: datagrams as the kernel has them, perhaps of many packets.
const COUNTED: [(&str, &str); 3] = [
    ("capable", "ip saddr 10.77.0.2 ip ecn != not-ect"),
    ("all", "ip saddr 10.77.0.2"),
    // The opcode of a CNP.
    ("cnp", "ip saddr 10.77.0.1 @th,64,8 0x81"),
];
/// How a traffic class says that routers may mark: ECT(0).
const ECT: &str = "2";

struct Counts {
    capable: u64,
    all: u64,
    cnp: u64,
    told: Told,
}

/// What the two ends' counters say: packets that came to the server, those with a mark, and CNPs.
struct Told {
    marked: u64,
    received: u64,
    cnps: u64,
}

fn ecn(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two namespaces", "needs root");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let [server, client] = [0, 1].map(|host| net.place(ctx.stage, host));
    let transfer = |class: &str, mark: Option<&str>| {
        rules(&net, mark)?;
        let [server, client] = [&server, &client].map(|p| p.clone().with_env("C_TESTS_TCLASS", class));
        let said = pair_says(SERVER, "/stream", &server, &client, &["4"], Duration::from_secs(60))?;
        counts(&net, told(&said)?)
    };
    let wanted = |ok: bool, counts: &Counts| {
        let Counts { capable, all, cnp, told: Told { marked, received, cnps } } = counts;
        if ok && cnp == cnps {
            return Ok(());
        }
        Err(format!(
            "datagrams: {all}, {capable} of them ECN-capable; CNPs: {cnp}; \
             counted: {marked} of {received} packets marked, {cnps} CNPs"
        ))
    };
    let plain = transfer("0", Some("numgen random mod 10 == 0"));
    let check = |c: &Counts| wanted(c.capable == 0 && c.cnp == 0 && c.all > 0 && c.told.marked == 0, c);
    ctx.check("traffic class 0: nothing is marked", plain.as_ref().map_err(Clone::clone).and_then(check));
    let some = transfer(ECT, Some("numgen random mod 10 == 0"));
    let check = |c: Counts| {
        let is_some = 0 < c.told.marked && c.told.marked < c.told.received;
        wanted(c.capable == c.all && c.cnp > 0 && is_some, &c)
    };
    ctx.check("one datagram in ten marked: CNPs, and all bytes", some.and_then(check));
    let none = transfer(ECT, None);
    let check = |c: Counts| wanted(c.capable == c.all && c.cnp == 0 && c.told.marked == 0, &c);
    ctx.check("none marked: no CNP", none.and_then(check));
    // A window of a packet or two leaves nothing for the kernel to cut.
    let each = transfer(ECT, Some("meta l4proto udp"));
    let small = |c: Counts| match &plain {
        Ok(plain) => wanted(c.cnp > 0 && c.all > 3 * plain.all && c.told.marked == c.told.received, &c)
            .map_err(|why| format!("{why}; unmarked: {} datagrams", plain.all)),
        Err(why) => Err(why.clone()),
    };
    ctx.check("each marked: a small window, and all bytes", each.and_then(small));
}

/// Counts on both hosts from now on; what comes to the server with ECT and meets `mark` is marked.
fn rules(net: &Net, mark: Option<&str>) -> Result<(), String> {
    for side in 0..2 {
        nft(net, side, "flush ruleset")?;
        nft(net, side, "add table inet congestion")?;
        nft(net, side, "add chain inet congestion in { type filter hook input priority -10 ; }")?;
        for (name, what) in COUNTED {
            let rule = format!("udp dport 4791 {what} counter comment \"{name}\"");
            nft(net, side, &format!("add rule inet congestion in {rule}"))?;
        }
    }
    if let Some(mark) = mark {
        let rule = format!("udp dport 4791 ip saddr {CLIENT} ip ecn != not-ect {mark} ip ecn set ce");
        nft(net, 0, &format!("add rule inet congestion in {rule}"))?;
    }
    Ok(())
}

/// What the client has said at its end.
fn told(said: &str) -> Result<Told, String> {
    let line = said.lines().find(|line| line.ends_with(" CNPs"));
    let mut numbers = line.into_iter().flat_map(|line| line.split(' ')).filter_map(|word| word.parse().ok());
    match [numbers.next(), numbers.next(), numbers.next()] {
        [Some(marked), Some(received), Some(cnps)] => Ok(Told { marked, received, cnps }),
        _ => Err(format!("the client has not said what was counted: {said}")),
    }
}

/// What the server has got, and the CNPs that the client has.
fn counts(net: &Net, told: Told) -> Result<Counts, String> {
    let [server, client] = [nft(net, 0, "list ruleset")?, nft(net, 1, "list ruleset")?];
    let count = |rules: &str, name: &str| {
        let line = rules.lines().find(|line| line.contains(&format!("comment \"{name}\"")));
        let words =
            line.and_then(|line| line.split("counter packets ").nth(1)?.split(' ').next()?.parse().ok());
        words.ok_or_else(|| format!("no rule {name} in {rules}"))
    };
    Ok(Counts {
        capable: count(&server, "capable")?,
        all: count(&server, "all")?,
        cnp: count(&client, "cnp")?,
        told,
    })
}

/// A rule, or a question, to nftables of one host.
pub fn nft(net: &Net, side: usize, rule: &str) -> Result<String, String> {
    let args = ["netns", "exec", &net.names[side], "nft", rule];
    Ok(run::run(run::command("ip", args), Duration::from_secs(10))?.success()?.out)
}
