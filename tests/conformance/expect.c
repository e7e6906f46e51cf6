/*
 * What a device that keeps to the InfiniBand Architecture specification (IBA, volume 1, release 1.6) and the man pages
 * does in each case of kind OPERATION. A marker, a small SEND, follows each request: it arrives where the request did
 * no harm to its queue, is flushed where the request ended it, and so is everything that waits at the other end.
 *
 * Where the specification leaves a choice, there are several answers.
 */
#include "conform.h"

struct report *new_answer(struct expected *x)
{
    if (x->count == ANSWERS)
        die("too many answers");
    memset(x->answer[x->count], 0, sizeof(x->answer[0]));
    for (int end = 0; end < ENDS; end++) {
        say(&x->answer[x->count][end], A_STATE, "RTS");
        say(&x->answer[x->count][end], A_MEMORY, "untouched");
        say(&x->answer[x->count][end], A_REST, "clean");
    }
    say(&x->answer[x->count][ACTIVE], A_POST, "0");
    say(&x->answer[x->count][PASSIVE], A_POST, "0");
    return x->answer[x->count++];
}

void say(struct report *r, enum aspect a, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(r->text[a], ASPECT_SIZE, format, args);
    va_end(args);
}

/* A case, the length of its message, and what its marker leaves. */
struct scene {
    const struct kase *k;
    uint32_t length;
    char sent[48], received[48], marker_sent[32], marker_received[32];
};

/* The opcode in a completion of the requester: ibv_poll_cq(3). byte_len counts for what reads back (IBA 11.4.2.1). */
static const char *sent_opcode(enum op op)
{
    static const char *const names[] = {"SEND", "SEND", "SEND", "RDMA_WRITE", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP",
                                        "FETCH_ADD", "ATOMIC_WRITE", "FLUSH", "BIND_MW", "LOCAL_INV"};

    return names[op];
}

static struct scene scene_of(const struct kase *k, uint32_t length)
{
    struct scene s = {.k = k, .length = length};
    const char *grh = k->transport == UD ? "grh" : "";
    const char *flag = k->op == SEND_IMM || k->op == WRITE_IMM ? "imm" : k->op == SEND_INV ? "inv" : *grh ? "" : "-";
    uint32_t extra = k->transport == UD ? GRH : 0;

    if (reads_back(k->op))
        snprintf(s.sent, sizeof(s.sent), "1:SUCCESS:%s:%u", sent_opcode(k->op), length);
    else
        snprintf(s.sent, sizeof(s.sent), "1:SUCCESS:%s", sent_opcode(k->op));
    /* byte_len of a datagram counts the 40 bytes of the GRH: ibv_poll_cq(3). */
    snprintf(s.received, sizeof(s.received), "101:SUCCESS:%s:%u:%s%s", k->op == WRITE_IMM ? "RECV_RDMA_WITH_IMM" : "RECV",
             length + extra, grh, flag);
    snprintf(s.marker_sent, sizeof(s.marker_sent), "2:SUCCESS:SEND");
    snprintf(s.marker_received, sizeof(s.marker_received), "102:SUCCESS:RECV:%u:%s", MARKER_LENGTH + extra, *grh ? grh : "-");
    return s;
}

/* Carried out; both QPs go on. */
static void done(const struct scene *s, struct expected *x)
{
    const struct kase *k = s->k;
    struct report *r = new_answer(x);

    say(&r[ACTIVE], A_SEND, "%s%s%s", k->condition == UNSIGNALED ? "" : s->sent, k->condition == UNSIGNALED ? "" : ",",
        s->marker_sent);
    say(&r[PASSIVE], A_RECV, "%s%s%s", takes_receive(k->op) ? s->received : "", takes_receive(k->op) ? "," : "",
        s->marker_received);
    if (s->length && reads_back(k->op))
        say(&r[ACTIVE], A_MEMORY, "done");
    if (s->length && k->op != READ && k->op < FLUSH)
        say(&r[PASSIVE], A_MEMORY, "done");
}

