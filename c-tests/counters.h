/* What the tests of completion counters share: a counter for each kind of operation, and what they count. */
#ifndef C_TESTS_COUNTERS_H
#define C_TESTS_COUNTERS_H

#include "common.h"

#define OPS 6

MAYBE const char *const counter_names[OPS] = {"send", "recv", "read", "remote read", "write", "remote write"};

MAYBE struct ibv_comp_cntr *make(struct ibv_context *context, enum ibv_comp_cntr_type type)
{
    struct ibv_comp_cntr_init_attr attr = {.type = type};

    return NEED(ibv_create_comp_cntr(context, &attr));
}

MAYBE int attach(struct ibv_qp *qp, struct ibv_comp_cntr *counter, uint32_t ops)
{
    struct ibv_qp_attach_comp_cntr_attr attr = {.op_mask = ops};

    return ibv_qp_attach_comp_cntr(qp, counter, &attr);
}

MAYBE uint64_t count(struct ibv_comp_cntr *counter)
{
    uint64_t value;

    ZERO(ibv_read_comp_cntr(counter, &value));
    return value;
}

MAYBE uint64_t failures(struct ibv_comp_cntr *counter)
{
    uint64_t value;

    ZERO(ibv_read_err_comp_cntr(counter, &value));
    return value;
}

MAYBE void show(const char *what, struct ibv_comp_cntr *const *counters)
{
    printf("%s:", what);
    for (int i = 0; i < OPS; i++)
        printf(" %s %" PRIu64 "/%" PRIu64, counter_names[i], count(counters[i]), failures(counters[i]));
    printf("\n");
}

MAYBE void all_six(struct side *s, struct ibv_comp_cntr **counters, enum ibv_comp_cntr_type type)
{
    for (int i = 0; i < OPS; i++) {
        counters[i] = make(s->context, type);
        ZERO(attach(s->qp, counters[i], 1u << i));
    }
}

MAYBE void unsignaled(struct side *s, enum ibv_wr_opcode opcode, uint32_t length, uint64_t remote, uint32_t rkey)
{
    struct ibv_sge sge = sge_of(s, 0, length);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    struct ibv_send_wr *bad;

    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    ZERO(ibv_post_send(s->qp, &wr, &bad));
}

/* What both tests do: 4 SENDs, 3 READs, 5 WRITEs, 2 WRITEs with immediate. */
MAYBE void traffic(struct side *s, uint64_t remote, uint32_t rkey)
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

#endif
