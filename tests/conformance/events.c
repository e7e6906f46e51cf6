/* Asynchronous events, and events of completion channels. */
#include "conform.h"

/* How long nothing must come for nothing to be coming: the completion that would cause it is there already. */
#define QUIET_MS 10

/* Counts the events of the channel: waits for the first ones, as many as expected, then looks for more. */
static unsigned channel_events(struct end *e, unsigned expected)
{
    uint64_t end = now_ms() + patience(e);
    unsigned n = 0, quiet = 0;

    while ((n < expected && now_ms() < end) || (n >= expected && !quiet)) {
        struct pollfd fd = {.fd = e->channel->fd, .events = POLLIN};
        struct ibv_cq *cq;
        void *context;

        if (poll(&fd, 1, QUIET_MS) == 0) {
            quiet = 1;
            continue;
        }
        quiet = 0;
        while (ibv_get_cq_event(e->channel, &cq, &context) == 0) {
            ibv_ack_cq_events(cq, 1);
            n++;
        }
        if (n > expected + 8)
            break;
        /* A wake-up without an event is allowed once in a while; it must not last. */
        if (n >= expected && now_ms() > end)
            break;
    }
    return n;
}

static void then(struct end *e, const char *separator, unsigned n)
{
    size_t at = strlen(e->report.text[A_THEN]);

    snprintf(e->report.text[A_THEN] + at, ASPECT_SIZE - at, "%s%u", separator, n);
}

static unsigned messages_of(const struct kase *k)
{
    switch (k->event) {
    case COMM_EST:
    case SRQ_LIMIT:
    case ARM_ONCE:
    case ARM_LATE:
        return 2;
    case SRQ_LIMIT_ONCE:
        return 3;
    case ARM_SOLICITED_ERROR:
        return 0;
    default:
        return 1;
    }
}

static void send_message(struct end *e, unsigned i)
{
    static const unsigned numbers[] = {SUBJECT, MARKER, PREPARE};
    const struct kase *k = e->kase;
    unsigned flags = k->event == ARM_SOLICITED || k->event == ARM_SOLICITED_IMM ? IBV_SEND_SOLICITED : 0;
    struct request r = {.op = k->op, .number = numbers[i], .flags = flags, .n = 1, .remote = e->peer.addr + AT_DATA, .rkey = e->peer.rkey};

    r.list[0] = place(e, AT_MARKER, MARKER_LENGTH);
    ZERO(post(e, &r));
    collect(e, e->send_cq, A_SEND, i + 1);
}

/* More messages than the CQ of the receiver has room for, and nobody polls. */
static void overrun(struct end *e, const struct expected *x)
{
    uint32_t room;

    if (e->role == ACTIVE) {
        hear(e->control, &room, sizeof(room));
        for (uint32_t i = 0; i <= room; i++)
            ZERO(post_marker(e, SUBJECT, 0));
        meet_again(e);
        observe(e, x);
        return;
    }
    room = (uint32_t)e->recv_cq->cqe;
    tell(e->control, &room, sizeof(room));
    meet_again(e);
    collect_events(e, x->answer[0][PASSIVE].text[A_EVENTS]);
    observe(e, x);
}

static void active(struct end *e, const struct expected *x)
{
    const struct kase *k = e->kase;

    meet_again(e);
    if (k->event == ARM_SEND)
        ZERO(ibv_req_notify_cq(e->send_cq, 0));
    for (unsigned i = 0; i < messages_of(k); i++) {
        send_message(e, i);
        meet_again(e);
        meet_again(e);
    }
    if (k->event == ARM_SEND)
        then(e, "", channel_events(e, 1));
    if (k->event == SQ_DRAINED)
        ZERO(attr_to(e, IBV_QPS_SQD));
    observe(e, x);
}

