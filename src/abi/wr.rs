//! Work requests.
use std::ffi::{c_int, c_void};

use super::*;

/// One piece of registered memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
layout! { ibv_sge: 16; addr 0, length 8, lkey 12 }

/// A receive request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}
layout! { ibv_recv_wr: 32; wr_id 0, next 8, sg_list 16, num_sge 24 }

/// Target of RDMA READ and WRITE.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}
layout! { ibv_send_wr_rdma: 16; remote_addr 0, rkey 8 }

/// Target and operands of an atomic.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
layout! { ibv_send_wr_atomic: 32; remote_addr 0, compare_add 8, swap 16, rkey 24 }

/// Destination of a UD send.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_send_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
layout! { ibv_send_wr_ud: 16; ah 0, remote_qpn 8, remote_qkey 12 }

/// The part of a send request that depends on its opcode.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_wr {
    pub rdma: ibv_send_wr_rdma,
    pub atomic: ibv_send_wr_atomic,
    pub ud: ibv_send_wr_ud,
}
layout! { ibv_send_wr_wr: 32; rdma 0, atomic 0, ud 0 }

/// Destination SRQ of an XRC send.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_send_wr_xrc {
    pub remote_srqn: u32,
}
layout! { ibv_send_wr_xrc: 4; remote_srqn 0 }

/// The part of a send request that depends on the type of QP.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_qp_type {
    pub xrc: ibv_send_wr_xrc,
}
layout! { ibv_send_wr_qp_type: 4; xrc 0 }

/// A window to bind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_send_wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
layout! { ibv_send_wr_bind_mw: 48; mw 0, rkey 8, bind_info 16 }

/// Header of a segmented send.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_send_wr_tso {
    pub hdr: *mut c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
layout! { ibv_send_wr_tso: 16; hdr 0, hdr_sz 8, mss 10 }

/// The part of a send request for windows and segmentation.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_tail {
    pub bind_mw: ibv_send_wr_bind_mw,
    pub tso: ibv_send_wr_tso,
}
layout! { ibv_send_wr_tail: 48; bind_mw 0, tso 0 }

/// A send request.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    /// Network byte order; `invalidate_rkey` for SEND_WITH_INV and LOCAL_INV.
    pub imm_data: u32,
    pub wr: ibv_send_wr_wr,
    pub qp_type: ibv_send_wr_qp_type,
    pub tail: ibv_send_wr_tail,
}
layout! {
    ibv_send_wr: 128;
    wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36, wr 40, qp_type 72, tail
    80
}

/// A tagged receive to add.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_ops_wr_tm_add {
    pub recv_wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub tag: u64,
    pub mask: u64,
}
layout! { ibv_ops_wr_tm_add: 40; recv_wr_id 0, sg_list 8, num_sge 16, tag 24, mask 32 }

/// Tag-matching part of an SRQ operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_ops_wr_tm {
    pub unexpected_cnt: u32,
    pub handle: u32,
    pub add: ibv_ops_wr_tm_add,
}
layout! { ibv_ops_wr_tm: 48; unexpected_cnt 0, handle 4, add 8 }

/// An operation on a tag-matching SRQ.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_ops_wr {
    pub wr_id: u64,
    pub next: *mut ibv_ops_wr,
    pub opcode: u32,
    pub flags: c_int,
    pub tm: ibv_ops_wr_tm,
}
layout! { ibv_ops_wr: 72; wr_id 0, next 8, opcode 16, flags 20, tm 24 }

/// A piece of memory that needs no key: inline data.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: usize,
}
layout! { ibv_data_buf: 16; addr 0, length 8 }
