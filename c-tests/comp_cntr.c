/* Completion counters: what they count within a process and from another one, what cannot be attached, and when. */
#include "partners.h"

#define OPS 6

static const char *const names[OPS] = {"send", "recv", "read", "remote read", "write", "remote write"};

static struct ibv_comp_cntr *make(struct ibv_context *context, enum ibv_comp_cntr_type type)
{
    struct ibv_comp_cntr_init_attr attr = {.type = type};

    return NEED(ibv_create_comp_cntr(context, &attr));
}

static int attach(struct ibv_qp *qp, struct ibv_comp_cntr *counter, uint32_t ops)
{
    struct ibv_qp_attach_comp_cntr_attr attr = {.op_mask = ops};

    return ibv_qp_attach_comp_cntr(qp, counter, &attr);
}

static uint64_t count(struct ibv_comp_cntr *counter)
{
    uint64_t value;

    ZERO(ibv_read_comp_cntr(counter, &value));
    return value;
}

static uint64_t failures(struct ibv_comp_cntr *counter)
{
    uint64_t value;

    ZERO(ibv_read_err_comp_cntr(counter, &value));
    return value;
}

static void show(const char *what, struct ibv_comp_cntr *const *counters)
{
    printf("%s:", what);
    for (int i = 0; i < OPS; i++)
        printf(" %s %" PRIu64 "/%" PRIu64, names[i], count(counters[i]), failures(counters[i]));
    printf("\n");
}

static void all_six(struct side *s, struct ibv_comp_cntr **counters, enum ibv_comp_cntr_type type)
{
    for (int i = 0; i < OPS; i++) {
        counters[i] = make(s->context, type);
        ZERO(attach(s->qp, counters[i], 1u << i));
    }
}

/* Waits until so many operations were counted, by nothing but reading. */
static void reach(struct ibv_comp_cntr *counter, uint64_t n)
{
    uint64_t end = now_ms() + 10000;

    while (count(counter) < n)
        if (now_ms() > end)
            die("%" PRIu64 " of %" PRIu64, count(counter), n);
}

static void unsignaled(struct side *s, enum ibv_wr_opcode opcode, uint32_t length, uint64_t remote, uint32_t rkey)
{
    struct ibv_sge sge = sge_of(s, 0, length);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    struct ibv_send_wr *bad;

    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    ZERO(ibv_post_send(s->qp, &wr, &bad));
}

/* What both tests do: 4 SENDs, 3 READs, 5 WRITEs, 2 WRITEs with immediate. */
static void traffic(struct side *s, uint64_t remote, uint32_t rkey)
{
    for (int i = 0; i < 4; i++)
        unsignaled(s, IBV_WR_SEND, 100, 0, 0);
    for (int i = 0; i < 3; i++)
        unsignaled(s, IBV_WR_RDMA_READ, 1000, remote, rkey);
    for (int i = 0; i < 5; i++)
        unsignaled(s, IBV_WR_RDMA_WRITE, 10, remote, rkey);
    for (int i = 0; i < 2; i++)
        unsignaled(s, IBV_WR_RDMA_WRITE_WITH_IMM, 20, remote, rkey);
}

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
    struct ibv_comp_cntr *one, *two;
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

static void as_partner(int fd)
{
    struct ibv_context *context = open_device();
    struct ibv_comp_cntr *mine[OPS];
    struct address there;
    struct side s;

    make_side(&s, context, IBV_QPT_RC, 8192);
    all_six(&s, mine, IBV_COMP_CNTR_TYPE_WRS);
    there = join_over(fd, &s);
    traffic(&s, there.addr, there.rkey);
    reach(mine[0], 4);
    reach(mine[2], 3);
    reach(mine[4], 7);
    together(fd);
    drop_side(&s);
    ZERO(ibv_close_device(context));
}

static void two_processes(struct ibv_context *context)
{
    struct partner partner = spawn_partner("comp_cntr", -1);
    struct ibv_comp_cntr *mine[OPS];
    struct side s;
    int status;

    make_side(&s, context, IBV_QPT_RC, 8192);
    all_six(&s, mine, IBV_COMP_CNTR_TYPE_WRS);
    join_over(partner.socket, &s);
    for (int i = 0; i < 6; i++)
        ZERO(recv_one(&s, (uint64_t)i, 4096, 1000));
    reach(mine[1], 6);
    reach(mine[3], 3);
    reach(mine[5], 7);
    show("of another process", mine);
    together(partner.socket);
    if (waitpid(partner.pid, &status, 0) != partner.pid || status)
        die("the partner: %d", status);
    drop_side(&s);
    for (int i = 0; i < OPS; i++)
        ZERO(ibv_destroy_comp_cntr(mine[i]));
}

int main(int argc, char **argv)
{
    struct ibv_context *context;

    start();
    if (argc == 3) {
        as_partner(atoi(argv[1]));
        return 0;
    }
    context = open_device();
    rules(context);
    one_process(context);
    two_processes(context);
    ZERO(ibv_close_device(context));
    return 0;
}
