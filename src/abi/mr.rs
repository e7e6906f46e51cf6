//! Memory regions and windows.
use std::ffi::{c_int, c_void};

use super::*;

/// A memory region; always the head of a `verbs_mr`.
#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout! { ibv_mr: 48; context 0, pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40 }

/// Input of `ibv_reg_mr_ex`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    pub buf: *mut ibv_buf,
}
layout! {
    ibv_mr_init_attr: 72;
    length 0, access 8, comp_mask 16, iova 24, addr 32, fd 40, fd_offset 48, dmah 56, buf 64
}

/// A memory window.
#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub r#type: u32,
}
layout! { ibv_mw: 32; context 0, pd 8, rkey 16, handle 20, r#type 24 }

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: u32,
}
layout! { ibv_mw_bind_info: 32; mr 0, addr 8, length 16, mw_access_flags 24 }

/// Input of `ibv_bind_mw`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: u32,
    pub bind_info: ibv_mw_bind_info,
}
layout! { ibv_mw_bind: 48; wr_id 0, send_flags 8, bind_info 16 }
