//! Compiled providers of rdma-core: `load` finds and loads them, `release` tells for which release each was compiled,
//! `matching` says which devices one serves.
pub mod load;
mod matching;
mod release;

pub use matching::serve;
pub use release::layout_of;

use crate::abi::*;
use crate::kernel::discover::{self, Uverbs};
use crate::provider::Found;
use crate::provider::drivers::Driver;
use crate::provider::object::write_text;

/// A device that a compiled provider serves.
#[derive(Clone, Copy)]
pub struct Served {
    /// The provider.
    pub driver: Driver,
    /// Its object for the device.
    pub device: *mut verbs_device,
}

// SAFETY: a driver's table is static, and a device is never freed; both are used as the C ABI allows from any thread.
unsafe impl Send for Served {}

/// A device in the words of compiled providers. It lives for ever, since their devices point to it.
pub fn describe(device: &Uverbs) -> *mut verbs_sysfs_dev {
    let mut to = Box::new(verbs_sysfs_dev::zeroed());
    write_text(&mut to.sysfs_name, &device.node);
    write_text(&mut to.ibdev_name, &device.name);
    write_text(&mut to.ibdev_path, &device.path.to_string_lossy());
    write_text(&mut to.modalias, &discover::modalias(device));
    to.sysfs_cdev = device.number;
    to.node_guid = device.guid;
    to.driver_id = device.driver;
    to.node_type = device.node_type;
    to.ibdev_idx = device.index;
    to.num_ports = device.ports;
    to.abi_ver = device.abi;
    to.time_created = libc::timespec { tv_sec: device.created.0, tv_nsec: device.created.1 };
    Box::into_raw(to)
}

/// `enum ibv_transport_type` of a node type.
pub fn transport(node_type: i32) -> i32 {
    match node_type {
        IBV_NODE_CA | IBV_NODE_SWITCH | IBV_NODE_ROUTER => IBV_TRANSPORT_IB,
        IBV_NODE_RNIC => IBV_TRANSPORT_IWARP,
        IBV_NODE_USNIC => IBV_TRANSPORT_USNIC,
        IBV_NODE_USNIC_UDP => IBV_TRANSPORT_USNIC_UDP,
        IBV_NODE_UNSPECIFIED => IBV_TRANSPORT_UNSPECIFIED,
        _ => IBV_TRANSPORT_UNKNOWN,
    }
}

/// What the list shows of a device.
pub fn found(device: &Uverbs, token: usize) -> Found {
    let class = crate::sys::sysfs::root().join("class/infiniband_verbs").join(&device.node);
    Found {
        name: device.name.clone(),
        dev_name: device.node.clone(),
        dev_path: class.to_string_lossy().into_owned(),
        ibdev_path: device.path.to_string_lossy().into_owned(),
        node_type: device.node_type,
        transport_type: transport(device.node_type),
        guid: device.guid,
        index: device.index,
        token,
    }
}
