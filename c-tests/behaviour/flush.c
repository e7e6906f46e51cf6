/* ERR: what is posted before and after it comes back flushed, in order, each queue by itself. */
#include "route.h"

/* How a QP comes to ERR. */
enum way { BY_MODIFY, BY_LOCAL_ERROR, BY_REMOTE_ERROR, BY_RECEIVE_ERROR, BY_RNR, WAYS };

#define BEFORE 3
#define BEACON 90


static void set_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};

    ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

/* The sender goes to ERR with requests outstanding; the receiver stays. */
static void sender(enum kind kind, enum way way, int by_calls)
{
    struct route r;
    struct ibv_sge sge;
    struct ibv_send_wr wr, *bad;
    uint64_t expected = 0;
    int own_queue, beacons = 0, receives = 0;

    make_route(&r, kind);
    own_queue = kind != XRC;
    sge = route_sge(&r, 0, 8);
    for (unsigned i = 0; own_queue && i < BEFORE; i++) {
        struct ibv_recv_wr rwr = {.wr_id = 100 + i, .sg_list = &sge, .num_sge = 1}, *rbad;

        ZERO(ibv_post_recv(r.out, &rwr, &rbad));
    }
    if (way == BY_MODIFY) {
        /* Reliable requests wait here: the receiver has nothing posted. Others are sent at once. */
        for (unsigned i = 0; i < BEFORE; i++)
            ZERO(route_send(&r, i, 8, i == 1 ? IBV_SEND_SIGNALED : 0));
        set_state(r.out, IBV_QPS_ERR);
    } else {
        wr = route_wr(&r, 0, &sge);
        if (way == BY_LOCAL_ERROR)
            sge.lkey ^= 0x5a5a00;
        if (way == BY_REMOTE_ERROR) {
            wr.opcode = IBV_WR_RDMA_WRITE;
            wr.wr.rdma.remote_addr = (uintptr_t)r.buffer;
            wr.wr.rdma.rkey = r.mr->rkey ^ 0x5a5a00;
        }
        if (way == BY_RECEIVE_ERROR)
            ZERO(route_recv(&r, 55, 4));
        if (way == BY_RNR) {
            struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

            ZERO(ibv_modify_qp(r.out, &attr, IBV_QP_STATE));
            ZERO(to_init(r.out));
            ZERO(to_rtr(r.out, r.in->qp_num, 20, &r.gid));
            attr = (struct ibv_qp_attr){
                .qp_state = IBV_QPS_RTS, .sq_psn = 10, .timeout = 14, .retry_cnt = 7, .rnr_retry = 0, .max_rd_atomic = 1};
            ZERO(ibv_modify_qp(r.out, &attr,
                               IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_MAX_QP_RD_ATOMIC));
            for (unsigned i = 0; own_queue && i < BEFORE; i++) {
                struct ibv_recv_wr rwr = {.wr_id = 100 + i, .sg_list = &sge, .num_sge = 1}, *rbad;

                ZERO(ibv_post_recv(r.out, &rwr, &rbad));
            }
        }
        ZERO(ibv_post_send(r.out, &wr, &bad));
        NEXT(r.send_cq, 0,
             way == BY_LOCAL_ERROR    ? IBV_WC_LOC_PROT_ERR
             : way == BY_REMOTE_ERROR ? IBV_WC_REM_ACCESS_ERR
             : way == BY_RNR          ? IBV_WC_RNR_RETRY_EXC_ERR
                                      : IBV_WC_REM_INV_REQ_ERR);
        expected = BEFORE;
    }
    EXPECT_EQ(state_of(r.out), IBV_QPS_ERR);
    for (int i = 0; i < 2; i++) {
        if (by_calls) {
            struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(r.out));

            ibv_wr_start(ex);
            ex->wr_id = BEACON + (unsigned)i;
            ex->wr_flags = i ? IBV_SEND_SIGNALED : 0;
            ibv_wr_send(ex);
            if (is_ud(&r))
                ibv_wr_set_ud_addr(ex, r.ah, r.in->qp_num, QKEY);
            ibv_wr_set_sge(ex, sge.lkey, sge.addr, 8);
            ZERO(ibv_wr_complete(ex));
        } else {
            ZERO(route_send(&r, BEACON + (unsigned)i, 8, i ? IBV_SEND_SIGNALED : 0));
        }
        if (own_queue) {
            struct ibv_recv_wr rwr = {.wr_id = 100 + BEFORE + (unsigned)i, .sg_list = &sge, .num_sge = 1}, *rbad;

            ZERO(ibv_post_recv(r.out, &rwr, &rbad));
        }
    }
    while (beacons < 2) {
        struct ibv_wc wc = next_wc(r.send_cq);

        EXPECT_EQ(wc.qp_num, r.out->qp_num);
        EXPECT_EQ(wc.opcode & IBV_WC_RECV, 0);
        if (wc.wr_id >= BEACON) {
            EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
            EXPECT_EQ(wc.wr_id, BEACON + beacons++);
            continue;
        }
        EXPECT_EQ(beacons, 0);
        /* What an unreliable QP has sent before is complete; only the signaled one says so. */
        if (type_of(kind) == IBV_QPT_UC || type_of(kind) == IBV_QPT_UD) {
            EXPECT_EQ(wc.wr_id, 1);
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        } else {
            EXPECT_EQ(wc.wr_id, expected++);
            EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        }
    }
    if (type_of(kind) != IBV_QPT_UC && type_of(kind) != IBV_QPT_UD)
        EXPECT_EQ(expected, BEFORE);
    while (own_queue && receives < BEFORE + 2) {
        struct ibv_wc wc = next_wc(r.recv_cq);

        if (wc.qp_num != r.out->qp_num)
            continue;
        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT(wc.opcode & IBV_WC_RECV);
        EXPECT_EQ(wc.wr_id, 100 + receives++);
    }
    EXPECT(quiet(r.send_cq));
    EXPECT_EQ(state_of(r.out), IBV_QPS_ERR);
    drop_route(&r);
}

