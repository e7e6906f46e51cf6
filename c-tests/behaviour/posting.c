/* What posting returns: a positive errno value, errno, bad_wr, and the requests before the bad one stay posted. */
#include "route.h"

#define CHAIN 4

/* What can be wrong with a send request. */
enum mistake { TOO_MANY_SGES, NEGATIVE_SGES, BAD_OPCODE, INLINE_TOO_LARGE, INLINE_LIST_TOO_LARGE, QUEUE_FULL, MISTAKES };

static const struct {
    int error;
    const char *reason;
} expected[] = {
    {EINVAL, "num_sge=5"},   {EINVAL, "num_sge=-1"},   {EINVAL, "opcode=99"},
    {EINVAL, "inline bytes"}, {EINVAL, "inline bytes"}, {ENOMEM, "max_send_wr"},
};

static void spoil(struct route *r, struct ibv_send_wr *wr, enum mistake mistake)
{
    static struct ibv_sge list[2];

    if (mistake == TOO_MANY_SGES)
        wr->num_sge = ROUTE_SGE + 1;
    if (mistake == NEGATIVE_SGES)
        wr->num_sge = -1;
    if (mistake == BAD_OPCODE)
        wr->opcode = (enum ibv_wr_opcode)99;
    if (mistake == INLINE_TOO_LARGE || mistake == INLINE_LIST_TOO_LARGE) {
        wr->send_flags |= IBV_SEND_INLINE;
        wr->sg_list = list;
        wr->num_sge = mistake == INLINE_TOO_LARGE ? 1 : 2;
        list[0] = route_sge(r, 0, mistake == INLINE_TOO_LARGE ? r->max_inline + 1 : r->max_inline);
        list[1] = route_sge(r, 0, 1);
    }
}

static void send_chain(enum kind kind, enum mistake mistake, unsigned position)
{
    struct ibv_sge sges[5];
    struct ibv_send_wr wr[CHAIN], *bad = NULL;
    struct route r;
    unsigned before;
    int rc;

    make_route(&r, kind);
    for (int i = 0; i < 5; i++)
        sges[i] = route_sge(&r, 0, 16);
    for (unsigned i = 0; i < CHAIN; i++) {
        wr[i] = route_wr(&r, 100 + i, sges);
        wr[i].next = i + 1 < CHAIN ? &wr[i + 1] : NULL;
        ZERO(route_recv(&r, i, 64));
    }
    before = mistake == QUEUE_FULL ? r.max_send_wr - position : 0;
    /* Unsignaled requests keep their places: with them only `position` of the chain fit. */
    for (unsigned i = 0; i < before; i++) {
        if (i + CHAIN >= ROUTE_WR)
            NEXT(r.recv_cq, i + CHAIN - ROUTE_WR, IBV_WC_SUCCESS);
        if (i + CHAIN < before + CHAIN)
            ZERO(route_recv(&r, i + CHAIN, 64));
        ZERO(route_send(&r, i, 16, 0));
    }
    if (mistake != QUEUE_FULL)
        spoil(&r, &wr[position], mistake);
    errno = 0;
    said();
    rc = ibv_post_send(r.out, wr, &bad);
    EXPECT(rc == expected[mistake].error, "%s, mistake %d at %u: %s", kind_names[kind], mistake, position, rc_name(rc));
    EXPECT_EQ(errno, rc);
    EXPECT(bad == &wr[position], "%s, mistake %d at %u: bad_wr is the %d.", kind_names[kind], mistake, position,
           (int)(bad - wr));
    if (is_ours()) {
        const char *reason = said();

        EXPECT(strstr(reason, expected[mistake].reason), "%s, mistake %d: %s", kind_names[kind], mistake, reason);
    }
    for (unsigned i = 0; i < position; i++)
        NEXT(r.send_cq, 100 + i, IBV_WC_SUCCESS);
    EXPECT(quiet(r.send_cq), "a request behind the bad one was carried out");
    EXPECT_EQ(state_of(r.out), IBV_QPS_RTS);
    drop_route(&r);
}

#define SEND_TEST(name, mistake)                                                                                      \
    TEST(name)                                                                                                        \
    {                                                                                                                 \
        for (enum kind kind = 0; kind < KINDS; kind++)                                                                \
            for (unsigned position = 0; position < CHAIN; position++)                                                 \
                send_chain(kind, mistake, position);                                                                  \
    }

