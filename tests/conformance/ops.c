/* One operation: the request that is tested, and a small SEND behind it as a marker. */
#include "conform.h"

/* Of several packets, all on a path MTU of 1024; a datagram is one. */
#define STREAM_LENGTH 5000u
#define DATAGRAM_LENGTH 700u
#define WINDOW_LENGTH 64u
#define ADDEND 0x0102030405060708ull
#define NEW_VALUE 0x1122334455667788ull
#define CHUNK (2u << 20)

struct span {
    uint32_t offset, length;
};

static const struct hello *of(const struct end *e, int role)
{
    return e->role == role ? &e->me : &e->peer;
}

static int is_ud(const struct end *e)
{
    return e->kase->transport == UD;
}

/* The message is of the greatest length that the port tells. */
static int is_huge(const struct end *e)
{
    return !is_ud(e) && (e->kase->condition == MAX_MESSAGE || e->kase->condition == OVER_MAX_MESSAGE);
}

static struct span piece(unsigned i)
{
    return (struct span){AT_DATA + i * 64, 3 + i % 5};
}

/* Where a receive's data goes, in this order. */
static unsigned receive_spans(const struct end *e, uint32_t length, struct span *to)
{
    uint32_t need = length + (is_ud(e) ? GRH : 0);
    unsigned n = of(e, PASSIVE)->max_recv_sge;

    switch (e->kase->condition) {
    case RECV_SGE_0:
        return 0;
    case RECV_SGE_MAX:
        for (unsigned i = 0; i < n; i++)
            to[i] = piece(i);
        return n;
    case RECV_SHORT:
        to[0] = (struct span){AT_DATA, need - 1};
        return 1;
    case RECV_BEFORE:
        to[0] = (struct span){REGION_START - 1, need};
        return 1;
    case RECV_AFTER:
        to[0] = (struct span){REGION_END + 1 - need, need};
        return 1;
    default:
        to[0] = (struct span){AT_DATA, need + 64};
        return 1;
    }
}

/* The requester's list. */
static unsigned local_spans(const struct end *e, struct span *to)
{
    const struct kase *k = e->kase;
    const struct hello *a = of(e, ACTIVE);
    uint32_t length = is_8_bytes(k->op) ? 8 : is_ud(e) ? DATAGRAM_LENGTH : STREAM_LENGTH;
    unsigned n = 0;

    to[0] = (struct span){AT_DATA, length};
    switch (k->condition) {
    case ZERO_LENGTH:
    case ZERO_BAD_RKEY:
    case RECV_SGE_0:
        to[0].length = 0;
        return 1;
    case SGE_0:
        return 0;
    case SGE_MAX:
    case SGE_OVER:
        n = a->max_send_sge + (k->condition == SGE_OVER);
        for (unsigned i = 0; i < n; i++)
            to[i] = piece(i);
        return n;
    case INLINE_MAX:
    case INLINE_OVER:
        to[0].length = a->max_inline + (k->condition == INLINE_OVER);
        if (k->api == POST)
            return 1;
        /* The sum of the list counts. */
        to[1] = (struct span){AT_DATA + to[0].length / 2, to[0].length - to[0].length / 2};
        to[0].length /= 2;
        return 2;
    case SHORT_SGE:
    case LONG_SGE:
        to[0].length = k->condition == SHORT_SGE ? 7 : 9;
        return 1;
    case LOCAL_BEFORE:
        to[0].offset = REGION_START - 1;
        return 1;
    case LOCAL_AFTER:
        to[0].offset = REGION_END + 1 - length;
        return 1;
    case MAX_MESSAGE:
    case OVER_MAX_MESSAGE:
        if (is_ud(e))
            to[0].length = e->datagram + (k->condition == OVER_MAX_MESSAGE);
        return 1;
    case RECV_SGE_MAX: {
        struct span into[512];

        n = receive_spans(e, 0, into);
        to[0].length = 0;
        for (unsigned i = 0; i < n; i++)
            to[0].length += into[i].length;
        if (is_ud(e))
            to[0].length = to[0].length < GRH ? 0 : to[0].length - GRH;
        if (to[0].length > DATAGRAM_LENGTH)
            to[0].length = DATAGRAM_LENGTH;
        return 1;
    }
    default:
        return 1;
    }
}

static uint32_t message_length(const struct end *e)
{
    struct span spans[512];
    unsigned n = local_spans(e, spans);
    uint32_t sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += spans[i].length;
    return sum;
}

