/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Work requests: what applications post. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

enum ibv_wr_opcode {
    IBV_WR_RDMA_WRITE = 0,
    IBV_WR_RDMA_WRITE_WITH_IMM = 1,
    IBV_WR_SEND = 2,
    IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_RDMA_READ = 4,
    IBV_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    IBV_WR_LOCAL_INV = 7,
    IBV_WR_BIND_MW = 8,
    IBV_WR_SEND_WITH_INV = 9,
    IBV_WR_TSO = 10,
    IBV_WR_DRIVER1 = 11,
    IBV_WR_FLUSH = 14,
    IBV_WR_ATOMIC_WRITE = 15,
};

enum ibv_send_flags {
    IBV_SEND_FENCE = 1 << 0,
    IBV_SEND_SIGNALED = 1 << 1,
    IBV_SEND_SOLICITED = 1 << 2,
    IBV_SEND_INLINE = 1 << 3,
    IBV_SEND_IP_CSUM = 1 << 4,
};

enum ibv_placement_type {
    IBV_FLUSH_GLOBAL = 1U << 0,
    IBV_FLUSH_PERSISTENT = 1U << 1,
};

enum ibv_selectivity_level {
    IBV_FLUSH_RANGE = 0,
    IBV_FLUSH_MR = 1,
};

struct ibv_data_buf {
    void *addr;
    size_t length;
};

struct ibv_sge {
    uint64_t addr;
    uint32_t length; /* bytes */
    uint32_t lkey;
};

struct ibv_send_wr {
    uint64_t wr_id;
    struct ibv_send_wr *next;
    struct ibv_sge *sg_list;
    int num_sge;
    enum ibv_wr_opcode opcode;
    unsigned int send_flags; /* ibv_send_flags */
    union {
        __be32 imm_data;          /* *_WITH_IMM */
        uint32_t invalidate_rkey; /* *_INV */
    };
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        struct {
            uint64_t remote_addr;
            uint64_t compare_add;
            uint64_t swap;
            uint32_t rkey;
        } atomic;
        struct {
            struct ibv_ah *ah;
            uint32_t remote_qpn;
            uint32_t remote_qkey;
        } ud;
    } wr;
    union {
        struct {
            uint32_t remote_srqn;
        } xrc;
    } qp_type;
    union {
        struct {
            struct ibv_mw *mw;
            uint32_t rkey;
            struct ibv_mw_bind_info bind_info;
        } bind_mw;
        struct {
            void *hdr;
            uint16_t hdr_sz;
            uint16_t mss;
        } tso;
    };
};

struct ibv_recv_wr {
    uint64_t wr_id;
    struct ibv_recv_wr *next;
    struct ibv_sge *sg_list;
    int num_sge;
};

enum ibv_ops_wr_opcode {
    IBV_WR_TAG_ADD,
    IBV_WR_TAG_DEL,
    IBV_WR_TAG_SYNC,
};

enum ibv_ops_flags {
    IBV_OPS_SIGNALED = 1 << 0,
    IBV_OPS_TM_SYNC = 1 << 1,
};

/* Operations on the tag list of a tag-matching SRQ. */
struct ibv_ops_wr {
    uint64_t wr_id;
    struct ibv_ops_wr *next;
    enum ibv_ops_wr_opcode opcode;
    int flags; /* ibv_ops_flags */
    struct {
        uint32_t unexpected_cnt;
        uint32_t handle;
        struct {
            uint64_t recv_wr_id;
            struct ibv_sge *sg_list;
            int num_sge;
            uint64_t tag;
            uint64_t mask;
        } add;
    } tm;
};
