/* A CQ that overflows: an event, a QP in error, and nothing overwritten. */
#include "common.h"

int main(void)
{
    struct ibv_context *context;
    struct ibv_async_event event;
    struct side a, b;
    struct ibv_cq *big;
    struct ibv_wc wc;
    uint64_t end;
    int cqe, n = 0, taken = 0, in_order = 1, sends;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(b.qp));
    big = b.cq;
    b.cq = NEED(ibv_create_cq(context, 4, NULL, NULL, 0));
    b.qp = make_qp(&b, IBV_QPT_RC, NULL);
    cqe = b.cq->cqe;
    printf("at least as large as asked for: %s\n", yes(cqe >= 4));
    join(&a, &b);
    /* The device may have rounded up; the receive queue holds 32. */
    sends = cqe + 4;
    if (sends > 30)
        die("a CQ of 4 got %d entries", cqe);
    for (int i = 0; i < sends; i++)
        ZERO(recv_one(&b, (unsigned)i, 0, 8));
    for (int i = 0; i < sends; i++)
        ZERO(send_one(&a, (unsigned)i, 0, 8, i + 1 == sends ? IBV_SEND_SIGNALED : 0));
    do
        event = next_event(context);
    while (event.event_type != IBV_EVENT_CQ_ERR);
    printf("event: %s, of this CQ %s\n", ibv_event_type_str(event.event_type), yes(event.element.cq == b.cq));
    end = now_ms() + 10000;
    while (b.qp->state != IBV_QPS_ERR && state_of(b.qp) != IBV_QPS_ERR && now_ms() < end)
        ;
    printf("QP: %s\n", state_name(state_of(b.qp)));
    while (taken < cqe && (n = ibv_poll_cq(b.cq, 1, &wc)) > 0)
        in_order &= wc.wr_id == (unsigned)taken++;
    printf("what fitted is there, or the CQ refuses: %s, in order %s\n", yes(taken == cqe || n < 0), yes(in_order));
    ZERO(ibv_destroy_qp(b.qp));
    printf("destroyed: %s\n", rc_name(ibv_destroy_cq(b.cq)));
    b.cq = big;
    b.qp = make_qp(&b, IBV_QPT_RC, NULL);
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
