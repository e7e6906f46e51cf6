//! `cargo xtask guest CMD...`: a throw-away guest that has a kernel RDMA device (xtask/guest.sh). `KERNEL` names its kernel:
//! a release that Debian has (6.12) or a package; Debian's default without it. `--distro sid` runs CMD by chroot in a Debian sid
//! root, with our library in /opt/anyverbs/lib.
use std::process::Command;

use crate::{
    apt, run,
    stage::{self, root, target},
    trials::sid,
};

/// The command that runs `words` in the guest, at most `seconds` long, with its boot files cached in the target folder.
pub fn command(words: &[String], seconds: u32) -> Result<Command, String> {
    command_on("", words, seconds)
}

/// The same with another kernel, named as `KERNEL` does; empty for Debian's default.
pub fn command_on(kernel: &str, words: &[String], seconds: u32) -> Result<Command, String> {
    const NEEDS: [&str; 5] = ["qemu-system-x86_64", "busybox", "cpio", "depmod", "ip"];
    let needs: Vec<apt::Need> = apt::TEST.iter().copied().filter(|need| NEEDS.contains(&need.0)).collect();
    apt::ensure(&needs)?;
    let mut cmd = run::command("bash", [root().join("xtask/guest.sh")]);
    if !kernel.is_empty() {
        cmd.args(["-k", &package(kernel)]);
    }
    cmd.args(["-t", &seconds.to_string()]).args(words).env("ANYVERBS_GUEST_CACHE", target().join("guest"));
    Ok(cmd)
}

/// Runs `words` in the guest with our own output.
pub fn guest(words: &[String]) -> Result<(), String> {
    let kernel = std::env::var("KERNEL").unwrap_or_default();
    let [flag, distro, rest @ ..] = words else { return run::inherit(command_on(&kernel, words, 3600)?) };
    if flag != "--distro" {
        return run::inherit(command_on(&kernel, words, 3600)?);
    }
    if distro != "sid" || rest.is_empty() {
        return Err("--distro sid COMMAND...".into());
    }
    let root = sid::root_with(&stage::stage()?)?.display().to_string();
    let inside = ["sh", "-c", sid::ENTER, &root].map(String::from);
    run::inherit(command_on(&kernel, &[&inside, rest].concat(), 3600)?)
}

/// `6.12` is the package `linux-image-6.12-amd64`.
fn package(kernel: &str) -> String {
    if kernel.starts_with(|first: char| first.is_ascii_digit()) {
        format!("linux-image-{kernel}-amd64")
    } else {
        kernel.to_string()
    }
}
