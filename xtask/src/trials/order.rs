//! A SEND followed by an RDMA WRITE to the same bytes ends with the WRITE's bytes, on every path.
use std::time::Duration;

use crate::{
    report::{Ctx, Trial},
    run,
    trials::{here, pair_of, users::paths},
};

pub const TRIALS: &[Trial] = &[Trial { name: "order", limit: Duration::from_secs(180), run: order }];

fn order(ctx: &mut Ctx<'_>) {
    let place = here(ctx);
    let alone = run::run(place.command("/order", ["loop", "-", "-", "3000"]), Duration::from_secs(30));
    ctx.check("within one process", alone.and_then(|o| o.success()).map(drop));
    for (name, server, client) in paths(ctx) {
        ctx.check(name, pair_of("/order", &server, &client, &["3000"], Duration::from_secs(40)).map(drop));
    }
}
