/*
 * events [-s SEED] [-n COUNT]: two processes exchange COUNT short messages, both blocked in ibv_get_cq_event: arm, poll,
 * wait. Then over several CQs on one channel with O_NONBLOCK and poll(2), and with a thread cancelled while it waits.
 */
#include "stress.h"

enum { QPS = 3 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cqs[QPS];
static struct ibv_qp *qps[QPS];
static struct ibv_mr *mr;
static unsigned char *memory;
/* Sends without a completion yet; one in sixteen asks for it. */
static int outstanding[QPS];
static struct about me[QPS], peer[QPS];

static void give_receive(int q)
{
    struct ibv_sge sge = {(uintptr_t)memory + (uint64_t)q * 64, 64, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

    ZERO(ibv_post_recv(qps[q], &wr, &bad));
}

/* One receive of this CQ; completions of sends are passed over. */
static int take(int q)
{
    struct ibv_wc wc;
    int n;

    while ((n = ibv_poll_cq(cqs[q], 1, &wc)) == 1) {
        if (wc.status)
            BAD("wr_id %" PRIu64 ": %s", wc.wr_id, ibv_wc_status_str(wc.status));
        if (wc.wr_id == 1)
            return 1;
        outstanding[q] -= 16;
    }
    if (n)
        BAD("ibv_poll_cq = %d", n);
    return 0;
}

static void send_to(int q)
{
    static int sends[QPS];
    int signaled = ++sends[q] % 16 == 0;
    struct ibv_sge sge = {(uintptr_t)memory + 1024, 8, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = signaled ? IBV_SEND_SIGNALED : 0}, *bad;

    /* A reply does not mean that the acknowledgement is here. */
    for (uint64_t end = now_ms() + 10000; outstanding[q] >= 60;)
        if (now_ms() > end)
            BAD("no completion of a send");
        else if (take(q))
            BAD("a message that was not asked for");
    outstanding[q]++;
    ZERO(ibv_post_send(qps[q], &wr, &bad));
}

static void wait_blocking(int q)
{
    struct ibv_cq *cq;
    void *c;

    while (!take(q)) {
        ZERO(ibv_req_notify_cq(cqs[q], 0));
        if (take(q))
            return;
        ZERO(ibv_get_cq_event(channel, &cq, &c));
        ibv_ack_cq_events(cq, 1);
    }
}

/* Events of the other CQs are taken on the way. */
static void wait_polling(int q)
{
    while (!take(q)) {
        struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
        struct ibv_cq *cq;
        void *c;

        ZERO(ibv_req_notify_cq(cqs[q], 0));
        if (take(q))
            return;
        if (poll(&fd, 1, 10000) != 1)
            BAD("no event within ten seconds");
        while (!ibv_get_cq_event(channel, &cq, &c))
            ibv_ack_cq_events(cq, 1);
        if (errno != EAGAIN)
            BAD("ibv_get_cq_event");
    }
}

static void ping_pong(int fd, int first, long rounds, void (*wait)(int))
{
    together(fd);
    for (long i = 0; i < rounds; i++) {
        int q = (int)(mix(seed, (uint64_t)i) % QPS);

        if (wait == wait_blocking)
            q = 0;
        if (first)
            send_to(q);
        wait(q);
        give_receive(q);
        if (!first)
            send_to(q);
    }
    together(fd);
}

static void *wait_for_ever(void *unused)
{
    struct ibv_cq *cq;
    struct ibv_async_event event;
    void *c;

    if (unused)
        ibv_get_async_event(context, &event);
    /* Events may be left from before. */
    while (!unused && !ibv_get_cq_event(channel, &cq, &c))
        ibv_ack_cq_events(cq, 1);
    return NULL;
}

static void cancelled_thread(int fd, int first)
{
    void *result;

    together(fd);
    for (int which = 0; which < 2; which++) {
        pthread_t thread;

        ZERO(fcntl(channel->fd, F_SETFL, 0));
        ZERO(pthread_create(&thread, NULL, wait_for_ever, which ? context : NULL));
        usleep(20000);
        ZERO(pthread_cancel(thread));
        ZERO(pthread_join(thread, &result));
        if (result != PTHREAD_CANCELED)
            BAD("the thread was not cancelled");
    }
    /* Whoever drove in its place must drive again. */
    ping_pong(fd, first, 100, wait_blocking);
}

int main(int argc, char **argv)
{
    int fd = SECOND_FD, first;
    pid_t pid = 0;

    options(argc, argv, 5000, 60);
    first = optind >= argc;
    if (first)
        fd = second_process(argv, "second", &pid);
    context = open_device();
    pd = NEED(ibv_alloc_pd(context));
    channel = NEED(ibv_create_comp_channel(context));
    memory = pages(4096);
    mr = NEED(ibv_reg_mr(pd, memory, 4096, ALL_ACCESS));
    for (int q = 0; q < QPS; q++) {
        struct ibv_qp_init_attr init = {
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = 64, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};

        cqs[q] = NEED(ibv_create_cq(context, 128, NULL, channel, 0));
        init.send_cq = init.recv_cq = cqs[q];
        qps[q] = NEED(ibv_create_qp(pd, &init));
        ZERO(to_init(qps[q]));
        give_receive(q);
        me[q] = (struct about){.qpn = qps[q]->qp_num, .psn = 5};
        ZERO(ibv_query_gid(context, PORT, 0, &me[q].gid));
    }
    tell(fd, me, sizeof(me));
    hear(fd, peer, sizeof(peer));
    for (int q = 0; q < QPS; q++)
        connect_qp(qps[q], &me[q], &peer[q], 18, 7, 7);
    ping_pong(fd, first, count, wait_blocking);
    cancelled_thread(fd, first);
    ZERO(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
    ping_pong(fd, first, count, wait_polling);
    for (int q = 0; q < QPS; q++) {
        ZERO(ibv_destroy_qp(qps[q]));
        ZERO(ibv_destroy_cq(cqs[q]));
    }
    ZERO(ibv_destroy_comp_channel(channel));
    ZERO(ibv_dereg_mr(mr));
    ZERO(ibv_dealloc_pd(pd));
    ZERO(ibv_close_device(context));
    if (first) {
        expect_exit(pid, 0);
        printf("ok\n");
    }
    return 0;
}
