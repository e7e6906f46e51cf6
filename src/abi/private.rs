//! What providers share with the library: private objects around the public ones, and registration.
use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::atomic::AtomicI32,
};

use libc::{pthread_mutex_t, timespec};

use super::*;

/// Link of a doubly linked list; an entry that is in no list points at itself or is zero.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct list_node {
    pub next: *mut list_node,
    pub prev: *mut list_node,
}
layout! { list_node: 16; next 0, prev 8 }

/// What a provider matches devices by; `kind` 0 ends a table, 1 is PCI, 2 a modalias pattern, 3 a driver id.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct verbs_match_ent {
    pub driver_data: *mut c_void,
    /// `const char *modalias`, or the driver id in its low 32 bits.
    pub u: *const c_char,
    pub vendor: u16,
    pub device: u16,
    pub kind: u8,
}
layout! { verbs_match_ent: 24; driver_data 0, u 8, vendor 16, device 18, kind 20 }

/// A provider: what it matches and how it makes devices and contexts.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct verbs_device_ops {
    pub name: *const c_char,
    pub match_min_abi_version: u32,
    pub match_max_abi_version: u32,
    pub match_table: *const verbs_match_ent,
    pub static_providers: *const *const verbs_device_ops,
    pub match_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> bool>,
    /// Owns the descriptor, also on failure.
    pub alloc_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut verbs_context>,
    pub import_context: Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> *mut verbs_context>,
    pub alloc_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> *mut verbs_device>,
    pub uninit_device: Option<unsafe extern "C" fn(*mut verbs_device)>,
}
layout! {
    verbs_device_ops: 72;
    name 0, match_min_abi_version 8, match_max_abi_version 12, match_table 16, static_providers 24,
    match_device 32, alloc_context 40, import_context 48, alloc_device 56, uninit_device 64
}

/// A uverbs device as found by netlink or in sysfs.
#[repr(C)]
pub struct verbs_sysfs_dev {
    pub entry: list_node,
    pub provider_data: *mut c_void,
    pub r#match: *const verbs_match_ent,
    pub flags: c_uint,
    pub sysfs_name: [c_char; 64],
    pub sysfs_cdev: u64,
    pub ibdev_name: [c_char; 64],
    pub ibdev_path: [c_char; 256],
    pub modalias: [c_char; 512],
    pub node_guid: u64,
    pub driver_id: u32,
    pub node_type: c_int,
    pub ibdev_idx: c_int,
    pub num_ports: u32,
    pub abi_ver: u32,
    pub time_created: timespec,
}
layout! {
    verbs_sysfs_dev: 992;
    entry 0, provider_data 16, r#match 24, flags 32, sysfs_name 36, sysfs_cdev 104, ibdev_name 112, ibdev_path 176,
    modalias 432, node_guid 944, driver_id 952, node_type 956, ibdev_idx 960, num_ports 964, abi_ver 968, time_created 976
}

/// The library's device; `ibv_device *` points to its first field.
#[repr(C)]
pub struct verbs_device {
    pub device: ibv_device,
    pub ops: *const verbs_device_ops,
    pub refcount: AtomicI32,
    pub entry: list_node,
    pub sysfs: *mut verbs_sysfs_dev,
    pub core_support: u64,
}
layout! { verbs_device: 712; device 0, ops 664, refcount 672, entry 680, sysfs 696, core_support 704 }

/// Behind `verbs_context.priv`: the provider's functions and what the kernel of this context lacks.
#[repr(C)]
pub struct verbs_ex_private {
    /// Bit sets over objects and methods whose ioctl the kernel does not know.
    pub unsupported_ioctls: [u64; 2],
    pub driver_id: u32,
    pub use_ioctl_write: bool,
    pub ops: verbs_context_ops,
    pub imported: bool,
}
layout! { verbs_ex_private: 776; unsupported_ioctls 0, driver_id 16, use_ioctl_write 20, ops 24, imported 768 }

/// A queue pair of the library; `ibv_qp *` and `ibv_qp_ex *` point to its first field.
#[repr(C)]
pub struct verbs_qp {
    /// Its `qp_base` is the `ibv_qp`.
    pub qp_ex: ibv_qp_ex,
    pub comp_mask: u32,
    pub xrcd: *mut verbs_xrcd,
}
layout! { x86_64 verbs_qp: 376; qp_ex 0, comp_mask 360, xrcd 368 }

consts! {
    /// `comp_mask` of a `verbs_qp`: which tail fields are valid, and whether `qp_ex` may be used.
    u32;
    VERBS_QP_XRCD = 1 << 0;
    VERBS_QP_EX = 1 << 1;
}

/// A completion queue of the library; `ibv_cq *` and `ibv_cq_ex *` point to its first field.
#[repr(C)]
pub struct verbs_cq {
    pub cq_ex: ibv_cq_ex,
}
layout! { x86_64 verbs_cq: 288; cq_ex 0 }

