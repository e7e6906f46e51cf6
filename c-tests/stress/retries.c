/*
 * retries [-s SEED]: a request that nobody can take ends after as many retries as were asked for, and not before: RNR,
 * a QP in INIT, a QP that does not exist, a process that does not exist; in one process and between two.
 */
#include "stress.h"

/* What the responding side is like. */
enum peer { NOT_READY, IN_INIT, NO_QP, NO_PROCESS, LATE, CASES };

static struct ibv_context *context;
static struct side ours;

static uint64_t elapsed(uint64_t since)
{
    return now_ms() - since;
}

/* RNR timer code 20 is 10.24 ms; local ack timeout 12 is 16.8 ms. */
static void connect_with(struct ibv_qp *qp, const struct about *peer, uint32_t psn, uint8_t retries, uint8_t rnr_retries)
{
    struct about me = {.psn = psn};

    connect_qp(qp, &me, peer, 12, retries, rnr_retries);
}

static void fresh_qp(struct side *s)
{
    if (s->qp)
        ZERO(ibv_destroy_qp(s->qp));
    s->qp = make_qp(s, IBV_QPT_RC, NULL);
    ZERO(to_init(s->qp));
}

/* The responding side makes a QP for the case and says which; on a word it lets the QP listen after all. */
static struct about respond_begin(struct side *s, enum peer how, const struct about *requester)
{
    struct about me = {.psn = 7};

    fresh_qp(s);
    me.gid = s->gid;
    me.qpn = s->qp->qp_num;
    if (how == NO_QP || how == NO_PROCESS)
        me.qpn ^= how == NO_QP ? 0x800 : 0x801000;
    if (how == NOT_READY) {
        struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = requester->qpn,
                                .rq_psn = requester->psn, .min_rnr_timer = 20, .ah_attr = ah_to(&requester->gid)};

        ZERO(ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    }
    return me;
}

static void respond_late(struct side *s, const struct about *requester)
{
    ZERO(recv_one(s, 5, 0, 64));
    usleep(30000);
    ZERO(to_rtr(s->qp, requester->qpn, requester->psn, &requester->gid));
}

static struct about requester_begin(void)
{
    struct about me = {.psn = 100, .gid = ours.gid};

    fresh_qp(&ours);
    me.qpn = ours.qp->qp_num;
    return me;
}

static void request(enum peer how, const struct about *peer, uint8_t retries)
{
    uint64_t since, least = 0;
    struct ibv_wc wc;
    enum ibv_wc_status wanted = how == NOT_READY ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;

    connect_with(ours.qp, peer, 100, how == LATE ? 7 : retries, how == NOT_READY ? retries : 7);
    since = now_ms();
    for (uint64_t i = 0; i < 3; i++)
        ZERO(send_one(&ours, i, 0, 16, IBV_SEND_SIGNALED));
    if (how == LATE) {
        wc = next_wc(ours.cq);
        if (wc.status)
            BAD("a QP that comes late: %s", ibv_wc_status_str(wc.status));
        return;
    }
    least = how == NOT_READY ? retries * 10u : retries * 16u;
    for (uint64_t i = 0; i < 3; i++) {
        wc = next_wc(ours.cq);
        if (wc.wr_id != i || wc.status != (i ? IBV_WC_WR_FLUSH_ERR : wanted))
            BAD("case %d, %d retries: wr_id %" PRIu64 ": %s", how, retries, wc.wr_id, ibv_wc_status_str(wc.status));
        if (i == 0 && (elapsed(since) + 1 < least || elapsed(since) > least + 2000))
            BAD("case %d, %d retries: %" PRIu64 " ms", how, retries, elapsed(since));
    }
    if (state_of(ours.qp) != IBV_QPS_ERR)
        BAD("case %d: the QP is not in ERR", how);
    ZERO(send_one(&ours, 9, 0, 16, 0));
    wc = next_wc(ours.cq);
    if (wc.wr_id != 9 || wc.status != IBV_WC_WR_FLUSH_ERR)
        BAD("case %d: a request in ERR: %s", how, ibv_wc_status_str(wc.status));
}

static void all_cases(int fd, int requests, struct side *responder)
{
    for (int how = 0; how < CASES; how++)
        for (uint8_t retries = 0; retries < 4; retries += 3) {
            struct about requester, peer;

            if (fd < 0) {
                /* In one process a late responder would need a thread. */
                if (how == LATE)
                    continue;
                requester = requester_begin();
                peer = respond_begin(responder, (enum peer)how, &requester);
                request((enum peer)how, &peer, retries);
                continue;
            }
            if (requests) {
                requester = requester_begin();
                tell(fd, &requester, sizeof(requester));
                hear(fd, &peer, sizeof(peer));
                together(fd);
                request((enum peer)how, &peer, retries);
            } else {
                hear(fd, &requester, sizeof(requester));
                peer = respond_begin(responder, (enum peer)how, &requester);
                tell(fd, &peer, sizeof(peer));
                together(fd);
                if (how == LATE)
                    respond_late(responder, &requester);
            }
            together(fd);
        }
}

int main(int argc, char **argv)
{
    struct side responder;
    pid_t pid;
    int fd;

    options(argc, argv, 1, 60);
    if (optind < argc) {
        context = open_device();
        make_side(&responder, context, IBV_QPT_RC, 4096);
        all_cases(SECOND_FD, 0, &responder);
        drop_side(&responder);
        ZERO(ibv_close_device(context));
        return 0;
    }
    fd = second_process(argv, "second", &pid);
    context = open_device();
    make_side(&ours, context, IBV_QPT_RC, 4096);
    make_side(&responder, context, IBV_QPT_RC, 4096);
    all_cases(-1, 1, &responder);
    all_cases(fd, 1, NULL);
    expect_exit(pid, 0);
    drop_side(&ours);
    drop_side(&responder);
    ZERO(ibv_close_device(context));
    printf("ok\n");
    return 0;
}
