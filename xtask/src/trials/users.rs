//! Two processes of different users: traffic works without cross-memory attach; and the same without it by choice.
use std::time::Duration;

use crate::{
    pingpong::Run,
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
    trials::{here, pair_of},
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "rdma", limit: Duration::from_secs(120), run: rdma },
    Trial { name: "two-users", limit: Duration::from_secs(120), run: two_users },
    Trial { name: "unmapped", limit: Duration::from_secs(180), run: unmapped },
];

/// The paths between two processes: (name, server, client).
pub fn paths(ctx: &mut Ctx<'_>) -> Vec<(&'static str, Place, Place)> {
    let me = here(ctx);
    let ring = me.clone().with_env("ANYVERBS_DIRECT", "0");
    let mut paths = vec![("same user", me.clone(), me.clone()), ("same user by ring", ring.clone(), ring)];
    if run::is_root() {
        let nobody = Place::new(ctx.stage.public.path(), Via::Path, User::Nobody);
        paths.push(("root to nobody", nobody.clone(), me.clone()));
        paths.push(("nobody to root", me, nobody.clone()));
        paths.push(("nobody to nobody", nobody.clone(), nobody));
    } else {
        ctx.skip("between users", "needs root");
    }
    paths
}

/// WRITE, READ, atomics and SEND of every size, byte by byte, on every path.
fn rdma(ctx: &mut Ctx<'_>) {
    for (name, server, client) in paths(ctx) {
        ctx.check(name, pair_of("/rdma", &server, &client, &[], Duration::from_secs(30)).map(drop));
    }
}

fn two_users(ctx: &mut Ctx<'_>) {
    for (name, server, client) in paths(ctx).into_iter().filter(|p| p.0.contains("root")) {
        for (program, args) in [
            ("ibv_rc_pingpong", "-g 0 -c"),
            ("ibv_rc_pingpong", "-g 0 -c -e"),
            ("ibv_rc_pingpong", "-g 0 -c -s 1048576 -n 100 -r 32"),
            ("ibv_uc_pingpong", "-g 0 -c -s 65536 -n 200"),
            ("ibv_ud_pingpong", "-g 0 -c"),
            ("ibv_srq_pingpong", "-g 0 -c"),
        ] {
            ctx.check(
                format!("{program} {args}, {name}"),
                Run::new(program, &server, &client, args).good().map(drop),
            );
        }
    }
}

/// What is unmapped: what the client reads, writes or sends to, or its own memory.
const UNMAPPED: [&str; 6] = ["read", "write", "send", "read-own", "write-own", "send-own"];

/// Memory that the application has unmapped gives an error, not a crash, on every path.
fn unmapped(ctx: &mut Ctx<'_>) {
    for (name, server, client) in paths(ctx) {
        for how in UNMAPPED {
            let check = pair_of("/unmapped", &server, &client, &[how], Duration::from_secs(15)).map(drop);
            ctx.check(format!("{how}, {name}"), check);
        }
        let oneself = [&server, &client].map(|p| p.clone().with_env("ANYVERBS_SIGSEGV", "0"));
        for how in UNMAPPED {
            let check =
                pair_of("/unmapped", &oneself[0], &oneself[1], &[how], Duration::from_secs(15)).map(drop);
            ctx.check(format!("{how}, {name}, ANYVERBS_SIGSEGV=0"), check);
        }
    }
}
