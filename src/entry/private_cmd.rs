//! Commands that providers send to the kernel through the library. A name lists the first node that has it; those whose
//! parameters changed have a function for each form.
use crate::kernel::command::{
    context, counter, cq, device, domains, flow, mr, mr_ex, post, qp, qp_attr, srq, wq,
};

export_private!(34 to 34: context::get_context => "ibv_cmd_get_context");
export_private!(57: context::get_context_57 => "ibv_cmd_get_context");
export_private!(34 to 57: cq::create_cq_ex => "ibv_cmd_create_cq_ex");
export_private!(59: cq::create_cq_ex_59 => "ibv_cmd_create_cq_ex");
export_private!(34 to 57: cq::create_cq_ex2 => "ibv_cmd_create_cq_ex2");
export_private!(59: cq::create_cq_ex2_59 => "ibv_cmd_create_cq_ex2");
export_private!(34 to 34: mr::reg_dmabuf_mr => "ibv_cmd_reg_dmabuf_mr");
export_private!(57: mr::reg_dmabuf_mr_57 => "ibv_cmd_reg_dmabuf_mr");
export_private!(34 to 59: qp::create_qp_ex2 => "ibv_cmd_create_qp_ex2");
export_private!(64: qp::create_qp_ex2_64 => "ibv_cmd_create_qp_ex2");

export_private!(34: context::query_context => "ibv_cmd_query_context");
export_private!(34: cq::create_cq => "ibv_cmd_create_cq");
export_private!(34: cq::destroy_cq => "ibv_cmd_destroy_cq");
export_private!(34: cq::modify_cq => "ibv_cmd_modify_cq");
export_private!(34: cq::resize_cq => "ibv_cmd_resize_cq");
export_private!(34: device::query_device_any => "ibv_cmd_query_device_any");
export_private!(34: device::query_port => "ibv_cmd_query_port");
export_private!(34: domains::alloc_mw => "ibv_cmd_alloc_mw");
export_private!(34: domains::alloc_pd => "ibv_cmd_alloc_pd");
export_private!(34: domains::attach_mcast => "ibv_cmd_attach_mcast");
export_private!(34: domains::close_xrcd => "ibv_cmd_close_xrcd");
export_private!(34: domains::create_ah => "ibv_cmd_create_ah");
export_private!(34: domains::dealloc_mw => "ibv_cmd_dealloc_mw");
export_private!(34: domains::dealloc_pd => "ibv_cmd_dealloc_pd");
export_private!(34: domains::destroy_ah => "ibv_cmd_destroy_ah");
export_private!(34: domains::detach_mcast => "ibv_cmd_detach_mcast");
export_private!(34: domains::open_xrcd => "ibv_cmd_open_xrcd");
export_private!(34: flow::create_counters => "ibv_cmd_create_counters");
export_private!(34: flow::create_flow => "ibv_cmd_create_flow");
export_private!(34: flow::create_flow_action_esp => "ibv_cmd_create_flow_action_esp");
export_private!(34: flow::destroy_counters => "ibv_cmd_destroy_counters");
export_private!(34: flow::destroy_flow => "ibv_cmd_destroy_flow");
export_private!(34: flow::destroy_flow_action => "ibv_cmd_destroy_flow_action");
export_private!(34: flow::modify_flow_action_esp => "ibv_cmd_modify_flow_action_esp");
export_private!(34: flow::read_counters => "ibv_cmd_read_counters");
export_private!(34: mr::advise_mr => "ibv_cmd_advise_mr");
export_private!(34: mr::alloc_dm => "ibv_cmd_alloc_dm");
export_private!(34: mr::dereg_mr => "ibv_cmd_dereg_mr");
export_private!(34: mr::free_dm => "ibv_cmd_free_dm");
export_private!(34: mr::query_mr => "ibv_cmd_query_mr");
export_private!(34: mr::reg_dm_mr => "ibv_cmd_reg_dm_mr");
export_private!(34: mr::reg_mr => "ibv_cmd_reg_mr");
export_private!(34: mr::rereg_mr => "ibv_cmd_rereg_mr");
export_private!(34: post::poll_cq => "ibv_cmd_poll_cq");
export_private!(34: post::post_recv => "ibv_cmd_post_recv");
export_private!(34: post::post_send => "ibv_cmd_post_send");
export_private!(34: post::post_srq_recv => "ibv_cmd_post_srq_recv");
export_private!(34: post::req_notify_cq => "ibv_cmd_req_notify_cq");
export_private!(34: qp::create_qp => "ibv_cmd_create_qp");
export_private!(34: qp::create_qp_ex => "ibv_cmd_create_qp_ex");
export_private!(34: qp::destroy_qp => "ibv_cmd_destroy_qp");
export_private!(34: qp::open_qp => "ibv_cmd_open_qp");
export_private!(34: qp_attr::modify_qp => "ibv_cmd_modify_qp");
export_private!(34: qp_attr::modify_qp_ex => "ibv_cmd_modify_qp_ex");
export_private!(34: qp_attr::query_qp => "ibv_cmd_query_qp");
export_private!(34: srq::create_srq => "ibv_cmd_create_srq");
export_private!(34: srq::create_srq_ex => "ibv_cmd_create_srq_ex");
export_private!(34: srq::destroy_srq => "ibv_cmd_destroy_srq");
export_private!(34: srq::modify_srq => "ibv_cmd_modify_srq");
export_private!(34: srq::query_srq => "ibv_cmd_query_srq");
export_private!(34: wq::create_rwq_ind_table => "ibv_cmd_create_rwq_ind_table");
export_private!(34: wq::create_wq => "ibv_cmd_create_wq");
export_private!(34: wq::destroy_rwq_ind_table => "ibv_cmd_destroy_rwq_ind_table");
export_private!(34: wq::destroy_wq => "ibv_cmd_destroy_wq");
export_private!(34: wq::modify_wq => "ibv_cmd_modify_wq");

export_private!(59: device::query_port_speed => "ibv_cmd_query_port_speed");
export_private!(59: mr_ex::alloc_dmah => "ibv_cmd_alloc_dmah");
export_private!(59: mr_ex::export_dmabuf_fd => "ibv_cmd_export_dmabuf_fd");
export_private!(59: mr_ex::free_dmah => "ibv_cmd_free_dmah");
export_private!(59: mr_ex::reg_mr_ex => "ibv_cmd_reg_mr_ex");
export_private!(65: counter::attach => "ibv_cmd_qp_attach_comp_cntr");
export_private!(65: counter::create => "ibv_cmd_create_comp_cntr");
export_private!(65: counter::destroy => "ibv_cmd_destroy_comp_cntr");
export_private!(65: counter::increment => "ibv_cmd_inc_comp_cntr");
export_private!(65: counter::increment_errors => "ibv_cmd_inc_err_comp_cntr");
export_private!(65: counter::query_caps => "ibv_cmd_query_comp_cntr_caps");
export_private!(65: counter::read => "ibv_cmd_read_comp_cntr");
export_private!(65: counter::read_errors => "ibv_cmd_read_err_comp_cntr");
export_private!(65: counter::set => "ibv_cmd_set_comp_cntr");
export_private!(65: counter::set_errors => "ibv_cmd_set_err_comp_cntr");

macro_rules! absent_since {
    ($since:tt: $($n:literal $f:ident;)*) => { $(export_private!($since: $crate::entry::absent::$f => $n);)* };
}

absent_since! {
    64:
    "ibv_dmabuf_heap_alloc" null;
    "ibv_dmabuf_heap_cc_shared_init" null;
    "ibv_dmabuf_heap_destroy" void;
    "ibv_dmabuf_heap_free" void;
}
