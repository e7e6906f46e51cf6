/* Atomics: values, alignment, the eight bytes on the requester's side, and sums that come out right. */
#include "route.h"

static int is_swap;

static struct ibv_send_wr atomic(const struct route *r, uint64_t id, struct ibv_sge *sge, int swap, size_t offset,
                                 uint64_t first, uint64_t second)
{
    struct ibv_send_wr wr = route_wr(r, id, sge);

    wr.opcode = swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.remote_addr = (uintptr_t)r->buffer + offset;
    wr.wr.atomic.rkey = r->mr->rkey;
    wr.wr.atomic.compare_add = first;
    wr.wr.atomic.swap = second;
    return wr;
}

static uint64_t *at(struct route *r, size_t offset)
{
    return (uint64_t *)(void *)(r->buffer + offset);
}

static const enum kind kinds[] = {RC, RC_SRQ, XRC};
#define EACH_KIND(kind) for (int k_ = 0, kind; k_ < 3 && (kind = (int)kinds[k_], 1); k_++)

/* The old value comes back in host order, and the new one is as the opcode says, at every corner. */
TEST(atomics_return_the_old_value_in_host_order)
{
    static const uint64_t values[] = {0, 1, 0x0102030405060708ull, 0x7fffffffffffffffull, 0x8000000000000000ull, ~0ull};

    EACH_KIND(kind)
        for (unsigned i = 0; i < 6; i++)
            for (unsigned j = 0; j < 6; j++)
                for (int by_calls = 0; by_calls < 2; by_calls++) {
                    struct ibv_sge sge;
                    struct ibv_send_wr wr, *bad;
                    struct route r;
                    struct ibv_wc wc;

                    make_route(&r, (enum kind)kind);
                    sge = route_sge(&r, 24, 8);
                    for (int swap = 0; swap < 2; swap++)
                        for (int hit = 0; hit < 2; hit++) {
                            uint64_t old = values[i], operand = values[j], compare = hit ? old : old + 1;
                            uint64_t expected = swap ? (hit ? operand : old) : old + operand;

                            *at(&r, ROUTE_IN) = old;
                            *at(&r, 24) = 0x5555;
                            wr = atomic(&r, 1, &sge, swap, ROUTE_IN, swap ? compare : operand, operand);
                            if (by_calls) {
                                struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(r.out));

                                ibv_wr_start(ex);
                                ex->wr_id = 1;
                                ex->wr_flags = IBV_SEND_SIGNALED;
                                if (swap)
                                    ibv_wr_atomic_cmp_swp(ex, r.mr->rkey, wr.wr.atomic.remote_addr, compare, operand);
                                else
                                    ibv_wr_atomic_fetch_add(ex, r.mr->rkey, wr.wr.atomic.remote_addr, operand);
                                if (kind == XRC)
                                    ibv_wr_set_xrc_srqn(ex, r.srqn);
                                ibv_wr_set_sge(ex, sge.lkey, sge.addr, 8);
                                ZERO(ibv_wr_complete(ex));
                            } else {
                                ZERO(ibv_post_send(r.out, &wr, &bad));
                            }
                            wc = NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
                            EXPECT_EQ(wc.opcode, swap ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD);
                            EXPECT_EQ(wc.byte_len, 8);
                            EXPECT_EQ(*at(&r, 24), old);
                            EXPECT_EQ(*at(&r, ROUTE_IN), expected);
                        }
                    drop_route(&r);
                }
}

/* An address that is not a multiple of 8, with a good key and with a bad one. */
TEST(an_atomic_that_is_not_aligned_is_an_invalid_request_even_with_a_bad_key)
{
    EACH_KIND(kind)
        for (size_t off = 1; off < 8; off++)
            for (int variant = 0; variant < 4; variant++) {
                struct ibv_sge sge;
                struct ibv_send_wr wr, *bad;
                struct route r;

                make_route(&r, (enum kind)kind);
                memset(r.buffer, 0x33, ROUTE_SIZE);
                sge = route_sge(&r, 24, 8);
                wr = atomic(&r, 1, &sge, variant & 1, ROUTE_IN + off, 0x3333333333333333ull, 2);
                if (variant & 2)
                    wr.wr.atomic.rkey ^= 0x5a5a00;
                ZERO(ibv_post_send(r.out, &wr, &bad));
                NEXT(r.send_cq, 1, IBV_WC_REM_INV_REQ_ERR);
                EXPECT_EQ(state_of(r.out), IBV_QPS_ERR);
                EXPECT_EQ(state_of(r.in), IBV_QPS_ERR);
                for (int i = 0; i < ROUTE_SIZE; i++)
                    EXPECT(r.buffer[i] == 0x33, "byte %d changed", i);
                EXPECT(!is_ours() || strstr(said(), "not a multiple of 8"));
                drop_route(&r);
            }
}

