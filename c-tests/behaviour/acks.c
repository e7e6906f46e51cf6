/* Events that nobody has acknowledged hold destruction up; acknowledging too many holds nothing up. */
#include "route.h"

struct destruction {
    pthread_t thread;
    int (*destroy)(void *object);
    void *object;
    int done, rc;
};

static void *destroyer(void *arg)
{
    struct destruction *d = arg;

    d->rc = d->destroy(d->object);
    __atomic_store_n(&d->done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void begin(struct destruction *d, int (*destroy)(void *), void *object)
{
    *d = (struct destruction){.destroy = destroy, .object = object};
    ZERO(pthread_create(&d->thread, NULL, destroyer, d));
}

static void still_waits(struct destruction *d)
{
    usleep(100000);
    EXPECT(!__atomic_load_n(&d->done, __ATOMIC_SEQ_CST), "it did not wait");
}

static void ends(struct destruction *d)
{
    ZERO(pthread_join(d->thread, NULL));
    EXPECT_EQ(d->rc, 0);
}

static int destroy_cq(void *cq)
{
    return ibv_destroy_cq(cq);
}

static int destroy_qp(void *qp)
{
    return ibv_destroy_qp(qp);
}

static int destroy_srq(void *srq)
{
    return ibv_destroy_srq(srq);
}

/* A CQ that has raised so many events, all fetched and none acknowledged. */
static struct ibv_cq *with_events(struct duo *d, struct ibv_comp_channel **channel, unsigned events)
{
    struct ibv_cq *cq, *got;
    void *context;

    d->context = open_device();
    *channel = NEED(ibv_create_comp_channel(d->context));
    make_side(&d->a, d->context, IBV_QPT_RC, 4096);
    make_side(&d->b, d->context, IBV_QPT_RC, 4096);
    ZERO(ibv_destroy_qp(d->b.qp));
    ZERO(ibv_destroy_cq(d->b.cq));
    cq = d->b.cq = NEED(ibv_create_cq(d->context, 64, NULL, *channel, 0));
    d->b.qp = make_qp(&d->b, IBV_QPT_RC, NULL);
    join(&d->a, &d->b);
    for (unsigned i = 0; i < events; i++) {
        ZERO(ibv_req_notify_cq(cq, 0));
        ZERO(recv_one(&d->b, i, 0, 64));
        ZERO(send_one(&d->a, i, 0, 8, IBV_SEND_SIGNALED));
        NEXT(d->a.cq, i, IBV_WC_SUCCESS);
        ZERO(ibv_get_cq_event(*channel, &got, &context));
        EXPECT(got == cq);
        NEXT(cq, i, IBV_WC_SUCCESS);
    }
    ZERO(ibv_destroy_qp(d->b.qp));
    return cq;
}

TEST(destroy_cq_waits_for_each_event_to_be_acknowledged)
{
    for (unsigned events = 1; events <= 3; events++) {
        struct destruction d;
        struct ibv_comp_channel *channel;
        struct duo duo;
        struct ibv_cq *cq = with_events(&duo, &channel, events);

        begin(&d, destroy_cq, cq);
        for (unsigned i = 0; i < events; i++) {
            still_waits(&d);
            ibv_ack_cq_events(cq, 1);
        }
        ends(&d);
        ZERO(ibv_destroy_comp_channel(channel));
    }
}

TEST(destroy_cq_does_not_wait_for_events_that_nobody_has_fetched)
{
    struct ibv_comp_channel *channel;
    struct duo d;
    struct ibv_cq *cq = with_events(&d, &channel, 0);

    ZERO(ibv_destroy_cq(cq));
    d.b.cq = cq = NEED(ibv_create_cq(d.context, 64, NULL, channel, 0));
    d.b.qp = make_qp(&d.b, IBV_QPT_RC, NULL);
    {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        ZERO(ibv_modify_qp(d.a.qp, &attr, IBV_QP_STATE));
    }
    join(&d.a, &d.b);
    ZERO(ibv_req_notify_cq(cq, 0));
    ZERO(recv_one(&d.b, 1, 0, 64));
    ZERO(send_one(&d.a, 1, 0, 8, IBV_SEND_SIGNALED));
    NEXT(d.a.cq, 1, IBV_WC_SUCCESS);
    ZERO(ibv_destroy_qp(d.b.qp));
    ZERO(ibv_destroy_cq(cq));
    ZERO(ibv_destroy_comp_channel(channel));
}

/* One call may acknowledge many, and a thread may do so while another destroys. */
TEST(several_events_may_be_acknowledged_at_once)
{
    struct destruction d;
    struct ibv_comp_channel *channel;
    struct duo duo;
    struct ibv_cq *cq = with_events(&duo, &channel, 10);

    begin(&d, destroy_cq, cq);
    still_waits(&d);
    ibv_ack_cq_events(cq, 9);
    still_waits(&d);
    ibv_ack_cq_events(cq, 1);
    ends(&d);
}

TEST(acknowledging_more_cq_events_than_there_were_does_not_hang)
{
    for (unsigned events = 0; events < 3; events++)
        for (unsigned extra = 1; extra < 1000; extra *= 30) {
            struct ibv_comp_channel *channel;
            struct duo duo;
            struct ibv_cq *cq = with_events(&duo, &channel, events);

            ibv_ack_cq_events(cq, events + extra);
            ZERO(ibv_destroy_cq(cq));
            ZERO(ibv_destroy_comp_channel(channel));
        }
}

TEST(a_channel_with_cqs_is_not_destroyed)
{
    struct ibv_comp_channel *channel;
    struct duo duo;
    struct ibv_cq *cq = with_events(&duo, &channel, 0);

    REFUSED(ibv_destroy_comp_channel(channel), EBUSY, "ibv_destroy_comp_channel");
    ZERO(ibv_destroy_cq(cq));
    ZERO(ibv_destroy_comp_channel(channel));
}

static struct ibv_async_event fetch(struct ibv_context *context)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event event;

    EXPECT(poll(&fd, 1, 10000) == 1);
    ZERO(ibv_get_async_event(context, &event));
    return event;
}

/* An event of a QP: LAST_WQE_REACHED is the simplest to raise. */
TEST(destroy_qp_waits_for_its_asynchronous_events)
{
    for (int fetched = 0; fetched < 2; fetched++) {
        struct ibv_async_event event;
        struct destruction d;
        struct route r;

        make_route(&r, RC_SRQ);
        ZERO(to_err(r.in));
        if (!fetched) {
            ZERO(ibv_destroy_qp(r.in));
            EXPECT(no_event(r.context), "an event of a QP that is gone");
        } else {
            event = fetch(r.context);
            EXPECT(event.element.qp == r.in);
            begin(&d, destroy_qp, r.in);
            still_waits(&d);
            ibv_ack_async_event(&event);
            ends(&d);
        }
        r.in = route_qp(&r, IBV_QPT_RC, r.srq);
        drop_route(&r);
    }
}

TEST(destroy_srq_waits_for_its_asynchronous_events)
{
    struct ibv_srq_attr limit = {.srq_limit = 5};
    struct ibv_async_event event;
    struct destruction d;
    struct route r;

    make_route(&r, RC_SRQ);
    for (unsigned i = 0; i < 5; i++)
        ZERO(route_recv(&r, i, 64));
    ZERO(ibv_modify_srq(r.srq, &limit, IBV_SRQ_LIMIT));
    ZERO(route_send(&r, 1, 8, IBV_SEND_SIGNALED));
    NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
    NEXT(r.recv_cq, 0, IBV_WC_SUCCESS);
    event = fetch(r.context);
    EXPECT(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == r.srq);
    ZERO(ibv_destroy_qp(r.in));
    begin(&d, destroy_srq, r.srq);
    still_waits(&d);
    ibv_ack_async_event(&event);
    ends(&d);
    r.srq = NULL;
    r.in = route_qp(&r, IBV_QPT_RC, NULL);
    drop_route(&r);
}

/* CQ_ERR of a CQ of one entry. */
TEST(destroy_cq_waits_for_its_asynchronous_events)
{
    struct ibv_async_event events[4];
    struct destruction d;
    struct ibv_cq *large, *small;
    struct route r;
    int n = 0, found = 0;

    make_route_in_reset(&r, UC);
    large = r.send_cq;
    ZERO(ibv_destroy_qp(r.out));
    small = r.send_cq = NEED(ibv_create_cq(r.context, 1, NULL, NULL, 0));
    r.out = route_qp(&r, IBV_QPT_UC, NULL);
    connect_route(&r);
    for (unsigned i = 0; i < 3; i++)
        ZERO(route_send(&r, i, 8, IBV_SEND_SIGNALED));
    while (!found && n < 4) {
        events[n] = fetch(r.context);
        found = events[n].event_type == IBV_EVENT_CQ_ERR && events[n].element.cq == small;
        if (!found)
            ibv_ack_async_event(&events[n++]);
    }
    EXPECT(found);
    r.send_cq = large;
    ZERO(ibv_destroy_qp(r.out));
    r.out = route_qp(&r, IBV_QPT_UC, NULL);
    begin(&d, destroy_cq, small);
    still_waits(&d);
    ibv_ack_async_event(&events[n]);
    ends(&d);
    drop_route(&r);
}

TEST(acknowledging_an_asynchronous_event_twice_does_not_hang)
{
    struct ibv_async_event event;
    struct route r;

    make_route(&r, RC_SRQ);
    ZERO(to_err(r.in));
    event = fetch(r.context);
    for (int i = 0; i < 5; i++)
        ibv_ack_async_event(&event);
    drop_route(&r);
}

/* A thread that waits for events and one that destroys: no event of a destroyed object comes afterwards. */
static void *listener(void *arg)
{
    struct ibv_context *context = arg;
    struct ibv_async_event event;

    while (ibv_get_async_event(context, &event) == 0)
        ibv_ack_async_event(&event);
    return NULL;
}

TEST(objects_that_raise_events_are_destroyed_while_another_thread_listens)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    pthread_t thread;
    struct side s;

    make_side(&s, open_device(), IBV_QPT_RC, 4096);
    ZERO(pthread_create(&thread, NULL, listener, s.context));
    for (int i = 0; i < 2000; i++) {
        struct ibv_srq *srq = NEED(ibv_create_srq(s.pd, &init));
        struct ibv_qp *qp = make_qp(&s, IBV_QPT_RC, srq);

        ZERO(to_init(qp));
        ZERO(to_err(qp));
        ZERO(ibv_destroy_qp(qp));
        ZERO(ibv_destroy_srq(srq));
    }
}
