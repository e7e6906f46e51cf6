/* Keys, bounds, permissions and protection domains: who is told what, and that memory stays as it was. */
#include "common.h"

#define SIZE 8192

struct scene {
    struct side a, b;
    struct ibv_mr *read_only, *other_pd;
    struct ibv_pd *pd;
};

static void set_up(struct scene *s, struct ibv_context *context)
{
    make_side(&s->a, context, IBV_QPT_RC, SIZE);
    make_side(&s->b, context, IBV_QPT_RC, SIZE);
    s->read_only = NEED(ibv_reg_mr(s->b.pd, s->b.buffer, SIZE, 0));
    s->pd = NEED(ibv_alloc_pd(context));
    s->other_pd = NEED(ibv_reg_mr(s->pd, s->b.buffer, SIZE, ALL_ACCESS));
    memset(s->a.buffer, 0xaa, SIZE);
    memset(s->b.buffer, 0xbb, SIZE);
    join(&s->a, &s->b);
}

static void tear_down(struct scene *s, int wait_for_event)
{
    struct pollfd fd = {.fd = s->a.context->async_fd, .events = POLLIN};
    int touched = 0, seen = 0;

    for (int i = 0; i < SIZE; i++)
        touched |= s->b.buffer[i] != 0xbb;
    printf("  states %s %s, memory touched %s", state_name(state_of(s->a.qp)), state_name(state_of(s->b.qp)), yes(touched));
    while (poll(&fd, 1, wait_for_event && !seen ? 1000 : 0) == 1) {
        struct ibv_async_event event;

        ZERO(ibv_get_async_event(s->a.context, &event));
        ibv_ack_async_event(&event);
        if (wait_for_event && event.element.qp == s->b.qp) {
            printf(", peer: %s", ibv_event_type_str(event.event_type));
            seen = 1;
        }
    }
    printf("\n");
    ZERO(ibv_dereg_mr(s->read_only));
    ZERO(ibv_dereg_mr(s->other_pd));
    ZERO(ibv_dealloc_pd(s->pd));
    drop_side(&s->a);
    drop_side(&s->b);
}

static int atomic(struct side *s, uint64_t remote, uint32_t rkey, uint32_t length)
{
    struct ibv_sge sge = sge_of(s, 0, length);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    wr.wr.atomic.remote_addr = remote;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = 1;
    return ibv_post_send(s->qp, &wr, &bad);
}

static void remote(struct ibv_context *context)
{
    static const char *const what[] = {"bad rkey", "beyond the end", "before the start", "length past the end",
                                       "key without permission", "key of another PD", "deregistered key"};
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (int op = 0; op < 3; op++) {
        for (int i = 0; i < 7; i++) {
            struct scene s;
            uint64_t at;
            uint32_t key, length = op == 2 ? 8 : 64;

            set_up(&s, context);
            at = (uintptr_t)s.b.buffer;
            key = s.b.mr->rkey;
            if (i == 0)
                key ^= 0x5a5a00;
            if (i == 1)
                at += SIZE;
            if (i == 2)
                at -= 8;
            if (i == 3)
                at += SIZE - (op == 2 ? 0 : 63);
            if (i == 4)
                key = s.read_only->rkey;
            if (i == 5)
                key = s.other_pd->rkey;
            if (i == 6) {
                struct ibv_mr *gone = NEED(ibv_reg_mr(s.b.pd, s.b.buffer, SIZE, ALL_ACCESS));

                key = gone->rkey;
                ZERO(ibv_dereg_mr(gone));
            }
            ZERO(op == 2 ? atomic(&s.a, at, key, length) : rdma_one(&s.a, 1, opcodes[op], 0, length, at, key));
            printf("%s, ", op == 0 ? "write" : op == 1 ? "read" : "atomic");
            show_next(what[i], s.a.cq);
            tear_down(&s, 1);
        }
    }
}

