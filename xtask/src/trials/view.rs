//! `anyverbs run`: programs find urxe0 below /sys/class/infiniband and /dev/infiniband, without root, and nothing is left behind.
use std::{env, fs, thread, time::Duration};

use crate::{
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
};

pub const TRIALS: &[Trial] = &[Trial { name: "view", limit: Duration::from_secs(60), run: view }];

const LIMIT: Duration = Duration::from_secs(15);

fn view(ctx: &mut Ctx<'_>) {
    let folder = ctx.stage.public.path().to_path_buf();
    let mut places = vec![Place::new(&folder, Via::Path, User::Me)];
    if run::is_root() {
        places.push(Place::new(&folder, Via::Path, User::Nobody));
    } else {
        ctx.skip("as another user", "needs root");
    }
    for place in places {
        let label = place.label();
        let own = folder.join("bin/view").display().to_string();
        let named =
            place.clone().with_env("ANYVERBS_DEVICE_NAME", "mlx5_3").with_env("ANYVERBS_DEVICES", "2");
        let infiniband = place.clone().with_env("ANYVERBS_LINK_LAYER", "infiniband");
        for (what, place) in [("urxe0", &place), ("two devices by name", &named), ("InfiniBand", &infiniband)]
        {
            let check = succeeds(place, &[&own], "ok");
            ctx.check(format!("all calls, {what}, {label}"), check);
        }
        for (what, words, shows) in [
            ("ls", &["ls", "/sys/class/infiniband/"][..], "urxe0"),
            ("cat", &["cat", "/sys/class/infiniband/urxe0/node_type"], "1: CA"),
            ("find", &["find", "/sys/class/infiniband/urxe0/", "-name", "types"], "gid_attrs/types"),
            ("stat", &["stat", "-c", "%F", "/dev/infiniband/uverbs0"], "character special file"),
            (
                "sh",
                &[
                    "sh",
                    "-c",
                    "test -c /dev/infiniband/uverbs0 && read l < /sys/class/infiniband/urxe0/ports/1/state && echo $l",
                ],
                "4: ACTIVE",
            ),
            ("ls of another folder", &["ls", "/dev/null"], "/dev/null"),
        ] {
            ctx.check(format!("{what}, {label}"), succeeds(&place, words, shows));
        }
        let hidden = place.clone().with_env("ANYVERBS_SOFT", "0");
        ctx.check(
            format!("nothing without a device, {label}"),
            fails(&hidden, &["ls", "/sys/class/infiniband"], 2),
        );
        ctx.check(format!("exit codes, {label}"), fails(&place, &["sh", "-c", "exit 7"], 7));
        ctx.check(format!("no such program, {label}"), fails(&place, &["/nonexistent"], 127));
    }
    let place = Place::new(&folder, Via::Path, User::Me);
    let doctor = run::run(place.command("/anyverbs", ["doctor"]), LIMIT).and_then(run::Outcome::success);
    let complete = doctor.and_then(|told| {
        let topics =
            ["libraries:", "urxe0: ACTIVE", "urxe0 GID 0:", "cross-memory attach:", "UDP port 4791:"];
        let missing = topics.iter().find(|topic| !told.out.contains(**topic));
        missing.map_or(Ok(()), |topic| Err(format!("no {topic:?} in: {told}")))
    });
    ctx.check("anyverbs doctor", complete);
    ctx.check("a killed process's view is swept", swept(&place));
    ctx.check(
        "nothing is left",
        match left() {
            none if none.is_empty() => Ok(()),
            some => Err(some.join(" ")),
        },
    );
}

/// `anyverbs run WORDS...`.
pub fn under(place: &Place, words: &[&str]) -> std::process::Command {
    place.command("/anyverbs", ["run"].iter().chain(words))
}

fn succeeds(place: &Place, words: &[&str], shows: &str) -> Result<(), String> {
    let outcome = run::run(under(place, words), LIMIT)?.success()?;
    if !outcome.out.contains(shows) {
        return Err(format!("does not show {shows:?}: {outcome}"));
    }
    // Another process of this host may have the port, which is worth a line.
    let quiet = outcome.err.lines().all(|line| line.starts_with("anyverbs: urxe: UDP port"));
    if quiet { Ok(()) } else { Err(format!("speaks on stderr: {outcome}")) }
}

fn fails(place: &Place, words: &[&str], code: i32) -> Result<(), String> {
    let outcome = run::run(under(place, words), LIMIT)?;
    if outcome.code == Some(code) { Ok(()) } else { Err(format!("not exit code {code}: {outcome}")) }
}

/// The folder of a process that is killed goes when the next process looks.
fn swept(place: &Place) -> Result<(), String> {
    let script = "read l < /sys/class/infiniband/urxe0/node_type; echo $l; kill -9 $$";
    let killed = run::run(under(place, &["sh", "-c", script]), LIMIT)?;
    if killed.signal != Some(libc::SIGKILL) {
        return Err(format!("was not killed: {killed}"));
    }
    thread::yield_now();
    succeeds(place, &["ls", "/dev/infiniband"], "uverbs0")
}

/// Folders of views.
fn left() -> Vec<String> {
    let places = [env::temp_dir(), "/tmp".into(), "/dev/shm".into(), "/var/tmp".into()];
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(Into::into);
    let entries =
        places.into_iter().chain(runtime).flat_map(|place| fs::read_dir(place).into_iter().flatten());
    let names = entries.flatten().map(|entry| entry.path().display().to_string());
    names.filter(|path| path.contains("/anyverbs-view-")).collect()
}
