//! Receive work queues and their tables.
use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::*;

/// A receive work queue.
#[repr(C)]
pub struct ibv_wq {
    pub context: *mut ibv_context,
    pub wq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: u32,
    pub wq_type: u32,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub comp_mask: u32,
}
layout! {
    x86_64 ibv_wq: 152;
    context 0, wq_context 8, pd 16, cq 24, wq_num 32, handle 36, state 40, wq_type 44, post_recv 48, mutex
    56, cond 96, events_completed 144, comp_mask 148
}

/// Input of `ibv_create_wq`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut c_void,
    pub wq_type: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}
layout! {
    ibv_wq_init_attr: 48;
    wq_context 0, wq_type 8, max_wr 12, max_sge 16, pd 24, cq 32, comp_mask 40, create_flags 44
}

/// Input of `ibv_modify_wq`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: u32,
    pub curr_wq_state: u32,
    pub flags: u32,
    pub flags_mask: u32,
}
layout! { ibv_wq_attr: 20; attr_mask 0, wq_state 4, curr_wq_state 8, flags 12, flags_mask 16 }

/// A table of receive work queues.
#[repr(C)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: c_int,
    pub ind_tbl_num: c_int,
    pub comp_mask: u32,
}
layout! { ibv_rwq_ind_table: 24; context 0, ind_tbl_handle 8, ind_tbl_num 12, comp_mask 16 }

/// Input of `ibv_create_rwq_ind_table`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}
layout! { ibv_rwq_ind_table_init_attr: 24; log_ind_tbl_size 0, ind_tbl 8, comp_mask 16 }
