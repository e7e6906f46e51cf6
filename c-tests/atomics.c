/* Atomics: what comes back, and that several QPs in several threads lose nothing. */
#include "common.h"

#define THREADS 4
#define ADDS 500

static struct ibv_context *context;
static uint64_t *shared;
static struct side owner;

static int post(struct side *s, enum ibv_wr_opcode opcode, uint64_t at, uint32_t rkey, uint64_t compare_add, uint64_t swap)
{
    struct ibv_sge sge = sge_of(s, 0, 8);
    struct ibv_send_wr wr = {
        .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    wr.wr.atomic.remote_addr = at;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    return ibv_post_send(s->qp, &wr, &bad);
}

static void one(struct side *a, struct side *b)
{
    uint64_t *target = (uint64_t *)(void *)b->buffer, *old = (uint64_t *)(void *)a->buffer;
    static const struct {
        enum ibv_wr_opcode opcode;
        uint64_t compare_add, swap;
    } steps[] = {
        {IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0},
        {IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 0},
        {IBV_WR_ATOMIC_CMP_AND_SWP, 0x0102030405060708 + 4, 99},
        {IBV_WR_ATOMIC_CMP_AND_SWP, 1, 100},
    };

    *target = 0x0102030405060708;
    for (unsigned i = 0; i < 4; i++) {
        *old = 0;
        ZERO(post(a, steps[i].opcode, (uintptr_t)target, b->mr->rkey, steps[i].compare_add, steps[i].swap));
        show_next("atomic", a->cq);
        printf("  was %016" PRIx64 ", is %016" PRIx64 "\n", *old, *target);
    }
}

static void *adder(void *argument)
{
    struct side a, b;

    (void)argument;
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(b.qp));
    {
        struct ibv_qp_init_attr attr = {.send_cq = b.cq,
                                        .recv_cq = b.cq,
                                        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
                                        .qp_type = IBV_QPT_RC};

        b.qp = NEED(ibv_create_qp(owner.pd, &attr));
    }
    join(&a, &b);
    for (int i = 0; i < ADDS; i++) {
        struct ibv_wc wc;

        ZERO(post(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)shared, owner.mr->rkey, 1, 0));
        wc = next_wc(a.cq);
        if (wc.status != IBV_WC_SUCCESS)
            die("%s", ibv_wc_status_str(wc.status));
        /* The CPU counts too, on a word of its own. */
        __atomic_fetch_add(&shared[1], 1, __ATOMIC_SEQ_CST);
    }
    drop_side(&a);
    drop_side(&b);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    struct side a, b;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    one(&a, &b);
    drop_side(&a);
    drop_side(&b);
    make_side(&owner, context, IBV_QPT_RC, 4096);
    shared = (uint64_t *)(void *)owner.buffer;
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[i], NULL, adder, NULL));
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
    printf("%d threads, %d additions each: %" PRIu64 " %" PRIu64 "\n", THREADS, ADDS, shared[0], shared[1]);
    drop_side(&owner);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
