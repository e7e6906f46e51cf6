/* Memory windows: binding, the death of old keys, bounds, domains, and the region that cannot go before them. */
#include "behaviour.h"

#define SIZE 16384
#define GIVE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct scene {
    struct duo d;
    struct ibv_mr *mr;
};

static void reconnect(struct scene *s)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    ZERO(ibv_modify_qp(s->d.a.qp, &attr, IBV_QP_STATE));
    ZERO(ibv_modify_qp(s->d.b.qp, &attr, IBV_QP_STATE));
    join(&s->d.a, &s->d.b);
}

static void make(struct scene *s)
{
    make_duo_of(&s->d, IBV_QPT_RC, SIZE);
    s->mr = NEED(ibv_reg_mr(s->d.b.pd, s->d.b.buffer, SIZE, ALL_ACCESS | IBV_ACCESS_MW_BIND));
}

static void drop(struct scene *s)
{
    ZERO(ibv_dereg_mr(s->mr));
    drop_duo(&s->d);
}

static struct ibv_mw_bind_info info_of(struct ibv_mr *mr, uint64_t addr, uint64_t length, unsigned access)
{
    struct ibv_mw_bind_info info = {.mr = mr, .addr = addr, .length = length, .mw_access_flags = access};

    return info;
}

/* Type 1 by ibv_bind_mw, type 2 by a request with the next key. */
static int bind_window(struct side *by, struct ibv_mw *mw, struct ibv_mw_bind_info info, unsigned flags)
{
    struct ibv_send_wr wr = {.wr_id = 20, .opcode = IBV_WR_BIND_MW, .send_flags = flags}, *bad;
    struct ibv_mw_bind one = {.wr_id = 20, .send_flags = flags, .bind_info = info};

    if (mw->type == IBV_MW_TYPE_1)
        return ibv_bind_mw(by->qp, mw, &one);
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = info;
    return ibv_post_send(by->qp, &wr, &bad);
}

static int invalidate(struct side *by, enum ibv_wr_opcode opcode, uint32_t rkey)
{
    struct ibv_send_wr wr = {.wr_id = 30, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;

    wr.invalidate_rkey = rkey;
    return ibv_post_send(by->qp, &wr, &bad);
}

/* The peer's access by this key ends with this status; afterwards the connection is good again. */
static void access_by(struct scene *s, enum ibv_wr_opcode opcode, uint32_t rkey, size_t offset, uint32_t length,
                      enum ibv_wc_status status)
{
    ZERO(rdma_one(&s->d.a, 1, opcode, 0, length, (uintptr_t)s->d.b.buffer + offset, rkey));
    NEXT(s->d.a.cq, 1, status);
    if (status != IBV_WC_SUCCESS) {
        expect_event(s->d.context, IBV_EVENT_QP_ACCESS_ERR, s->d.b.qp);
        reconnect(s);
    }
}

static const enum ibv_mw_type types[] = {IBV_MW_TYPE_1, IBV_MW_TYPE_2};
#define EACH_TYPE(t) for (int t = 0; t < 2; t++)

TEST(a_bound_window_gives_exactly_its_range_and_its_rights)
{
    EACH_TYPE(t) {
        struct ibv_mw *mw;
        struct scene s;

        make(&s);
        mw = NEED(ibv_alloc_mw(s.d.b.pd, types[t]));
        access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 0, 8, IBV_WC_REM_ACCESS_ERR);
        ZERO(bind_window(&s.d.b, mw, info_of(s.mr, (uintptr_t)s.d.b.buffer + 4096, 1000, GIVE), IBV_SEND_SIGNALED));
        EXPECT_EQ(NEXT(s.d.b.cq, 20, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
        access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 4096, 1000, IBV_WC_SUCCESS);
        access_by(&s, IBV_WR_RDMA_READ, mw->rkey, 5095, 1, IBV_WC_SUCCESS);
        if (t == 0) {
            /* A window of type 2 is ended by the reset that follows each error. */
            access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 4095, 8, IBV_WC_REM_ACCESS_ERR);
            access_by(&s, IBV_WR_RDMA_READ, mw->rkey, 4096, 1001, IBV_WC_REM_ACCESS_ERR);
            ZERO(bind_window(&s.d.b, mw, info_of(s.mr, (uintptr_t)s.d.b.buffer, 4096, IBV_ACCESS_REMOTE_READ), 0));
            access_by(&s, IBV_WR_RDMA_READ, mw->rkey, 0, 4096, IBV_WC_SUCCESS);
        } else {
            access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 4095, 8, IBV_WC_REM_ACCESS_ERR);
        }
        access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 0, 8, IBV_WC_REM_ACCESS_ERR);
        ZERO(ibv_dealloc_mw(mw));
        drop(&s);
    }
}

