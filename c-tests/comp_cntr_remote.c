/*
 * Completion counters of two processes: the client's operations, and the same as the server sees them. Nobody polls a CQ:
 * reading the counters is what drives the device.
 */
#include "counters.h"

/* Waits until so many operations were counted, by nothing but reading. */
static void reach(struct ibv_comp_cntr *counter, uint64_t n)
{
    uint64_t end = now_ms() + 10000;

    while (count(counter) < n)
        if (now_ms() > end)
            die("%" PRIu64 " of %" PRIu64, count(counter), n);
}

int main(int argc, char **argv)
{
    struct ibv_context *context;
    struct ibv_comp_cntr *mine[OPS];
    struct address there;
    struct side s;
    int fd;

    start();
    fd = meet(argc, argv);
    context = open_device();
    make_side(&s, context, IBV_QPT_RC, 8192);
    all_six(&s, mine, IBV_COMP_CNTR_TYPE_WRS);
    there = join_over(fd, &s);
    if (!strcmp(argv[1], "client")) {
        traffic(&s, there.addr, there.rkey);
        reach(mine[0], 4);
        reach(mine[2], 3);
        reach(mine[4], 7);
    } else {
        for (int i = 0; i < 6; i++)
            ZERO(recv_one(&s, (uint64_t)i, 4096, 1000));
        reach(mine[1], 6);
        reach(mine[3], 3);
        reach(mine[5], 7);
    }
    show("requests", mine);
    together(fd);

    /* One that is refused, and what is behind it. */
    if (!strcmp(argv[1], "client")) {
        unsignaled(&s, IBV_WR_RDMA_WRITE, 10, there.addr, there.rkey ^ 0x5500);
        unsignaled(&s, IBV_WR_SEND, 10, 0, 0);
        while (failures(mine[0]) + failures(mine[4]) < 2)
            sched_yield();
    } else {
        while (failures(mine[5]) < 1)
            sched_yield();
    }
    show("and an error", mine);
    together(fd);
    drop_side(&s);
    for (int i = 0; i < OPS; i++)
        ZERO(ibv_destroy_comp_cntr(mine[i]));
    ZERO(ibv_close_device(context));
    return 0;
}
