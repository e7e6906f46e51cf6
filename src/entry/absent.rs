//! Names that have no implementation yet: each says EOPNOTSUPP by its own convention. A line leaves this table when a
//! real function takes the name over.
use crate::sys::errno::Errno;

/// Returns NULL and stores EOPNOTSUPP.
pub(super) extern "C" fn null() -> *mut std::ffi::c_void {
    Errno::EOPNOTSUPP.store();
    std::ptr::null_mut()
}

/// Returns the positive errno value.
pub(super) extern "C" fn errno() -> i32 {
    Errno::EOPNOTSUPP.0
}

/// Returns -1 and stores EOPNOTSUPP.
pub(super) extern "C" fn minus() -> i32 {
    Errno::EOPNOTSUPP.store();
    -1
}

/// Returns the negative errno value.
pub(super) extern "C" fn negative() -> isize {
    -(Errno::EOPNOTSUPP.0 as isize)
}

/// Does nothing.
pub(super) extern "C" fn void() {}

/// Returns 0, the "no" of its function.
pub(super) extern "C" fn zero() -> u64 {
    0
}

/// `absent!("name" @@ "NODE" convention;)` exports honest stubs.
macro_rules! absent {
    ($($n:literal @@ $v:literal $f:ident;)*) => { $(export!($crate::entry::absent::$f => $n @@ $v);)* };
}

absent! {
    "ibv_create_comp_channel" @@ "IBVERBS_1.0" null;
    "ibv_destroy_comp_channel" @@ "IBVERBS_1.0" errno;
}

absent! {
    "ibv_ack_async_event" @@ "IBVERBS_1.1" void;
    "ibv_ack_cq_events" @@ "IBVERBS_1.1" void;
    "ibv_alloc_pd" @@ "IBVERBS_1.1" null;
    "ibv_attach_mcast" @@ "IBVERBS_1.1" errno;
    "ibv_close_device" @@ "IBVERBS_1.1" errno;
    "ibv_create_ah" @@ "IBVERBS_1.1" null;
    "ibv_create_ah_from_wc" @@ "IBVERBS_1.1" null;
    "ibv_create_cq" @@ "IBVERBS_1.1" null;
    "ibv_create_qp" @@ "IBVERBS_1.1" null;
    "ibv_create_srq" @@ "IBVERBS_1.1" null;
    "ibv_dealloc_pd" @@ "IBVERBS_1.1" errno;
    "ibv_dereg_mr" @@ "IBVERBS_1.1" errno;
    "ibv_destroy_ah" @@ "IBVERBS_1.1" errno;
    "ibv_destroy_cq" @@ "IBVERBS_1.1" errno;
    "ibv_destroy_qp" @@ "IBVERBS_1.1" errno;
    "ibv_destroy_srq" @@ "IBVERBS_1.1" errno;
    "ibv_detach_mcast" @@ "IBVERBS_1.1" errno;
    "ibv_dofork_range" @@ "IBVERBS_1.1" errno;
    "ibv_dontfork_range" @@ "IBVERBS_1.1" errno;
    "ibv_fork_init" @@ "IBVERBS_1.1" zero;
    "ibv_free_device_list" @@ "IBVERBS_1.1" void;
    "ibv_get_async_event" @@ "IBVERBS_1.1" minus;
    "ibv_get_cq_event" @@ "IBVERBS_1.1" minus;
    "ibv_get_device_guid" @@ "IBVERBS_1.1" zero;
    "ibv_get_device_list" @@ "IBVERBS_1.1" null;
    "ibv_get_device_name" @@ "IBVERBS_1.1" null;
    "ibv_init_ah_from_wc" @@ "IBVERBS_1.1" minus;
    "ibv_modify_qp" @@ "IBVERBS_1.1" errno;
    "ibv_modify_srq" @@ "IBVERBS_1.1" errno;
    "ibv_open_device" @@ "IBVERBS_1.1" null;
    "ibv_query_device" @@ "IBVERBS_1.1" errno;
    "ibv_query_gid" @@ "IBVERBS_1.1" minus;
    "ibv_query_pkey" @@ "IBVERBS_1.1" minus;
    "ibv_query_port" @@ "IBVERBS_1.1" errno;
    "ibv_query_qp" @@ "IBVERBS_1.1" errno;
    "ibv_query_srq" @@ "IBVERBS_1.1" errno;
    "ibv_reg_mr" @@ "IBVERBS_1.1" null;
    "ibv_rereg_mr" @@ "IBVERBS_1.1" minus;
    "ibv_resize_cq" @@ "IBVERBS_1.1" errno;
    "ibv_resolve_eth_l2_from_gid" @@ "IBVERBS_1.1" minus;
}