SEND_TEST(send_with_too_many_sges_is_bad_wr_and_those_before_it_go, TOO_MANY_SGES)
SEND_TEST(send_with_a_negative_sge_count_is_bad_wr_and_those_before_it_go, NEGATIVE_SGES)
SEND_TEST(send_with_an_unknown_opcode_is_bad_wr_and_those_before_it_go, BAD_OPCODE)
SEND_TEST(send_with_too_much_inline_data_is_bad_wr_and_those_before_it_go, INLINE_TOO_LARGE)
SEND_TEST(send_with_too_long_an_inline_list_is_bad_wr_and_those_before_it_go, INLINE_LIST_TOO_LARGE)
SEND_TEST(send_that_finds_the_queue_full_is_bad_wr_and_those_before_it_go, QUEUE_FULL)

/* Every opcode that the type of QP does not have. */
TEST(send_of_an_opcode_that_the_qp_type_lacks_is_refused)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE,         IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_TSO};

    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct route r;

        make_route(&r, kind);
        for (unsigned i = 0; i < sizeof(opcodes) / sizeof(*opcodes); i++) {
            struct ibv_sge sge = route_sge(&r, 0, 8);
            struct ibv_send_wr wr = route_wr(&r, 1, &sge), *bad = NULL;
            int has = opcodes[i] != IBV_WR_TSO &&
                      (type_of(kind) == IBV_QPT_RC || type_of(kind) == IBV_QPT_XRC_SEND ||
                       (type_of(kind) == IBV_QPT_UC && opcodes[i] <= IBV_WR_RDMA_WRITE_WITH_IMM));

            if (has)
                continue;
            wr.opcode = opcodes[i];
            REFUSED(ibv_post_send(r.out, &wr, &bad), EINVAL, "opcode=");
            EXPECT(bad == &wr);
        }
        EXPECT(quiet(r.send_cq));
        drop_route(&r);
    }
}

/* RESET, INIT and RTR refuse sends; only RESET refuses receives. */
TEST(the_state_of_a_qp_decides_what_may_be_posted)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad = NULL;
        struct ibv_recv_wr rwr = {.wr_id = 7}, *rbad = NULL;
        struct route r;
        int own_queue;

        make_route_in_reset(&r, kind);
        own_queue = !r.srq;
        sge = route_sge(&r, 0, 8);
        wr = route_wr(&r, 1, &sge);
        for (int state = IBV_QPS_RESET; state <= IBV_QPS_RTR; state++) {
            REFUSED(ibv_post_send(r.out, &wr, &bad), EINVAL, "expected RTS");
            EXPECT(bad == &wr);
            bad = NULL;
            if (own_queue && state == IBV_QPS_RESET) {
                REFUSED(ibv_post_recv(r.in, &rwr, &rbad), EINVAL, "RESET");
                EXPECT(rbad == &rwr);
            } else if (own_queue) {
                ZERO(ibv_post_recv(r.in, &rwr, &rbad));
            }
            if (state == IBV_QPS_RESET) {
                ZERO(to_init(r.in));
                ZERO(to_init(r.out));
            } else if (state == IBV_QPS_INIT) {
                ZERO(to_rtr(r.in, r.out->qp_num, 10, &r.gid));
                ZERO(to_rtr(r.out, r.in->qp_num, 20, &r.gid));
            }
        }
        drop_route(&r);
    }
}

enum receive_mistake { RECV_TOO_MANY, RECV_NEGATIVE, RECV_FULL, RECV_MISTAKES };

static void receive_chain(enum kind kind, enum receive_mistake mistake, unsigned position)
{
    static const int errors[] = {EINVAL, EINVAL, ENOMEM};
    static const char *const reasons[] = {"num_sge=5", "num_sge=-1", "full"};
    struct ibv_recv_wr wr[CHAIN], *bad = NULL;
    struct ibv_sge sges[5];
    struct route r;
    unsigned before;
    int rc;

    make_route(&r, kind);
    for (int i = 0; i < 5; i++)
        sges[i] = route_sge(&r, ROUTE_IN, 128);
    for (unsigned i = 0; i < CHAIN; i++)
        wr[i] = (struct ibv_recv_wr){
            .wr_id = 100 + i, .next = i + 1 < CHAIN ? &wr[i + 1] : NULL, .sg_list = sges, .num_sge = 1};
    before = mistake == RECV_FULL ? r.max_recv_wr - position : 0;
    for (unsigned i = 0; i < before; i++)
        ZERO(route_recv(&r, i, 128));
    if (mistake == RECV_TOO_MANY)
        wr[position].num_sge = ROUTE_SGE + 1;
    if (mistake == RECV_NEGATIVE)
        wr[position].num_sge = -1;
    errno = 0;
    said();
    rc = post_receives(&r, wr, &bad);
    EXPECT(rc == errors[mistake], "%s, mistake %d at %u: %s", kind_names[kind], mistake, position, rc_name(rc));
    EXPECT_EQ(errno, rc);
    EXPECT(bad == &wr[position]);
    if (is_ours()) {
        const char *reason = said();

        EXPECT(strstr(reason, reasons[mistake]), "%s, mistake %d: %s", kind_names[kind], mistake, reason);
    }
    /* Exactly those before the bad one are there. */
    for (unsigned i = 0; i < before + position; i++) {
        ZERO(route_send(&r, i, 16, IBV_SEND_SIGNALED));
        NEXT(r.send_cq, i, IBV_WC_SUCCESS);
        NEXT(r.recv_cq, i < before ? i : 100 + i - before, IBV_WC_SUCCESS);
    }
    ZERO(route_recv(&r, 200, 128));
    ZERO(route_send(&r, 200, 16, IBV_SEND_SIGNALED));
    NEXT(r.recv_cq, 200, IBV_WC_SUCCESS);
    EXPECT(quiet(r.recv_cq));
    drop_route(&r);
}