/* The responder looks first: an lkey that is none as well makes no difference. */
TEST(an_atomic_that_is_not_aligned_with_a_bad_lkey_is_an_invalid_request)
{
    for (int swap = 0; swap < 2; swap++) {
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;
        struct route r;

        make_route(&r, RC);
        memset(r.buffer, 0x33, ROUTE_SIZE);
        sge = route_sge(&r, 24, 8);
        sge.lkey ^= 0x5a5a00;
        wr = atomic(&r, 1, &sge, swap, ROUTE_IN + 4, 0x3333333333333333ull, 2);
        ZERO(ibv_post_send(r.out, &wr, &bad));
        NEXT(r.send_cq, 1, IBV_WC_REM_INV_REQ_ERR);
        for (int i = 0; i < ROUTE_SIZE; i++)
            EXPECT(r.buffer[i] == 0x33, "byte %d changed", i);
        drop_route(&r);
    }
}

/* The room for the old value must be eight bytes, in however many pieces. */
TEST(an_atomic_into_other_than_eight_bytes_is_a_local_length_error)
{
    static const uint32_t lengths[] = {0, 1, 4, 7, 9, 16, 4096};

    EACH_KIND(kind)
        for (unsigned i = 0; i < 7; i++)
            for (int swap = 0; swap < 2; swap++) {
                struct ibv_sge sges[2];
                struct ibv_send_wr wr, *bad;
                struct route r;

                make_route(&r, (enum kind)kind);
                memset(r.buffer, 0x33, ROUTE_SIZE);
                sges[0] = route_sge(&r, 24, lengths[i] / 2);
                sges[1] = route_sge(&r, 8000, lengths[i] - lengths[i] / 2);
                wr = atomic(&r, 1, sges, swap, ROUTE_IN, 0x3333333333333333ull, 2);
                wr.num_sge = 2;
                ZERO(ibv_post_send(r.out, &wr, &bad));
                NEXT(r.send_cq, 1, IBV_WC_LOC_LEN_ERR);
                for (int b = 0; b < ROUTE_SIZE; b++)
                    EXPECT(r.buffer[b] == 0x33, "byte %d changed", b);
                EXPECT(!is_ours() || strstr(said(), "expected exactly 8"));
                EXPECT_EQ(state_of(r.in), IBV_QPS_RTS);
                drop_route(&r);
            }
}

TEST(an_atomic_scatters_the_old_value_over_several_pieces)
{
    EACH_KIND(kind)
        for (uint32_t first = 1; first < 8; first++) {
            struct ibv_sge sges[2];
            struct ibv_send_wr wr, *bad;
            unsigned char got[8];
            struct route r;
            uint64_t old = 0x1122334455667788ull;

            make_route(&r, (enum kind)kind);
            *at(&r, ROUTE_IN) = old;
            sges[0] = route_sge(&r, 101, first);
            sges[1] = route_sge(&r, 5, 8 - first);
            wr = atomic(&r, 1, sges, 0, ROUTE_IN, 1, 0);
            wr.num_sge = 2;
            ZERO(ibv_post_send(r.out, &wr, &bad));
            NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
            memcpy(got, r.buffer + 101, first);
            memcpy(got + first, r.buffer + 5, 8 - first);
            EXPECT(!memcmp(got, &old, 8));
            drop_route(&r);
        }
}

TEST(an_atomic_with_a_bad_lkey_is_a_local_protection_error)
{
    EACH_KIND(kind)
        for (int swap = 0; swap < 2; swap++) {
            struct ibv_sge sge;
            struct ibv_send_wr wr, *bad;
            struct route r;

            make_route(&r, (enum kind)kind);
            sge = route_sge(&r, 24, 8);
            sge.lkey ^= 0x5a5a00;
            wr = atomic(&r, 1, &sge, swap, ROUTE_IN, 0, 1);
            ZERO(ibv_post_send(r.out, &wr, &bad));
            NEXT(r.send_cq, 1, IBV_WC_LOC_PROT_ERR);
            drop_route(&r);
        }
}

/* N QPs of one process, each with its own thread, on one word. */
#define THREADS 4
#define ROUNDS 500

