/* Two processes: the client writes into the server's memory, whose address and rkey came over TCP. */
#include "common.h"

#define SIZE (4u << 20)

static const uint32_t sizes[] = {1, 8, 4096, 65536, 1u << 20, SIZE - 64};
#define N (sizeof(sizes) / sizeof(sizes[0]))

static void client(int fd, struct side *s)
{
    struct address peer = join_over(fd, s);

    for (unsigned i = 0; i < N; i++) {
        fill(s->buffer, sizes[i], i);
        ZERO(rdma_one(s, i, IBV_WR_RDMA_WRITE, 0, sizes[i], peer.addr + i, peer.rkey));
        show_next("write", s->cq);
        together(fd);
        together(fd);
    }
    /* With immediate data: the server is told through its CQ. */
    together(fd);
    ZERO(rdma_one(s, 50, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 4096, peer.addr, peer.rkey));
    show_next("write with imm", s->cq);
    together(fd);
    /* A send behind a write arrives behind it. */
    for (unsigned i = 0; i < 100; i++) {
        memset(s->buffer, (int)i, 8192);
        ZERO(rdma_one(s, 60, IBV_WR_RDMA_WRITE, 0, 8192, peer.addr, peer.rkey));
        ZERO(send_one(s, 61, 0, 1, IBV_SEND_SIGNALED));
        next_wc(s->cq);
        next_wc(s->cq);
        together(fd);
    }
    ZERO(rdma_one(s, 70, IBV_WR_RDMA_WRITE, 0, 8, peer.addr + SIZE, peer.rkey));
    show_next("write past the end", s->cq);
    together(fd);
}

static void server(int fd, struct side *s)
{
    struct ibv_wc wc;
    int right = 0;

    ZERO(to_init(s->qp));
    for (unsigned i = 0; i < 32; i++)
        ZERO(recv_one(s, i, SIZE - 64, 64));
    join_over(fd, s);
    for (unsigned i = 0; i < N; i++) {
        together(fd);
        printf("%u bytes written: %s, told of it %s\n", sizes[i], yes(filled(s->buffer + i, sizes[i], i)),
               yes(ibv_poll_cq(s->cq, 1, &wc) != 0));
        memset(s->buffer, 0, SIZE);
        together(fd);
    }
    together(fd);
    show_next("written with imm", s->cq);
    together(fd);
    for (unsigned i = 0; i < 100; i++) {
        wc = next_wc(s->cq);
        right += s->buffer[0] == i && s->buffer[8191] == i && wc.status == IBV_WC_SUCCESS;
        ZERO(recv_one(s, i, SIZE - 64, 64));
        together(fd);
    }
    printf("sends behind writes: %d of 100 find the data\n", right);
    together(fd);
    show_next("after a write past the end", s->cq);
}

int main(int argc, char **argv)
{
    struct ibv_context *context;
    struct side s;
    int fd;

    start();
    context = open_device();
    make_side(&s, context, IBV_QPT_RC, SIZE);
    fd = meet(argc, argv);
    if (!strcmp(argv[1], "server"))
        server(fd, &s);
    else
        client(fd, &s);
    drop_side(&s);
    close(fd);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