#define RECEIVE_TEST(name, mistake)                                                                                   \
    TEST(name)                                                                                                        \
    {                                                                                                                 \
        for (enum kind kind = 0; kind < KINDS; kind++)                                                                \
            for (unsigned position = 0; position < CHAIN; position++)                                                 \
                receive_chain(kind, mistake, position);                                                               \
    }

RECEIVE_TEST(receive_with_too_many_sges_is_bad_wr_and_those_before_it_stay, RECV_TOO_MANY)
RECEIVE_TEST(receive_with_a_negative_sge_count_is_bad_wr_and_those_before_it_stay, RECV_NEGATIVE)
RECEIVE_TEST(receive_that_finds_the_queue_full_is_bad_wr_and_those_before_it_stay, RECV_FULL)

TEST(receive_on_a_qp_without_a_queue_of_its_own_is_refused)
{
    static const enum kind kinds[] = {RC_SRQ, UC_SRQ, UD_SRQ, XRC};

    for (int i = 0; i < 4; i++) {
        struct route r;
        struct ibv_recv_wr wr = {.wr_id = 1}, *bad = NULL;

        make_route(&r, kinds[i]);
        REFUSED(ibv_post_recv(r.in, &wr, &bad), EINVAL, "no receive queue of its own");
        EXPECT(bad == &wr);
        if (kinds[i] == XRC)
            REFUSED(ibv_post_recv(r.out, &wr, &bad), EINVAL, "no receive queue of its own");
        drop_route(&r);
    }
}

TEST(datagram_without_an_address_handle_is_refused)
{
    struct ibv_sge sge;
    struct ibv_send_wr wr, *bad = NULL;
    struct ibv_qp_ex *ex;
    struct route r;

    make_route(&r, UD);
    sge = route_sge(&r, 0, 8);
    wr = route_wr(&r, 1, &sge);
    wr.wr.ud.ah = NULL;
    REFUSED(ibv_post_send(r.out, &wr, &bad), EINVAL, "wr.ud.ah is NULL");
    ex = NEED(ibv_qp_to_qp_ex(r.out));
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_ud_addr(ex, NULL, r.in->qp_num, QKEY);
    ibv_wr_set_sge(ex, sge.lkey, sge.addr, 8);
    REFUSED(ibv_wr_complete(ex), EINVAL, "");
    EXPECT(quiet(r.send_cq));
    drop_route(&r);
}

/* One request of a batch by ibv_wr_*, perhaps with a mistake. */
static void build(struct route *r, struct ibv_qp_ex *ex, uint64_t wr_id, int mistake)
{
    struct ibv_sge sges[ROUTE_SGE + 1];
    struct ibv_data_buf bufs[2] = {{r->buffer, r->max_inline}, {r->buffer, 1}};

    for (int i = 0; i <= ROUTE_SGE; i++)
        sges[i] = route_sge(r, 0, 4);
    ex->wr_id = wr_id;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(ex);
    if (is_ud(r))
        ibv_wr_set_ud_addr(ex, r->ah, r->in->qp_num, QKEY);
    if (r->kind == XRC)
        ibv_wr_set_xrc_srqn(ex, r->srqn);
    if (mistake == TOO_MANY_SGES)
        ibv_wr_set_sge_list(ex, ROUTE_SGE + 1, sges);
    else if (mistake == INLINE_TOO_LARGE)
        ibv_wr_set_inline_data(ex, r->buffer, r->max_inline + 1);
    else if (mistake == INLINE_LIST_TOO_LARGE)
        ibv_wr_set_inline_data_list(ex, 2, bufs);
    else
        ibv_wr_set_sge_list(ex, 2, sges);
}

