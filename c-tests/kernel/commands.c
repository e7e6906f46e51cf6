/* A fixed use of a device, whose commands to the kernel `trace` lists: open, query, make all objects of a connection, one
 * SEND each way, destroy all. It waits for events, so that no number of polls or requests depends on time. */
#include "../common.h"

static struct ibv_comp_channel *channel;

static void await(struct side *s, const char *label)
{
    struct ibv_cq *cq;
    void *context;
    struct ibv_wc wc;

    ZERO(ibv_get_cq_event(channel, &cq, &context));
    ibv_ack_cq_events(cq, 1);
    if (cq != s->cq || ibv_poll_cq(cq, 1, &wc) != 1)
        die("an event of no completion");
    show_wc(label, &wc);
}

static void message(struct side *from, struct side *to)
{
    ZERO(recv_one(to, 2, 0, 64));
    ZERO(ibv_req_notify_cq(to->cq, 0));
    ZERO(send_one(from, 1, 64, 32, 0));
    await(to, "receive");
}

static void make(struct side *s, struct ibv_context *context, struct ibv_pd *pd)
{
    memset(s, 0, sizeof(*s));
    s->context = context;
    s->size = 4096;
    s->buffer = pages(s->size);
    s->pd = pd;
    s->mr = NEED(ibv_reg_mr(pd, s->buffer, s->size, ALL_ACCESS));
    s->cq = NEED(ibv_create_cq(context, 16, NULL, channel, 0));
    s->qp = make_qp(s, IBV_QPT_RC, NULL);
    ZERO(ibv_query_gid(context, PORT, gid_index(), &s->gid));
}

static void drop(struct side *s)
{
    ZERO(ibv_destroy_qp(s->qp));
    ZERO(ibv_destroy_cq(s->cq));
    ZERO(ibv_dereg_mr(s->mr));
}

int main(void)
{
    struct ibv_context *context;
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_ah_attr ah_attr;
    struct ibv_pd *pd;
    struct ibv_srq *srq;
    struct ibv_mw *mw;
    struct ibv_ah *ah;
    struct side a, b;

    start();
    context = open_device();
    ZERO(ibv_query_device(context, &device));
    ZERO(ibv_query_port(context, PORT, &port));
    pd = NEED(ibv_alloc_pd(context));
    channel = NEED(ibv_create_comp_channel(context));
    make(&a, context, pd);
    make(&b, context, pd);
    srq = NEED(ibv_create_srq(pd, &srq_attr));
    mw = NEED(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    ah_attr = ah_to(&a.gid);
    ah = NEED(ibv_create_ah(pd, &ah_attr));
    join(&a, &b);
    message(&a, &b);
    message(&b, &a);
    printf("states %s, %s\n", state_name(state_of(a.qp)), state_name(state_of(b.qp)));
    ZERO(ibv_resize_cq(a.cq, 40));
    ZERO(ibv_destroy_ah(ah));
    ZERO(ibv_dealloc_mw(mw));
    ZERO(ibv_destroy_srq(srq));
    drop(&a);
    drop(&b);
    ZERO(ibv_destroy_comp_channel(channel));
    ZERO(ibv_dealloc_pd(pd));
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
