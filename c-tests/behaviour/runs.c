/* Short SENDs of one length that follow each other in a list, between two processes: several may travel as one, but each has a receive, a
 * completion and an end of its own. */
#include "behaviour.h"

#define LIST 23
#define SLOT 128
#define SIZE (LIST * SLOT)
#define BAD 2
#define FEW 4

static const uint32_t lengths[] = {1, 2, 7, 8, 11, 17, 32, 33, 56, 75, 112, 113};
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static enum ibv_qp_type type_used;
/* What is wrong with request or receive BAD. */
static enum wrong { NOTHING, SHORT_RECEIVE, UNKNOWN_RECEIVE_KEY, UNKNOWN_SEND_KEY, FULL_CQ } wrong_used;

static void post_list(struct side *s, unsigned first, uint32_t length, unsigned flags)
{
    struct ibv_send_wr list[LIST], *bad;
    struct ibv_sge sges[LIST];

    for (unsigned i = 0; i < LIST; i++) {
        fill(s->buffer + i * SLOT, length, first + i);
        sges[i] = sge_of(s, i * SLOT, length);
        list[i] = send_wr(first + i, &sges[i], IBV_WR_SEND);
        list[i].next = i + 1 < LIST ? &list[i + 1] : NULL;
        list[i].send_flags |= flags;
    }
    if (wrong_used == UNKNOWN_SEND_KEY)
        sges[BAD].lkey ^= 0x55;
    ZERO(ibv_post_send(s->qp, list, &bad));
}

static void expect_message(struct side *s, unsigned n, unsigned slot, uint32_t length)
{
    struct ibv_wc wc = NEXT(s->cq, n, IBV_WC_SUCCESS);

    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.byte_len, length);
    EXPECT(filled(s->buffer + slot * SLOT, length, n), "message %u of %u bytes", n, length);
    EXPECT_EQ(s->buffer[slot * SLOT + length], 0xaa);
}

/* Receives come a few at a time, so that they end within what travels as one. */
static void receiver_of_pieces(int fd)
{
    struct side s;

    make_side(&s, open_device(), type_used, SIZE);
    join_over(fd, &s);
    for (unsigned round = 0; round < 2 * LENGTHS; round++) {
        unsigned taken = 0, few = 1 + round % 5;

        memset(s.buffer, 0xaa, SIZE);
        for (unsigned posted = 0; taken < LIST; posted += few) {
            if (posted + few > LIST)
                few = LIST - posted;
            for (unsigned i = 0; i < few; i++)
                ZERO(recv_one(&s, round * LIST + posted + i, (posted + i) * SLOT, SLOT));
            for (; taken < posted + few; taken++)
                expect_message(&s, round * LIST + taken, taken, lengths[round % LENGTHS]);
        }
        tell(fd, "t", 1);
        EXPECT(quiet(s.cq));
    }
    hear(fd, (char[1]){0}, 1);
}

