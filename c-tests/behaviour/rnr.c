/* Receiver not ready: how often a sender tries again, how long it waits, and that it waits for ever when told so. */
#include "route.h"

/* The code of min_rnr_timer in hundredths of a millisecond (IBA 9.7.5.2.8). */
static const unsigned timers[32] = {65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,    32,    48,    64,    96,    128,   192,
                                    256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,  8192,  12288, 16384, 24576, 32768, 49152};

static void set_up(struct route *r, enum kind kind, uint8_t timer, uint8_t rnr_retry)
{
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .rq_psn = 1, .max_dest_rd_atomic = 1};
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry, .max_rd_atomic = 1};
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

    make_route_in_reset(r, kind);
    ZERO(to_init(r->in));
    ZERO(to_init(r->out));
    rtr.ah_attr = ah_to(&r->gid);
    rtr.dest_qp_num = r->out->qp_num;
    rtr.min_rnr_timer = timer;
    ZERO(ibv_modify_qp(r->in, &rtr, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    ZERO(to_rtr(r->out, r->in->qp_num, 1, &r->gid));
    ZERO(ibv_modify_qp(r->out, &rts,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC));
}

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM};

static int post(struct route *r, uint64_t id, enum ibv_wr_opcode opcode)
{
    struct ibv_sge sge = route_sge(r, 0, 8);
    struct ibv_send_wr wr = route_wr(r, id, &sge), *bad;

    wr.opcode = opcode;
    wr.wr.rdma.remote_addr = (uintptr_t)r->buffer + ROUTE_IN;
    wr.wr.rdma.rkey = r->mr->rkey;
    return ibv_post_send(r->out, &wr, &bad);
}

static const enum kind reliable[] = {RC, RC_SRQ, XRC};

