/*
 * mixed [-s SEED] [-n COUNT] [pair | many]: threads with several RC QPs each send, write, read and add at random, sizes 0
 * to 200 KiB, and check every byte and at the end all totals; shared CQs, channels, ibv_post_send and ibv_wr_*, random
 * signaling, slow receivers. In one process, with `pair` between two, or with `many` over 1,000 QPs of one process to
 * 1,000 of another, sizes to 4 KiB.
 */
#include "stress.h"

enum { PAIRS = 2, WINDOW = 8, RECEIVES = 6, SLOTS = 3 };

/* QPs of a thread, threads of a process, and the longest message. */
static int qps = 3, pairs = PAIRS;
static uint32_t longest = 200 * 1024;

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, ADD, SWAP, KINDS };

struct op {
    enum kind kind;
    uint32_t length, slot;
    uint64_t pattern;
    int misses; /* SWAP: compares with a wrong value */
};

struct link {
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
    struct about me, peer;
    unsigned char *sources, *results, *receives, *target;
    uint64_t ours, theirs; /* streams of random numbers, one each way */
    long posted, done, heard;
    struct op ops[WINDOW];
    int busy_reads[SLOTS];
    struct op written[SLOTS];
    uint64_t adds, swapped;
    uint64_t expected[WINDOW];
    int held_back;
};

struct end {
    struct ibv_context *context;
    int fd, number, uses_events;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    unsigned char *memory;
    struct link *links;
};

static size_t link_bytes(void)
{
    return (size_t)longest * (2 * WINDOW + RECEIVES + SLOTS) + 64;
}

/* Both sides know what the operation with this index is. */
static struct op op_at(uint64_t stream, long index)
{
    uint64_t r = mix(stream, (uint64_t)index);
    const uint32_t limits[] = {1, 64, 4096, 20000, longest};
    struct op op = {.kind = (enum kind)(r % KINDS), .slot = (uint32_t)(r >> 8) % SLOTS, .pattern = r};

    op.length = (uint32_t)(mix(r, 1) % (limits[(r >> 16) % 5] + 1));
    if (op.length > longest)
        op.length = longest;
    op.misses = (r >> 24) % 4 == 0;
    if (op.kind == ADD || op.kind == SWAP)
        op.length = 8;
    return op;
}

static int is_message(enum kind kind)
{
    return kind == SEND || kind == SEND_IMM || kind == WRITE_IMM;
}

static void give_receive(struct end *e, struct link *l, uint64_t place)
{
    struct ibv_sge sge = {(uintptr_t)l->receives + place * longest, longest, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uint64_t)(l - e->links) << 32 | 1u << 31 | place, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;

    ZERO(ibv_post_recv(l->qp, &wr, &bad));
}

static void post(struct link *l, uint64_t wr_id, const struct op *op, struct ibv_sge *sge, unsigned flags, uint64_t to,
                 uint64_t compare, uint64_t swap)
{
    static const enum ibv_wr_opcode codes[] = {IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,       IBV_WR_RDMA_WRITE,
                                               IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                               IBV_WR_ATOMIC_CMP_AND_SWP};
    uint32_t imm = htonl((uint32_t)op->pattern);

    if (!l->ex) {
        struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = 1, .opcode = codes[op->kind],
                                 .send_flags = flags, .imm_data = imm}, *bad;

        if (op->kind == ADD || op->kind == SWAP) {
            wr.wr.atomic.remote_addr = to;
            wr.wr.atomic.rkey = l->peer.rkey;
            wr.wr.atomic.compare_add = compare;
            wr.wr.atomic.swap = swap;
        } else {
            wr.wr.rdma.remote_addr = to;
            wr.wr.rdma.rkey = l->peer.rkey;
        }
        ZERO(ibv_post_send(l->qp, &wr, &bad));
        return;
    }
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
    if (flags & IBV_SEND_INLINE)
        ibv_wr_set_inline_data(l->ex, (void *)(uintptr_t)sge->addr, sge->length);
    else
        ibv_wr_set_sge(l->ex, sge->lkey, sge->addr, sge->length);
    ZERO(ibv_wr_complete(l->ex));
}

static void post_next(struct end *e, struct link *l)
{
    long i = l->posted++;
    int place = (int)(i % WINDOW);
    struct op *op = &l->ops[place], as_posted;
    struct ibv_sge sge = {(uintptr_t)l->sources + (size_t)place * longest, 0, e->mr->lkey};
    uint64_t to = l->peer.address, compare = 0, swap = 0;
    unsigned flags = 0;

    *op = op_at(l->ours, i);
    as_posted = *op;
    /* An answer is looked at, and the window moves only by completions that come. */
    if (op->kind >= READ || draw(2) || l->posted - l->done >= WINDOW / 2 || l->posted == count)
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
    as_posted.length = op->length;
    post(l, (uint64_t)(l - e->links) << 32 | (uint64_t)i, &as_posted, &sge, flags, to, compare, swap);
    if (flags & IBV_SEND_INLINE)
        memset((void *)(uintptr_t)sge.addr, 0xee, op->length);
}

