/* A QP that sends and one that receives, of every type and with or without an SRQ, under one set of calls. */
#ifndef ROUTE_H
#define ROUTE_H

#include "behaviour.h"

enum kind { RC, UC, UD, RC_SRQ, UC_SRQ, UD_SRQ, XRC, KINDS };

MAYBE const char *const kind_names[] = {"RC", "UC", "UD", "RC with SRQ", "UC with SRQ", "UD with SRQ", "XRC"};

#define ROUTE_WR 8
#define ROUTE_SGE 4
#define ROUTE_INLINE 64
#define ROUTE_SIZE 65536
/* Where receives of a route lie; sends lie at the start. */
#define ROUTE_IN (ROUTE_SIZE / 2)

struct route {
    enum kind kind;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_qp *out, *in;
    struct ibv_srq *srq;
    struct ibv_xrcd *xrcd;
    struct ibv_ah *ah;
    struct ibv_mr *mr;
    unsigned char *buffer;
    union ibv_gid gid;
    uint32_t srqn;
    uint32_t max_inline, max_send_wr, max_recv_wr;
    /* Bytes of a datagram at most. */
    uint32_t mtu;
};

MAYBE int is_ud(const struct route *r)
{
    return r->kind == UD || r->kind == UD_SRQ;
}

MAYBE enum ibv_qp_type type_of(enum kind kind)
{
    switch (kind) {
    case RC:
    case RC_SRQ:
        return IBV_QPT_RC;
    case UC:
    case UC_SRQ:
        return IBV_QPT_UC;
    case UD:
    case UD_SRQ:
        return IBV_QPT_UD;
    default:
        return IBV_QPT_XRC_SEND;
    }
}

MAYBE struct ibv_qp *route_qp(struct route *r, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = type,
        .send_cq = r->send_cq,
        .recv_cq = r->recv_cq,
        .srq = srq,
        .cap = {.max_send_wr = ROUTE_WR,
                .max_recv_wr = srq ? 0 : ROUTE_WR,
                .max_send_sge = ROUTE_SGE,
                .max_recv_sge = srq ? 0 : ROUTE_SGE,
                .max_inline_data = ROUTE_INLINE},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = r->pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
    };
    struct ibv_qp *qp;

    if (type != IBV_QPT_UD)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
        attr.send_ops_flags |=
            IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    if (type == IBV_QPT_XRC_SEND)
        attr.recv_cq = NULL, attr.cap.max_recv_wr = attr.cap.max_recv_sge = 0;
    if (type == IBV_QPT_XRC_RECV) {
        memset(&attr, 0, sizeof(attr));
        attr.qp_type = type;
        attr.xrcd = r->xrcd;
        attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    }
    qp = NEED(ibv_create_qp_ex(r->context, &attr));
    if (type != IBV_QPT_XRC_RECV) {
        r->max_inline = attr.cap.max_inline_data;
        r->max_send_wr = attr.cap.max_send_wr;
        if (!srq && type != IBV_QPT_XRC_SEND)
            r->max_recv_wr = attr.cap.max_recv_wr;
    }
    return qp;
}

