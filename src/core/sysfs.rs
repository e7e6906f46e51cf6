//! What the kernel shows of its own RDMA devices, as far as the list needs to know.
use std::path::PathBuf;

/// The root of sysfs: `SYSFS_PATH` without trailing slashes, unless the process has more rights than its caller.
pub fn root() -> PathBuf {
    let asked = std::env::var("SYSFS_PATH").ok().filter(|_| !crate::sys::is_setuid());
    let asked = asked.as_deref().map(|path| path.trim_end_matches('/')).filter(|path| !path.is_empty());
    PathBuf::from(asked.unwrap_or("/sys"))
}

/// True where the kernel has at least one RDMA device in this network namespace.
pub fn kernel_has_devices() -> bool {
    crate::sys::folder::has_entries(&root().join("class/infiniband"))
}
