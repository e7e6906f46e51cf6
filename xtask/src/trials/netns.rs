//! Two network namespaces joined by veth: RC, UC and UD over RoCEv2 on UDP, also where a packet in a hundred is lost.
use std::{process::id, time::Duration};

use crate::{
    pingpong::Run,
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
    trials::{idle, pair_at},
};

pub const TRIALS: &[Trial] = &[Trial { name: "netns", limit: Duration::from_secs(700), run: netns }];

pub const SERVER: &str = "10.77.0.1";
pub const CLIENT: &str = "10.77.0.2";
pub const SERVER_6: &str = "fd77::1";
const CLIENT_6: &str = "fd77::2";

fn netns(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two namespaces", "needs root");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let folder = ctx.stage.public.path().to_path_buf();
    let [server, client] = net.names.each_ref().map(|name| {
        Place::new(&folder, Via::Path, User::Me)
            .inside(&["ip", "netns", "exec", name])
            .with_env("ANYVERBS_SOFT", "1")
    });
    let good = |program, args| {
        Run::new(program, &server, &client, args).to(SERVER).within(Duration::from_secs(40)).good()
    };
    for (program, args) in [
        ("ibv_rc_pingpong", "-g 0 -c"),
        ("ibv_rc_pingpong", "-g 0 -c -s 65536"),
        ("ibv_rc_pingpong", "-g 0 -c -s 1048576 -n 50 -r 32"),
        ("ibv_rc_pingpong", "-g 0 -c -e"),
        ("ibv_rc_pingpong", "-g 0 -c -r 1"),
        ("ibv_uc_pingpong", "-g 0 -c -r 16 -s 4096"),
        ("ibv_uc_pingpong", "-g 0 -c"),
        ("ibv_ud_pingpong", "-g 0 -c"),
        ("ibv_ud_pingpong", "-g 0 -c -e"),
    ] {
        ctx.check(format!("{program} {args}"), good(program, args).map(drop));
    }
    let minute = Duration::from_secs(60);
    ctx.check("WRITE, READ, atomics, SEND", pair_at(SERVER, "/rdma", &server, &client, &[], minute));
    ctx.check("SEND then WRITE in order", pair_at(SERVER, "/order", &server, &client, &["500"], minute));
    for how in ["read", "write", "send"] {
        ctx.check(format!("unmapped {how}"), pair_at(SERVER, "/unmapped", &server, &client, &[how], minute));
    }
    for mtu in ["1500", "9000"] {
        ctx.check(format!("MTU {mtu}"), net.set_mtu(mtu));
        let best = if mtu == "1500" { "1024" } else { "4096" };
        for ip in [SERVER, SERVER_6] {
            let index = gid_index(&server, ip).and_then(|s| Ok((s, gid_index(&client, client_of(ip))?)));
            let (own, peers) = match index {
                Ok(both) => both,
                Err(why) => return ctx.check(format!("the GID of {ip}"), Err(why)),
            };
            for (program, args) in [
                ("ibv_rc_pingpong", "-c -s 65536 -n 200"),
                ("ibv_uc_pingpong", "-c -r 16 -s 4096 -n 200"),
                ("ibv_ud_pingpong", "-c -s 1024 -n 200"),
            ] {
                let path = if program.contains("ud") { String::new() } else { format!(" -m {best}") };
                let run = Run::new(program, &server, &client, &format!("{args}{path}"));
                let run = run.sides(&format!("-g {own}"), &format!("-g {peers}")).to(SERVER);
                let good = run.within(Duration::from_secs(40)).good().map(drop);
                ctx.check(format!("{program} {args}{path} from {ip}, MTU {mtu}"), good);
            }
        }
    }
    ctx.check("MTU 1500 again", net.set_mtu("1500"));
    let long = Run::new("ibv_rc_pingpong", &server, &client, "-g 0 -m 4096 -n 10").to(SERVER);
    ctx.check("a path MTU that the route does not carry is refused", refused(&long));
    idle::check_idle(ctx, "two hosts", SERVER, &server, &client);
    ctx.check("a rule that drops one packet in a hundred", net.lose_one_percent());
    for args in ["-g 0 -c -n 500 -s 65536", "-g 0 -c -n 500", "-g 0 -c -n 500 -e"] {
        let run = Run::new("ibv_rc_pingpong", &server, &client, args).to(SERVER).within(minute);
        ctx.check(format!("ibv_rc_pingpong {args}, 1 % lost"), run.good().map(drop));
    }
    ctx.check("packets were dropped", net.dropped());
    ctx.check(
        "SEND then WRITE in order, 1 % lost",
        pair_at(SERVER, "/order", &server, &client, &["200"], minute),
    );
    for program in ["ibv_uc_pingpong", "ibv_ud_pingpong"] {
        // They lose messages by design and then wait for ever; they must not end by a signal.
        let run =
            Run::new(program, &server, &client, "-g 0 -c -n 2000").to(SERVER).within(Duration::from_secs(4));
        let sane = run.run().and_then(|pair| {
            let crashed = [&pair.server, &pair.client].into_iter().find(|o| o.signal.is_some());
            crashed.map_or(Ok(()), |o| Err(o.to_string()))
        });
        ctx.check(format!("{program}, 1 % lost, stays sane"), sane);
    }
}

