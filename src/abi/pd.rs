//! Domains: protection, thread, parent and XRC domains, device memory, DMA handles.
use std::ffi::{c_int, c_void};

use super::*;

/// A protection domain.
#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout! { ibv_pd: 16; context 0, handle 8 }

/// Input of `ibv_alloc_td`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}
layout! { ibv_td_init_attr: 4; comp_mask 0 }

/// A thread domain.
#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}
layout! { ibv_td: 8; context 0 }

/// Input of `ibv_alloc_parent_domain`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
    pub pd_context: *mut c_void,
}
layout! { ibv_parent_domain_init_attr: 48; pd 0, td 8, comp_mask 16, alloc 24, free 32, pd_context 40 }

/// Input of `ibv_open_xrcd`; fd -1 makes a private domain.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}
layout! { ibv_xrcd_init_attr: 12; comp_mask 0, fd 4, oflags 8 }

/// An XRC domain.
#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}
layout! { ibv_xrcd: 8; context 0 }

/// Input of `ibv_alloc_dm`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}
layout! { ibv_alloc_dm_attr: 16; length 0, log_align_req 8, comp_mask 12 }

/// Device memory, copied to and from by the functions it carries.
#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}
layout! { ibv_dm: 32; context 0, memcpy_to_dm 8, memcpy_from_dm 16, comp_mask 24, handle 28 }

/// A DMA handle.
#[repr(C)]
pub struct ibv_dmah {
    pub context: *mut ibv_context,
}
layout! { ibv_dmah: 8; context 0 }

/// Input of `ibv_alloc_dmah`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_dmah_init_attr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}
layout! { ibv_dmah_init_attr: 12; comp_mask 0, cpu_id 4, ph 8, tph_mem_type 9 }