static void check_answer(struct link *l, long i)
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

static void sent(struct link *l, long i)
{
    for (; l->done <= i; l->done++)
        check_answer(l, l->done);
}

static void received(struct end *e, struct link *l, const struct ibv_wc *wc)
{
    struct op op;
    uint64_t place = wc->wr_id & 0xffff;
    unsigned char *at = l->receives + place * longest;
    long wrong;

    do
        op = op_at(l->theirs, l->heard++);
    while (!is_message(op.kind));
    if (wc->byte_len != op.length)
        BAD("message %ld has %u bytes, expected %u", l->heard - 1, wc->byte_len, op.length);
    if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != (op.kind != SEND) ||
        (op.kind != SEND && ntohl(wc->imm_data) != (uint32_t)op.pattern))
        BAD("message %ld: immediate", l->heard - 1);
    if (op.kind == WRITE_IMM) {
        /* Later writes may be there already; that of the same length and slot is seldom the same. */
    } else if ((wrong = pattern_differs(at, op.length, op.pattern)) >= 0) {
        BAD("message %ld of %u bytes differs at %ld", l->heard - 1, op.length, wrong);
    }
    memset(at, 0xdd, op.length);
    if (draw(16) == 0)
        usleep((useconds_t)draw(2000));
    give_receive(e, l, place);
}

static int take(struct end *e)
{
    struct ibv_wc wc[4];
    int n = ibv_poll_cq(e->cq, 1 + (int)draw(4), wc);

    if (n < 0)
        BAD("ibv_poll_cq = %d", n);
    for (int i = 0; i < n; i++) {
        struct link *l = &e->links[wc[i].wr_id >> 32];

        if (wc[i].status)
            BAD("end %d: wr_id 0x%" PRIx64 ": %s", e->number, wc[i].wr_id, ibv_wc_status_str(wc[i].status));
        if (wc[i].wr_id & 1u << 31)
            received(e, l, &wc[i]);
        else
            sent(l, (long)(wc[i].wr_id & 0x7fffffff));
    }
    return n;
}

static int messages_left(struct link *l)
{
    while (l->heard < count && !is_message(op_at(l->theirs, l->heard).kind))
        l->heard++;
    return l->heard < count;
}

static void make_link(struct end *e, struct link *l, int index)
{
    struct ibv_qp_cap cap = {.max_send_wr = WINDOW + 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
                             .max_inline_data = 64};
    uint64_t id = (uint64_t)(e->number / 2 * qps + index) * 2;

    l->sources = e->memory + (size_t)index * link_bytes();
    l->results = l->sources + (size_t)WINDOW * longest;
    l->receives = l->results + (size_t)WINDOW * longest;
    l->target = l->receives + (size_t)RECEIVES * longest;
    l->ours = mix(seed, id + (uint64_t)(e->number & 1));
    l->theirs = mix(seed, id + (uint64_t)(~e->number & 1));
    for (int i = 0; i < SLOTS; i++)
        l->written[i].length = 0;
    if (index % 2) {
        struct ibv_qp_init_attr_ex init = {
            .send_cq = e->cq, .recv_cq = e->cq, .cap = cap, .qp_type = IBV_QPT_RC, .pd = e->pd,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
                              IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                              IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD};

        l->qp = NEED(ibv_create_qp_ex(e->context, &init));
        l->ex = NEED(ibv_qp_to_qp_ex(l->qp));
    } else {
        struct ibv_qp_init_attr init = {.send_cq = e->cq, .recv_cq = e->cq, .cap = cap, .qp_type = IBV_QPT_RC};

        l->qp = NEED(ibv_create_qp(e->pd, &init));
    }
    ZERO(to_init(l->qp));
    for (uint64_t i = 0; i < RECEIVES; i++)
        give_receive(e, l, i);
    l->me = (struct about){.qpn = l->qp->qp_num, .psn = (uint32_t)mix(l->ours, 3) & 0xffffff, .rkey = e->mr->rkey,
                           .address = (uintptr_t)l->target};
    ZERO(ibv_query_gid(e->context, PORT, 0, &l->me.gid));
}

/* What both sides count, and what lies in memory in the end. */
static void check_totals(struct end *e, struct link *l)
{
    struct totals {
        long done;
        uint64_t adds, swapped;
        struct op written[SLOTS];
    } ours = {.done = l->done, .adds = l->adds, .swapped = l->swapped}, theirs;
    uint64_t words[2];

    memcpy(ours.written, l->written, sizeof(ours.written));
    tell(e->fd, &ours, sizeof(ours));
    hear(e->fd, &theirs, sizeof(theirs));
    memcpy(words, l->target + (size_t)SLOTS * longest, sizeof(words));
    if (l->done != count || theirs.done != count || l->heard != count)
        BAD("%ld of ours, %ld of theirs, %ld heard, expected %ld", l->done, theirs.done, l->heard, count);
    if (words[0] != theirs.adds || words[1] != theirs.swapped)
        BAD("counters %" PRIu64 " and %" PRIu64 ", expected %" PRIu64 " and %" PRIu64, words[0], words[1], theirs.adds,
            theirs.swapped);
    for (int i = 0; i < SLOTS; i++)
        if (pattern_differs(l->target + (size_t)i * longest, theirs.written[i].length, theirs.written[i].pattern) >= 0)
            BAD("slot %d does not hold the last WRITE", i);
}

