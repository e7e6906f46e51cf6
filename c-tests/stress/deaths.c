/*
 * deaths [-s SEED] [-n COUNT]: COUNT processes with traffic to this one are killed at random moments. Soon (a second
 * where the machine is not loaded) all requests have ended, the QP is in ERR, and everything can be destroyed.
 */
#include "stress.h"

enum { DEPTH = 8, LENGTH = 64 * 1024 };

struct party {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;
    struct about me, peer;
};

static void make(struct party *p)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};

    p->context = open_device();
    p->pd = NEED(ibv_alloc_pd(p->context));
    p->channel = NEED(ibv_create_comp_channel(p->context));
    p->cq = NEED(ibv_create_cq(p->context, 4 * DEPTH, NULL, p->channel, 0));
    init.send_cq = init.recv_cq = p->cq;
    p->qp = NEED(ibv_create_qp(p->pd, &init));
    p->memory = pages(3 * LENGTH);
    p->mr = NEED(ibv_reg_mr(p->pd, p->memory, 3 * LENGTH, ALL_ACCESS));
    ZERO(to_init(p->qp));
    p->me = (struct about){.qpn = p->qp->qp_num, .psn = 1, .rkey = p->mr->rkey, .address = (uintptr_t)p->memory};
    ZERO(ibv_query_gid(p->context, PORT, 0, &p->me.gid));
}

static void drop(struct party *p)
{
    ZERO(ibv_destroy_qp(p->qp));
    ZERO(ibv_dereg_mr(p->mr));
    ZERO(ibv_destroy_cq(p->cq));
    ZERO(ibv_destroy_comp_channel(p->channel));
    ZERO(ibv_dealloc_pd(p->pd));
    ZERO(ibv_close_device(p->context));
    munmap(p->memory, 3 * LENGTH);
}

static void give_receive(struct party *p)
{
    struct ibv_sge sge = {(uintptr_t)p->memory + LENGTH, LENGTH, p->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

    ZERO(ibv_post_recv(p->qp, &wr, &bad));
}

static void post(struct party *p)
{
    static const enum ibv_wr_opcode codes[] = {IBV_WR_SEND, IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
    struct ibv_sge sge = {(uintptr_t)p->memory + 2 * LENGTH, (uint32_t)draw(LENGTH), p->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = codes[draw(4)],
                             .send_flags = IBV_SEND_SIGNALED}, *bad;

    wr.wr.rdma.remote_addr = p->peer.address;
    wr.wr.rdma.rkey = p->peer.rkey;
    ZERO(ibv_post_send(p->qp, &wr, &bad));
}

/* Until something fails; then how many of each kind are outstanding. */
static void run(struct party *p, int fd, pid_t victim, int outstanding[3])
{
    uint64_t kill_at = 0, killed_at = 0;
    int idle = (int)draw(4) == 0, uses_events = (int)draw(2);

    for (int i = 0; i < DEPTH; i++)
        give_receive(p);
    tell(fd, &p->me, sizeof(p->me));
    hear(fd, &p->peer, sizeof(p->peer));
    connect_qp(p->qp, &p->me, &p->peer, 18, 7, 7);
    together(fd);
    kill_at = now_ms() + draw(60);
    outstanding[1] = DEPTH;
    outstanding[2] = 0;
    for (;;) {
        struct ibv_wc wc;
        int n;

        while (outstanding[2] < (idle ? 0 : DEPTH)) {
            post(p);
            outstanding[2]++;
        }
        if (victim && !killed_at && now_ms() >= kill_at) {
            kill(victim, SIGKILL);
            killed_at = now_ms();
        }
        n = ibv_poll_cq(p->cq, 1, &wc);
        if (n < 0)
            BAD("ibv_poll_cq = %d", n);
        if (killed_at && now_ms() > killed_at + 5000)
            BAD("nothing noticed %" PRIu64 " ms after the peer's death", now_ms() - killed_at);
        if (!n && killed_at && uses_events) {
            struct pollfd pfd = {.fd = p->channel->fd, .events = POLLIN};

            ZERO(ibv_req_notify_cq(p->cq, 0));
            n = ibv_poll_cq(p->cq, 1, &wc);
            if (!n && poll(&pfd, 1, 5000) == 1) {
                struct ibv_cq *cq;
                void *c;

                fcntl(p->channel->fd, F_SETFL, O_NONBLOCK);
                if (!ibv_get_cq_event(p->channel, &cq, &c))
                    ibv_ack_cq_events(cq, 1);
            }
        }
        if (!n)
            continue;
        outstanding[wc.wr_id]--;
        if (wc.status)
            return;
        if (wc.wr_id == 1) {
            give_receive(p);
            outstanding[1]++;
        }
    }
}

int main(int argc, char **argv)
{
    options(argc, argv, 12, 60);
    if (optind < argc) {
        struct party p = {0};
        int outstanding[3];

        drawn = (uint64_t)getpid() << 16;
        make(&p);
        run(&p, SECOND_FD, 0, outstanding);
        return 1;
    }
    for (long i = 0; i < count; i++) {
        struct party p = {0};
        pid_t pid;
        int outstanding[3], fd = second_process(argv, "second", &pid);
        uint64_t start_ms;

        make(&p);
        run(&p, fd, pid, outstanding);
        waitpid(pid, NULL, 0);
        close(fd);
        while (outstanding[1] || outstanding[2]) {
            struct ibv_wc wc = next_wc(p.cq);

            outstanding[wc.wr_id]--;
            if (!wc.status)
                BAD("success after a failure");
        }
        if (state_of(p.qp) != IBV_QPS_ERR)
            BAD("the QP is not in ERR");
        start_ms = now_ms();
        drop(&p);
        if (now_ms() - start_ms > 3000)
            BAD("destroying took %" PRIu64 " ms", now_ms() - start_ms);
    }
    printf("ok\n");
    return 0;
}