fn client_of(server: &str) -> &'static str {
    if server == SERVER { CLIENT } else { CLIENT_6 }
}

/// Where in the GID table of a place the address stands.
pub fn gid_index(place: &Place, ip: &str) -> Result<usize, String> {
    let outcome = run::run(place.command("ibv_devinfo", ["-v"]), Duration::from_secs(20))?.success()?;
    let shown = if ip.contains(':') { ip.to_string() } else { format!("::ffff:{ip}") };
    let gids = outcome.out.lines().filter_map(|l| l.trim().strip_prefix("GID[")?.split_once("]:"));
    let found = gids.filter(|(_, gid)| gid.trim().split(',').next().is_some_and(|g| g.trim() == shown));
    found.filter_map(|(n, _)| n.trim().parse().ok()).next().ok_or_else(|| outcome.out.clone())
}

/// Both ends say which MTU would fit, and end.
fn refused(run: &Run<'_>) -> Result<(), String> {
    let pair = run.run()?;
    let all = format!("{}{}", pair.server.err, pair.client.err);
    let ended = pair.client.code.is_some_and(|code| code != 0);
    if ended && all.contains("Failed to modify QP to RTR") { Ok(()) } else { Err(all) }
}

/// Two namespaces with one veth pair between them, removed when dropped.
pub struct Net {
    /// For `ip netns exec`; the first has the address [`SERVER`].
    pub names: [String; 2],
}

impl Net {
    /// Makes them; needs root.
    pub fn new() -> Result<Net, String> {
        let net = Net { names: ["a", "b"].map(|side| format!("anyverbs-{}-{side}", id())) };
        let [a, b] = &net.names;
        for args in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"),
            format!("-n {a} addr add {SERVER}/24 dev veth0"),
            format!("-n {b} addr add {CLIENT}/24 dev veth0"),
            format!("-n {a} -6 addr add {SERVER_6}/64 dev veth0 nodad"),
            format!("-n {b} -6 addr add {CLIENT_6}/64 dev veth0 nodad"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link set veth0 up"),
            format!("-n {b} link set veth0 up"),
        ] {
            ip(&args)?;
        }
        Ok(net)
    }
    pub fn set_mtu(&self, mtu: &str) -> Result<(), String> {
        self.names.iter().try_for_each(|name| ip(&format!("-n {name} link set veth0 mtu {mtu}")))
    }
    fn nft(&self, side: usize, rule: &str) -> Result<String, String> {
        let args = ["netns", "exec", &self.names[side], "nft", rule];
        Ok(run::run(run::command("ip", args), Duration::from_secs(10))?.success()?.out)
    }
    /// From now on one packet of RoCE v2 in a hundred is lost, each way.
    pub fn lose_one_percent(&self) -> Result<(), String> {
        for side in 0..2 {
            self.nft(side, "add table inet lossy")?;
            self.nft(side, "add chain inet lossy out { type filter hook output priority 0 ; }")?;
            self.nft(side, "add rule inet lossy out udp dport 4791 numgen random mod 100 == 0 counter drop")?;
        }
        Ok(())
    }
    fn dropped(&self) -> Result<(), String> {
        let rules = self.nft(0, "list ruleset")?;
        if rules.contains("counter packets") && !rules.contains("counter packets 0 ") {
            Ok(())
        } else {
            Err(rules)
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(args: &str) -> Result<(), String> {
    run::run(run::command("ip", args.split_whitespace()), Duration::from_secs(10))?.success().map(drop)
}
