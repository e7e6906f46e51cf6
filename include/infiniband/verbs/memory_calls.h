/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls on protection domains, memory regions and windows, device memory. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
int ibv_dealloc_pd(struct ibv_pd *pd);
struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle);
void ibv_unimport_pd(struct ibv_pd *pd);

static inline struct ibv_td *ibv_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *init_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, alloc_td);

    if (vctx)
        return vctx->alloc_td(context, init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_dealloc_td(struct ibv_td *td)
{
    struct verbs_context *vctx = verbs_get_ctx_op(td->context, dealloc_td);

    return vctx ? vctx->dealloc_td(td) : EOPNOTSUPP;
}

static inline struct ibv_pd *ibv_alloc_parent_domain(struct ibv_context *context,
                                                     struct ibv_parent_domain_init_attr *attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, alloc_parent_domain);

    if (vctx)
        return vctx->alloc_parent_domain(context, attr);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline struct ibv_xrcd *ibv_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *xrcd_init_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, open_xrcd);

    if (vctx)
        return vctx->open_xrcd(context, xrcd_init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}

/* Whoever could open the domain has this slot. */
static inline int ibv_close_xrcd(struct ibv_xrcd *xrcd)
{
    return verbs_get_ctx(xrcd->context)->close_xrcd(xrcd);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);

/* Knows the optional access flags and drops those that the device cannot have. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);

/* Programs without optional flags stay loadable by libraries that lack ibv_reg_mr_iova2. */
__attribute__((__always_inline__)) static inline struct ibv_mr *
__ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access, int plain_known)
{
    if (!plain_known || (access & (unsigned int)IBV_ACCESS_OPTIONAL_RANGE) != 0)
        return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
    return ibv_reg_mr(pd, addr, length, (int)access);
}

__attribute__((__always_inline__)) static inline struct ibv_mr *
__ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access, int plain_known)
{
    if (!plain_known || (access & (unsigned int)IBV_ACCESS_OPTIONAL_RANGE) != 0)
        return ibv_reg_mr_iova2(pd, addr, length, iova, access);
    return ibv_reg_mr_iova(pd, addr, length, iova, (int)access);
}

#define __verbs_plain_known(access) __builtin_constant_p(((int)(access) & (int)IBV_ACCESS_OPTIONAL_RANGE) == 0)
#define ibv_reg_mr(pd, addr, length, access) __ibv_reg_mr(pd, addr, length, access, __verbs_plain_known(access))
#define ibv_reg_mr_iova(pd, addr, length, iova, access)                                                               \
    __ibv_reg_mr_iova(pd, addr, length, iova, access, __verbs_plain_known(access))

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *mr_init_attr);

/* 0 or a (negative) ibv_rereg_mr_err_code. */
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access);
int ibv_dereg_mr(struct ibv_mr *mr);
struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle);
void ibv_unimport_mr(struct ibv_mr *mr);

static inline int ibv_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
                                struct ibv_sge *sg_list, uint32_t num_sge)
{
    struct verbs_context *vctx = verbs_get_ctx_op(pd->context, advise_mr);

    return vctx ? vctx->advise_mr(pd, advice, flags, sg_list, num_sge) : EOPNOTSUPP;
}

/* Reads of it give zeros, writes to it are dropped. */
static inline struct ibv_mr *ibv_alloc_null_mr(struct ibv_pd *pd)
{
    struct verbs_context *vctx = verbs_get_ctx_op(pd->context, alloc_null_mr);

    if (vctx)
        return vctx->alloc_null_mr(pd);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline struct ibv_mw *ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    if (pd->context->ops.alloc_mw)
        return pd->context->ops.alloc_mw(pd, type);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_dealloc_mw(struct ibv_mw *mw)
{
    return mw->context->ops.dealloc_mw(mw);
}

/* The same key with its low byte, the consumer's own, moved on by one. */
static inline uint32_t ibv_inc_rkey(uint32_t rkey)
{
    return (rkey & 0xffffff00u) | ((rkey + 1) & 0xffu);
}

static inline int ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind)
{
    const struct ibv_mw_bind_info *to = &mw_bind->bind_info;

    if (mw->type != IBV_MW_TYPE_1)
        return EINVAL;
    if (to->mr) {
        if (to->mr->pd != mw->pd)
            return EPERM;
    } else if (to->addr || to->length) {
        return EINVAL;
    }
    return mw->context->ops.bind_mw(qp, mw, mw_bind);
}

static inline struct ibv_dm *ibv_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, alloc_dm);

    if (vctx)
        return vctx->alloc_dm(context, attr);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_free_dm(struct ibv_dm *dm)
{
    struct verbs_context *vctx = verbs_get_ctx_op(dm->context, free_dm);

    return vctx ? vctx->free_dm(dm) : EOPNOTSUPP;
}

static inline int ibv_memcpy_to_dm(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr, size_t length)
{
    return dm->memcpy_to_dm(dm, dm_offset, host_addr, length);
}

static inline int ibv_memcpy_from_dm(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset, size_t length)
{
    return dm->memcpy_from_dm(host_addr, dm, dm_offset, length);
}

static inline struct ibv_mr *ibv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t dm_offset, size_t length,
                                           unsigned int access)
{
    struct verbs_context *vctx = verbs_get_ctx_op(pd->context, reg_dm_mr);

    if (vctx)
        return vctx->reg_dm_mr(pd, dm, dm_offset, length, access);
    errno = EOPNOTSUPP;
    return NULL;
}

/* A new descriptor, or -1 and errno. */
int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);
struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle);
void ibv_unimport_dm(struct ibv_dm *dm);

/* Page-aligned memory of the provider's choice, ready to be registered. */
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);

/* A new descriptor, or -1 and errno. */
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);

struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
int ibv_dealloc_dmah(struct ibv_dmah *dmah);