TEST(binding_a_window_of_type_1_gives_a_new_rkey_at_once_and_ends_the_old_one)
{
    struct ibv_mw *mw;
    struct scene s;
    uint32_t old;

    make(&s);
    mw = NEED(ibv_alloc_mw(s.d.b.pd, IBV_MW_TYPE_1));
    for (int i = 0; i < 300; i++) {
        old = mw->rkey;
        ZERO(bind_window(&s.d.b, mw, info_of(s.mr, (uintptr_t)s.d.b.buffer, 64, GIVE), IBV_SEND_SIGNALED));
        EXPECT(mw->rkey != old);
        NEXT(s.d.b.cq, 20, IBV_WC_SUCCESS);
        access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 0, 64, IBV_WC_SUCCESS);
        if (i % 50 == 1)
            access_by(&s, IBV_WR_RDMA_WRITE, old, 0, 64, IBV_WC_REM_ACCESS_ERR);
    }
    /* A bind of no bytes ends it. */
    ZERO(bind_window(&s.d.b, mw, info_of(NULL, 0, 0, 0), IBV_SEND_SIGNALED));
    NEXT(s.d.b.cq, 20, IBV_WC_SUCCESS);
    access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 0, 8, IBV_WC_REM_ACCESS_ERR);
    ZERO(ibv_dealloc_mw(mw));
    drop(&s);
}

/* Local and remote invalidation end a window of type 2; it can be bound again, under another key. */
TEST(invalidation_ends_a_window_of_type_2)
{
    for (int remote = 0; remote < 2; remote++) {
        struct ibv_mw *mw;
        struct scene s;

        make(&s);
        mw = NEED(ibv_alloc_mw(s.d.b.pd, IBV_MW_TYPE_2));
        for (int i = 0; i < 20; i++) {
            uint32_t key;

            ZERO(bind_window(&s.d.b, mw, info_of(s.mr, (uintptr_t)s.d.b.buffer, 64, GIVE), IBV_SEND_SIGNALED));
            NEXT(s.d.b.cq, 20, IBV_WC_SUCCESS);
            key = mw->rkey;
            access_by(&s, IBV_WR_RDMA_WRITE, key, 0, 64, IBV_WC_SUCCESS);
            if (remote) {
                ZERO(recv_one(&s.d.b, 40, 0, 64));
                ZERO(invalidate(&s.d.a, IBV_WR_SEND_WITH_INV, key));
                NEXT(s.d.a.cq, 30, IBV_WC_SUCCESS);
                EXPECT_EQ(NEXT(s.d.b.cq, 40, IBV_WC_SUCCESS).invalidated_rkey, key);
            } else {
                ZERO(invalidate(&s.d.b, IBV_WR_LOCAL_INV, key));
                EXPECT_EQ(NEXT(s.d.b.cq, 30, IBV_WC_SUCCESS).opcode, IBV_WC_LOCAL_INV);
            }
            if (i % 5 == 0)
                access_by(&s, IBV_WR_RDMA_WRITE, key, 0, 8, IBV_WC_REM_ACCESS_ERR);
        }
        ZERO(ibv_dealloc_mw(mw));
        drop(&s);
    }
}

