/*
 * A link: one QP that sends random operations, of which both sides know what each is, and checks what it receives, reads
 * and fetches, byte by byte. The program makes the QP and polls its CQ.
 */
#ifndef C_TESTS_TRAFFIC_H
#define C_TESTS_TRAFFIC_H

#include "stress.h"

enum { WINDOW = 8, RECEIVES = 6, SLOTS = 3 };

/* The longest message; a multiple of 8. */
MAYBE uint32_t longest = 200 * 1024;

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, ADD, SWAP, KINDS };

struct op {
    enum kind kind;
    uint32_t length, slot;
    uint64_t pattern;
    int misses; /* SWAP: compares with a wrong value */
};

struct link {
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;    /* posts by ibv_wr_* */
    struct ibv_srq *srq;     /* where receives go instead */
    struct ibv_ah *ah;       /* UD */
    struct about me, peer;
    uint32_t lkey, srqn;     /* srqn: XRC, the peer's */
    uint64_t id;             /* the upper half of its wr_ids */
    unsigned n_kinds;        /* as many of the kinds, from the first on */
    long count;              /* operations each way */
    int ends_with_message;   /* the last one tells that all have arrived */
    uint32_t most, ahead;    /* bytes of a message at most, and of what a receive has before it */
    unsigned char *sources, *results, *receives, *target;
    uint64_t ours, theirs; /* streams of random numbers, one each way */
    long posted, done, heard;
    struct op ops[WINDOW];
    int busy_reads[SLOTS];
    struct op written[SLOTS];
    uint64_t adds, swapped;
    uint64_t expected[WINDOW];
};

/* Of a link's memory. */
MAYBE size_t link_bytes(void)
{
    return (size_t)longest * (2 * WINDOW + RECEIVES + SLOTS) + 64 * (RECEIVES + 1);
}

MAYBE unsigned char *receive_at(const struct link *l, uint64_t place)
{
    return l->receives + place * (longest + 64);
}

/* Zeroes the link and lays it out over `memory`; all of RC's operations. */
MAYBE void begin_link(struct link *l, unsigned char *memory, uint32_t lkey, uint64_t id, uint64_t ours, uint64_t theirs)
{
    *l = (struct link){.lkey = lkey, .id = id, .ours = ours, .theirs = theirs, .n_kinds = KINDS, .count = count,
                       .most = longest};
    l->sources = memory;
    l->results = l->sources + (size_t)WINDOW * longest;
    l->receives = l->results + (size_t)WINDOW * longest;
    l->target = receive_at(l, RECEIVES);
}

MAYBE int is_message(enum kind kind)
{
    return kind == SEND || kind == SEND_IMM || kind == WRITE_IMM;
}

/* Both sides know what the operation with this index is. */
MAYBE struct op op_at(const struct link *l, uint64_t stream, long index)
{
    uint64_t r = mix(stream, (uint64_t)index);
    const uint32_t limits[] = {1, 64, 4096, 20000, longest};
    struct op op = {.kind = (enum kind)(r % l->n_kinds), .slot = (uint32_t)(r >> 8) % SLOTS, .pattern = r};

    if (l->ends_with_message && index == l->count - 1)
        op.kind = SEND;
    op.length = (uint32_t)(mix(r, 1) % (limits[(r >> 16) % 5] + 1));
    if (op.length > l->most)
        op.length = l->most;
    op.misses = (r >> 24) % 4 == 0;
    if (op.kind == ADD || op.kind == SWAP)
        op.length = 8;
    return op;
}

MAYBE void give_receive(struct link *l, uint64_t place)
{
    struct ibv_sge sge = {(uintptr_t)receive_at(l, place), l->ahead + l->most, l->lkey};
    struct ibv_recv_wr wr = {.wr_id = l->id << 32 | 1u << 31 | place, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;

    if (l->srq)
        ZERO(ibv_post_srq_recv(l->srq, &wr, &bad));
    else
        ZERO(ibv_post_recv(l->qp, &wr, &bad));
}

/* Posts it by ibv_post_send. */
MAYBE void post_wr(struct link *l, uint64_t wr_id, const struct op *op, struct ibv_sge *sge, unsigned flags, uint64_t to,
                   uint64_t compare, uint64_t swap)
{
    static const enum ibv_wr_opcode codes[] = {IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,       IBV_WR_RDMA_WRITE,
                                               IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                               IBV_WR_ATOMIC_CMP_AND_SWP};
    struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = 1, .opcode = codes[op->kind],
                             .send_flags = flags, .imm_data = htonl((uint32_t)op->pattern)}, *bad;

    if (l->ah) {
        wr.wr.ud.ah = l->ah;
        wr.wr.ud.remote_qpn = l->peer.qpn;
        wr.wr.ud.remote_qkey = QKEY;
    } else if (op->kind == ADD || op->kind == SWAP) {
        wr.wr.atomic.remote_addr = to;
        wr.wr.atomic.rkey = l->peer.rkey;
        wr.wr.atomic.compare_add = compare;
        wr.wr.atomic.swap = swap;
    } else {
        wr.wr.rdma.remote_addr = to;
        wr.wr.rdma.rkey = l->peer.rkey;
    }
    wr.qp_type.xrc.remote_srqn = l->srqn;
    ZERO(ibv_post_send(l->qp, &wr, &bad));
}

