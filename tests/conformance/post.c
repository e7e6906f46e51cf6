/* Posting a request by ibv_post_send or by the ibv_wr_* calls. */
#include "conform.h"

uint64_t send_ops(enum op op)
{
    static const uint64_t flags[] = {
        [SEND] = IBV_QP_EX_WITH_SEND,
        [SEND_IMM] = IBV_QP_EX_WITH_SEND_WITH_IMM,
        [SEND_INV] = IBV_QP_EX_WITH_SEND_WITH_INV,
        [WRITE] = IBV_QP_EX_WITH_RDMA_WRITE,
        [WRITE_IMM] = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        [READ] = IBV_QP_EX_WITH_RDMA_READ,
        [CMP_SWAP] = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        [FETCH_ADD] = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        [ATOMIC_WRITE] = IBV_QP_EX_WITH_ATOMIC_WRITE,
        [FLUSH] = IBV_QP_EX_WITH_FLUSH,
        [BIND_MW] = IBV_QP_EX_WITH_BIND_MW,
        [LOCAL_INV] = IBV_QP_EX_WITH_LOCAL_INV,
    };

    return flags[op];
}

static struct ibv_ah *ah_of(const struct end *e, const struct request *r)
{
    int wrong = e->kase->kind == OPERATION && e->kase->condition == OTHER_PD_AH && r->number == SUBJECT;

    return wrong ? e->other_ah : e->ah;
}

static uint32_t qkey_of(const struct end *e, const struct request *r)
{
    int wrong = e->kase->kind == OPERATION && e->kase->condition == BAD_QKEY && r->number == SUBJECT;

    return CONFORM_QKEY ^ (wrong ? 0x100u : 0);
}

static int by_post(struct end *e, const struct request *r, unsigned flags)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,      IBV_WR_SEND_WITH_INV,        IBV_WR_RDMA_WRITE,   IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_FLUSH,
        IBV_WR_BIND_MW,   IBV_WR_LOCAL_INV};
    struct ibv_send_wr wr = {.wr_id = TAG | r->number,
                             .sg_list = (struct ibv_sge *)(uintptr_t)r->list,
                             .num_sge = r->n,
                             .opcode = opcodes[r->op],
                             .send_flags = flags | (r->is_inline ? IBV_SEND_INLINE : 0)};
    struct ibv_send_wr *bad = NULL;
    int rc;

    if (r->op == SEND_IMM || r->op == WRITE_IMM)
        wr.imm_data = htonl(IMMEDIATE);
    if (r->op == SEND_INV || r->op == LOCAL_INV)
        wr.invalidate_rkey = r->rkey;
    if (e->kase->transport == UD) {
        wr.wr.ud.ah = ah_of(e, r);
        wr.wr.ud.remote_qpn = e->peer.qpn;
        wr.wr.ud.remote_qkey = qkey_of(e, r);
    } else if (r->op == CMP_SWAP || r->op == FETCH_ADD) {
        wr.wr.atomic.remote_addr = r->remote;
        wr.wr.atomic.rkey = r->rkey;
        wr.wr.atomic.compare_add = r->compare;
        wr.wr.atomic.swap = r->swap;
    } else if (one_sided(r->op)) {
        wr.wr.rdma.remote_addr = r->remote;
        wr.wr.rdma.rkey = r->rkey;
    }
    if (e->kase->transport == XRC)
        wr.qp_type.xrc.remote_srqn = e->peer.srqn;
    if (r->op == BIND_MW) {
        wr.bind_mw.mw = r->mw;
        wr.bind_mw.rkey = r->rkey;
        wr.bind_mw.bind_info = r->bind;
    }
    rc = ibv_post_send(e->qp, &wr, &bad);
    /* ibv_post_send(3): a positive errno, and bad_wr names the request. */
    return rc < 0 || (rc && bad != &wr) ? EPROTO : rc;
}

static int by_calls(struct end *e, const struct request *r, unsigned flags)
{
    struct ibv_qp_ex *x = NEED(ibv_qp_to_qp_ex(e->qp));
    int has_list = r->op != BIND_MW && r->op != LOCAL_INV && r->op != FLUSH && r->op != ATOMIC_WRITE;

    ibv_wr_start(x);
    x->wr_id = TAG | r->number;
    x->wr_flags = flags;
    switch (r->op) {
    case SEND:
        ibv_wr_send(x);
        break;
    case SEND_IMM:
        ibv_wr_send_imm(x, htonl(IMMEDIATE));
        break;
    case SEND_INV:
        ibv_wr_send_inv(x, r->rkey);
        break;
    case WRITE:
        ibv_wr_rdma_write(x, r->rkey, r->remote);
        break;
    case WRITE_IMM:
        ibv_wr_rdma_write_imm(x, r->rkey, r->remote, htonl(IMMEDIATE));
        break;
    case READ:
        ibv_wr_rdma_read(x, r->rkey, r->remote);
        break;
    case CMP_SWAP:
        ibv_wr_atomic_cmp_swp(x, r->rkey, r->remote, r->compare, r->swap);
        break;
    case FETCH_ADD:
        ibv_wr_atomic_fetch_add(x, r->rkey, r->remote, r->compare);
        break;
    case ATOMIC_WRITE:
        ibv_wr_atomic_write(x, r->rkey, r->remote, (const void *)(uintptr_t)r->list[0].addr);
        break;
    case FLUSH:
        ibv_wr_flush(x, r->rkey, r->remote, r->length, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
        break;
    case BIND_MW:
        ibv_wr_bind_mw(x, r->mw, r->rkey, &r->bind);
        break;
    default:
        ibv_wr_local_inv(x, r->rkey);
        break;
    }
    if (e->kase->transport == UD)
        ibv_wr_set_ud_addr(x, ah_of(e, r), e->peer.qpn, qkey_of(e, r));
    if (e->kase->transport == XRC && has_list)
        ibv_wr_set_xrc_srqn(x, e->peer.srqn);
    if (has_list && r->is_inline && r->n == 1) {
        ibv_wr_set_inline_data(x, (void *)(uintptr_t)r->list[0].addr, r->list[0].length);
    } else if (has_list && r->is_inline) {
        struct ibv_data_buf parts[512];

        for (int i = 0; i < r->n; i++)
            parts[i] = (struct ibv_data_buf){(void *)(uintptr_t)r->list[i].addr, r->list[i].length};
        ibv_wr_set_inline_data_list(x, (size_t)r->n, parts);
    } else if (has_list && r->n == 1) {
        ibv_wr_set_sge(x, r->list[0].lkey, r->list[0].addr, r->list[0].length);
    } else if (has_list) {
        ibv_wr_set_sge_list(x, (size_t)r->n, r->list);
    }
    return ibv_wr_complete(x);
}

int post(struct end *e, const struct request *r)
{
    unsigned flags = (r->number == SUBJECT && e->kase->kind == OPERATION && e->kase->condition == UNSIGNALED)
                         ? r->flags
                         : r->flags | IBV_SEND_SIGNALED;

    return e->kase->api == WR && (r->number != PREPARE) ? by_calls(e, r, flags) : by_post(e, r, flags);
}

/* A small SEND from the marker's place. */
int post_marker(struct end *e, unsigned number, unsigned flags)
{
    struct request r = {.op = SEND, .number = number, .flags = flags, .n = 1};

    r.list[0] = place(e, AT_MARKER, MARKER_LENGTH);
    return post(e, &r);
}
