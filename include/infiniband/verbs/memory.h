/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Protection domains, memory regions and windows, device memory. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

enum ibv_access_flags {
    IBV_ACCESS_LOCAL_WRITE = 1 << 0,
    IBV_ACCESS_REMOTE_WRITE = 1 << 1,
    IBV_ACCESS_REMOTE_READ = 1 << 2,
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    IBV_ACCESS_MW_BIND = 1 << 4,
    IBV_ACCESS_ZERO_BASED = 1 << 5,
    IBV_ACCESS_ON_DEMAND = 1 << 6,
    IBV_ACCESS_HUGETLB = 1 << 7,
    IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
    IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
    IBV_ACCESS_RELAXED_ORDERING = IBV_ACCESS_OPTIONAL_FIRST, /* from here on a device may ignore the bit */
};

struct ibv_pd {
    struct ibv_context *context;
    uint32_t handle;
};

struct ibv_td_init_attr {
    uint32_t comp_mask;
};

/* Thread domain: its objects are used by one thread at a time. */
struct ibv_td {
    struct ibv_context *context;
};

enum ibv_parent_domain_init_attr_mask {
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2,
};

/* What alloc may return to leave one allocation to the provider. */
#define IBV_ALLOCATOR_USE_DEFAULT ((void *)-1)

struct ibv_parent_domain_init_attr {
    struct ibv_pd *pd;
    struct ibv_td *td; /* may be NULL */
    uint32_t comp_mask;
    void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t resource_type);
    void (*free)(struct ibv_pd *pd, void *pd_context, void *ptr, uint64_t resource_type);
    void *pd_context;
};

enum ibv_xrcd_init_attr_mask {
    IBV_XRCD_INIT_ATTR_FD = 1 << 0,
    IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
    IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2,
};

struct ibv_xrcd_init_attr {
    uint32_t comp_mask;
    int fd;     /* its inode names the domain; -1: a private one */
    int oflags; /* O_CREAT, O_EXCL */
};

struct ibv_xrcd {
    struct ibv_context *context;
};

struct ibv_mr {
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
};

enum ibv_rereg_mr_flags {
    IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
    IBV_REREG_MR_CHANGE_PD = 1 << 1,
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
    IBV_REREG_MR_FLAGS_SUPPORTED = 7,
};

/* What ibv_rereg_mr returns; the last two leave an MR that can only be deregistered. */
enum ibv_rereg_mr_err_code {
    IBV_REREG_MR_ERR_INPUT = -1,
    IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
    IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
    IBV_REREG_MR_ERR_CMD = -4,
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
};

enum ibv_mr_init_attr_mask {
    IBV_REG_MR_MASK_IOVA = 1 << 0,
    IBV_REG_MR_MASK_ADDR = 1 << 1,
    IBV_REG_MR_MASK_FD = 1 << 2,
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
    IBV_REG_MR_MASK_DMAH = 1 << 4,
    IBV_REG_MR_MASK_BUF = 1 << 5,
};

/* comp_mask says which of the fields behind it are set. */
struct ibv_mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask; /* ibv_mr_init_attr_mask */
    uint64_t iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    struct ibv_dmah *dmah;
    struct ibv_buf *buf;
};

enum ibv_mw_type {
    IBV_MW_TYPE_1 = 1,
    IBV_MW_TYPE_2 = 2,
};

struct ibv_mw {
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t rkey;
    uint32_t handle;
    enum ibv_mw_type type;
};

struct ibv_mw_bind_info {
    struct ibv_mr *mr;
    uint64_t addr;
    uint64_t length;
    unsigned int mw_access_flags; /* ibv_access_flags */
};

/* Type 1 windows; type 2 ones are bound by IBV_WR_BIND_MW. */
struct ibv_mw_bind {
    uint64_t wr_id;
    unsigned int send_flags;
    struct ibv_mw_bind_info bind_info;
};

struct ibv_alloc_dm_attr {
    size_t length;
    uint32_t log_align_req;
    uint32_t comp_mask;
};

enum ibv_dm_mask {
    IBV_DM_MASK_HANDLE = 1 << 0,
};

struct ibv_dm {
    struct ibv_context *context;
    int (*memcpy_to_dm)(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr, size_t length);
    int (*memcpy_from_dm)(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset, size_t length);
    uint32_t comp_mask; /* ibv_dm_mask */
    uint32_t handle;
};

/* DMA handle: placement hints for the memory registered with it. */
struct ibv_dmah {
    struct ibv_context *context;
};

enum ibv_tph_mem_type {
    IBV_TPH_MEM_TYPE_VM,
    IBV_TPH_MEM_TYPE_PM,
};

enum ibv_dmah_init_attr_mask {
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0,
    IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1,
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2,
};

struct ibv_dmah_init_attr {
    uint32_t comp_mask;
    uint32_t cpu_id;
    uint8_t ph;
    uint8_t tph_mem_type; /* ibv_tph_mem_type */
};