TEST(requests_around_a_modify_to_err_are_flushed_in_order)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int by_calls = 0; by_calls < (kind == XRC ? 1 : 2); by_calls++)
            sender(kind, BY_MODIFY, by_calls);
}

TEST(requests_after_a_local_error_are_flushed_in_order)
{
    static const enum kind kinds[] = {RC, RC_SRQ, XRC};

    for (int k = 0; k < 3; k++)
        sender(kinds[k], BY_LOCAL_ERROR, 0);
}

TEST(requests_after_a_remote_error_are_flushed_in_order)
{
    static const enum kind kinds[] = {RC, RC_SRQ, XRC};

    for (int k = 0; k < 3; k++) {
        sender(kinds[k], BY_REMOTE_ERROR, 0);
        sender(kinds[k], BY_RECEIVE_ERROR, 0);
        sender(kinds[k], BY_RNR, 0);
    }
}

/* A receiver that goes to ERR by itself flushes what it has posted, and what is posted later. */
TEST(receives_of_a_qp_that_failed_are_flushed_in_order)
{
    for (int by_access = 0; by_access < 2; by_access++) {
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;
        struct route r;

        make_route(&r, RC);
        sge = route_sge(&r, 0, 64);
        for (unsigned i = 0; i < 4; i++)
            ZERO(route_recv(&r, i, 16));
        wr = route_wr(&r, 0, &sge);
        if (by_access) {
            wr.opcode = IBV_WR_RDMA_READ;
            wr.wr.rdma.rkey = 0xffffff00;
        }
        ZERO(ibv_post_send(r.out, &wr, &bad));
        NEXT(r.send_cq, 0, by_access ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR);
        EXPECT_EQ(state_of(r.in), IBV_QPS_ERR);
        ZERO(route_recv(&r, 4, 16));
        for (unsigned i = 0; i < 5; i++)
            NEXT(r.recv_cq, i, i || by_access ? IBV_WC_WR_FLUSH_ERR : IBV_WC_LOC_LEN_ERR);
        drop_route(&r);
    }
}

