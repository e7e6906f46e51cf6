/*
 * A device that is taken away under traffic. Messages go to and fro between two QPs; a line on standard output tells each
 * event and each change of what verbs return. SIGUSR1 ends it: everything is destroyed then, whatever became of the device.
 */
#include "../common.h"

#include <signal.h>

static volatile sig_atomic_t ending;
static unsigned long messages;

static void end(int number)
{
    (void)number;
    ending = 1;
}

/* One message from a to b; 0, or -1 where it does not arrive within two seconds. */
static int message(struct side *a, struct side *b)
{
    uint64_t until = now_ms() + 2000;
    struct ibv_wc wc;
    int sent = 0, received = 0, n;

    if (recv_one(b, 2, 0, 64) || send_one(a, 1, 64, 32, IBV_SEND_SIGNALED))
        return -1;
    while (!sent || !received) {
        n = ibv_poll_cq(a->cq, 1, &wc);
        if (n < 0 || (n > 0 && wc.status))
            return -1;
        sent += n;
        n = ibv_poll_cq(b->cq, 1, &wc);
        if (n < 0 || (n > 0 && wc.status))
            return -1;
        received += n;
        if (now_ms() > until)
            return -1;
    }
    return 0;
}

static void show_events(struct ibv_context *context)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event event;

    while (poll(&fd, 1, 0) == 1) {
        if (ibv_get_async_event(context, &event)) {
            printf("events end: %s\n", rc_name(errno));
            return;
        }
        printf("event: %s\n", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
}

int main(void)
{
    struct sigaction act = {.sa_handler = end};
    struct ibv_context *context;
    struct ibv_port_attr port;
    struct ibv_pd *pd;
    struct side a, b;
    int arrives = 1, queried = 0;

    start();
    sigaction(SIGUSR1, &act, NULL);
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    while (!ending) {
        int now_arrives = arrives, now_queried = ibv_query_port(context, PORT, &port);

        show_events(context);
        if (arrives) {
            now_arrives = message(&a, &b) == 0;
            messages += (unsigned long)now_arrives;
        } else {
            usleep(10000);
        }
        if (now_arrives != arrives)
            printf("messages do not arrive any more\n");
        if (now_queried != queried)
            printf("ibv_query_port: %s\n", rc_name(now_queried));
        arrives = now_arrives;
        queried = now_queried;
        if (messages == 50 && arrives)
            printf("traffic\n");
    }
    show_events(context);
    printf("messages up to the end: %s\n", yes(arrives));
    pd = ibv_alloc_pd(context);
    printf("new PD: %s\n", pointer_name(pd));
    if (pd)
        printf("free PD %s\n", rc_name(ibv_dealloc_pd(pd)));
    printf("destroy QP %s\n", rc_name(ibv_destroy_qp(a.qp)));
    printf("destroy QP %s\n", rc_name(ibv_destroy_qp(b.qp)));
    printf("destroy CQ %s\n", rc_name(ibv_destroy_cq(a.cq)));
    printf("destroy CQ %s\n", rc_name(ibv_destroy_cq(b.cq)));
    printf("deregister %s\n", rc_name(ibv_dereg_mr(a.mr)));
    printf("deregister %s\n", rc_name(ibv_dereg_mr(b.mr)));
    printf("free PD %s\n", rc_name(ibv_dealloc_pd(a.pd)));
    printf("free PD %s\n", rc_name(ibv_dealloc_pd(b.pd)));
    printf("close %s\n", rc_name(ibv_close_device(context)));
    return 0;
}
