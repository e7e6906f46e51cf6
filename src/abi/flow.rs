//! Flow steering and counters.
use std::ffi::c_void;

use super::*;

/// The kernel's ESP action (`rdma/ib_user_ioctl_verbs.h`); only passed on.
#[repr(C)]
pub struct ib_uverbs_flow_action_esp {
    _opaque: [u8; 0],
}

/// The kernel's ESP encapsulation; only passed on.
#[repr(C)]
pub struct ib_uverbs_flow_action_esp_encap {
    _opaque: [u8; 0],
}

/// Fields matched: eth, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_eth_filter {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub ether_type: u16,
    pub vlan_tag: u16,
}
layout! { ibv_flow_eth_filter: 16; dst_mac 0, src_mac 6, ether_type 12, vlan_tag 14 }

/// Flow spec: eth.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_eth {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_eth_filter,
    pub mask: ibv_flow_eth_filter,
}
layout! { ibv_flow_spec_eth: 40; r#type 0, size 4, val 6, mask 22 }

/// Fields matched: ipv4, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_ipv4_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
}
layout! { ibv_flow_ipv4_filter: 8; src_ip 0, dst_ip 4 }

/// Flow spec: ipv4.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_ipv4 {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_ipv4_filter,
    pub mask: ibv_flow_ipv4_filter,
}
layout! { ibv_flow_spec_ipv4: 24; r#type 0, size 4, val 8, mask 16 }

/// Fields matched: ipv4_ext, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_ipv4_ext_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}
layout! { ibv_flow_ipv4_ext_filter: 12; src_ip 0, dst_ip 4, proto 8, tos 9, ttl 10, flags 11 }

/// Flow spec: ipv4 ext.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_ipv4_ext {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_ipv4_ext_filter,
    pub mask: ibv_flow_ipv4_ext_filter,
}
layout! { ibv_flow_spec_ipv4_ext: 32; r#type 0, size 4, val 8, mask 20 }

/// Fields matched: ipv6, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_ipv6_filter {
    pub src_ip: [u8; 16],
    pub dst_ip: [u8; 16],
    pub flow_label: u32,
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}
layout! {
    ibv_flow_ipv6_filter: 40;
    src_ip 0, dst_ip 16, flow_label 32, next_hdr 36, traffic_class 37, hop_limit 38
}

/// Flow spec: ipv6.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_ipv6 {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_ipv6_filter,
    pub mask: ibv_flow_ipv6_filter,
}
layout! { ibv_flow_spec_ipv6: 88; r#type 0, size 4, val 8, mask 48 }

/// Fields matched: esp, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_esp_filter {
    pub spi: u32,
    pub seq: u32,
}
layout! { ibv_flow_esp_filter: 8; spi 0, seq 4 }

/// Flow spec: esp.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_esp {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_esp_filter,
    pub mask: ibv_flow_esp_filter,
}
layout! { ibv_flow_spec_esp: 24; r#type 0, size 4, val 8, mask 16 }

/// Fields matched: tcp_udp, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_tcp_udp_filter {
    pub dst_port: u16,
    pub src_port: u16,
}
layout! { ibv_flow_tcp_udp_filter: 4; dst_port 0, src_port 2 }

/// Flow spec: tcp udp.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_tcp_udp {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_tcp_udp_filter,
    pub mask: ibv_flow_tcp_udp_filter,
}
layout! { ibv_flow_spec_tcp_udp: 16; r#type 0, size 4, val 6, mask 10 }

/// Fields matched: gre, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_gre_filter {
    pub c_ks_res0_ver: u16,
    pub protocol: u16,
    pub key: u32,
}
layout! { ibv_flow_gre_filter: 8; c_ks_res0_ver 0, protocol 2, key 4 }

/// Flow spec: gre.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_gre {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_gre_filter,
    pub mask: ibv_flow_gre_filter,
}
layout! { ibv_flow_spec_gre: 24; r#type 0, size 4, val 8, mask 16 }

/// Fields matched: mpls, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_mpls_filter {
    pub label: u32,
}
layout! { ibv_flow_mpls_filter: 4; label 0 }

/// Flow spec: mpls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_mpls {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_mpls_filter,
    pub mask: ibv_flow_mpls_filter,
}
layout! { ibv_flow_spec_mpls: 16; r#type 0, size 4, val 8, mask 12 }

/// Fields matched: tunnel, network byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_tunnel_filter {
    pub tunnel_id: u32,
}
layout! { ibv_flow_tunnel_filter: 4; tunnel_id 0 }

