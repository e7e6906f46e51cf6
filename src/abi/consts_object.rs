//! Constants of memory, CQs, SRQs, work queues, domains and flows.
use std::ffi::c_int;

consts! {
    /// `enum ibv_access_flags`.
    u32;
    IBV_ACCESS_LOCAL_WRITE = 1 << 0;
    IBV_ACCESS_REMOTE_WRITE = 1 << 1;
    IBV_ACCESS_REMOTE_READ = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3;
    IBV_ACCESS_MW_BIND = 1 << 4;
    IBV_ACCESS_ZERO_BASED = 1 << 5;
    IBV_ACCESS_ON_DEMAND = 1 << 6;
    IBV_ACCESS_HUGETLB = 1 << 7;
    IBV_ACCESS_FLUSH_GLOBAL = 1 << 8;
    IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9;
    IBV_ACCESS_RELAXED_ORDERING = 1 << 20;
}

consts! {
    /// `enum ibv_dm_mask`.
    u32;
    IBV_DM_MASK_HANDLE = 1 << 0;
}

consts! {
    /// `enum ibv_xrcd_init_attr_mask`.
    u32;
    IBV_XRCD_INIT_ATTR_FD = 1 << 0;
    IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1;
}

consts! {
    /// `enum ibv_rereg_mr_flags`.
    u32;
    IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0;
    IBV_REREG_MR_CHANGE_PD = 1 << 1;
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2;
    IBV_REREG_MR_FLAGS_SUPPORTED = 0x7;
}

consts! {
    /// `enum ibv_rereg_mr_err_code`.
    c_int;
    IBV_REREG_MR_ERR_INPUT = -1;
    IBV_REREG_MR_ERR_DONT_FORK_NEW = -2;
    IBV_REREG_MR_ERR_DO_FORK_OLD = -3;
    IBV_REREG_MR_ERR_CMD = -4;
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5;
}

consts! {
    /// `enum ibv_mr_init_attr_mask`.
    u64;
    IBV_REG_MR_MASK_IOVA = 1 << 0;
    IBV_REG_MR_MASK_ADDR = 1 << 1;
    IBV_REG_MR_MASK_FD = 1 << 2;
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3;
    IBV_REG_MR_MASK_DMAH = 1 << 4;
    IBV_REG_MR_MASK_BUF = 1 << 5;
}

consts! {
    /// `enum ibv_mw_type`.
    u32;
    IBV_MW_TYPE_1 = 1;
    IBV_MW_TYPE_2 = 2;
}

consts! {
    /// `enum ibv_srq_attr_mask`.
    u32;
    IBV_SRQ_MAX_WR = 1 << 0;
    IBV_SRQ_LIMIT = 1 << 1;
}

consts! {
    /// `enum ibv_srq_type`.
    u32;
    IBV_SRQT_BASIC = 0;
    IBV_SRQT_XRC = 1;
    IBV_SRQT_TM = 2;
}

consts! {
    /// `enum ibv_srq_init_attr_mask`.
    u32;
    IBV_SRQ_INIT_ATTR_TYPE = 1 << 0;
    IBV_SRQ_INIT_ATTR_PD = 1 << 1;
    IBV_SRQ_INIT_ATTR_XRCD = 1 << 2;
    IBV_SRQ_INIT_ATTR_CQ = 1 << 3;
    IBV_SRQ_INIT_ATTR_TM = 1 << 4;
}

consts! {
    /// `enum ibv_wq_type`.
    u32;
    IBV_WQT_RQ = 0;
}

consts! {
    /// `enum ibv_wq_init_attr_mask`.
    u32;
    IBV_WQ_INIT_ATTR_FLAGS = 1 << 0;
}

consts! {
    /// `enum ibv_wq_flags`.
    u32;
    IBV_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0;
    IBV_WQ_FLAGS_SCATTER_FCS = 1 << 1;
    IBV_WQ_FLAGS_DELAY_DROP = 1 << 2;
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3;
}

consts! {
    /// `enum ibv_wq_state`.
    u32;
    IBV_WQS_RESET = 0;
    IBV_WQS_RDY = 1;
    IBV_WQS_ERR = 2;
    IBV_WQS_UNKNOWN = 3;
}

consts! {
    /// `enum ibv_wq_attr_mask`.
    u32;
    IBV_WQ_ATTR_STATE = 1 << 0;
    IBV_WQ_ATTR_CURR_STATE = 1 << 1;
    IBV_WQ_ATTR_FLAGS = 1 << 2;
}

