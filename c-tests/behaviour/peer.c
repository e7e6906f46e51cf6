/* The other side is gone: its QP destroyed, failed or reset, or its process dead. The sender learns of it and goes on. */
#include "behaviour.h"

enum end { DESTROYED, FAILED, RESET_, EXITED, KILLED, ENDS };

static const char *const end_names[] = {"destroyed", "in ERR", "reset", "exited", "killed"};

static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                             IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM};
#define OPCODES 5

/* To RTS with few and short retries: 4.2 ms each. */
static void to_rts_soon(struct ibv_qp *qp, uint32_t psn, uint8_t retry_cnt)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 10, .retry_cnt = retry_cnt, .rnr_retry = 7, .max_rd_atomic = 4};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    ZERO(ibv_modify_qp(qp, &attr, mask));
}

static struct address join_soon(int fd, struct side *s)
{
    struct address mine = {.qpn = s->qp->qp_num, .psn = 7, .rkey = s->mr->rkey, .addr = (uintptr_t)s->buffer, .gid = s->gid};
    struct address theirs;

    tell(fd, &mine, sizeof(mine));
    hear(fd, &theirs, sizeof(theirs));
    ZERO(to_init(s->qp));
    ZERO(to_rtr(s->qp, theirs.qpn, theirs.psn, &theirs.gid));
    to_rts_soon(s->qp, mine.psn, 3);
    together(fd);
    return theirs;
}

static enum ibv_qp_type type_used;

/* The peer: it connects, does as told, and stays until the socket closes. */
static void peer(int fd)
{
    struct side s;
    char order = 0;

    make_side(&s, open_device(), type_used, 65536);
    join_soon(fd, &s);
    while (recv(fd, &order, 1, 0) == 1) {
        struct ibv_qp_attr attr = {.qp_state = order == FAILED ? IBV_QPS_ERR : IBV_QPS_RESET};

        if (order == DESTROYED)
            ZERO(ibv_destroy_qp(s.qp));
        else if (order == EXITED)
            exit(0);
        else
            ZERO(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE));
        tell(fd, &order, 1);
    }
}

static void bring_about(enum end end, int fd, pid_t pid)
{
    char order = (char)end;
    int status;

    if (end == KILLED) {
        ZERO(kill(pid, SIGKILL));
    } else {
        tell(fd, &order, 1);
        if (end != EXITED)
            hear(fd, &order, 1);
    }
    if (end >= EXITED && waitpid(pid, &status, 0) != pid)
        die("waitpid");
}

static int post(struct side *s, uint64_t id, enum ibv_wr_opcode opcode, const struct address *there)
{
    struct ibv_sge sge = sge_of(s, 0, 8);
    struct ibv_send_wr wr = send_wr(id, &sge, opcode), *bad;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = there->addr;
        wr.wr.atomic.rkey = there->rkey;
    } else {
        wr.wr.rdma.remote_addr = there->addr;
        wr.wr.rdma.rkey = there->rkey;
    }
    return ibv_post_send(s->qp, &wr, &bad);
}

/* The first request fails, the rest is flushed, the QP is in ERR. */
static void gives_up(struct side *s, unsigned requests)
{
    NEXT(s->cq, 0, IBV_WC_RETRY_EXC_ERR);
    for (unsigned i = 1; i < requests; i++)
        NEXT(s->cq, i, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(s->qp), IBV_QPS_ERR);
    ZERO(send_one(s, 50, 0, 8, 0));
    NEXT(s->cq, 50, IBV_WC_WR_FLUSH_ERR);
    EXPECT(quiet(s->cq));
}

