/* What posting returns, which requests of a list stay, and how queues are flushed. */
#include "common.h"

static struct ibv_context *context;

static void list_with_a_bad_one(void)
{
    struct side a, b;
    struct ibv_send_wr wr[4], *bad = NULL;
    struct ibv_recv_wr rwr[4], *rbad = NULL;
    struct ibv_sge sge;
    struct ibv_wc wc;
    int rc;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    sge = sge_of(&b, 0, 64);
    for (int i = 0; i < 4; i++)
        rwr[i] = (struct ibv_recv_wr){
            .wr_id = (unsigned)i, .next = i < 3 ? &rwr[i + 1] : NULL, .sg_list = &sge, .num_sge = i == 2 ? 10000 : 1};
    rc = ibv_post_recv(b.qp, rwr, &rbad);
    printf("receives: %s, bad_wr the third %s\n", rc_name(rc), yes(rbad == &rwr[2]));
    sge = sge_of(&a, 0, 64);
    for (int i = 0; i < 4; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = (unsigned)i,
                                     .next = i < 3 ? &wr[i + 1] : NULL,
                                     .sg_list = &sge,
                                     .num_sge = i == 2 ? 10000 : 1,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED};
    rc = ibv_post_send(a.qp, wr, &bad);
    printf("sends: %s, bad_wr the third %s\n", rc_name(rc), yes(bad == &wr[2]));
    for (int i = 0; i < 2; i++) {
        show_next("send", a.cq);
        show_next("  recv", b.cq);
    }
    printf("no more: %s\n", yes(ibv_poll_cq(a.cq, 1, &wc) == 0 && ibv_poll_cq(b.cq, 1, &wc) == 0));
    wr[0].num_sge = 1;
    wr[0].next = NULL;
    wr[0].opcode = (enum ibv_wr_opcode)99;
    printf("opcode 99: refused %s\n", yes(ibv_post_send(a.qp, wr, &bad) > 0));
    wr[0].opcode = IBV_WR_SEND;
    wr[0].num_sge = -1;
    printf("-1 SGEs: refused %s\n", yes(ibv_post_send(a.qp, wr, &bad) > 0));
    drop_side(&a);
    drop_side(&b);
}

static void by_state(void)
{
    struct side s;

    make_side(&s, context, IBV_QPT_RC, 4096);
    printf("RESET: recv %s, send %s\n", rc_name(recv_one(&s, 1, 0, 8)), rc_name(send_one(&s, 1, 0, 8, 0)));
    ZERO(to_init(s.qp));
    printf("INIT: recv %s, send %s\n", rc_name(recv_one(&s, 1, 0, 8)), rc_name(send_one(&s, 1, 0, 8, 0)));
    ZERO(to_rtr(s.qp, 7, 1, &s.gid));
    printf("RTR: recv %s, send %s\n", rc_name(recv_one(&s, 2, 0, 8)), rc_name(send_one(&s, 1, 0, 8, 0)));
    drop_side(&s);
}

static void full_queues(void)
{
    struct side a, b;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    unsigned n = 0;
    int rc;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    ZERO(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init));
    /* Nobody receives, and the sender tries for ever: nothing leaves the queue. */
    while ((rc = send_one(&a, n, 0, 8, IBV_SEND_SIGNALED)) == 0 && n < 100000)
        n++;
    printf("send queue full: %s, at max_send_wr %s\n", rc_name(rc), yes(n == init.cap.max_send_wr));
    for (n = 0; (rc = recv_one(&a, n, 0, 8)) == 0 && n < 100000;)
        n++;
    printf("receive queue full: %s, at max_recv_wr %s\n", rc_name(rc), yes(n == init.cap.max_recv_wr));
    drop_side(&a);
    drop_side(&b);
}

/* Work posted before and after the QP went to ERR comes back in order; each queue by itself. */
static void flush(void)
{
    struct side a, b;
    uint64_t sends = 0, receives = 0;
    int in_order = 1, flushed = 0, directions = 1;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    for (unsigned i = 0; i < 5; i++) {
        ZERO(recv_one(&a, 100 + i, 0, 8));
        ZERO(send_one(&a, i, 0, 8, i == 2 ? IBV_SEND_SIGNALED : 0));
    }
    ZERO(to_err(a.qp));
    printf("in ERR: send %s, recv %s\n", rc_name(send_one(&a, 5, 0, 8, IBV_SEND_SIGNALED)),
           rc_name(recv_one(&a, 105, 0, 8)));
    for (int i = 0; i < 12; i++) {
        struct ibv_wc wc = next_wc(a.cq);

        flushed += wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == a.qp->qp_num;
        if (wc.wr_id >= 100) {
            in_order &= wc.wr_id == 100 + receives++;
            directions &= (wc.opcode & IBV_WC_RECV) != 0;
        } else {
            in_order &= wc.wr_id == sends++;
            directions &= (wc.opcode & IBV_WC_RECV) == 0;
        }
    }
    printf("%d flushed, %d sends, %d receives, in order %s, opcodes tell which %s\n", flushed, (int)sends, (int)receives,
           yes(in_order), yes(directions));
    /* RESET drops what is left, and the QP lives again. */
    ZERO(recv_one(&a, 1, 0, 8));
    {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        ZERO(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
        ZERO(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
    }
    join(&a, &b);
    ZERO(recv_one(&b, 2, 0, 8));
    ZERO(send_one(&a, 3, 0, 8, IBV_SEND_SIGNALED));
    for (;;) {
        struct ibv_wc wc = next_wc(a.cq);

        if (wc.status == IBV_WC_WR_FLUSH_ERR)
            continue;
        show_wc("after RESET", &wc);
        break;
    }
    show_next("  recv", b.cq);
    drop_side(&a);
    drop_side(&b);
}

/* The peer is in ERR: the sender gives up after its retries, and the rest is flushed. */
static void dead_peer(void)
{
    struct side a, b;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    ZERO(to_err(b.qp));
    ZERO(send_one(&a, 1, 0, 8, 0));
    ZERO(send_one(&a, 2, 0, 8, 0));
    show_next("peer in ERR", a.cq);
    show_next("  the next", a.cq);
    printf("  state %s\n", state_name(state_of(a.qp)));
    drop_side(&a);
    drop_side(&b);
}

/* rnr_retry 1: one more try after the receiver's timer, then an error. */
static void not_ready(void)
{
    struct side a, b;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 1, .max_rd_atomic = 1};
    uint64_t begin;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    ZERO(to_init(a.qp));
    ZERO(to_init(b.qp));
    ZERO(to_rtr(a.qp, b.qp->qp_num, 1, &b.gid));
    {
        struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                                  .path_mtu = IBV_MTU_1024,
                                  .dest_qp_num = a.qp->qp_num,
                                  .rq_psn = 1,
                                  .max_dest_rd_atomic = 1,
                                  .min_rnr_timer = 27, /* 122.88 ms */
                                  .ah_attr = ah_to(&a.gid)};

        ZERO(ibv_modify_qp(b.qp, &rtr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    }
    ZERO(ibv_modify_qp(a.qp, &attr,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC));
    begin = now_ms();
    ZERO(send_one(&a, 1, 0, 8, 0));
    show_next("no receive", a.cq);
    printf("  not before the receiver's timer: %s\n", yes(now_ms() - begin >= 120));
    drop_side(&a);
    drop_side(&b);
}

int main(void)
{
    start();
    context = open_device();
    list_with_a_bad_one();
    by_state();
    full_queues();
    flush();
    dead_peer();
    not_ready();
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
