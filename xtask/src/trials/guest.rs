//! In one boot of the guest: urxe0 in one namespace against the kernel's rxe with Debian's provider in the other, in both
//! roles; then the kernel's rxe with our library and its provider, beside Debian's own library.
use std::time::Duration;

use crate::{
    guest,
    report::{Ctx, Trial},
    run,
    stage::{self, root},
};

pub const TRIALS: &[Trial] = &[Trial { name: "guest", limit: Duration::from_secs(900), run: interop }];

/// Lines of guest-pingpong.sh: seven runs in both roles.
const PAIRS: usize = 14;
/// Lines of guest-kernel.sh: tools, then rows for each provider.
const KERNEL: usize = 4 + PROVIDERS.len() * 18;
/// Who serves rxe0.
const PROVIDERS: [&str; 2] = ["native", "plugin"];
/// Programs of `c-tests` that behave alike on rxe with both libraries.
const PROGRAMS: [&str; 3] = ["rc_loopback", "atomics", "overrun"];

fn interop(ctx: &mut Ctx<'_>) {
    if !run::is_root() {
        return ctx.skip("kernel rxe", "needs root");
    }
    let folder = ctx.stage.public.path();
    for program in PROGRAMS {
        let built = stage::system_program(program, &folder.join("bin").join(format!("kernel-{program}")));
        if built.is_err() {
            return ctx.check(format!("building {program}"), built);
        }
    }
    let folder = folder.display().to_string();
    let script = |name: &str| root().join("xtask").join(name).display().to_string();
    let both = r#"bash "$1" "$3"; bash "$2" "${@:3}""#;
    let mut words: Vec<String> = ["bash", "-c", both, "guest"].map(String::from).to_vec();
    words.extend([script("guest-pingpong.sh"), script("guest-kernel.sh"), folder]);
    words.extend(PROVIDERS.map(String::from));
    let outcome = guest::command(&words, 880).and_then(|cmd| run::run(cmd, Duration::from_secs(890)));
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return ctx.check("starting the guest", Err(why)),
    };
    let mut lines = 0;
    for line in outcome.out.lines() {
        lines += usize::from(line.starts_with("ok ") || line.starts_with("not ok "));
        if let Some(name) = line.strip_prefix("ok ") {
            ctx.check(name, Ok(()));
        } else if let Some(what) = line.strip_prefix("not ok ") {
            let (name, why) = what.split_once(": ").unwrap_or((what, ""));
            ctx.check(name, Err(why.to_string()));
        }
    }
    let ended = outcome.out.contains("guest done") && outcome.out.contains("kernel done");
    let whole = if ended && lines == PAIRS + KERNEL { Ok(()) } else { Err(outcome.to_string()) };
    ctx.check("the guest ran to its end", whole);
}