/* What cannot be bound ends in MW_BIND_ERR, also unsignaled, and leaves the QP in ERR and the window unbound. */
TEST(a_bind_that_is_wrong_ends_in_mw_bind_err)
{
    static const char *const reasons[] = {"does not lie in the region", "does not lie in the region", "does not lie in the region",
                                          "IBV_ACCESS_MW_BIND", "IBV_ACCESS_LOCAL_WRITE", "no memory region"};

    EACH_TYPE(t)
        for (int mistake = 0; mistake < 6; mistake++)
            for (int signaled = 0; signaled < 2; signaled++) {
                struct ibv_mr *no_bind, *no_write;
                struct ibv_mw_bind_info info;
                struct ibv_mr gone;
                struct ibv_mw *mw;
                struct scene s;

                make(&s);
                no_bind = NEED(ibv_reg_mr(s.d.b.pd, s.d.b.buffer, SIZE, ALL_ACCESS));
                no_write = NEED(ibv_reg_mr(s.d.b.pd, s.d.b.buffer, SIZE, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND));
                mw = NEED(ibv_alloc_mw(s.d.b.pd, types[t]));
                info = info_of(s.mr, (uintptr_t)s.d.b.buffer, SIZE, GIVE);
                if (mistake == 0)
                    info.length++;
                if (mistake == 1)
                    info.addr--;
                if (mistake == 2)
                    info.addr += SIZE;
                if (mistake == 3)
                    info.mr = no_bind;
                if (mistake == 4)
                    info.mr = no_write;
                if (mistake == 5) {
                    gone = *s.mr;
                    gone.lkey ^= 0x5a5a00;
                    info.mr = &gone;
                }
                said();
                ZERO(bind_window(&s.d.b, mw, info, signaled ? IBV_SEND_SIGNALED : 0));
                ZERO(send_one(&s.d.b, 21, 0, 8, 0));
                NEXT(s.d.b.cq, 20, IBV_WC_MW_BIND_ERR);
                NEXT(s.d.b.cq, 21, IBV_WC_WR_FLUSH_ERR);
                EXPECT_EQ(state_of(s.d.b.qp), IBV_QPS_ERR);
                if (is_ours()) {
                    const char *text = said();

                    EXPECT(strstr(text, reasons[mistake]), "%d: %s", mistake, text);
                }
                ZERO(ibv_dealloc_mw(mw));
                ZERO(ibv_dereg_mr(no_bind));
                ZERO(ibv_dereg_mr(no_write));
                drop(&s);
            }
}

TEST(a_window_bound_by_the_wrong_call_or_to_another_pd_is_refused)
{
    struct ibv_mw_bind bind = {.wr_id = 20};
    struct ibv_send_wr wr = {.wr_id = 20, .opcode = IBV_WR_BIND_MW}, *bad = NULL;
    struct ibv_mw *one, *two, *other;
    struct ibv_pd *pd;
    struct scene s;

    make(&s);
    pd = NEED(ibv_alloc_pd(s.d.context));
    one = NEED(ibv_alloc_mw(s.d.b.pd, IBV_MW_TYPE_1));
    two = NEED(ibv_alloc_mw(s.d.b.pd, IBV_MW_TYPE_2));
    other = NEED(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    bind.bind_info = info_of(s.mr, (uintptr_t)s.d.b.buffer, 64, GIVE);
    /* verbs.h itself looks at the type, the domain and the region. */
    REFUSED(ibv_bind_mw(s.d.b.qp, two, &bind), EINVAL, "");
    wr.bind_mw.mw = one;
    wr.bind_mw.bind_info = bind.bind_info;
    REFUSED(ibv_post_send(s.d.b.qp, &wr, &bad), EINVAL, "type 2");
    EXPECT(bad == &wr);
    errno = 0;
    said();
    EXPECT(ibv_bind_mw(s.d.b.qp, other, &bind) == EPERM || errno == EPERM || errno == EINVAL);
    bind.bind_info.mr = NULL;
    REFUSED(ibv_bind_mw(s.d.b.qp, one, &bind), EINVAL, "");
    EXPECT_EQ(state_of(s.d.b.qp), IBV_QPS_RTS);
    NOT_MADE(ibv_alloc_mw(s.d.b.pd, (enum ibv_mw_type)7), EINVAL, "type=7");
    ZERO(ibv_dealloc_mw(one));
    ZERO(ibv_dealloc_mw(two));
    ZERO(ibv_dealloc_mw(other));
    ZERO(ibv_dealloc_pd(pd));
    drop(&s);
}

TEST(a_region_with_windows_is_not_deregistered)
{
    EACH_TYPE(t) {
        struct ibv_mw *mw[3];
        struct scene s;

        make(&s);
        for (int i = 0; i < 3; i++) {
            mw[i] = NEED(ibv_alloc_mw(s.d.b.pd, types[t]));
            ZERO(bind_window(&s.d.b, mw[i], info_of(s.mr, (uintptr_t)s.d.b.buffer, 64, GIVE), IBV_SEND_SIGNALED));
            NEXT(s.d.b.cq, 20, IBV_WC_SUCCESS);
        }
        for (int i = 0; i < 3; i++) {
            REFUSED(ibv_dereg_mr(s.mr), EBUSY, "window");
            access_by(&s, IBV_WR_RDMA_WRITE, mw[i]->rkey, 0, 64, IBV_WC_SUCCESS);
            ZERO(ibv_dealloc_mw(mw[i]));
        }
        drop(&s);
    }
}

/* Type 2B: only the QP that bound it gives access and may end it. */
TEST(a_window_of_type_2_belongs_to_the_qp_that_bound_it)
{
    struct side c, e;
    struct ibv_mw *mw;
    struct scene s;

    make(&s);
    make_side(&c, s.d.context, IBV_QPT_RC, 4096);
    make_side(&e, s.d.context, IBV_QPT_RC, 4096);
    /* e is a second QP of b's domain. */
    ZERO(ibv_destroy_qp(e.qp));
    ZERO(ibv_dereg_mr(e.mr));
    ZERO(ibv_dealloc_pd(e.pd));
    e.pd = s.d.b.pd;
    e.mr = NEED(ibv_reg_mr(e.pd, e.buffer, 4096, ALL_ACCESS));
    e.qp = make_qp(&e, IBV_QPT_RC, NULL);
    join(&c, &e);
    mw = NEED(ibv_alloc_mw(s.d.b.pd, IBV_MW_TYPE_2));
    ZERO(bind_window(&s.d.b, mw, info_of(s.mr, (uintptr_t)s.d.b.buffer, 64, GIVE), IBV_SEND_SIGNALED));
    NEXT(s.d.b.cq, 20, IBV_WC_SUCCESS);
    access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 0, 64, IBV_WC_SUCCESS);
    said();
    ZERO(rdma_one(&c, 1, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)s.d.b.buffer, mw->rkey));
    NEXT(c.cq, 1, IBV_WC_REM_ACCESS_ERR);
    EXPECT(!is_ours() || strstr(said(), "another queue pair"));
    {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        ZERO(ibv_modify_qp(c.qp, &attr, IBV_QP_STATE));
        ZERO(ibv_modify_qp(e.qp, &attr, IBV_QP_STATE));
    }
    join(&c, &e);
    ZERO(invalidate(&e, IBV_WR_LOCAL_INV, mw->rkey));
    EXPECT(next_wc(e.cq).status != IBV_WC_SUCCESS, "another QP has ended the window");
    while (!no_event(s.d.context))
        next_event(s.d.context);
    access_by(&s, IBV_WR_RDMA_WRITE, mw->rkey, 0, 64, IBV_WC_SUCCESS);
    ZERO(ibv_dealloc_mw(mw));
    ZERO(ibv_destroy_qp(c.qp));
    ZERO(ibv_destroy_qp(e.qp));
    ZERO(ibv_dereg_mr(e.mr));
    drop(&s);
}

