/* Lists of SENDs of every sort between two processes: whichever way each of them takes, they arrive whole, in order, and complete in order. */
#include "behaviour.h"

#define SORTS 12
#define LIST 24
#define ROUNDS 40
#define ROOM 4096
#define SIZE (LIST * ROOM)

enum when { BEFORE, AFTER, WHENS };

static enum ibv_qp_type type_used;
static enum when when_used;
static unsigned seed_used;

/* What request `n` is like. */
struct sort {
    uint32_t length;
    int pieces, inlined, imm, solicited, fence, signaled;
};

static struct sort sort_of(unsigned n)
{
    static const uint32_t lengths[SORTS] = {8, 8, 0, 1, 31, 32, 33, 64, 3000, 4096, 7, 8};
    /* Every distance between sorts comes up. */
    unsigned at = (n * (1 + seed_used % 11) + n / SORTS + seed_used) % SORTS;
    struct sort s = {.length = lengths[at], .pieces = 1, .imm = n % 5 == 0, .solicited = n % 4 == 1, .fence = n % 9 == 3,
                     .signaled = n % 7 == 0 || n % LIST == LIST - 1};

    s.inlined = s.length <= 64 && n % 3 == 0;
    if (s.length >= 7 && n % 6 == 4)
        s.pieces = 2;
    else if (s.length == 0)
        s.pieces = (int)(n % 2);
    return s;
}

static void take_all(struct side *s, unsigned round)
{
    for (unsigned i = 0; i < LIST; i++) {
        unsigned n = round * LIST + i;
        struct sort sort = sort_of(n);
        struct ibv_wc wc = NEXT(s->cq, n, IBV_WC_SUCCESS);

        EXPECT_EQ(wc.opcode, IBV_WC_RECV);
        EXPECT_EQ(wc.byte_len, sort.length);
        EXPECT_EQ(wc.wc_flags, sort.imm ? IBV_WC_WITH_IMM : 0);
        if (sort.imm)
            EXPECT_EQ(ntohl(wc.imm_data), n + 77);
        EXPECT(filled(s->buffer + i * ROOM, sort.length, n), "message %u of %u bytes", n, sort.length);
    }
}

static void receiver(int fd)
{
    struct side s;

    make_side(&s, open_device(), type_used, SIZE);
    join_over(fd, &s);
    for (unsigned round = 0; round < ROUNDS; round++) {
        memset(s.buffer, 0, SIZE);
        if (when_used == AFTER)
            hear(fd, (char[1]){0}, 1);
        for (unsigned i = 0; i < LIST; i++)
            ZERO(recv_one(&s, round * LIST + i, i * ROOM, ROOM));
        tell(fd, "p", 1);
        take_all(&s, round);
        tell(fd, "t", 1);
    }
    EXPECT(quiet(s.cq));
    hear(fd, (char[1]){0}, 1);
}

static void post_list(struct side *s, unsigned round)
{
    struct ibv_send_wr list[LIST], *bad;
    struct ibv_sge sges[LIST][2];

    for (unsigned i = 0; i < LIST; i++) {
        unsigned n = round * LIST + i;
        struct sort sort = sort_of(n);
        uint32_t first = sort.pieces == 2 ? sort.length / 3 : sort.length;

        fill(s->buffer + i * ROOM, sort.length, n);
        sges[i][0] = sge_of(s, i * ROOM, first);
        sges[i][1] = sge_of(s, i * ROOM + first, sort.length - first);
        list[i] = send_wr(n, sges[i], sort.imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND);
        list[i].num_sge = sort.pieces;
        list[i].imm_data = htonl(n + 77);
        list[i].next = i + 1 < LIST ? &list[i + 1] : NULL;
        list[i].send_flags = (sort.signaled ? IBV_SEND_SIGNALED : 0) | (sort.inlined ? IBV_SEND_INLINE : 0) |
                             (sort.solicited ? IBV_SEND_SOLICITED : 0) | (sort.fence ? IBV_SEND_FENCE : 0);
    }
    if (round % 2) {
        ZERO(ibv_post_send(s->qp, list, &bad));
    } else {
        for (unsigned i = 0; i < LIST; i++) {
            list[i].next = NULL;
            ZERO(ibv_post_send(s->qp, &list[i], &bad));
        }
    }
    for (unsigned i = 0; i < LIST; i++)
        if (list[i].send_flags & IBV_SEND_INLINE)
            memset(s->buffer + i * ROOM, 0xee, sort_of(round * LIST + i).length);
}

static void arrive(enum ibv_qp_type type, enum when when, unsigned seed)
{
    struct side s;
    pid_t pid;
    int fd;

    type_used = type;
    when_used = when;
    seed_used = seed;
    pid = with_other(receiver, &fd);
    make_side(&s, open_device(), type, SIZE);
    join_over(fd, &s);
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (when == BEFORE)
            hear(fd, (char[1]){0}, 1);
        post_list(&s, round);
        if (when == AFTER) {
            tell(fd, "s", 1);
            hear(fd, (char[1]){0}, 1);
        }
        for (unsigned i = 0; i < LIST; i++) {
            struct sort sort = sort_of(round * LIST + i);

            if (sort.signaled)
                EXPECT_EQ(NEXT(s.cq, round * LIST + i, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
        }
        hear(fd, (char[1]){0}, 1);
        EXPECT(quiet(s.cq));
    }
    tell(fd, "e", 1);
    ends_well(pid);
    close(fd);
    drop_side(&s);
}

TEST_BETWEEN(lists_of_every_sort_of_send_arrive_whole_and_complete_in_order)
{
    for (unsigned seed = 0; seed < 4; seed++)
        arrive(IBV_QPT_RC, BEFORE, seed);
}

TEST_BETWEEN(unreliable_lists_of_every_sort_of_send_arrive_whole_and_in_order)
{
    if (between_hosts())
        skip("a wire may lose them");
    for (unsigned seed = 0; seed < 4; seed++)
        arrive(IBV_QPT_UC, BEFORE, seed);
}

TEST_BETWEEN(lists_that_wait_for_receives_keep_their_bytes_and_their_order)
{
    for (unsigned seed = 0; seed < 4; seed++)
        arrive(IBV_QPT_RC, AFTER, seed);
}
