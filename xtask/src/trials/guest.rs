//! urxe0 in one namespace of the guest against the kernel's rxe with Debian's provider in the other, in both roles.
use std::time::Duration;

use crate::{
    guest,
    report::{Ctx, Trial},
    run,
    stage::root,
};

pub const TRIALS: &[Trial] = &[Trial { name: "guest", limit: Duration::from_secs(600), run: interop }];

/// Lines of guest-pingpong.sh: seven runs in both roles.
const PAIRS: usize = 14;

fn interop(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("kernel rxe", "needs root");
    }
    let script = root().join("xtask/guest-pingpong.sh").display().to_string();
    let words = ["bash".to_string(), script, ctx.stage.public.path().display().to_string()];
    let outcome = guest::command(&words, 580).and_then(|cmd| run::run(cmd, Duration::from_secs(590)));
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return ctx.check("starting the guest", Err(why)),
    };
    let mut pairs = 0;
    for line in outcome.out.lines() {
        pairs += usize::from(line.starts_with("ok ") || line.starts_with("not ok "));
        if let Some(name) = line.strip_prefix("ok ") {
            ctx.check(name, Ok(()));
        } else if let Some(what) = line.strip_prefix("not ok ") {
            let (name, why) = what.split_once(": ").unwrap_or((what, ""));
            ctx.check(name, Err(why.to_string()));
        }
    }
    let whole =
        if outcome.out.contains("guest done") && pairs == PAIRS { Ok(()) } else { Err(outcome.to_string()) };
    ctx.check("the guest ran to its end", whole);
}
