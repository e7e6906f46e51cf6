//! Commands that providers send to the kernel through the library: none is here before kernel devices are hosted.
//!
//! Every one answers EOPNOTSUPP by its own convention. A name lists the first node that has it.
use super::absent;

export_private!(34 to 34: absent::get_context_34 => "ibv_cmd_get_context");
export_private!(57: absent::get_context_57 => "ibv_cmd_get_context");
export_private!(34 to 57: absent::create_cq_ex_34 => "ibv_cmd_create_cq_ex");
export_private!(59: absent::create_cq_ex_59 => "ibv_cmd_create_cq_ex");
export_private!(34 to 57: absent::create_cq_ex2_34 => "ibv_cmd_create_cq_ex2");
export_private!(59: absent::create_cq_ex2_59 => "ibv_cmd_create_cq_ex2");
export_private!(34 to 34: absent::reg_dmabuf_mr_34 => "ibv_cmd_reg_dmabuf_mr");
export_private!(57: absent::reg_dmabuf_mr_57 => "ibv_cmd_reg_dmabuf_mr");
export_private!(34 to 59: absent::create_qp_ex2_34 => "ibv_cmd_create_qp_ex2");
export_private!(64: absent::create_qp_ex2_64 => "ibv_cmd_create_qp_ex2");

macro_rules! absent_since {
    ($since:tt: $($n:literal $f:ident;)*) => { $(export_private!($since: $crate::entry::absent::$f => $n);)* };
}

absent_since! {
    34:
    "ibv_cmd_advise_mr" errno;
    "ibv_cmd_alloc_dm" errno;
    "ibv_cmd_alloc_mw" errno;
    "ibv_cmd_alloc_pd" errno;
    "ibv_cmd_attach_mcast" errno;
    "ibv_cmd_close_xrcd" errno;
    "ibv_cmd_create_ah" errno;
    "ibv_cmd_create_counters" errno;
    "ibv_cmd_create_cq" errno;
    "ibv_cmd_create_flow" errno;
    "ibv_cmd_create_flow_action_esp" errno;
    "ibv_cmd_create_qp" errno;
    "ibv_cmd_create_qp_ex" errno;
    "ibv_cmd_create_rwq_ind_table" errno;
    "ibv_cmd_create_srq" errno;
    "ibv_cmd_create_srq_ex" errno;
    "ibv_cmd_create_wq" errno;
    "ibv_cmd_dealloc_mw" errno;
    "ibv_cmd_dealloc_pd" errno;
    "ibv_cmd_dereg_mr" errno;
    "ibv_cmd_destroy_ah" errno;
    "ibv_cmd_destroy_counters" errno;
    "ibv_cmd_destroy_cq" errno;
    "ibv_cmd_destroy_flow" errno;
    "ibv_cmd_destroy_flow_action" errno;
    "ibv_cmd_destroy_qp" errno;
    "ibv_cmd_destroy_rwq_ind_table" errno;
    "ibv_cmd_destroy_srq" errno;
    "ibv_cmd_destroy_wq" errno;
    "ibv_cmd_detach_mcast" errno;
    "ibv_cmd_free_dm" errno;
    "ibv_cmd_modify_cq" errno;
    "ibv_cmd_modify_flow_action_esp" errno;
    "ibv_cmd_modify_qp" errno;
    "ibv_cmd_modify_qp_ex" errno;
    "ibv_cmd_modify_srq" errno;
    "ibv_cmd_modify_wq" errno;
    "ibv_cmd_open_qp" errno;
    "ibv_cmd_open_xrcd" errno;
    "ibv_cmd_poll_cq" minus;
    "ibv_cmd_post_recv" errno;
    "ibv_cmd_post_send" errno;
    "ibv_cmd_post_srq_recv" errno;
    "ibv_cmd_query_context" errno;
    "ibv_cmd_query_device_any" errno;
    "ibv_cmd_query_mr" errno;
    "ibv_cmd_query_port" errno;
    "ibv_cmd_query_qp" errno;
    "ibv_cmd_query_srq" errno;
    "ibv_cmd_read_counters" errno;
    "ibv_cmd_reg_dm_mr" errno;
    "ibv_cmd_reg_mr" errno;
    "ibv_cmd_req_notify_cq" errno;
    "ibv_cmd_rereg_mr" errno;
    "ibv_cmd_resize_cq" errno;
}

absent_since! {
    59:
    "ibv_cmd_alloc_dmah" errno;
    "ibv_cmd_export_dmabuf_fd" minus;
    "ibv_cmd_free_dmah" errno;
    "ibv_cmd_query_port_speed" errno;
    "ibv_cmd_reg_mr_ex" errno;
}

absent_since! {
    64:
    "ibv_dmabuf_heap_alloc" null;
    "ibv_dmabuf_heap_cc_shared_init" null;
    "ibv_dmabuf_heap_destroy" void;
    "ibv_dmabuf_heap_free" void;
}

absent_since! {
    65:
    "ibv_cmd_create_comp_cntr" errno;
    "ibv_cmd_destroy_comp_cntr" errno;
    "ibv_cmd_inc_comp_cntr" errno;
    "ibv_cmd_inc_err_comp_cntr" errno;
    "ibv_cmd_qp_attach_comp_cntr" errno;
    "ibv_cmd_query_comp_cntr_caps" errno;
    "ibv_cmd_read_comp_cntr" errno;
    "ibv_cmd_read_err_comp_cntr" errno;
    "ibv_cmd_set_comp_cntr" errno;
    "ibv_cmd_set_err_comp_cntr" errno;
}
