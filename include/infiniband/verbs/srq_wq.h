/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared receive queues, work queues and their indirection tables. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

enum ibv_srq_attr_mask {
    IBV_SRQ_MAX_WR = 1 << 0,
    IBV_SRQ_LIMIT = 1 << 1,
};

struct ibv_srq_attr {
    uint32_t max_wr;
    uint32_t max_sge;
    uint32_t srq_limit; /* an event when fewer receives are left; 0: none */
};

struct ibv_srq_init_attr {
    void *srq_context;
    struct ibv_srq_attr attr;
};

enum ibv_srq_type {
    IBV_SRQT_BASIC,
    IBV_SRQT_XRC,
    IBV_SRQT_TM,
};

enum ibv_srq_init_attr_mask {
    IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
    IBV_SRQ_INIT_ATTR_PD = 1 << 1,
    IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
    IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
    IBV_SRQ_INIT_ATTR_TM = 1 << 4,
    IBV_SRQ_INIT_ATTR_RESERVED = 1 << 5,
};

struct ibv_tm_cap {
    uint32_t max_num_tags;
    uint32_t max_ops;
};

/* Begins as ibv_srq_init_attr does. */
struct ibv_srq_init_attr_ex {
    void *srq_context;
    struct ibv_srq_attr attr;
    uint32_t comp_mask; /* ibv_srq_init_attr_mask */
    enum ibv_srq_type srq_type;
    struct ibv_pd *pd;
    struct ibv_xrcd *xrcd;
    struct ibv_cq *cq;
    struct ibv_tm_cap tm_cap;
};

struct ibv_srq {
    struct ibv_context *context;
    void *srq_context;
    struct ibv_pd *pd;
    uint32_t handle;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
};

enum ibv_wq_type {
    IBV_WQT_RQ,
};

enum ibv_wq_init_attr_mask {
    IBV_WQ_INIT_ATTR_FLAGS = 1 << 0,
    IBV_WQ_INIT_ATTR_RESERVED = 1 << 1,
};

enum ibv_wq_flags {
    IBV_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0,
    IBV_WQ_FLAGS_SCATTER_FCS = 1 << 1,
    IBV_WQ_FLAGS_DELAY_DROP = 1 << 2,
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3,
    IBV_WQ_FLAGS_RESERVED = 1 << 4,
};

struct ibv_wq_init_attr {
    void *wq_context;
    enum ibv_wq_type wq_type;
    uint32_t max_wr;
    uint32_t max_sge;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    uint32_t comp_mask;    /* ibv_wq_init_attr_mask */
    uint32_t create_flags; /* ibv_wq_flags */
};

enum ibv_wq_state {
    IBV_WQS_RESET,
    IBV_WQS_RDY,
    IBV_WQS_ERR,
    IBV_WQS_UNKNOWN,
};

enum ibv_wq_attr_mask {
    IBV_WQ_ATTR_STATE = 1 << 0,
    IBV_WQ_ATTR_CURR_STATE = 1 << 1,
    IBV_WQ_ATTR_FLAGS = 1 << 2,
    IBV_WQ_ATTR_RESERVED = 1 << 3,
};

struct ibv_wq_attr {
    uint32_t attr_mask; /* ibv_wq_attr_mask */
    enum ibv_wq_state wq_state;
    enum ibv_wq_state curr_wq_state;
    uint32_t flags; /* ibv_wq_flags */
    uint32_t flags_mask;
};

struct ibv_recv_wr;

struct ibv_wq {
    struct ibv_context *context;
    void *wq_context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    uint32_t wq_num;
    uint32_t handle;
    enum ibv_wq_state state;
    enum ibv_wq_type wq_type;
    int (*post_recv)(struct ibv_wq *current, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr);
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
    uint32_t comp_mask;
};

/* Spreads incoming packets over the receive queues of a QP. */
struct ibv_rwq_ind_table {
    struct ibv_context *context;
    int ind_tbl_handle;
    int ind_tbl_num;
    uint32_t comp_mask;
};

enum ibv_ind_table_init_attr_mask {
    IBV_CREATE_IND_TABLE_RESERVED = 1 << 0,
};

struct ibv_rwq_ind_table_init_attr {
    uint32_t log_ind_tbl_size;
    struct ibv_wq **ind_tbl; /* 1 << log_ind_tbl_size receive queues */
    uint32_t comp_mask;
};
