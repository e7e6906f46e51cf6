/* What IBA and the man pages promise about posting in each state of a QP, and about events. */
#include "conform.h"

static struct report *answer(struct expected *x)
{
    struct report *r = new_answer(x);

    say(&r[ACTIVE], A_MEMORY, "%s", "");
    say(&r[PASSIVE], A_MEMORY, "%s", "");
    return r;
}

/* The receive of a small SEND. */
static void received(struct report *r, const struct kase *k, unsigned first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        size_t n = strlen(r->text[A_RECV]);

        snprintf(r->text[A_RECV] + n, ASPECT_SIZE - n, "%s%u:SUCCESS:%s", i ? "," : "", first + i,
                 k->transport == UD ? "RECV:56:grh" : "RECV:16:-");
    }
}

/*
 * IBA 10.3.1 and 11.4.1.1 for the send queue: an immediate error in RESET, INIT and RTR; carried out in RTS; held in SQD
 * until RTS; flushed in SQE and ERR. The QP is then taken to RTS, where that can be, and a second SEND follows.
 */
static void post_send_in(const struct kase *k, struct expected *x)
{
    struct report *r = answer(x);

    switch (k->state) {
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_RTR:
        say(&r[ACTIVE], A_POST, "EINVAL");
        say(&r[ACTIVE], A_SEND, "2:SUCCESS:SEND");
        received(&r[PASSIVE], k, RECV_SUBJECT, 1);
        break;
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
        say(&r[ACTIVE], A_SEND, "1:SUCCESS:SEND,2:SUCCESS:SEND");
        say(&r[ACTIVE], A_THEN, "%s", k->state == IBV_QPS_SQD ? "held" : "");
        received(&r[PASSIVE], k, RECV_SUBJECT, 2);
        break;
    case IBV_QPS_SQE:
        say(&r[ACTIVE], A_SEND, "4:LOC_PROT_ERR,1:WR_FLUSH_ERR,2:SUCCESS:SEND");
        received(&r[PASSIVE], k, RECV_SUBJECT, 1);
        break;
    default:
        say(&r[ACTIVE], A_SEND, "1:WR_FLUSH_ERR,2:WR_FLUSH_ERR");
        say(&r[ACTIVE], A_STATE, "ERR");
    }
}

/*
 * IBA 10.3.1 and 11.4.1.2 for the receive queue: an immediate error in RESET alone; queued in INIT; served in RTR, RTS,
 * SQD and SQE; flushed in ERR. An SRQ does not care about the QP, and keeps what a QP in ERR has not taken.
 */
static void post_receive_in(const struct kase *k, struct expected *x)
{
    struct report *r = answer(x);
    int shared = k->queue == SHARED_QUEUE;

    say(&r[ACTIVE], A_SEND, "1:SUCCESS:SEND");
    switch (k->state) {
    case IBV_QPS_RESET:
        say(&r[PASSIVE], A_POST, "%s", shared ? "0" : "EINVAL");
        received(&r[PASSIVE], k, shared ? RECV_SUBJECT : RECV_MARKER, 1);
        break;
    case IBV_QPS_INIT:
    case IBV_QPS_RTS:
        received(&r[PASSIVE], k, RECV_SUBJECT, 1);
        break;
    case IBV_QPS_RTR:
        say(&r[PASSIVE], A_STATE, "RTR");
        /* IBA 11.6.3.1; UD has no communication to establish. */
        say(&r[PASSIVE], A_EVENTS, "%s", k->transport == UD ? "|COMM_EST" : "COMM_EST");
        received(&r[PASSIVE], k, RECV_SUBJECT, 1);
        break;
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
        say(&r[PASSIVE], A_STATE, "%s", state_name(k->state));
        say(&r[PASSIVE], A_SEND, "%s", k->state == IBV_QPS_SQE ? "4:LOC_PROT_ERR" : "");
        received(&r[PASSIVE], k, RECV_SUBJECT, 1);
        break;
    default:
        say(&r[ACTIVE], A_SEND, "%s", "");
        say(&r[PASSIVE], A_STATE, "ERR");
        if (shared)
            say(&r[PASSIVE], A_EVENTS, "%s", k->transport == RC ? "QP_LAST_WQE_REACHED" : "|QP_LAST_WQE_REACHED");
        else
            say(&r[PASSIVE], A_RECV, "101:WR_FLUSH_ERR");
    }
}