/* An SRQ belongs to no QP: what waits there is not flushed and serves the next one. */
TEST(requests_of_an_srq_survive_the_error_of_a_qp)
{
    static const enum kind kinds[] = {RC_SRQ, UC_SRQ, UD_SRQ, XRC};

    for (int k = 0; k < 4; k++) {
        struct route r;

        make_route(&r, kinds[k]);
        for (unsigned i = 0; i < 3; i++)
            ZERO(route_recv(&r, i, 64));
        set_state(r.in, IBV_QPS_ERR);
        set_state(r.out, IBV_QPS_ERR);
        EXPECT(quiet(r.recv_cq), "%s: the SRQ was flushed", kind_names[kinds[k]]);
        set_state(r.in, IBV_QPS_RESET);
        set_state(r.out, IBV_QPS_RESET);
        if (r.ah)
            ZERO(ibv_destroy_ah(r.ah));
        connect_route(&r);
        for (unsigned i = 0; i < 3; i++) {
            ZERO(route_send(&r, i, 8, IBV_SEND_SIGNALED));
            NEXT(r.send_cq, i, IBV_WC_SUCCESS);
            NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
        }
        drop_route(&r);
    }
}

/* SQE: an unreliable QP whose send failed flushes sends, keeps receiving, and goes on after RTS. */
TEST(a_failed_send_of_an_unreliable_qp_stops_only_its_send_queue)
{
    static const enum kind kinds[] = {UC, UD, UC_SRQ, UD_SRQ};

    for (int k = 0; k < 4; k++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE, .qkey = QKEY};
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;
        struct ibv_recv_wr rwr = {.wr_id = 70}, *rbad;
        struct route r;

        make_route(&r, kinds[k]);
        sge = route_sge(&r, 0, 8);
        ZERO(route_recv(&r, 0, 64));
        ZERO(ibv_post_recv(r.out, &rwr, &rbad));
        sge.lkey ^= 0x5a5a00;
        wr = route_wr(&r, 0, &sge);
        ZERO(ibv_post_send(r.out, &wr, &bad));
        ZERO(route_send(&r, 1, 8, 0));
        NEXT(r.send_cq, 0, IBV_WC_LOC_PROT_ERR);
        NEXT(r.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(state_of(r.out), IBV_QPS_SQE);
        EXPECT(quiet(r.recv_cq), "receives were flushed");
        ZERO(ibv_modify_qp(r.out, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
        ZERO(route_send(&r, 2, 8, IBV_SEND_SIGNALED));
        NEXT(r.send_cq, 2, IBV_WC_SUCCESS);
        NEXT(r.recv_cq, 0, IBV_WC_SUCCESS);
        drop_route(&r);
    }
}

/* RESET drops all silently, from any state, and the QP lives again. */
TEST(reset_drops_requests_and_completions_and_the_qp_lives_again)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct route r;

        make_route(&r, kind);
        for (int round = 0; round < 3; round++) {
            for (unsigned i = 0; i < BEFORE; i++) {
                ZERO(route_send(&r, 10 + i, 8, IBV_SEND_SIGNALED));
                if (!r.srq)
                    ZERO(route_recv(&r, 20 + i, 64));
            }
            if (round == 1)
                set_state(r.out, IBV_QPS_ERR);
            set_state(r.out, IBV_QPS_RESET);
            set_state(r.in, IBV_QPS_RESET);
            EXPECT(quiet(r.send_cq) && (r.srq || quiet(r.recv_cq)), "%s: completions survived", kind_names[kind]);
            if (r.ah)
                ZERO(ibv_destroy_ah(r.ah));
            connect_route(&r);
            ZERO(route_recv(&r, 1, 64));
            ZERO(route_send(&r, 2, 8, IBV_SEND_SIGNALED));
            NEXT(r.send_cq, 2, IBV_WC_SUCCESS);
            NEXT(r.recv_cq, 1, IBV_WC_SUCCESS);
        }
        drop_route(&r);
    }
}

/* Many rounds of posting into ERR: nothing is lost or doubled. */
TEST(posting_into_err_goes_on_as_long_as_completions_are_polled)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct route r;

        make_route(&r, kind);
        set_state(r.out, IBV_QPS_ERR);
        for (unsigned i = 0; i < 500; i++) {
            ZERO(route_send(&r, i, 8, 0));
            NEXT(r.send_cq, i, IBV_WC_WR_FLUSH_ERR);
        }
        EXPECT(quiet(r.send_cq));
        drop_route(&r);
    }
}
