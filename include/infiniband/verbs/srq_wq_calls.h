/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls on shared receive queues, work queues and indirection tables. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

/* On return attr holds what the SRQ really has. */
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *srq_init_attr);

/* A plain SRQ takes the plain call, which every library has. */
static inline struct ibv_srq *ibv_create_srq_ex(struct ibv_context *context,
                                                struct ibv_srq_init_attr_ex *srq_init_attr_ex)
{
    struct verbs_context *vctx;
    uint32_t mask = srq_init_attr_ex->comp_mask;
    int plain = mask == IBV_SRQ_INIT_ATTR_PD;

    if (mask == (uint32_t)(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE))
        plain = srq_init_attr_ex->srq_type == IBV_SRQT_BASIC;
    if (plain)
        return ibv_create_srq(srq_init_attr_ex->pd, (struct ibv_srq_init_attr *)srq_init_attr_ex);

    vctx = verbs_get_ctx_op(context, create_srq_ex);
    if (vctx)
        return vctx->create_srq_ex(context, srq_init_attr_ex);
    errno = EOPNOTSUPP;
    return NULL;
}

/* srq_attr_mask: ibv_srq_attr_mask. */
int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask);
int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr);
int ibv_destroy_srq(struct ibv_srq *srq);

/* The number by which XRC senders address it. */
static inline int ibv_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
{
    struct verbs_context *vctx = verbs_get_ctx_op(srq->context, get_srq_num);

    return vctx ? vctx->get_srq_num(srq, srq_num) : EOPNOTSUPP;
}

/* Stops at the first request that cannot be posted, which bad_recv_wr then names. */
static inline int ibv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr)
{
    return srq->context->ops.post_srq_recv(srq, recv_wr, bad_recv_wr);
}

static inline int ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op)
{
    struct verbs_context *vctx = verbs_get_ctx_op(srq->context, post_srq_ops);

    if (vctx)
        return vctx->post_srq_ops(srq, op, bad_op);
    *bad_op = op;
    return EOPNOTSUPP;
}

/* The caller's side initialises what the application sees of the queue; providers leave it alone. */
static inline struct ibv_wq *ibv_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *wq_init_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, create_wq);
    struct ibv_wq *wq;

    if (!vctx) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    wq = vctx->create_wq(context, wq_init_attr);
    if (!wq)
        return NULL;
    pthread_mutex_init(&wq->mutex, NULL);
    pthread_cond_init(&wq->cond, NULL);
    wq->events_completed = 0;
    wq->wq_context = wq_init_attr->wq_context;
    return wq;
}

static inline int ibv_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *wq_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(wq->context, modify_wq);

    return vctx ? vctx->modify_wq(wq, wq_attr) : EOPNOTSUPP;
}

static inline int ibv_destroy_wq(struct ibv_wq *wq)
{
    struct verbs_context *vctx = verbs_get_ctx_op(wq->context, destroy_wq);

    return vctx ? vctx->destroy_wq(wq) : EOPNOTSUPP;
}

static inline int ibv_post_wq_recv(struct ibv_wq *wq, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr)
{
    return wq->post_recv(wq, recv_wr, bad_recv_wr);
}

static inline struct ibv_rwq_ind_table *ibv_create_rwq_ind_table(struct ibv_context *context,
                                                                 struct ibv_rwq_ind_table_init_attr *init_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, create_rwq_ind_table);

    if (vctx)
        return vctx->create_rwq_ind_table(context, init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_destroy_rwq_ind_table(struct ibv_rwq_ind_table *rwq_ind_table)
{
    struct verbs_context *vctx = verbs_get_ctx_op(rwq_ind_table->context, destroy_rwq_ind_table);

    return vctx ? vctx->destroy_rwq_ind_table(rwq_ind_table) : EOPNOTSUPP;
}
