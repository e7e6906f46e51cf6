/*
 * hosts [-s SEED] [-n COUNT] [-l] server [ADDRESS] | client PORT [ADDRESS]: two hosts, and any verbs library on either;
 * both take the same SEED. RC QPs of every path MTU, spread over the GIDs that C_TESTS_GID lists (as 1,3), send, write,
 * read and add at random both ways; then UC and UD QPs send messages of every length both ways, in batches. All that
 * arrives is checked, byte by byte. -l: packets may be lost, so messages of UC and UD may be missing, and are counted.
 * The ACK timeout is long: soft-RoCE that sends a message again while its late ACK arrives takes that for half of it.
 */
#include "traffic.h"

enum { QPS = 5, BATCH = 8, LONGEST = 1 << 17 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static int fd, is_client, loses;

/* GID i of those that C_TESTS_GID lists, over and over. */
static uint8_t gid_of(int i)
{
    const char *list = getenv("C_TESTS_GID"), *at = list ? list : "0";
    int n = 1;

    for (const char *c = at; *c; c++)
        n += *c == ',';
    for (i %= n; i > 0; i--)
        at = strchr(at, ',') + 1;
    return (uint8_t)atoi(at);
}

static struct ibv_ah_attr route(int i, const struct about *peer)
{
    struct ibv_ah_attr ah = ah_to(&peer->gid);

    ah.grh.sgid_index = gid_of(i);
    return ah;
}

static struct ibv_qp *new_qp(enum ibv_qp_type type, uint32_t sends, uint32_t receives)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type,
                                    .cap = {.max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1,
                                            .max_recv_sge = 1, .max_inline_data = 64}};
    struct ibv_qp *qp = NEED(ibv_create_qp(pd, &init));

    ZERO(to_init(qp));
    return qp;
}

/* The stream of random numbers of either end. */
static uint64_t stream(int i, int clients)
{
    return mix(seed, (uint64_t)(2 * i + clients));
}

static void meet_peer(int i, struct ibv_qp *qp, const struct ibv_mr *mr, const void *target, struct about *me,
                      struct about *peer)
{
    *me = (struct about){.qpn = qp->qp_num, .psn = (uint32_t)mix(stream(i, is_client), 3) & 0xffffff,
                         .rkey = mr->rkey, .address = (uintptr_t)target};
    ZERO(ibv_query_gid(context, PORT, gid_of(i), &me->gid));
    tell(fd, me, sizeof(*me));
    hear(fd, peer, sizeof(*peer));
}

/* Nothing has come for too long. */
static void give_up(const struct link *links)
{
    for (int i = 0; i < QPS; i++)
        fprintf(stderr, "QP 0x%x to 0x%x: %ld posted, %ld done, %ld heard of %ld, state %s\n", links[i].me.qpn,
                links[i].peer.qpn, links[i].posted, links[i].done, links[i].heard, links[i].count,
                state_name(state_of(links[i].qp)));
    BAD("no completion for 20 seconds");
}

static void reliable(void)
{
    uint64_t last = now_ms();
    unsigned char *memory = pages(QPS * link_bytes());
    struct ibv_mr *mr = NEED(ibv_reg_mr(pd, memory, QPS * link_bytes(), ALL_ACCESS));
    struct link links[QPS];
    int busy = 1;

    for (int i = 0; i < QPS; i++) {
        struct link *l = &links[i];

        begin_link(l, memory + (size_t)i * link_bytes(), mr->lkey, (uint64_t)i, stream(i, is_client),
                   stream(i, !is_client));
        l->qp = new_qp(IBV_QPT_RC, WINDOW + 1, RECEIVES);
        for (uint64_t r = 0; r < RECEIVES; r++)
            give_receive(l, r);
        meet_peer(i, l->qp, mr, l->target, &l->me, &l->peer);
        connect_over(l->qp, &l->me, &l->peer, route(i, &l->peer), (enum ibv_mtu)(IBV_MTU_256 + i % 5), 18, 7, 7);
    }
    together(fd);
    while (busy) {
        struct ibv_wc wc;
        int n = ibv_poll_cq(cq, 1, &wc);

        busy = n != 0;
        if (n < 0)
            BAD("ibv_poll_cq = %d", n);
        if (n)
            last = now_ms();
        else if (now_ms() - last > 20000)
            give_up(links);
        if (n && wc.status)
            BAD("wr_id 0x%" PRIx64 ": %s", wc.wr_id, ibv_wc_status_str(wc.status));
        if (n && wc.wr_id & 1u << 31)
            received(&links[wc.wr_id >> 32], &wc);
        else if (n)
            sent(&links[wc.wr_id >> 32], (long)(wc.wr_id & 0x7fffffff));
        for (int i = 0; i < QPS; i++) {
            struct link *l = &links[i];

            /* soft-RoCE may sleep for ever at a fence. */
            while (l->posted < count && l->posted - l->done < WINDOW && !next_takes_fence(l) && draw(4))
                post_next(l);
            busy |= l->done < count || messages_left(l);
        }
    }
    together(fd);
    for (int i = 0; i < QPS; i++) {
        struct totals ours = totals_of(&links[i]), theirs;

        tell(fd, &ours, sizeof(ours));
        hear(fd, &theirs, sizeof(theirs));
        check_totals(&links[i], &theirs);
    }
    together(fd);
    for (int i = 0; i < QPS; i++)
        ZERO(ibv_destroy_qp(links[i].qp));
    ZERO(ibv_dereg_mr(mr));
    munmap(memory, QPS * link_bytes());
}

