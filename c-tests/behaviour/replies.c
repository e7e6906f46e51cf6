/* Replies: whoever has one finds what it answers complete, so that a send queue of one request serves a talk. */
#include "behaviour.h"

struct talker {
    /* Its CQ is that of receives. */
    struct side s;
    struct ibv_cq *sends;
    struct ibv_comp_channel *channel;
    int sleeps;
};

static void make_talker(struct talker *t, int sleeps)
{
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8},
        .qp_type = IBV_QPT_RC};

    make_side(&t->s, open_device(), IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(t->s.qp));
    ZERO(ibv_destroy_cq(t->s.cq));
    t->sleeps = sleeps;
    t->channel = NEED(ibv_create_comp_channel(t->s.context));
    attr.recv_cq = t->s.cq = NEED(ibv_create_cq(t->s.context, 8, NULL, t->channel, 0));
    attr.send_cq = t->sends = NEED(ibv_create_cq(t->s.context, 8, NULL, t->channel, 0));
    t->s.qp = NEED(ibv_create_qp(t->s.pd, &attr));
    ZERO(to_init(t->s.qp));
    for (unsigned i = 0; i < 4; i++)
        ZERO(recv_one(&t->s, i, 0, 64));
    if (sleeps) {
        ZERO(ibv_req_notify_cq(t->s.cq, 0));
        ZERO(ibv_req_notify_cq(t->sends, 0));
    }
}

/* Waits for a message; both CQs notify one channel. */
static void hear_message(struct talker *t)
{
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *context;

    while (ibv_poll_cq(t->s.cq, 1, &wc) == 0) {
        if (!t->sleeps)
            continue;
        ZERO(ibv_get_cq_event(t->channel, &cq, &context));
        ibv_ack_cq_events(cq, 1);
        ZERO(ibv_req_notify_cq(cq, 0));
    }
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    ZERO(recv_one(&t->s, wc.wr_id, 0, 64));
}

/* Sends on each message that comes, if it is not the first to. */
static void talk(struct talker *t, int first, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        struct ibv_wc wc;

        if (i > 0 || !first)
            hear_message(t);
        if (i > 0) {
            EXPECT(ibv_poll_cq(t->sends, 1, &wc) == 1, "round %d: it was answered, and is not complete", i);
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        }
        ZERO(send_one(&t->s, (unsigned)i, 0, 8, IBV_SEND_SIGNALED));
    }
    if (first)
        hear_message(t);
}

static int rounds, partner_sleeps;

static void partner(int fd)
{
    struct talker t;

    make_talker(&t, partner_sleeps);
    join_over(fd, &t.s);
    talk(&t, 0, rounds);
    together(fd);
}

static void between(int sleeps, int other_sleeps)
{
    struct talker t;
    pid_t other;
    int fd;

    rounds = between_hosts() ? 10000 : 20000;
    partner_sleeps = other_sleeps;
    other = with_other(partner, &fd);
    make_talker(&t, sleeps);
    join_over(fd, &t.s);
    talk(&t, 1, rounds);
    together(fd);
    ends_well(other);
}

TEST_BETWEEN(what_was_answered_is_complete_where_both_sleep)
{
    between(1, 1);
}

TEST_BETWEEN(what_was_answered_is_complete_where_both_poll)
{
    between(0, 0);
}

TEST_BETWEEN(what_was_answered_is_complete_where_who_asks_sleeps)
{
    between(1, 0);
}

TEST_BETWEEN(what_was_answered_is_complete_where_who_answers_sleeps)
{
    between(0, 1);
}

/* Where a reply by WRITE is written, and from where. */
#define REPLY 1024

static volatile uint64_t *reply_of(struct talker *t)
{
    return (volatile uint64_t *)(t->s.buffer + REPLY);
}

/* Answers each message by a WRITE of its number. */
static void partner_by_write(int fd)
{
    struct address to;
    struct talker t;

    make_talker(&t, partner_sleeps);
    to = join_over(fd, &t.s);
    for (uint64_t i = 1; i <= (uint64_t)rounds; i++) {
        struct ibv_sge sge = {(uintptr_t)reply_of(&t), 8, t.s.mr->lkey};
        struct ibv_send_wr *bad, wr = send_wr(i, &sge, IBV_WR_RDMA_WRITE);

        hear_message(&t);
        *reply_of(&t) = i;
        wr.wr.rdma.remote_addr = to.addr + REPLY;
        wr.wr.rdma.rkey = to.rkey;
        ZERO(ibv_post_send(t.s.qp, &wr, &bad));
        EXPECT_EQ(next_wc(t.sends).status, IBV_WC_SUCCESS);
    }
    together(fd);
}

/* Who sees the reply in its memory polls once. */
static void by_write(int other_sleeps)
{
    struct talker t;
    pid_t other;
    int fd;

    rounds = between_hosts() ? 2000 : 5000;
    partner_sleeps = other_sleeps;
    other = with_other(partner_by_write, &fd);
    make_talker(&t, 0);
    join_over(fd, &t.s);
    for (uint64_t i = 1; i <= (uint64_t)rounds; i++) {
        struct ibv_wc wc;

        ZERO(send_one(&t.s, i, 0, 8, IBV_SEND_SIGNALED));
        while (*reply_of(&t) != i)
            ;
        EXPECT(ibv_poll_cq(t.sends, 1, &wc) == 1, "round %d: it was answered, and is not complete", (int)i);
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    }
    together(fd);
    ends_well(other);
}

TEST_BETWEEN(what_was_answered_by_a_write_is_complete_where_who_answers_sleeps)
{
    by_write(1);
}

TEST_BETWEEN(what_was_answered_by_a_write_is_complete_where_who_answers_polls)
{
    by_write(0);
}

/* Writes the next number to the other's memory when it sees the one before in its own, and polls for the completion. */
static void watch(struct talker *t, const struct address *to, int first)
{
    for (uint64_t i = 1; i <= (uint64_t)rounds; i++) {
        uint64_t number = 2 * i + (uint64_t)!first;
        struct ibv_sge sge = {(uintptr_t)&number, 8, 0};
        struct ibv_send_wr *bad, wr = send_wr(i, &sge, IBV_WR_RDMA_WRITE);

        if (i > 1 || !first)
            while (*reply_of(t) != number - 1)
                ;
        wr.send_flags |= IBV_SEND_INLINE;
        wr.wr.rdma.remote_addr = to->addr + REPLY;
        wr.wr.rdma.rkey = to->rkey;
        ZERO(ibv_post_send(t->s.qp, &wr, &bad));
        EXPECT_EQ(next_wc(t->sends).status, IBV_WC_SUCCESS);
    }
}

static void partner_that_watches(int fd)
{
    struct address to;
    struct talker t;

    make_talker(&t, 0);
    to = join_over(fd, &t.s);
    watch(&t, &to, 0);
    together(fd);
}

/* Nobody looks for messages while both watch their memory: if each waited for a tick of the library's, it would take minutes. */
TEST_BETWEEN(a_talk_by_writes_goes_on_where_both_watch_their_memory)
{
    struct address to;
    struct talker t;
    pid_t other;
    int fd;

    rounds = 20000;
    other = with_other(partner_that_watches, &fd);
    make_talker(&t, 0);
    to = join_over(fd, &t.s);
    watch(&t, &to, 1);
    together(fd);
    ends_well(other);
}