/* Posting fails; nothing else happens, and the next request does not notice. The man pages name no errno. */
static void refused(const struct scene *s, struct expected *x)
{
    struct report *r = new_answer(x);

    say(&r[ACTIVE], A_POST, "EINVAL|ENOMEM|ENOSPC|EOPNOTSUPP|EMSGSIZE");
    say(&r[ACTIVE], A_SEND, "%s", s->marker_sent);
    /* The receive that was for the request serves the marker. */
    say(&r[PASSIVE], A_RECV, "%.3s%s", takes_receive(s->k->op) ? "101" : "102", s->marker_received + 3);
    if (takes_receive(s->k->op))
        say(&r[PASSIVE], A_MEMORY, "inside");
}

/*
 * The request completes with an error before anything of it leaves (IBA 10.10.2: a completion error). RC and XRC QPs
 * go to ERR, the others to SQE (IBA 10.3.1, figure 124); requests behind it are flushed. An atomic or a READ may have
 * been carried out by the responder when its answer finds no place: `answer_lost` allows for it.
 */
static void fails_locally(const struct scene *s, struct expected *x, const char *status, int answer_lost)
{
    struct report *r = new_answer(x);
    int changes = s->k->op == CMP_SWAP || s->k->op == FETCH_ADD;

    say(&r[ACTIVE], A_SEND, "1:%s,2:WR_FLUSH_ERR", status);
    say(&r[ACTIVE], A_STATE, "%s", s->k->transport == UC || s->k->transport == UD ? "SQE" : "ERR");
    if (answer_lost && reads_back(s->k->op))
        say(&r[ACTIVE], A_MEMORY, "untouched|inside");
    if (answer_lost && changes)
        say(&r[PASSIVE], A_MEMORY, "untouched|done");
    /* Of a message of several packets some may have left before the one that fails. */
    if (answer_lost && s->k->op <= WRITE_IMM)
        say(&r[PASSIVE], A_MEMORY, "untouched|inside");
    if (s->k->condition == LOCAL_AFTER && s->k->transport == XRC && takes_receive(s->k->op))
        say(&r[PASSIVE], A_REST, "clean|101:WR_FLUSH_ERR");
}

/*
 * The responder refuses (IBA 9.7.5.2 and table 58): a NAK, both QPs to ERR, everything flushed, and an affiliated
 * asynchronous event at the responder (IBA 11.6.3.2: local access violation, or invalid request).
 * UC has no NAK: the message is dropped (IBA 9.8.2.2) and the next one is heard.
 */
static void refused_by_peer(const struct scene *s, struct expected *x, const char *status, const char *event)
{
    const struct kase *k = s->k;
    struct report *r = new_answer(x);

    if (k->transport == UC) {
        say(&r[ACTIVE], A_SEND, "%s,%s", s->sent, s->marker_sent);
        say(&r[PASSIVE], A_RECV, "%.3s%s", takes_receive(k->op) ? "101" : "102", s->marker_received + 3);
        if (takes_receive(k->op))
            say(&r[PASSIVE], A_MEMORY, "inside");
        return;
    }
    say(&r[ACTIVE], A_SEND, "1:%s,2:WR_FLUSH_ERR", status);
    say(&r[ACTIVE], A_STATE, "ERR");
    say(&r[PASSIVE], A_STATE, "ERR");
    say(&r[PASSIVE], A_EVENTS, "%s", event);
    /* Receives in an SRQ stay there. */
    if (k->transport != XRC)
        say(&r[PASSIVE], A_RECV, "%s102:WR_FLUSH_ERR", takes_receive(k->op) ? "101:WR_FLUSH_ERR," : "");
}

/*
 * The receive request is at fault: it completes with an error, its QP goes to ERR (IBA table 58, classes of local
 * errors in the receive queue), and an RC requester is told. That completion is all there is: no event (IBA 11.6.3.2
 * has them for errors that no completion tells).
 */
