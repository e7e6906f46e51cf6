/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls on completion channels, completion queues and completion counters. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context);

/* EBUSY while a CQ uses it. */
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel);

/* At least cqe entries; channel may be NULL; comp_vector is below context->num_comp_vectors. */
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int comp_vector);

static inline struct ibv_cq_ex *ibv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *cq_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, create_cq_ex);

    if (vctx)
        return vctx->create_cq_ex(context, cq_attr);
    errno = EOPNOTSUPP;
    return NULL;
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe);

static inline int ibv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(cq->context, modify_cq);

    return vctx ? vctx->modify_cq(cq, attr) : EOPNOTSUPP;
}

/* EBUSY while a QP uses it; waits for unacknowledged events. */
int ibv_destroy_cq(struct ibv_cq *cq);

/* Waits for an event unless channel->fd has O_NONBLOCK. 0, or -1 and errno. */
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents);

/* How many completions were taken (fewer than num_entries: the CQ is empty now), or a negative number. */
static inline int ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
    return cq->context->ops.poll_cq(cq, num_entries, wc);
}

/* One event for the next completion; with solicited_only for the next solicited or failed one. */
static inline int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return cq->context->ops.req_notify_cq(cq, solicited_only);
}

int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t caps_size);

static inline int ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps)
{
    return _ibv_query_comp_cntr_caps(context, caps, sizeof(*caps));
}

struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *cc_attr);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *comp_cntr);
int ibv_set_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount);
int ibv_read_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t *value);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t *value);
