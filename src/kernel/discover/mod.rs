//! Which uverbs devices the kernel has: asked by netlink, which knows names, indices and drivers; read from sysfs where
//! the kernel is too old for that (facts: rdma/rdma_netlink.h, Documentation/ABI/stable/sysfs-class-infiniband).
mod netlink;
mod sysfs;

use crate::sys::{errno::Errno, folder};
use std::path::{Path, PathBuf};

/// A device of the kernel that has a node below `/dev/infiniband`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uverbs {
    /// Name of its node, `uverbsN`.
    pub node: String,
    /// Name of the RDMA device.
    pub name: String,
    /// The RDMA device's folder in sysfs.
    pub path: PathBuf,
    /// What the node must be: a device number as stat(2) gives it.
    pub number: u64,
    /// GUID in network byte order.
    pub guid: u64,
    /// `enum rdma_driver_id`; 0 where the kernel does not tell.
    pub driver: u32,
    /// `enum ibv_node_type`.
    pub node_type: i32,
    /// The kernel's index; -1 where it does not tell.
    pub index: i32,
    /// Number of ports; 0 where it does not tell.
    pub ports: u32,
    /// Version of the driver's own part of the commands.
    pub abi: u32,
    /// When the device came, where it has no index: seconds and nanoseconds.
    pub created: (i64, i64),
}

impl Uverbs {
    /// The same device as another look found: a device that went and came again is another one.
    pub fn is(&self, other: &Uverbs) -> bool {
        let key = |d: &Uverbs| (d.node.clone(), d.name.clone(), d.index, d.created);
        key(self) == key(other)
    }
}

/// Where devices are looked for.
#[derive(Clone, Debug)]
pub struct Places {
    /// Root of sysfs.
    pub sysfs: PathBuf,
    /// Root of the nodes.
    pub dev: PathBuf,
}

impl Places {
    /// Those of this system.
    pub fn system() -> Self {
        Self { sysfs: crate::sys::sysfs::root(), dev: PathBuf::from("/dev") }
    }

    fn node(&self, name: &str) -> PathBuf {
        self.dev.join("infiniband").join(name)
    }

    fn of_device(&self, name: &str) -> PathBuf {
        self.sysfs.join("class/infiniband").join(name)
    }

    fn of_node(&self, node: &str) -> PathBuf {
        self.sysfs.join("class/infiniband_verbs").join(node)
    }
}

/// The devices present now that have a node, in the kernel's order.
///
/// # Errors
/// ENOSYS where the kernel knows nothing of RDMA or speaks another version of its interface.
pub fn devices(places: &Places) -> Result<Vec<Uverbs>, Errno> {
    // Without this look every process on a machine without RDMA would make the kernel load its modules.
    let some = |path: &Path| folder::has_entries(path);
    if !some(&places.sysfs.join("class/infiniband")) && !some(&places.dev.join("infiniband")) {
        return Err(Errno::ENOSYS);
    }
    let mut found = netlink::devices(places).or_else(|_| sysfs::devices(places))?;
    found.retain(|d| folder::open(&places.node(&d.node), libc::O_PATH | libc::O_CLOEXEC).is_ok());
    Ok(found)
}

/// Whether there are devices whose kernel lets a fork's copies take pinned pages from them.
pub fn pins_across_fork(places: &Places) -> bool {
    folder::has_entries(&places.sysfs.join("class/infiniband")) && !netlink::copies_on_fork()
}

/// The device's modalias; empty where it hangs on no bus.
pub fn modalias(device: &Uverbs) -> String {
    folder::text(&device.path.join("device/modalias")).unwrap_or_default()
}