struct adder {
    struct route *r;
    struct ibv_qp *out, *in;
    struct ibv_cq *cq;
    unsigned number;
};

static void *add(void *arg)
{
    struct adder *a = arg;

    for (unsigned i = 0; i < ROUNDS; i++) {
        struct ibv_sge sge = route_sge(a->r, 64 + a->number * 8, 8);
        struct ibv_send_wr wr, *bad;

        if (!is_swap) {
            wr = atomic(a->r, i, &sge, 0, ROUTE_IN, a->number + 1, 0);
            ZERO(ibv_post_send(a->out, &wr, &bad));
            NEXT(a->cq, i, IBV_WC_SUCCESS);
            continue;
        }
        for (uint64_t guess = 0;; guess = *at(a->r, 64 + a->number * 8)) {
            wr = atomic(a->r, i, &sge, 1, ROUTE_IN, guess, guess + a->number + 1);
            ZERO(ibv_post_send(a->out, &wr, &bad));
            NEXT(a->cq, i, IBV_WC_SUCCESS);
            if (*at(a->r, 64 + a->number * 8) == guess)
                break;
        }
    }
    return NULL;
}

static void sums(int swap)
{
    struct adder adders[THREADS];
    pthread_t threads[THREADS];
    struct route r;

    is_swap = swap;
    make_route(&r, RC);
    *at(&r, ROUTE_IN) = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        struct adder *a = &adders[i];
        struct ibv_cq *keep = r.send_cq;

        *a = (struct adder){.r = &r, .number = i, .cq = NEED(ibv_create_cq(r.context, 16, NULL, NULL, 0))};
        r.send_cq = a->cq;
        a->out = route_qp(&r, IBV_QPT_RC, NULL);
        a->in = route_qp(&r, IBV_QPT_RC, NULL);
        r.send_cq = keep;
        ZERO(to_init(a->in));
        ZERO(to_init(a->out));
        ZERO(to_rtr(a->in, a->out->qp_num, 1, &r.gid));
        ZERO(to_rtr(a->out, a->in->qp_num, 1, &r.gid));
        ZERO(to_rts(a->in, 1));
        ZERO(to_rts(a->out, 1));
    }
    for (unsigned i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[i], NULL, add, &adders[i]));
    for (unsigned i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
    EXPECT_EQ(*at(&r, ROUTE_IN), ROUNDS * (THREADS * (THREADS + 1) / 2));
}

TEST(fetch_and_add_of_several_threads_sums_right)
{
    sums(0);
}

TEST(compare_and_swap_of_several_threads_sums_right)
{
    sums(1);
}

/* Processes on one word of this one, which adds to it by the CPU meanwhile. */
static void remote_adder(int fd)
{
    struct address there;
    struct side s;

    make_side(&s, open_device(), IBV_QPT_RC, 4096);
    there = join_over(fd, &s);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct ibv_sge sge = sge_of(&s, 0, 8);
        struct ibv_send_wr wr = send_wr(i, &sge, IBV_WR_ATOMIC_FETCH_AND_ADD), *bad;

        wr.wr.atomic.remote_addr = there.addr;
        wr.wr.atomic.rkey = there.rkey;
        wr.wr.atomic.compare_add = 3;
        ZERO(ibv_post_send(s.qp, &wr, &bad));
        NEXT(s.cq, i, IBV_WC_SUCCESS);
    }
    together(fd);
}

TEST_BETWEEN(fetch_and_add_of_several_processes_and_the_cpu_sums_right)
{
    struct side sides[3];
    pid_t others[3];
    uint64_t *word = pages(4096);
    int fds[3];

    for (int i = 0; i < 3; i++)
        others[i] = with_other(remote_adder, &fds[i]);
    make_side(&sides[0], open_device(), IBV_QPT_RC, 4096);
    for (int i = 0; i < 3; i++) {
        struct ibv_mr *mr;

        if (i)
            make_side(&sides[i], sides[0].context, IBV_QPT_RC, 4096);
        mr = NEED(ibv_reg_mr(sides[i].pd, word, 4096, ALL_ACCESS));
        sides[i].mr = mr;
        sides[i].buffer = (void *)word;
        join_over(fds[i], &sides[i]);
    }
    for (unsigned i = 0; i < ROUNDS; i++)
        __atomic_add_fetch(word, 5, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 3; i++) {
        together(fds[i]);
        ends_well(others[i]);
    }
    EXPECT_EQ(*word, ROUNDS * (3 * 3 + 5));
}