/* n retries, each not before the receiver's timer, then the error. */
TEST(rnr_retry_counts_retries_that_keep_the_receivers_time)
{
    static const uint8_t codes[] = {1, 10, 16, 20, 22};

    for (int k = 0; k < 3; k++)
        for (int o = 0; o < 3; o++)
            for (uint8_t retries = 0; retries < 7; retries += 2)
                for (int c = 0; c < 5; c++) {
                    struct route r;
                    uint64_t begin, took;

                    if (c > 2 && (k || o))
                        continue;
                    set_up(&r, reliable[k], codes[c], retries);
                    said();
                    begin = now_us();
                    ZERO(post(&r, 1, opcodes[o]));
                    ZERO(post(&r, 2, IBV_WR_SEND));
                    NEXT(r.send_cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
                    took = now_us() - begin;
                    NEXT(r.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
                    EXPECT(took >= retries * timers[codes[c]] * 10ull, "%d retries of %u0 us took %d us", retries,
                           timers[codes[c]], (int)took);
                    EXPECT_EQ(state_of(r.out), IBV_QPS_ERR);
                    EXPECT(!is_ours() || strstr(said(), text_of("rnr_retry=%d", retries)));
                    /* The receiver is not to blame. */
                    EXPECT_EQ(state_of(r.in), IBV_QPS_RTR);
                    drop_route(&r);
                }
}

/* Every code of the table: one retry waits at least so long. */
TEST(every_rnr_timer_waits_at_least_as_long_as_the_table_says)
{
    for (uint8_t code = 1; code < 32; code++) {
        struct route r;
        uint64_t begin;

        if (timers[code] > 13000)
            continue;
        set_up(&r, RC, code, 1);
        begin = now_us();
        ZERO(post(&r, 1, IBV_WR_SEND));
        NEXT(r.send_cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
        EXPECT(now_us() - begin >= timers[code] * 10ull, "code %d", code);
        drop_route(&r);
    }
}

/* Code 0 is the longest, not none: what rdma_cm connections have. */
TEST(rnr_timer_0_waits_655_milliseconds)
{
    static const uint8_t codes[] = {0, 28, 31};

    for (int i = 0; i < 3; i++) {
        struct route r;
        uint64_t begin;

        set_up(&r, RC, codes[i], 1);
        begin = now_us();
        ZERO(post(&r, 1, IBV_WR_SEND));
        NEXT(r.send_cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
        EXPECT(now_us() - begin >= timers[codes[i]] * 10ull, "code %d", codes[i]);
        drop_route(&r);
    }
}

TEST(rnr_retry_of_7_waits_for_ever)
{
    for (int k = 0; k < 3; k++)
        for (int o = 0; o < 3; o++) {
            struct route r;
            uint64_t end = now_ms() + 200;

            set_up(&r, reliable[k], 1, 7);
            ZERO(post(&r, 1, opcodes[o]));
            while (now_ms() < end)
                EXPECT(quiet(r.send_cq) && quiet(r.recv_cq));
            EXPECT_EQ(state_of(r.out), IBV_QPS_RTS);
            ZERO(route_recv(&r, 2, 64));
            NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
            NEXT(r.recv_cq, 2, IBV_WC_SUCCESS);
            drop_route(&r);
        }
}

/* A receive that comes late but in time: nothing is lost, nothing comes twice, order holds. */
TEST(a_late_receive_takes_the_message_and_those_behind_it_in_order)
{
    for (int k = 0; k < 3; k++)
        for (unsigned late = 0; late < 5; late++) {
            struct route r;

            set_up(&r, reliable[k], 12, 7);
            for (unsigned i = 0; i < 6; i++)
                ZERO(post(&r, i, opcodes[i % 3]));
            for (unsigned i = 0; i < 6; i++) {
                usleep(late * 700);
                ZERO(route_recv(&r, 100 + i, 64));
                NEXT(r.send_cq, i, IBV_WC_SUCCESS);
                NEXT(r.recv_cq, 100 + i, IBV_WC_SUCCESS);
            }
            EXPECT(quiet(r.send_cq) && quiet(r.recv_cq));
            drop_route(&r);
        }
}

/* Retries are counted anew for each message. */
TEST(rnr_retries_are_counted_for_each_message)
{
    struct route r;

    set_up(&r, RC, 26, 6);
    for (unsigned i = 0; i < 4; i++) {
        ZERO(post(&r, i, IBV_WR_SEND));
        usleep(2 * timers[26] * 10);
        ZERO(route_recv(&r, i, 64));
        NEXT(r.send_cq, i, IBV_WC_SUCCESS);
        NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
    }
    drop_route(&r);
}

/* What needs no receive never meets RNR, also with rnr_retry 0 and behind nothing. */
TEST(writes_reads_and_atomics_never_meet_rnr)
{
    static const enum ibv_wr_opcode free[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};

    for (int k = 0; k < 3; k++) {
        struct route r;

        set_up(&r, reliable[k], 1, 0);
        for (unsigned i = 0; i < 300; i++) {
            struct ibv_sge sge = route_sge(&r, 0, 8);
            struct ibv_send_wr wr = route_wr(&r, i, &sge), *bad;

            wr.opcode = free[i % 3];
            if (i % 3 == 2) {
                wr.wr.atomic.remote_addr = (uintptr_t)r.buffer + ROUTE_IN;
                wr.wr.atomic.rkey = r.mr->rkey;
            } else {
                wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + ROUTE_IN;
                wr.wr.rdma.rkey = r.mr->rkey;
            }
            ZERO(ibv_post_send(r.out, &wr, &bad));
            NEXT(r.send_cq, i, IBV_WC_SUCCESS);
        }
        drop_route(&r);
    }
}

/* One QP that is not ready holds no other up. */
TEST(rnr_of_one_qp_leaves_others_alone)
{
    struct side a, b;
    struct route r;

    set_up(&r, RC, 0, 7);
    make_side(&a, r.context, IBV_QPT_RC, 4096);
    make_side(&b, r.context, IBV_QPT_RC, 4096);
    join(&a, &b);
    ZERO(post(&r, 1, IBV_WR_SEND));
    for (unsigned i = 0; i < 1000; i++) {
        ZERO(recv_one(&b, i, 0, 64));
        ZERO(send_one(&a, i, 0, 8, IBV_SEND_SIGNALED));
        NEXT(a.cq, i, IBV_WC_SUCCESS);
        NEXT(b.cq, i, IBV_WC_SUCCESS);
    }
    EXPECT(quiet(r.send_cq));
    drop_side(&a);
    drop_side(&b);
    drop_route(&r);
}

/* Between two processes: the peer says when it posts. */
static uint8_t timer_used, retries_used;

static void join_as_told(int fd, struct side *s)
{
    struct address mine, theirs;
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .min_rnr_timer = timer_used};
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .sq_psn = 3, .timeout = 14, .retry_cnt = 7, .rnr_retry = retries_used, .max_rd_atomic = 1};

    make_side(s, open_device(), IBV_QPT_RC, 4096);
    mine = (struct address){
        .qpn = s->qp->qp_num, .psn = 3, .rkey = s->mr->rkey, .addr = (uintptr_t)s->buffer, .gid = s->gid};
    tell(fd, &mine, sizeof(mine));
    hear(fd, &theirs, sizeof(theirs));
    ZERO(to_init(s->qp));
    rtr.dest_qp_num = theirs.qpn;
    rtr.rq_psn = 3;
    rtr.ah_attr = ah_to(&theirs.gid);
    ZERO(ibv_modify_qp(s->qp, &rtr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    ZERO(ibv_modify_qp(s->qp, &rts,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC));
    together(fd);
}

static void receiver(int fd)
{
    struct side s;
    char order;

    memset(&s, 0, sizeof(s));
    join_as_told(fd, &s);
    while (recv(fd, &order, 1, 0) == 1) {
        ZERO(recv_one(&s, 1, 0, 64));
        NEXT(s.cq, 1, IBV_WC_SUCCESS);
        tell(fd, &order, 1);
    }
}

TEST_BETWEEN(rnr_between_processes_counts_waits_and_ends)
{
    static const uint8_t codes[] = {1, 16, 22};

    for (uint8_t retries = 0; retries < 7; retries += 3)
        for (int c = 0; c < 3; c++) {
            struct side s;
            uint64_t begin;
            pid_t pid;
            int fd;

            timer_used = codes[c];
            retries_used = retries;
            pid = with_other(receiver, &fd);
            memset(&s, 0, sizeof(s));
            join_as_told(fd, &s);
            begin = now_us();
            ZERO(send_one(&s, 1, 0, 8, 0));
            ZERO(send_one(&s, 2, 0, 8, 0));
            NEXT(s.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
            EXPECT(now_us() - begin >= retries * timers[codes[c]] * 10ull, "%d retries, code %d", retries, codes[c]);
            NEXT(s.cq, 2, IBV_WC_WR_FLUSH_ERR);
            EXPECT_EQ(state_of(s.qp), IBV_QPS_ERR);
            close(fd);
            ends_well(pid);
            drop_side(&s);
        }
}

TEST_BETWEEN(a_late_receive_in_another_process_takes_the_message)
{
    for (uint8_t code = 1; code < 24; code += 7) {
        struct side s;
        pid_t pid;
        int fd;
        char order = 'r';

        timer_used = code;
        retries_used = 7;
        pid = with_other(receiver, &fd);
        memset(&s, 0, sizeof(s));
        join_as_told(fd, &s);
        for (unsigned i = 0; i < 10; i++) {
            ZERO(send_one(&s, i, 0, 8, IBV_SEND_SIGNALED));
            usleep(i * 500);
            EXPECT(quiet(s.cq));
            tell(fd, &order, 1);
            NEXT(s.cq, i, IBV_WC_SUCCESS);
            hear(fd, &order, 1);
        }
        close(fd);
        ends_well(pid);
        drop_side(&s);
    }
}
