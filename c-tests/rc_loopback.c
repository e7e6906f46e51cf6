/* RC between two QPs of one process: SEND, immediate data, RDMA, sizes around the MTU, unsignaled sends, self-connection. */
#include "common.h"

#define SIZE (4u << 20)
#define HALF (SIZE / 2)

static void sends(struct side *a, struct side *b)
{
    static const uint32_t sizes[] = {0, 1, 64, 1023, 1024, 1025, 4096, 65536, HALF};

    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint32_t n = sizes[i];

        fill(a->buffer, n, i);
        memset(b->buffer, 0, HALF);
        ZERO(recv_one(b, 100 + i, 0, HALF));
        ZERO(send_one(a, i, 0, n, IBV_SEND_SIGNALED));
        show_next("send", a->cq);
        show_next("  recv", b->cq);
        printf("  data %s, not a byte more %s\n", yes(filled(b->buffer, n, i)), yes(n == HALF || b->buffer[n] == 0));
    }
}

static void immediates(struct side *a, struct side *b)
{
    struct ibv_sge sge = sge_of(a, 0, 16);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_IMM,
                             .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED};
    struct ibv_send_wr *bad;

    wr.imm_data = htonl(0xa1b2c3d4);
    ZERO(recv_one(b, 2, 0, 64));
    ZERO(ibv_post_send(a->qp, &wr, &bad));
    show_next("send with imm", a->cq);
    show_next("  recv", b->cq);

    fill(a->buffer, 5000, 9);
    ZERO(recv_one(b, 3, 0, 0));
    ZERO(rdma_one(a, 4, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 5000, (uintptr_t)b->buffer + 77, b->mr->rkey));
    show_next("write with imm", a->cq);
    show_next("  recv", b->cq);
    printf("  data %s\n", yes(filled(b->buffer + 77, 5000, 9)));
}

static void one_sided(struct side *a, struct side *b)
{
    struct ibv_wc wc;

    fill(a->buffer, 100000, 3);
    ZERO(rdma_one(a, 5, IBV_WR_RDMA_WRITE, 0, 100000, (uintptr_t)b->buffer + 1, b->mr->rkey));
    show_next("write", a->cq);
    printf("  data %s, receiver notices %s\n", yes(filled(b->buffer + 1, 100000, 3)),
           yes(ibv_poll_cq(b->cq, 1, &wc) != 0));
    fill(b->buffer, 100000, 4);
    ZERO(rdma_one(a, 6, IBV_WR_RDMA_READ, HALF, 100000, (uintptr_t)b->buffer, b->mr->rkey));
    show_next("read", a->cq);
    printf("  data %s\n", yes(filled(a->buffer + HALF, 100000, 4)));
    ZERO(rdma_one(a, 7, IBV_WR_RDMA_WRITE, 0, 0, 0, 0));
    show_next("write of nothing to nowhere", a->cq);
}

/* A SEND, then a WRITE to the same bytes: the WRITE's must stay. */
static void order(struct side *a, struct side *b)
{
    int right = 0;

    for (unsigned i = 0; i < 200; i++) {
        struct ibv_wc wc;

        memset(a->buffer, 1, 4096);
        memset(a->buffer + HALF, 2, 4096);
        ZERO(recv_one(b, i, 0, 4096));
        ZERO(send_one(a, i, 0, 4096, 0));
        ZERO(rdma_one(a, i, IBV_WR_RDMA_WRITE, HALF, 4096, (uintptr_t)b->buffer, b->mr->rkey));
        wc = next_wc(a->cq);
        if (wc.status != IBV_WC_SUCCESS)
            die("%s", ibv_wc_status_str(wc.status));
        next_wc(b->cq);
        right += b->buffer[0] == 2 && b->buffer[4095] == 2;
    }
    printf("send then write to the same bytes: %d of 200 end with the write\n", right);
}

static void unsignaled(struct side *a, struct side *b)
{
    struct ibv_wc wc;
    int received = 0, n;
    uint64_t end = now_ms() + 10000;

    for (unsigned i = 0; i < 8; i++)
        ZERO(recv_one(b, i, i * 64, 64));
    for (unsigned i = 0; i < 7; i++)
        ZERO(send_one(a, i, 0, 8, 0));
    ZERO(send_one(a, 7, 0, 8, IBV_SEND_SIGNALED));
    show_next("eight sends, the last signaled", a->cq);
    while (received < 8 && now_ms() < end)
        if ((n = ibv_poll_cq(b->cq, 1, &wc)) > 0)
            received += wc.wr_id == (uint64_t)received && wc.status == IBV_WC_SUCCESS;
    printf("  received in order: %d; more completions %s\n", received, yes(ibv_poll_cq(a->cq, 1, &wc) > 0));
}

/* The receive that is too small: an error on both sides, and both QPs stop. */
static void too_small(struct side *a, struct side *b)
{
    ZERO(recv_one(b, 1, 0, 16));
    ZERO(recv_one(b, 2, 0, 16));
    ZERO(send_one(a, 3, 0, 17, IBV_SEND_SIGNALED));
    ZERO(send_one(a, 4, 0, 1, 0));
    show_next("17 bytes into 16", a->cq);
    show_next("  the next send", a->cq);
    show_next("  receiver", b->cq);
    show_next("  its next receive", b->cq);
    printf("  states %s %s\n", state_name(state_of(a->qp)), state_name(state_of(b->qp)));
}

static void self(struct ibv_context *context)
{
    struct side s;

    make_side(&s, context, IBV_QPT_RC, 8192);
    ZERO(to_init(s.qp));
    ZERO(to_rtr(s.qp, s.qp->qp_num, 5, &s.gid));
    ZERO(to_rts(s.qp, 5));
    fill(s.buffer, 100, 1);
    ZERO(recv_one(&s, 1, 4096, 100));
    ZERO(send_one(&s, 2, 0, 100, IBV_SEND_SIGNALED));
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next_wc(s.cq);

        printf("a QP with itself: %s %s\n", wc.wr_id == 1 ? "recv" : "send", ibv_wc_status_str(wc.status));
    }
    printf("  data %s\n", yes(filled(s.buffer + 4096, 100, 1)));
    drop_side(&s);
}

int main(void)
{
    struct ibv_context *context;
    struct side a, b;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, SIZE);
    make_side(&b, context, IBV_QPT_RC, SIZE);
    join(&a, &b);
    sends(&a, &b);
    immediates(&a, &b);
    one_sided(&a, &b);
    order(&a, &b);
    unsignaled(&a, &b);
    too_small(&a, &b);
    drop_side(&a);
    drop_side(&b);
    self(context);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
