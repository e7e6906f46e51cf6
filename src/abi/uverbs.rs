//! Requests and responses of uverbs commands (`rdma/ib_user_verbs.h`). A request of a provider's begins with
//! `ib_uverbs_cmd_hdr`, of an extended command with `ib_uverbs_ex_cmd_hdr` behind it; its own tail follows.
use super::*;

macro_rules! uapi {
    ($($(#[$meta:meta])* $name:ident $size:literal { $($field:ident: $t:ty),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub struct $name { $(pub $field: $t),* }
        layout! { $name: $size; }
    )* };
}

uapi! {
    /// Head of every written command; sizes in words of 4 bytes.
    ib_uverbs_cmd_hdr 8 { command: u32, in_words: u16, out_words: u16 }
    /// Behind it in extended commands; sizes of the provider's tails in words of 8 bytes.
    ib_uverbs_ex_cmd_hdr 16 { response: u64, provider_in_words: u16, provider_out_words: u16, reserved: u32 }

    ib_uverbs_get_context 8 { response: u64 }
    ib_uverbs_get_context_resp 8 { async_fd: u32, num_comp_vectors: u32 }

    ib_uverbs_query_device 8 { response: u64 }
    ib_uverbs_query_device_resp 176 {
        fw_ver: u64, node_guid: u64, sys_image_guid: u64, max_mr_size: u64, page_size_cap: u64, vendor_id: u32,
        vendor_part_id: u32, hw_ver: u32, max_qp: u32, max_qp_wr: u32, device_cap_flags: u32, max_sge: u32,
        max_sge_rd: u32, max_cq: u32, max_cqe: u32, max_mr: u32, max_pd: u32, max_qp_rd_atom: u32,
        max_ee_rd_atom: u32, max_res_rd_atom: u32, max_qp_init_rd_atom: u32, max_ee_init_rd_atom: u32,
        atomic_cap: u32, max_ee: u32, max_rdd: u32, max_mw: u32, max_raw_ipv6_qp: u32, max_raw_ethy_qp: u32,
        max_mcast_grp: u32, max_mcast_qp_attach: u32, max_total_mcast_qp_attach: u32, max_ah: u32, max_fmr: u32,
        max_map_per_fmr: u32, max_srq: u32, max_srq_wr: u32, max_srq_sge: u32, max_pkeys: u16,
        local_ca_ack_delay: u8, phys_port_cnt: u8, reserved: [u8; 4],
    }
    ib_uverbs_ex_query_device 8 { comp_mask: u32, reserved: u32 }
    ib_uverbs_ex_query_device_resp 304 {
        base: ib_uverbs_query_device_resp, comp_mask: u32, response_length: u32, odp_general_caps: u64,
        rc_odp_caps: u32, uc_odp_caps: u32, ud_odp_caps: u32, odp_reserved: u32, timestamp_mask: u64,
        hca_core_clock: u64, device_cap_flags_ex: u64, rss_supported_qpts: u32,
        max_rwq_indirection_tables: u32, max_rwq_indirection_table_size: u32, rss_reserved: u32,
        max_wq_type_rq: u32, raw_packet_caps: u32, tm_max_rndv_hdr_size: u32, tm_max_num_tags: u32,
        tm_flags: u32, tm_max_ops: u32, tm_max_sge: u32, tm_reserved: u32, max_cq_moderation_count: u16,
        max_cq_moderation_period: u16, cq_reserved: u32, max_dm_size: u64, xrc_odp_caps: u32, reserved: u32,
    }
    ib_uverbs_query_port 16 { response: u64, port_num: u8, reserved: [u8; 7] }
    ib_uverbs_query_port_resp 40 {
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32, gid_tbl_len: u32,
        pkey_tbl_len: u16, lid: u16, sm_lid: u16, state: u8, max_mtu: u8, active_mtu: u8, lmc: u8,
        max_vl_num: u8, sm_sl: u8, subnet_timeout: u8, init_type_reply: u8, active_width: u8, active_speed: u8,
        phys_state: u8, link_layer: u8, flags: u8, reserved: u8,
    }
    ib_uverbs_query_port_resp_ex 48 {
        legacy_resp: ib_uverbs_query_port_resp, port_cap_flags2: u16, reserved: [u8; 2], active_speed_ex: u32,
    }

    ib_uverbs_alloc_pd 8 { response: u64 }
    ib_uverbs_alloc_pd_resp 4 { pd_handle: u32 }
    ib_uverbs_open_xrcd 16 { response: u64, fd: i32, oflags: u32 }
    ib_uverbs_open_xrcd_resp 4 { xrcd_handle: u32 }
    ib_uverbs_reg_mr 40 {
        response: u64, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32,
    }
    ib_uverbs_reg_mr_resp 12 { mr_handle: u32, lkey: u32, rkey: u32 }
    ib_uverbs_rereg_mr 48 {
        response: u64, mr_handle: u32, flags: u32, start: u64, length: u64, hca_va: u64, pd_handle: u32,
        access_flags: u32,
    }
    ib_uverbs_rereg_mr_resp 8 { lkey: u32, rkey: u32 }
    ib_uverbs_alloc_mw 16 { response: u64, pd_handle: u32, mw_type: u8, reserved: [u8; 3] }
    ib_uverbs_alloc_mw_resp 8 { mw_handle: u32, rkey: u32 }
    ib_uverbs_create_ah 56 {
        response: u64, user_handle: u64, pd_handle: u32, reserved: u32, attr: ib_uverbs_ah_attr,
    }
    ib_uverbs_create_ah_resp 4 { ah_handle: u32 }
    /// A command that names nothing but one object: dealloc_pd, dereg_mr, dealloc_mw, destroy_ah, close_xrcd.
    ib_uverbs_handle_only 4 { handle: u32 }

    ib_uverbs_create_comp_channel 8 { response: u64 }
    ib_uverbs_create_comp_channel_resp 4 { fd: u32 }
    ib_uverbs_create_cq 32 {
        response: u64, user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, reserved: u32,
    }
    ib_uverbs_create_cq_resp 8 { cq_handle: u32, cqe: u32 }
    ib_uverbs_ex_create_cq 32 {
        user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, comp_mask: u32, flags: u32, reserved: u32,
    }
    ib_uverbs_ex_create_cq_resp 16 { base: ib_uverbs_create_cq_resp, comp_mask: u32, response_length: u32 }
    ib_uverbs_resize_cq 16 { response: u64, cq_handle: u32, cqe: u32 }
    ib_uverbs_resize_cq_resp 8 { cqe: u32, reserved: u32 }
    ib_uverbs_poll_cq 16 { response: u64, cq_handle: u32, ne: u32 }
    ib_uverbs_poll_cq_resp 8 { count: u32, reserved: u32 }
    ib_uverbs_wc 48 {
        wr_id: u64, status: u32, opcode: u32, vendor_err: u32, byte_len: u32, imm_data: u32, qp_num: u32,
        src_qp: u32, wc_flags: u32, pkey_index: u16, slid: u16, sl: u8, dlid_path_bits: u8, port_num: u8,
        reserved: u8,
    }
    ib_uverbs_req_notify_cq 8 { cq_handle: u32, solicited_only: u32 }
    /// A destroy that answers: CQs, QPs and SRQs.
    ib_uverbs_destroy_answered 16 { response: u64, handle: u32, reserved: u32 }
    ib_uverbs_destroy_cq_resp 8 { comp_events_reported: u32, async_events_reported: u32 }
    /// The answer of destroying a QP or SRQ.
    ib_uverbs_destroy_resp 4 { events_reported: u32 }
    ib_uverbs_ex_modify_cq 16 { cq_handle: u32, attr_mask: u32, cq_count: u16, cq_period: u16, reserved: u32 }

    /// The capacities of a QP in the attributes of an ioctl.
    ib_uverbs_qp_cap 20 {
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32,
    }
    ib_uverbs_create_qp 56 {
        response: u64, user_handle: u64, pd_handle: u32, send_cq_handle: u32, recv_cq_handle: u32,
        srq_handle: u32, cap: ib_uverbs_qp_cap, sq_sig_all: u8, qp_type: u8, is_srq: u8, reserved: u8,
    }
    ib_uverbs_create_qp_resp 32 { qp_handle: u32, qpn: u32, cap: ib_uverbs_qp_cap, reserved: u32 }
    ib_uverbs_ex_create_qp 64 {
        user_handle: u64, pd_handle: u32, send_cq_handle: u32, recv_cq_handle: u32, srq_handle: u32,
        cap: ib_uverbs_qp_cap, sq_sig_all: u8, qp_type: u8, is_srq: u8, reserved: u8, comp_mask: u32,
        create_flags: u32, rwq_ind_tbl_handle: u32, source_qpn: u32,
    }
    ib_uverbs_ex_create_qp_resp 40 { base: ib_uverbs_create_qp_resp, comp_mask: u32, response_length: u32 }
    ib_uverbs_open_qp 32 {
        response: u64, user_handle: u64, pd_handle: u32, qpn: u32, qp_type: u8, reserved: [u8; 7],
    }
    ib_uverbs_qp_dest 32 {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8, hop_limit: u8,
        traffic_class: u8, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    ib_uverbs_query_qp 16 { response: u64, qp_handle: u32, attr_mask: u32 }
    ib_uverbs_query_qp_resp 128 {
        dest: ib_uverbs_qp_dest, alt_dest: ib_uverbs_qp_dest, cap: ib_uverbs_qp_cap, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16, qp_state: u8,
        cur_qp_state: u8, path_mtu: u8, path_mig_state: u8, sq_draining: u8, max_rd_atomic: u8,
        max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8,
        alt_port_num: u8, alt_timeout: u8, sq_sig_all: u8, reserved: [u8; 5],
    }
    ib_uverbs_modify_qp 112 {
        dest: ib_uverbs_qp_dest, alt_dest: ib_uverbs_qp_dest, qp_handle: u32, attr_mask: u32, qkey: u32,
        rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16,
        qp_state: u8, cur_qp_state: u8, path_mtu: u8, path_mig_state: u8, en_sqd_async_notify: u8,
        max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8,
        rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, reserved: [u8; 2],
    }
    ib_uverbs_ex_modify_qp 120 { base: ib_uverbs_modify_qp, rate_limit: u32, reserved: u32 }
    ib_uverbs_ex_modify_qp_resp 8 { comp_mask: u32, response_length: u32 }
    ib_uverbs_mcast 24 { gid: [u8; 16], qp_handle: u32, mlid: u16, reserved: u16 }

    ib_uverbs_sge 16 { addr: u64, length: u32, lkey: u32 }
    /// `wr` is rdma (address, rkey), atomic (address, compare or add, swap, rkey) or ud (AH, QPN and Q_Key).
    ib_uverbs_send_wr 56 {
        wr_id: u64, num_sge: u32, opcode: u32, send_flags: u32, ex: u32, wr: [u64; 4],
    }
    ib_uverbs_recv_wr 16 { wr_id: u64, num_sge: u32, reserved: u32 }
    /// Head of post_send, post_recv and post_srq_recv; requests and SGEs follow.
    ib_uverbs_post 24 { response: u64, handle: u32, wr_count: u32, sge_count: u32, wqe_size: u32 }
    ib_uverbs_post_resp 4 { bad_wr: u32 }

    ib_uverbs_create_srq 32 {
        response: u64, user_handle: u64, pd_handle: u32, max_wr: u32, max_sge: u32, srq_limit: u32,
    }
    ib_uverbs_create_xsrq 48 {
        response: u64, user_handle: u64, srq_type: u32, pd_handle: u32, max_wr: u32, max_sge: u32, srq_limit: u32,
        max_num_tags: u32, xrcd_handle: u32, cq_handle: u32,
    }
    ib_uverbs_create_srq_resp 16 { srq_handle: u32, max_wr: u32, max_sge: u32, srqn: u32 }
    ib_uverbs_modify_srq 16 { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32 }
    ib_uverbs_query_srq 16 { response: u64, srq_handle: u32, reserved: u32 }
    ib_uverbs_query_srq_resp 16 { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32 }

    ib_uverbs_ex_create_wq 40 {
        comp_mask: u32, wq_type: u32, user_handle: u64, pd_handle: u32, cq_handle: u32, max_wr: u32, max_sge: u32,
        create_flags: u32, reserved: u32,
    }
    ib_uverbs_ex_create_wq_resp 24 {
        comp_mask: u32, response_length: u32, wq_handle: u32, max_wr: u32, max_sge: u32, wqn: u32,
    }
    /// Destroying a WQ, an indirection table or a flow.
    ib_uverbs_ex_destroy 8 { comp_mask: u32, handle: u32 }
    ib_uverbs_ex_destroy_wq_resp 16 {
        comp_mask: u32, response_length: u32, events_reported: u32, reserved: u32,
    }
    ib_uverbs_ex_modify_wq 24 {
        attr_mask: u32, wq_handle: u32, wq_state: u32, curr_wq_state: u32, flags: u32, flags_mask: u32,
    }
    /// The handles of the WQs follow.
    ib_uverbs_ex_create_rwq_ind_table 8 { comp_mask: u32, log_ind_tbl_size: u32 }
    ib_uverbs_ex_create_rwq_ind_table_resp 16 {
        comp_mask: u32, response_length: u32, ind_tbl_handle: u32, ind_tbl_num: u32,
    }
    /// The specs follow.
    ib_uverbs_create_flow 24 {
        comp_mask: u32, qp_handle: u32, r#type: u32, size: u16, priority: u16, num_of_specs: u8,
        reserved: [u8; 2], port: u8, flags: u32,
    }
    ib_uverbs_create_flow_resp 8 { comp_mask: u32, flow_handle: u32 }
    ib_uverbs_gid_entry 32 {
        gid: [u64; 2], gid_index: u32, port_num: u32, gid_type: u32, netdev_ifindex: u32,
    }
}
