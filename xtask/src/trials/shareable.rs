//! Memory that two processes could map: what a peer writes and reads there while its owner deregisters it, cuts it off, or dies.
use std::time::Duration;

use crate::{
    place::Place,
    report::{Ctx, Trial},
    trials::{here, pair_of, users::paths},
};

pub const TRIALS: &[Trial] = &[Trial { name: "shareable", limit: Duration::from_secs(300), run: shareable }];

/// What happens, and which memory it cannot happen to.
const HAPPENINGS: &[(&str, &[&str])] = &[
    ("data", &[]),
    ("last", &[]),
    ("dereg", &[]),
    ("rereg", &["dm"]),
    ("truncate", &["private", "sealed", "buffer", "dm"]),
    ("unmap", &["buffer", "dm"]),
    ("kill", &[]),
    ("window", &["dm"]),
    ("beyond", &[]),
    ("odp", &["private", "buffer", "dm"]),
    ("child", &["dm"]),
];

fn shareable(ctx: &mut Ctx<'_>) {
    let me = here(ctx);
    for memory in ["private", "memfd", "sealed", "shm", "buffer", "dm"] {
        for (what, not) in HAPPENINGS {
            if !not.contains(&memory) {
                check(ctx, "same user", &me, &me, memory, what);
            }
        }
    }
    let mut others = paths(ctx);
    others.remove(0);
    let oneself = me.with_env("ANYVERBS_SIGSEGV", "0");
    others.push(("ANYVERBS_SIGSEGV=0", oneself.clone(), oneself));
    for (name, server, client) in others {
        for memory in ["memfd", "buffer"] {
            for what in ["data", "dereg", "kill"] {
                check(ctx, name, &server, &client, memory, what);
            }
        }
        for what in ["truncate", "unmap"] {
            check(ctx, name, &server, &client, "memfd", what);
        }
    }
}

fn check(ctx: &mut Ctx<'_>, name: &str, server: &Place, client: &Place, memory: &str, what: &str) {
    let went = pair_of("/shareable", server, client, &[memory, what], Duration::from_secs(30));
    ctx.check(format!("{memory}: {what}, {name}"), went);
}
