/* SRQs: the limit event, overflow, and the event of a QP that takes nothing from its SRQ any more. */
#include "route.h"

static const enum kind with_srq[] = {RC_SRQ, UC_SRQ, UD_SRQ, XRC};

static void arm(struct ibv_srq *srq, uint32_t limit)
{
    struct ibv_srq_attr attr = {.srq_limit = limit};

    ZERO(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
}

static struct ibv_srq_attr told(struct ibv_srq *srq)
{
    struct ibv_srq_attr attr;

    ZERO(ibv_query_srq(srq, &attr));
    return attr;
}

static void use_one(struct route *r)
{
    ZERO(route_send(r, 1, 8, IBV_SEND_SIGNALED));
    NEXT(r->send_cq, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(next_wc(r->recv_cq).status, IBV_WC_SUCCESS);
}

/* At every limit and number posted: the event comes with the take that leaves fewer than the limit, once. */
TEST(srq_limit_event_comes_once_and_disarms)
{
    for (int k = 0; k < 4; k++)
        for (uint32_t limit = 1; limit <= ROUTE_WR; limit++) {
            struct route r;

            make_route(&r, with_srq[k]);
            for (unsigned i = 0; i < ROUTE_WR; i++)
                ZERO(route_recv(&r, i, 64));
            arm(r.srq, limit);
            EXPECT_EQ(told(r.srq).srq_limit, limit);
            for (uint32_t left = ROUTE_WR; left > 0; left--) {
                EXPECT(no_event(r.context) || left < limit, "%s: an event with %u left, limit %u",
                       kind_names[with_srq[k]], left, limit);
                use_one(&r);
                if (left - 1 == limit - 1) {
                    expect_event(r.context, IBV_EVENT_SRQ_LIMIT_REACHED, r.srq);
                    EXPECT_EQ(told(r.srq).srq_limit, 0);
                }
            }
            EXPECT(no_event(r.context), "the event came twice");
            /* Armed again, it comes again. */
            for (unsigned i = 0; i < ROUTE_WR; i++)
                ZERO(route_recv(&r, i, 64));
            arm(r.srq, ROUTE_WR);
            EXPECT(no_event(r.context));
            use_one(&r);
            expect_event(r.context, IBV_EVENT_SRQ_LIMIT_REACHED, r.srq);
            drop_route(&r);
        }
}

TEST(srq_limit_of_0_disarms_and_above_the_size_is_refused)
{
    struct ibv_srq_attr attr;
    struct route r;

    make_route(&r, RC_SRQ);
    for (unsigned i = 0; i < ROUTE_WR; i++)
        ZERO(route_recv(&r, i, 64));
    arm(r.srq, ROUTE_WR);
    arm(r.srq, 0);
    EXPECT_EQ(told(r.srq).srq_limit, 0);
    use_one(&r);
    EXPECT(no_event(r.context), "a limit of 0 raised an event");
    arm(r.srq, 2);
    attr.srq_limit = told(r.srq).max_wr + 1;
    REFUSED(ibv_modify_srq(r.srq, &attr, IBV_SRQ_LIMIT), EINVAL, "srq_limit=9");
    EXPECT_EQ(told(r.srq).srq_limit, 2);
    attr.srq_limit = 0xffffffff;
    REFUSED(ibv_modify_srq(r.srq, &attr, IBV_SRQ_LIMIT), EINVAL, "srq_limit=4294967295");
    REFUSED(ibv_modify_srq(r.srq, &attr, 1 << 5), EINVAL, "srq_attr_mask=0x20");
    EXPECT_EQ(told(r.srq).srq_limit, 2);
    drop_route(&r);
}

/* Beyond max_wr: ENOMEM, bad_wr, and those before it stay; the queue goes on. */
TEST(srq_overflow_is_refused_and_the_queue_goes_on)
{
    for (int k = 0; k < 4; k++) {
        struct ibv_recv_wr wr[3], *bad = NULL;
        struct ibv_sge sge;
        struct route r;
        uint32_t max;

        make_route(&r, with_srq[k]);
        sge = route_sge(&r, ROUTE_IN, 128);
        max = told(r.srq).max_wr;
        for (unsigned i = 0; i + 1 < max; i++)
            ZERO(route_recv(&r, i, 64));
        for (unsigned i = 0; i < 3; i++)
            wr[i] = (struct ibv_recv_wr){
                .wr_id = max - 1 + i, .next = i < 2 ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
        REFUSED(ibv_post_srq_recv(r.srq, wr, &bad), ENOMEM, "full");
        EXPECT(bad == &wr[1]);
        for (int i = 0; i < 5; i++)
            REFUSED(route_recv(&r, 99, 64), ENOMEM, "full");
        for (unsigned i = 0; i < max * 3; i++) {
            ZERO(route_send(&r, i, 8, IBV_SEND_SIGNALED));
            NEXT(r.send_cq, i, IBV_WC_SUCCESS);
            NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
            ZERO(route_recv(&r, max + i, 64));
            REFUSED(route_recv(&r, 99, 64), ENOMEM, "full");
        }
        drop_route(&r);
    }
}

TEST(srq_resize_keeps_what_is_posted_and_refuses_less)
{
    for (int k = 0; k < 4; k++) {
        struct ibv_srq_attr attr = {.max_wr = 64};
        struct route r;

        make_route(&r, with_srq[k]);
        for (unsigned i = 0; i < 5; i++)
            ZERO(route_recv(&r, i, 64));
        ZERO(ibv_modify_srq(r.srq, &attr, IBV_SRQ_MAX_WR));
        EXPECT(told(r.srq).max_wr >= 64);
        attr.max_wr = 4;
        REFUSED(ibv_modify_srq(r.srq, &attr, IBV_SRQ_MAX_WR), EINVAL, "max_wr=4");
        EXPECT(told(r.srq).max_wr >= 64);
        for (unsigned i = 5; i < 64; i++)
            ZERO(route_recv(&r, i, 64));
        for (unsigned i = 0; i < 64; i++) {
            ZERO(route_send(&r, i, 8, IBV_SEND_SIGNALED));
            NEXT(r.send_cq, i, IBV_WC_SUCCESS);
            NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
        }
        attr.max_wr = 2;
        ZERO(ibv_modify_srq(r.srq, &attr, IBV_SRQ_MAX_WR));
        drop_route(&r);
    }
}

/* Several QPs on one SRQ: each takes its own, and the limit counts for all. */
TEST(srq_shared_by_qps_serves_them_in_order_of_arrival)
{
    struct route r;
    struct ibv_qp *out[4], *in[4];

    make_route(&r, RC_SRQ);
    for (int i = 0; i < 4; i++) {
        in[i] = route_qp(&r, IBV_QPT_RC, r.srq);
        out[i] = route_qp(&r, IBV_QPT_RC, NULL);
        ZERO(to_init(in[i]));
        ZERO(to_init(out[i]));
        ZERO(to_rtr(in[i], out[i]->qp_num, 1, &r.gid));
        ZERO(to_rtr(out[i], in[i]->qp_num, 1, &r.gid));
        ZERO(to_rts(in[i], 1));
        ZERO(to_rts(out[i], 1));
    }
    for (unsigned i = 0; i < ROUTE_WR; i++)
        ZERO(route_recv(&r, i, 64));
    arm(r.srq, 3);
    for (unsigned i = 0; i < ROUTE_WR; i++) {
        struct ibv_sge sge = route_sge(&r, 0, 8);
        struct ibv_send_wr wr = send_wr(i, &sge, IBV_WR_SEND), *bad;
        struct ibv_wc wc;

        ZERO(ibv_post_send(out[(i * 3) % 4], &wr, &bad));
        NEXT(r.send_cq, i, IBV_WC_SUCCESS);
        wc = NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.qp_num, in[(i * 3) % 4]->qp_num);
    }
    expect_event(r.context, IBV_EVENT_SRQ_LIMIT_REACHED, r.srq);
    EXPECT(no_event(r.context));
    REFUSED(ibv_destroy_srq(r.srq), EBUSY, "QP(s) still use it");
    for (int i = 0; i < 4; i++) {
        ZERO(ibv_destroy_qp(in[i]));
        ZERO(ibv_destroy_qp(out[i]));
    }
    drop_route(&r);
}

static void to_error(struct ibv_qp *qp)
{
    ZERO(to_err(qp));
}

/* QPs with an SRQ, however they come to ERR: the event comes once for each time, after its completions. */
TEST(last_wqe_reached_comes_once_when_a_qp_with_an_srq_goes_to_err)
{
    static const enum kind kinds[] = {RC_SRQ, UC_SRQ, UD_SRQ};

    for (int k = 0; k < 3; k++)
        for (int posted = 0; posted < 4; posted += 3) {
            struct route r;

            make_route(&r, kinds[k]);
            for (int i = 0; i < posted; i++)
                ZERO(route_recv(&r, (unsigned)i, 64));
            if (posted) {
                ZERO(route_send(&r, 1, 8, IBV_SEND_SIGNALED));
                NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
            }
            to_error(r.in);
            expect_event(r.context, IBV_EVENT_QP_LAST_WQE_REACHED, r.in);
            if (posted)
                NEXT(r.recv_cq, 0, IBV_WC_SUCCESS);
            to_error(r.in);
            EXPECT(quiet(r.recv_cq));
            EXPECT(no_event(r.context), "%s: the event came twice", kind_names[kinds[k]]);
            drop_route(&r);
        }
}

TEST(last_wqe_reached_comes_when_an_error_takes_the_qp_to_err)
{
    for (int way = 0; way < 3; way++) {
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;
        struct route r;
        int seen = 0;

        make_route(&r, RC_SRQ);
        sge = route_sge(&r, 0, 64);
        wr = route_wr(&r, 1, &sge);
        if (way == 0) {
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.wr.rdma.rkey = 0xffffff00;
        } else {
            struct ibv_sge in = route_sge(&r, ROUTE_IN, way == 1 ? 8 : 64);
            struct ibv_recv_wr rwr = {.wr_id = 5, .sg_list = &in, .num_sge = 1}, *rbad;

            if (way == 2)
                in.lkey ^= 0x5a5a00;
            ZERO(ibv_post_srq_recv(r.srq, &rwr, &rbad));
        }
        ZERO(ibv_post_send(r.out, &wr, &bad));
        NEXT(r.send_cq, 1,
             way == 0   ? IBV_WC_REM_ACCESS_ERR
             : way == 1 ? IBV_WC_REM_INV_REQ_ERR
                        : IBV_WC_REM_OP_ERR);
        if (way)
            NEXT(r.recv_cq, 5, way == 1 ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
        /* A receive that failed tells by its completion; what the peer did wrong raises an event. */
        for (int i = way ? 1 : 0; i < 2; i++) {
            struct ibv_async_event event = next_event(r.context);

            EXPECT(event.element.qp == r.in);
            seen += event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED;
        }
        EXPECT_EQ(seen, 1);
        EXPECT(no_event(r.context));
        drop_route(&r);
    }
}

TEST(last_wqe_reached_does_not_come_without_an_srq)
{
    static const enum kind kinds[] = {RC, UC, UD};

    for (int k = 0; k < 3; k++) {
        struct route r;

        make_route(&r, kinds[k]);
        to_error(r.in);
        to_error(r.out);
        EXPECT(no_event(r.context), "%s", kind_names[kinds[k]]);
        drop_route(&r);
    }
}

/* After RESET the QP has a last request again. */
TEST(last_wqe_reached_comes_again_after_reset)
{
    struct route r;

    make_route(&r, RC_SRQ);
    for (int round = 0; round < 3; round++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        to_error(r.in);
        expect_event(r.context, IBV_EVENT_QP_LAST_WQE_REACHED, r.in);
        ZERO(ibv_modify_qp(r.in, &attr, IBV_QP_STATE));
        ZERO(ibv_modify_qp(r.out, &attr, IBV_QP_STATE));
        EXPECT(no_event(r.context));
        connect_route(&r);
        ZERO(route_recv(&r, 1, 64));
        use_one(&r);
    }
    drop_route(&r);
}

/* Whoever keys a workaround on a vendor of 0 must not find one here, since the event comes. */
TEST(last_wqe_reached_goes_with_a_vendor_id)
{
    struct ibv_device_attr attr;

    ZERO(ibv_query_device(open_device(), &attr));
    EXPECT(attr.vendor_id != 0);
}