TEST_BETWEEN(short_sends_of_a_list_take_a_receive_each_however_many_there_are)
{
    struct side s;
    pid_t pid;
    int fd;

    type_used = IBV_QPT_RC;
    pid = with_other(receiver_of_pieces, &fd);
    make_side(&s, open_device(), type_used, SIZE);
    join_over(fd, &s);
    for (unsigned round = 0; round < 2 * LENGTHS; round++) {
        post_list(&s, round * LIST, lengths[round % LENGTHS],
                  round % 3 && lengths[round % LENGTHS] <= 64 ? IBV_SEND_INLINE : 0);
        for (unsigned i = 0; i < LIST; i++)
            EXPECT_EQ(NEXT(s.cq, round * LIST + i, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
        hear(fd, (char[1]){0}, 1);
        EXPECT(quiet(s.cq));
    }
    tell(fd, "e", 1);
    ends_well(pid);
    close(fd);
    drop_side(&s);
}

/* Fewer receives than messages, of a QP that has no way to say so: the first ones arrive, the others are gone. */
static void receiver_of_few(int fd)
{
    struct side s;

    make_side(&s, open_device(), type_used, SIZE);
    memset(s.buffer, 0xaa, SIZE);
    join_over(fd, &s);
    for (unsigned i = 0; i < FEW + 2; i++)
        ZERO(recv_one(&s, i, i * SLOT, SLOT));
    tell(fd, "r", 1);
    for (unsigned i = 0; i < FEW + 2; i++)
        expect_message(&s, i, i, 8);
    hear(fd, (char[1]){0}, 1);
    EXPECT(quiet(s.cq));
    for (unsigned i = 0; i < LIST; i++)
        ZERO(recv_one(&s, LIST + i, i * SLOT, SLOT));
    memset(s.buffer, 0xaa, SIZE);
    tell(fd, "r", 1);
    for (unsigned i = 0; i < LIST; i++)
        expect_message(&s, LIST + i, i, 8);
    hear(fd, (char[1]){0}, 1);
}

TEST_BETWEEN(unreliable_short_sends_without_a_receive_are_gone_one_by_one)
{
    struct side s;
    pid_t pid;
    int fd;

    if (between_hosts())
        skip("a wire may lose them");
    type_used = IBV_QPT_UC;
    pid = with_other(receiver_of_few, &fd);
    make_side(&s, open_device(), type_used, SIZE);
    join_over(fd, &s);
    for (unsigned round = 0; round < 2; round++) {
        hear(fd, (char[1]){0}, 1);
        post_list(&s, round * LIST, 8, IBV_SEND_INLINE);
        for (unsigned i = 0; i < LIST; i++)
            NEXT(s.cq, round * LIST + i, IBV_WC_SUCCESS);
        tell(fd, "s", 1);
    }
    ends_well(pid);
    close(fd);
    drop_side(&s);
}

static enum ibv_wc_status receiver_sees(enum wrong wrong)
{
    return wrong == SHORT_RECEIVE ? IBV_WC_LOC_LEN_ERR : wrong == UNKNOWN_RECEIVE_KEY ? IBV_WC_LOC_PROT_ERR : IBV_WC_WR_FLUSH_ERR;
}

static enum ibv_wc_status sender_sees(enum wrong wrong)
{
    return wrong == SHORT_RECEIVE ? IBV_WC_REM_INV_REQ_ERR : wrong == UNKNOWN_SEND_KEY ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_OP_ERR;
}

static void receiver_of_bad(int fd)
{
    struct side s;
    struct ibv_recv_wr *bad;

    make_side(&s, open_device(), type_used, SIZE);
    memset(s.buffer, 0xaa, SIZE);
    join_over(fd, &s);
    for (unsigned i = 0; i < LIST; i++) {
        struct ibv_sge sge = sge_of(&s, i * SLOT, SLOT);
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1};

        if (i == BAD && wrong_used == SHORT_RECEIVE)
            sge.length = 7;
        if (i == BAD && wrong_used == UNKNOWN_RECEIVE_KEY)
            sge.lkey ^= 0x55;
        ZERO(ibv_post_recv(s.qp, &wr, &bad));
    }
    tell(fd, "r", 1);
    for (unsigned i = 0; i < BAD; i++)
        expect_message(&s, i, i, 8);
    /* A request that fails at its sender ends nothing here. */
    if (wrong_used != UNKNOWN_SEND_KEY) {
        NEXT(s.cq, BAD, receiver_sees(wrong_used));
        for (unsigned i = BAD + 1; i < LIST; i++)
            NEXT(s.cq, i, IBV_WC_WR_FLUSH_ERR);
    }
    hear(fd, (char[1]){0}, 1);
    EXPECT(quiet(s.cq));
    for (unsigned i = BAD; i < LIST; i++)
        EXPECT_EQ(s.buffer[i * SLOT], 0xaa);
}

static void one_is_wrong(enum wrong wrong, void (*receiver)(int))
{
    struct side s;
    pid_t pid;
    int fd;

    type_used = IBV_QPT_RC;
    wrong_used = wrong;
    pid = with_other(receiver, &fd);
    make_side(&s, open_device(), type_used, SIZE);
    join_over(fd, &s);
    hear(fd, (char[1]){0}, 1);
    post_list(&s, 0, 8, 0);
    for (unsigned i = 0; i < BAD; i++)
        NEXT(s.cq, i, IBV_WC_SUCCESS);
    NEXT(s.cq, BAD, sender_sees(wrong));
    for (unsigned i = BAD + 1; i < LIST; i++)
        NEXT(s.cq, i, IBV_WC_WR_FLUSH_ERR);
    tell(fd, "e", 1);
    ends_well(pid);
    close(fd);
    drop_side(&s);
}

TEST_BETWEEN(a_receive_too_short_for_one_of_a_list_fails_that_one_and_flushes_those_behind_it)
{
    one_is_wrong(SHORT_RECEIVE, receiver_of_bad);
}

TEST_BETWEEN(a_receive_of_an_unknown_key_for_one_of_a_list_fails_that_one)
{
    one_is_wrong(UNKNOWN_RECEIVE_KEY, receiver_of_bad);
}

TEST_BETWEEN(an_unknown_key_of_one_of_a_list_fails_that_one_and_sends_those_before_it)
{
    one_is_wrong(UNKNOWN_SEND_KEY, receiver_of_bad);
}

/* The CQ has room for the receives before BAD; another one is polled, which drives the process. */
static void receiver_of_full_cq(int fd)
{
    struct side s;
    struct ibv_cq *other, *small;
    struct ibv_async_event event;
    struct ibv_wc wc[LIST];

    make_side(&s, open_device(), type_used, SIZE);
    ZERO(ibv_destroy_qp(s.qp));
    other = s.cq;
    small = s.cq = NEED(ibv_create_cq(s.context, BAD, NULL, NULL, 0));
    EXPECT_EQ(small->cqe, BAD);
    s.qp = make_qp(&s, type_used, NULL);
    join_over(fd, &s);
    memset(s.buffer, 0xaa, SIZE);
    for (unsigned i = 0; i < LIST; i++)
        ZERO(recv_one(&s, i, i * SLOT, SLOT));
    tell(fd, "r", 1);
    for (uint64_t end = now_ms() + 10000; state_of(s.qp) != IBV_QPS_ERR;) {
        EXPECT(quiet(other));
        EXPECT(now_ms() < end, "the CQ has not overrun");
    }
    EXPECT_EQ(ibv_poll_cq(small, LIST, wc), BAD);
    for (unsigned i = 0; i < BAD; i++)
        EXPECT(wc[i].wr_id == i && wc[i].status == IBV_WC_SUCCESS);
    do {
        event = next_event(s.context);
    } while (event.event_type != IBV_EVENT_CQ_ERR);
    hear(fd, (char[1]){0}, 1);
}

TEST_BETWEEN(a_cq_that_overruns_within_a_list_fails_the_message_that_it_has_no_room_for)
{
    one_is_wrong(FULL_CQ, receiver_of_full_cq);
}
