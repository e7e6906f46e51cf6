/* Completion counters: what they count within a process, what cannot be attached, and when. */
#include "counters.h"

static void one_process(struct ibv_context *context)
{
    struct ibv_comp_cntr *mine[OPS], *theirs[OPS];
    struct side a, b;

    make_side(&a, context, IBV_QPT_RC, 8192);
    make_side(&b, context, IBV_QPT_RC, 8192);
    all_six(&a, mine, IBV_COMP_CNTR_TYPE_WRS);
    all_six(&b, theirs, IBV_COMP_CNTR_TYPE_BYTES);
    join(&a, &b);
    for (int i = 0; i < 6; i++)
        ZERO(recv_one(&b, (uint64_t)i, 4096, 1000));
    traffic(&a, (uintptr_t)b.buffer, b.mr->rkey);
    show("requests", mine);
    show("bytes at the peer", theirs);
    printf("attached too late: %s\n", rc_name(attach(a.qp, mine[0], IBV_QP_ATTACH_COMP_CNTR_OP_SEND)));

    /* The first one fails, the rest is flushed; receives too. */
    for (int i = 0; i < 3; i++)
        ZERO(recv_one(&b, 1, 4096, 1000));
    unsignaled(&a, IBV_WR_RDMA_WRITE, 10, (uintptr_t)b.buffer, b.mr->rkey ^ 0x5500);
    unsignaled(&a, IBV_WR_SEND, 10, 0, 0);
    unsignaled(&a, IBV_WR_SEND, 10, 0, 0);
    show("after an error", mine);
    show("at the peer", theirs);
    printf("destroyed under its QP: %s\n", rc_name(ibv_destroy_comp_cntr(mine[3])));
    drop_side(&a);
    drop_side(&b);
    for (int i = 0; i < OPS; i++) {
        ZERO(ibv_destroy_comp_cntr(mine[i]));
        ZERO(ibv_destroy_comp_cntr(theirs[i]));
    }
}

static void rules(struct ibv_context *context)
{
    struct ibv_comp_cntr_init_attr attr = {.type = 7};
    struct ibv_comp_cntr_caps caps;
    struct ibv_comp_cntr *one, *two, *foreign;
    struct ibv_context *other;
    struct side s, u;
    uint64_t value;

    ZERO(ibv_query_comp_cntr_caps(context, &caps));
    printf("most %" PRIx64 ", operations %x\n", caps.max_value, caps.supported_qp_attach_ops);
    printf("no such type: %s", pointer_name(ibv_create_comp_cntr(context, &attr)));
    attr = (struct ibv_comp_cntr_init_attr){.flags = 1};
    printf(", flags: %s", pointer_name(ibv_create_comp_cntr(context, &attr)));
    attr = (struct ibv_comp_cntr_init_attr){.comp_mask = 1};
    printf(", comp_mask: %s\n", pointer_name(ibv_create_comp_cntr(context, &attr)));

    one = make(context, IBV_COMP_CNTR_TYPE_WRS);
    two = make(context, IBV_COMP_CNTR_TYPE_WRS);
    make_side(&s, context, IBV_QPT_RC, 4096);
    make_side(&u, context, IBV_QPT_UD, 4096);
    printf("nothing: %s", rc_name(attach(s.qp, one, 0)));
    printf(", unknown: %s", rc_name(attach(s.qp, one, 1 << 6)));
    printf(", RDMA of a UD QP: %s\n", rc_name(attach(u.qp, one, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE)));
    other = NEED(ibv_open_device(context->device));
    foreign = make(other, IBV_COMP_CNTR_TYPE_WRS);
    printf("of another context: %s\n", rc_name(attach(s.qp, foreign, IBV_QP_ATTACH_COMP_CNTR_OP_SEND)));
    ZERO(ibv_destroy_comp_cntr(foreign));
    ZERO(ibv_close_device(other));
    ZERO(attach(s.qp, one, IBV_QP_ATTACH_COMP_CNTR_OP_SEND | IBV_QP_ATTACH_COMP_CNTR_OP_RECV));
    printf("taken: %s", rc_name(attach(s.qp, two, IBV_QP_ATTACH_COMP_CNTR_OP_RECV | IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ)));
    printf(", the rest: %s", rc_name(attach(s.qp, two, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ)));
    printf(", another QP: %s\n", rc_name(attach(u.qp, one, IBV_QP_ATTACH_COMP_CNTR_OP_SEND)));

    ZERO(ibv_set_comp_cntr(one, UINT64_MAX - 1));
    ZERO(ibv_inc_comp_cntr(one, 5));
    ZERO(ibv_set_err_comp_cntr(one, 40));
    ZERO(ibv_inc_err_comp_cntr(one, 2));
    ZERO(ibv_read_comp_cntr(one, &value));
    printf("wrapped to %" PRIu64 ", errors %" PRIu64 ", the other still %" PRIu64 "\n", value, failures(one), count(two));
    drop_side(&s);
    printf("one QP is left: %s", rc_name(ibv_destroy_comp_cntr(one)));
    drop_side(&u);
    printf(", and none: %s %s\n", rc_name(ibv_destroy_comp_cntr(one)), rc_name(ibv_destroy_comp_cntr(two)));
}

int main(void)
{
    struct ibv_context *context;

    start();
    context = open_device();
    rules(context);
    one_process(context);
    ZERO(ibv_close_device(context));
    return 0;
}
