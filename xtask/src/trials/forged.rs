//! Packets that nobody should send, from another namespace, by IPv4 and IPv6: each is dropped, counted where it belongs and
//! nowhere else, and disturbs nobody (`c-tests/trials/forged.h` has the cases).
use std::time::Duration;

use super::netns::{CLIENT, CLIENT_6, Net, SERVER, SERVER_6};
use crate::{
    place::Place,
    report::{Ctx, Trial},
    run,
};

pub const TRIALS: &[Trial] =
    &[Trial { name: "forged-packets", limit: Duration::from_secs(240), run: forged }];

/// Second addresses of the client's side.
const OTHER: &str = "10.77.0.3";
const OTHER_6: &str = "fd77::3";

fn forged(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two namespaces", "needs root");
    }
    let made = Net::new().and_then(|net| {
        net.add_address(1, &format!("{OTHER}/24"))?;
        net.add_address(1, &format!("{OTHER_6}/64 nodad"))?;
        Ok(net)
    });
    let net = match made {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let [victim, client] =
        [0, 1].map(|host| net.place(ctx.stage, host).with_env("C_TESTS_INTERFACE", "veth0"));
    for (name, ends) in [("IPv4", [SERVER, CLIENT, OTHER]), ("IPv6", [SERVER_6, CLIENT_6, OTHER_6])] {
        ctx.check(format!("each is dropped and counted, {name}"), run_pair(&victim, &client, ends));
    }
}

fn run_pair(victim: &Place, client: &Place, [server, peer, other]: [&str; 3]) -> Result<(), String> {
    let port = run::port().to_string();
    let victim = run::spawn(victim.command("/forged", ["victim", SERVER, &port, server, peer, other]))?;
    let client = run::spawn(client.command("/forged", ["client", SERVER, &port, peer, server, other]))?;
    let client = client.finish(Duration::from_secs(100));
    let victim = victim.finish(Duration::from_secs(if client.ok() { 10 } else { 2 }));
    if client.ok() && victim.ok() && victim.out.contains(" cases, 0 wrong") {
        return Ok(());
    }
    Err(format!("victim: {victim}\n    client: {client}"))
}