static uint32_t remote_offset(const struct end *e)
{
    uint32_t length = is_8_bytes(e->kase->op) ? 8 : message_length(e);

    switch (e->kase->condition) {
    case UNALIGNED:
        return AT_DATA + 4;
    case REMOTE_BEFORE:
        return REGION_START - 1;
    case REMOTE_AFTER:
        return REGION_END + 1 - length;
    default:
        return AT_DATA;
    }
}

/* What an operation that is carried out makes of this end's buffer. */
static void carry_out(const struct end *e, unsigned char *image, const unsigned char *other)
{
    const struct kase *k = e->kase;
    struct span local[512], into[512];
    unsigned n = local_spans(e, local), m;
    unsigned char data[BUFFER];
    uint32_t length = 0, at, place_at = 0;
    uint64_t word;

    at = remote_offset(e);
    if (e->role == ACTIVE) {
        for (unsigned i = 0; i < n && reads_back(k->op); i++) {
            memcpy(image + local[i].offset, other + at + length, local[i].length);
            length += local[i].length;
        }
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        memcpy(data + length, other + local[i].offset, local[i].length);
        length += local[i].length;
    }
    switch (k->op) {
    case WRITE:
    case WRITE_IMM:
    case ATOMIC_WRITE:
        memcpy(image + at, data, length);
        return;
    case CMP_SWAP:
    case FETCH_ADD:
        memcpy(&word, image + at, 8);
        word = k->op == CMP_SWAP ? NEW_VALUE : word + ADDEND;
        memcpy(image + at, &word, 8);
        return;
    case SEND:
    case SEND_IMM:
    case SEND_INV:
        break;
    default:
        return;
    }
    /* The header's place is skipped: what stands there is nobody's promise here. */
    m = receive_spans(e, length, into);
    at = 0;
    for (unsigned i = 0; i < m; i++)
        for (uint32_t j = 0; j < into[i].length; j++, place_at++)
            if (place_at >= (is_ud(e) ? GRH : 0) && at < length)
                image[into[i].offset + j] = data[at++];
}

/* Bytes that the operation may touch, if anything goes wrong in the middle of it. */
static void allow(const struct end *e, unsigned char *allowed)
{
    const struct kase *k = e->kase;
    struct span spans[512];
    unsigned n = 0;

    if (e->role == ACTIVE) {
        n = reads_back(k->op) ? local_spans(e, spans) : 0;
    } else if (k->op <= SEND_INV) {
        n = receive_spans(e, message_length(e), spans);
    } else if (one_sided(k->op) && k->op != READ && k->op != FLUSH) {
        spans[0] = (struct span){remote_offset(e), is_8_bytes(k->op) ? 8 : message_length(e)};
        n = 1;
        /* The receive of a WRITE with immediate, where it was left to the marker. */
        if (e->marker_received == RECV_SUBJECT)
            n += receive_spans(e, MARKER_LENGTH, spans + 1);
    }
    for (unsigned i = 0; i < n; i++)
        for (uint32_t j = spans[i].offset; j < spans[i].offset + spans[i].length; j++)
            allowed[j] = j >= REGION_START && j < REGION_END;
}

/* Every byte of the buffer is looked at, guards and all. */
static void look_at_memory(struct end *e)
{
    unsigned char *before = NEED(malloc(BUFFER)), *done = NEED(malloc(BUFFER)), *other = NEED(malloc(BUFFER));
    unsigned char *allowed = NEED(calloc(1, BUFFER));
    uint32_t marker_at = AT_MARKER + (is_ud(e) ? GRH : 0), changed = 0, missing = 0, outside = 0;
    struct span into[512];
    /* What stands in the place of a datagram's header is nobody's promise here. */
    unsigned headers = is_ud(e) && e->role == PASSIVE ? receive_spans(e, message_length(e), into) : 0;
    char *text = e->report.text[A_MEMORY];

    fill(before, BUFFER, own_seed(e, e->role));
    fill(other, BUFFER, own_seed(e, !e->role));
    memcpy(done, before, BUFFER);
    if (!is_huge(e) && e->kase->condition != SGE_OVER && e->kase->condition != INLINE_OVER)
        carry_out(e, done, other);
    allow(e, allowed);
    if (e->marker_received == RECV_MARKER)
        for (uint32_t i = 0; i < MARKER_LENGTH; i++)
            before[marker_at + i] = done[marker_at + i] = other[AT_MARKER + i];
    for (uint32_t i = 0; i < BUFFER; i++) {
        int header = is_ud(e) && e->role == PASSIVE && i >= AT_MARKER && i < AT_MARKER + GRH;

        for (unsigned s = 0, past = 0; s < headers && past < GRH; past += into[s++].length) {
            uint32_t n = GRH - past < into[s].length ? GRH - past : into[s].length;

            header |= i >= into[s].offset && i < into[s].offset + n;
        }
        if (header)
            continue;
        changed += e->buffer[i] != before[i];
        missing += e->buffer[i] != done[i];
        if (e->buffer[i] != before[i] && !allowed[i] && !outside)
            outside = i;
    }
    if (outside)
        snprintf(text, ASPECT_SIZE, "wrong@%d", (int)outside - (int)REGION_START);
    else
        snprintf(text, ASPECT_SIZE, "%s", !changed ? "untouched" : !missing ? "done" : "inside");
    if (is_huge(e) && !outside && !changed) {
        uint32_t n = e->max_message < CHUNK ? e->max_message : CHUNK;
        int sends = e->kase->op != READ;

        if (filled(e->alias, n, own_seed(e, e->role)))
            snprintf(text, ASPECT_SIZE, "untouched");
        else if (filled(e->alias, n, own_seed(e, !e->role)) && (e->role == PASSIVE) == sends)
            snprintf(text, ASPECT_SIZE, "done");
        else
            snprintf(text, ASPECT_SIZE, "wrong");
    }
    free(before);
    free(done);
    free(other);
    free(allowed);
}

