/* Extended CQs: a batch consumes exactly what it returned, however it ends, at every size of CQ. */
#include "behaviour.h"

static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 100, 127, 128, 129};
#define EACH_SIZE(n) for (unsigned i_ = 0, n = 0; i_ < sizeof(sizes) / sizeof(*sizes) && (n = (unsigned)sizes[i_]); i_++)

/* What kinds of extended CQs there are. */
static const struct {
    uint64_t wc_flags;
    uint32_t flags;
} kinds[] = {
    {0, 0},
    {IBV_WC_STANDARD_FLAGS, 0},
    {IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0},
    {IBV_WC_STANDARD_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED},
};
#define EACH_KIND(k) for (unsigned k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)

struct scene {
    struct duo d;
    struct ibv_cq_ex *cq;
    uint64_t posted, taken;
};

/* The first QP completes into an extended CQ of n entries. */
static void make(struct scene *s, unsigned n, unsigned kind)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = n,
                                       .wc_flags = kinds[kind].wc_flags,
                                       .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
                                       .flags = kinds[kind].flags};
    struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 256, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_context *context = open_device();

    memset(s, 0, sizeof(*s));
    s->d.context = context;
    make_side(&s->d.a, context, IBV_QPT_RC, 4096);
    make_side(&s->d.b, context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(s->d.a.qp));
    ZERO(ibv_destroy_cq(s->d.a.cq));
    s->cq = NEED(ibv_create_cq_ex(context, &attr));
    s->d.a.cq = ibv_cq_ex_to_cq(s->cq);
    qp.send_cq = qp.recv_cq = s->d.a.cq;
    s->d.a.qp = NEED(ibv_create_qp(s->d.a.pd, &qp));
    join(&s->d.a, &s->d.b);
}

/* A request that needs no receiver: each completes once, its wr_id counts. */
static void post(struct scene *s, unsigned n)
{
    while (n--)
        ZERO(rdma_one(&s->d.a, s->posted++, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)s->d.b.buffer, s->d.b.mr->rkey));
}

static void is_next(struct scene *s)
{
    EXPECT_EQ(s->cq->wr_id, s->taken);
    EXPECT_EQ(s->cq->status, IBV_WC_SUCCESS);
    s->taken++;
}

/* Waits for a batch to begin and checks its first completion. */
static void begin(struct scene *s)
{
    struct ibv_poll_cq_attr attr = {0};
    uint64_t end = now_ms() + 10000;
    int rc;

    while ((rc = ibv_start_poll(s->cq, &attr)) == ENOENT)
        if (now_ms() > end)
            die("completion %d of %d was lost", (int)s->taken, (int)s->posted);
    EXPECT_EQ(rc, 0);
    is_next(s);
}

/* Takes the next of a batch, or says that there is none. */
static int more(struct scene *s)
{
    int rc = ibv_next_poll(s->cq);

    if (rc == 0)
        is_next(s);
    else
        EXPECT_EQ(rc, ENOENT);
    return rc == 0;
}

static void take_all(struct scene *s)
{
    struct ibv_poll_cq_attr attr = {0};

    while (s->taken < s->posted) {
        begin(s);
        while (s->taken < s->posted && more(s))
            ;
        ibv_end_poll(s->cq);
    }
    EXPECT_EQ(ibv_start_poll(s->cq, &attr), ENOENT);
}

TEST(poll_batch_end_after_enoent_keeps_completions)
{
    EACH_KIND(kind) EACH_SIZE(n) {
        struct scene s;

        make(&s, n, kind);
        for (unsigned round = 0; round < n * 3; round++) {
            post(&s, 1);
            begin(&s);
            EXPECT(!more(&s), "a second completion of one request");
            ibv_end_poll(s.cq);
        }
        post(&s, n);
        take_all(&s);
        drop_duo(&s.d);
    }
}

TEST(enoent_several_times_in_one_batch_takes_nothing)
{
    EACH_SIZE(n) {
        struct scene s;

        make(&s, n, 1);
        for (unsigned round = 0; round < n * 2; round++) {
            post(&s, 1);
            begin(&s);
            for (int i = 0; i < 3; i++)
                EXPECT_EQ(ibv_next_poll(s.cq), ENOENT);
            ibv_end_poll(s.cq);
        }
        post(&s, n);
        take_all(&s);
        drop_duo(&s.d);
    }
}