static void fails_at_receive(const struct scene *s, struct expected *x, const char *here, const char *there)
{
    const struct kase *k = s->k;
    struct report *r = new_answer(x);

    if (k->transport == UC || k->transport == UD) {
        say(&r[ACTIVE], A_SEND, "%s,%s", s->sent, s->marker_sent);
    } else {
        say(&r[ACTIVE], A_SEND, "1:%s,2:WR_FLUSH_ERR", there);
        say(&r[ACTIVE], A_STATE, "ERR");
    }
    say(&r[PASSIVE], A_STATE, "ERR");
    say(&r[PASSIVE], A_RECV, "101:%s%s", here, k->transport == XRC ? "" : ",102:WR_FLUSH_ERR");
    say(&r[PASSIVE], A_MEMORY, "untouched|inside");
}

/* Unreliable: lost without a word, and the marker with it or not. */
static void lost(const struct scene *s, struct expected *x, const char *received)
{
    struct report *r = new_answer(x);

    say(&r[ACTIVE], A_SEND, "%s,%s", s->sent, s->marker_sent);
    say(&r[PASSIVE], A_RECV, "%s", received);
    say(&r[PASSIVE], A_MEMORY, "untouched|inside|done");
}

static void no_receive(const struct scene *s, struct expected *x)
{
    struct report *r;

    if (s->k->transport == UC || s->k->transport == UD) {
        lost(s, x, "");
        return;
    }
    /* IBA 9.7.5.2.8: an RNR NAK; rnr_retry of 1 is exceeded. The responder's QP is not affected. */
    r = new_answer(x);
    say(&r[ACTIVE], A_SEND, "1:RNR_RETRY_EXC_ERR,2:WR_FLUSH_ERR");
    say(&r[ACTIVE], A_STATE, "ERR");
    /* WRITE with immediate: the receive is asked for with its last packet. */
    if (s->k->op == WRITE_IMM)
        say(&r[PASSIVE], A_MEMORY, "untouched|inside|done");
}

/* The QP that would allow an opcode that its transport lacks is not made; ibv_post_send refuses the opcode. */
static void illegal(const struct scene *s, struct expected *x)
{
    struct report *r;

    if (s->k->api == POST) {
        r = new_answer(x);
        say(&r[ACTIVE], A_POST, "EINVAL|EOPNOTSUPP");
        say(&r[ACTIVE], A_SEND, "%s", s->marker_sent);
        say(&r[PASSIVE], A_RECV, "%.3s%s", takes_receive(s->k->op) ? "101" : "102", s->marker_received + 3);
        if (takes_receive(s->k->op))
            say(&r[PASSIVE], A_MEMORY, "inside");
        return;
    }
    r = new_answer(x);
    for (int end = 0; end < ENDS; end++) {
        memset(&r[end], 0, sizeof(r[end]));
        say(&r[end], A_POST, "ibv_create_qp:EINVAL|ibv_create_qp:EOPNOTSUPP");
    }
    /* The passive end of XRC makes no QP that sends. */
    if (s->k->transport == XRC)
        say(&r[PASSIVE], A_POST, "%s", "");
}

/* Windows of type 2: IBA 10.6.7.2, ibv_bind_mw(3). */
static void expect_window(const struct scene *s, struct expected *x)
{
    const struct kase *k = s->k;

    switch (k->condition) {
    case OTHER_PD_LKEY:
    case LOCAL_READ_ONLY:
    case LOCAL_BEFORE:
    case LOCAL_AFTER:
    case ZERO_LENGTH:
        /* Checked at once or when it is carried out. No bytes: IBA has no such window, ibv_bind_mw(3) unbinds by it. */
        fails_locally(s, x, "MW_BIND_ERR", 0);
        refused(s, x);
        if (k->condition == ZERO_LENGTH)
            done(s, x);
        break;
    case BAD_RKEY:
        /* Memory management operation error; verbs.h calls it MW_BIND_ERR. */
        fails_locally(s, x, "MW_BIND_ERR", 0);
        break;
    default:
        done(s, x);
        if (k->transport == RC && k->op == BIND_MW) {
            say(&x->answer[0][PASSIVE], A_THEN, "4:SUCCESS:RDMA_WRITE");
            say(&x->answer[0][ACTIVE], A_THEN, "written");
        } else if (k->transport == RC) {
            say(&x->answer[0][PASSIVE], A_THEN, "4:REM_ACCESS_ERR");
            say(&x->answer[0][ACTIVE], A_THEN, "not-written,QP_ACCESS_ERR");
        }
    }
}