/// Flow spec: tunnel.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_tunnel {
    pub r#type: u32,
    pub size: u16,
    pub val: ibv_flow_tunnel_filter,
    pub mask: ibv_flow_tunnel_filter,
}
layout! { ibv_flow_spec_tunnel: 16; r#type 0, size 4, val 8, mask 12 }

/// Flow spec: action tag.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_action_tag {
    pub r#type: u32,
    pub size: u16,
    pub tag_id: u32,
}
layout! { ibv_flow_spec_action_tag: 12; r#type 0, size 4, tag_id 8 }

/// Flow spec: action drop.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_action_drop {
    pub r#type: u32,
    pub size: u16,
}
layout! { ibv_flow_spec_action_drop: 8; r#type 0, size 4 }

/// Flow spec: action handle.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_action_handle {
    pub r#type: u32,
    pub size: u16,
    pub action: *const ibv_flow_action,
}
layout! { ibv_flow_spec_action_handle: 16; r#type 0, size 4, action 8 }

/// Flow spec: counter action.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_counter_action {
    pub r#type: u32,
    pub size: u16,
    pub counters: *mut ibv_counters,
}
layout! { ibv_flow_spec_counter_action: 16; r#type 0, size 4, counters 8 }

/// Head of every spec.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_spec_hdr {
    pub r#type: u32,
    pub size: u16,
}
layout! { ibv_flow_spec_hdr: 8; r#type 0, size 4 }

/// The specs by type.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_flow_spec_body {
    pub hdr: ibv_flow_spec_hdr,
    pub eth: ibv_flow_spec_eth,
    pub ipv4: ibv_flow_spec_ipv4,
    pub tcp_udp: ibv_flow_spec_tcp_udp,
    pub ipv4_ext: ibv_flow_spec_ipv4_ext,
    pub ipv6: ibv_flow_spec_ipv6,
    pub esp: ibv_flow_spec_esp,
    pub tunnel: ibv_flow_spec_tunnel,
    pub gre: ibv_flow_spec_gre,
    pub mpls: ibv_flow_spec_mpls,
    pub flow_tag: ibv_flow_spec_action_tag,
    pub drop: ibv_flow_spec_action_drop,
    pub handle: ibv_flow_spec_action_handle,
    pub flow_count: ibv_flow_spec_counter_action,
}
layout! {
    ibv_flow_spec_body: 88;
    hdr 0, eth 0, ipv4 0, tcp_udp 0, ipv4_ext 0, ipv6 0, esp 0, tunnel 0, gre 0, mpls 0, flow_tag 0, drop 0,
    handle 0, flow_count 0
}

/// One match or action of a flow rule.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_flow_spec {
    pub body: ibv_flow_spec_body,
}
layout! { ibv_flow_spec: 88; body 0 }

/// Head of a flow rule; its specs follow in memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub r#type: u32,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}
layout! {
    ibv_flow_attr: 20;
    comp_mask 0, r#type 4, size 8, priority 10, num_of_specs 12, port 13, flags 16
}

/// A flow rule in force.
#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}
layout! { ibv_flow: 24; comp_mask 0, context 8, handle 16 }

/// A flow action.
#[repr(C)]
pub struct ibv_flow_action {
    pub context: *mut ibv_context,
}
layout! { ibv_flow_action: 8; context 0 }

/// Input of the ESP flow action.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_flow_action_esp_attr {
    pub esp_attr: *mut ib_uverbs_flow_action_esp,
    pub keymat_proto: u32,
    pub keymat_len: u16,
    pub keymat_ptr: *mut c_void,
    pub replay_proto: u32,
    pub replay_len: u16,
    pub replay_ptr: *mut c_void,
    pub esp_encap: *mut ib_uverbs_flow_action_esp_encap,
    pub comp_mask: u32,
    pub esn: u32,
}
layout! {
    ibv_flow_action_esp_attr: 56;
    esp_attr 0, keymat_proto 8, keymat_len 12, keymat_ptr 16, replay_proto 24, replay_len 28, replay_ptr 32,
    esp_encap 40, comp_mask 48, esn 52
}

/// Input of `ibv_create_counters`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}
layout! { ibv_counters_init_attr: 4; comp_mask 0 }

/// A set of flow counters.
#[repr(C)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}
layout! { ibv_counters: 8; context 0 }

/// Input of `ibv_attach_counters_point_flow`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: u32,
    pub index: u32,
    pub comp_mask: u32,
}
layout! { ibv_counter_attach_attr: 12; counter_desc 0, index 4, comp_mask 8 }
