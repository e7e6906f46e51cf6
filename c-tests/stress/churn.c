/*
 * churn [-s SEED] [-n COUNT]: objects come and go while traffic runs: QPs reset or destroyed with messages under way in
 * both directions, regions deregistered under READs and WRITEs, CQs, channels and contexts; between two processes, with
 * threads. Descriptors and memory do not grow.
 */
#include "stress.h"

enum { LENGTH = 64 * 1024, DEPTH = 8, THREADS = 2 };

struct worker {
    int fd, number;
    long rounds;
};

/* Nothing is expected of these messages but that all requests end, one way or another. */
static void one_life(struct worker *w, long round)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = NEED(ibv_alloc_pd(context));
    struct ibv_comp_channel *channel = NEED(ibv_create_comp_channel(context));
    struct ibv_cq *cq = NEED(ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0));
    unsigned char *memory = pages(2 * LENGTH);
    struct ibv_mr *mr = NEED(ibv_reg_mr(pd, memory, 2 * LENGTH, ALL_ACCESS));
    struct ibv_mr *own = NEED(ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE));
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = NEED(ibv_create_qp(pd, &init));
    struct about me = {.qpn = qp->qp_num, .psn = (uint32_t)draw(1 << 24), .rkey = mr->rkey, .address = (uintptr_t)memory};
    struct about peer;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET}, err = {.qp_state = IBV_QPS_ERR};
    struct ibv_wc wc[DEPTH];
    uint64_t end = now_ms() + 10000;
    int posted = 0, ended = 0, how = (int)draw(4);

    ZERO(ibv_query_gid(context, PORT, 0, &me.gid));
    ZERO(to_init(qp));
    for (int i = 0; i < DEPTH; i++) {
        struct ibv_sge sge = {(uintptr_t)memory + LENGTH, LENGTH, mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = 100, .sg_list = &sge, .num_sge = 1}, *bad;

        ZERO(ibv_post_recv(qp, &wr, &bad));
    }
    tell(w->fd, &me, sizeof(me));
    hear(w->fd, &peer, sizeof(peer));
    connect_qp(qp, &me, &peer, 8, 3, 3);
    if (draw(2))
        together(w->fd);
    else
        together(w->fd), usleep((useconds_t)draw(300));
    if (draw(2))
        ZERO(ibv_req_notify_cq(cq, 0));
    for (; posted < DEPTH; posted++) {
        static const enum ibv_wr_opcode codes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
        struct ibv_sge sge = {(uintptr_t)memory, 1 + (uint32_t)draw(LENGTH), own->lkey};
        struct ibv_send_wr wr = {.wr_id = (unsigned)posted, .sg_list = &sge, .num_sge = 1, .opcode = codes[draw(3)],
                                 .send_flags = IBV_SEND_SIGNALED}, *bad;

        wr.wr.rdma.remote_addr = peer.address;
        wr.wr.rdma.rkey = peer.rkey;
        ZERO(ibv_post_send(qp, &wr, &bad));
    }
    if (how == 0)
        ZERO(ibv_modify_qp(qp, &reset, IBV_QP_STATE));
    if (how == 1)
        ZERO(ibv_modify_qp(qp, &err, IBV_QP_STATE));
    if (how == 2) {
        /* The peer's accesses end, and with them the QP. */
        ZERO(ibv_dereg_mr(mr));
        mr = NULL;
    }
    while (how && ended < posted) {
        int n = ibv_poll_cq(cq, DEPTH, wc);

        if (n < 0)
            BAD("ibv_poll_cq = %d", n);
        for (int i = 0; i < n; i++)
            ended += wc[i].wr_id < 100;
        if (now_ms() > end)
            BAD("thread %d, round %ld, way %d: %d of %d requests have not ended", w->number, round, how, posted - ended,
                posted);
    }
    ZERO(ibv_destroy_qp(qp));
    if (mr)
        ZERO(ibv_dereg_mr(mr));
    ZERO(ibv_dereg_mr(own));
    ZERO(ibv_destroy_cq(cq));
    ZERO(ibv_destroy_comp_channel(channel));
    ZERO(ibv_dealloc_pd(pd));
    munmap(memory, 2 * LENGTH);
    ZERO(ibv_close_device(context));
}

static void *work(void *arg)
{
    struct worker *w = arg;

    drawn = mix(seed, (uint64_t)w->number) >> 8;
    for (long i = 0; i < w->rounds; i++)
        one_life(w, i);
    return NULL;
}

static void run(struct worker *workers, long rounds)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++) {
        workers[i].rounds = rounds;
        ZERO(pthread_create(&threads[i], NULL, work, &workers[i]));
    }
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
}

/* Warm first: what grows afterwards grows for ever. */
static void all(struct worker *workers)
{
    long fds, rss, grown;

    run(workers, count);
    fds = open_fds();
    rss = rss_kib();
    run(workers, count);
    /* The library's own thread may be about to let go of some. */
    for (int i = 0; i < 100 && open_fds() > fds; i++)
        usleep(10000);
    if (open_fds() > fds)
        BAD("%ld descriptors became %ld", fds, open_fds());
    grown = rss_kib() - rss;
#ifdef __SANITIZE_ADDRESS__
    /* It keeps what was freed. */
    grown = 0;
#endif
    if (grown > 2048 + count)
        BAD("%ld KiB of memory for %ld lives", grown, count * THREADS);
}

int main(int argc, char **argv)
{
    struct worker workers[THREADS];
    pid_t pid;
    int second, fds[THREADS][2];

    options(argc, argv, 150, 60);
    second = optind < argc;
    if (second) {
        for (int i = 0; i < THREADS; i++)
            workers[i] = (struct worker){.fd = SECOND_FD + 1 + i, .number = 2 * i + 1};
        all(workers);
        return 0;
    }
    for (int i = 0; i < THREADS; i++) {
        ZERO(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds[i]));
        dup2(fds[i][1], SECOND_FD + 1 + i);
        close(fds[i][1]);
        workers[i] = (struct worker){.fd = fds[i][0], .number = 2 * i};
    }
    close(second_process(argv, "second", &pid));
    for (int i = 0; i < THREADS; i++)
        close(SECOND_FD + 1 + i);
    all(workers);
    expect_exit(pid, 0);
    printf("ok\n");
    return 0;
}
