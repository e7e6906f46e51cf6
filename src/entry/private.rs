//! The private nodes: what compiled providers and a few tools call besides the verbs.
use super::absent;

export!(absent::void => "verbs_register_driver_34" @@ "IBVERBS_PRIVATE_34");
export!(absent::void => "verbs_register_driver_57" @@ "IBVERBS_PRIVATE_57");
export!(absent::void => "verbs_register_driver_59" @@ "IBVERBS_PRIVATE_59");
export!(absent::void => "verbs_register_driver_64" @@ "IBVERBS_PRIVATE_64");
export!(absent::void => "verbs_register_driver_65" @@ "IBVERBS_PRIVATE_65");
export!(absent::void => "ibv_register_driver" @ "IBVERBS_1.1");
export_private!(34: absent::zero => "__ioctl_final_num_attrs");
export_private!(34: absent::void => "__verbs_log");
export_private!(34: absent::null => "_verbs_init_and_alloc_context");
export_private!(34: absent::errno => "execute_ioctl");
export_private!(34: absent::minus => "ibv_query_gid_type");
export_private!(34: absent::minus => "ibv_read_ibdev_sysfs_file");
export_private!(34: absent::void => "verbs_init_cq");
export_private!(34: absent::null => "verbs_open_device");
export_private!(34: absent::void => "verbs_set_ops");
export_private!(34: absent::void => "verbs_uninit_context");