/* Regions that only this case has, and what the other end must know of them. */
static void make_regions(struct end *e)
{
    const struct kase *k = e->kase;
    unsigned char *start = e->buffer + REGION_START;
    size_t size = REGION_END - REGION_START;
    unsigned all = ALL_ACCESS, flush = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;

    if (is_huge(e)) {
        map_alias(e);
        fill(e->alias, CHUNK, own_seed(e, e->role));
        e->me.alias = e->alias_mr->rkey;
        e->me.alias_addr = (uintptr_t)e->alias;
    }
    if (k->condition == DEAD_LKEY || k->condition == DEAD_RKEY) {
        struct ibv_mr *dead = NEED(ibv_reg_mr(e->pd, start, size, ALL_ACCESS));

        e->dead_lkey = dead->lkey;
        e->me.dead = dead->rkey;
        ZERO(ibv_dereg_mr(dead));
    }
    if (k->condition == REMOTE_FORBIDDEN) {
        unsigned less = k->op == READ                            ? IBV_ACCESS_REMOTE_READ
                        : k->op == CMP_SWAP || k->op == FETCH_ADD ? IBV_ACCESS_REMOTE_ATOMIC
                        : k->op == FLUSH                          ? 0
                                                                  : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

        e->forbidden = NEED(ibv_reg_mr(e->pd, start, size, (int)(all & ~less)));
        e->me.forbidden = e->forbidden->rkey;
    }
    if (k->op == FLUSH && k->condition != ILLEGAL && e->role == PASSIVE) {
        e->bindable = ibv_reg_mr(e->pd, start, size, (int)(all | flush));
        /* Persistence is for memory that has it. */
        if (!e->bindable)
            e->bindable = NEED(ibv_reg_mr(e->pd, start, size, (int)(all | IBV_ACCESS_FLUSH_GLOBAL)));
        e->me.rkey = e->bindable->rkey;
    }
    if (e->role == (k->op == SEND_INV ? PASSIVE : ACTIVE) && k->condition != ILLEGAL && !(k->op == SEND_INV && k->transport == XRC) &&
        (k->op == BIND_MW || k->op == LOCAL_INV || k->op == SEND_INV)) {
        struct ibv_pd *pd = k->op == BIND_MW && k->condition == OTHER_PD_LKEY ? e->other_pd : e->pd;

        if (k->op == BIND_MW && k->condition == LOCAL_READ_ONLY)
            all &= ~(unsigned)IBV_ACCESS_MW_BIND;
        else
            all |= IBV_ACCESS_MW_BIND;
        e->bindable = NEED(ibv_reg_mr(pd, start, size, (int)all));
        e->mw = NEED(ibv_alloc_mw(e->pd, IBV_MW_TYPE_2));
    }
}

