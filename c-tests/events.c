/* Completion channels: arming, solicited events, O_NONBLOCK, acknowledgement, and many wake-ups without a hang. */
#include "common.h"

#define ROUNDS 5000

struct armed {
    struct side s;
    struct ibv_comp_channel *channel;
};

static void make(struct armed *a, struct ibv_context *context, struct ibv_comp_channel *channel)
{
    make_side(&a->s, context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(a->s.qp));
    ZERO(ibv_destroy_cq(a->s.cq));
    a->channel = channel;
    a->s.cq = NEED(ibv_create_cq(context, 32, a, channel, 0));
    a->s.qp = make_qp(&a->s, IBV_QPT_RC, NULL);
}

static int readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, ms) == 1;
}

static void nonblocking(int fd)
{
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
        die("O_NONBLOCK");
}

/* Takes one event, at most ten seconds away; a wake-up without one is allowed. */
static struct ibv_cq *event(struct ibv_comp_channel *channel, void **cq_context)
{
    uint64_t end = now_ms() + 10000;
    struct ibv_cq *cq;

    while (now_ms() < end) {
        if (!readable(channel->fd, 1000))
            continue;
        if (ibv_get_cq_event(channel, &cq, cq_context) == 0)
            return cq;
        if (errno != EAGAIN)
            die("get_cq_event");
    }
    die("no event");
}

static int another(struct ibv_comp_channel *channel)
{
    struct ibv_cq *cq;
    void *context;
    uint64_t end = now_ms() + 50;

    while (now_ms() < end)
        if (readable(channel->fd, 10) && ibv_get_cq_event(channel, &cq, &context) == 0) {
            ibv_ack_cq_events(cq, 1);
            return 1;
        }
    return 0;
}

static void send_now(struct side *from, struct side *to, unsigned flags)
{
    ZERO(recv_one(to, 1, 0, 64));
    ZERO(send_one(from, 2, 0, 8, IBV_SEND_SIGNALED | flags));
    next_wc(from->cq);
}

static void arming(struct armed *r, struct side *s)
{
    struct ibv_cq *cq;
    void *cq_context = NULL;
    struct ibv_wc wc;

    printf("empty channel: %d", ibv_get_cq_event(r->channel, &cq, &cq_context));
    printf(" %s\n", rc_name(errno));
    send_now(s, &r->s, 0);
    printf("not armed: event %s\n", yes(another(r->channel)));
    ZERO(ibv_req_notify_cq(r->s.cq, 0));
    printf("armed after the completion came: event %s\n", yes(another(r->channel)));
    next_wc(r->s.cq);
    send_now(s, &r->s, 0);
    cq = event(r->channel, &cq_context);
    printf("armed: this CQ %s, its context %s\n", yes(cq == r->s.cq), yes(cq_context == r));
    ibv_ack_cq_events(cq, 1);
    send_now(s, &r->s, 0);
    printf("one event a request: another %s\n", yes(another(r->channel)));
    printf("completions %d\n", ibv_poll_cq(r->s.cq, 1, &wc) + ibv_poll_cq(r->s.cq, 1, &wc));

    ZERO(ibv_req_notify_cq(r->s.cq, 1));
    send_now(s, &r->s, 0);
    printf("solicited only, plain send: event %s\n", yes(another(r->channel)));
    send_now(s, &r->s, IBV_SEND_SOLICITED);
    cq = event(r->channel, &cq_context);
    printf("solicited only, solicited send: event %s\n", yes(cq == r->s.cq));
    ibv_ack_cq_events(cq, 1);
    next_wc(r->s.cq);
    next_wc(r->s.cq);

    ZERO(ibv_req_notify_cq(r->s.cq, 1));
    ZERO(recv_one(&r->s, 9, 0, 8));
    ZERO(to_err(r->s.qp));
    cq = event(r->channel, &cq_context);
    printf("solicited only, failed receive: event %s\n", yes(cq == r->s.cq));
    ibv_ack_cq_events(cq, 1);
    show_next("  it", r->s.cq);
}

/* Two CQs on one channel, and what destroying them in the wrong order gives. */
static void shared_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = NEED(ibv_create_comp_channel(context));
    struct armed a, b;
    struct ibv_cq *first, *second;
    void *cq_context;

    nonblocking(channel->fd);
    make(&a, context, channel);
    make(&b, context, channel);
    join(&a.s, &b.s);
    ZERO(ibv_req_notify_cq(a.s.cq, 0));
    ZERO(ibv_req_notify_cq(b.s.cq, 0));
    send_now(&a.s, &b.s, 0);
    first = event(channel, &cq_context);
    second = event(channel, &cq_context);
    printf("two CQs, one channel: both %s\n", yes(first != second && (first == a.s.cq || second == a.s.cq)));
    ibv_ack_cq_events(first, 1);
    ibv_ack_cq_events(second, 1);
    printf("channel destroyed under its CQs: %s\n", rc_name(ibv_destroy_comp_channel(channel)));
    next_wc(b.s.cq);
    drop_side(&a.s);
    drop_side(&b.s);
    printf("and after them: %s\n", rc_name(ibv_destroy_comp_channel(channel)));
}

