/* What an end saw, in words. */
#include "conform.h"

/* How long what may not come is waited for. */
#define HURRY_MS 100

const char *status_word(enum ibv_wc_status status)
{
    static const char *const names[] = {
        "SUCCESS",        "LOC_LEN_ERR",    "LOC_QP_OP_ERR",    "LOC_EEC_OP_ERR",  "LOC_PROT_ERR", "WR_FLUSH_ERR",
        "MW_BIND_ERR",    "BAD_RESP_ERR",   "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR",
        "RETRY_EXC_ERR",  "RNR_RETRY_EXC_ERR"};

    return (unsigned)status < sizeof(names) / sizeof(names[0]) ? names[status] : "OTHER_ERR";
}

static const char *opcode_word(enum ibv_wc_opcode opcode)
{
    switch (opcode) {
    case IBV_WC_BIND_MW:
        return "BIND_MW";
    case IBV_WC_LOCAL_INV:
        return "LOCAL_INV";
    case IBV_WC_FLUSH:
        return "FLUSH";
    case IBV_WC_ATOMIC_WRITE:
        return "ATOMIC_WRITE";
    default:
        return opcode_name(opcode);
    }
}

static void append(char *text, const char *word)
{
    size_t n = strlen(text);

    snprintf(text + n, ASPECT_SIZE - n, "%s%s", n ? "," : "", word);
}

/* NUMBER:STATUS of a failed one; with opcode, length (receives and what reads back), flags and immediate of a good one. */
static void word_of(const struct end *e, const struct ibv_wc *wc, char *to, size_t size)
{
    int n = snprintf(to, size, "%" PRIu64 ":%s", wc->wr_id ^ TAG, status_word(wc->status));
    int receive = (wc->opcode & IBV_WC_RECV) != 0;
    /* IBV_WC_GRH says something about UD only: ibv_poll_cq(3). */
    uint32_t known = IBV_WC_WITH_IMM | IBV_WC_WITH_INV | (e->kase->transport == UD ? IBV_WC_GRH : 0);
    uint32_t bits = (uint32_t)wc->wc_flags & known;
    uint32_t qpn = e->qp->qp_num;

    if (wc->status == IBV_WC_SUCCESS) {
        n += snprintf(to + n, size - (size_t)n, ":%s", opcode_word(wc->opcode));
        if (receive || wc->opcode == IBV_WC_RDMA_READ || wc->opcode == IBV_WC_COMP_SWAP || wc->opcode == IBV_WC_FETCH_ADD)
            n += snprintf(to + n, size - (size_t)n, ":%u", wc->byte_len);
    }
    if (wc->status == IBV_WC_SUCCESS && receive) {
        n += snprintf(to + n, size - (size_t)n, ":%s%s%s%s", bits & IBV_WC_GRH ? "grh" : "", bits & IBV_WC_WITH_IMM ? "imm" : "",
                      bits & IBV_WC_WITH_INV ? "inv" : "", bits ? "" : "-");
        if ((bits & IBV_WC_WITH_IMM) && wc->imm_data != htonl(IMMEDIATE))
            n += snprintf(to + n, size - (size_t)n, ":wrong-imm");
        if ((bits & IBV_WC_WITH_INV) && wc->invalidated_rkey != e->me.window)
            n += snprintf(to + n, size - (size_t)n, ":wrong-rkey");
        if (e->kase->transport == UD && wc->src_qp != e->peer.qpn)
            n += snprintf(to + n, size - (size_t)n, ":wrong-src-qp");
    }
    /* An XRC receive's completion names the receiving QP too. */
    if (wc->qp_num != qpn)
        snprintf(to + n, size - (size_t)n, ":wrong-qp");
}

unsigned words_in(const char *list)
{
    unsigned n = *list != 0;

    for (; *list; list++)
        n += *list == ',';
    return n;
}

static void forget(struct end *e, unsigned number)
{
    for (unsigned i = 0; i < e->pendings; i++)
        if (e->pending[i] == number) {
            memmove(e->pending + i, e->pending + i + 1, (e->pendings - i - 1) * sizeof(e->pending[0]));
            e->pendings--;
            return;
        }
}

/* Between two looks at what does not come: later ones leave the processor to others. */
static void breathe(unsigned *looks)
{
    if (++*looks < 500)
        sched_yield();
    else
        usleep(*looks < 550 ? 200 : 4000);
}

