/* CQ overrun: an event, QPs in ERR, the completions that are there intact, and nothing else harmed. */
#include "route.h"

#define DEPTH 4

struct scene {
    struct ibv_context *context;
    struct side a, b;
    struct ibv_cq *small;
};

enum which { SENDS, RECEIVES, BOTH };

/* The CQ of four entries takes the sends of a, the receives of b, or both. */
static void make(struct scene *s, enum which which, struct ibv_cq *small)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1}};

    make_side(&s->a, s->context, IBV_QPT_RC, 4096);
    make_side(&s->b, s->context, IBV_QPT_RC, 4096);
    s->small = small ? small : NEED(ibv_create_cq(s->context, DEPTH, NULL, NULL, 0));
    ZERO(ibv_destroy_qp(s->a.qp));
    ZERO(ibv_destroy_qp(s->b.qp));
    attr.send_cq = which == RECEIVES ? s->a.cq : s->small;
    attr.recv_cq = s->a.cq;
    s->a.qp = NEED(ibv_create_qp(s->a.pd, &attr));
    attr.send_cq = s->b.cq;
    attr.recv_cq = which == SENDS ? s->b.cq : s->small;
    s->b.qp = NEED(ibv_create_qp(s->b.pd, &attr));
    join(&s->a, &s->b);
}

static void one(struct scene *s, unsigned i)
{
    ZERO(recv_one(&s->b, 100 + i, 0, 64));
    ZERO(send_one(&s->a, i, 0, 8, IBV_SEND_SIGNALED));
}

/* Waits for this many completions in a CQ that is not polled: their other halves come elsewhere. */
static void overrun(enum which which)
{
    struct scene s = {.context = open_device()};
    struct ibv_wc wc[2 * DEPTH];
    int cq_errors = 0, n, sends = 0, receives = 0;

    make(&s, which, NULL);
    for (unsigned i = 0; i < DEPTH + 4; i++) {
        ZERO(recv_one(&s.b, 100 + i, 0, 64));
        /* After the overrun the QP may be in ERR, where it still takes requests. */
        ZERO(send_one(&s.a, i, 0, 8, IBV_SEND_SIGNALED));
    }
    while (!cq_errors) {
        struct ibv_async_event event = next_event(s.context);

        if (event.event_type == IBV_EVENT_CQ_ERR) {
            EXPECT(event.element.cq == s.small);
            cq_errors++;
        } else {
            EXPECT(event.event_type == IBV_EVENT_QP_FATAL, "%s", ibv_event_type_str(event.event_type));
        }
    }
    /* QPs that complete into it are in ERR. */
    for (uint64_t end = now_ms() + 10000; which != RECEIVES && state_of(s.a.qp) != IBV_QPS_ERR;)
        EXPECT(now_ms() < end, "the sender is in %s", state_name(state_of(s.a.qp)));
    for (uint64_t end = now_ms() + 10000; which == RECEIVES && state_of(s.b.qp) != IBV_QPS_ERR;)
        EXPECT(now_ms() < end, "the receiver is in %s", state_name(state_of(s.b.qp)));
    /* What was there first is there still, in order; nothing has written over it. */
    n = ibv_poll_cq(s.small, 2 * DEPTH, wc);
    EXPECT(n <= DEPTH);
    for (int i = 0; i < n; i++) {
        EXPECT_EQ(wc[i].status, IBV_WC_SUCCESS);
        if (wc[i].opcode & IBV_WC_RECV)
            EXPECT_EQ(wc[i].wr_id, 100 + receives++);
        else
            EXPECT_EQ(wc[i].wr_id, sends++);
    }
    EXPECT(!is_ours() || strstr(said(), "overrun"));
    /* More of the same does no harm and raises no second event of the CQ. */
    for (unsigned i = 0; i < 10; i++) {
        send_one(&s.a, 50 + i, 0, 8, IBV_SEND_SIGNALED);
        recv_one(&s.b, 50 + i, 0, 64);
    }
    while (!no_event(s.context)) {
        struct ibv_async_event event = next_event(s.context);

        EXPECT(event.event_type != IBV_EVENT_CQ_ERR, "a second IBV_EVENT_CQ_ERR");
    }
    ZERO(ibv_destroy_qp(s.a.qp));
    ZERO(ibv_destroy_qp(s.b.qp));
    ZERO(ibv_destroy_cq(s.small));
}

TEST(cq_overrun_by_sends_raises_cq_err_and_stops_the_qp)
{
    overrun(SENDS);
}

TEST(cq_overrun_by_receives_raises_cq_err_and_stops_the_qp)
{
    overrun(RECEIVES);
}

TEST(cq_overrun_by_both_raises_cq_err_and_stops_the_qps)
{
    overrun(BOTH);
}

