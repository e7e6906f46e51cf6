/*
 * mixed [-s SEED] [-n COUNT] [pair | many]: threads with several RC QPs each send, write, read and add at random, sizes 0
 * to 200 KiB, and check every byte and at the end all totals; shared CQs, channels, ibv_post_send and ibv_wr_*, random
 * signaling, slow receivers. In one process, with `pair` between two, or with `many` over 1,000 QPs of one process to
 * 1,000 of another, sizes to 4 KiB.
 */
#include "traffic.h"

enum { PAIRS = 2 };

/* QPs of a thread, and threads of a process. */
static int qps = 3, pairs = PAIRS;

struct end {
    struct ibv_context *context;
    int fd, number, uses_events;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    unsigned char *memory;
    struct link *links;
};

static int take(struct end *e)
{
    struct ibv_wc wc[4];
    int n = ibv_poll_cq(e->cq, 1 + (int)draw(4), wc);

    if (n < 0)
        BAD("ibv_poll_cq = %d", n);
    for (int i = 0; i < n; i++) {
        struct link *l = &e->links[wc[i].wr_id >> 32];

        if (wc[i].status)
            BAD("end %d: wr_id 0x%" PRIx64 ": %s", e->number, wc[i].wr_id, ibv_wc_status_str(wc[i].status));
        if (wc[i].wr_id & 1u << 31) {
            if (draw(16) == 0)
                usleep((useconds_t)draw(2000));
            received(l, &wc[i]);
        } else {
            sent(l, (long)(wc[i].wr_id & 0x7fffffff));
        }
    }
    return n;
}

static void make_link(struct end *e, struct link *l, int index)
{
    struct ibv_qp_cap cap = {.max_send_wr = WINDOW + 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
                             .max_inline_data = 64};
    uint64_t id = (uint64_t)(e->number / 2 * qps + index) * 2;

    begin_link(l, e->memory + (size_t)index * link_bytes(), e->mr->lkey, (uint64_t)index,
               mix(seed, id + (uint64_t)(e->number & 1)), mix(seed, id + (uint64_t)(~e->number & 1)));
    if (index % 2) {
        struct ibv_qp_init_attr_ex init = {
            .send_cq = e->cq, .recv_cq = e->cq, .cap = cap, .qp_type = IBV_QPT_RC, .pd = e->pd,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
                              IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                              IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD};

        l->qp = NEED(ibv_create_qp_ex(e->context, &init));
        l->ex = NEED(ibv_qp_to_qp_ex(l->qp));
    } else {
        struct ibv_qp_init_attr init = {.send_cq = e->cq, .recv_cq = e->cq, .cap = cap, .qp_type = IBV_QPT_RC};

        l->qp = NEED(ibv_create_qp(e->pd, &init));
    }
    ZERO(to_init(l->qp));
    for (uint64_t i = 0; i < RECEIVES; i++)
        give_receive(l, i);
    l->me = (struct about){.qpn = l->qp->qp_num, .psn = (uint32_t)mix(l->ours, 3) & 0xffffff, .rkey = e->mr->rkey,
                           .address = (uintptr_t)l->target};
    ZERO(ibv_query_gid(e->context, PORT, 0, &l->me.gid));
}