TEST(deallocation_ends_the_key_of_a_bound_window)
{
    EACH_TYPE(t) {
        struct ibv_mw *mw;
        struct scene s;
        uint32_t key;

        make(&s);
        mw = NEED(ibv_alloc_mw(s.d.b.pd, types[t]));
        ZERO(bind_window(&s.d.b, mw, info_of(s.mr, (uintptr_t)s.d.b.buffer, 64, GIVE), IBV_SEND_SIGNALED));
        NEXT(s.d.b.cq, 20, IBV_WC_SUCCESS);
        key = mw->rkey;
        REFUSED(ibv_dealloc_pd(s.d.b.pd), EBUSY, "ibv_dealloc_pd");
        ZERO(ibv_dealloc_mw(mw));
        access_by(&s, IBV_WR_RDMA_WRITE, key, 0, 8, IBV_WC_REM_ACCESS_ERR);
        drop(&s);
    }
}

/* The request behind a bind finds the window bound, since requests are carried out in order. */
TEST(a_send_behind_a_bind_tells_a_key_that_is_good)
{
    struct ibv_mw *mw;
    struct scene s;

    make(&s);
    mw = NEED(ibv_alloc_mw(s.d.b.pd, IBV_MW_TYPE_1));
    for (unsigned i = 0; i < 200; i++) {
        ZERO(recv_one(&s.d.a, i, 0, 64));
        ZERO(bind_window(&s.d.b, mw, info_of(s.mr, (uintptr_t)s.d.b.buffer, 64, GIVE), 0));
        memcpy(s.d.b.buffer + 100, &mw->rkey, 4);
        ZERO(send_one(&s.d.b, 50, 100, 4, IBV_SEND_SIGNALED));
        NEXT(s.d.b.cq, 50, IBV_WC_SUCCESS);
        NEXT(s.d.a.cq, i, IBV_WC_SUCCESS);
        access_by(&s, IBV_WR_RDMA_WRITE, *(uint32_t *)(void *)s.d.a.buffer, 0, 64, IBV_WC_SUCCESS);
    }
    ZERO(ibv_dealloc_mw(mw));
    drop(&s);
}
