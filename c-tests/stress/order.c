/*
 * order [-s SEED] [-n COUNT] [pair]: SENDs and WRITEs to the same bytes, in random order, of random sizes, some met by a
 * receiver that is not ready: what was posted last is what the bytes hold. In one process, or with `pair` between two.
 */
#include "stress.h"

enum { MOST = 5, LONGEST = 100 * 1024 };

struct party {
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory; /* MOST sources, the target, the mark */
    struct about me, peer;
};

static struct ibv_context *context;

static int ops_of(long round)
{
    return 1 + (int)(mix(seed, (uint64_t)round) % MOST);
}

static int is_send(long round, int i)
{
    return (int)(mix(mix(seed, (uint64_t)round), (uint64_t)i + 1) & 1);
}

static uint32_t length_of(long round)
{
    static const uint32_t limits[] = {8, 200, 5000, LONGEST};
    uint64_t r = mix(mix(seed, (uint64_t)round), 77);

    return 1 + (uint32_t)((r >> 8) % limits[r % 4]);
}

static int is_late(long round)
{
    return mix(mix(seed, (uint64_t)round), 78) % 8 == 0;
}

static void make(struct party *p)
{
    size_t bytes = (MOST + 2) * (size_t)LONGEST;
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = MOST + 1, .max_recv_wr = MOST + 1, .max_send_sge = 1, .max_recv_sge = 1}};

    p->pd = NEED(ibv_alloc_pd(context));
    p->cq = NEED(ibv_create_cq(context, 64, NULL, NULL, 0));
    init.send_cq = init.recv_cq = p->cq;
    p->qp = NEED(ibv_create_qp(p->pd, &init));
    p->memory = pages(bytes);
    p->mr = NEED(ibv_reg_mr(p->pd, p->memory, bytes, ALL_ACCESS));
    ZERO(to_init(p->qp));
    p->me = (struct about){.qpn = p->qp->qp_num, .psn = 0xfffff8, .rkey = p->mr->rkey,
                           .address = (uintptr_t)p->memory + MOST * (uint64_t)LONGEST};
    ZERO(ibv_query_gid(context, PORT, 0, &p->me.gid));
}

static void drop(struct party *p)
{
    ZERO(ibv_destroy_qp(p->qp));
    ZERO(ibv_destroy_cq(p->cq));
    ZERO(ibv_dereg_mr(p->mr));
    ZERO(ibv_dealloc_pd(p->pd));
}

static void initiate(struct party *p, long round)
{
    struct ibv_send_wr wr = {.num_sge = 1}, *bad;
    struct ibv_sge sge = {.lkey = p->mr->lkey};
    int n = ops_of(round);

    wr.sg_list = &sge;
    wr.wr.rdma.remote_addr = p->peer.address;
    wr.wr.rdma.rkey = p->peer.rkey;
    for (int i = 0; i <= n; i++) {
        sge.addr = (uintptr_t)p->memory + (uint64_t)(i % MOST) * LONGEST;
        sge.length = i < n ? length_of(round) : 0;
        wr.wr_id = (uint64_t)i;
        wr.opcode = i == n || is_send(round, i) ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
        wr.send_flags = i == n ? IBV_SEND_SIGNALED : 0;
        if (i < n)
            put_pattern((unsigned char *)(uintptr_t)sge.addr, sge.length, (uint64_t)round * MOST + (uint64_t)i);
        ZERO(ibv_post_send(p->qp, &wr, &bad));
    }
}

static void prepare(struct party *p, long round)
{
    struct ibv_sge sge = {(uintptr_t)p->memory + MOST * (uint64_t)LONGEST, LONGEST, p->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 100, .sg_list = &sge, .num_sge = 1}, *bad;

    for (int i = 0; i < ops_of(round); i++)
        if (is_send(round, i))
            ZERO(ibv_post_recv(p->qp, &wr, &bad));
    wr.wr_id = 101;
    wr.num_sge = 0;
    ZERO(ibv_post_recv(p->qp, &wr, &bad));
}

/* Waits for the completion with this wr_id; those of other receives come before it. */
static void await(struct party *p, uint64_t wr_id)
{
    struct ibv_wc wc;

    do {
        wc = next_wc(p->cq);
        if (wc.status)
            BAD("wr_id %" PRIu64 ": %s", wc.wr_id, ibv_wc_status_str(wc.status));
    } while (wc.wr_id != wr_id);
}

static void check(struct party *p, long round)
{
    int last = ops_of(round) - 1;
    long wrong;

    await(p, 101);
    wrong = pattern_differs(p->memory + MOST * (size_t)LONGEST, length_of(round), (uint64_t)round * MOST + (uint64_t)last);
    if (wrong >= 0)
        BAD("round %ld, %d operations, %u bytes, the last a %s: differs at %ld", round, last + 1, length_of(round),
            is_send(round, last) ? "SEND" : "WRITE", wrong);
}

static void in_one_process(void)
{
    struct party a = {0}, b = {0};

    make(&a);
    make(&b);
    a.peer = b.me;
    b.peer = a.me;
    connect_qp(a.qp, &a.me, &b.me, 18, 7, 7);
    connect_qp(b.qp, &b.me, &a.me, 18, 7, 7);
    for (long round = 0; round < count; round++) {
        if (!is_late(round))
            prepare(&b, round);
        initiate(&a, round);
        if (is_late(round))
            prepare(&b, round);
        await(&a, (uint64_t)ops_of(round));
        check(&b, round);
    }
    drop(&a);
    drop(&b);
}

static void between_two(int fd, int initiates)
{
    struct party p = {0};

    make(&p);
    tell(fd, &p.me, sizeof(p.me));
    hear(fd, &p.peer, sizeof(p.peer));
    connect_qp(p.qp, &p.me, &p.peer, 18, 7, 7);
    together(fd);
    for (long round = 0; round < count; round++) {
        if (!initiates && !is_late(round))
            prepare(&p, round);
        together(fd);
        if (initiates) {
            initiate(&p, round);
            await(&p, (uint64_t)ops_of(round));
        } else {
            if (is_late(round)) {
                usleep(500);
                prepare(&p, round);
            }
            check(&p, round);
        }
    }
    together(fd);
    drop(&p);
}

int main(int argc, char **argv)
{
    pid_t pid;

    options(argc, argv, 1500, 60);
    if (optind < argc && !strcmp(argv[optind], "second")) {
        context = open_device();
        between_two(SECOND_FD, 0);
        return 0;
    }
    if (optind < argc) {
        int fd = second_process(argv, "second", &pid);

        context = open_device();
        between_two(fd, 1);
        expect_exit(pid, 0);
    } else {
        context = open_device();
        in_one_process();
    }
    printf("ok\n");
    return 0;
}