static void *destroy(void *cq)
{
    return (void *)(intptr_t)ibv_destroy_cq(cq);
}

/* Destroying a CQ waits for its events to be acknowledged. */
static void unacknowledged(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = NEED(ibv_create_comp_channel(context));
    struct timespec soon;
    struct armed a, b;
    struct ibv_cq *cq;
    void *cq_context, *rc;
    pthread_t thread;

    make(&a, context, channel);
    make_side(&b.s, context, IBV_QPT_RC, 4096);
    join(&a.s, &b.s);
    ZERO(ibv_req_notify_cq(a.s.cq, 0));
    send_now(&b.s, &a.s, 0);
    ZERO(ibv_get_cq_event(channel, &cq, &cq_context));
    ZERO(ibv_destroy_qp(a.s.qp));
    ZERO(pthread_create(&thread, NULL, destroy, cq));
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 100000000;
    if (soon.tv_nsec >= 1000000000) {
        soon.tv_nsec -= 1000000000;
        soon.tv_sec++;
    }
    printf("destroy waits for the acknowledgement %s\n", yes(pthread_timedjoin_np(thread, &rc, &soon) == ETIMEDOUT));
    ibv_ack_cq_events(cq, 1);
    ZERO(pthread_join(thread, &rc));
    printf("  then %s\n", rc_name((int)(intptr_t)rc));
    a.s.cq = NEED(ibv_create_cq(context, 1, NULL, NULL, 0));
    a.s.qp = make_qp(&a.s, IBV_QPT_RC, NULL);
    drop_side(&a.s);
    drop_side(&b.s);
    ZERO(ibv_destroy_comp_channel(channel));
}

/* One side of a ping-pong that sleeps for every message: arm, poll, wait. */
static void *player(void *p)
{
    struct armed *me = p;
    uint64_t received = 0, events = 0;
    struct ibv_wc wc;
    struct ibv_cq *cq;
    void *cq_context;

    while (received < ROUNDS) {
        ZERO(ibv_req_notify_cq(me->s.cq, 0));
        while (ibv_poll_cq(me->s.cq, 1, &wc) > 0) {
            if (wc.status != IBV_WC_SUCCESS)
                die("%s", ibv_wc_status_str(wc.status));
            if (!(wc.opcode & IBV_WC_RECV))
                continue;
            received++;
            ZERO(recv_one(&me->s, 1, 0, 64));
            ZERO(send_one(&me->s, 2, 0, 8, IBV_SEND_SIGNALED));
        }
        if (received >= ROUNDS)
            break;
        if (ibv_get_cq_event(me->channel, &cq, &cq_context) == 0)
            events++;
        else if (errno != EAGAIN)
            die("get_cq_event");
    }
    ibv_ack_cq_events(me->s.cq, (unsigned)events);
    return NULL;
}

static void sleepers(struct ibv_context *context)
{
    struct armed a, b;
    pthread_t thread;

    make(&a, context, NEED(ibv_create_comp_channel(context)));
    make(&b, context, NEED(ibv_create_comp_channel(context)));
    join(&a.s, &b.s);
    for (int i = 0; i < 4; i++) {
        ZERO(recv_one(&a.s, 1, 0, 64));
        ZERO(recv_one(&b.s, 1, 0, 64));
    }
    ZERO(pthread_create(&thread, NULL, player, &b));
    ZERO(send_one(&a.s, 2, 0, 8, IBV_SEND_SIGNALED));
    player(&a);
    ZERO(pthread_join(thread, NULL));
    printf("%d rounds of sleeping ping-pong\n", ROUNDS);
    drop_side(&a.s);
    drop_side(&b.s);
    ZERO(ibv_destroy_comp_channel(a.channel));
    ZERO(ibv_destroy_comp_channel(b.channel));
}

static void asynchronous(struct ibv_context *context)
{
    struct ibv_async_event e;

    nonblocking(context->async_fd);
    printf("no asynchronous event: %d", ibv_get_async_event(context, &e));
    printf(" %s\n", rc_name(errno));
}

int main(void)
{
    struct ibv_context *context;
    struct armed r;
    struct side s;

    start();
    context = open_device();
    make(&r, context, NEED(ibv_create_comp_channel(context)));
    nonblocking(r.channel->fd);
    make_side(&s, context, IBV_QPT_RC, 4096);
    join(&r.s, &s);
    errno = 0;
    arming(&r, &s);
    ibv_ack_cq_events(r.s.cq, 0);
    drop_side(&r.s);
    drop_side(&s);
    ZERO(ibv_destroy_comp_channel(r.channel));
    shared_channel(context);
    unacknowledged(context);
    sleepers(context);
    asynchronous(context);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