/* The QPs are still in RESET. */
MAYBE void make_route_in_reset(struct route *r, enum kind kind)
{
    struct ibv_port_attr port;

    memset(r, 0, sizeof(*r));
    r->kind = kind;
    r->context = open_device();
    r->pd = NEED(ibv_alloc_pd(r->context));
    r->buffer = pages(ROUTE_SIZE);
    r->mr = NEED(ibv_reg_mr(r->pd, r->buffer, ROUTE_SIZE, ALL_ACCESS));
    r->send_cq = NEED(ibv_create_cq(r->context, 64, NULL, NULL, 0));
    r->recv_cq = NEED(ibv_create_cq(r->context, 64, NULL, NULL, 0));
    ZERO(ibv_query_gid(r->context, PORT, gid_index(), &r->gid));
    ZERO(ibv_query_port(r->context, PORT, &port));
    r->mtu = 128u << port.active_mtu;
    if (kind == XRC) {
        struct ibv_xrcd_init_attr init = {
            .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
        struct ibv_srq_init_attr_ex attr = {
            .attr = {.max_wr = ROUTE_WR, .max_sge = ROUTE_SGE},
            .comp_mask =
                IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
            .srq_type = IBV_SRQT_XRC,
            .pd = r->pd,
            .cq = r->recv_cq,
        };

        r->xrcd = attr.xrcd = NEED(ibv_open_xrcd(r->context, &init));
        r->srq = NEED(ibv_create_srq_ex(r->context, &attr));
        r->max_recv_wr = attr.attr.max_wr;
        ZERO(ibv_get_srq_num(r->srq, &r->srqn));
        r->in = route_qp(r, IBV_QPT_XRC_RECV, NULL);
        r->out = route_qp(r, IBV_QPT_XRC_SEND, NULL);
        return;
    }
    if (kind >= RC_SRQ) {
        struct ibv_srq_init_attr attr = {.attr = {.max_wr = ROUTE_WR, .max_sge = ROUTE_SGE}};

        r->srq = NEED(ibv_create_srq(r->pd, &attr));
        r->max_recv_wr = attr.attr.max_wr;
    }
    r->in = route_qp(r, type_of(kind), r->srq);
    r->out = route_qp(r, type_of(kind), NULL);
}

MAYBE void connect_route(struct route *r)
{
    struct ibv_ah_attr to = ah_to(&r->gid);

    ZERO(to_init(r->in));
    ZERO(to_init(r->out));
    ZERO(to_rtr(r->in, r->out->qp_num, 10, &r->gid));
    ZERO(to_rtr(r->out, r->in->qp_num, 20, &r->gid));
    ZERO(to_rts(r->in, 20));
    ZERO(to_rts(r->out, 10));
    if (is_ud(r))
        r->ah = NEED(ibv_create_ah(r->pd, &to));
}

MAYBE void make_route(struct route *r, enum kind kind)
{
    make_route_in_reset(r, kind);
    connect_route(r);
}

MAYBE void drop_route(struct route *r)
{
    ZERO(ibv_destroy_qp(r->out));
    ZERO(ibv_destroy_qp(r->in));
    if (r->srq)
        ZERO(ibv_destroy_srq(r->srq));
    if (r->xrcd)
        ZERO(ibv_close_xrcd(r->xrcd));
    if (r->ah)
        ZERO(ibv_destroy_ah(r->ah));
    ZERO(ibv_destroy_cq(r->send_cq));
    ZERO(ibv_destroy_cq(r->recv_cq));
    ZERO(ibv_dereg_mr(r->mr));
    ZERO(ibv_dealloc_pd(r->pd));
    munmap(r->buffer, ROUTE_SIZE);
    ZERO(ibv_close_device(r->context));
}

MAYBE struct ibv_sge route_sge(const struct route *r, size_t offset, uint32_t length)
{
    return (struct ibv_sge){.addr = (uintptr_t)r->buffer + offset, .length = length, .lkey = r->mr->lkey};
}

/* A SEND on the route: addressed where its type needs that. */
MAYBE struct ibv_send_wr route_wr(const struct route *r, uint64_t wr_id, struct ibv_sge *sge)
{
    struct ibv_send_wr wr = send_wr(wr_id, sge, IBV_WR_SEND);

    if (is_ud(r)) {
        wr.wr.ud.ah = r->ah;
        wr.wr.ud.remote_qpn = r->in->qp_num;
        wr.wr.ud.remote_qkey = QKEY;
    }
    if (r->kind == XRC)
        wr.qp_type.xrc.remote_srqn = r->srqn;
    return wr;
}

MAYBE int route_send(struct route *r, uint64_t wr_id, uint32_t length, unsigned flags)
{
    struct ibv_sge sge = route_sge(r, 0, length);
    struct ibv_send_wr wr = route_wr(r, wr_id, &sge), *bad;

    wr.send_flags = flags;
    return ibv_post_send(r->out, &wr, &bad);
}

/* The room of a receive includes the 40 bytes of a datagram's GRH. */
MAYBE int route_recv_to(struct route *r, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = route_sge(r, offset, length + (is_ud(r) ? 40 : 0));
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    return r->srq ? ibv_post_srq_recv(r->srq, &wr, &bad) : ibv_post_recv(r->in, &wr, &bad);
}

MAYBE int route_recv(struct route *r, uint64_t wr_id, uint32_t length)
{
    return route_recv_to(r, wr_id, ROUTE_IN, length);
}

/* A receive of the route can be posted to the sender's QP, too, unless it is of a type without a receive queue. */
MAYBE int post_receives(struct route *r, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return r->srq ? ibv_post_srq_recv(r->srq, wr, bad) : ibv_post_recv(r->in, wr, bad);
}

#endif
