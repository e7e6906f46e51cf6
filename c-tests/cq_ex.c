/* The extended CQ and the ibv_wr_* calls. */
#include "common.h"

struct pair {
    struct side a, b;
    struct ibv_cq_ex *cq;
    struct ibv_qp_ex *qp;
};

static void make(struct pair *p, struct ibv_context *context)
{
    struct ibv_cq_init_attr_ex cq = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    struct ibv_qp_init_attr_ex qp = {
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
                          IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    };

    make_side(&p->a, context, IBV_QPT_RC, 65536);
    make_side(&p->b, context, IBV_QPT_RC, 65536);
    printf("plain QP as an extended one: %s\n", yes(ibv_qp_to_qp_ex(p->b.qp) != NULL));
    ZERO(ibv_destroy_qp(p->a.qp));
    ZERO(ibv_destroy_cq(p->a.cq));
    p->cq = NEED(ibv_create_cq_ex(context, &cq));
    p->a.cq = ibv_cq_ex_to_cq(p->cq);
    qp.send_cq = qp.recv_cq = p->a.cq;
    qp.pd = p->a.pd;
    p->a.qp = NEED(ibv_create_qp_ex(context, &qp));
    p->qp = NEED(ibv_qp_to_qp_ex(p->a.qp));
    join(&p->a, &p->b);
}

/* Takes n completions in one batch, waiting for each. */
static void take(struct pair *p, int n)
{
    struct ibv_poll_cq_attr attr = {0};
    uint64_t end = now_ms() + 10000;
    int rc;

    while ((rc = ibv_start_poll(p->cq, &attr)) == ENOENT && now_ms() < end)
        ;
    if (rc)
        die("start_poll %d", rc);
    for (int i = 0; i < n; i++) {
        while (i > 0 && (rc = ibv_next_poll(p->cq)) == ENOENT && now_ms() < end)
            ;
        if (rc)
            die("next_poll %d", rc);
        printf("  wr_id %" PRIu64 ", %s, %s, of this QP %s", p->cq->wr_id, ibv_wc_status_str(p->cq->status),
               opcode_name(ibv_wc_read_opcode(p->cq)), yes(ibv_wc_read_qp_num(p->cq) == p->a.qp->qp_num));
        if (ibv_wc_read_opcode(p->cq) & IBV_WC_RECV)
            printf(", %u bytes", ibv_wc_read_byte_len(p->cq));
        printf(", time %s\n", yes(ibv_wc_read_completion_ts(p->cq) != 0));
    }
    ibv_end_poll(p->cq);
}

static void requests(struct pair *p)
{
    struct ibv_sge list[2] = {sge_of(&p->a, 0, 10), sge_of(&p->a, 100, 20)};
    uint64_t remote = (uintptr_t)p->b.buffer;
    uint32_t rkey = p->b.mr->rkey, lkey = p->a.mr->lkey;
    char text[32] = "inline";

    fill(p->a.buffer, 4096, 5);
    for (unsigned i = 0; i < 4; i++)
        ZERO(recv_one(&p->b, i, 8192 + i * 256, 256));

    ibv_wr_start(p->qp);
    p->qp->wr_id = 1;
    p->qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(p->qp);
    ibv_wr_set_sge_list(p->qp, 2, list);
    p->qp->wr_id = 2;
    ibv_wr_send_imm(p->qp, htonl(0x11223344));
    ibv_wr_set_inline_data(p->qp, text, sizeof(text));
    p->qp->wr_id = 3;
    ibv_wr_rdma_write(p->qp, rkey, remote);
    ibv_wr_set_sge(p->qp, lkey, (uintptr_t)p->a.buffer, 4096);
    p->qp->wr_id = 4;
    ibv_wr_rdma_write_imm(p->qp, rkey, remote + 4096, htonl(5));
    ibv_wr_set_sge(p->qp, lkey, (uintptr_t)p->a.buffer, 8);
    p->qp->wr_id = 5;
    ibv_wr_rdma_read(p->qp, rkey, remote);
    ibv_wr_set_sge(p->qp, lkey, (uintptr_t)p->a.buffer + 16384, 4096);
    printf("complete %s\n", rc_name(ibv_wr_complete(p->qp)));
    memset(text, 'x', sizeof(text));
    take(p, 5);
    for (int i = 0; i < 3; i++)
        show_next("  peer", p->b.cq);
    printf("gathered %s, inline %s, written %s, read %s\n",
           yes(!memcmp(p->b.buffer + 8192, p->a.buffer, 10) && !memcmp(p->b.buffer + 8202, p->a.buffer + 100, 20)),
           yes(!strcmp((char *)p->b.buffer + 8192 + 256, "inline")), yes(filled(p->b.buffer, 4096, 5)),
           yes(filled(p->a.buffer + 16384, 4096, 5)));
}

