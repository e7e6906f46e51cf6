//! Where sysfs is.
use std::path::PathBuf;

/// The root of sysfs: `SYSFS_PATH` without trailing slashes, unless the process has more rights than its caller.
pub fn root() -> PathBuf {
    let asked = std::env::var("SYSFS_PATH").ok().filter(|_| !super::is_setuid());
    let asked = asked.as_deref().map(|path| path.trim_end_matches('/')).filter(|path| !path.is_empty());
    PathBuf::from(asked.unwrap_or("/sys"))
}
