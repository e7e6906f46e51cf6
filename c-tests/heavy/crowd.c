/*
 * crowd [-s SEED] [-n COUNT] [pair]: 64 threads post to 12 shared RC QPs and poll 3 shared CQs (one of them extended) at
 * once, some QPs over a shared SRQ. Every request completes once, every message arrives once with its bytes, every
 * fetched value is given once. In one process, where the QPs are each other's peers, or with `pair` between two.
 */
#include "heavy.h"

enum { THREADS = 64, QPS = 12, CQS = 3, TOKENS = 32, RECEIVES = 32, PLACE = 512 };
enum kind { SEND, WRITE_IMM, ADD, READ, KINDS };

/* One of a QP's places for a request under way; a request has it from the post to the completion. */
struct token {
    int posted;
    enum kind kind;
    long id;
};

struct end {
    struct ibv_qp *qp;
    struct about me, peer;
    pthread_mutex_t lock;
    int free[TOKENS], n_free;
    struct token tokens[TOKENS];
    unsigned char *fetched; /* by value */
    long adds;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cqs[CQS];
static struct ibv_cq_ex *extended;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static unsigned char *memory;
static struct end ends[QPS];
static unsigned char *seen;
static int process, processes;
static long sent, heard, to_hear;

/* In a QP's memory: places of requests, of receives, of what the peer writes; then its counter. */
static size_t place_of(int qp, int part, int index)
{
    return ((size_t)qp * (3 * TOKENS + 1) + (size_t)part * TOKENS + (size_t)index) * PLACE;
}

static uint64_t plan(long id)
{
    return mix(seed, (uint64_t)id + 1000);
}

static int qp_of(long id)
{
    return (int)(plan(id) % QPS);
}

static enum kind kind_of(long id)
{
    return (enum kind)(plan(id) >> 16) % KINDS;
}

static uint32_t length_of(long id)
{
    return 8 + (uint32_t)(plan(id) >> 32) % (PLACE - 8);
}

static void once(unsigned char *mark, const char *what, long number)
{
    if (__atomic_fetch_add(mark, 1, __ATOMIC_SEQ_CST))
        BAD("%s %ld twice", what, number);
}

static void give_receive(int qp, int index)
{
    struct ibv_sge sge = {(uintptr_t)memory + place_of(qp, 1, index), PLACE, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1ull << 63 | (uint64_t)qp << 32 | (uint64_t)index, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;

    /* Those of the SRQ are the first QP's places, and its neighbours' on the SRQ. */
    if (ends[qp].qp->srq)
        ZERO(ibv_post_srq_recv(srq, &wr, &bad));
    else
        ZERO(ibv_post_recv(ends[qp].qp, &wr, &bad));
}

/* False where the QP has no place free. */
static int post(long id)
{
    int qp = qp_of(id), place;
    struct end *e = &ends[qp];
    unsigned char *at;
    uint64_t number = (uint64_t)id;
    struct ibv_sge sge = {.length = length_of(id), .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;

    pthread_mutex_lock(&e->lock);
    place = e->n_free ? e->free[--e->n_free] : -1;
    pthread_mutex_unlock(&e->lock);
    if (place < 0)
        return 0;
    at = memory + place_of(qp, 0, place);
    sge.addr = (uintptr_t)at;
    e->tokens[place] = (struct token){1, kind_of(id), id};
    wr.wr_id = (uint64_t)qp << 32 | (uint64_t)place;
    switch (kind_of(id)) {
    case SEND:
        put_pattern(at, sge.length, number);
        memcpy(at, &number, 8);
        wr.opcode = IBV_WR_SEND;
        if (sge.length <= 64)
            wr.send_flags |= IBV_SEND_INLINE;
        break;
    case WRITE_IMM:
        put_pattern(at, sge.length, number);
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl((uint32_t)id);
        wr.wr.rdma.remote_addr = e->peer.address + place_of(0, 2, place);
        wr.wr.rdma.rkey = e->peer.rkey;
        break;
    case ADD:
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        sge.length = 8;
        wr.wr.atomic.remote_addr = e->peer.address + place_of(0, 3, 0);
        wr.wr.atomic.rkey = e->peer.rkey;
        wr.wr.atomic.compare_add = 1;
        break;
    default:
        /* What the peer keeps beside its counter never changes. */
        wr.opcode = IBV_WR_RDMA_READ;
        sge.length = PLACE - 64;
        wr.wr.rdma.remote_addr = e->peer.address + place_of(0, 3, 0) + 64;
        wr.wr.rdma.rkey = e->peer.rkey;
    }
    ZERO(ibv_post_send(e->qp, &wr, &bad));
    return 1;
}

static void completed(uint64_t wr_id)
{
    int qp = (int)(wr_id >> 32), place = (int)(wr_id & 0xffffffff);
    struct end *e = &ends[qp];
    struct token token = e->tokens[place];
    unsigned char *at = memory + place_of(qp, 0, place);
    uint64_t value;

    if (!__atomic_exchange_n(&e->tokens[place].posted, 0, __ATOMIC_SEQ_CST))
        BAD("QP %d, place %d: completed, but not posted", qp, place);
    if (token.kind == ADD) {
        memcpy(&value, at, 8);
        if (value >= (uint64_t)e->adds)
            BAD("QP %d: fetched %" PRIu64 " of %ld", qp, value, e->adds);
        once(&e->fetched[value], "fetched", (long)value);
    }
    if (token.kind == READ && pattern_differs(at, PLACE - 64, 77) >= 0)
        BAD("QP %d: READ", qp);
    pthread_mutex_lock(&e->lock);
    e->free[e->n_free++] = place;
    pthread_mutex_unlock(&e->lock);
    __atomic_fetch_add(&sent, 1, __ATOMIC_SEQ_CST);
}

static void received(uint64_t wr_id, uint32_t length, unsigned flags, uint32_t imm)
{
    int qp = (int)(wr_id >> 32 & 0xff), index = (int)(wr_id & 0xffff);
    unsigned char *at = memory + place_of(qp, 1, index);
    uint64_t number;

    if (flags & IBV_WC_WITH_IMM) {
        number = ntohl(imm);
    } else {
        memcpy(&number, at, 8);
        if (number >= (uint64_t)(2 * THREADS * count) || pattern_differs(at + 8, length - 8, number + 8) >= 0)
            BAD("message %" PRIu64 " of %u bytes differs", number, length);
    }
    if (number >= (uint64_t)(2 * THREADS * count) || length != length_of((long)number))
        BAD("message %" PRIu64 " of %u bytes", number, length);
    once(&seen[number], "message", (long)number);
    give_receive(qp, index);
    __atomic_fetch_add(&heard, 1, __ATOMIC_SEQ_CST);
}

static int take(int cq)
{
    struct ibv_poll_cq_attr attr = {0};
    struct ibv_wc wc[8];
    int n = 0;

    if (cq == 0) {
        if (ibv_start_poll(extended, &attr))
            return 0;
        do {
            struct ibv_wc *one = &wc[n++];

            one->wr_id = extended->wr_id;
            one->status = extended->status;
            if (one->status == IBV_WC_SUCCESS && one->wr_id >> 63) {
                one->byte_len = ibv_wc_read_byte_len(extended);
                one->wc_flags = ibv_wc_read_wc_flags(extended);
                one->imm_data = ibv_wc_read_imm_data(extended);
            }
        } while (n < 8 && !ibv_next_poll(extended));
        ibv_end_poll(extended);
    } else {
        n = ibv_poll_cq(cqs[cq], 1 + (int)draw(8), wc);
        if (n < 0)
            BAD("ibv_poll_cq = %d", n);
    }
    for (int i = 0; i < n; i++) {
        if (wc[i].status)
            BAD("wr_id 0x%" PRIx64 ": %s", wc[i].wr_id, ibv_wc_status_str(wc[i].status));
        if (wc[i].wr_id >> 63)
            received(wc[i].wr_id, wc[i].byte_len, wc[i].wc_flags, wc[i].imm_data);
        else
            completed(wc[i].wr_id);
    }
    return n;
}

static int all_done(void)
{
    return __atomic_load_n(&sent, __ATOMIC_SEQ_CST) >= THREADS * count &&
           __atomic_load_n(&heard, __ATOMIC_SEQ_CST) >= to_hear;
}

static void *work(void *arg)
{
    long thread = (long)(uintptr_t)arg, next = 0;

    drawn = mix(seed, (uint64_t)thread) >> 8;
    while (next < count || !all_done()) {
        if (next < count && draw(2))
            next += post((process * THREADS + thread) * count + next);
        else if (!take((int)draw(CQS)))
            sched_yield();
    }
    return NULL;
}

static void make_end(int i)
{
    struct end *e = &ends[i];
    struct ibv_qp_init_attr init = {
        .send_cq = cqs[i % CQS], .recv_cq = cqs[(i + 1) % CQS], .srq = i % 4 == 3 ? srq : NULL, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = TOKENS, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
                .max_inline_data = 64}};

    e->qp = NEED(ibv_create_qp(pd, &init));
    pthread_mutex_init(&e->lock, NULL);
    for (e->n_free = 0; e->n_free < TOKENS; e->n_free++)
        e->free[e->n_free] = e->n_free;
    put_pattern(memory + place_of(i, 3, 0) + 64, PLACE - 64, 77);
    ZERO(to_init(e->qp));
    for (int r = 0; r < RECEIVES; r++)
        give_receive(i, r);
    e->me = (struct about){.qpn = e->qp->qp_num, .psn = (uint32_t)draw(1 << 24), .rkey = mr->rkey,
                           .address = (uintptr_t)memory + place_of(i, 0, 0)};
    ZERO(ibv_query_gid(context, PORT, 0, &e->me.gid));
}

static void make_all(void)
{
    struct ibv_cq_init_attr_ex ex = {.cqe = QPS * (TOKENS + RECEIVES), .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = QPS * RECEIVES, .max_sge = 1}};
    size_t size = place_of(QPS, 0, 0);

    context = open_device();
    pd = NEED(ibv_alloc_pd(context));
    memory = pages(size);
    mr = NEED(ibv_reg_mr(pd, memory, size, ALL_ACCESS));
    extended = NEED(ibv_create_cq_ex(context, &ex));
    cqs[0] = ibv_cq_ex_to_cq(extended);
    for (int i = 1; i < CQS; i++)
        cqs[i] = NEED(ibv_create_cq(context, QPS * (TOKENS + RECEIVES), NULL, NULL, 0));
    srq = NEED(ibv_create_srq(pd, &srq_attr));
    seen = NEED(calloc((size_t)count, 2 * THREADS));
    for (int i = 0; i < QPS; i++)
        make_end(i);
    for (long id = process * THREADS * count; id < (process + 1) * THREADS * count; id++)
        ends[qp_of(id)].adds += kind_of(id) == ADD;
    for (int i = 0; i < QPS; i++)
        ends[i].fetched = NEED(calloc((size_t)ends[i].adds + 1, 1));
    /* What is heard is what the other process sends, or this one. */
    for (long id = 0, first = (process + processes - 1) % 2 * THREADS * count; id < THREADS * count; id++)
        to_hear += kind_of(first + id) == SEND || kind_of(first + id) == WRITE_IMM;
}

static void connect_all(int fd)
{
    for (int i = 0; i < QPS; i++) {
        if (fd < 0) {
            ends[i].peer = ends[i ^ 1].me;
        } else {
            tell(fd, &ends[i].me, sizeof(struct about));
            hear(fd, &ends[i].peer, sizeof(struct about));
        }
        connect_qp(ends[i].qp, &ends[i].me, &ends[i].peer, 18, 7, 7);
    }
    if (fd >= 0)
        together(fd);
}

static void check_totals(int fd)
{
    if (fd >= 0)
        together(fd);
    for (int i = 0; i < CQS; i++)
        if (take(i))
            BAD("a completion too many");
    if (sent != THREADS * count || heard != to_hear)
        BAD("%ld sent of %ld, %ld heard of %ld", sent, THREADS * count, heard, to_hear);
    for (int i = 0; i < QPS; i++) {
        long adds = ends[i].adds;
        uint64_t counter;

        if (ends[i].n_free != TOKENS)
            BAD("QP %d: %d places are free", i, ends[i].n_free);
        if (fd >= 0) {
            tell(fd, &adds, sizeof(adds));
            hear(fd, &adds, sizeof(adds));
        } else {
            adds = ends[i ^ 1].adds;
        }
        memcpy(&counter, memory + place_of(i, 3, 0), 8);
        if (counter != (uint64_t)adds)
            BAD("QP %d: counter %" PRIu64 " of %ld", i, counter, adds);
    }
}

static void run(int fd)
{
    pthread_t threads[THREADS];

    make_all();
    connect_all(fd);
    for (long i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i));
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
    check_totals(fd);
    for (int i = 0; i < QPS; i++) {
        ZERO(ibv_destroy_qp(ends[i].qp));
        free(ends[i].fetched);
    }
    ZERO(ibv_destroy_srq(srq));
    for (int i = 0; i < CQS; i++)
        ZERO(ibv_destroy_cq(cqs[i]));
    ZERO(ibv_dereg_mr(mr));
    ZERO(ibv_dealloc_pd(pd));
    ZERO(ibv_close_device(context));
    munmap(memory, place_of(QPS, 0, 0));
    free(seen);
}

int main(int argc, char **argv)
{
    const char *mode;
    pid_t pid;

    options(argc, argv, 2000, 120);
    mode = optind < argc ? argv[optind] : "";
    processes = *mode ? 2 : 1;
    process = !strcmp(mode, "second");
    if (process == 1) {
        run(SECOND_FD);
        return 0;
    }
    if (processes == 2) {
        run(second_process(argv, "second", &pid));
        expect_exit(pid, 0);
    } else {
        run(-1);
    }
    printf("ok\n");
    return 0;
}
