//! Completion queues, channels, completions and completion counters.
use std::ffi::{c_int, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::*;

/// A channel of completion events.
#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}
layout! { ibv_comp_channel: 16; context 0, fd 8, refcnt 12 }

/// A completion queue.
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
layout! {
    x86_64 ibv_cq: 128;
    context 0, channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72, comp_events_completed 120,
    async_events_completed 124
}

/// Input of `ibv_create_cq_ex`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
layout! {
    ibv_cq_init_attr_ex: 56;
    cqe 0, cq_context 8, channel 16, comp_vector 24, wc_flags 32, comp_mask 40, flags 44, parent_domain 48
}

/// A completion queue with the extended polling functions; begins as an `ibv_cq`.
#[repr(C)]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
}
layout! {
    x86_64 ibv_cq_ex: 288;
    context 0, channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72, comp_events_completed 120,
    async_events_completed 124, comp_mask 128, status 132, wr_id 136, start_poll 144, next_poll 152,
    end_poll 160, read_opcode 168, read_vendor_err 176, read_byte_len 184, read_imm_data 192, read_qp_num
    200, read_src_qp 208, read_wc_flags 216, read_slid 224, read_sl 232, read_dlid_path_bits 240,
    read_completion_ts 248, read_cvlan 256, read_flow_tag 264, read_tm_info 272,
    read_completion_wallclock_ns 280
}

/// Input of `ibv_start_poll`; the mask must be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}
layout! { ibv_poll_cq_attr: 4; comp_mask 0 }

/// A work completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Network byte order with `IBV_WC_WITH_IMM`; `invalidated_rkey` with `IBV_WC_WITH_INV`.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
layout! {
    ibv_wc: 48;
    wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, imm_data 24, qp_num 28, src_qp 32, wc_flags
    36, pkey_index 40, slid 42, sl 44, dlid_path_bits 45
}

/// Tag of a tag-matching completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub r#priv: u32,
}
layout! { ibv_wc_tm_info: 16; tag 0, r#priv 8 }

/// Moderation of completion events; the period is in microseconds.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}
layout! { ibv_moderate_cq: 4; cq_count 0, cq_period 2 }

/// Input of `ibv_modify_cq`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}
layout! { ibv_modify_cq_attr: 8; attr_mask 0, moderate 4 }

/// A completion counter.
#[repr(C)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout! { ibv_comp_cntr: 16; context 0, handle 8 }

/// Answer of `ibv_query_comp_cntr_caps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}
layout! { ibv_comp_cntr_caps: 16; max_value 0, max_counters 8, supported_qp_attach_ops 12 }

/// Input of `ibv_create_comp_cntr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub r#type: u32,
    pub flags: u32,
}
layout! { ibv_comp_cntr_init_attr: 12; comp_mask 0, r#type 4, flags 8 }

/// Input of `ibv_qp_attach_comp_cntr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}
layout! { ibv_qp_attach_comp_cntr_attr: 8; comp_mask 0, op_mask 4 }
