/* Arming a CQ: one event for the next completion, none for those that are there, none lost. */
#include "behaviour.h"
#include <sys/epoll.h>
#include <sys/resource.h>

struct ear {
    struct side s;
    struct ibv_comp_channel *channel;
};

/* A side whose CQ notifies a channel, which may serve several. */
static void make_ear(struct ear *e, struct ibv_context *context, struct ibv_comp_channel *channel)
{
    make_side(&e->s, context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(e->s.qp));
    ZERO(ibv_destroy_cq(e->s.cq));
    e->channel = channel ? channel : NEED(ibv_create_comp_channel(context));
    e->s.cq = NEED(ibv_create_cq(context, 64, e, e->channel, 0));
    e->s.qp = make_qp(&e->s, IBV_QPT_RC, NULL);
}

static void unblock(int fd)
{
    ZERO(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

/* The event that is there, acknowledged; NULL if none comes within so many milliseconds. */
static struct ibv_cq *event_within(struct ibv_comp_channel *channel, int ms)
{
    uint64_t end = now_ms() + (uint64_t)ms;

    do {
        struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
        struct ibv_cq *cq;
        void *context;

        if (poll(&fd, 1, ms) == 1 && ibv_get_cq_event(channel, &cq, &context) == 0) {
            ibv_ack_cq_events(cq, 1);
            EXPECT(context == cq->cq_context);
            return cq;
        }
    } while (now_ms() < end);
    return NULL;
}

static void exchange(struct ear *from, struct ear *to, unsigned flags)
{
    ZERO(recv_one(&to->s, 1, 0, 64));
    ZERO(send_one(&from->s, 2, 0, 8, IBV_SEND_SIGNALED | flags));
}

struct ears {
    struct ear a, b;
};

static void make(struct ears *e)
{
    struct ibv_context *context = open_device();

    make_ear(&e->a, context, NULL);
    make_ear(&e->b, context, NULL);
    unblock(e->a.channel->fd);
    unblock(e->b.channel->fd);
    join(&e->a.s, &e->b.s);
}

TEST(a_completion_after_arming_raises_exactly_one_event)
{
    struct ears e;

    make(&e);
    for (int round = 0; round < 200; round++) {
        int arms = 1 + round % 3;

        for (int i = 0; i < arms; i++)
            ZERO(ibv_req_notify_cq(e.b.s.cq, 0));
        for (int i = 0; i < 1 + round % 4; i++)
            exchange(&e.a, &e.b, 0);
        EXPECT(event_within(e.b.channel, 10000) == e.b.s.cq, "round %d: no event", round);
        EXPECT(!event_within(e.b.channel, 0), "round %d: a second event", round);
        for (int i = 0; i < 1 + round % 4; i++) {
            NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
            NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
        }
        EXPECT(!event_within(e.b.channel, 0), "round %d: an event of polling", round);
    }
}

TEST(without_arming_there_is_no_event)
{
    struct ears e;

    make(&e);
    for (int i = 0; i < 20; i++)
        exchange(&e.a, &e.b, IBV_SEND_SOLICITED);
    EXPECT(!event_within(e.b.channel, 100));
    EXPECT(!event_within(e.a.channel, 0));
}

/* Whoever arms polls once more before it waits: what is there already raises nothing. */
TEST(completions_from_before_the_arming_raise_no_event)
{
    struct ears e;

    make(&e);
    for (int round = 0; round < 20; round++) {
        exchange(&e.a, &e.b, 0);
        NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
        ZERO(ibv_req_notify_cq(e.b.s.cq, 0));
        EXPECT(!event_within(e.b.channel, round ? 0 : 50), "round %d", round);
        NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
        /* The request still stands. */
        exchange(&e.a, &e.b, 0);
        EXPECT(event_within(e.b.channel, 10000) == e.b.s.cq);
        NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
        NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
    }
}

TEST(solicited_only_hears_solicited_receives_and_errors)
{
    struct ears e;

    make(&e);
    for (int round = 0; round < 10; round++) {
        ZERO(ibv_req_notify_cq(e.b.s.cq, 1));
        for (int i = 0; i < 5; i++) {
            exchange(&e.a, &e.b, 0);
            NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
            NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
        }
        EXPECT(!event_within(e.b.channel, round ? 0 : 50), "a plain message was heard");
        exchange(&e.a, &e.b, IBV_SEND_SOLICITED);
        EXPECT(event_within(e.b.channel, 10000) == e.b.s.cq, "a solicited one was not");
        NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
        NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
    }
    /* The flag on the sender's side means nothing for the sender. */
    ZERO(ibv_req_notify_cq(e.a.s.cq, 1));
    exchange(&e.a, &e.b, IBV_SEND_SOLICITED);
    NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
    NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
    EXPECT(!event_within(e.a.channel, 50));
    /* A WRITE with immediate data is a receive, too. */
    ZERO(ibv_req_notify_cq(e.b.s.cq, 1));
    {
        struct ibv_sge sge = sge_of(&e.a.s, 0, 8);
        struct ibv_send_wr wr = send_wr(3, &sge, IBV_WR_RDMA_WRITE_WITH_IMM), *bad;

        wr.send_flags |= IBV_SEND_SOLICITED;
        wr.wr.rdma.remote_addr = (uintptr_t)e.b.s.buffer;
        wr.wr.rdma.rkey = e.b.s.mr->rkey;
        ZERO(recv_one(&e.b.s, 4, 0, 64));
        ZERO(ibv_post_send(e.a.s.qp, &wr, &bad));
        EXPECT(event_within(e.b.channel, 10000) == e.b.s.cq);
        NEXT(e.a.s.cq, 3, IBV_WC_SUCCESS);
        NEXT(e.b.s.cq, 4, IBV_WC_SUCCESS);
    }
    /* Errors of sends and of receives are always heard. */
    ZERO(ibv_req_notify_cq(e.a.s.cq, 1));
    ZERO(ibv_req_notify_cq(e.b.s.cq, 1));
    ZERO(recv_one(&e.b.s, 5, 0, 4));
    ZERO(send_one(&e.a.s, 6, 0, 8, 0));
    EXPECT(event_within(e.a.channel, 10000) == e.a.s.cq && event_within(e.b.channel, 10000) == e.b.s.cq);
    NEXT(e.a.s.cq, 6, IBV_WC_REM_INV_REQ_ERR);
    NEXT(e.b.s.cq, 5, IBV_WC_LOC_LEN_ERR);
}

/* A request for solicited ones widens to any, and not back. */
TEST(arming_for_any_after_solicited_hears_any)
{
    struct ears e;

    make(&e);
    for (int back = 0; back < 2; back++) {
        ZERO(ibv_req_notify_cq(e.b.s.cq, !back));
        ZERO(ibv_req_notify_cq(e.b.s.cq, back));
        exchange(&e.a, &e.b, 0);
        EXPECT(event_within(e.b.channel, 10000) == e.b.s.cq);
        NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
        NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
    }
}

TEST(a_channel_that_does_not_block_gives_eagain)
{
    struct ibv_cq *cq;
    void *context;
    struct ears e;

    make(&e);
    for (int i = 0; i < 100; i++) {
        errno = 0;
        EXPECT_EQ(ibv_get_cq_event(e.b.channel, &cq, &context), -1);
        EXPECT_EQ(errno, EAGAIN);
        if (i == 50)
            ZERO(ibv_req_notify_cq(e.b.s.cq, 0));
    }
}

/* poll(), select() and epoll see the descriptor readable exactly when there is an event. */
TEST(the_descriptor_works_with_poll_select_and_epoll)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event want = {.events = EPOLLIN, .data = {.u32 = 7}}, got;
    struct ears e;

    make(&e);
    ZERO(epoll_ctl(epoll, EPOLL_CTL_ADD, e.b.channel->fd, &want));
    for (int i = 0; i < 30; i++) {
        struct timeval now = {0, 0};
        fd_set set;
        uint64_t end = now_ms() + 10000;

        ZERO(ibv_req_notify_cq(e.b.s.cq, 0));
        exchange(&e.a, &e.b, 0);
        if (i % 3 == 0) {
            EXPECT(epoll_wait(epoll, &got, 1, 10000) == 1 && got.data.u32 == 7);
        } else if (i % 3 == 1) {
            do {
                FD_ZERO(&set);
                FD_SET(e.b.channel->fd, &set);
                now = (struct timeval){10, 0};
            } while (select(e.b.channel->fd + 1, &set, NULL, NULL, &now) != 1 && now_ms() < end);
        }
        EXPECT(event_within(e.b.channel, 10000) == e.b.s.cq);
        NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
        NEXT(e.b.s.cq, 1, IBV_WC_SUCCESS);
        EXPECT(!event_within(e.b.channel, 0));
    }
}

/* Several CQs on one channel: each event names its own. */
TEST(several_cqs_on_one_channel_raise_their_own_events)
{
    struct ibv_context *context = open_device();
    struct ibv_comp_channel *channel = NEED(ibv_create_comp_channel(context));
    struct ear from[5], to[5];

    unblock(channel->fd);
    for (int i = 0; i < 5; i++) {
        make_ear(&from[i], context, NULL);
        make_ear(&to[i], context, channel);
        join(&from[i].s, &to[i].s);
    }
    for (unsigned round = 0; round < 32; round++) {
        unsigned seen = 0;

        for (int i = 0; i < 5; i++)
            ZERO(ibv_req_notify_cq(to[i].s.cq, 0));
        for (int i = 0; i < 5; i++)
            if (round & 1u << i)
                exchange(&from[i], &to[i], 0);
        while (seen != round) {
            struct ibv_cq *cq = event_within(channel, 10000);

            EXPECT(cq != NULL);
            for (int i = 0; i < 5; i++)
                if (cq == to[i].s.cq) {
                    EXPECT(!(seen & 1u << i) && round & 1u << i);
                    seen |= 1u << i;
                }
        }
        EXPECT(!event_within(channel, 0));
        for (int i = 0; i < 5; i++)
            if (round & 1u << i) {
                NEXT(from[i].s.cq, 2, IBV_WC_SUCCESS);
                NEXT(to[i].s.cq, 1, IBV_WC_SUCCESS);
            } else {
                /* Use the request up. */
                exchange(&from[i], &to[i], 0);
                EXPECT(event_within(channel, 10000) == to[i].s.cq);
                NEXT(from[i].s.cq, 2, IBV_WC_SUCCESS);
                NEXT(to[i].s.cq, 1, IBV_WC_SUCCESS);
            }
    }
}

/* The descriptor is waited for before each event: where it is readable, there is one, also on a channel that blocks. */
static int polls_first;

static void wait_readable(struct ibv_comp_channel *channel)
{
    struct pollfd fd = {.fd = channel->fd, .events = POLLIN};

    EXPECT_EQ(poll(&fd, 1, -1), 1);
    /* Who blocks now is ended. */
    alarm(10);
}

/* Arm, poll, wait: as ibv_get_cq_event(3) says it. */
static struct ibv_wc wait_for(struct ear *e)
{
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *context;

    while (ibv_poll_cq(e->s.cq, 1, &wc) == 0) {
        ZERO(ibv_req_notify_cq(e->s.cq, 0));
        if (ibv_poll_cq(e->s.cq, 1, &wc) == 1)
            break;
        if (polls_first)
            wait_readable(e->channel);
        ZERO(ibv_get_cq_event(e->channel, &cq, &context));
        if (polls_first)
            alarm(0);
        EXPECT(cq == e->s.cq);
        ibv_ack_cq_events(cq, 1);
    }
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    return wc;
}

static int round_count;

/*
 * A sends, B answers, each waits blocking; one send in sixteen is signaled. Who has two signaled sends under way waits for the
 * older one.
 */
static void bounce(struct ear *e, int first)
{
    int received = 0, completed = 0, signaled = 0;

    for (int i = 0; i < round_count; i++) {
        unsigned flags = i % 16 == 15 ? IBV_SEND_SIGNALED : 0;

        for (int half = 0; half < 2; half++) {
            if (half == !first) {
                ZERO(send_one(&e->s, (unsigned)i, 0, 8, flags));
                signaled += flags != 0;
                continue;
            }
            while (received == i || signaled - completed > 1) {
                if (wait_for(e).opcode & IBV_WC_RECV) {
                    received++;
                    ZERO(recv_one(&e->s, (unsigned)i, 0, 64));
                } else {
                    completed++;
                }
            }
        }
    }
}

/* How many sends are not complete when the next answer is sent; each side replies as soon as it is woken. */
static void reply(struct ear *e, int first)
{
    int received = 0, completed = 0;

    for (int sent = 0; sent < round_count; sent++) {
        while (received < sent + !first) {
            if (wait_for(e).opcode & IBV_WC_RECV) {
                received++;
                ZERO(recv_one(&e->s, (unsigned)received, 0, 64));
            } else {
                completed++;
            }
        }
        EXPECT(sent - completed <= 8);
        ZERO(send_one(&e->s, (unsigned)sent, 0, 8, IBV_SEND_SIGNALED));
    }
}

/* What both ends of a pair of processes do. */
static void (*talk)(struct ear *e, int first);

static void make_talker(struct ear *e)
{
    make_ear(e, open_device(), NULL);
    ZERO(to_init(e->s.qp));
    for (unsigned i = 0; i < 4; i++)
        ZERO(recv_one(&e->s, i, 0, 64));
}

/* The way to the other process. */
static int between_fd;

static void partner(int fd)
{
    struct ear e;

    between_fd = fd;
    make_talker(&e);
    join_over(fd, &e.s);
    talk(&e, 0);
    together(fd);
}

static void between_processes(void (*what)(struct ear *e, int first), int rounds)
{
    struct ear e;
    pid_t other;
    int fd;

    talk = what;
    round_count = rounds;
    other = with_other(partner, &fd);
    between_fd = fd;
    make_talker(&e);
    join_over(fd, &e.s);
    talk(&e, 1);
    together(fd);
    ends_well(other);
}

TEST_BETWEEN(blocking_ping_pong_of_100000_rounds_between_processes_never_hangs)
{
    between_processes(bounce, between_hosts() ? 20000 : 100000);
}

TEST_BETWEEN(acknowledgements_keep_up_with_a_blocking_ping_pong_between_processes)
{
    between_processes(reply, between_hosts() ? 5000 : 20000);
}

TEST_BETWEEN(who_polls_the_descriptor_before_each_event_never_blocks)
{
    polls_first = 1;
    between_processes(bounce, between_hosts() ? 5000 : 20000);
}

/* Waits for an event that never comes. */
static void *wait_in_vain(void *arg)
{
    struct ear *e = arg;
    struct ibv_cq *cq;
    void *context;

    ZERO(ibv_req_notify_cq(e->s.cq, 0));
    ibv_get_cq_event(e->channel, &cq, &context);
    return NULL;
}

static long sleeps_so_far(void)
{
    struct rusage used;

    ZERO(getrusage(RUSAGE_SELF, &used));
    return used.ru_nvcsw;
}

/* A talk beside many threads that wait for other channels: who is woken has slept, and few have. */
static void talk_beside_sleepers(struct ear *e, int first)
{
    enum { SLEEPERS = 32, MOST_A_ROUND = 8 };
    struct ear *sleepers = NEED(calloc(SLEEPERS, sizeof(*sleepers)));
    pthread_t threads[SLEEPERS];
    char byte = 0;
    long before;

    for (int i = 0; i < SLEEPERS; i++) {
        make_ear(&sleepers[i], e->s.context, NULL);
        ZERO(pthread_create(&threads[i], NULL, wait_in_vain, &sleepers[i]));
    }
    /* Both ends are ready, and have spoken, before it is counted. */
    EXPECT_EQ(write(between_fd, &byte, 1), 1);
    EXPECT_EQ(read(between_fd, &byte, 1), 1);
    bounce(e, first);
    before = sleeps_so_far();
    bounce(e, first);
    EXPECT(sleeps_so_far() - before <= (long)MOST_A_ROUND * round_count, "%ld sleeps in %d rounds",
           sleeps_so_far() - before, round_count);
    for (int i = 0; i < SLEEPERS; i++) {
        ZERO(pthread_cancel(threads[i]));
        ZERO(pthread_join(threads[i], NULL));
    }
    free(sleepers);
}

TEST_BETWEEN(a_message_wakes_whom_it_concerns_however_many_wait)
{
    between_processes(talk_beside_sleepers, 1600);
}

/* One end asks for solicited events alone, and the other sends what is not: the descriptor stays as it is. */
static void send_unsolicited(struct ear *e, int first)
{
    struct pollfd fds[] = {{.fd = e->channel->fd, .events = POLLIN}, {.fd = between_fd, .events = POLLIN}};
    char byte = 0;

    for (int i = 0; i < round_count; i++) {
        if (first) {
            ZERO(send_one(&e->s, 1, 0, 8, IBV_SEND_SIGNALED));
            NEXT(e->s.cq, 1, IBV_WC_SUCCESS);
            EXPECT_EQ(write(between_fd, &byte, 1), 1);
            EXPECT_EQ(read(between_fd, &byte, 1), 1);
            continue;
        }
        ZERO(ibv_req_notify_cq(e->s.cq, 1));
        EXPECT_EQ(poll(fds, 2, -1), 1);
        EXPECT_EQ(fds[0].revents, 0);
        EXPECT_EQ(read(between_fd, &byte, 1), 1);
        EXPECT_EQ(poll(fds, 1, 0), 0);
        EXPECT_EQ(next_wc(e->s.cq).status, IBV_WC_SUCCESS);
        ZERO(recv_one(&e->s, 1, 0, 64));
        EXPECT_EQ(write(between_fd, &byte, 1), 1);
    }
}

TEST_BETWEEN(a_message_that_raises_no_event_leaves_the_descriptor_as_it_is)
{
    between_processes(send_unsolicited, 500);
}

static void *bounce_back(void *arg)
{
    bounce(arg, 0);
    return NULL;
}

TEST(blocking_ping_pong_between_threads_never_hangs)
{
    pthread_t thread;
    struct ear a, b;

    round_count = 20000;
    make_ear(&a, open_device(), NULL);
    make_ear(&b, a.s.context, NULL);
    join(&a.s, &b.s);
    for (unsigned i = 0; i < 4; i++) {
        ZERO(recv_one(&a.s, i, 0, 64));
        ZERO(recv_one(&b.s, i, 0, 64));
    }
    ZERO(pthread_create(&thread, NULL, bounce_back, &b));
    bounce(&a, 1);
    ZERO(pthread_join(thread, NULL));
}

/* One channel of many. */
#define SPARE_CHANNELS 9

static void bounce_late(struct ear *e, int first)
{
    struct ibv_comp_channel *spare[SPARE_CHANNELS];

    ZERO(ibv_destroy_qp(e->s.qp));
    ZERO(ibv_destroy_cq(e->s.cq));
    ZERO(ibv_destroy_comp_channel(e->channel));
    for (int i = 0; i < SPARE_CHANNELS; i++)
        spare[i] = NEED(ibv_create_comp_channel(e->s.context));
    e->channel = NEED(ibv_create_comp_channel(e->s.context));
    e->s.cq = NEED(ibv_create_cq(e->s.context, 64, e, e->channel, 0));
    e->s.qp = make_qp(&e->s, IBV_QPT_RC, NULL);
    ZERO(to_init(e->s.qp));
    for (unsigned i = 0; i < 4; i++)
        ZERO(recv_one(&e->s, i, 0, 64));
    join_over(between_fd, &e->s);
    bounce(e, first);
    for (int i = 0; i < SPARE_CHANNELS; i++)
        ZERO(ibv_destroy_comp_channel(spare[i]));
}

TEST(blocking_ping_pong_over_a_late_channel_never_hangs)
{
    between_processes(bounce_late, 5000);
}

/* More channels than the kernel lets stand in sets within sets: each is a program's to wait for, alone or with others. */
TEST(hundreds_of_channels_wait_in_sets_of_the_program)
{
    enum { CHANNELS = 300 };
    struct ears e;
    struct ibv_comp_channel *channels[CHANNELS];
    struct ibv_cq *cqs[CHANNELS];
    int inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};

    make(&e);
    EXPECT(inner >= 0 && outer >= 0);
    ZERO(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
    for (int i = 0; i < CHANNELS; i++) {
        channels[i] = NEED(ibv_create_comp_channel(e.a.s.context));
        cqs[i] = NEED(ibv_create_cq(e.a.s.context, 4, NULL, channels[i], 0));
        event.data.u32 = (uint32_t)i;
        ZERO(epoll_ctl(inner, EPOLL_CTL_ADD, channels[i]->fd, &event));
    }
    for (int i = 0; i < CHANNELS; i += 23) {
        struct ibv_cq *own = e.b.s.cq;

        /* The QP that receives reports to the CQ of this channel. */
        ZERO(ibv_destroy_qp(e.b.s.qp));
        ZERO(ibv_destroy_qp(e.a.s.qp));
        e.a.s.qp = make_qp(&e.a.s, IBV_QPT_RC, NULL);
        e.b.s.cq = cqs[i];
        e.b.s.qp = make_qp(&e.b.s, IBV_QPT_RC, NULL);
        join(&e.a.s, &e.b.s);
        ZERO(ibv_req_notify_cq(cqs[i], 0));
        exchange(&e.a, &e.b, 0);
        EXPECT_EQ(epoll_wait(outer, &event, 1, 10000), 1);
        EXPECT_EQ(epoll_wait(inner, &event, 1, 10000), 1);
        EXPECT_EQ(event.data.u32, (unsigned)i);
        EXPECT(event_within(channels[i], 10000) == cqs[i]);
        NEXT(cqs[i], 1, IBV_WC_SUCCESS);
        NEXT(e.a.s.cq, 2, IBV_WC_SUCCESS);
        e.b.s.cq = own;
    }
}