/*
 * SEND with invalidate of a key that is none: IBA table 58, class J: no NAK, the receive completes with an error, the
 * QP goes to ERR, and the requester runs out of retries.
 */
static void bad_invalidate(const struct scene *s, struct expected *x)
{
    struct report *r;

    if (s->k->transport == UC) {
        /* Dropped, as all of UC that is not as it should be; the receive serves the marker. */
        lost(s, x, "101:SUCCESS:RECV:16:-");
        return;
    }
    r = new_answer(x);
    say(&r[ACTIVE], A_SEND, "1:RETRY_EXC_ERR,2:WR_FLUSH_ERR");
    say(&r[ACTIVE], A_STATE, "ERR");
    say(&r[PASSIVE], A_STATE, "ERR");
    say(&r[PASSIVE], A_RECV, "101:REM_INV_REQ_ERR%s", s->k->transport == XRC ? "" : ",102:WR_FLUSH_ERR");
    say(&r[PASSIVE], A_MEMORY, "untouched|inside|done");
}

static uint32_t length_of(const struct kase *k, const struct end *e)
{
    const struct hello *a = e->role == ACTIVE ? &e->me : &e->peer;

    switch (k->condition) {
    case ZERO_LENGTH:
    case ZERO_BAD_RKEY:
    case SGE_0:
    case RECV_SGE_0:
        return 0;
    case INLINE_MAX:
        return a->max_inline;
    case MAX_MESSAGE:
        return k->transport == UD ? e->datagram : e->max_message;
    default:
        return is_8_bytes(k->op) ? 8 : k->transport == UD ? 700 : 5000;
    }
}

/* The sum of the pieces of a list (ops.c); with UD less the header. */
static uint32_t pieces(uint32_t n, uint32_t less, uint32_t most)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += 3 + i % 5;
    sum = sum < less ? 0 : sum - less;
    return sum < most ? sum : most;
}