/* A batch is posted whole or not at all. */
static void batch(enum kind kind, enum mistake mistake, unsigned position)
{
    struct ibv_qp_ex *ex;
    struct route r;
    unsigned before;
    int rc;

    make_route(&r, kind);
    ex = NEED(ibv_qp_to_qp_ex(r.out));
    before = mistake == QUEUE_FULL ? r.max_send_wr - position : 0;
    for (unsigned i = 0; i < ROUTE_WR; i++)
        ZERO(route_recv(&r, i, 64));
    for (unsigned i = 0; i < before; i++) {
        ZERO(route_send(&r, i, 16, 0));
        NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
        ZERO(route_recv(&r, ROUTE_WR + i, 64));
    }
    said();
    ibv_wr_start(ex);
    for (unsigned i = 0; i < CHAIN; i++)
        build(&r, ex, 100 + i, i == position && mistake != QUEUE_FULL ? (int)mistake : -1);
    errno = 0;
    rc = ibv_wr_complete(ex);
    EXPECT(rc == expected[mistake].error, "%s, mistake %d at %u: %s", kind_names[kind], mistake, position, rc_name(rc));
    if (is_ours()) {
        const char *reason = said();

        EXPECT(strstr(reason, "expected at most") || strstr(reason, "max_send_wr"), "%s", reason);
    }
    EXPECT(quiet(r.send_cq) && quiet(r.recv_cq), "%s: a part of the batch went", kind_names[kind]);
    if (mistake != QUEUE_FULL) {
        ibv_wr_start(ex);
        build(&r, ex, 1, TOO_MANY_SGES);
        ibv_wr_abort(ex);
        EXPECT(quiet(r.send_cq) && quiet(r.recv_cq));
        ibv_wr_start(ex);
        for (unsigned i = 0; i < CHAIN; i++)
            build(&r, ex, 200 + i, -1);
        ZERO(ibv_wr_complete(ex));
        for (unsigned i = 0; i < CHAIN; i++) {
            NEXT(r.send_cq, 200 + i, IBV_WC_SUCCESS);
            NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
        }
    }
    drop_route(&r);
}

#define BATCH_TEST(name, mistake)                                                                                     \
    TEST(name)                                                                                                        \
    {                                                                                                                 \
        for (enum kind kind = 0; kind < KINDS; kind++)                                                                \
            for (unsigned position = 0; position < CHAIN; position++)                                                 \
                batch(kind, mistake, position);                                                                       \
    }

BATCH_TEST(wr_complete_with_too_many_sges_posts_nothing, TOO_MANY_SGES)
BATCH_TEST(wr_complete_with_too_much_inline_data_posts_nothing, INLINE_TOO_LARGE)
BATCH_TEST(wr_complete_with_too_long_an_inline_list_posts_nothing, INLINE_LIST_TOO_LARGE)
BATCH_TEST(wr_complete_that_finds_the_queue_full_posts_nothing, QUEUE_FULL)

TEST(wr_complete_before_rts_posts_nothing)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct ibv_qp_ex *ex;
        struct route r;

        make_route_in_reset(&r, kind);
        ex = NEED(ibv_qp_to_qp_ex(r.out));
        for (int state = IBV_QPS_RESET; state <= IBV_QPS_RTR; state++) {
            struct ibv_ah_attr to = ah_to(&r.gid);

            if (is_ud(&r) && !r.ah)
                r.ah = NEED(ibv_create_ah(r.pd, &to));
            ibv_wr_start(ex);
            build(&r, ex, 1, -1);
            REFUSED(ibv_wr_complete(ex), EINVAL, "expected RTS");
            if (state == IBV_QPS_RESET)
                ZERO(to_init(r.out));
            if (state == IBV_QPS_INIT)
                ZERO(to_rtr(r.out, r.in->qp_num, 10, &r.gid));
        }
        EXPECT(quiet(r.send_cq));
        drop_route(&r);
    }
}

/* Requests without a completion keep their places until a later one that has one was polled. */
TEST(unsignaled_requests_hold_their_places_until_a_signaled_one_is_polled)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct route r;

        make_route(&r, kind);
        for (int round = 0; round < 3; round++) {
            unsigned n = 0;

            for (; n + 1 < r.max_send_wr; n++) {
                ZERO(route_recv(&r, n, 64));
                ZERO(route_send(&r, n, 16, 0));
                NEXT(r.recv_cq, n, IBV_WC_SUCCESS);
            }
            ZERO(route_recv(&r, n, 64));
            ZERO(route_send(&r, n, 16, IBV_SEND_SIGNALED));
            NEXT(r.recv_cq, n, IBV_WC_SUCCESS);
            REFUSED(route_send(&r, 99, 16, IBV_SEND_SIGNALED), ENOMEM, "max_send_wr");
            NEXT(r.send_cq, n, IBV_WC_SUCCESS);
            EXPECT(quiet(r.send_cq), "an unsignaled request has completed");
        }
        drop_route(&r);
    }
}

