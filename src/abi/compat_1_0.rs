//! The structures of IBVERBS_1.0, each a wrapper around today's object.
use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::*;

/// A device as a program of 2006 sees it.
#[repr(C)]
pub struct ibv_device_1_0 {
    pub obsolete_sysfs_dev: *mut c_void,
    pub obsolete_sysfs_ibdev: *mut c_void,
    pub real_device: *mut ibv_device,
    pub _ops: [*mut c_void; 2],
}
layout! { ibv_device_1_0: 40; obsolete_sysfs_dev 0, obsolete_sysfs_ibdev 8, real_device 16, _ops 24 }

/// The functions that inline verbs of 1.0 call; the library fills only the typed ones.
#[repr(C)]
pub struct ibv_context_ops_1_0 {
    pub unused_before_poll: [*mut c_void; 7],
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq_1_0, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq_1_0, c_int) -> c_int>,
    pub unused_before_srq: [*mut c_void; 7],
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq_1_0, *mut ibv_recv_wr_1_0, *mut *mut ibv_recv_wr_1_0) -> c_int,
    >,
    pub unused_before_post: [*mut c_void; 4],
    pub post_send: Option<
        unsafe extern "C" fn(*mut ibv_qp_1_0, *mut ibv_send_wr_1_0, *mut *mut ibv_send_wr_1_0) -> c_int,
    >,
    pub post_recv: Option<
        unsafe extern "C" fn(*mut ibv_qp_1_0, *mut ibv_recv_wr_1_0, *mut *mut ibv_recv_wr_1_0) -> c_int,
    >,
    pub unused_after_post: [*mut c_void; 4],
}
layout! {
    ibv_context_ops_1_0: 216;
    poll_cq 56, req_notify_cq 64, post_srq_recv 128, post_send 168, post_recv 176, unused_after_post 184
}

/// An open device.
#[repr(C)]
pub struct ibv_context_1_0 {
    pub device: *mut ibv_device_1_0,
    pub ops: ibv_context_ops_1_0,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub real_context: *mut ibv_context,
}
layout! {
    ibv_context_1_0: 248;
    device 0, ops 8, cmd_fd 224, async_fd 228, num_comp_vectors 232, real_context 240
}

/// A protection domain.
#[repr(C)]
pub struct ibv_pd_1_0 {
    pub context: *mut ibv_context_1_0,
    pub handle: u32,
    pub real_pd: *mut ibv_pd,
}
layout! { ibv_pd_1_0: 24; context 0, handle 8, real_pd 16 }

/// A memory region.
#[repr(C)]
pub struct ibv_mr_1_0 {
    pub context: *mut ibv_context_1_0,
    pub pd: *mut ibv_pd_1_0,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
    pub real_mr: *mut ibv_mr,
}
layout! { ibv_mr_1_0: 40; context 0, pd 8, handle 16, lkey 20, rkey 24, real_mr 32 }

/// A shared receive queue.
#[repr(C)]
pub struct ibv_srq_1_0 {
    pub context: *mut ibv_context_1_0,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd_1_0,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub real_srq: *mut ibv_srq,
}
layout! {
    x86_64 ibv_srq_1_0: 136;
    context 0, srq_context 8, pd 16, handle 24, mutex 32, cond 72, events_completed 120, real_srq 128
}

/// Input of `ibv_create_qp`.
#[repr(C)]
pub struct ibv_qp_init_attr_1_0 {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq_1_0,
    pub recv_cq: *mut ibv_cq_1_0,
    pub srq: *mut ibv_srq_1_0,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}
layout! {
    ibv_qp_init_attr_1_0: 64;
    qp_context 0, send_cq 8, recv_cq 16, srq 24, cap 32, qp_type 52, sq_sig_all 56
}

/// Destination of a UD send.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_ud_1_0 {
    pub ah: *mut ibv_ah_1_0,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
layout! { ibv_send_wr_ud_1_0: 16; ah 0, remote_qpn 8, remote_qkey 12 }

/// The part of a send request that depends on its opcode.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_send_wr_wr_1_0 {
    pub rdma: ibv_send_wr_rdma,
    pub atomic: ibv_send_wr_atomic,
    pub ud: ibv_send_wr_ud_1_0,
}

/// A send request; `next` stands before `wr_id`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_1_0 {
    pub next: *mut ibv_send_wr_1_0,
    pub wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    pub imm_data: u32,
    pub wr: ibv_send_wr_wr_1_0,
}
layout! {
    ibv_send_wr_1_0: 72;
    next 0, wr_id 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36, wr 40
}

/// A receive request; `next` stands before `wr_id`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_recv_wr_1_0 {
    pub next: *mut ibv_recv_wr_1_0,
    pub wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}
layout! { ibv_recv_wr_1_0: 32; next 0, wr_id 8, sg_list 16, num_sge 24 }

/// A queue pair.
#[repr(C)]
pub struct ibv_qp_1_0 {
    pub context: *mut ibv_context_1_0,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd_1_0,
    pub send_cq: *mut ibv_cq_1_0,
    pub recv_cq: *mut ibv_cq_1_0,
    pub srq: *mut ibv_srq_1_0,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub real_qp: *mut ibv_qp,
}
layout! {
    x86_64 ibv_qp_1_0: 168;
    context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48, qp_num 52, state 56, qp_type 60,
    mutex 64, cond 104, events_completed 152, real_qp 160
}

/// A completion queue.
#[repr(C)]
pub struct ibv_cq_1_0 {
    pub context: *mut ibv_context_1_0,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub real_cq: *mut ibv_cq,
}
layout! {
    x86_64 ibv_cq_1_0: 128;
    context 0, cq_context 8, handle 16, cqe 20, mutex 24, cond 64, comp_events_completed 112,
    async_events_completed 116, real_cq 120
}

/// An address handle.
#[repr(C)]
pub struct ibv_ah_1_0 {
    pub context: *mut ibv_context_1_0,
    pub pd: *mut ibv_pd_1_0,
    pub handle: u32,
    pub real_ah: *mut ibv_ah,
}
layout! { ibv_ah_1_0: 32; context 0, pd 8, handle 16, real_ah 24 }
