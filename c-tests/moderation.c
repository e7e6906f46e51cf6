/* CQ moderation: events come after so many completions, or so long after the first. */
#include "common.h"

static struct side a, b;
static struct ibv_comp_channel *channel;

static int moderate(unsigned count, unsigned period, unsigned mask)
{
    struct ibv_modify_cq_attr attr = {
        .attr_mask = mask, .moderate = {.cq_count = (uint16_t)count, .cq_period = (uint16_t)period}};

    return ibv_modify_cq(b.cq, &attr);
}

static void messages(int n)
{
    struct ibv_wc wc;

    for (int i = 0; i < n; i++) {
        ZERO(recv_one(&b, 1, 0, 64));
        ZERO(send_one(&a, 2, 0, 8, IBV_SEND_SIGNALED));
        wc = next_wc(a.cq);
        if (wc.status != IBV_WC_SUCCESS)
            die("%s", ibv_wc_status_str(wc.status));
    }
}

static const char *event(int wait_ms)
{
    struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;

    while (poll(&fd, 1, wait_ms) == 1) {
        if (ibv_get_cq_event(channel, &cq, &context) == 0) {
            ibv_ack_cq_events(cq, 1);
            return "event";
        }
    }
    return "none";
}

static int drain(void)
{
    struct ibv_wc wc;
    int n = 0;

    while (ibv_poll_cq(b.cq, 1, &wc) == 1)
        n++;
    return n;
}

int main(void)
{
    struct ibv_device_attr_ex attr;
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 4, .max_recv_sge = 4}, .qp_type = IBV_QPT_RC};
    struct ibv_context *context;
    uint64_t begun, took;

    start();
    context = open_device();
    ZERO(ibv_query_device_ex(context, NULL, &attr));
    printf("caps: count %s, period %s\n", yes(attr.cq_mod_caps.max_cq_count > 0),
           yes(attr.cq_mod_caps.max_cq_period > 0));
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    channel = NEED(ibv_create_comp_channel(context));
    if (fcntl(channel->fd, F_SETFL, O_NONBLOCK))
        die("fcntl");
    ZERO(ibv_destroy_qp(b.qp));
    ZERO(ibv_destroy_cq(b.cq));
    b.cq = NEED(ibv_create_cq(context, 64, NULL, channel, 0));
    init.send_cq = init.recv_cq = b.cq;
    b.qp = NEED(ibv_create_qp(b.pd, &init));
    join(&a, &b);

    printf("unknown attributes: %s, none: %s\n", rc_name(moderate(1, 1, 2)), rc_name(moderate(1, 1, 0)));
    printf("4 a time: %s\n", rc_name(moderate(4, 0, IBV_CQ_ATTR_MODERATE)));
    ZERO(ibv_req_notify_cq(b.cq, 0));
    messages(3);
    printf("3 completions: %s\n", event(50));
    messages(1);
    printf("4 completions: %s\n", event(10000));
    printf("polled: %d\n", drain());
    ZERO(ibv_req_notify_cq(b.cq, 0));
    messages(3);
    printf("armed again, 3: %s\n", event(50));
    printf("no moderation: %s", rc_name(moderate(0, 0, IBV_CQ_ATTR_MODERATE)));
    printf(", what was held back: %s\n", event(10000));
    drain();
    ZERO(ibv_req_notify_cq(b.cq, 0));
    messages(1);
    printf("1 completion: %s\n", event(10000));
    drain();

    printf("100 a time, or 60 ms: %s\n", rc_name(moderate(100, 60000, IBV_CQ_ATTR_MODERATE)));
    ZERO(ibv_req_notify_cq(b.cq, 0));
    begun = now_ms();
    messages(2);
    printf("2 completions: %s", event(10000));
    took = now_ms() - begun;
    printf(", not before %s\n", yes(took >= 59));
    printf("polled: %d\n", drain());
    printf("nothing more: %s\n", event(100));
    ZERO(ibv_destroy_qp(b.qp));
    ZERO(ibv_destroy_cq(b.cq));
    ZERO(ibv_destroy_comp_channel(channel));
    b.cq = NEED(ibv_create_cq(context, 64, NULL, NULL, 0));
    b.qp = make_qp(&b, IBV_QPT_RC, NULL);
    drop_side(&a);
    drop_side(&b);
    ZERO(ibv_close_device(context));
    return 0;
}
