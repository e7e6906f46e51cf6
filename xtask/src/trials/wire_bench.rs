//! `bench wire` measures what it says, once and briefly: no figure is judged here. And a talk at full speed may end at any message.
use std::time::Duration;

use super::netns::{Net, SERVER};
use crate::{
    bench::wire::{self, Extent},
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
    trials::pair_at,
};

pub const TRIALS: &[Trial] =
    &[Trial { name: "wire-bench", limit: Duration::from_secs(120), run: wire_bench }];

fn wire_bench(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("two namespaces", "needs root");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return ctx.check("making two namespaces", Err(why)),
    };
    let [server, client] = [0, 1].map(|side| {
        Place::new(ctx.stage.public.path(), Via::Path, User::Me)
            .inside(&["ip", "netns", "exec", &net.names[side]])
            .with_env("ANYVERBS_SOFT", "1")
    });
    let limit = Duration::from_secs(20);
    let left = pair_at(SERVER, "/leave", &server, &client, &[], limit);
    ctx.check("a message that is taken is acknowledged by a process that exits", left);
    // The bench makes two of its own.
    drop(net);
    let brief = Extent { repetitions: 1, each: 10, counts: false, others: false };
    let shown = wire::measure(ctx.stage, brief).and_then(|samples| wire::judge(&samples, false));
    ctx.check("bench wire, briefly", shown.map(drop));
}