/// A memory region of the library; every `ibv_mr *` points to one.
#[repr(C)]
pub struct verbs_mr {
    pub ibv_mr: ibv_mr,
    pub mr_type: u32,
    pub access: c_int,
}
layout! { verbs_mr: 56; ibv_mr 0, mr_type 48, access 52 }

consts! {
    /// `mr_type` of a `verbs_mr`.
    u32;
    IBV_MR_TYPE_MR = 0;
    IBV_MR_TYPE_NULL_MR = 1;
    IBV_MR_TYPE_IMPORTED_MR = 2;
    IBV_MR_TYPE_DMABUF_MR = 3;
}

/// A shared receive queue of the library.
#[repr(C)]
pub struct verbs_srq {
    pub srq: ibv_srq,
    pub srq_type: u32,
    pub xrcd: *mut verbs_xrcd,
    pub cq: *mut ibv_cq,
    pub srq_num: u32,
}
layout! { x86_64 verbs_srq: 160; srq 0, srq_type 128, xrcd 136, cq 144, srq_num 152 }

/// An XRC domain of the library.
#[repr(C)]
pub struct verbs_xrcd {
    pub xrcd: ibv_xrcd,
    pub comp_mask: u32,
    pub handle: u32,
}
layout! { verbs_xrcd: 16; xrcd 0, comp_mask 8, handle 12 }

/// Device memory of the library.
#[repr(C)]
pub struct verbs_dm {
    pub dm: ibv_dm,
    pub handle: u32,
}
layout! { verbs_dm: 40; dm 0, handle 32 }

/// A DMA handle of the library.
#[repr(C)]
pub struct verbs_dmah {
    pub dmah: ibv_dmah,
    pub handle: u32,
}
layout! { verbs_dmah: 16; dmah 0, handle 8 }

/// Flow counters of the library.
#[repr(C)]
pub struct verbs_counters {
    pub counters: ibv_counters,
    pub handle: u32,
}
layout! { verbs_counters: 16; counters 0, handle 8 }

/// A flow action of the library.
#[repr(C)]
pub struct verbs_flow_action {
    pub action: ibv_flow_action,
    pub handle: u32,
    pub r#type: u32,
}
layout! { verbs_flow_action: 16; action 0, handle 8, r#type 12 }

/// What `ibv_alloc_buf` gives; opaque to applications.
#[repr(C)]
pub struct ibv_buf {
    pub addr: *mut c_void,
    pub size: usize,
    pub pd: *mut ibv_pd,
    pub dmabuf_fd: c_int,
}
layout! { ibv_buf: 32; addr 0, size 8, pd 16, dmabuf_fd 24 }

/// State behind `ibv_context.abi_compat` of contexts without an extension.
#[repr(C)]
pub struct ibv_abi_compat_v2 {
    pub channel: ibv_comp_channel,
    pub in_use: pthread_mutex_t,
}
layout! { x86_64 ibv_abi_compat_v2: 56; channel 0, in_use 16 }

/// One attribute of an ioctl command (`rdma/rdma_user_ioctl.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ib_uverbs_attr {
    pub attr_id: u16,
    pub len: u16,
    pub flags: u16,
    pub attr_data: u16,
    pub data: u64,
}
layout! { ib_uverbs_attr: 16; attr_id 0, len 2, flags 4, attr_data 6, data 8 }

/// Head of an ioctl command; the attributes follow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ib_uverbs_ioctl_hdr {
    pub length: u16,
    pub object_id: u16,
    pub method_id: u16,
    pub num_attrs: u16,
    pub reserved1: u64,
    pub driver_id: u32,
    pub reserved2: u32,
}
layout! {
    ib_uverbs_ioctl_hdr: 24;
    length 0, object_id 2, method_id 4, num_attrs 6, reserved1 8, driver_id 16, reserved2 20
}

/// A command being built by a provider, linked to the library's part of it.
#[repr(C)]
pub struct ibv_command_buffer {
    pub next: *mut ibv_command_buffer,
    pub next_attr: *mut ib_uverbs_attr,
    pub last_attr: *mut ib_uverbs_attr,
    pub uhw_in_idx: u8,
    pub uhw_out_idx: u8,
    pub uhw_in_headroom_dwords: u8,
    pub uhw_out_headroom_dwords: u8,
    /// Bit 0 `buffer_error`, 1 `fallback_require_ex`, 2 `fallback_ioctl_only`.
    pub bits: u8,
    pub hdr: ib_uverbs_ioctl_hdr,
}
layout! {
    ibv_command_buffer: 56;
    next 0, next_attr 8, last_attr 16, uhw_in_idx 24, uhw_out_idx 25, uhw_in_headroom_dwords 26,
    uhw_out_headroom_dwords 27, bits 28, hdr 32
}