static void loses(enum end end, enum ibv_wr_opcode opcode, int in_flight)
{
    struct side s;
    struct address there;
    pid_t pid;
    int fd;

    type_used = IBV_QPT_RC;
    pid = with_other(peer, &fd);
    make_side(&s, open_device(), IBV_QPT_RC, 4096);
    there = join_soon(fd, &s);
    if (in_flight)
        /* Nobody has posted a receive: these wait. */
        for (unsigned i = 0; i < 3; i++)
            ZERO(post(&s, i, IBV_WR_SEND, &there));
    bring_about(end, fd, pid);
    if (!in_flight) {
        struct ibv_async_event event;

        if (end >= EXITED && !between_hosts()) {
            /* A dead process of this host is noticed without a request. */
            event = next_event(s.context);
            EXPECT(event.element.qp == s.qp && event.event_type == IBV_EVENT_QP_FATAL, "%s: %s", end_names[end],
                   ibv_event_type_str(event.event_type));
            EXPECT_EQ(state_of(s.qp), IBV_QPS_ERR);
            ZERO(post(&s, 0, opcode, &there));
            NEXT(s.cq, 0, IBV_WC_WR_FLUSH_ERR);
        } else {
            for (unsigned i = 0; i < 3; i++)
                ZERO(post(&s, i, opcode, &there));
            gives_up(&s, 3);
        }
    } else {
        gives_up(&s, 3);
    }
    EXPECT(!is_ours() || *said(), "no reason was given");
    close(fd);
    if (end < EXITED)
        ends_well(pid);
    drop_side(&s);
}

#define EACH_END_AND_OPCODE(first, last)                                                                              \
    for (enum end end = first; end <= last; end++)                                                                    \
        for (int i = 0; i < OPCODES; i++)

TEST_BETWEEN(requests_to_a_qp_that_is_gone_in_another_process_fail_with_retry_exceeded)
{
    EACH_END_AND_OPCODE(DESTROYED, RESET_)
        loses(end, opcodes[i], 0);
}

TEST_BETWEEN(requests_under_way_when_the_peers_qp_goes_fail_with_retry_exceeded)
{
    for (enum end end = DESTROYED; end <= RESET_; end++)
        loses(end, IBV_WR_SEND, 1);
}

TEST_BETWEEN(a_peer_process_that_exits_or_is_killed_fails_requests_under_way)
{
    for (int round = 0; round < 5; round++) {
        loses(EXITED, IBV_WR_SEND, 1);
        loses(KILLED, IBV_WR_SEND, 1);
    }
}

TEST_BETWEEN(a_peer_process_that_exits_or_is_killed_is_noticed_by_an_idle_qp)
{
    EACH_END_AND_OPCODE(EXITED, KILLED)
        loses(end, opcodes[i], 0);
}

/* Within one process. */
TEST(requests_to_a_qp_that_is_gone_in_this_process_fail_with_retry_exceeded)
{
    EACH_END_AND_OPCODE(DESTROYED, RESET_) {
        struct ibv_qp_attr attr = {.qp_state = end == FAILED ? IBV_QPS_ERR : IBV_QPS_RESET};
        struct address there;
        struct side a, b;

        make_side(&a, open_device(), IBV_QPT_RC, 4096);
        make_side(&b, a.context, IBV_QPT_RC, 4096);
        ZERO(to_init(a.qp));
        ZERO(to_init(b.qp));
        ZERO(to_rtr(a.qp, b.qp->qp_num, 200, &b.gid));
        ZERO(to_rtr(b.qp, a.qp->qp_num, 100, &a.gid));
        to_rts_soon(a.qp, 100, 3);
        to_rts_soon(b.qp, 200, 3);
        there = (struct address){.addr = (uintptr_t)b.buffer, .rkey = b.mr->rkey};
        if (end == DESTROYED)
            ZERO(ibv_destroy_qp(b.qp));
        else
            ZERO(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
        for (unsigned n = 0; n < 3; n++)
            ZERO(post(&a, n, opcodes[i], &there));
        gives_up(&a, 3);
        drop_side(&a);
    }
}

/* Nobody was ever there: the number of no QP, or of one that never left RESET or INIT. */
TEST(requests_to_a_qp_that_never_was_ready_fail_with_retry_exceeded)
{
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < OPCODES; i++) {
            struct address there;
            struct side a, b;

            make_side(&a, open_device(), IBV_QPT_RC, 4096);
            make_side(&b, a.context, IBV_QPT_RC, 4096);
            ZERO(to_init(a.qp));
            if (kind == 2)
                ZERO(to_init(b.qp));
            ZERO(to_rtr(a.qp, kind ? b.qp->qp_num : 0x7ffff1, 200, &b.gid));
            to_rts_soon(a.qp, 100, 2);
            there = (struct address){.addr = (uintptr_t)b.buffer, .rkey = b.mr->rkey};
            for (unsigned n = 0; n < 2; n++)
                ZERO(post(&a, n, opcodes[i], &there));
            gives_up(&a, 2);
            EXPECT(!is_ours() || strstr(said(), "retry_cnt=2"));
            drop_side(&a);
            drop_side(&b);
        }
}