/* Polls once; true when there was something. */
static int poll_once(struct end *e, struct ibv_cq *cq, char *text)
{
    struct ibv_wc wc;
    char word[96];
    int n = ibv_poll_cq(cq, 1, &wc);

    if (n < 0)
        append(text, "poll-error");
    if (n <= 0)
        return 0;
    word_of(e, &wc, word, sizeof(word));
    append(text, word);
    if (cq == e->recv_cq) {
        forget(e, (unsigned)(wc.wr_id ^ TAG));
        if (wc.status == IBV_WC_SUCCESS && wc.byte_len == MARKER_LENGTH + (e->kase->transport == UD ? GRH : 0))
            e->marker_received = (unsigned)(wc.wr_id ^ TAG);
    }
    return 1;
}

void collect(struct end *e, struct ibv_cq *cq, enum aspect a, unsigned count)
{
    uint64_t end = now_ms() + patience(e);
    char *text = e->report.text[a];
    unsigned looks = 0;

    while (words_in(text) < count && now_ms() < end)
        if (!poll_once(e, cq, text))
            breathe(&looks);
}

static const char *event_word(enum ibv_event_type type)
{
    static const char *const names[] = {"CQ_ERR",   "QP_FATAL",   "QP_REQ_ERR",    "QP_ACCESS_ERR",
                                        "COMM_EST", "SQ_DRAINED", "PATH_MIG",      "PATH_MIG_ERR"};

    if ((unsigned)type < sizeof(names) / sizeof(names[0]))
        return names[type];
    switch (type) {
    case IBV_EVENT_SRQ_ERR:
        return "SRQ_ERR";
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return "SRQ_LIMIT_REACHED";
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        return "QP_LAST_WQE_REACHED";
    default:
        return NULL;
    }
}

/* Takes what events there are; those of the port are not a case's. */
static void take_events(struct end *e)
{
    struct ibv_async_event event;

    while (ibv_get_async_event(e->context, &event) == 0) {
        const char *word = event_word(event.event_type);
        void *of = event.element.qp;

        if (word)
            append(e->report.text[A_EVENTS],
                   of == e->qp || of == e->srq || of == e->send_cq || of == e->recv_cq ? word : "stray");
        ibv_ack_async_event(&event);
    }
}

