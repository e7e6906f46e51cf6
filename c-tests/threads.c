/* Many threads on the same QP and the same CQ: everything arrives once, and nothing is lost. */
#include "common.h"

#define THREADS 4
#define EACH 2000
#define DEPTH 32

static struct side a, b;
static unsigned char seen[THREADS * EACH];
static unsigned sent, received, failed;
static int places;

/* Posts its numbers as inline data. */
static void *sender(void *argument)
{
    uint32_t first = (uint32_t)(uintptr_t)argument * EACH;
    uint64_t end = now_ms() + 40000;

    for (uint32_t i = first; i < first + EACH; i++) {
        struct ibv_sge sge = {.addr = (uintptr_t)&i, .length = sizeof(i)};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};
        struct ibv_send_wr *bad;
        int rc;

        /* A place in the CQ is taken before the request is posted, and given back by a poller. */
        while (__atomic_fetch_add(&places, 1, __ATOMIC_SEQ_CST) >= DEPTH && now_ms() < end) {
            __atomic_fetch_sub(&places, 1, __ATOMIC_SEQ_CST);
            sched_yield();
        }
        rc = ibv_post_send(a.qp, &wr, &bad);
        if (rc)
            die("post_send %s", rc_name(rc));
    }
    return NULL;
}

static void *send_poller(void *argument)
{
    uint64_t end = now_ms() + 40000;
    struct ibv_wc wc[4];

    (void)argument;
    while (__atomic_load_n(&sent, __ATOMIC_SEQ_CST) < THREADS * EACH && now_ms() < end) {
        int n = ibv_poll_cq(a.cq, 4, wc);

        for (int i = 0; i < n; i++) {
            if (wc[i].status != IBV_WC_SUCCESS && !__atomic_fetch_add(&failed, 1, __ATOMIC_SEQ_CST))
                fprintf(stderr, "send: %s\n", ibv_wc_status_str(wc[i].status));
            __atomic_fetch_add(&sent, 1, __ATOMIC_SEQ_CST);
            __atomic_fetch_sub(&places, 1, __ATOMIC_SEQ_CST);
        }
        if (n == 0)
            sched_yield();
    }
    return NULL;
}

static void *receive_poller(void *argument)
{
    uint64_t end = now_ms() + 40000;
    struct ibv_wc wc[4];

    (void)argument;
    while (__atomic_load_n(&received, __ATOMIC_SEQ_CST) < THREADS * EACH && now_ms() < end) {
        int n = ibv_poll_cq(b.cq, 4, wc);

        for (int i = 0; i < n; i++) {
            uint32_t number;

            if (wc[i].status != IBV_WC_SUCCESS || wc[i].byte_len != sizeof(number)) {
                if (!__atomic_fetch_add(&failed, 1, __ATOMIC_SEQ_CST))
                    fprintf(stderr, "receive: %s, %u bytes\n", ibv_wc_status_str(wc[i].status), wc[i].byte_len);
                continue;
            }
            memcpy(&number, b.buffer + wc[i].wr_id * 64, sizeof(number));
            if (number >= THREADS * EACH || __atomic_fetch_add(&seen[number], 1, __ATOMIC_SEQ_CST))
                __atomic_fetch_add(&failed, 1, __ATOMIC_SEQ_CST);
            ZERO(recv_one(&b, wc[i].wr_id, wc[i].wr_id * 64, 64));
            __atomic_fetch_add(&received, 1, __ATOMIC_SEQ_CST);
        }
        if (n == 0)
            sched_yield();
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS + 4];
    struct ibv_context *context;
    int n = 0;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, DEPTH * 64);
    join(&a, &b);
    for (unsigned i = 0; i < DEPTH; i++)
        ZERO(recv_one(&b, i, i * 64, 64));
    for (int i = 0; i < 2; i++) {
        ZERO(pthread_create(&threads[n++], NULL, send_poller, NULL));
        ZERO(pthread_create(&threads[n++], NULL, receive_poller, NULL));
    }
    for (uintptr_t i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[n++], NULL, sender, (void *)i));
    while (n > 0)
        ZERO(pthread_join(threads[--n], NULL));
    printf("%u sent, %u received, %u failed\n", sent, received, failed);
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
