//! The programs of Debian sid's rdma-core, in its own root by chroot, with our library; only on request. On urxe0 here, and in the
//! guest on the kernel's soft-RoCE by sid's compiled provider.
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::guest::told;
use crate::{
    apt, guest,
    pingpong::Run,
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
    stage::{self, target},
};

pub const TRIALS: &[Trial] = &[
    Trial { name: "sid", limit: Duration::from_secs(1200), run: sid },
    Trial { name: "sid-guest", limit: Duration::from_secs(GUEST + 40), run: in_guest },
];

/// Limit of the guest, seconds.
const GUEST: u64 = 900;
/// Checks of guest-sid.sh.
const CHECKS: usize = 2 + 2 + 9 * 3 + 3 * 2;

/// A shell's script that runs a command in a root, with this machine's /proc, /dev and /sys mounted there.
pub const ENTER: &str =
    "for d in proc dev sys; do mount --rbind /$d \"$0/$d\"; done; exec chroot \"$0\" \"$@\"";

const MIRROR: &str = "http://deb.debian.org/debian";

fn sid(ctx: &mut Ctx<'_>) {
    let root = match root_with(ctx.stage) {
        Ok(root) => root,
        Err(why) => return ctx.check("making a Debian sid root with our library", Err(why)),
    };
    let version = run::run(
        chroot(&root).command("dpkg-query", ["-W", "-f${Version}", "ibverbs-utils"]),
        Duration::from_secs(10),
    );
    if let Ok(version) = &version {
        println!("  ibverbs-utils {}", version.out);
    }
    ctx.check("rdma-core 65 or newer", version.and_then(|v| newer_than_64(&v.out)));
    for via in [Via::Path, Via::Preload] {
        let place = chroot(&root).by(via);
        let none: [&str; 0] = [];
        let shows =
            run::run(place.command("ibv_devinfo", ["-v"]), Duration::from_secs(10)).and_then(|o| o.success());
        let shows = shows.and_then(|o| if o.out.contains("urxe0") { Ok(()) } else { Err(o.to_string()) });
        ctx.check(format!("ibv_devinfo -v, {}", place.label()), shows);
        let lists =
            run::run(place.command("ibv_devices", none), Duration::from_secs(10)).and_then(|o| o.success());
        ctx.check(format!("ibv_devices, {}", place.label()), lists.map(drop));
        for (program, args) in [
            ("ibv_rc_pingpong", "-g 0 -c"),
            ("ibv_rc_pingpong", "-g 0 -c -e"),
            ("ibv_rc_pingpong", "-g 0 -c -t"),
            ("ibv_rc_pingpong", "-g 0 -c -N"),
            ("ibv_rc_pingpong", "-g 0 -c -o -P"),
            ("ibv_rc_pingpong", "-g 0 -c -O"),
            ("ibv_rc_pingpong", "-g 0 -c -j"),
            ("ibv_rc_pingpong", "-g 0 -c -r 1"),
            ("ibv_rc_pingpong", "-g 0 -c -s 1048576 -n 100 -r 32"),
            ("ibv_uc_pingpong", "-g 0 -c"),
            ("ibv_ud_pingpong", "-g 0 -c"),
            ("ibv_srq_pingpong", "-g 0 -c"),
            ("ibv_srq_pingpong", "-g 0 -c -o -e"),
            ("ibv_xsrq_pingpong", "-g 0"),
        ] {
            let run = Run::new(program, &place, &place, args);
            ctx.check(format!("{program} {args}, {}", place.label()), run.good().map(drop));
        }
    }
}

/// The kernel's rxe by sid's compiled provider on our library.
fn in_guest(ctx: &mut Ctx<'_>) {
    let root = match root_with(ctx.stage) {
        Ok(root) => root,
        Err(why) => return ctx.check("making a Debian sid root with our library", Err(why)),
    };
    let script = stage::root().join("xtask/guest-sid.sh");
    let words: Vec<String> =
        [Path::new("bash"), &script, &root, ctx.stage.public.path()].map(|p| p.display().to_string()).into();
    let outcome =
        guest::command(&words, GUEST as u32).and_then(|cmd| run::run(cmd, Duration::from_secs(GUEST + 20)));
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return ctx.check("starting the guest", Err(why)),
    };
    let checks = told(ctx, &outcome.out).len();
    let whole = outcome.out.contains("sid done") && checks == CHECKS;
    ctx.check("the guest ran to its end", if whole { Ok(()) } else { Err(outcome.to_string()) });
}

/// The root with our library in `opt/anyverbs/lib`.
pub fn root_with(stage: &stage::Stage) -> Result<PathBuf, String> {
    let root = debian_root()?;
    stage::lay_out(&stage.lib.join(stage::FULL_NAME), &root.join("opt/anyverbs/lib"))
        .map_err(|e| format!("our library in {}: {e}", root.display()))?;
    Ok(root)
}

fn newer_than_64(version: &str) -> Result<(), String> {
    let major: u32 = version.split(['.', '-']).next().and_then(|n| n.parse().ok()).unwrap_or(0);
    if major >= 65 { Ok(()) } else { Err(format!("it is {version:?}")) }
}

/// A place in the root, with this machine's /proc, /dev and /sys mounted for the one command only.
fn chroot(root: &Path) -> Place {
    let root = root.display().to_string();
    let place = Place::new(Path::new("/opt/anyverbs"), Via::Path, User::Me);
    place.inside(&["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, &root])
}

/// The cached root, made when it is not there.
fn debian_root() -> Result<PathBuf, String> {
    if !run::is_root() {
        return Err("needs root".into());
    }
    let root = target().join("sid");
    if ["usr/bin/ibv_rc_pingpong", "etc/libibverbs.d/rxe.driver"].iter().all(|file| root.join(file).exists())
    {
        return Ok(root);
    }
    apt::ensure(&[("debootstrap", "debootstrap")])?;
    let new = target().join("sid.new");
    let _ = fs::remove_dir_all(&new);
    eprintln!("making a Debian sid root in {}", root.display());
    let args = [
        "--variant=minbase",
        "--include=ibverbs-utils,ibverbs-providers",
        "sid",
        &new.display().to_string(),
        MIRROR,
    ]
    .map(String::from);
    run::run(run::command("debootstrap", args), Duration::from_secs(1000))?.success()?;
    let _ = fs::remove_dir_all(&root);
    fs::rename(&new, &root).map_err(|e| e.to_string())?;
    Ok(root)
}