absent! {
    "ibv_get_pkey_index" @@ "IBVERBS_1.5" minus;
}

absent! {
    "ibv_qp_to_qp_ex" @@ "IBVERBS_1.6" null;
}

absent! {
    "ibv_reg_mr_iova" @@ "IBVERBS_1.7" null;
}

absent! {
    "ibv_reg_mr_iova2" @@ "IBVERBS_1.8" null;
}

absent! {
    "ibv_get_device_index" @@ "IBVERBS_1.9" minus;
}

absent! {
    "ibv_import_device" @@ "IBVERBS_1.10" null;
    "ibv_import_mr" @@ "IBVERBS_1.10" null;
    "ibv_import_pd" @@ "IBVERBS_1.10" null;
    "ibv_query_ece" @@ "IBVERBS_1.10" errno;
    "ibv_set_ece" @@ "IBVERBS_1.10" errno;
    "ibv_unimport_mr" @@ "IBVERBS_1.10" void;
    "ibv_unimport_pd" @@ "IBVERBS_1.10" void;
}

absent! {
    "_ibv_query_gid_ex" @@ "IBVERBS_1.11" errno;
    "_ibv_query_gid_table" @@ "IBVERBS_1.11" negative;
}

absent! {
    "ibv_reg_dmabuf_mr" @@ "IBVERBS_1.12" null;
}

absent! {
    "ibv_import_dm" @@ "IBVERBS_1.13" null;
    "ibv_is_fork_initialized" @@ "IBVERBS_1.13" zero;
    "ibv_unimport_dm" @@ "IBVERBS_1.13" void;
}

absent! {
    "ibv_query_qp_data_in_order" @@ "IBVERBS_1.14" zero;
}

absent! {
    "ibv_alloc_dmah" @@ "IBVERBS_1.15" null;
    "ibv_dealloc_dmah" @@ "IBVERBS_1.15" errno;
    "ibv_reg_mr_ex" @@ "IBVERBS_1.15" null;
}

absent! {
    "ibv_dm_export_dmabuf_fd" @@ "IBVERBS_1.16" minus;
    "ibv_query_port_speed" @@ "IBVERBS_1.16" errno;
}

absent! {
    "ibv_alloc_buf" @@ "IBVERBS_1.17" null;
    "ibv_free_buf" @@ "IBVERBS_1.17" void;
    "ibv_reg_buf_mr" @@ "IBVERBS_1.17" null;
}

absent! {
    "_ibv_query_comp_cntr_caps" @@ "IBVERBS_1.18" errno;
    "ibv_create_comp_cntr" @@ "IBVERBS_1.18" null;
    "ibv_destroy_comp_cntr" @@ "IBVERBS_1.18" errno;
    "ibv_export_buf_dmabuf_fd" @@ "IBVERBS_1.18" minus;
    "ibv_inc_comp_cntr" @@ "IBVERBS_1.18" errno;
    "ibv_inc_err_comp_cntr" @@ "IBVERBS_1.18" errno;
    "ibv_qp_attach_comp_cntr" @@ "IBVERBS_1.18" errno;
    "ibv_read_comp_cntr" @@ "IBVERBS_1.18" errno;
    "ibv_read_err_comp_cntr" @@ "IBVERBS_1.18" errno;
    "ibv_set_comp_cntr" @@ "IBVERBS_1.18" errno;
    "ibv_set_err_comp_cntr" @@ "IBVERBS_1.18" errno;
}
