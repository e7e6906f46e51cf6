//! The kernel's structures that the public marshalling functions read and write.
use std::ffi::c_int;

use super::*;

/// The kernel's global route (`rdma/ib_user_verbs.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ib_uverbs_global_route {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reserved: u8,
}
layout! {
    ib_uverbs_global_route: 24;
    dgid 0, flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22, reserved 23
}

/// The kernel's address vector.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ib_uverbs_ah_attr {
    pub grh: ib_uverbs_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
    pub reserved: u8,
}
layout! {
    ib_uverbs_ah_attr: 32;
    grh 0, dlid 24, sl 26, src_path_bits 27, static_rate 28, is_global 29, port_num 30, reserved 31
}

/// The kernel's QP attributes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ib_uverbs_qp_attr {
    pub qp_attr_mask: u32,
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub ah_attr: ib_uverbs_ah_attr,
    pub alt_ah_attr: ib_uverbs_ah_attr,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub reserved: [u8; 5],
}
layout! {
    ib_uverbs_qp_attr: 144;
    qp_attr_mask 0, qp_state 4, cur_qp_state 8, path_mtu 12, path_mig_state 16, qkey 20, rq_psn 24, sq_psn
    28, dest_qp_num 32, qp_access_flags 36, ah_attr 40, alt_ah_attr 72, max_send_wr 104, max_recv_wr 108,
    max_send_sge 112, max_recv_sge 116, max_inline_data 120, pkey_index 124, alt_pkey_index 126,
    en_sqd_async_notify 128, sq_draining 129, max_rd_atomic 130, max_dest_rd_atomic 131, min_rnr_timer 132,
    port_num 133, timeout 134, retry_cnt 135, rnr_retry 136, alt_port_num 137, alt_timeout 138, reserved 139
}

/// The kernel's path record (`rdma/ib_user_sa.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ib_user_path_rec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: u32,
    pub flow_label: u32,
    pub reversible: u32,
    pub mtu: u32,
    pub pkey: u16,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub numb_path: u8,
    pub sl: u8,
    pub mtu_selector: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout! {
    ib_user_path_rec: 64;
    dgid 0, sgid 16, dlid 32, slid 34, raw_traffic 36, flow_label 40, reversible 44, mtu 48, pkey 52,
    hop_limit 54, traffic_class 55, numb_path 56, sl 57, mtu_selector 58, rate_selector 59, rate 60,
    packet_life_time_selector 61, packet_life_time 62, preference 63
}

/// A path record of `infiniband/sa.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout! {
    ibv_sa_path_rec: 64;
    dgid 0, sgid 16, dlid 32, slid 34, raw_traffic 36, flow_label 40, hop_limit 44, traffic_class 45,
    reversible 48, numb_path 52, pkey 54, sl 56, mtu_selector 57, mtu 58, rate_selector 59, rate 60,
    packet_life_time_selector 61, packet_life_time 62, preference 63
}
