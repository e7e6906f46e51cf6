/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counters of flows and of completions, and the device's clock. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

struct ibv_counters_init_attr {
    uint32_t comp_mask;
};

struct ibv_counters {
    struct ibv_context *context;
};

enum ibv_counter_description {
    IBV_COUNTER_PACKETS,
    IBV_COUNTER_BYTES,
};

struct ibv_counter_attach_attr {
    enum ibv_counter_description counter_desc;
    uint32_t index; /* where ibv_read_counters puts it */
    uint32_t comp_mask;
};

enum ibv_read_counters_flags {
    IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1 << 0,
};

enum ibv_qp_attach_comp_cntr_op {
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0,
    IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5,
};

struct ibv_comp_cntr_caps {
    uint64_t max_value;
    uint32_t max_counters;
    uint32_t supported_qp_attach_ops; /* ibv_qp_attach_comp_cntr_op */
};

struct ibv_comp_cntr {
    struct ibv_context *context;
    uint32_t handle;
};

enum ibv_comp_cntr_type {
    IBV_COMP_CNTR_TYPE_WRS,
    IBV_COMP_CNTR_TYPE_BYTES,
};

struct ibv_comp_cntr_init_attr {
    uint32_t comp_mask;
    enum ibv_comp_cntr_type type;
    uint32_t flags;
};

struct ibv_qp_attach_comp_cntr_attr {
    uint32_t comp_mask;
    uint32_t op_mask; /* ibv_qp_attach_comp_cntr_op */
};

enum ibv_values_mask {
    IBV_VALUES_MASK_RAW_CLOCK = 1 << 0,
    IBV_VALUES_MASK_RESERVED = 1 << 1,
};

struct ibv_values_ex {
    uint32_t comp_mask; /* ibv_values_mask, in and out */
    struct timespec raw_clock;
};
