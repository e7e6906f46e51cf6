//! GIDs and address handles.
use super::*;

/// A GID in network byte order: subnet prefix, then interface id. IPv4 stands as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct ibv_gid {
    pub raw: [u8; 16],
}
layout! { ibv_gid: 16; raw 0 }

/// The global route header as it stands in a UD receive buffer, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_grh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}
layout! { ibv_grh: 40; version_tclass_flow 0, paylen 4, next_hdr 6, hop_limit 7, sgid 8, dgid 24 }

/// Route part of an address vector.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout! { ibv_global_route: 24; dgid 0, flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22 }

/// An address vector.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout! {
    ibv_ah_attr: 32;
    grh 0, dlid 24, sl 26, src_path_bits 27, static_rate 28, is_global 29, port_num 30
}

/// An address handle.
#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
layout! { ibv_ah: 24; context 0, pd 8, handle 16 }