/* After the message with this number has come. */
static void look(struct end *e, unsigned i)
{
    const struct kase *k = e->kase;
    struct ibv_srq_attr limit;

    collect(e, e->recv_cq, A_RECV, i + 1);
    switch (k->event) {
    case ARM_LATE:
        if (i == 0)
            ZERO(ibv_req_notify_cq(e->recv_cq, 0));
        then(e, i ? "," : "", channel_events(e, i));
        break;
    case SRQ_LIMIT:
        if (i == 0) {
            collect_events(e, "");
            snprintf(e->report.text[A_THEN], ASPECT_SIZE, "%s",
                     e->report.text[A_EVENTS][0] ? e->report.text[A_EVENTS] : "none");
        }
        break;
    case SRQ_LIMIT_ONCE:
        if (i == 1)
            collect_events(e, "SRQ_LIMIT_REACHED");
        ZERO(ibv_query_srq(e->srq, &limit));
        if (i == 2)
            snprintf(e->report.text[A_THEN], ASPECT_SIZE, "limit-%u", limit.srq_limit);
        break;
    default:
        break;
    }
}

static void passive(struct end *e, const struct expected *x)
{
    const struct kase *k = e->kase;
    struct ibv_srq_attr limit = {.srq_limit = 2};

    if (k->event == SRQ_LIMIT || k->event == SRQ_LIMIT_ONCE)
        ZERO(ibv_modify_srq(e->srq, &limit, IBV_SRQ_LIMIT));
    if (k->event == ARM_ANY || k->event == ARM_ONCE)
        ZERO(ibv_req_notify_cq(e->recv_cq, 0));
    if (k->event >= ARM_SOLICITED_PLAIN && k->event <= ARM_SOLICITED_ERROR)
        ZERO(ibv_req_notify_cq(e->recv_cq, 1));
    meet_again(e);
    for (unsigned i = 0; i < messages_of(k); i++) {
        meet_again(e);
        look(e, i);
        meet_again(e);
    }
    if (k->event == LAST_WQE || k->event == ARM_SOLICITED_ERROR)
        ZERO(attr_to(e, IBV_QPS_ERR));
    if (k->event >= ARM_ANY && k->event != ARM_LATE && k->event != ARM_SEND)
        then(e, "", channel_events(e, k->event != NOT_ARMED && k->event != ARM_SOLICITED_PLAIN));
    observe(e, x);
}

void run_event(struct end *e, struct expected *x)
{
    const struct kase *k = e->kase;
    int srq = k->event == LAST_WQE || k->event == SRQ_LIMIT || k->event == SRQ_LIMIT_ONCE, rc;
    unsigned receives = k->event == CQ_OVERRUN ? 15 : srq || k->transport == XRC ? 3 : 2;

    if (k->event == CQ_OVERRUN && e->role == PASSIVE)
        e->depth = 1;
    fill(e->buffer, BUFFER, own_seed(e, e->role));
    rc = make_queues(e, k, srq && e->role == PASSIVE && k->transport != XRC);
    expect_event(k, x);
    if (greet(e)) {
        snprintf(e->report.text[A_POST], ASPECT_SIZE, rc ? "%s:%s" : "", e->me.what, rc_name(rc));
        return;
    }
    ZERO(up_to(e, IBV_QPS_INIT));
    for (unsigned i = 0; i < receives && e->role == PASSIVE; i++)
        ZERO(receive_at(e, RECV_SUBJECT + i, AT_DATA + 64 * i, MARKER_LENGTH));
    ZERO(up_to(e, k->event == COMM_EST && e->role == PASSIVE ? IBV_QPS_RTR : IBV_QPS_RTS));
    snprintf(e->report.text[A_POST], ASPECT_SIZE, "0");
    if (k->event == CQ_OVERRUN) {
        meet_again(e);
        overrun(e, x);
        meet_again(e);
        return;
    }
    (e->role == ACTIVE ? active : passive)(e, x);
    meet_again(e);
    flush_rest(e);
    meet_again(e);
}
