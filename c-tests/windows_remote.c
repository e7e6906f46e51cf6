/* Two processes: the server shows its memory by windows, the client uses them and ends them. */
#include "common.h"

#define SIZE 65536
#define ROUNDS 3
#define WINDOW_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* What the server tells: a key, where it begins, and how long it is. */
struct shown {
    uint64_t addr;
    uint32_t rkey, length;
};

static void client(int fd, struct ibv_context *context, int last)
{
    struct side s;
    struct shown window;

    make_side(&s, context, IBV_QPT_RC, SIZE);
    join_over(fd, &s);
    for (int round = 0; round < ROUNDS; round++) {
        hear(fd, &window, sizeof(window));
        fill(s.buffer, window.length, (unsigned)round);
        ZERO(rdma_one(&s, 1, IBV_WR_RDMA_WRITE, 0, window.length, window.addr, window.rkey));
        show_next("write", s.cq);
        memset(s.buffer, 0, SIZE);
        ZERO(rdma_one(&s, 2, IBV_WR_RDMA_READ, 0, window.length, window.addr, window.rkey));
        show_next("read", s.cq);
        printf("  data %s\n", yes(filled(s.buffer, window.length, (unsigned)round)));
        if (round < ROUNDS - 1) {
            struct ibv_send_wr wr = {.wr_id = 3, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;

            wr.invalidate_rkey = window.rkey;
            ZERO(ibv_post_send(s.qp, &wr, &bad));
            show_next("send with invalidate", s.cq);
        }
        together(fd);
    }
    together(fd);
    if (last == 0) {
        ZERO(rdma_one(&s, 4, IBV_WR_RDMA_WRITE, 0, 8, window.addr, window.rkey));
    } else if (last == 1) {
        ZERO(rdma_one(&s, 4, IBV_WR_RDMA_READ, 0, 8, window.addr, window.rkey));
    } else {
        struct ibv_send_wr wr = {.wr_id = 4, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;

        wr.invalidate_rkey = window.rkey;
        ZERO(ibv_post_send(s.qp, &wr, &bad));
    }
    show_next(last == 2 ? "invalidated twice" : "dead rkey", s.cq);
    together(fd);
    drop_side(&s);
}

static void server(int fd, struct ibv_context *context, int last)
{
    struct side s;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    struct ibv_wc wc;

    make_side(&s, context, IBV_QPT_RC, SIZE);
    mr = NEED(ibv_reg_mr(s.pd, s.buffer, SIZE, ALL_ACCESS | IBV_ACCESS_MW_BIND));
    mw = NEED(ibv_alloc_mw(s.pd, IBV_MW_TYPE_2));
    ZERO(to_init(s.qp));
    for (unsigned i = 0; i < ROUNDS; i++)
        ZERO(recv_one(&s, i, SIZE - 64, 64));
    join_over(fd, &s);
    for (int round = 0; round < ROUNDS; round++) {
        struct ibv_send_wr wr = {.wr_id = 10, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
        int zero_based = round == 1;
        struct shown window = {(uintptr_t)s.buffer + 1000, ibv_inc_rkey(mw->rkey), 30000};

        wr.bind_mw.mw = mw;
        wr.bind_mw.rkey = window.rkey;
        wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
            mr, window.addr, window.length, WINDOW_ACCESS | (zero_based ? IBV_ACCESS_ZERO_BASED : 0)};
        if (zero_based)
            window.addr = 0;
        ZERO(ibv_post_send(s.qp, &wr, &bad));
        wc = next_wc(s.cq);
        if (wc.status != IBV_WC_SUCCESS)
            die("bind: %s", ibv_wc_status_str(wc.status));
        printf("bound: %s\n", ibv_wc_status_str(wc.status));
        tell(fd, &window, sizeof(window));
        if (round < ROUNDS - 1) {
            wc = next_wc(s.cq);
            printf("receive %s, with invalidate %s, that rkey %s\n", ibv_wc_status_str(wc.status),
                   yes(!!(wc.wc_flags & IBV_WC_WITH_INV)), yes(wc.invalidated_rkey == window.rkey));
        }
        together(fd);
        printf("  data %s\n", yes(filled(s.buffer + 1000, window.length, (unsigned)round)));
    }
    printf("deregister under it: %s\n", rc_name(ibv_dereg_mr(mr)));
    {
        struct ibv_send_wr wr = {.wr_id = 11, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED}, *bad;

        wr.invalidate_rkey = mw->rkey;
        ZERO(ibv_post_send(s.qp, &wr, &bad));
        wc = next_wc(s.cq);
        printf("invalidated: %s\n", ibv_wc_status_str(wc.status));
    }
    together(fd);
    wc = next_wc(s.cq);
    printf("then: %s\n", ibv_wc_status_str(wc.status));
    together(fd);
    printf("state %s, deregister %s, ", state_name(state_of(s.qp)), rc_name(ibv_dereg_mr(mr)));
    printf("deallocate %s\n", rc_name(ibv_dealloc_mw(mw)));
    drop_side(&s);
    (void)last;
}

int main(int argc, char **argv)
{
    struct ibv_context *context;
    int fd;

    start();
    context = open_device();
    fd = meet(argc, argv);
    for (int last = 0; last < 3; last++)
        (strcmp(argv[1], "server") ? client : server)(fd, context, last);
    close(fd);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
