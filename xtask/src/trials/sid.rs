//! The programs of Debian sid's rdma-core, in its own root by chroot, with our library; only on request.
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    apt,
    pingpong::Run,
    place::{Place, User, Via},
    report::{Ctx, Trial},
    run,
    stage::{self, target},
};

pub const TRIALS: &[Trial] = &[Trial { name: "sid", limit: Duration::from_secs(1200), run: sid }];

const MIRROR: &str = "http://deb.debian.org/debian";

fn sid(ctx: &mut Ctx<'_>) {
    let root = match debian_root() {
        Ok(root) => root,
        Err(why) => return ctx.check("making a Debian sid root", Err(why)),
    };
    let placed = stage::lay_out(&ctx.stage.lib.join(stage::FULL_NAME), &root.join("opt/anyverbs/lib"));
    ctx.check("our library in that root", placed.map_err(|e| e.to_string()));
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

fn newer_than_64(version: &str) -> Result<(), String> {
    let major: u32 = version.split(['.', '-']).next().and_then(|n| n.parse().ok()).unwrap_or(0);
    if major >= 65 { Ok(()) } else { Err(format!("it is {version:?}")) }
}

/// A place in the root, with this machine's /proc, /dev and /sys mounted for the one command only.
fn chroot(root: &Path) -> Place {
    let script = "for d in proc dev sys; do mount --rbind /$d \"$0/$d\"; done; exec chroot \"$0\" \"$@\"";
    let root = root.display().to_string();
    let place = Place::new(Path::new("/opt/anyverbs"), Via::Path, User::Me);
    place.inside(&["unshare", "--mount", "--propagation", "private", "sh", "-c", script, &root])
}

/// The cached root, made when it is not there.
pub fn debian_root() -> Result<PathBuf, String> {
    if !run::is_root() {
        return Err("needs root".into());
    }
    let root = target().join("sid");
    if root.join("usr/bin/ibv_rc_pingpong").exists() {
        return Ok(root);
    }
    apt::ensure(&[("debootstrap", "debootstrap")])?;
    let new = target().join("sid.new");
    let _ = fs::remove_dir_all(&new);
    eprintln!("making a Debian sid root in {}", root.display());
    let args = ["--variant=minbase", "--include=ibverbs-utils", "sid", &new.display().to_string(), MIRROR]
        .map(String::from);
    run::run(run::command("debootstrap", args), Duration::from_secs(1000))?.success()?;
    let _ = fs::remove_dir_all(&root);
    fs::rename(&new, &root).map_err(|e| e.to_string())?;
    Ok(root)
}