void expect_state(const struct kase *k, struct expected *x)
{
    x->count = 0;
    (k->queue == SEND_QUEUE ? post_send_in : post_receive_in)(k, x);
}

void expect_event(const struct kase *k, struct expected *x)
{
    struct report *r;
    unsigned messages = 1;

    x->count = 0;
    r = answer(x);
    say(&r[ACTIVE], A_SEND, "1:SUCCESS:%s", k->op == WRITE_IMM ? "RDMA_WRITE" : "SEND");
    switch (k->event) {
    case COMM_EST:
        /* IBA 11.6.3.1: the first packet in RTR; once, though two messages come. */
        messages = 2;
        say(&r[PASSIVE], A_STATE, "RTR");
        say(&r[PASSIVE], A_EVENTS, "COMM_EST");
        break;
    case SQ_DRAINED:
        /* IBA 11.6.3.1: what was begun is complete, and the event was asked for. */
        say(&r[ACTIVE], A_STATE, "SQD");
        say(&r[ACTIVE], A_EVENTS, "SQ_DRAINED");
        break;
    case LAST_WQE:
        /* IBA 11.6.3.1: the QP is in ERR and has taken its last request from the SRQ. */
        say(&r[PASSIVE], A_STATE, "ERR");
        say(&r[PASSIVE], A_EVENTS, "QP_LAST_WQE_REACHED");
        break;
    case SRQ_LIMIT:
        /* IBA 10.2.9.2: fewer requests than the limit. Three are posted, the limit is two. */
        messages = 2;
        say(&r[PASSIVE], A_THEN, "none");
        say(&r[PASSIVE], A_EVENTS, "SRQ_LIMIT_REACHED");
        break;
    case SRQ_LIMIT_ONCE:
        /* The event disarms the limit: ibv_modify_srq(3). */
        messages = 3;
        say(&r[PASSIVE], A_THEN, "limit-0");
        say(&r[PASSIVE], A_EVENTS, "SRQ_LIMIT_REACHED");
        break;
    case CQ_OVERRUN:
        /* ibv_poll_cq(3); IBA 11.6.3.2: the CQ's error, and the end of QPs that complete to it. */
        say(&r[ACTIVE], A_SEND, "*");
        say(&r[ACTIVE], A_STATE, "*");
        say(&r[PASSIVE], A_STATE, "ERR");
        say(&r[PASSIVE], A_EVENTS, "CQ_ERR|CQ_ERR,QP_FATAL|QP_FATAL,CQ_ERR");
        say(&r[PASSIVE], A_RECV, "*");
        say(&r[ACTIVE], A_REST, "%s", "");
        say(&r[PASSIVE], A_REST, "%s", "");
        return;
    case ARM_ANY:
    case ARM_SOLICITED:
    case ARM_SOLICITED_IMM:
        say(&r[PASSIVE], A_THEN, "1");
        break;
    case ARM_ONCE:
        /* One event for each request: ibv_req_notify_cq(3). */
        messages = 2;
        say(&r[PASSIVE], A_THEN, "1");
        break;
    case ARM_LATE:
        /* What is in the CQ already gives no event; the next completion does. */
        messages = 2;
        say(&r[PASSIVE], A_THEN, "0,1");
        break;
    case NOT_ARMED:
    case ARM_SOLICITED_PLAIN:
        say(&r[PASSIVE], A_THEN, "0");
        break;
    case ARM_SOLICITED_ERROR:
        /* A failed completion counts as solicited. */
        say(&r[ACTIVE], A_SEND, "%s", "");
        say(&r[PASSIVE], A_STATE, "ERR");
        say(&r[PASSIVE], A_RECV, "101:WR_FLUSH_ERR,102:WR_FLUSH_ERR");
        say(&r[PASSIVE], A_THEN, "1");
        return;
    case ARM_SEND:
        say(&r[ACTIVE], A_THEN, "1");
        break;
    default:
        die("%s: no expectation", k->name);
    }
    if (messages >= 2)
        say(&r[ACTIVE], A_SEND, "1:SUCCESS:SEND,2:SUCCESS:SEND%s", messages == 3 ? ",4:SUCCESS:SEND" : "");
    if (k->op == WRITE_IMM)
        say(&r[PASSIVE], A_RECV, "101:SUCCESS:RECV_RDMA_WITH_IMM:16:imm");
    else
        received(&r[PASSIVE], k, RECV_SUBJECT, messages);
}
