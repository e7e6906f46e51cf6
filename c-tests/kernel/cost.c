/*
 * What calls cost in instructions, under `valgrind --tool=callgrind --collect-atstart=no`: a dump of the counters for each
 * row, whose name stands in its description ("Client Request: NAME") and begins with the number of repetitions.
 * System calls count as the few instructions around them; each call has been made before it is counted.
 */
#include "../common.h"

#include <valgrind/callgrind.h>

#define ROUNDS 20
/* Messages before those that are counted: what a program does all the time has settled then. */
#define WARM 300

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct side a, b;

/* Counts ROUNDS of a piece of code under a name, after one that is not counted. */
#define COUNT(name, ...)                                                                                              \
    do {                                                                                                              \
        for (int round = 0; round <= ROUNDS; round++) {                                                               \
            if (round == 1)                                                                                           \
                CALLGRIND_ZERO_STATS;                                                                                 \
            CALLGRIND_TOGGLE_COLLECT;                                                                                 \
            __VA_ARGS__;                                                                                              \
            CALLGRIND_TOGGLE_COLLECT;                                                                                 \
        }                                                                                                             \
        CALLGRIND_DUMP_STATS_AT("20 " name);                                                                          \
    } while (0)

static void objects(void)
{
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_qp_init_attr qp_attr = {.send_cq = a.cq,
                                       .recv_cq = a.cq,
                                       .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
                                       .qp_type = IBV_QPT_RC};
    struct ibv_ah_attr ah_attr = ah_to(&a.gid);
    struct ibv_port_attr port;
    struct ibv_device_attr device;
    union ibv_gid gid;

    COUNT("channel", ZERO(ibv_destroy_comp_channel(NEED(ibv_create_comp_channel(context)))));
    COUNT("PD", ZERO(ibv_dealloc_pd(NEED(ibv_alloc_pd(context)))));
    COUNT("MR", ZERO(ibv_dereg_mr(NEED(ibv_reg_mr(a.pd, a.buffer, a.size, ALL_ACCESS)))));
    COUNT("MW", ZERO(ibv_dealloc_mw(NEED(ibv_alloc_mw(a.pd, IBV_MW_TYPE_1)))));
    COUNT("CQ", ZERO(ibv_destroy_cq(NEED(ibv_create_cq(context, 16, NULL, NULL, 0)))));
    COUNT("SRQ", ZERO(ibv_destroy_srq(NEED(ibv_create_srq(a.pd, &srq_attr)))));
    COUNT("QP", ZERO(ibv_destroy_qp(NEED(ibv_create_qp(a.pd, &qp_attr)))));
    COUNT("AH", ZERO(ibv_destroy_ah(NEED(ibv_create_ah(a.pd, &ah_attr)))));
    COUNT("query port", ZERO(ibv_query_port(context, PORT, &port)));
    COUNT("query device", ZERO(ibv_query_device(context, &device)));
    COUNT("query GID", ZERO(ibv_query_gid(context, PORT, gid_index(), &gid)));
}

/* Waits for the completion of `s` without polling its queue. */
static void arrived(struct side *s)
{
    struct ibv_cq *cq;
    void *its_context;

    ZERO(ibv_get_cq_event(channel, &cq, &its_context));
    ibv_ack_cq_events(cq, 1);
    if (cq != s->cq)
        die("an event of another queue");
}

static void data_path(const char *name, unsigned flags, uint32_t length)
{
    uint64_t sends = 0, receives = 0;
    struct ibv_wc wc;

    for (int round = 0; round < WARM + ROUNDS; round++) {
        struct ibv_sge sge = sge_of(&a, 0, length), to = sge_of(&b, 0, 64);
        struct ibv_send_wr wr = {
            .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | flags};
        struct ibv_send_wr *bad;
        struct ibv_recv_wr rwr = {.wr_id = 2, .sg_list = &to, .num_sge = 1}, *rbad;

        if (round == WARM)
            CALLGRIND_ZERO_STATS;
        ZERO(ibv_req_notify_cq(a.cq, 0));
        CALLGRIND_TOGGLE_COLLECT;
        ZERO(ibv_post_recv(b.qp, &rwr, &rbad));
        ZERO(ibv_post_send(a.qp, &wr, &bad));
        CALLGRIND_TOGGLE_COLLECT;
        /* The sender completes after the receiver. */
        arrived(&a);
        CALLGRIND_TOGGLE_COLLECT;
        sends += (uint64_t)ibv_poll_cq(a.cq, 1, &wc);
        receives += (uint64_t)ibv_poll_cq(b.cq, 1, &wc);
        CALLGRIND_TOGGLE_COLLECT;
        /* Nothing is there any more: an empty poll. */
        if (sends != receives || sends != (uint64_t)round + 1 || wc.status)
            die("a poll found nothing");
    }
    CALLGRIND_DUMP_STATS_AT(name);
}

