/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls on queue pairs and address handles; posting. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

/* On return cap holds what the QP really has. */
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr);

/* A plain QP takes the plain call, which every library has. */
static inline struct ibv_qp *ibv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *qp_init_attr_ex)
{
    struct verbs_context *vctx;

    if (qp_init_attr_ex->comp_mask == IBV_QP_INIT_ATTR_PD)
        return ibv_create_qp(qp_init_attr_ex->pd, (struct ibv_qp_init_attr *)qp_init_attr_ex);

    vctx = verbs_get_ctx_op(context, create_qp_ex);
    if (vctx)
        return vctx->create_qp_ex(context, qp_init_attr_ex);
    errno = EOPNOTSUPP;
    return NULL;
}

/* Another handle of a QP that an XRC domain shares. */
static inline struct ibv_qp *ibv_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *qp_open_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, open_qp);

    if (vctx)
        return vctx->open_qp(context, qp_open_attr);
    errno = EOPNOTSUPP;
    return NULL;
}

/* attr_mask: ibv_qp_attr_mask. A call that fails changes nothing. */
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);

static inline int ibv_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(qp->context, modify_qp_rate_limit);

    return vctx ? vctx->modify_qp_rate_limit(qp, attr) : EOPNOTSUPP;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr);

/* 0 or 1; with IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS a mask of ibv_query_qp_data_in_order_caps. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);

int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *comp_cntr,
                            struct ibv_qp_attach_comp_cntr_attr *attr);
int ibv_destroy_qp(struct ibv_qp *qp);

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece);

/*
 * Both stop at the first request that cannot be posted, which bad_wr then names; those before it stay posted.
 * The buffers of an IBV_SEND_INLINE request are free again on return.
 */
static inline int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
    return qp->context->ops.post_send(qp, wr, bad_wr);
}

static inline int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    return qp->context->ops.post_recv(qp, wr, bad_wr);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);

/* The way back to the sender of a UD message; grh counts when wc has IBV_WC_GRH. 0, or -1 and errno. */
int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh,
                        struct ibv_ah_attr *ah_attr);
struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port_num);
int ibv_destroy_ah(struct ibv_ah *ah);

/* MAC address and VLAN (0xffff: none) behind the destination GID. 0, or -1 and errno. */
int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
                                uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid);

/* UD QPs; lid is in host byte order. */
int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