static void *run(void *arg)
{
    struct end *e = arg;
    int busy = 1;

    drawn = mix(seed, (uint64_t)e->number) >> 8;
    e->uses_events = (int)draw(2);
    e->pd = NEED(ibv_alloc_pd(e->context));
    e->memory = pages((size_t)qps * link_bytes());
    e->mr = NEED(ibv_reg_mr(e->pd, e->memory, (size_t)qps * link_bytes(), ALL_ACCESS));
    e->channel = NEED(ibv_create_comp_channel(e->context));
    e->cq = NEED(ibv_create_cq(e->context, qps * (WINDOW + RECEIVES + 1), NULL, e->channel, 0));
    e->links = NEED(calloc((size_t)qps, sizeof(*e->links)));
    for (int i = 0; i < qps; i++)
        make_link(e, &e->links[i], i);
    for (int i = 0; i < qps; i++) {
        tell(e->fd, &e->links[i].me, sizeof(struct about));
        hear(e->fd, &e->links[i].peer, sizeof(struct about));
        connect_qp(e->links[i].qp, &e->links[i].me, &e->links[i].peer, 18, 7, 7);
    }
    together(e->fd);
    while (busy) {
        int any;

        busy = 0;
        for (int i = 0; i < qps; i++) {
            struct link *l = &e->links[i];

            while (l->posted < count && l->posted - l->done < WINDOW && draw(4))
                post_next(l);
            busy |= l->done < count || messages_left(l);
        }
        any = take(e);
        if (busy && !any && e->uses_events) {
            struct ibv_cq *cq;
            void *context;
            int all_posted = 1;

            for (int i = 0; i < qps; i++)
                all_posted &= e->links[i].posted == count || e->links[i].posted - e->links[i].done == WINDOW;
            if (!all_posted)
                continue;
            ZERO(ibv_req_notify_cq(e->cq, 0));
            if (take(e))
                continue;
            ZERO(ibv_get_cq_event(e->channel, &cq, &context));
            ibv_ack_cq_events(cq, 1);
        }
    }
    together(e->fd);
    for (int i = 0; i < qps; i++) {
        struct totals ours = totals_of(&e->links[i]), theirs;

        tell(e->fd, &ours, sizeof(ours));
        hear(e->fd, &theirs, sizeof(theirs));
        check_totals(&e->links[i], &theirs);
    }
    if (take(e))
        BAD("end %d: a completion too many", e->number);
    together(e->fd);
    for (int i = 0; i < qps; i++)
        ZERO(ibv_destroy_qp(e->links[i].qp));
    free(e->links);
    ZERO(ibv_destroy_cq(e->cq));
    ZERO(ibv_destroy_comp_channel(e->channel));
    ZERO(ibv_dereg_mr(e->mr));
    ZERO(ibv_dealloc_pd(e->pd));
    munmap(e->memory, (size_t)qps * link_bytes());
    return NULL;
}

static void run_all(struct end *ends, int n)
{
    pthread_t threads[2 * PAIRS];
    struct ibv_context *context = open_device();

    for (int i = 0; i < n; i++) {
        ends[i].context = context;
        ZERO(pthread_create(&threads[i], NULL, run, &ends[i]));
    }
    for (int i = 0; i < n; i++)
        ZERO(pthread_join(threads[i], NULL));
    ZERO(ibv_close_device(context));
}

/* `many`, and the second process of it. */
static void choose(const char *mode)
{
    if (strcmp(mode, "many") && strcmp(mode, "second-many"))
        return;
    qps = 1000;
    pairs = 1;
    longest = 4096;
}

int main(int argc, char **argv)
{
    static struct end ends[2 * PAIRS];
    const char *mode;
    int is_pair, is_second;

    options(argc, argv, 400, 60);
    mode = optind < argc ? argv[optind] : "";
    choose(mode);
    is_pair = !strcmp(mode, "pair") || !strcmp(mode, "many");
    is_second = !strncmp(mode, "second", 6);
    if (is_pair) {
        pid_t pids[PAIRS];

        /* One process here, and one for each thread of it. */
        for (int i = 0; i < pairs; i++) {
            ends[i].fd = second_process(argv, pairs == 1 ? "second-many" : "second", &pids[i]);
            tell(ends[i].fd, &i, sizeof(i));
            ends[i].number = 2 * i;
        }
        run_all(ends, pairs);
        for (int i = 0; i < pairs; i++)
            expect_exit(pids[i], 0);
    } else if (is_second) {
        int i;

        ends[0].fd = SECOND_FD;
        hear(SECOND_FD, &i, sizeof(i));
        ends[0].number = 2 * i + 1;
        run_all(ends, 1);
        return 0;
    } else {
        for (int i = 0; i < pairs; i++) {
            int pair[2];

            ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
            for (int side = 0; side < 2; side++) {
                ends[2 * i + side].fd = pair[side];
                ends[2 * i + side].number = 2 * i + side;
            }
        }
        run_all(ends, 2 * pairs);
    }
    printf("ok\n");
    return 0;
}
