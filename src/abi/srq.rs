//! Shared receive queues.
use std::ffi::c_void;

use libc::{pthread_cond_t, pthread_mutex_t};

use super::*;

/// A shared receive queue.
#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
layout! {
    x86_64 ibv_srq: 128;
    context 0, srq_context 8, pd 16, handle 24, mutex 32, cond 72, events_completed 120
}

/// Limits of a shared receive queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
layout! { ibv_srq_attr: 12; max_wr 0, max_sge 4, srq_limit 8 }

/// Input of `ibv_create_srq`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}
layout! { ibv_srq_init_attr: 24; srq_context 0, attr 8 }

/// Tag-matching limits asked of an SRQ.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_tm_cap {
    pub max_num_tags: u32,
    pub max_ops: u32,
}
layout! { ibv_tm_cap: 8; max_num_tags 0, max_ops 4 }

/// Input of `ibv_create_srq_ex`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: ibv_tm_cap,
}
layout! {
    ibv_srq_init_attr_ex: 64;
    srq_context 0, attr 8, comp_mask 20, srq_type 24, pd 32, xrcd 40, cq 48, tm_cap 56
}
