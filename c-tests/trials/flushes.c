/* flushes: RDMA WRITE, FLUSH and ATOMIC WRITE in turns between two QPs of a device, with flushed ranges below and above the path
 * MTU. Each must complete, in order, and leave its connection as it was: what comes later must arrive too. */
#include "../common.h"

#define SIZE (256u << 10)

static struct ibv_qp *extended(struct side *s)
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

    return ibv_create_qp_ex(s->context, &init);
}

/* Asks for one completion with each request, and looks that they come in order. */
static void round_of(struct side *from, struct side *to, uint32_t rkey, uint32_t length, uint8_t level)
{
    static const enum ibv_wc_opcode due[] = {IBV_WC_RDMA_WRITE, IBV_WC_FLUSH, IBV_WC_ATOMIC_WRITE, IBV_WC_RDMA_WRITE};
    struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(from->qp));
    uint64_t peer = (uintptr_t)to->buffer;
    char eight[9];

    snprintf(eight, sizeof(eight), "%u:%06u", level, length % 1000000);
    fill(from->buffer, SIZE, length + level);
    memset(to->buffer, 0, SIZE);
    ibv_wr_start(ex);
    for (unsigned i = 0; i < 4; i++) {
        ex->wr_id = i;
        ex->wr_flags = IBV_SEND_SIGNALED;
        if (i == 1) {
            ibv_wr_flush(ex, rkey, peer, length, IBV_FLUSH_GLOBAL, level);
        } else if (i == 2) {
            ibv_wr_atomic_write(ex, rkey, peer + SIZE - 8, eight);
        } else {
            ibv_wr_rdma_write(ex, rkey, peer + (i ? 65536 : 0));
            ibv_wr_set_sge(ex, from->mr->lkey, (uintptr_t)from->buffer + (i ? 65536 : 0), i ? 100 : 65536);
        }
    }
    ZERO(ibv_wr_complete(ex));
    for (unsigned i = 0; i < 4; i++) {
        struct ibv_wc wc = next_wc(from->cq);

        if (wc.wr_id != i || wc.status || wc.opcode != due[i])
            die("flush of %u, level %u: request %u: wr_id %" PRIu64 ", %s, opcode %u", length, level, i, wc.wr_id,
                ibv_wc_status_str(wc.status), (unsigned)wc.opcode);
    }
    if (memcmp(to->buffer, from->buffer, 65636) || memcmp(to->buffer + SIZE - 8, eight, 8))
        die("flush of %u, level %u: what was written is not there", length, level);
    printf("flush of %u, level %u: good\n", length, level);
}

int main(void)
{
    static const uint32_t lengths[] = {1, 64, 1024, 1025, 65536, SIZE};
    struct ibv_context *context;
    struct side a, b;
    struct ibv_mr *mr;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, SIZE);
    make_side(&b, context, IBV_QPT_RC, SIZE);
    for (int i = 0; i < 2; i++) {
        struct side *s = i ? &b : &a;

        ZERO(ibv_destroy_qp(s->qp));
        s->qp = extended(s);
        if (!s->qp) {
            printf("no FLUSH or no ATOMIC WRITE here (%s)\n", rc_name(errno));
            return 0;
        }
    }
    mr = NEED(ibv_reg_mr(b.pd, b.buffer, SIZE, ALL_ACCESS | IBV_ACCESS_FLUSH_GLOBAL));
    join(&a, &b);
    ZERO(ibv_modify_qp(b.qp, &(struct ibv_qp_attr){.qp_access_flags = ALL_ACCESS | IBV_ACCESS_FLUSH_GLOBAL}, IBV_QP_ACCESS_FLAGS));
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (uint8_t level = IBV_FLUSH_RANGE; level <= IBV_FLUSH_MR; level++)
            round_of(&a, &b, mr->rkey, lengths[i], level);
    printf("done\n");
    return 0;
}