void expect(const struct kase *k, const struct end *e, struct expected *x)
{
    struct scene s = scene_of(k, length_of(k, e));
    int unreliable = k->transport == UC || k->transport == UD;
    char by_subject[64];

    x->count = 0;
    snprintf(by_subject, sizeof(by_subject), "101%s", s.marker_received + 3);
    if (k->condition == SGE_MAX)
        s = scene_of(k, pieces((e->role == ACTIVE ? &e->me : &e->peer)->max_send_sge, 0, ~0u));
    if (k->condition == RECV_SGE_MAX)
        s = scene_of(k, pieces((e->role == PASSIVE ? &e->me : &e->peer)->max_recv_sge, k->transport == UD ? GRH : 0, 700));
    if (k->condition == ILLEGAL) {
        illegal(&s, x);
        return;
    }
    if (k->op == BIND_MW || k->op == LOCAL_INV) {
        expect_window(&s, x);
        return;
    }
    switch (k->condition) {
    case GOOD:
    case UNSIGNALED:
        done(&s, x);
        if (k->op == SEND_INV && k->transport == RC) {
            say(&x->answer[0][ACTIVE], A_THEN, "4:REM_ACCESS_ERR");
            say(&x->answer[0][PASSIVE], A_THEN, "not-written,QP_ACCESS_ERR");
        }
        break;
    case ZERO_LENGTH:
    case SGE_1:
    case SGE_MAX:
    case MAX_MESSAGE:
    case INLINE_MAX:
    case RECV_SGE_0:
    case RECV_SGE_MAX:
        done(&s, x);
        break;
    case ZERO_BAD_RKEY:
        /* IBA 9.7.4.1.5, C9-88: the R_Key of a request of no bytes is not checked. */
        done(&s, x);
        break;
    case SGE_0:
        /* Atomics need 8 bytes of room. */
        if (k->op == CMP_SWAP || k->op == FETCH_ADD) {
            fails_locally(&s, x, "LOC_LEN_ERR", 1);
            refused(&s, x);
        } else {
            done(&s, x);
        }
        break;
    case BAD_LKEY:
    case DEAD_LKEY:
    case OTHER_PD_LKEY:
    case LOCAL_BEFORE:
    case LOCAL_AFTER:
        fails_locally(&s, x, "LOC_PROT_ERR", 1);
        break;
    case LOCAL_READ_ONLY:
        /* Local reads are always allowed: ibv_reg_mr(3). */
        if (reads_back(k->op))
            fails_locally(&s, x, "LOC_PROT_ERR", 1);
        else
            done(&s, x);
        break;
    case SHORT_SGE:
    case LONG_SGE:
        fails_locally(&s, x, "LOC_LEN_ERR", 1);
        refused(&s, x);
        break;
    case OVER_MAX_MESSAGE:
        fails_locally(&s, x, "LOC_LEN_ERR", 0);
        refused(&s, x);
        break;
    case INLINE_OVER:
    case SGE_OVER:
        refused(&s, x);
        break;
    case BAD_RKEY:
        if (k->op == SEND_INV) {
            bad_invalidate(&s, x);
            break;
        }
        /* fall through */
    case DEAD_RKEY:
    case OTHER_PD_RKEY:
    case REMOTE_BEFORE:
    case REMOTE_AFTER:
    case REMOTE_FORBIDDEN:
        refused_by_peer(&s, x, "REM_ACCESS_ERR", "QP_ACCESS_ERR");
        break;
    case QP_FORBIDDEN:
        refused_by_peer(&s, x, "REM_INV_REQ_ERR", "QP_REQ_ERR|QP_ACCESS_ERR");
        break;
    case UNALIGNED:
        refused_by_peer(&s, x, "REM_INV_REQ_ERR", "QP_REQ_ERR");
        break;
    case NO_RECEIVE:
        no_receive(&s, x);
        break;
    case OTHER_PD_AH:
        /* IBA 10.2.2.2: the PD of an address handle must be the QP's. It names no one status. */
        fails_locally(&s, x, "LOC_PROT_ERR", 0);
        fails_locally(&s, x, "LOC_QP_OP_ERR", 0);
        refused(&s, x);
        break;
    case BAD_QKEY:
        /* IBA 9.8.3: silently dropped; the receive serves the marker. */
        lost(&s, x, by_subject);
        break;
    case RECV_SHORT:
        /* Dropped, and the receive serves the marker (UD: IBA 9.8.3), or told as an error of its length. */
        if (unreliable)
            lost(&s, x, by_subject);
        fails_at_receive(&s, x, "LOC_LEN_ERR", "REM_INV_REQ_ERR");
        break;
    case RECV_BAD_LKEY:
        /* WRITE with immediate takes a receive but places nothing there. */
        if (k->op == WRITE_IMM) {
            done(&s, x);
            break;
        }
        /* fall through */
    case RECV_OTHER_PD:
    case RECV_BEFORE:
    case RECV_AFTER:
    case RECV_READ_ONLY:
        fails_at_receive(&s, x, "LOC_PROT_ERR", "REM_OP_ERR");
        break;
    case RECV_SGE_OVER:
        done(&s, x);
        say(&x->answer[0][PASSIVE], A_POST, "EINVAL|ENOMEM");
        break;
    default:
        die("%s: no expectation", k->name);
    }
}
