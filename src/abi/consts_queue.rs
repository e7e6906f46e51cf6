//! Constants of QPs, work requests and completions.

consts! {
    /// `enum ibv_qp_type`.
    u32;
    IBV_QPT_RC = 2;
    IBV_QPT_UC = 3;
    IBV_QPT_UD = 4;
    IBV_QPT_RAW_PACKET = 8;
    IBV_QPT_XRC_SEND = 9;
    IBV_QPT_XRC_RECV = 10;
    IBV_QPT_DRIVER = 255;
}

consts! {
    /// `enum ibv_qp_state`.
    u32;
    IBV_QPS_RESET = 0;
    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    IBV_QPS_SQD = 4;
    IBV_QPS_SQE = 5;
    IBV_QPS_ERR = 6;
    IBV_QPS_UNKNOWN = 7;
}

consts! {
    /// `enum ibv_mig_state`.
    u32;
    IBV_MIG_MIGRATED = 0;
    IBV_MIG_REARM = 1;
    IBV_MIG_ARMED = 2;
}

consts! {
    /// `enum ibv_qp_attr_mask`.
    u32;
    IBV_QP_STATE = 1 << 0;
    IBV_QP_CUR_STATE = 1 << 1;
    IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2;
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    IBV_QP_PKEY_INDEX = 1 << 4;
    IBV_QP_PORT = 1 << 5;
    IBV_QP_QKEY = 1 << 6;
    IBV_QP_AV = 1 << 7;
    IBV_QP_PATH_MTU = 1 << 8;
    IBV_QP_TIMEOUT = 1 << 9;
    IBV_QP_RETRY_CNT = 1 << 10;
    IBV_QP_RNR_RETRY = 1 << 11;
    IBV_QP_RQ_PSN = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    IBV_QP_ALT_PATH = 1 << 14;
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    IBV_QP_SQ_PSN = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    IBV_QP_PATH_MIG_STATE = 1 << 18;
    IBV_QP_CAP = 1 << 19;
    IBV_QP_DEST_QPN = 1 << 20;
    IBV_QP_RATE_LIMIT = 1 << 25;
}

consts! {
    /// `enum ibv_qp_init_attr_mask`.
    u32;
    IBV_QP_INIT_ATTR_PD = 1 << 0;
    IBV_QP_INIT_ATTR_XRCD = 1 << 1;
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2;
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3;
    IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4;
    IBV_QP_INIT_ATTR_RX_HASH = 1 << 5;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6;
}

consts! {
    /// `enum ibv_qp_create_flags`.
    u32;
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1;
    IBV_QP_CREATE_SCATTER_FCS = 1 << 8;
    IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9;
    IBV_QP_CREATE_SOURCE_QPN = 1 << 10;
    IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11;
}

consts! {
    /// `enum ibv_qp_create_send_ops_flags`.
    u64;
    IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1;
    IBV_QP_EX_WITH_SEND = 1 << 2;
    IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3;
    IBV_QP_EX_WITH_RDMA_READ = 1 << 4;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6;
    IBV_QP_EX_WITH_LOCAL_INV = 1 << 7;
    IBV_QP_EX_WITH_BIND_MW = 1 << 8;
    IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9;
    IBV_QP_EX_WITH_TSO = 1 << 10;
    IBV_QP_EX_WITH_FLUSH = 1 << 11;
    IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12;
}

consts! {
    /// `enum ibv_qp_open_attr_mask`.
    u32;
    IBV_QP_OPEN_ATTR_NUM = 1 << 0;
    IBV_QP_OPEN_ATTR_XRCD = 1 << 1;
    IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2;
    IBV_QP_OPEN_ATTR_TYPE = 1 << 3;
}

consts! {
    /// `enum ibv_query_qp_data_in_order_flags`.
    u32;
    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1 << 0;
    IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = 1 << 1;
}

consts! {
    /// `enum ibv_query_qp_data_in_order_caps`.
    u32;
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1 << 0;
    IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1;
}

consts! {
    /// `enum ibv_wr_opcode`.
    u32;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    IBV_WR_SEND = 2;
    IBV_WR_SEND_WITH_IMM = 3;
    IBV_WR_RDMA_READ = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6;
    IBV_WR_LOCAL_INV = 7;
    IBV_WR_BIND_MW = 8;
    IBV_WR_SEND_WITH_INV = 9;
    IBV_WR_TSO = 10;
    IBV_WR_DRIVER1 = 11;
    IBV_WR_FLUSH = 14;
    IBV_WR_ATOMIC_WRITE = 15;
}

