/* Shared receive queues: several QPs, the limit event, overflow, and the last receive of a QP in error. */
#include "common.h"

static struct ibv_srq *srq;

static int post(struct side *s, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = sge_of(s, offset, length);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    return ibv_post_srq_recv(srq, &wr, &bad);
}

static void two_qps(struct side *r, struct side *s, struct side *t)
{
    for (unsigned i = 0; i < 4; i++)
        ZERO(post(r, i, i * 64, 64));
    fill(s->buffer, 64, 1);
    fill(t->buffer, 64, 2);
    for (int i = 0; i < 4; i++) {
        struct side *from = i % 2 ? t : s;
        struct ibv_wc wc;

        ZERO(send_one(from, 10, 0, 64, IBV_SEND_SIGNALED));
        show_next("send", from->cq);
        wc = next_wc(r->cq);
        show_wc("  recv", &wc);
        printf("  at the right QP %s, data %s\n", yes((wc.qp_num == r->qp->qp_num) == (i % 2 == 0)),
               yes(filled(r->buffer + i * 64, 64, i % 2 ? 2 : 1)));
    }
}

/* A message whose own memory is gone takes no receive from the others. */
static void unmapped_at_sender(struct side *r, struct side *s, struct side *t)
{
    unsigned char *hole = pages(4096);
    struct ibv_mr *mr = NEED(ibv_reg_mr(t->pd, hole, 4096, ALL_ACCESS));
    struct ibv_sge sges[2] = {sge_of(t, 0, 8), {(uintptr_t)hole + 4090, 6, mr->lkey}};
    struct ibv_send_wr wr = {
        .wr_id = 1, .sg_list = sges, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    munmap(hole, 4096);
    ZERO(post(r, 7, 0, 64));
    ZERO(ibv_post_send(t->qp, &wr, &bad));
    show_next("send from unmapped memory", t->cq);
    ZERO(send_one(s, 2, 0, 8, IBV_SEND_SIGNALED));
    show_next("  send of another QP", s->cq);
    show_next("  recv", r->cq);
    ZERO(ibv_dereg_mr(mr));
}

static void limit(struct ibv_context *context, struct side *r, struct side *s)
{
    struct ibv_srq_attr attr = {.srq_limit = 3};
    struct ibv_async_event event;
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};

    for (unsigned i = 0; i < 4; i++)
        ZERO(post(r, i, 0, 64));
    ZERO(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    ZERO(ibv_query_srq(srq, &attr));
    printf("limit %u, event before it is reached %s\n", attr.srq_limit, yes(poll(&fd, 1, 0) == 1));
    for (int i = 0; i < 2; i++) {
        ZERO(send_one(s, 1, 0, 8, IBV_SEND_SIGNALED));
        next_wc(s->cq);
        next_wc(r->cq);
    }
    event = next_event(context);
    printf("event: %s, of this SRQ %s\n", ibv_event_type_str(event.event_type), yes(event.element.srq == srq));
    ZERO(ibv_query_srq(srq, &attr));
    printf("limit afterwards %u\n", attr.srq_limit);
    ZERO(send_one(s, 1, 0, 8, IBV_SEND_SIGNALED));
    next_wc(s->cq);
    next_wc(r->cq);
    printf("a second event %s\n", yes(poll(&fd, 1, 0) == 1));
}

static void full(struct side *r)
{
    struct ibv_srq_attr attr;
    struct ibv_sge sge = sge_of(r, 0, 8);
    struct ibv_recv_wr wr[2] = {{.wr_id = 1, .next = &wr[1], .sg_list = &sge, .num_sge = 1},
                                {.wr_id = 2, .sg_list = &sge, .num_sge = 1}};
    struct ibv_recv_wr *bad = NULL;
    int rc;
    unsigned n = 0;

    ZERO(ibv_query_srq(srq, &attr));
    while ((rc = post(r, n, 0, 8)) == 0 && n <= attr.max_wr)
        n++;
    /* One receive of the test before is still there. */
    printf("full: %s, at max_wr %s\n", rc_name(rc), yes(n == attr.max_wr - 1));
    rc = ibv_post_srq_recv(srq, wr, &bad);
    printf("a list more: %s, bad_wr the first %s\n", rc_name(rc), yes(bad == &wr[0]));
}

static void last_wqe(struct ibv_context *context, struct side *r)
{
    struct ibv_async_event event;

    ZERO(to_err(r->qp));
    event = next_event(context);
    printf("QP to ERR: %s, of this QP %s\n", ibv_event_type_str(event.event_type), yes(event.element.qp == r->qp));
}

/* A UC QP may use an SRQ too; what finds no receive there is dropped, and the next message is not. */
static void unreliable(struct ibv_context *context, struct side *r)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct side s;

    make_side(&s, context, IBV_QPT_UC, 4096);
    srq = NEED(ibv_create_srq(r->pd, &init));
    ZERO(ibv_destroy_qp(r->qp));
    r->qp = make_qp(r, IBV_QPT_UC, srq);
    join(r, &s);
    fill(s.buffer, 128, 3);
    ZERO(send_one(&s, 1, 0, 64, IBV_SEND_SIGNALED));
    show_next("UC, no receive", s.cq);
    ZERO(post(r, 2, 256, 128));
    ZERO(send_one(&s, 3, 0, 128, IBV_SEND_SIGNALED));
    show_next("UC", s.cq);
    show_next("  recv", r->cq);
    printf("  data %s\n", yes(filled(r->buffer + 256, 128, 3)));
    drop_side(&s);
    ZERO(ibv_destroy_qp(r->qp));
    ZERO(ibv_destroy_srq(srq));
}

int main(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_context *context;
    struct side r, s, t, second;
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad = NULL;

    start();
    context = open_device();
    make_side(&r, context, IBV_QPT_RC, 4096);
    make_side(&s, context, IBV_QPT_RC, 4096);
    make_side(&t, context, IBV_QPT_RC, 4096);
    srq = NEED(ibv_create_srq(r.pd, &init));
    printf("as large as asked for %s\n", yes(init.attr.max_wr >= 16 && init.attr.max_sge >= 1));
    ZERO(ibv_destroy_qp(r.qp));
    r.qp = make_qp(&r, IBV_QPT_RC, srq);
    second = r;
    second.qp = make_qp(&r, IBV_QPT_RC, srq);
    join(&r, &s);
    join(&second, &t);
    printf("receive posted to a QP that has an SRQ: refused %s\n", yes(ibv_post_recv(r.qp, &wr, &bad) > 0));
    two_qps(&r, &s, &t);
    unmapped_at_sender(&r, &s, &t);
    limit(context, &r, &s);
    full(&r);
    printf("destroyed under its QPs: %s\n", rc_name(ibv_destroy_srq(srq)));
    last_wqe(context, &r);
    ZERO(ibv_destroy_qp(second.qp));
    ZERO(ibv_destroy_qp(r.qp));
    printf("destroyed after them: %s\n", rc_name(ibv_destroy_srq(srq)));
    r.qp = make_qp(&r, IBV_QPT_RC, NULL);
    unreliable(context, &r);
    r.qp = make_qp(&r, IBV_QPT_RC, NULL);
    drop_side(&r);
    drop_side(&s);
    drop_side(&t);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