/* Shows WINDOW_LENGTH bytes at AT_WINDOW under a key of our own choice. */
static void bind_window(struct end *e)
{
    struct request r = {.op = BIND_MW, .number = PREPARE, .mw = e->mw, .rkey = ibv_inc_rkey(e->mw->rkey)};
    struct ibv_wc wc;

    r.bind = (struct ibv_mw_bind_info){.mr = e->bindable,
                                       .addr = (uintptr_t)e->buffer + AT_WINDOW,
                                       .length = WINDOW_LENGTH,
                                       .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    ZERO(post(e, &r));
    wc = next_wc(e->send_cq);
    if (wc.status != IBV_WC_SUCCESS)
        die("%s: binding a window: %s", e->kase->name, ibv_wc_status_str(wc.status));
    e->me.window = r.rkey;
}

static void post_receives(struct end *e)
{
    const struct kase *k = e->kase;
    struct span spans[512];
    struct ibv_sge list[512];
    unsigned n = receive_spans(e, message_length(e), spans);

    snprintf(e->report.text[A_POST], ASPECT_SIZE, "0");
    if (k->condition == NO_RECEIVE)
        return;
    for (unsigned i = 0; i < n; i++) {
        list[i] = place(e, spans[i].offset, spans[i].length);
        if (k->condition == RECV_BAD_LKEY)
            list[i].lkey ^= 0x5a5a5a00;
        if (k->condition == RECV_OTHER_PD)
            list[i].lkey = e->other->lkey;
        if (k->condition == RECV_READ_ONLY)
            list[i].lkey = e->read_only->lkey;
    }
    if (is_huge(e) && k->op != WRITE_IMM)
        list[0] = (struct ibv_sge){(uintptr_t)e->alias, e->max_message, e->alias_mr->lkey};
    if (k->condition == RECV_SGE_OVER) {
        struct ibv_sge more[512];

        for (unsigned i = 0; i <= e->me.max_recv_sge; i++)
            more[i] = place(e, piece(i).offset, piece(i).length);
        snprintf(e->report.text[A_POST], ASPECT_SIZE, "%s", rc_name(post_receive(e, RECV_LAST, more, (int)e->me.max_recv_sge + 1)));
    }
    if (takes_receive(k->op))
        ZERO(post_receive(e, RECV_SUBJECT, list, (int)n));
    ZERO(receive_at(e, RECV_MARKER, AT_MARKER, MARKER_LENGTH));
}

static uint32_t remote_key(const struct end *e)
{
    switch (e->kase->condition) {
    case BAD_RKEY:
    case ZERO_BAD_RKEY:
        return e->peer.rkey ^ 0x5a5a5a00;
    case DEAD_RKEY:
        return e->peer.dead;
    case OTHER_PD_RKEY:
        return e->peer.other_pd;
    case REMOTE_FORBIDDEN:
        return e->peer.forbidden;
    default:
        return e->peer.rkey;
    }
}

/* The request that is tested. */
static void post_subject(struct end *e)
{
    const struct kase *k = e->kase;
    struct request *r = NEED(calloc(1, sizeof(*r)));
    struct span spans[512];
    unsigned char *copy = NEED(malloc(BUFFER)), *other = NEED(malloc(BUFFER));
    int rc;

    *r = (struct request){.op = k->op, .number = SUBJECT, .remote = e->peer.addr + remote_offset(e), .rkey = remote_key(e)};
    /* Requests about keys have no list. */
    r->n = k->op == BIND_MW || k->op == LOCAL_INV ? 0 : (int)local_spans(e, spans);
    r->length = message_length(e);
    for (int i = 0; i < r->n; i++) {
        r->list[i] = place(e, spans[i].offset, spans[i].length);
        if (k->condition == BAD_LKEY)
            r->list[i].lkey ^= 0x5a5a5a00;
        if (k->condition == DEAD_LKEY)
            r->list[i].lkey = e->dead_lkey;
        if (k->condition == OTHER_PD_LKEY)
            r->list[i].lkey = e->other->lkey;
        if (k->condition == LOCAL_READ_ONLY)
            r->list[i].lkey = e->read_only->lkey;
    }
    if (is_huge(e)) {
        uint32_t length = e->max_message + (k->condition == OVER_MAX_MESSAGE);

        r->list[0] = (struct ibv_sge){(uintptr_t)e->alias, length, e->alias_mr->lkey};
        r->remote = e->peer.alias_addr;
        r->rkey = e->peer.alias;
    }
    fill(other, BUFFER, own_seed(e, PASSIVE));
    memcpy(&r->compare, other + AT_DATA, 8);
    r->swap = NEW_VALUE;
    if (k->op == FETCH_ADD)
        r->compare = ADDEND;
    if (k->condition == INLINE_MAX || k->condition == INLINE_OVER) {
        /* Inline data needs no region, and its memory is free again when the call returns. */
        memcpy(copy, e->buffer, BUFFER);
        for (int i = 0; i < r->n; i++) {
            r->list[i].addr = (uintptr_t)copy + spans[i].offset;
            r->list[i].lkey = 0xdeadbeef;
        }
        r->is_inline = 1;
    }
    if (k->op == BIND_MW && e->mw) {
        r->mw = e->mw;
        r->rkey = ibv_inc_rkey(e->mw->rkey);
        r->bind = (struct ibv_mw_bind_info){
            .mr = e->bindable, .addr = (uintptr_t)e->buffer + AT_WINDOW, .length = WINDOW_LENGTH, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
        if (k->condition == LOCAL_BEFORE)
            r->bind.addr = (uintptr_t)e->buffer + REGION_START - 1;
        if (k->condition == LOCAL_AFTER)
            r->bind.addr = (uintptr_t)e->buffer + REGION_END + 1 - WINDOW_LENGTH;
        if (k->condition == ZERO_LENGTH)
            r->bind.length = 0;
        e->me.window = r->rkey;
    }
    if (k->op == LOCAL_INV)
        r->rkey = e->me.window ^ (k->condition == BAD_RKEY ? 0x55 : 0);
    if (k->op == SEND_INV && k->condition != BAD_RKEY)
        r->rkey = e->peer.window;
    rc = post(e, r);
    memset(copy, 0, BUFFER);
    snprintf(e->report.text[A_POST], ASPECT_SIZE, "%s", rc_name(rc));
    ZERO(post_marker(e, MARKER, k->transport == RC || k->transport == XRC ? IBV_SEND_FENCE : 0));
    free(copy);
    free(other);
    free(r);
}

/* Does the window's key open the other end's memory? */
static void try_window(struct end *e, uint32_t rkey)
{
    struct request r = {.op = WRITE, .number = PREPARE, .n = 1, .remote = e->peer.addr + AT_WINDOW, .rkey = rkey};

    r.list[0] = place(e, AT_WINDOW, 8);
    ZERO(post(e, &r));
    collect(e, e->send_cq, A_THEN, 1);
}

/* For windows: what becomes of their keys. The key is told by the one who bound it. */
static void look_at_window(struct end *e)
{
    const struct kase *k = e->kase;
    int asks = k->op == SEND_INV ? ACTIVE : PASSIVE;
    uint32_t rkey;

    if ((k->op != BIND_MW && k->op != LOCAL_INV && k->op != SEND_INV) || k->transport != RC ||
        (k->condition != GOOD && k->condition != UNSIGNALED))
        return;
    if (e->role == asks) {
        hear(e->control, &rkey, sizeof(rkey));
        try_window(e, rkey);
        together(e->control);
    } else {
        unsigned char *other = NEED(malloc(BUFFER));
        char events[ASPECT_SIZE], *text = e->report.text[A_EVENTS];
        int written;

        tell(e->control, &e->me.window, sizeof(e->me.window));
        together(e->control);
        fill(other, BUFFER, own_seed(e, asks));
        written = !memcmp(e->buffer + AT_WINDOW, other + AT_WINDOW, 8);
        /* The refusal has its event, which the case's other words are not about. */
        memcpy(events, text, sizeof(events));
        *text = 0;
        collect_events(e, written ? "" : "QP_ACCESS_ERR");
        snprintf(e->report.text[A_THEN], ASPECT_SIZE, "%s%s%.32s", written ? "written" : "not-written", *text ? "," : "", text);
        memcpy(text, events, sizeof(events));
        free(other);
    }
}

void run_operation(struct end *e, struct expected *x)
{
    const struct kase *k = e->kase;
    int rc, other;

    fill(e->buffer, BUFFER, own_seed(e, e->role));
    rc = make_queues(e, k, 0);
    if (!rc) {
        make_regions(e);
        ZERO(up_to(e, IBV_QPS_INIT));
    }
    other = greet(e);
    expect(k, e, x);
    if (other) {
        snprintf(e->report.text[A_POST], ASPECT_SIZE, rc ? "%s:%s" : "", e->me.what, rc_name(rc));
        return;
    }
    if (e->role == PASSIVE)
        post_receives(e);
    ZERO(up_to(e, IBV_QPS_RTS));
    if (e->mw && k->op != BIND_MW)
        bind_window(e);
    if (e->role == ACTIVE) {
        hear(e->control, &e->peer.window, sizeof(e->peer.window));
        post_subject(e);
        observe(e, x);
        meet_again(e);
    } else {
        tell(e->control, &e->me.window, sizeof(e->me.window));
        meet_again(e);
        observe(e, x);
    }
    meet_again(e);
    look_at_memory(e);
    look_at_window(e);
    together(e->control);
    flush_rest(e);
    together(e->control);
}