consts! {
    /// `enum ibv_send_flags`.
    u32;
    IBV_SEND_FENCE = 1 << 0;
    IBV_SEND_SIGNALED = 1 << 1;
    IBV_SEND_SOLICITED = 1 << 2;
    IBV_SEND_INLINE = 1 << 3;
    IBV_SEND_IP_CSUM = 1 << 4;
}

consts! {
    /// `enum ibv_placement_type`.
    u32;
    IBV_FLUSH_GLOBAL = 1 << 0;
    IBV_FLUSH_PERSISTENT = 1 << 1;
}

consts! {
    /// `enum ibv_selectivity_level`.
    u32;
    IBV_FLUSH_RANGE = 0;
    IBV_FLUSH_MR = 1;
}

consts! {
    /// `enum ibv_ops_wr_opcode`.
    u32;
    IBV_WR_TAG_ADD = 0;
    IBV_WR_TAG_DEL = 1;
    IBV_WR_TAG_SYNC = 2;
}

consts! {
    /// `enum ibv_ops_flags`.
    u32;
    IBV_OPS_SIGNALED = 1 << 0;
    IBV_OPS_TM_SYNC = 1 << 1;
}

consts! {
    /// `enum ibv_wc_status`.
    u32;
    IBV_WC_SUCCESS = 0;
    IBV_WC_LOC_LEN_ERR = 1;
    IBV_WC_LOC_QP_OP_ERR = 2;
    IBV_WC_LOC_EEC_OP_ERR = 3;
    IBV_WC_LOC_PROT_ERR = 4;
    IBV_WC_WR_FLUSH_ERR = 5;
    IBV_WC_MW_BIND_ERR = 6;
    IBV_WC_BAD_RESP_ERR = 7;
    IBV_WC_LOC_ACCESS_ERR = 8;
    IBV_WC_REM_INV_REQ_ERR = 9;
    IBV_WC_REM_ACCESS_ERR = 10;
    IBV_WC_REM_OP_ERR = 11;
    IBV_WC_RETRY_EXC_ERR = 12;
    IBV_WC_RNR_RETRY_EXC_ERR = 13;
    IBV_WC_LOC_RDD_VIOL_ERR = 14;
    IBV_WC_REM_INV_RD_REQ_ERR = 15;
    IBV_WC_REM_ABORT_ERR = 16;
    IBV_WC_INV_EECN_ERR = 17;
    IBV_WC_INV_EEC_STATE_ERR = 18;
    IBV_WC_FATAL_ERR = 19;
    IBV_WC_RESP_TIMEOUT_ERR = 20;
    IBV_WC_GENERAL_ERR = 21;
    IBV_WC_TM_ERR = 22;
    IBV_WC_TM_RNDV_INCOMPLETE = 23;
}

consts! {
    /// `enum ibv_wc_opcode`.
    u32;
    IBV_WC_SEND = 0;
    IBV_WC_RDMA_WRITE = 1;
    IBV_WC_RDMA_READ = 2;
    IBV_WC_COMP_SWAP = 3;
    IBV_WC_FETCH_ADD = 4;
    IBV_WC_BIND_MW = 5;
    IBV_WC_LOCAL_INV = 6;
    IBV_WC_TSO = 7;
    IBV_WC_FLUSH = 8;
    IBV_WC_ATOMIC_WRITE = 9;
    IBV_WC_RECV = 128;
    IBV_WC_RECV_RDMA_WITH_IMM = 129;
    IBV_WC_TM_ADD = 130;
    IBV_WC_TM_DEL = 131;
    IBV_WC_TM_SYNC = 132;
    IBV_WC_TM_RECV = 133;
    IBV_WC_TM_NO_TAG = 134;
    IBV_WC_DRIVER1 = 135;
    IBV_WC_DRIVER2 = 136;
    IBV_WC_DRIVER3 = 137;
}

consts! {
    /// `enum ibv_wc_flags`.
    u32;
    IBV_WC_GRH = 1 << 0;
    IBV_WC_WITH_IMM = 1 << 1;
    IBV_WC_IP_CSUM_OK = 1 << 2;
    IBV_WC_WITH_INV = 1 << 3;
    IBV_WC_TM_SYNC_REQ = 1 << 4;
    IBV_WC_TM_MATCH = 1 << 5;
    IBV_WC_TM_DATA_VALID = 1 << 6;
}