/* The QP's own access flags count as well as the region's. */
static void qp_flags(struct ibv_context *context)
{
    struct scene s;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .qp_access_flags = IBV_ACCESS_REMOTE_READ};

    set_up(&s, context);
    ZERO(ibv_modify_qp(s.b.qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    ZERO(rdma_one(&s.a, 1, IBV_WR_RDMA_READ, 0, 64, (uintptr_t)s.b.buffer, s.b.mr->rkey));
    show_next("read from a QP that allows reads", s.a.cq);
    ZERO(rdma_one(&s.a, 1, IBV_WR_RDMA_WRITE, 0, 64, (uintptr_t)s.b.buffer, s.b.mr->rkey));
    show_next("write to it", s.a.cq);
    tear_down(&s, 1);
}

static void local(struct ibv_context *context)
{
    struct scene s;
    struct ibv_mr *foreign;
    struct ibv_sge sge;
    struct ibv_send_wr wr = {
        .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    struct ibv_recv_wr rwr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *rbad;

    for (int i = 0; i < 4; i++) {
        static const char *const what[] = {"lkey of another PD", "bad lkey", "past the end", "receive into read-only"};

        set_up(&s, context);
        foreign = NEED(ibv_reg_mr(s.pd, s.a.buffer, SIZE, ALL_ACCESS));
        if (i < 3)
            ZERO(recv_one(&s.b, 2, 0, 64));
        sge = sge_of(&s.a, 0, 64);
        if (i == 0)
            sge.lkey = foreign->lkey;
        if (i == 1)
            sge.lkey ^= 0x5a5a00;
        if (i == 2)
            sge.addr += SIZE - 63;
        if (i == 3) {
            struct ibv_sge keep = sge;

            sge = sge_of(&s.b, 0, 64);
            sge.lkey = s.read_only->lkey;
            ZERO(ibv_post_recv(s.b.qp, &rwr, &rbad));
            sge = keep;
        }
        ZERO(ibv_post_send(s.a.qp, &wr, &bad));
        show_next(what[i], s.a.cq);
        if (i == 3)
            show_next("  recv", s.b.cq);
        ZERO(ibv_dereg_mr(foreign));
        tear_down(&s, 0);
    }
}

static void odd_atomics(struct ibv_context *context)
{
    struct scene s;

    set_up(&s, context);
    ZERO(atomic(&s.a, (uintptr_t)s.b.buffer + 4, s.b.mr->rkey, 8));
    show_next("atomic, not aligned", s.a.cq);
    tear_down(&s, 1);
    set_up(&s, context);
    if (atomic(&s.a, (uintptr_t)s.b.buffer, s.b.mr->rkey, 4) == 0) {
        struct ibv_wc wc = next_wc(s.a.cq);

        printf("atomic into 4 bytes: fails %s\n", yes(wc.status != IBV_WC_SUCCESS));
    } else {
        printf("atomic into 4 bytes: fails yes\n");
    }
    drop_side(&s.a);
    ZERO(ibv_dereg_mr(s.read_only));
    ZERO(ibv_dereg_mr(s.other_pd));
    ZERO(ibv_dealloc_pd(s.pd));
    drop_side(&s.b);
}

/* Memory that the application unmapped: a remote access error, not a crash. */
static void unmapped(struct ibv_context *context)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (int op = 0; op < 2; op++) {
        struct side a, b;
        unsigned char *hole = pages(8192);
        struct ibv_mr *mr;

        make_side(&a, context, IBV_QPT_RC, SIZE);
        make_side(&b, context, IBV_QPT_RC, SIZE);
        join(&a, &b);
        mr = NEED(ibv_reg_mr(b.pd, hole, 8192, ALL_ACCESS));
        munmap(hole, 8192);
        ZERO(rdma_one(&a, 1, opcodes[op], 0, 4096, (uintptr_t)hole, mr->rkey));
        show_next(op ? "read of unmapped memory" : "write to unmapped memory", a.cq);
        ZERO(ibv_dereg_mr(mr));
        drop_side(&a);
        drop_side(&b);
    }
}

/* The same at the end that posts: its own error, of which the peer learns nothing. */
static void unmapped_here(struct ibv_context *context)
{
    static const char *const what[] = {"send from unmapped memory", "write from unmapped memory", "read into unmapped memory"};
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (int i = 0; i < 3; i++) {
        struct scene s;
        unsigned char *hole = pages(8192);
        struct ibv_wc none;

        set_up(&s, context);
        struct ibv_mr *mr = NEED(ibv_reg_mr(s.a.pd, hole, 8192, ALL_ACCESS));
        struct ibv_sge sge = {(uintptr_t)hole, 4096, mr->lkey};
        struct ibv_send_wr wr = {
            .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcodes[i], .send_flags = IBV_SEND_SIGNALED};
        struct ibv_send_wr *bad;

        ZERO(recv_one(&s.b, 2, 0, SIZE));
        munmap(hole, 8192);
        wr.wr.rdma.remote_addr = (uintptr_t)s.b.buffer;
        wr.wr.rdma.rkey = s.b.mr->rkey;
        ZERO(ibv_post_send(s.a.qp, &wr, &bad));
        show_next(what[i], s.a.cq);
        printf("  receive taken %s\n", yes(ibv_poll_cq(s.b.cq, 1, &none) != 0));
        ZERO(ibv_dereg_mr(mr));
        tear_down(&s, 0);
    }
}

int main(void)
{
    struct ibv_context *context;

    start();
    context = open_device();
    remote(context);
    qp_flags(context);
    local(context);
    odd_atomics(context);
    unmapped(context);
    unmapped_here(context);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