/* Unreliable senders notice nothing and stay in RTS. */
TEST_BETWEEN(unreliable_senders_notice_nothing)
{
    for (enum end end = 0; end < ENDS; end++)
        for (int ud = 0; ud < 2; ud++) {
            struct side s;
            struct address there;
            struct ibv_ah_attr to;
            struct ibv_ah *ah;
            pid_t pid;
            int fd;

            type_used = ud ? IBV_QPT_UD : IBV_QPT_UC;
            pid = with_other(peer, &fd);
            make_side(&s, open_device(), type_used, 4096);
            there = join_soon(fd, &s);
            to = ah_to(&there.gid);
            ah = NEED(ibv_create_ah(s.pd, &to));
            bring_about(end, fd, pid);
            for (unsigned i = 0; i < 20; i++) {
                struct ibv_sge sge = sge_of(&s, 0, 8);
                struct ibv_send_wr wr = send_wr(i, &sge, IBV_WR_SEND), *bad;

                if (ud) {
                    wr.wr.ud.ah = ah;
                    wr.wr.ud.remote_qpn = there.qpn;
                    wr.wr.ud.remote_qkey = QKEY;
                }
                ZERO(ibv_post_send(s.qp, &wr, &bad));
                NEXT(s.cq, i, IBV_WC_SUCCESS);
            }
            EXPECT_EQ(state_of(s.qp), IBV_QPS_RTS);
            EXPECT(no_event(s.context), "%s", end_names[end]);
            close(fd);
            if (end < EXITED)
                ends_well(pid);
            ZERO(ibv_destroy_ah(ah));
            drop_side(&s);
        }
}

/* Other QPs of the process go on, and the failed one can be used again with a new peer. */
TEST_BETWEEN(the_loss_of_one_peer_leaves_other_connections_alone)
{
    struct side s, other_a, other_b;
    struct address there;
    pid_t pid;
    int fd;

    type_used = IBV_QPT_RC;
    pid = with_other(peer, &fd);
    make_side(&s, open_device(), IBV_QPT_RC, 4096);
    there = join_soon(fd, &s);
    make_side(&other_a, s.context, IBV_QPT_RC, 4096);
    make_side(&other_b, s.context, IBV_QPT_RC, 4096);
    join(&other_a, &other_b);
    ZERO(post(&s, 0, IBV_WR_SEND, &there));
    bring_about(KILLED, fd, pid);
    close(fd);
    for (unsigned i = 0; i < 100; i++) {
        ZERO(recv_one(&other_b, i, 0, 64));
        ZERO(send_one(&other_a, i, 0, 8, IBV_SEND_SIGNALED));
        NEXT(other_a.cq, i, IBV_WC_SUCCESS);
        NEXT(other_b.cq, i, IBV_WC_SUCCESS);
    }
    gives_up(&s, 1);
    for (int round = 0; round < 3; round++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        ZERO(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE));
        pid = with_other(peer, &fd);
        there = join_soon(fd, &s);
        ZERO(post(&s, 0, IBV_WR_RDMA_WRITE, &there));
        NEXT(s.cq, 0, IBV_WC_SUCCESS);
        close(fd);
        ends_well(pid);
    }
    drop_side(&other_a);
    drop_side(&other_b);
    drop_side(&s);
}
