//! One RoCEv2 port for many processes: several on both hosts, of two users; those that get the packets are killed, and stopped.
use std::time::Duration;

use super::netns::{Net, SERVER};
use crate::{
    pingpong::Run,
    place::{Place, User},
    report::{Ctx, Trial},
    run::{self, Child},
};

pub const TRIALS: &[Trial] =
    &[Trial { name: "one-port", limit: Duration::from_secs(300), run: many_processes }];

/// Pairs of one round; the last ones survive.
const PAIRS: usize = 5;
/// How long a survivor may hear nothing when a process is killed, and when one is stopped, microseconds.
const GAP: u64 = 200_000;
const STOPPED_GAP: u64 = 500_000;
/// Rounds until one keeps within that; a busy machine may take longer than the library does.
const TRIES: usize = 3;

struct Pair {
    name: String,
    server: Child,
    client: Child,
}

fn many_processes(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two namespaces", "needs root");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let places = [0, 1].map(|side| net.place(ctx.stage, side));
    let place = |side: usize, user| places[side].clone().of(user);
    silence(ctx, "beside killed processes", GAP, || round(&place));
    silence(ctx, "beside a stopped process", STOPPED_GAP, || stop_the_youngest(&place));
    let (me, nobody) = (place(0, User::Me), place(1, User::Nobody));
    for (server, client) in [(&me, &nobody), (&nobody, &me)] {
        // What the killed have left behind disturbs nobody.
        let run = Run::new("ibv_rc_pingpong", server, client, "-g 0 -c");
        let to = if std::ptr::eq(server, &me) { SERVER } else { super::netns::CLIENT };
        ctx.check(format!("ibv_rc_pingpong afterwards, to {to}"), run.to(to).good().map(drop));
    }
}

/// Checks that the traffic goes on, and that the longest silence of one of a few rounds keeps within `most` microseconds.
fn silence(ctx: &mut Ctx<'_>, when: &str, most: u64, mut round: impl FnMut() -> Result<u64, String>) {
    let mut worst = Vec::new();
    while worst.len() < TRIES && worst.iter().all(|gap| *gap > most) {
        match round() {
            Err(why) => return ctx.check(format!("traffic {when}"), Err(why)),
            Ok(gap) => worst.push(gap),
        }
    }
    println!("  longest silence {when}: {worst:?} us");
    ctx.check(format!("traffic {when}"), Ok(()));
    let result = if worst.iter().any(|gap| *gap <= most) { Ok(()) } else { Err(format!("{worst:?} us")) };
    ctx.check(format!("silence {when} of at most {} ms", most / 1000), result);
}

/// Starts pairs one after the other, kills one end of each but the last two, youngest process first and last; the longest
/// silence that a survivor saw.
fn round(place: &dyn Fn(usize, User) -> Place) -> Result<u64, String> {
    let mut pairs = Vec::new();
    for i in 0..PAIRS {
        let user = |odd: usize| if i % 2 == odd { User::Me } else { User::Nobody };
        let how = if i % 2 == 0 { "events" } else { "poll" };
        pairs.push(start(&format!("pair {i}"), place, [user(0), user(1)], how, "6000")?);
    }
    // Survivors are the first and the third; the youngest owner of the port dies first.
    for victim in [4, 3, 1] {
        pairs[victim].server.kill();
        pairs[victim].client.kill();
        // Newcomers take the port over, and are killed too.
        let mut brief = start("newcomer", place, [User::Me, User::Nobody], "events", "6000")?;
        brief.server.kill();
        brief.client.kill();
        if !brief.server.ended(Duration::from_secs(5)) {
            return Err("a killed process lives".into());
        }
    }
    let survivors = pairs.into_iter().enumerate().filter(|(i, _)| [0, 2].contains(i));
    worst_gap(survivors.map(|(_, pair)| pair))
}

/// The longest silence that one of these has seen, once they have ended well.
fn worst_gap(pairs: impl IntoIterator<Item = Pair>) -> Result<u64, String> {
    let mut worst = 0;
    for pair in pairs {
        let client = pair.client.finish(Duration::from_secs(40));
        let server = pair.server.finish(Duration::from_secs(10));
        if !client.ok() || !server.ok() {
            return Err(format!("{}: server: {server}\n    client: {client}", pair.name));
        }
        let gap = client.out.split("longest gap ").nth(1).and_then(|s| s.split(' ').next()?.parse().ok());
        worst = worst.max(gap.ok_or_else(|| client.to_string())?);
    }
    Ok(worst)
}

/// Stops both ends of the pair that was last to bind the port; the longest silence that others saw: messages both ways, and
/// READs from a process that does nothing itself.
fn stop_the_youngest(place: &dyn Fn(usize, User) -> Place) -> Result<u64, String> {
    let pairs = [
        start("messages", place, [User::Me, User::Nobody], "events", "3000")?,
        start("READs", place, [User::Nobody, User::Me], "reads", "3000")?,
    ];
    let youngest = start("youngest", place, [User::Me, User::Me], "poll", "60000")?;
    for end in [&youngest.server, &youngest.client] {
        end.signal(libc::SIGSTOP);
    }
    worst_gap(pairs)
}

fn start(
    name: &str,
    place: &dyn Fn(usize, User) -> Place,
    users: [User; 2],
    how: &str,
    ms: &str,
) -> Result<Pair, String> {
    let port = run::port().to_string();
    let args = |role| [role, SERVER, &port, how, ms];
    let server = run::spawn(place(0, users[0]).command("/steady", args("server")))?;
    let mut client = run::spawn(place(1, users[1]).command("/steady", args("client")))?;
    client.says("running", Duration::from_secs(20)).map_err(|why| format!("{name}: {why}"))?;
    Ok(Pair { name: name.to_string(), server, client })
}
