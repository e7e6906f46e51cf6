/* Two processes: ATOMIC WRITE and FLUSH, and what they are refused. */
#include "common.h"

#define SIZE 8192
#define BOTH (IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT)

struct round {
    const char *name;
    int qp_flags, mr_flags;
    uint8_t types, level;
    size_t offset, length;
    /* ATOMIC WRITE instead, to offset. */
    int writes;
};

static const struct round rounds[] = {
    {"global", BOTH, BOTH, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE, 0, SIZE, 0},
    {"persistent", BOTH, BOTH, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, 100, 1000, 0},
    {"both", BOTH, BOTH, IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, 0, 1, 0},
    {"whole region", BOTH, BOTH, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR, 0, 0, 0},
    {"past the end", BOTH, BOTH, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE, 1, SIZE, 0},
    {"region without permission", BOTH, IBV_ACCESS_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, 0, 8, 0},
    {"QP without permission", IBV_ACCESS_FLUSH_GLOBAL, BOTH, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, 0, 8, 0},
    {"no type", BOTH, BOTH, 0, IBV_FLUSH_RANGE, 0, 8, 0},
    {"atomic write", 0, 0, 0, 0, 16, 0, 1},
    {"atomic write, not aligned", 0, 0, 0, 0, 12, 0, 1},
    {"atomic write, past the end", 0, 0, 0, 0, SIZE, 0, 1},
};

static void make_qp_again(struct side *s)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = s->pd,
        .send_ops_flags = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_WRITE,
    };

    ZERO(ibv_destroy_qp(s->qp));
    s->qp = NEED(ibv_create_qp_ex(s->context, &init));
}

static void client(int fd, struct ibv_context *context, const struct round *r)
{
    struct side s;
    struct address peer;
    struct ibv_qp_ex *ex;
    struct ibv_wc wc;

    make_side(&s, context, IBV_QPT_RC, SIZE);
    make_qp_again(&s);
    peer = join_over(fd, &s);
    hear(fd, &peer.rkey, sizeof(peer.rkey));
    fill(s.buffer, SIZE, 1);
    ex = ibv_qp_to_qp_ex(s.qp);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ibv_wr_rdma_write(ex, peer.rkey, peer.addr + 1024);
    ibv_wr_set_sge(ex, s.mr->lkey, (uintptr_t)s.buffer, 4096);
    ex->wr_id = 2;
    ex->wr_flags = IBV_SEND_SIGNALED;
    if (r->writes)
        ibv_wr_atomic_write(ex, peer.rkey, peer.addr + r->offset, "8 bytes");
    else
        ibv_wr_flush(ex, peer.rkey, peer.addr + r->offset, r->length, r->types, r->level);
    ZERO(ibv_wr_complete(ex));
    wc = next_wc(s.cq);
    printf("%s: wr_id %" PRIu64 ", %s, opcode right %s\n", r->name, wc.wr_id, ibv_wc_status_str(wc.status),
           yes(wc.status || wc.opcode == (r->writes ? IBV_WC_ATOMIC_WRITE : IBV_WC_FLUSH)));
    together(fd);
    together(fd);
    drop_side(&s);
}

static void server(int fd, struct ibv_context *context, const struct round *r)
{
    struct side s;
    struct ibv_mr *mr;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | r->qp_flags};

    make_side(&s, context, IBV_QPT_RC, SIZE);
    mr = NEED(ibv_reg_mr(s.pd, s.buffer, SIZE, ALL_ACCESS | r->mr_flags));
    join_over(fd, &s);
    ZERO(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    tell(fd, &mr->rkey, sizeof(mr->rkey));
    together(fd);
    printf("%s: what came before is here %s", r->name, yes(filled(s.buffer + 1024, 4096, 1)));
    if (r->writes)
        printf(", and the bytes %s", yes(r->offset + 8 <= SIZE && !memcmp(s.buffer + r->offset, "8 bytes", 8)));
    printf(", state %s\n", state_name(state_of(s.qp)));
    together(fd);
    ZERO(ibv_dereg_mr(mr));
    drop_side(&s);
}

int main(int argc, char **argv)
{
    struct ibv_context *context;
    int fd;

    start();
    context = open_device();
    fd = meet(argc, argv);
    for (unsigned i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++)
        (strcmp(argv[1], "server") ? client : server)(fd, context, &rounds[i]);
    close(fd);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
