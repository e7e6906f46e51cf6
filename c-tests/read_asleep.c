/* Two processes: the client sleeps until a READ that is larger than any ring between them is answered. */
#include "common.h"

#define SIZE (4u << 20)

static void client(int fd, struct side *s, struct ibv_comp_channel *channel)
{
    struct address peer = join_over(fd, s);

    for (int i = 0; i < 4; i++) {
        struct ibv_cq *cq;
        void *context;

        memset(s->buffer, 0, SIZE);
        ZERO(ibv_req_notify_cq(s->cq, 0));
        ZERO(rdma_one(s, 7, IBV_WR_RDMA_READ, 0, SIZE, peer.addr, peer.rkey));
        ZERO(ibv_get_cq_event(channel, &cq, &context));
        ibv_ack_cq_events(cq, 1);
        show_next("read", s->cq);
        printf("  data %s\n", yes(filled(s->buffer, SIZE, 5)));
    }
    together(fd);
}

int main(int argc, char **argv)
{
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    struct side s;
    int fd;

    start();
    /* By the ring, not straight from the server's memory. */
    setenv("ANYVERBS_DIRECT", "0", 1);
    context = open_device();
    make_side(&s, context, IBV_QPT_RC, SIZE);
    channel = NEED(ibv_create_comp_channel(context));
    ZERO(ibv_destroy_qp(s.qp));
    ZERO(ibv_destroy_cq(s.cq));
    s.cq = NEED(ibv_create_cq(context, 16, NULL, channel, 0));
    s.qp = make_qp(&s, IBV_QPT_RC, NULL);
    fill(s.buffer, SIZE, 5);
    fd = meet(argc, argv);
    if (!strcmp(argv[1], "server")) {
        join_over(fd, &s);
        together(fd);
    } else {
        client(fd, &s, channel);
    }
    drop_side(&s);
    ZERO(ibv_destroy_comp_channel(channel));
    close(fd);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
