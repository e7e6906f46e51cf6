/* SQD and its event, SQE and the way back, the last WQE of an SRQ, its limit and its size. */
#include "common.h"

static struct side a, b;
static struct ibv_context *context;

static int to_state(struct ibv_qp *qp, enum ibv_qp_state state, int notify)
{
    struct ibv_qp_attr attr = {.qp_state = state, .en_sqd_async_notify = (uint8_t)notify};

    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | (notify ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0));
}

static void drained(void)
{
    struct ibv_async_event event;
    struct ibv_wc wc;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    ZERO(recv_one(&b, 1, 0, 64));
    ZERO(recv_one(&b, 2, 64, 64));
    ZERO(send_one(&a, 3, 0, 8, IBV_SEND_SIGNALED));
    show_next("before", a.cq);
    ZERO(to_state(a.qp, IBV_QPS_SQD, 1));
    event = next_event(context);
    printf("%s, of this QP %s, state %s\n", ibv_event_type_str(event.event_type), yes(event.element.qp == a.qp),
           state_name(state_of(a.qp)));
    printf("posted while drained: %s", rc_name(send_one(&a, 4, 0, 8, IBV_SEND_SIGNALED)));
    printf(", done %s\n", yes(ibv_poll_cq(a.cq, 1, &wc) != 0));
    ZERO(to_state(a.qp, IBV_QPS_RTS, 0));
    show_next("back in RTS", a.cq);
    show_next("recv", b.cq);
    show_next("recv", b.cq);
    drop_side(&a);
    drop_side(&b);
}

/* A request that was begun before SQD, and waits for a receive, is part of what is drained. */
static void draining(void)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event event;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    ZERO(send_one(&a, 20, 0, 8, IBV_SEND_SIGNALED));
    ZERO(to_state(a.qp, IBV_QPS_SQD, 1));
    ZERO(send_one(&a, 21, 0, 8, IBV_SEND_SIGNALED));
    ZERO(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init));
    printf("no receive: draining %s, event %s\n", yes(attr.sq_draining), yes(poll(&fd, 1, 50) != 0));
    ZERO(recv_one(&b, 22, 0, 64));
    ZERO(recv_one(&b, 23, 0, 64));
    show_next("the first", a.cq);
    event = next_event(context);
    ZERO(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init));
    printf("%s, draining %s\n", ibv_event_type_str(event.event_type), yes(attr.sq_draining));
    ZERO(to_state(a.qp, IBV_QPS_RTS, 0));
    show_next("the second", a.cq);
    drop_side(&a);
    drop_side(&b);
}

static void send_error(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE};
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_ah_attr to;
    struct ibv_ah *ah;

    make_side(&a, context, IBV_QPT_UD, 4096);
    make_side(&b, context, IBV_QPT_UD, 4096);
    join(&a, &b);
    to = ah_to(&b.gid);
    ah = NEED(ibv_create_ah(a.pd, &to));
    sge = sge_of(&a, 0, 8);
    sge.lkey ^= 0x5a00;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = b.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    show_next("bad lkey", a.cq);
    printf("state %s", state_name(state_of(a.qp)));
    ZERO(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
    printf(", then %s\n", state_name(state_of(a.qp)));
    sge = sge_of(&a, 0, 8);
    wr.send_flags = IBV_SEND_SIGNALED;
    ZERO(recv_one(&b, 6, 0, 4096));
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    show_next("again", a.cq);
    show_next("recv", b.cq);
    ZERO(ibv_destroy_ah(ah));
    drop_side(&a);
    drop_side(&b);
}

static int post(struct ibv_srq *srq, uint64_t wr_id)
{
    struct ibv_sge sge = sge_of(&b, 0, 64);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    return ibv_post_srq_recv(srq, &wr, &bad);
}

static void shared(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_async_event event;
    struct ibv_srq_attr attr;
    struct ibv_srq *srq;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    srq = NEED(ibv_create_srq(b.pd, &init));
    ZERO(ibv_destroy_qp(b.qp));
    b.qp = make_qp(&b, IBV_QPT_RC, srq);
    join(&a, &b);
    for (unsigned i = 0; i < 4; i++)
        ZERO(post(srq, i));
    printf("a fifth: %s", rc_name(post(srq, 4)));
    attr.max_wr = 2;
    printf(", smaller than what is posted: %s", rc_name(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR)));
    attr.max_wr = 8;
    printf(", larger: %s", rc_name(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR)));
    printf(", and then: %s\n", rc_name(post(srq, 4)));
    attr.srq_limit = 4;
    ZERO(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    for (unsigned i = 0; i < 2; i++)
        ZERO(send_one(&a, 10 + i, 0, 8, IBV_SEND_SIGNALED));
    show_next("send", a.cq);
    show_next("send", a.cq);
    show_next("recv", b.cq);
    show_next("recv", b.cq);
    event = next_event(context);
    ZERO(ibv_query_srq(srq, &attr));
    printf("%s, of this SRQ %s, limit now %u, max_wr at least 8 %s\n", ibv_event_type_str(event.event_type),
           yes(event.element.srq == srq), attr.srq_limit, yes(attr.max_wr >= 8));
    ZERO(to_err(b.qp));
    event = next_event(context);
    printf("%s, of this QP %s\n", ibv_event_type_str(event.event_type), yes(event.element.qp == b.qp));
    printf("SRQ in use: %s\n", rc_name(ibv_destroy_srq(srq)));
    drop_side(&a);
    ZERO(ibv_destroy_qp(b.qp));
    ZERO(ibv_destroy_srq(srq));
    b.qp = make_qp(&b, IBV_QPT_RC, NULL);
    drop_side(&b);
}

int main(void)
{
    start();
    context = open_device();
    drained();
    draining();
    send_error();
    shared();
    ZERO(ibv_close_device(context));
    return 0;
}