/* Posts it by ibv_wr_*. */
MAYBE void post_ex(struct link *l, uint64_t wr_id, const struct op *op, struct ibv_sge *sge, unsigned flags, uint64_t to,
                   uint64_t compare, uint64_t swap)
{
    uint32_t imm = htonl((uint32_t)op->pattern);

    ibv_wr_start(l->ex);
    if (draw(8) == 0) {
        /* An abandoned request leaves no trace. */
        l->ex->wr_id = 77;
        l->ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(l->ex);
        ibv_wr_set_sge(l->ex, sge->lkey, sge->addr, sge->length);
        ibv_wr_abort(l->ex);
        ibv_wr_start(l->ex);
    }
    l->ex->wr_id = wr_id;
    l->ex->wr_flags = flags & ~(unsigned)IBV_SEND_INLINE;
    switch (op->kind) {
    case SEND:
        ibv_wr_send(l->ex);
        break;
    case SEND_IMM:
        ibv_wr_send_imm(l->ex, imm);
        break;
    case WRITE:
        ibv_wr_rdma_write(l->ex, l->peer.rkey, to);
        break;
    case WRITE_IMM:
        ibv_wr_rdma_write_imm(l->ex, l->peer.rkey, to, imm);
        break;
    case READ:
        ibv_wr_rdma_read(l->ex, l->peer.rkey, to);
        break;
    case ADD:
        ibv_wr_atomic_fetch_add(l->ex, l->peer.rkey, to, compare);
        break;
    default:
        ibv_wr_atomic_cmp_swp(l->ex, l->peer.rkey, to, compare, swap);
    }
    if (l->ah)
        ibv_wr_set_ud_addr(l->ex, l->ah, l->peer.qpn, QKEY);
    if (l->srqn)
        ibv_wr_set_xrc_srqn(l->ex, l->srqn);
    if (flags & IBV_SEND_INLINE)
        ibv_wr_set_inline_data(l->ex, (void *)(uintptr_t)sge->addr, sge->length);
    else
        ibv_wr_set_sge(l->ex, sge->lkey, sge->addr, sge->length);
    ZERO(ibv_wr_complete(l->ex));
}

/* The next operation WRITEs where a READ is under way: it takes a fence, or must wait. */
MAYBE int next_takes_fence(const struct link *l)
{
    struct op op = op_at(l, l->ours, l->posted);

    return (op.kind == WRITE || op.kind == WRITE_IMM) && l->busy_reads[op.slot];
}

MAYBE void post_next(struct link *l)
{
    long i = l->posted++;
    int place = (int)(i % WINDOW);
    struct op *op = &l->ops[place], as_posted;
    struct ibv_sge sge = {(uintptr_t)l->sources + (size_t)place * longest, 0, l->lkey};
    uint64_t to = l->peer.address, compare = 0, swap = 0, wr_id = l->id << 32 | (uint64_t)i;
    unsigned flags = 0;

    *op = op_at(l, l->ours, i);
    /* An answer is looked at, and the window moves only by completions that come. */
    if (op->kind >= READ || draw(2) || l->posted - l->done >= WINDOW / 2 || l->posted == l->count)
        flags |= IBV_SEND_SIGNALED;
    switch (op->kind) {
    case WRITE:
    case WRITE_IMM:
        l->written[op->slot] = *op;
        if (l->busy_reads[op->slot])
            flags |= IBV_SEND_FENCE;
        to += (uint64_t)op->slot * longest;
        break;
    case READ:
        op->length = l->written[op->slot].length;
        op->pattern = l->written[op->slot].pattern;
        l->busy_reads[op->slot]++;
        to += (uint64_t)op->slot * longest;
        break;
    case ADD:
        to += (uint64_t)SLOTS * longest;
        compare = 1;
        l->expected[place] = l->adds++;
        break;
    case SWAP:
        to += (uint64_t)SLOTS * longest + 8;
        compare = l->swapped + (uint64_t)op->misses;
        l->expected[place] = l->swapped;
        swap = op->pattern;
        if (!op->misses)
            l->swapped = swap;
        break;
    default:
        break;
    }
    sge.length = op->length;
    if (op->kind >= READ) {
        sge.addr = (uintptr_t)l->results + (size_t)place * longest;
    } else {
        put_pattern((unsigned char *)(uintptr_t)sge.addr, op->length, op->pattern);
        if (op->length <= 64 && draw(2)) {
            flags |= IBV_SEND_INLINE;
            sge.lkey = 0;
        }
    }
    if (draw(4) == 0)
        flags |= IBV_SEND_SOLICITED;
    as_posted = *op;
    (l->ex ? post_ex : post_wr)(l, wr_id, &as_posted, &sge, flags, to, compare, swap);
    if (flags & IBV_SEND_INLINE)
        memset((void *)(uintptr_t)sge.addr, 0xee, op->length);
}