/* Of other types of QP, with one CQ for all. */
TEST(cq_overrun_of_every_type_raises_cq_err)
{
    static const enum kind kinds[] = {UC, UD, RC_SRQ, UD_SRQ, XRC};

    for (int k = 0; k < 5; k++) {
        struct route r;
        struct ibv_cq *large;
        int found = 0;

        make_route_in_reset(&r, kinds[k]);
        large = r.send_cq;
        ZERO(ibv_destroy_qp(r.out));
        r.send_cq = NEED(ibv_create_cq(r.context, DEPTH, NULL, NULL, 0));
        r.out = route_qp(&r, type_of(kinds[k]), NULL);
        connect_route(&r);
        for (unsigned i = 0; i < 8; i++) {
            ZERO(route_recv(&r, i, 64));
            ZERO(route_send(&r, i, 8, IBV_SEND_SIGNALED));
        }
        for (int i = 0; i < 3 && !found; i++) {
            struct ibv_async_event event = next_event(r.context);

            found = event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == r.send_cq;
        }
        EXPECT(found, "%s", kind_names[kinds[k]]);
        EXPECT_EQ(state_of(r.out), IBV_QPS_ERR);
        ZERO(ibv_destroy_qp(r.out));
        ZERO(ibv_destroy_cq(r.send_cq));
        r.send_cq = large;
        r.out = route_qp(&r, type_of(kinds[k]), NULL);
        drop_route(&r);
    }
}

/* The event comes for the first completion too many, not before. */
TEST(a_cq_that_is_exactly_full_is_no_overrun)
{
    for (int round = 0; round < 3; round++) {
        struct scene s = {.context = open_device()};

        make(&s, SENDS, NULL);
        for (int again = 0; again < 5; again++) {
            for (unsigned i = 0; i < DEPTH; i++) {
                one(&s, i);
                NEXT(s.b.cq, 100 + i, IBV_WC_SUCCESS);
            }
            EXPECT(no_event(s.context));
            for (unsigned i = 0; i < DEPTH; i++)
                NEXT(s.small, i, IBV_WC_SUCCESS);
        }
        EXPECT_EQ(state_of(s.a.qp), IBV_QPS_RTS);
    }
}

/* An extended CQ, and one that says that overruns do not matter. */
static struct ibv_cq *extended(struct ibv_context *context, uint32_t flags)
{
    struct ibv_cq_init_attr_ex attr = {
        .cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = flags};

    return ibv_cq_ex_to_cq(NEED(ibv_create_cq_ex(context, &attr)));
}

TEST(an_extended_cq_that_overruns_raises_cq_err)
{
    struct scene s = {.context = open_device()};
    int found = 0;

    make(&s, SENDS, extended(s.context, 0));
    for (unsigned i = 0; i < DEPTH + 2; i++)
        one(&s, i);
    for (int i = 0; i < 2 && !found; i++) {
        struct ibv_async_event event = next_event(s.context);

        found = event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == s.small;
    }
    EXPECT(found);
}

TEST(a_cq_with_ignore_overrun_goes_on)
{
    struct scene s = {.context = open_device()};
    struct ibv_wc wc[2 * DEPTH];
    int n;

    make(&s, SENDS, extended(s.context, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN));
    for (unsigned i = 0; i < 20; i++) {
        one(&s, i);
        NEXT(s.b.cq, 100 + i, IBV_WC_SUCCESS);
    }
    EXPECT(no_event(s.context));
    EXPECT_EQ(state_of(s.a.qp), IBV_QPS_RTS);
    n = ibv_poll_cq(s.small, 2 * DEPTH, wc);
    EXPECT_EQ(n, DEPTH);
    for (int i = 0; i < n; i++) {
        EXPECT_EQ(wc[i].status, IBV_WC_SUCCESS);
        EXPECT(wc[i].wr_id < 20 && (!i || wc[i].wr_id == wc[i - 1].wr_id + 1));
    }
    /* And it is good afterwards. */
    for (unsigned i = 30; i < 60; i++) {
        one(&s, i);
        NEXT(s.b.cq, 100 + i, IBV_WC_SUCCESS);
        NEXT(s.small, i, IBV_WC_SUCCESS);
    }
}

/* QPs that do not complete into the CQ go on. */
TEST(a_cq_overrun_leaves_other_cqs_and_qps_alone)
{
    struct scene s = {.context = open_device()};
    struct side a, b;

    make(&s, SENDS, NULL);
    make_side(&a, s.context, IBV_QPT_RC, 4096);
    make_side(&b, s.context, IBV_QPT_RC, 4096);
    join(&a, &b);
    for (unsigned i = 0; i < DEPTH + 4; i++)
        one(&s, i);
    for (unsigned i = 0; i < 50; i++) {
        ZERO(recv_one(&b, i, 0, 64));
        ZERO(send_one(&a, i, 0, 8, IBV_SEND_SIGNALED));
        NEXT(a.cq, i, IBV_WC_SUCCESS);
        NEXT(b.cq, i, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(state_of(a.qp), IBV_QPS_RTS);
}