consts! {
    /// `enum ibv_cq_attr_mask`.
    u32;
    IBV_CQ_ATTR_MODERATE = 1 << 0;
}

consts! {
    /// `enum ibv_cq_init_attr_mask`.
    u32;
    IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0;
    IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1;
}

consts! {
    /// `enum ibv_create_cq_attr_flags`.
    u32;
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0;
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1;
}

consts! {
    /// `enum ibv_create_cq_wc_flags`.
    u64;
    IBV_WC_EX_WITH_BYTE_LEN = 1 << 0;
    IBV_WC_EX_WITH_IMM = 1 << 1;
    IBV_WC_EX_WITH_QP_NUM = 1 << 2;
    IBV_WC_EX_WITH_SRC_QP = 1 << 3;
    IBV_WC_EX_WITH_SLID = 1 << 4;
    IBV_WC_EX_WITH_SL = 1 << 5;
    IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7;
    IBV_WC_EX_WITH_CVLAN = 1 << 8;
    IBV_WC_EX_WITH_FLOW_TAG = 1 << 9;
    IBV_WC_EX_WITH_TM_INFO = 1 << 10;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;
}

consts! {
    /// `enum ibv_parent_domain_init_attr_mask`.
    u32;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0;
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2;
}

consts! {
    /// `enum ibv_dmah_init_attr_mask`.
    u32;
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0;
    IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1;
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2;
}

consts! {
    /// `enum ibv_tph_mem_type`.
    u32;
    IBV_TPH_MEM_TYPE_VM = 0;
    IBV_TPH_MEM_TYPE_PM = 1;
}

consts! {
    /// `enum ibv_comp_cntr_type`.
    u32;
    IBV_COMP_CNTR_TYPE_WRS = 0;
    IBV_COMP_CNTR_TYPE_BYTES = 1;
}

consts! {
    /// `enum ibv_qp_attach_comp_cntr_op`.
    u32;
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0;
    IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1;
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2;
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3;
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4;
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5;
}

consts! {
    /// `enum ibv_counter_description`.
    u32;
    IBV_COUNTER_PACKETS = 0;
    IBV_COUNTER_BYTES = 1;
}

consts! {
    /// `enum ibv_read_counters_flags`.
    u32;
    IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1 << 0;
}

consts! {
    /// `enum ibv_flow_flags`.
    u32;
    IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1;
    IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2;
}

consts! {
    /// `enum ibv_flow_attr_type`.
    u32;
    IBV_FLOW_ATTR_NORMAL = 0;
    IBV_FLOW_ATTR_ALL_DEFAULT = 1;
    IBV_FLOW_ATTR_MC_DEFAULT = 2;
    IBV_FLOW_ATTR_SNIFFER = 3;
}

consts! {
    /// `enum ibv_flow_spec_type`.
    u32;
    IBV_FLOW_SPEC_ETH = 32;
    IBV_FLOW_SPEC_IPV4 = 48;
    IBV_FLOW_SPEC_IPV6 = 49;
    IBV_FLOW_SPEC_IPV4_EXT = 50;
    IBV_FLOW_SPEC_ESP = 52;
    IBV_FLOW_SPEC_TCP = 64;
    IBV_FLOW_SPEC_UDP = 65;
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 80;
    IBV_FLOW_SPEC_GRE = 81;
    IBV_FLOW_SPEC_MPLS = 96;
    IBV_FLOW_SPEC_INNER = 256;
    IBV_FLOW_SPEC_ACTION_TAG = 4096;
    IBV_FLOW_SPEC_ACTION_DROP = 4097;
    IBV_FLOW_SPEC_ACTION_HANDLE = 4098;
    IBV_FLOW_SPEC_ACTION_COUNT = 4099;
}

consts! {
    /// Access bits that a device may ignore.
    u32;
    IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000;
}

consts! {
    /// `enum ibv_advise_mr_advice`.
    u32;
    IBV_ADVISE_MR_ADVICE_PREFETCH = 0;
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1;
    IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2;
}

consts! {
    /// Flags of `ibv_advise_mr`.
    u32;
    IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0;
}

consts! {
    /// Sets of `IBV_WC_EX_WITH_*`.
    u64;
    IBV_WC_STANDARD_FLAGS = 0x7f;
    IBV_CREATE_CQ_SUP_WC_FLAGS = 0xfff;
}