static void atomics(struct pair *p)
{
    uint64_t *target = (uint64_t *)(void *)(p->b.buffer + 1024), *old = (uint64_t *)(void *)p->a.buffer;

    *target = 40;
    ibv_wr_start(p->qp);
    p->qp->wr_id = 6;
    p->qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_fetch_add(p->qp, p->b.mr->rkey, (uintptr_t)target, 2);
    ibv_wr_set_sge(p->qp, p->a.mr->lkey, (uintptr_t)&old[0], 8);
    p->qp->wr_id = 7;
    ibv_wr_atomic_cmp_swp(p->qp, p->b.mr->rkey, (uintptr_t)target, 42, 7);
    ibv_wr_set_sge(p->qp, p->a.mr->lkey, (uintptr_t)&old[1], 8);
    ZERO(ibv_wr_complete(p->qp));
    take(p, 2);
    printf("atomics: %" PRIu64 " %" PRIu64 " then %" PRIu64 "\n", old[0], old[1], *target);
}

static void refused(struct pair *p)
{
    struct ibv_poll_cq_attr attr = {0}, unknown = {.comp_mask = 1};
    struct ibv_cq_init_attr_ex cq = {.cqe = 1, .wc_flags = 1ull << 40};

    ibv_wr_start(p->qp);
    p->qp->wr_id = 8;
    ibv_wr_send(p->qp);
    ibv_wr_set_sge(p->qp, p->a.mr->lkey, (uintptr_t)p->a.buffer, 8);
    ibv_wr_abort(p->qp);
    printf("aborted: CQ %s\n", rc_name(ibv_start_poll(p->cq, &attr)));

    printf("unknown poll attribute: %s\n", rc_name(ibv_start_poll(p->cq, &unknown)));
    printf("unknown wc_flags: %s\n", pointer_name(ibv_create_cq_ex(p->a.context, &cq)));
}

/* ENOENT from ibv_next_poll ends a batch without eating the completion that comes next. */
static void batches(struct ibv_context *context)
{
    struct ibv_cq_init_attr_ex cq = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_poll_cq_attr attr = {0};
    struct pair p;
    int counted = 0;

    memset(&p, 0, sizeof(p));
    make_side(&p.a, context, IBV_QPT_RC, 4096);
    make_side(&p.b, context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(p.a.qp));
    ZERO(ibv_destroy_cq(p.a.cq));
    p.cq = NEED(ibv_create_cq_ex(context, &cq));
    p.a.cq = ibv_cq_ex_to_cq(p.cq);
    p.a.qp = make_qp(&p.a, IBV_QPT_RC, NULL);
    join(&p.a, &p.b);
    for (unsigned i = 0; i < 64; i++) {
        uint64_t end = now_ms() + 10000;

        ZERO(recv_one(&p.b, i, 0, 64));
        ZERO(send_one(&p.a, i, 0, 8, IBV_SEND_SIGNALED));
        while (ibv_start_poll(p.cq, &attr) == ENOENT)
            if (now_ms() > end)
                die("a completion was lost after %d", counted);
        counted += p.cq->wr_id == i;
        if (ibv_next_poll(p.cq) != ENOENT)
            die("too many completions");
        ibv_end_poll(p.cq);
        next_wc(p.b.cq);
    }
    printf("64 batches of one: %d\n", counted);
    drop_side(&p.a);
    drop_side(&p.b);
}

int main(void)
{
    struct ibv_context *context;
    struct pair p;

    start();
    context = open_device();
    make(&p, context);
    requests(&p);
    atomics(&p);
    refused(&p);
    drop_side(&p.a);
    drop_side(&p.b);
    batches(context);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
