/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Completion channels and queues; reading an extended CQ entry by entry. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

struct ibv_comp_channel {
    struct ibv_context *context;
    int fd; /* readable when an event waits; O_NONBLOCK is honoured */
    int refcnt;
};

struct ibv_cq {
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    void *cq_context;
    uint32_t handle;
    int cqe; /* entries it really has */
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed;
    uint32_t async_events_completed;
};

struct ibv_poll_cq_attr {
    uint32_t comp_mask;
};

struct ibv_wc_tm_info {
    uint64_t tag;
    uint32_t priv; /* application context of the tag-matching header */
};

/* Begins as ibv_cq does. */
struct ibv_cq_ex {
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    void *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed;
    uint32_t async_events_completed;
    uint32_t comp_mask;
    enum ibv_wc_status status; /* of the current entry */
    uint64_t wr_id;            /* of the current entry */
    int (*start_poll)(struct ibv_cq_ex *current, struct ibv_poll_cq_attr *attr);
    int (*next_poll)(struct ibv_cq_ex *current);
    void (*end_poll)(struct ibv_cq_ex *current);
    enum ibv_wc_opcode (*read_opcode)(struct ibv_cq_ex *current);
    uint32_t (*read_vendor_err)(struct ibv_cq_ex *current);
    uint32_t (*read_byte_len)(struct ibv_cq_ex *current);
    __be32 (*read_imm_data)(struct ibv_cq_ex *current);
    uint32_t (*read_qp_num)(struct ibv_cq_ex *current);
    uint32_t (*read_src_qp)(struct ibv_cq_ex *current);
    unsigned int (*read_wc_flags)(struct ibv_cq_ex *current);
    uint32_t (*read_slid)(struct ibv_cq_ex *current);
    uint8_t (*read_sl)(struct ibv_cq_ex *current);
    uint8_t (*read_dlid_path_bits)(struct ibv_cq_ex *current);
    uint64_t (*read_completion_ts)(struct ibv_cq_ex *current);
    uint16_t (*read_cvlan)(struct ibv_cq_ex *current);
    uint32_t (*read_flow_tag)(struct ibv_cq_ex *current);
    void (*read_tm_info)(struct ibv_cq_ex *current, struct ibv_wc_tm_info *tm_info);
    uint64_t (*read_completion_wallclock_ns)(struct ibv_cq_ex *current);
};

enum ibv_cq_init_attr_mask {
    IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0,
    IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
};

enum ibv_create_cq_attr_flags {
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
};

struct ibv_cq_init_attr_ex {
    uint32_t cqe; /* at least this many entries */
    void *cq_context;
    struct ibv_comp_channel *channel; /* may be NULL */
    uint32_t comp_vector;             /* below context->num_comp_vectors */
    uint64_t wc_flags;                /* ibv_create_cq_wc_flags */
    uint32_t comp_mask;               /* ibv_cq_init_attr_mask */
    uint32_t flags;                   /* ibv_create_cq_attr_flags */
    struct ibv_pd *parent_domain;
};

enum ibv_cq_attr_mask {
    IBV_CQ_ATTR_MODERATE = 1 << 0,
    IBV_CQ_ATTR_RESERVED = 1 << 1,
};

struct ibv_moderate_cq {
    uint16_t cq_count;
    uint16_t cq_period; /* microseconds */
};

struct ibv_modify_cq_attr {
    uint32_t attr_mask; /* ibv_cq_attr_mask */
    struct ibv_moderate_cq moderate;
};

static inline struct ibv_cq *ibv_cq_ex_to_cq(struct ibv_cq_ex *cq)
{
    return (struct ibv_cq *)cq;
}

/* ENOENT: the CQ is empty and ibv_end_poll must not follow. */
static inline int ibv_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
    return cq->start_poll(cq, attr);
}

/* ENOENT: no further entry; ibv_end_poll follows all the same. */
static inline int ibv_next_poll(struct ibv_cq_ex *cq)
{
    return cq->next_poll(cq);
}

static inline void ibv_end_poll(struct ibv_cq_ex *cq)
{
    cq->end_poll(cq);
}

static inline enum ibv_wc_opcode ibv_wc_read_opcode(struct ibv_cq_ex *cq)
{
    return cq->read_opcode(cq);
}

static inline uint32_t ibv_wc_read_vendor_err(struct ibv_cq_ex *cq)
{
    return cq->read_vendor_err(cq);
}

static inline uint32_t ibv_wc_read_byte_len(struct ibv_cq_ex *cq)
{
    return cq->read_byte_len(cq);
}

static inline __be32 ibv_wc_read_imm_data(struct ibv_cq_ex *cq)
{
    return cq->read_imm_data(cq);
}

/* One slot serves both, as one field does in struct ibv_wc. */
static inline uint32_t ibv_wc_read_invalidated_rkey(struct ibv_cq_ex *cq)
{
    return (uint32_t)cq->read_imm_data(cq);
}

static inline uint32_t ibv_wc_read_qp_num(struct ibv_cq_ex *cq)
{
    return cq->read_qp_num(cq);
}

static inline uint32_t ibv_wc_read_src_qp(struct ibv_cq_ex *cq)
{
    return cq->read_src_qp(cq);
}

static inline unsigned int ibv_wc_read_wc_flags(struct ibv_cq_ex *cq)
{
    return cq->read_wc_flags(cq);
}

static inline uint32_t ibv_wc_read_slid(struct ibv_cq_ex *cq)
{
    return cq->read_slid(cq);
}

static inline uint8_t ibv_wc_read_sl(struct ibv_cq_ex *cq)
{
    return cq->read_sl(cq);
}

static inline uint8_t ibv_wc_read_dlid_path_bits(struct ibv_cq_ex *cq)
{
    return cq->read_dlid_path_bits(cq);
}

/* In ticks of ibv_device_attr_ex.hca_core_clock. */
static inline uint64_t ibv_wc_read_completion_ts(struct ibv_cq_ex *cq)
{
    return cq->read_completion_ts(cq);
}

/* In nanoseconds of CLOCK_REALTIME. */
static inline uint64_t ibv_wc_read_completion_wallclock_ns(struct ibv_cq_ex *cq)
{
    return cq->read_completion_wallclock_ns(cq);
}

static inline uint16_t ibv_wc_read_cvlan(struct ibv_cq_ex *cq)
{
    return cq->read_cvlan(cq);
}

static inline uint32_t ibv_wc_read_flow_tag(struct ibv_cq_ex *cq)
{
    return cq->read_flow_tag(cq);
}

static inline void ibv_wc_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *tm_info)
{
    cq->read_tm_info(cq, tm_info);
}
