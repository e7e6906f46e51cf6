/* Two processes: the client reads the server's memory, whose address and rkey came over TCP, and counts in it. */
#include "common.h"

#define SIZE (4u << 20)

static const uint32_t sizes[] = {1, 8, 4096, 65536, 1u << 20, SIZE - 64};
#define N (sizeof(sizes) / sizeof(sizes[0]))

static void client(int fd, struct side *s)
{
    struct address peer = join_over(fd, s);
    uint64_t *old = (uint64_t *)(void *)s->buffer;
    struct ibv_sge sge = sge_of(s, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 40,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    for (unsigned i = 0; i < N; i++) {
        together(fd);
        memset(s->buffer, 0, SIZE);
        ZERO(rdma_one(s, i, IBV_WR_RDMA_READ, i, sizes[i], peer.addr, peer.rkey));
        show_next("read", s->cq);
        printf("  %u bytes: %s, not one more %s\n", sizes[i], yes(filled(s->buffer + i, sizes[i], i)),
               yes(s->buffer[i + sizes[i]] == 0));
        together(fd);
    }
    /* More reads at once than the QP may have in flight. */
    for (unsigned i = 0; i < 16; i++)
        ZERO(rdma_one(s, 20 + i, IBV_WR_RDMA_READ, i * 65536, 65536, peer.addr + i * 65536, peer.rkey));
    for (unsigned i = 0; i < 16; i++) {
        struct ibv_wc wc = next_wc(s->cq);

        if (wc.status != IBV_WC_SUCCESS || wc.wr_id != 20 + i)
            die("read %u: %s", i, ibv_wc_status_str(wc.status));
    }
    printf("16 reads at once: %s\n", yes(filled(s->buffer, 16 * 65536, N - 1)));
    /* A read behind a write sees the write. */
    memset(s->buffer, 7, 100);
    ZERO(rdma_one(s, 38, IBV_WR_RDMA_WRITE, 0, 100, peer.addr, peer.rkey));
    ZERO(rdma_one(s, 39, IBV_WR_RDMA_READ, 1000, 100, peer.addr, peer.rkey));
    show_next("write", s->cq);
    show_next("  and read", s->cq);
    printf("  the same %s\n", yes(!memcmp(s->buffer, s->buffer + 1000, 100)));

    wr.wr.atomic.remote_addr = peer.addr + SIZE - 8;
    wr.wr.atomic.rkey = peer.rkey;
    wr.wr.atomic.compare_add = 3;
    for (int i = 0; i < 3; i++) {
        ZERO(ibv_post_send(s->qp, &wr, &bad));
        show_next("add", s->cq);
        printf("  was %" PRIu64 "\n", *old);
    }
    together(fd);
    ZERO(rdma_one(s, 50, IBV_WR_RDMA_READ, 0, 8, peer.addr, peer.rkey ^ 0x10000));
    show_next("read with a wrong key", s->cq);
    together(fd);
}

static void server(int fd, struct side *s)
{
    uint64_t *counter = (uint64_t *)(void *)(s->buffer + SIZE - 8);
    struct ibv_wc wc;

    join_over(fd, s);
    for (unsigned i = 0; i < N; i++) {
        fill(s->buffer, SIZE, i);
        *counter = 1000;
        together(fd);
        together(fd);
    }
    together(fd);
    printf("counter %" PRIu64 ", told of anything %s\n", *counter, yes(ibv_poll_cq(s->cq, 1, &wc) != 0));
    together(fd);
    printf("state %s\n", state_name(state_of(s->qp)));
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
