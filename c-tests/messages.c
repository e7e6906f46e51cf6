/* Two processes: SEND over RC, UC and UD of every size class, late receives, lists, inline data, and both directions at once. */
#include "common.h"

#define SIZE (1u << 20)

static const uint32_t sizes[] = {0, 1, 63, 64, 1024, 1025, 4096, 65536, 300001, SIZE};
#define N (sizeof(sizes) / sizeof(sizes[0]))

static struct ibv_context *context;
static int fd, is_server;

/* Client to server, one message of each size; the server has receives posted. */
static void one_way(struct side *s, const char *type)
{
    for (unsigned i = 0; i < N; i++) {
        if (is_server) {
            struct ibv_wc wc;

            memset(s->buffer, 0, SIZE);
            ZERO(recv_one(s, i, 0, SIZE));
            together(fd);
            wc = next_wc(s->cq);
            printf("%s ", type);
            show_wc("recv", &wc);
            printf("  data %s\n", yes(filled(s->buffer, sizes[i], i)));
            together(fd);
        } else {
            fill(s->buffer, sizes[i], i);
            together(fd);
            ZERO(send_one(s, i, 0, sizes[i], IBV_SEND_SIGNALED));
            printf("%s ", type);
            show_next("send", s->cq);
            together(fd);
        }
    }
}

/* The receive comes long after the send: the sender is held back, other QPs are not. */
static void late(struct side *s)
{
    struct side other;

    make_side(&other, context, IBV_QPT_RC, 4096);
    join_over(fd, &other);
    if (is_server) {
        ZERO(recv_one(&other, 7, 0, 4096));
        together(fd);
        show_next("the other QP", other.cq);
        ZERO(recv_one(s, 8, 0, 4096));
        show_next("late receive", s->cq);
        together(fd);
    } else {
        together(fd);
        ZERO(send_one(s, 1, 0, 100, IBV_SEND_SIGNALED));
        ZERO(send_one(&other, 2, 0, 100, IBV_SEND_SIGNALED));
        show_next("the other QP", other.cq);
        show_next("held back", s->cq);
        together(fd);
    }
    drop_side(&other);
}

/* Thousands of small messages both ways, receives reposted one by one: none lost, none doubled, all in order. */
static void flood(struct side *s)
{
    enum { MESSAGES = 20000, DEPTH = 16 };
    uint32_t sent = 0, done = 0, received = 0, wrong = 0;
    uint64_t end = now_ms() + 40000;
    struct ibv_wc wc[8];

    for (unsigned i = 0; i < 2 * DEPTH; i++)
        ZERO(recv_one(s, i, 4096 + i * 64, 64));
    together(fd);
    while ((done < MESSAGES || received < MESSAGES) && now_ms() < end) {
        int n;

        while (sent < MESSAGES && sent - done < DEPTH) {
            uint32_t slot = sent % DEPTH;

            memcpy(s->buffer + slot * 64, &sent, sizeof(sent));
            ZERO(send_one(s, 1000, slot * 64, 4 + sent % 60, IBV_SEND_SIGNALED | (sent % 3 ? 0 : IBV_SEND_INLINE)));
            sent++;
        }
        n = ibv_poll_cq(s->cq, 8, wc);
        for (int i = 0; i < n; i++) {
            uint32_t number;

            if (wc[i].status != IBV_WC_SUCCESS)
                die("after %u sent, %u received: %s", done, received, ibv_wc_status_str(wc[i].status));
            if (wc[i].wr_id == 1000) {
                done++;
                continue;
            }
            memcpy(&number, s->buffer + 4096 + wc[i].wr_id * 64, sizeof(number));
            wrong += number != received || wc[i].byte_len != 4 + received % 60;
            received++;
            ZERO(recv_one(s, wc[i].wr_id, 4096 + wc[i].wr_id * 64, 64));
        }
    }
    printf("flood: %u sent, %u received, %u wrong\n", done, received, wrong);
    together(fd);
}

static void datagrams(void)
{
    struct address mine, theirs;
    struct ibv_ah_attr attr;
    struct ibv_ah *ah;
    struct side s;

    make_side(&s, context, IBV_QPT_UD, 65536);
    mine = (struct address){.qpn = s.qp->qp_num, .gid = s.gid};
    tell(fd, &mine, sizeof(mine));
    hear(fd, &theirs, sizeof(theirs));
    ZERO(to_init(s.qp));
    for (unsigned i = 0; i < 4; i++)
        ZERO(recv_one(&s, i, i * 4096, 4096));
    ZERO(to_rtr(s.qp, 0, 0, NULL));
    ZERO(to_rts(s.qp, 0));
    attr = ah_to(&theirs.gid);
    ah = NEED(ibv_create_ah(s.pd, &attr));
    together(fd);
    for (unsigned i = 0; i < 4; i++) {
        uint32_t length = i * 300;
        struct ibv_sge sge = sge_of(&s, 32768, length);
        struct ibv_send_wr wr = {
            .wr_id = 10, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        struct ibv_send_wr *bad;
        struct ibv_wc wc;

        if (is_server) {
            wc = next_wc(s.cq);
            show_wc("UD recv", &wc);
            printf("  from the peer %s, data %s\n", yes(wc.src_qp == theirs.qpn),
                   yes(filled(s.buffer + i * 4096 + 40, length, i)));
        } else {
            fill(s.buffer + 32768, length, i);
            wr.wr.ud.ah = ah;
            wr.wr.ud.remote_qpn = theirs.qpn;
            wr.wr.ud.remote_qkey = QKEY;
            ZERO(ibv_post_send(s.qp, &wr, &bad));
            show_next("UD send", s.cq);
        }
        together(fd);
    }
    ZERO(ibv_destroy_ah(ah));
    drop_side(&s);
}

int main(int argc, char **argv)
{
    struct side s;

    start();
    context = open_device();
    fd = meet(argc, argv);
    is_server = !strcmp(argv[1], "server");
    make_side(&s, context, IBV_QPT_RC, SIZE);
    join_over(fd, &s);
    one_way(&s, "RC");
    late(&s);
    flood(&s);
    drop_side(&s);
    make_side(&s, context, IBV_QPT_UC, SIZE);
    join_over(fd, &s);
    one_way(&s, "UC");
    drop_side(&s);
    datagrams();
    together(fd);
    close(fd);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