TEST(a_queue_of_unsignaled_requests_stays_full)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct route r;

        make_route(&r, kind);
        for (unsigned n = 0; n < r.max_send_wr; n++) {
            ZERO(route_recv(&r, n, 64));
            ZERO(route_send(&r, n, 16, 0));
            NEXT(r.recv_cq, n, IBV_WC_SUCCESS);
        }
        for (int i = 0; i < 50; i++) {
            EXPECT(quiet(r.send_cq));
            REFUSED(route_send(&r, 99, 16, 0), ENOMEM, "max_send_wr");
            usleep(1000);
        }
        drop_route(&r);
    }
}

/* sq_sig_all makes each request one with a completion. */
TEST(sq_sig_all_completes_requests_without_the_flag)
{
    struct duo d;
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 8, .max_send_sge = 1}, .sq_sig_all = 1};

    d.context = open_device();
    make_side(&d.a, d.context, IBV_QPT_RC, 4096);
    make_side(&d.b, d.context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(d.a.qp));
    attr.send_cq = attr.recv_cq = d.a.cq;
    d.a.qp = NEED(ibv_create_qp(d.a.pd, &attr));
    join(&d.a, &d.b);
    for (unsigned i = 0; i < 30; i++) {
        ZERO(recv_one(&d.b, i, 0, 8));
        ZERO(send_one(&d.a, i, 0, 8, 0));
        NEXT(d.a.cq, i, IBV_WC_SUCCESS);
        NEXT(d.b.cq, i, IBV_WC_SUCCESS);
    }
    drop_duo(&d);
}

/* An unsignaled request that fails completes all the same, and so do those behind it. */
TEST(an_unsignaled_request_that_fails_completes)
{
    static const enum kind kinds[] = {RC, RC_SRQ, UC, UD, XRC};

    for (int i = 0; i < 5; i++) {
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;
        struct route r;

        make_route(&r, kinds[i]);
        ZERO(route_recv(&r, 1, 64));
        sge = route_sge(&r, 0, 8);
        sge.lkey ^= 0x5a5a00;
        wr = route_wr(&r, 5, &sge);
        wr.send_flags = 0;
        ZERO(ibv_post_send(r.out, &wr, &bad));
        ZERO(route_send(&r, 6, 8, 0));
        NEXT(r.send_cq, 5, IBV_WC_LOC_PROT_ERR);
        NEXT(r.send_cq, 6, IBV_WC_WR_FLUSH_ERR);
        drop_route(&r);
    }
}

/* Programs look at the opcode of failed completions, too. */
TEST(failed_completions_carry_their_opcode_and_qp)
{
    static const struct {
        enum ibv_wr_opcode posted;
        enum ibv_wc_opcode completed;
    } all[] = {
        {IBV_WR_SEND, IBV_WC_SEND},
        {IBV_WR_SEND_WITH_IMM, IBV_WC_SEND},
        {IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE},
        {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE},
        {IBV_WR_RDMA_READ, IBV_WC_RDMA_READ},
        {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP},
        {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD},
    };
    struct duo d;

    make_duo(&d, IBV_QPT_RC);
    for (unsigned i = 0; i < 7; i++)
        ZERO(recv_one(&d.a, 100 + i, 0, 64));
    ZERO(to_err(d.a.qp));
    for (unsigned i = 0; i < 7; i++) {
        struct ibv_sge sge = sge_of(&d.a, 0, 8);
        struct ibv_send_wr wr = send_wr(i, &sge, all[i].posted), *bad;

        wr.send_flags = 0;
        ZERO(ibv_post_send(d.a.qp, &wr, &bad));
    }
    for (unsigned n = 0, sends = 0, receives = 0; n < 14; n++) {
        struct ibv_wc wc = next_wc(d.a.cq);

        EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.qp_num, d.a.qp->qp_num);
        if (wc.wr_id >= 100) {
            EXPECT_EQ(wc.wr_id, 100 + receives++);
            EXPECT_EQ(wc.opcode, IBV_WC_RECV);
        } else {
            EXPECT_EQ(wc.wr_id, sends);
            EXPECT_EQ(wc.opcode, all[sends++].completed);
        }
    }
    drop_duo(&d);
}