TEST(start_poll_of_an_empty_cq_takes_nothing_and_needs_no_end)
{
    EACH_KIND(kind) EACH_SIZE(n) {
        struct ibv_poll_cq_attr attr = {0};
        struct scene s;

        make(&s, n, kind);
        for (unsigned round = 0; round < n * 3; round++)
            EXPECT_EQ(ibv_start_poll(s.cq, &attr), ENOENT);
        post(&s, n);
        take_all(&s);
        drop_duo(&s.d);
    }
}

TEST(a_batch_that_ends_early_leaves_the_rest_in_order)
{
    EACH_SIZE(n) {
        struct scene s;

        make(&s, n, 0);
        for (unsigned take = 1; take <= n; take = take < 4 ? take + 1 : take * 2) {
            post(&s, n);
            begin(&s);
            for (unsigned i = 1; i < take; i++)
                if (!more(&s)) {
                    ibv_end_poll(s.cq);
                    begin(&s);
                }
            ibv_end_poll(s.cq);
            take_all(&s);
        }
        drop_duo(&s.d);
    }
}

TEST(batches_of_every_length_wrap_around_at_every_size)
{
    EACH_KIND(kind) EACH_SIZE(n) {
        struct scene s;
        unsigned random = n * 2654435761u;

        make(&s, n, kind);
        for (unsigned round = 0; round < 60; round++) {
            unsigned free = n - (unsigned)(s.posted - s.taken), take;

            random = random * 1103515245 + 12345;
            post(&s, 1 + (random >> 16) % (free ? free : 1) - !free);
            take = (random >> 8) % (n + 1);
            if (s.posted == s.taken || !take)
                continue;
            begin(&s);
            while (--take && more(&s))
                ;
            ibv_end_poll(s.cq);
        }
        take_all(&s);
        drop_duo(&s.d);
    }
}

TEST(a_request_that_completes_within_a_batch_is_not_lost)
{
    EACH_SIZE(n) {
        struct scene s;

        if (n < 2)
            continue;
        make(&s, n, 1);
        for (unsigned round = 0; round < n * 3; round++) {
            post(&s, 1);
            begin(&s);
            post(&s, 1);
            more(&s);
            ibv_end_poll(s.cq);
            take_all(&s);
        }
        drop_duo(&s.d);
    }
}

TEST(plain_polls_and_batches_share_one_order)
{
    EACH_SIZE(n) {
        struct scene s;

        make(&s, n, 1);
        for (unsigned round = 0; round < n * 3; round++) {
            post(&s, n);
            for (unsigned i = 0; i < n; i++) {
                if (i % 2) {
                    NEXT(s.d.a.cq, s.taken, IBV_WC_SUCCESS);
                    s.taken++;
                } else {
                    begin(&s);
                    ibv_end_poll(s.cq);
                }
            }
        }
        drop_duo(&s.d);
    }
}

static void *poller(void *arg)
{
    struct scene *s = arg;
    uint64_t end = now_ms() + 20000;
    struct ibv_poll_cq_attr attr = {0};

    while (__atomic_load_n(&s->taken, __ATOMIC_SEQ_CST) < 4000) {
        if (ibv_start_poll(s->cq, &attr)) {
            if (now_ms() > end)
                die("only %d of 4000 came", (int)s->taken);
            sched_yield();
            continue;
        }
        do
            __atomic_add_fetch(&s->taken, 1, __ATOMIC_SEQ_CST);
        while (ibv_next_poll(s->cq) == 0);
        ibv_end_poll(s->cq);
    }
    return NULL;
}

TEST(threads_that_poll_one_cq_share_its_completions_exactly)
{
    pthread_t threads[4];
    struct scene s;

    make(&s, 128, 1);
    for (int i = 0; i < 4; i++)
        ZERO(pthread_create(&threads[i], NULL, poller, &s));
    while (s.posted < 4000)
        if (s.posted - __atomic_load_n(&s.taken, __ATOMIC_SEQ_CST) < 100)
            post(&s, 1);
        else
            sched_yield();
    for (int i = 0; i < 4; i++)
        ZERO(pthread_join(threads[i], NULL));
    EXPECT_EQ(s.taken, 4000);
    drop_duo(&s.d);
}

/* Poll attributes that are not known are refused, and no batch has begun. */
TEST(start_poll_with_unknown_attributes_begins_nothing)
{
    struct ibv_poll_cq_attr bad = {.comp_mask = 1};
    struct scene s;

    make(&s, 8, 1);
    post(&s, 3);
    for (int i = 0; i < 20; i++)
        REFUSED(ibv_start_poll(s.cq, &bad), EINVAL, "comp_mask");
    take_all(&s);
    drop_duo(&s.d);
}