/* Messages of a QP of UC or UD, numbered by their immediate data. */
struct stream {
    struct ibv_qp *qp;
    struct ibv_ah *ah;
    struct ibv_mr *mr;
    unsigned char *sources, *receives;
    struct about me, peer;
    uint32_t most, ahead;
    uint32_t next, arrived;
    uint64_t ours, theirs;
};

static uint32_t length_of(const struct stream *s, uint64_t stream, uint32_t number)
{
    uint64_t r = mix(stream, number);

    /* None, all, or something between. */
    return r % 8 == 0 ? 0 : r % 8 == 1 ? s->most : (uint32_t)(mix(r, 1) % (s->most >> r % 16 | 1));
}

/* A message, which is none of those before. */
static void take(struct stream *s, const struct ibv_wc *wc)
{
    uint32_t number = ntohl(wc->imm_data), length = length_of(s, s->theirs, number);
    long wrong;

    if (wc->status)
        BAD("message %u: %s", s->next, ibv_wc_status_str(wc->status));
    if (!(wc->wc_flags & IBV_WC_WITH_IMM) || number < s->next || (!loses && number != s->next))
        BAD("message %u instead of %u", number, s->next);
    if (wc->byte_len != length + s->ahead)
        BAD("message %u has %u bytes, expected %u", number, wc->byte_len, length + s->ahead);
    wrong = pattern_differs(s->receives + (size_t)wc->wr_id * (s->most + 64) + s->ahead, length,
                            mix(s->theirs, number));
    if (wrong >= 0)
        BAD("message %u of %u bytes differs at %ld", number, length, wrong);
    s->next = number + 1;
    s->arrived++;
}

/* The messages before `until`; those that do not come soon may be lost. */
static void take_batch(struct stream *s, uint32_t until)
{
    uint64_t end = now_ms() + (loses ? 300 : 10000);
    struct ibv_wc wc;

    while (s->next < until) {
        int n = ibv_poll_cq(cq, 1, &wc);

        if (n < 0)
            BAD("ibv_poll_cq = %d", n);
        if (n)
            take(s, &wc);
        else if (now_ms() > end)
            break;
    }
    if (s->next < until && !loses)
        BAD("message %u has not come", s->next);
}

static void post_batch(struct stream *s, uint32_t first)
{
    for (uint32_t number = first; number < first + BATCH; number++) {
        struct ibv_sge sge = {(uintptr_t)s->sources + (size_t)(number % BATCH) * s->most,
                              length_of(s, s->ours, number), s->mr->lkey};
        struct ibv_send_wr wr = {.wr_id = 1000 + number, .sg_list = &sge, .num_sge = 1, .imm_data = htonl(number),
                                 .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED}, *bad;

        put_pattern((unsigned char *)(uintptr_t)sge.addr, sge.length, mix(s->ours, number));
        if (s->ah) {
            wr.wr.ud.ah = s->ah;
            wr.wr.ud.remote_qpn = s->peer.qpn;
            wr.wr.ud.remote_qkey = QKEY;
        }
        ZERO(ibv_post_send(s->qp, &wr, &bad));
    }
    for (uint32_t number = first; number < first + BATCH;) {
        struct ibv_wc wc = next_wc(cq);

        if (wc.wr_id < BATCH)
            take(s, &wc); /* It came late. */
        else if (wc.status || wc.wr_id != 1000 + number++)
            BAD("request %u: wr_id %" PRIu64 ", %s", number, wc.wr_id, ibv_wc_status_str(wc.status));
    }
}

