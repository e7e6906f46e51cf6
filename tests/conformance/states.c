/* Posting in each state of a QP. The active end sends, the passive one receives; the queue that is tested is either's. */
#include "conform.h"

/* A send with a key that is none leaves UC and UD QPs in SQE. */
static void fail_a_send(struct end *e)
{
    struct request r = {.op = SEND, .number = PREPARE, .n = 1};

    r.list[0] = place(e, AT_DATA, 8);
    r.list[0].lkey ^= 0x5a5a5a00;
    ZERO(post(e, &r));
    collect(e, e->send_cq, A_SEND, 1);
}

/* Takes the QP to the state of the case. */
static void go_to(struct end *e, enum ibv_qp_state state)
{
    if (state <= IBV_QPS_RTS) {
        ZERO(up_to(e, state));
        return;
    }
    ZERO(up_to(e, IBV_QPS_RTS));
    if (state == IBV_QPS_SQE)
        fail_a_send(e);
    else
        ZERO(attr_to(e, state));
}

/* And on to RTS, where that is possible. */
static void go_on(struct end *e)
{
    switch (e->kase->state) {
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_RTR:
        ZERO(up_to(e, IBV_QPS_RTS));
        break;
    case IBV_QPS_SQD:
    case IBV_QPS_SQE: {
        int rc = attr_to(e, IBV_QPS_RTS);

        if (rc)
            snprintf(e->report.text[A_THEN], ASPECT_SIZE, "to-RTS-%s", rc_name(rc));
        break;
    }
    default:
        break;
    }
}

static int post_subject(struct end *e)
{
    return e->kase->queue == SEND_QUEUE ? post_marker(e, SUBJECT, 0) : receive_at(e, RECV_SUBJECT, AT_DATA, MARKER_LENGTH);
}

static void send_in_state(struct end *e, const struct expected *x)
{
    const struct kase *k = e->kase;

    if (e->role == PASSIVE) {
        ZERO(up_to(e, IBV_QPS_INIT));
        ZERO(receive_at(e, RECV_SUBJECT, AT_DATA, MARKER_LENGTH));
        ZERO(receive_at(e, RECV_MARKER, AT_MARKER, MARKER_LENGTH));
        ZERO(up_to(e, IBV_QPS_RTS));
        snprintf(e->report.text[A_POST], ASPECT_SIZE, "0");
        meet_again(e);
        meet_again(e);
        observe(e, x);
        return;
    }
    go_to(e, k->state);
    meet_again(e);
    snprintf(e->report.text[A_POST], ASPECT_SIZE, "%s", rc_name(post_subject(e)));
    if (k->state == IBV_QPS_SQD) {
        struct ibv_wc wc;
        int early = 0;

        for (int i = 0; i < 1000; i++)
            early |= ibv_poll_cq(e->send_cq, 1, &wc);
        snprintf(e->report.text[A_THEN], ASPECT_SIZE, early ? "not-held" : "held");
    }
    if (k->state == IBV_QPS_SQE)
        collect(e, e->send_cq, A_SEND, 2);
    go_on(e);
    ZERO(post_marker(e, MARKER, 0));
    observe(e, x);
    meet_again(e);
}

static void receive_in_state(struct end *e, const struct expected *x)
{
    const struct kase *k = e->kase;
    int stays = k->state >= IBV_QPS_RTR;

    if (e->role == ACTIVE) {
        ZERO(up_to(e, IBV_QPS_RTS));
        snprintf(e->report.text[A_POST], ASPECT_SIZE, "0");
        meet_again(e);
        if (k->state != IBV_QPS_ERR)
            ZERO(post_marker(e, SUBJECT, 0));
        observe(e, x);
        meet_again(e);
        return;
    }
    go_to(e, k->state);
    snprintf(e->report.text[A_POST], ASPECT_SIZE, "%s", rc_name(post_subject(e)));
    if (!stays)
        go_on(e);
    if (k->state == IBV_QPS_RESET && !e->srq)
        ZERO(receive_at(e, RECV_MARKER, AT_MARKER, MARKER_LENGTH));
    meet_again(e);
    meet_again(e);
    observe(e, x);
}

void run_state(struct end *e, struct expected *x)
{
    const struct kase *k = e->kase;
    int rc = make_queues(e, k, k->queue == SHARED_QUEUE && e->role == PASSIVE && k->transport != XRC);

    expect_state(k, x);
    if (greet(e)) {
        snprintf(e->report.text[A_POST], ASPECT_SIZE, rc ? "%s:%s" : "", e->me.what, rc_name(rc));
        return;
    }
    fill(e->buffer, BUFFER, own_seed(e, e->role));
    (k->queue == SEND_QUEUE ? send_in_state : receive_in_state)(e, x);
    meet_again(e);
    flush_rest(e);
    meet_again(e);
}