int is_one_of(const char *alternatives, const char *got)
{
    size_t n = strlen(got);

    if (!strcmp(alternatives, "*"))
        return 1;
    for (const char *at = alternatives; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (!strncmp(at, got, n) && (at[n] == 0 || at[n] == '|'))
            return 1;
    return 0;
}

/* Waits until the events are one of these lists, then takes what else there is. */
void collect_events(struct end *e, const char *expected)
{
    uint64_t end = now_ms() + patience(e);
    struct pollfd fd = {.fd = e->context->async_fd, .events = POLLIN};

    uint64_t soon = now_ms() + HURRY_MS;

    take_events(e);
    while (!is_one_of(expected, e->report.text[A_EVENTS]) && now_ms() < end) {
        if (now_ms() >= soon && is_listed(e, A_EVENTS, e->report.text[A_EVENTS]))
            break;
        poll(&fd, 1, 10);
        take_events(e);
    }
}

/* Can this become one of these, if more comes? */
static int is_begun(const char *alternatives, const char *got)
{
    if (!strcmp(alternatives, "*"))
        return 1;
    for (const char *at = alternatives; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (!strncmp(at, got, strlen(got)))
            return 1;
    return 0;
}

/* Does one of the answers say this, by `same`, about completions and events? What differs may be `listed`. */
static int is_like(const struct end *e, const struct expected *x, int (*same)(const char *, const char *), int listed)
{
    static const enum aspect lists[] = {A_SEND, A_RECV, A_EVENTS};

    for (int i = 0; i < x->count; i++) {
        const struct report *r = &x->answer[i][e->role];
        int all = 1;

        for (int a = 0; a < 3; a++)
            all &= same(r->text[lists[a]], e->report.text[lists[a]]) ||
                   (listed && is_listed(e, lists[a], e->report.text[lists[a]]));
        if (all)
            return 1;
    }
    return 0;
}

uint64_t patience(const struct end *e)
{
    /* Messages of 2 GiB take their time. */
    int times = e->kase->kind == OPERATION && e->kase->condition == MAX_MESSAGE ? 6 : 1;

    return e->hurried ? HURRY_MS : (uint64_t)(e->wait_ms * times);
}

void meet_again(struct end *e)
{
    char mine = (char)e->hurried, theirs;

    tell(e->control, &mine, 1);
    hear(e->control, &theirs, 1);
    e->hurried |= theirs;
}

void observe(struct end *e, const struct expected *x)
{
    uint64_t end = now_ms() + patience(e), soon = now_ms() + HURRY_MS;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    unsigned looks = 0;
    int right = 0;

    do {
        int some = poll_once(e, e->send_cq, e->report.text[A_SEND]) + poll_once(e, e->recv_cq, e->report.text[A_RECV]);

        take_events(e);
        right = !some && is_like(e, x, is_one_of, 0);
        if (some || right)
            continue;
        if (!e->hurried && !is_like(e, x, is_begun, 0)) {
            e->hurried = 1;
            end = now_ms() + HURRY_MS;
        }
        if (now_ms() >= soon && is_like(e, x, is_one_of, 1))
            break;
        breathe(&looks);
    } while (!right && now_ms() < end);
    e->hurried |= !right;
    if (ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &init))
        snprintf(e->report.text[A_STATE], ASPECT_SIZE, "query-failed");
    else
        snprintf(e->report.text[A_STATE], ASPECT_SIZE, "%s", state_name(attr.qp_state));
}

/* Polls until the last request is there; what was due comes before it, in order, flushed. */
static void drain(struct end *e, struct ibv_cq *cq, unsigned last, const char *due, const char *name)
{
    uint64_t end = now_ms() + patience(e), soon = now_ms() + HURRY_MS;
    char text[ASPECT_SIZE] = "", word[ASPECT_SIZE + 32];
    char until[32];
    unsigned looks = 0;

    snprintf(until, sizeof(until), "%u:WR_FLUSH_ERR", last);
    while (!strstr(text, until) && now_ms() < end) {
        if (poll_once(e, cq, text))
            continue;
        snprintf(word, sizeof(word), "%s(%s)", name, text);
        if (now_ms() >= soon && is_listed(e, A_REST, word))
            break;
        breathe(&looks);
    }
    if (strcmp(text, due)) {
        snprintf(word, sizeof(word), "%s(%s)", name, text);
        append(e->report.text[A_REST], word);
    }
}

void flush_rest(struct end *e)
{
    const struct kase *k = e->kase;
    char due[ASPECT_SIZE] = "", word[64];
    int rc, hurried = e->hurried;

    for (unsigned i = 0; i < e->pendings && !e->srq; i++) {
        snprintf(word, sizeof(word), "%u:WR_FLUSH_ERR", e->pending[i]);
        append(due, word);
    }
    take_events(e);
    rc = attr_to(e, IBV_QPS_ERR);
    if (rc) {
        snprintf(e->report.text[A_REST], ASPECT_SIZE, "to-ERR-%s", rc_name(rc));
        return;
    }
    if (!(k->transport == XRC && e->role == PASSIVE)) {
        rc = post_marker(e, LAST, 0);
        /* Each device flushes it, a busy one not at once. */
        e->hurried = 0;
        if (rc)
            append(e->report.text[A_REST], "post-send-refused");
        else
            drain(e, e->send_cq, LAST, "3:WR_FLUSH_ERR", "send");
        e->hurried = hurried;
    }
    if (!e->srq && k->transport != XRC) {
        rc = receive_at(e, RECV_LAST, AT_MARKER, MARKER_LENGTH);
        append(due, "103:WR_FLUSH_ERR");
        if (rc)
            append(e->report.text[A_REST], "post-recv-refused");
        else
            drain(e, e->recv_cq, RECV_LAST, due, "recv");
    }
    for (int i = 0; i < 3; i++)
        while (poll_once(e, e->send_cq, e->report.text[A_REST]) || poll_once(e, e->recv_cq, e->report.text[A_REST]))
            ;
    /* A QP with an SRQ tells that it has taken its last request; what was to be told was told before. */
    if (!e->srq)
        take_events(e);
    if (!e->report.text[A_REST][0])
        append(e->report.text[A_REST], "clean");
}