static void empty_polls(void)
{
    struct ibv_wc wc;

    COUNT("poll, empty", if (ibv_poll_cq(a.cq, 1, &wc)) die("a completion"));
}

/* The same by the calls of extended queues. */
static void extended_data_path(void)
{
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 64, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = NEED(ibv_create_cq_ex(context, &cq_attr));
    struct ibv_qp_init_attr_ex attr = {.send_cq = ibv_cq_ex_to_cq(cq),
                                       .recv_cq = b.cq,
                                       .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1,
                                               .max_inline_data = 32},
                                       .qp_type = IBV_QPT_RC,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .pd = a.pd,
                                       .send_ops_flags = IBV_QP_EX_WITH_SEND};
    struct ibv_qp *former = a.qp;
    struct ibv_qp_ex *qp;
    struct ibv_poll_cq_attr none = {0};
    struct ibv_cq *its_cq;
    void *its_context;

    a.qp = NEED(ibv_create_qp_ex(context, &attr));
    qp = NEED(ibv_qp_to_qp_ex(a.qp));
    ZERO(ibv_destroy_qp(b.qp));
    b.qp = make_qp(&b, IBV_QPT_RC, NULL);
    join(&a, &b);
    for (int round = 0; round < WARM + ROUNDS; round++) {
        struct ibv_sge to = sge_of(&b, 0, 64);
        struct ibv_recv_wr rwr = {.wr_id = 2, .sg_list = &to, .num_sge = 1}, *rbad;
        struct ibv_wc wc;

        if (round == WARM)
            CALLGRIND_ZERO_STATS;
        ZERO(ibv_post_recv(b.qp, &rwr, &rbad));
        ZERO(ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0));
        CALLGRIND_TOGGLE_COLLECT;
        ibv_wr_start(qp);
        qp->wr_id = 1;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(qp);
        ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buffer, 32);
        ZERO(ibv_wr_complete(qp));
        CALLGRIND_TOGGLE_COLLECT;
        ZERO(ibv_get_cq_event(channel, &its_cq, &its_context));
        ibv_ack_cq_events(its_cq, 1);
        CALLGRIND_TOGGLE_COLLECT;
        ZERO(ibv_start_poll(cq, &none));
        if (cq->status || cq->wr_id != 1 || ibv_wc_read_opcode(cq) != IBV_WC_SEND)
            die("another completion");
        (void)ibv_wc_read_qp_num(cq);
        ibv_end_poll(cq);
        CALLGRIND_TOGGLE_COLLECT;
        if (ibv_poll_cq(b.cq, 1, &wc) != 1 || wc.status)
            die("nothing was received");
    }
    CALLGRIND_DUMP_STATS_AT("20 SEND and poll, extended calls");
    COUNT("start_poll, empty", if (ibv_start_poll(cq, &none) != ENOENT) die("a completion"));
    COUNT("extended CQ", ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(NEED(ibv_create_cq_ex(context, &cq_attr))))));
    COUNT("extended QP", ZERO(ibv_destroy_qp(NEED(ibv_create_qp_ex(context, &attr)))));
    ZERO(ibv_destroy_qp(a.qp));
    ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    a.qp = former;
}

static struct ibv_cq *with_channel(void)
{
    return NEED(ibv_create_cq(context, 64, NULL, channel, 0));
}

int main(void)
{
    start();
    limit_time(300);
    context = open_device();
    channel = NEED(ibv_create_comp_channel(context));
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    objects();
    ZERO(ibv_destroy_qp(a.qp));
    ZERO(ibv_destroy_cq(a.cq));
    a.cq = with_channel();
    a.qp = make_qp(&a, IBV_QPT_RC, NULL);
    join(&a, &b);
    data_path("20 SEND of 32 bytes", 0, 32);
    data_path("20 SEND of 32 bytes inline", IBV_SEND_INLINE, 32);
    empty_polls();
    extended_data_path();
    COUNT("open and close", {
        struct ibv_context *one = open_device();

        ZERO(ibv_close_device(one));
    });
    drop_side(&a);
    drop_side(&b);
    ZERO(ibv_destroy_comp_channel(channel));
    ZERO(ibv_close_device(context));
    printf("counted\n");
    return 0;
}
