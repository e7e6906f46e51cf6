/*
 * flood [-s SEED] [-n COUNT]: two processes send each other 1 MiB messages, READ and WRITE as much, over several QPs,
 * some with an SRQ, and neither polls for a while, so that both rings are full both ways; then all must complete.
 */
#include "stress.h"

enum { QPS = 4, DEPTH = 8, LENGTH = 1 << 20 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_qp *qps[QPS];
static struct about me[QPS], peer[QPS];
static unsigned char *memory;
static long received[QPS], sent[QPS];

/* Per QP: DEPTH sources, DEPTH receives, a target, an answer. */
static unsigned char *place(int q, int i)
{
    return memory + ((size_t)q * (2 * DEPTH + 3) + (size_t)i) * LENGTH;
}

static void give_receive(int q, int i)
{
    struct ibv_sge sge = {(uintptr_t)place(q, DEPTH + i), LENGTH, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1000u + (unsigned)(q * 100 + i), .sg_list = &sge, .num_sge = 1}, *bad;

    if (q % 2)
        ZERO(ibv_post_srq_recv(srq, &wr, &bad));
    else
        ZERO(ibv_post_recv(qps[q], &wr, &bad));
}

static void post(int q, long round, int i)
{
    static const enum ibv_wr_opcode codes[] = {IBV_WR_SEND, IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE};
    struct ibv_sge sge = {(uintptr_t)place(q, i), LENGTH, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = (unsigned)(q * 100 + i), .sg_list = &sge, .num_sge = 1,
                             .opcode = codes[i % 4], .send_flags = IBV_SEND_SIGNALED}, *bad;

    if (wr.opcode == IBV_WR_SEND)
        put_pattern(place(q, i), LENGTH, (uint64_t)(round * 1000 + q * 100 + i));
    if (wr.opcode == IBV_WR_RDMA_READ)
        sge.addr = (uintptr_t)place(q, 2 * DEPTH + 1);
    wr.wr.rdma.remote_addr = peer[q].address;
    wr.wr.rdma.rkey = peer[q].rkey;
    ZERO(ibv_post_send(qps[q], &wr, &bad));
}

static void exchange(int fd, long rounds)
{
    for (long round = 0; round < rounds; round++) {
        int left = QPS * DEPTH;
        long messages = QPS * DEPTH / 2;

        for (int i = 0; i < DEPTH; i++)
            for (int q = 0; q < QPS; q++)
                post(q, round, i);
        /* Neither side polls: whoever waits for room here would wait for ever. */
        usleep((useconds_t)draw(30000));
        together(fd);
        while (left || messages) {
            struct ibv_wc wc;
            int n = ibv_poll_cq(cq, 1, &wc);

            if (n < 0)
                BAD("ibv_poll_cq = %d", n);
            if (!n)
                continue;
            if (wc.status)
                BAD("wr_id %" PRIu64 ": %s", wc.wr_id, ibv_wc_status_str(wc.status));
            if (wc.wr_id < 1000) {
                sent[wc.wr_id / 100]++;
                left--;
                continue;
            }
            /* Receives of an SRQ serve any of its QPs: the QP of the completion tells whose message it is. */
            for (int q = 0; q < QPS; q++)
                if (qps[q]->qp_num == wc.qp_num) {
                    int i = (int)(received[q] % (DEPTH / 2)), at = (int)(wc.wr_id - 1000), is = i / 2 * 4 + i % 2;
                    long wrong = pattern_differs(place(at / 100, DEPTH + at % 100), LENGTH,
                                                 (uint64_t)(round * 1000 + q * 100 + is));

                    if (wc.byte_len != LENGTH || wrong >= 0)
                        BAD("round %ld, QP %d, message %d differs at %ld", round, q, i, wrong);
                    received[q]++;
                    messages--;
                    give_receive(at / 100, at % 100);
                }
        }
        together(fd);
    }
}

int main(int argc, char **argv)
{
    int fd = SECOND_FD, first;
    size_t bytes = (size_t)QPS * (2 * DEPTH + 3) * LENGTH;
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = QPS * DEPTH, .max_sge = 1}};
    pid_t pid = 0;

    options(argc, argv, 6, 60);
    first = optind >= argc;
    if (first)
        fd = second_process(argv, "second", &pid);
    drawn = (uint64_t)first << 40;
    context = open_device();
    pd = NEED(ibv_alloc_pd(context));
    cq = NEED(ibv_create_cq(context, 4 * QPS * DEPTH, NULL, NULL, 0));
    srq = NEED(ibv_create_srq(pd, &srq_init));
    memory = pages(bytes);
    mr = NEED(ibv_reg_mr(pd, memory, bytes, ALL_ACCESS));
    for (int q = 0; q < QPS; q++) {
        struct ibv_qp_init_attr init = {
            .send_cq = cq, .recv_cq = cq, .srq = q % 2 ? srq : NULL, .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};

        qps[q] = NEED(ibv_create_qp(pd, &init));
        ZERO(to_init(qps[q]));
        /* Too few at times: RNR. */
        for (int i = 0; i < DEPTH / 4; i++)
            give_receive(q, i);
        me[q] = (struct about){.qpn = qps[q]->qp_num, .psn = 0xfffff0u + (unsigned)q, .rkey = mr->rkey,
                               .address = (uintptr_t)place(q, 2 * DEPTH)};
        ZERO(ibv_query_gid(context, PORT, 0, &me[q].gid));
    }
    tell(fd, me, sizeof(me));
    hear(fd, peer, sizeof(peer));
    for (int q = 0; q < QPS; q++)
        connect_qp(qps[q], &me[q], &peer[q], 18, 7, 7);
    together(fd);
    exchange(fd, count);
    for (int q = 0; q < QPS; q++)
        ZERO(ibv_destroy_qp(qps[q]));
    ZERO(ibv_destroy_srq(srq));
    ZERO(ibv_destroy_cq(cq));
    ZERO(ibv_dereg_mr(mr));
    ZERO(ibv_dealloc_pd(pd));
    ZERO(ibv_close_device(context));
    if (first) {
        expect_exit(pid, 0);
        printf("ok\n");
    }
    return 0;
}