static void *run(void *arg)
{
    struct end *e = arg;
    int busy = 1;

    drawn = mix(seed, (uint64_t)e->number) >> 8;
    e->uses_events = (int)draw(2);
    e->pd = NEED(ibv_alloc_pd(e->context));
    e->memory = pages((size_t)qps * link_bytes());
    e->mr = NEED(ibv_reg_mr(e->pd, e->memory, (size_t)qps * link_bytes(), ALL_ACCESS));
    e->channel = NEED(ibv_create_comp_channel(e->context));
    e->cq = NEED(ibv_create_cq(e->context, qps * (WINDOW + RECEIVES + 1), NULL, e->channel, 0));
    e->links = NEED(calloc((size_t)qps, sizeof(*e->links)));
    for (int i = 0; i < qps; i++)
        make_link(e, &e->links[i], i);
    for (int i = 0; i < qps; i++) {
        tell(e->fd, &e->links[i].me, sizeof(struct about));
        hear(e->fd, &e->links[i].peer, sizeof(struct about));
        connect_qp(e->links[i].qp, &e->links[i].me, &e->links[i].peer, 18, 7, 7);
    }
    together(e->fd);
    while (busy) {
        int any;

        busy = 0;
        for (int i = 0; i < qps; i++) {
            struct link *l = &e->links[i];

            while (l->posted < count && l->posted - l->done < WINDOW && draw(4))
                post_next(e, l);
            busy |= l->done < count || messages_left(l);
        }
        any = take(e);
        if (busy && !any && e->uses_events) {
            struct ibv_cq *cq;
            void *context;
            int all_posted = 1;

            for (int i = 0; i < qps; i++)
                all_posted &= e->links[i].posted == count || e->links[i].posted - e->links[i].done == WINDOW;
            if (!all_posted)
                continue;
            ZERO(ibv_req_notify_cq(e->cq, 0));
            if (take(e))
                continue;
            ZERO(ibv_get_cq_event(e->channel, &cq, &context));
            ibv_ack_cq_events(cq, 1);
        }
    }
    together(e->fd);
    for (int i = 0; i < qps; i++)
        check_totals(e, &e->links[i]);
    if (take(e))
        BAD("end %d: a completion too many", e->number);
    together(e->fd);
    for (int i = 0; i < qps; i++)
        ZERO(ibv_destroy_qp(e->links[i].qp));
    free(e->links);
    ZERO(ibv_destroy_cq(e->cq));
    ZERO(ibv_destroy_comp_channel(e->channel));
    ZERO(ibv_dereg_mr(e->mr));
    ZERO(ibv_dealloc_pd(e->pd));
    munmap(e->memory, (size_t)qps * link_bytes());
    return NULL;
}

static void run_all(struct end *ends, int n)
{
    pthread_t threads[2 * PAIRS];
    struct ibv_context *context = open_device();

    for (int i = 0; i < n; i++) {
        ends[i].context = context;
        ZERO(pthread_create(&threads[i], NULL, run, &ends[i]));
    }
    for (int i = 0; i < n; i++)
        ZERO(pthread_join(threads[i], NULL));
    ZERO(ibv_close_device(context));
}

/* `many`, and the second process of it. */
static void choose(const char *mode)
{
    if (strcmp(mode, "many") && strcmp(mode, "second-many"))
        return;
    qps = 1000;
    pairs = 1;
    longest = 4096;
}

int main(int argc, char **argv)
{
    static struct end ends[2 * PAIRS];
    const char *mode;
    int is_pair, is_second;

    options(argc, argv, 400, 60);
    mode = optind < argc ? argv[optind] : "";
    choose(mode);
    is_pair = !strcmp(mode, "pair") || !strcmp(mode, "many");
    is_second = !strncmp(mode, "second", 6);
    if (is_pair) {
        pid_t pids[PAIRS];

        /* One process here, and one for each thread of it. */
        for (int i = 0; i < pairs; i++) {
            ends[i].fd = second_process(argv, pairs == 1 ? "second-many" : "second", &pids[i]);
            tell(ends[i].fd, &i, sizeof(i));
            ends[i].number = 2 * i;
        }
        run_all(ends, pairs);
        for (int i = 0; i < pairs; i++)
            expect_exit(pids[i], 0);
    } else if (is_second) {
        int i;

        ends[0].fd = SECOND_FD;
        hear(SECOND_FD, &i, sizeof(i));
        ends[0].number = 2 * i + 1;
        run_all(ends, 1);
        return 0;
    } else {
        for (int i = 0; i < pairs; i++) {
            int pair[2];

            ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
            for (int side = 0; side < 2; side++) {
                ends[2 * i + side].fd = pair[side];
                ends[2 * i + side].number = 2 * i + side;
            }
        }
        run_all(ends, 2 * pairs);
    }
    printf("ok\n");
    return 0;
}
