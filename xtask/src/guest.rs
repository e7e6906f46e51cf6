//! `cargo xtask guest CMD...`: a throw-away guest that has a kernel RDMA device (xtask/guest.sh).
use std::process::Command;

use crate::{
    apt, run,
    stage::{root, target},
};

/// The command that runs `words` in the guest, at most `seconds` long, with its boot files cached in the target folder.
pub fn command(words: &[String], seconds: u32) -> Result<Command, String> {
    const NEEDS: [&str; 5] = ["qemu-system-x86_64", "busybox", "cpio", "depmod", "ip"];
    let needs: Vec<apt::Need> = apt::TEST.iter().copied().filter(|need| NEEDS.contains(&need.0)).collect();
    apt::ensure(&needs)?;
    let mut cmd = run::command("bash", [root().join("xtask/guest.sh")]);
    cmd.args(["-t", &seconds.to_string()]).args(words).env("ANYVERBS_GUEST_CACHE", target().join("guest"));
    Ok(cmd)
}

/// Runs `words` in the guest with our own output.
pub fn guest(words: &[String]) -> Result<(), String> {
    run::inherit(command(words, 3600)?)
}
