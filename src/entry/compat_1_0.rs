//! The names of IBVERBS_1.0, whose structures differ from today's.
macro_rules! absent_1_0 {
    ($($n:literal @ $v:literal $f:ident;)*) => { $(export!($crate::entry::absent::$f => $n @ $v);)* };
}

absent_1_0! {
    "ibv_ack_async_event" @ "IBVERBS_1.0" void;
    "ibv_ack_cq_events" @ "IBVERBS_1.0" void;
    "ibv_alloc_pd" @ "IBVERBS_1.0" null;
    "ibv_attach_mcast" @ "IBVERBS_1.0" errno;
    "ibv_close_device" @ "IBVERBS_1.0" errno;
    "ibv_create_ah" @ "IBVERBS_1.0" null;
    "ibv_create_cq" @ "IBVERBS_1.0" null;
    "ibv_create_qp" @ "IBVERBS_1.0" null;
    "ibv_create_srq" @ "IBVERBS_1.0" null;
    "ibv_dealloc_pd" @ "IBVERBS_1.0" errno;
    "ibv_dereg_mr" @ "IBVERBS_1.0" errno;
    "ibv_destroy_ah" @ "IBVERBS_1.0" errno;
    "ibv_destroy_cq" @ "IBVERBS_1.0" errno;
    "ibv_destroy_qp" @ "IBVERBS_1.0" errno;
    "ibv_destroy_srq" @ "IBVERBS_1.0" errno;
    "ibv_detach_mcast" @ "IBVERBS_1.0" errno;
    "ibv_free_device_list" @ "IBVERBS_1.0" void;
    "ibv_get_async_event" @ "IBVERBS_1.0" minus;
    "ibv_get_cq_event" @ "IBVERBS_1.0" minus;
    "ibv_get_device_guid" @ "IBVERBS_1.0" zero;
    "ibv_get_device_list" @ "IBVERBS_1.0" null;
    "ibv_get_device_name" @ "IBVERBS_1.0" null;
    "ibv_modify_qp" @ "IBVERBS_1.0" errno;
    "ibv_modify_srq" @ "IBVERBS_1.0" errno;
    "ibv_open_device" @ "IBVERBS_1.0" null;
    "ibv_query_device" @ "IBVERBS_1.0" errno;
    "ibv_query_gid" @ "IBVERBS_1.0" minus;
    "ibv_query_pkey" @ "IBVERBS_1.0" minus;
    "ibv_query_port" @ "IBVERBS_1.0" errno;
    "ibv_query_qp" @ "IBVERBS_1.0" errno;
    "ibv_query_srq" @ "IBVERBS_1.0" errno;
    "ibv_reg_mr" @ "IBVERBS_1.0" null;
    "ibv_resize_cq" @ "IBVERBS_1.0" errno;
}