MAYBE void check_answer(struct link *l, long i)
{
    int place = (int)(i % WINDOW);
    struct op *op = &l->ops[place];
    unsigned char *at = l->results + (size_t)place * longest;
    uint64_t got;

    if (op->kind == READ) {
        long wrong = pattern_differs(at, op->length, op->pattern);

        l->busy_reads[op->slot]--;
        if (wrong >= 0)
            BAD("READ %ld of %u bytes differs at %ld", i, op->length, wrong);
    }
    if (op->kind == ADD || op->kind == SWAP) {
        memcpy(&got, at, 8);
        if (got != l->expected[place])
            BAD("atomic %ld gave %" PRIu64 ", expected %" PRIu64, i, got, l->expected[place]);
    }
}

MAYBE void sent(struct link *l, long i)
{
    if (i < l->done || i >= l->posted)
        BAD("request %ld completes, of %ld to %ld", i, l->done, l->posted);
    for (; l->done <= i; l->done++)
        check_answer(l, l->done);
}

/* A message: its place is given back for another one. */
MAYBE void received(struct link *l, const struct ibv_wc *wc)
{
    struct op op;
    uint64_t place = wc->wr_id & 0xffff;
    unsigned char *at = receive_at(l, place) + l->ahead;
    long wrong;

    do
        op = op_at(l, l->theirs, l->heard++);
    while (!is_message(op.kind));
    if (l->heard > l->count)
        BAD("a message too many");
    if (wc->byte_len != l->ahead + op.length)
        BAD("message %ld has %u bytes, expected %u", l->heard - 1, wc->byte_len, l->ahead + op.length);
    if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != (op.kind != SEND) ||
        (op.kind != SEND && ntohl(wc->imm_data) != (uint32_t)op.pattern))
        BAD("message %ld: immediate", l->heard - 1);
    if (op.kind == WRITE_IMM) {
        /* Later writes may be there already; that of the same length and slot is seldom the same. */
    } else if ((wrong = pattern_differs(at, op.length, op.pattern)) >= 0) {
        BAD("message %ld of %u bytes differs at %ld", l->heard - 1, op.length, wrong);
    }
    memset(at, 0xdd, op.length);
    give_receive(l, place);
}

MAYBE int messages_left(struct link *l)
{
    while (l->heard < l->count && !is_message(op_at(l, l->theirs, l->heard).kind))
        l->heard++;
    return l->heard < l->count;
}

/* What one side tells the other in the end. */
struct totals {
    long done;
    uint64_t adds, swapped;
    struct op written[SLOTS];
};

MAYBE struct totals totals_of(const struct link *l)
{
    struct totals t;

    memset(&t, 0, sizeof(t));
    t.done = l->done;
    t.adds = l->adds;
    t.swapped = l->swapped;
    for (int i = 0; i < SLOTS; i++) {
        t.written[i].length = l->written[i].length;
        t.written[i].pattern = l->written[i].pattern;
    }
    return t;
}

/* What both sides have counted, and what lies in memory in the end. */
MAYBE void check_totals(const struct link *l, const struct totals *theirs)
{
    uint64_t words[2];

    memcpy(words, l->target + (size_t)SLOTS * longest, sizeof(words));
    if (l->done != l->count || theirs->done != l->count || l->heard != l->count)
        BAD("%ld of ours, %ld of theirs, %ld heard, expected %ld", l->done, theirs->done, l->heard, l->count);
    if (words[0] != theirs->adds || words[1] != theirs->swapped)
        BAD("counters %" PRIu64 " and %" PRIu64 ", expected %" PRIu64 " and %" PRIu64, words[0], words[1], theirs->adds,
            theirs->swapped);
    for (int i = 0; i < SLOTS; i++)
        if (pattern_differs(l->target + (size_t)i * longest, theirs->written[i].length, theirs->written[i].pattern) >= 0)
            BAD("slot %d does not hold the last WRITE", i);
}

#endif
