/* Two processes: what a requester is told about keys, bounds and permissions of another process, and what that one sees. */
#include "common.h"

#define SIZE 65536
#define CASES 10
#define OPERATIONS 3

enum { SEND_TOO_LONG = CASES, NO_MORE };

static const char *const what[CASES + 1] = {
    "bad rkey",        "beyond the end",   "before the start",       "length past the end", "key without permission",
    "key of another PD", "deregistered key", "QP without permission", "memory unmapped",     "unaligned, or no key at all",
    "send longer than the receive",
};

/* The keys of the server for one round. */
struct keys {
    uint64_t addr, hole;
    uint32_t good, read_only, other_pd, gone, hole_key;
};

static int operate(struct side *s, int op, uint64_t at, uint32_t key)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_sge sge = sge_of(s, 0, op == 2 ? 8 : 4096);
    struct ibv_send_wr wr = {
        .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcodes[op], .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    if (op == 2) {
        wr.wr.atomic.remote_addr = at;
        wr.wr.atomic.rkey = key;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = at;
        wr.wr.rdma.rkey = key;
    }
    return ibv_post_send(s->qp, &wr, &bad);
}

static void client_round(int fd, struct ibv_context *context, int op, int i)
{
    struct side s;
    struct keys k;
    uint64_t at;
    uint32_t key;

    make_side(&s, context, IBV_QPT_RC, SIZE);
    join_over(fd, &s);
    hear(fd, &k, sizeof(k));
    at = k.addr;
    key = k.good;
    switch (i) {
    case 0:
        key ^= 0x5a5a00;
        break;
    case 1:
        at += SIZE;
        break;
    case 2:
        at -= 8;
        break;
    case 3:
        at += SIZE - 8 * (op != 2);
        break;
    case 4:
        key = k.read_only;
        break;
    case 5:
        key = k.other_pd;
        break;
    case 6:
        key = k.gone;
        break;
    case 8:
        at = k.hole;
        key = k.hole_key;
        break;
    case 9:
        at += op == 2 ? 4 : 0;
        key = op == 2 ? key : 0;
        break;
    }
    memset(s.buffer, 0xaa, SIZE);
    if (i == SEND_TOO_LONG)
        ZERO(send_one(&s, 1, 0, 5000, IBV_SEND_SIGNALED));
    else
        ZERO(operate(&s, op, at, key));
    /* Without a fence a SEND may overtake what a READ before it reads. */
    ZERO(send_one(&s, 2, 0, 1, op == 0 ? 0 : IBV_SEND_FENCE));
    printf("%s, ", i == SEND_TOO_LONG ? "send" : op == 0 ? "write" : op == 1 ? "read" : "atomic");
    show_next(what[i], s.cq);
    show_next("  behind it", s.cq);
    printf("  state %s\n", state_name(state_of(s.qp)));
    together(fd);
    together(fd);
    drop_side(&s);
}

static void server_round(int fd, struct ibv_context *context, int op, int i)
{
    struct side s;
    struct keys k;
    struct ibv_pd *pd = NEED(ibv_alloc_pd(context));
    struct ibv_mr *read_only, *other, *gone, *hole;
    unsigned char *mapped = pages(8192);
    struct pollfd p = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_wc wc;
    int touched = 0, seen = 0;

    make_side(&s, context, IBV_QPT_RC, SIZE);
    memset(s.buffer, 0xbb, SIZE);
    read_only = NEED(ibv_reg_mr(s.pd, s.buffer, SIZE, IBV_ACCESS_LOCAL_WRITE));
    other = NEED(ibv_reg_mr(pd, s.buffer, SIZE, ALL_ACCESS));
    gone = NEED(ibv_reg_mr(s.pd, s.buffer, SIZE, ALL_ACCESS));
    hole = NEED(ibv_reg_mr(s.pd, mapped, 8192, ALL_ACCESS));
    k = (struct keys){(uintptr_t)s.buffer, (uintptr_t)mapped, s.mr->rkey, read_only->rkey, other->rkey, gone->rkey, hole->rkey};
    munmap(mapped, 8192);
    ZERO(ibv_dereg_mr(gone));
    ZERO(to_init(s.qp));
    ZERO(recv_one(&s, 100, 0, 4096));
    join_over(fd, &s);
    if (i == 7) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};

        ZERO(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    }
    tell(fd, &k, sizeof(k));
    together(fd);
    wc = next_wc(s.cq);
    for (int j = 0; j < SIZE; j++)
        touched |= s.buffer[j] != 0xbb;
    printf("%s, %s: receive %s, state %s", i == SEND_TOO_LONG ? "send" : op == 0 ? "write" : op == 1 ? "read" : "atomic",
           what[i], ibv_wc_status_str(wc.status), state_name(state_of(s.qp)));
    if (i != SEND_TOO_LONG)
        printf(", touched %s", yes(touched));
    while (poll(&p, 1, seen ? 0 : 1000) == 1) {
        struct ibv_async_event event;

        ZERO(ibv_get_async_event(context, &event));
        ibv_ack_async_event(&event);
        seen = 1;
        printf(", %s%s", event.element.qp == s.qp ? "" : "stray: ", ibv_event_type_str(event.event_type));
    }
    printf("\n");
    together(fd);
    ZERO(ibv_dereg_mr(hole));
    ZERO(ibv_dereg_mr(other));
    ZERO(ibv_dereg_mr(read_only));
    ZERO(ibv_dealloc_pd(pd));
    drop_side(&s);
}

int main(int argc, char **argv)
{
    struct ibv_context *context;
    int fd;

    start();
    context = open_device();
    fd = meet(argc, argv);
    for (int op = 0; op < OPERATIONS; op++)
        for (int i = 0; i < NO_MORE; i++)
            if (op == 0 || i != SEND_TOO_LONG)
                (strcmp(argv[1], "server") ? client_round : server_round)(fd, context, op, i);
    close(fd);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