/* The ends take turns: whoever sends has nothing to receive meanwhile. */
static void unreliable(int i, enum ibv_qp_type type, enum ibv_mtu mtu, uint32_t most, uint32_t batches)
{
    struct stream s = {.most = most, .ahead = type == IBV_QPT_UD ? 40 : 0, .ours = stream(i, is_client),
                       .theirs = stream(i, !is_client)};
    size_t size = (size_t)BATCH * (2 * most + 64);
    struct ibv_wc late;

    s.sources = pages(size);
    s.receives = s.sources + (size_t)BATCH * most;
    s.mr = NEED(ibv_reg_mr(pd, s.sources, size, ALL_ACCESS));
    s.qp = new_qp(type, BATCH, BATCH);
    meet_peer(i, s.qp, s.mr, s.receives, &s.me, &s.peer);
    if (type == IBV_QPT_UD) {
        struct ibv_ah_attr ah = route(i, &s.peer);

        ZERO(to_rtr(s.qp, 0, 0, NULL));
        ZERO(to_rts(s.qp, s.me.psn));
        s.ah = NEED(ibv_create_ah(pd, &ah));
    } else {
        connect_over(s.qp, &s.me, &s.peer, route(i, &s.peer), mtu, 0, 0, 0);
    }
    for (uint32_t turn = 0, posted = 0; turn < 2 * batches; turn++) {
        uint32_t first = turn / 2 * BATCH;

        if ((turn & 1) == (uint32_t)is_client) {
            together(fd);
            post_batch(&s, first);
            together(fd);
        } else {
            /* As many as have been used since. */
            for (; posted < s.arrived + BATCH; posted++) {
                uint64_t place = posted % BATCH;
                struct ibv_sge sge = {(uintptr_t)s.receives + place * (most + 64), most + s.ahead, s.mr->lkey};
                struct ibv_recv_wr wr = {.wr_id = place, .sg_list = &sge, .num_sge = 1}, *bad;

                ZERO(ibv_post_recv(s.qp, &wr, &bad));
            }
            together(fd);
            take_batch(&s, first + BATCH);
            together(fd);
        }
    }
    together(fd);
    if (s.arrived == 0)
        BAD("nothing has come of %u messages", batches * BATCH);
    printf("%s, MTU %d: %u of %u messages have come\n", type == IBV_QPT_UD ? "UD" : "UC", 128 << mtu, s.arrived,
           batches * BATCH);
    if (s.ah)
        ZERO(ibv_destroy_ah(s.ah));
    ZERO(ibv_destroy_qp(s.qp));
    /* What came too late to be counted is none of the next QP's. */
    while (ibv_poll_cq(cq, 1, &late) > 0)
        ;
    ZERO(ibv_dereg_mr(s.mr));
    munmap(s.sources, size);
}

int main(int argc, char **argv)
{
    int o;

    options(argc, argv, 200, 100);
    optind = 1;
    while ((o = getopt(argc, argv, "s:n:l")) != -1)
        loses |= o == 'l';
    argv[optind - 1] = argv[0];
    longest = LONGEST;
    context = open_device();
    fd = meet(argc - optind + 1, argv + optind - 1);
    is_client = !strcmp(argv[optind], "client");
    drawn = (uint64_t)is_client << 32;
    pd = NEED(ibv_alloc_pd(context));
    cq = NEED(ibv_create_cq(context, QPS * (WINDOW + RECEIVES + 1), NULL, NULL, 0));
    reliable();
    for (int i = 0; i < 5; i++)
        unreliable(QPS + i, IBV_QPT_UC, (enum ibv_mtu)(IBV_MTU_256 + i), 65536, 3);
    for (int i = 0; i < 2; i++)
        unreliable(2 * QPS + i, IBV_QPT_UD, IBV_MTU_4096, 4096, 5);
    together(fd);
    ZERO(ibv_destroy_cq(cq));
    ZERO(ibv_dealloc_pd(pd));
    ZERO(ibv_close_device(context));
    printf("ok\n");
    return 0;
}
