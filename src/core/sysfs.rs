//! What the kernel shows of its own RDMA devices, as far as the list needs to know.
use crate::sys::{folder, sysfs};

/// True where the kernel has at least one RDMA device in this network namespace.
pub fn kernel_has_devices() -> bool {
    folder::has_entries(&sysfs::root().join("class/infiniband"))
}
