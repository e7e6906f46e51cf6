/* Memory windows of both types in one process: binding, access, invalidation, and what is refused. */
#include "common.h"

#define SIZE 8192
#define WINDOW_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* a asks, b's memory is shown. */
static struct side a, b;
static struct ibv_mr *mr;

static void connect_again(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_wc wc;

    ZERO(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
    ZERO(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
    while (ibv_poll_cq(a.cq, 1, &wc) > 0 || ibv_poll_cq(b.cq, 1, &wc) > 0)
        ;
    join(&a, &b);
}

static void show_status(const char *label, struct ibv_cq *cq)
{
    struct ibv_wc wc = next_wc(cq);

    printf("%s: %s", label, ibv_wc_status_str(wc.status));
    if (wc.status == IBV_WC_SUCCESS)
        printf(", opcode %s", wc.opcode == IBV_WC_BIND_MW     ? "BIND_MW"
                               : wc.opcode == IBV_WC_LOCAL_INV ? "LOCAL_INV"
                                                               : opcode_name(wc.opcode));
    printf("\n");
}

static int bind1(struct side *s, struct ibv_mw *mw, size_t offset, uint64_t length, unsigned access)
{
    struct ibv_mw_bind bind = {
        .wr_id = 10,
        .send_flags = IBV_SEND_SIGNALED,
        .bind_info = {.mr = mr, .addr = (uintptr_t)b.buffer + offset, .length = length, .mw_access_flags = access}};

    return ibv_bind_mw(s->qp, mw, &bind);
}

static int bind2(struct side *s, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *of, size_t offset, uint64_t length,
                 unsigned access)
{
    struct ibv_send_wr wr = {.wr_id = 20, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info.mr = of;
    wr.bind_mw.bind_info.addr = (uintptr_t)b.buffer + offset;
    wr.bind_mw.bind_info.length = length;
    wr.bind_mw.bind_info.mw_access_flags = access;
    return ibv_post_send(s->qp, &wr, &bad);
}

static int invalidate(struct side *s, enum ibv_wr_opcode opcode, uint32_t rkey)
{
    struct ibv_send_wr wr = {.wr_id = 30, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;

    wr.invalidate_rkey = rkey;
    return ibv_post_send(s->qp, &wr, &bad);
}

/* One write of a to b; afterwards the QPs are in RTS again. */
static void try_write(const char *label, uint64_t addr, uint32_t length, uint32_t rkey)
{
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, length, addr, rkey));
    show_status(label, a.cq);
    if (state_of(a.qp) != IBV_QPS_RTS)
        connect_again();
}

static void type1(void)
{
    uint64_t at = (uintptr_t)b.buffer;
    struct ibv_mw *mw = NEED(ibv_alloc_mw(b.pd, IBV_MW_TYPE_1));
    uint32_t before = mw->rkey, old;

    printf("-- type 1\n");
    printf("fields right: %s\n", yes(mw->pd == b.pd && mw->context == b.context && mw->type == IBV_MW_TYPE_1));
    try_write("not bound", at, 8, mw->rkey);
    ZERO(bind1(&b, mw, 100, 1000, WINDOW_ACCESS));
    printf("a new rkey at once: %s\n", yes(mw->rkey != before));
    show_status("bind", b.cq);
    fill(a.buffer, 1000, 1);
    try_write("write", at + 100, 1000, mw->rkey);
    printf("  data %s\n", yes(filled(b.buffer + 100, 1000, 1)));
    try_write("before its start", at + 99, 8, mw->rkey);
    try_write("past its end", at + 1093, 8, mw->rkey);
    old = mw->rkey;
    ZERO(bind1(&b, mw, 0, 4096, IBV_ACCESS_REMOTE_READ));
    show_status("bind again", b.cq);
    try_write("old rkey", at + 100, 8, old);
    try_write("without permission", at + 100, 8, mw->rkey);
    printf("deregister under it: %s\n", rc_name(ibv_dereg_mr(mr)));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 4096, at, mw->rkey));
    show_status("still there", a.cq);
    old = mw->rkey;
    ZERO(bind1(&a, mw, 0, 0, 0));
    show_status("unbind through a QP of another PD", a.cq);
    connect_again();
    ZERO(bind1(&b, mw, 0, 0, 0));
    show_status("unbind", b.cq);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 8, at, old));
    show_status("old rkey", a.cq);
    connect_again();
    ZERO(bind1(&b, mw, 0, SIZE + 1, WINDOW_ACCESS));
    show_status("bind beyond the region", b.cq);
    printf("  state %s\n", state_name(state_of(b.qp)));
    connect_again();
    ZERO(ibv_dealloc_mw(mw));
}

static void type2(void)
{
    uint64_t at = (uintptr_t)b.buffer;
    struct ibv_mw *mw = NEED(ibv_alloc_mw(b.pd, IBV_MW_TYPE_2));
    struct ibv_mr *plain = NEED(ibv_reg_mr(b.pd, b.buffer, SIZE, ALL_ACCESS));
    struct ibv_mr *frail = NEED(ibv_reg_mr(b.pd, b.buffer, SIZE, IBV_ACCESS_MW_BIND));
    struct ibv_mw_bind one = {.wr_id = 1};
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    struct ibv_wc wc;

    printf("-- type 2\n");
    printf("ibv_bind_mw: %s\n", rc_name(ibv_bind_mw(b.qp, mw, &one)));
    printf("no region: %s\n", rc_name(bind2(&b, mw, rkey, NULL, 0, 8, WINDOW_ACCESS)));
    printf("region of another PD: %s\n", rc_name(bind2(&b, mw, rkey, a.mr, 0, 8, WINDOW_ACCESS)));
    ZERO(bind2(&b, mw, rkey, mr, 0, SIZE, WINDOW_ACCESS));
    printf("rkey as asked: %s\n", yes(mw->rkey == rkey));
    show_status("bind", b.cq);
    fill(a.buffer, 100, 2);
    try_write("write", at, 100, rkey);
    printf("  data %s\n", yes(filled(b.buffer, 100, 2)));
    printf("deregister under it: %s\n", rc_name(ibv_dereg_mr(mr)));
    ZERO(bind2(&b, mw, ibv_inc_rkey(rkey), mr, 0, 8, WINDOW_ACCESS));
    show_status("bind while bound", b.cq);
    connect_again();
    /* After an error the window is as it was, but ours has told the new rkey already. */
    ZERO(invalidate(&a, IBV_WR_LOCAL_INV, rkey));
    show_status("invalidated by another QP", a.cq);
    connect_again();
    ZERO(invalidate(&b, IBV_WR_LOCAL_INV, rkey + 1));
    show_status("wrong variant", b.cq);
    connect_again();
    ZERO(invalidate(&b, IBV_WR_LOCAL_INV, mr->rkey));
    show_status("invalidate a region", b.cq);
    connect_again();
    ZERO(invalidate(&b, IBV_WR_LOCAL_INV, rkey));
    show_status("invalidate", b.cq);
    try_write("dead rkey", at, 8, rkey);

    /* The peer ends it. */
    rkey = ibv_inc_rkey(rkey);
    ZERO(bind2(&b, mw, rkey, mr, 0, SIZE, WINDOW_ACCESS));
    show_status("bind", b.cq);
    ZERO(recv_one(&b, 40, 0, 64));
    ZERO(invalidate(&a, IBV_WR_SEND_WITH_INV, rkey));
    show_status("send with invalidate", a.cq);
    wc = next_wc(b.cq);
    printf("  receive %s, with invalidate %s, that rkey %s\n", ibv_wc_status_str(wc.status),
           yes(wc.wc_flags == IBV_WC_WITH_INV), yes(wc.invalidated_rkey == rkey));
    ZERO(recv_one(&b, 41, 0, 64));
    ZERO(invalidate(&a, IBV_WR_SEND_WITH_INV, rkey));
    show_status("once more", a.cq);
    wc = next_wc(b.cq);
    printf("  receive %s, states %s %s\n", ibv_wc_status_str(wc.status), state_name(state_of(a.qp)),
           state_name(state_of(b.qp)));
    connect_again();

    /* What the region must allow. */
    rkey = ibv_inc_rkey(rkey);
    ZERO(bind2(&b, mw, rkey, plain, 0, 8, 0));
    show_status("region without MW_BIND", b.cq);
    connect_again();
    ZERO(bind2(&b, mw, rkey, frail, 0, 8, IBV_ACCESS_REMOTE_WRITE));
    show_status("writes to a region without LOCAL_WRITE", b.cq);
    connect_again();
    ZERO(bind2(&b, mw, rkey, mr, 1, SIZE, WINDOW_ACCESS));
    show_status("beyond the region", b.cq);
    connect_again();
    ZERO(bind2(&b, mw, rkey, mr, 0, 0, WINDOW_ACCESS));
    show_status("no bytes", b.cq);
    connect_again();
    ZERO(bind2(&b, mw, rkey, frail, 0, SIZE, IBV_ACCESS_REMOTE_READ));
    show_status("reads from one", b.cq);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 100, at, rkey));
    show_status("  read", a.cq);
    ZERO(invalidate(&b, IBV_WR_LOCAL_INV, rkey));
    show_status("invalidate", b.cq);

    /* Zero-based: remote addresses count from the window's start. */
    rkey = ibv_inc_rkey(rkey);
    ZERO(bind2(&b, mw, rkey, mr, 1000, 100, WINDOW_ACCESS | IBV_ACCESS_ZERO_BASED));
    show_status("zero-based", b.cq);
    fill(a.buffer, 100, 3);
    try_write("write", 0, 100, rkey);
    printf("  data %s\n", yes(filled(b.buffer + 1000, 100, 3)));
    try_write("past its end", 1, 100, rkey);
    ZERO(ibv_dealloc_mw(mw));
    try_write("deallocated", 0, 8, rkey);
    ZERO(ibv_dereg_mr(frail));
    ZERO(ibv_dereg_mr(plain));
}

/* Requests behind each other take their turns in order, also where nothing asks for a completion. */
static void in_order(void)
{
    uint64_t at = (uintptr_t)b.buffer;
    struct ibv_mw *mw = NEED(ibv_alloc_mw(b.pd, IBV_MW_TYPE_2));
    uint32_t first = ibv_inc_rkey(mw->rkey), second = ibv_inc_rkey(first);
    struct ibv_send_wr wr[4] = {
        {.wr_id = 1, .next = &wr[1], .opcode = IBV_WR_SEND},
        {.wr_id = 2, .next = &wr[2], .opcode = IBV_WR_BIND_MW},
        {.wr_id = 3, .next = &wr[3], .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = first},
        {.wr_id = 4, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED},
    }, *bad;
    struct ibv_wc wc;

    printf("-- in order\n");
    for (int i = 1; i < 4; i += 2) {
        wr[i].bind_mw.mw = mw;
        wr[i].bind_mw.rkey = i == 1 ? first : second;
        wr[i].bind_mw.bind_info = (struct ibv_mw_bind_info){mr, at, SIZE, WINDOW_ACCESS};
    }
    /* The send finds no receive at first and is repeated; what stands behind it happens once. */
    ZERO(ibv_post_send(b.qp, wr, &bad));
    printf("done before the send is: %s\n", yes(ibv_poll_cq(b.cq, 1, &wc) != 0));
    ZERO(recv_one(&a, 50, 0, 64));
    wc = next_wc(b.cq);
    printf("completed: %s, wr_id %" PRIu64 "\n", ibv_wc_status_str(wc.status), wc.wr_id);
    show_status("received", a.cq);
    try_write("second rkey", at, 8, second);
    try_write("first rkey", at, 8, first);
    ZERO(ibv_dealloc_mw(mw));
}

static void extended(void)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = b.cq,
        .recv_cq = b.cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = b.pd,
        .send_ops_flags = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV,
    };
    struct ibv_mw *mw = NEED(ibv_alloc_mw(b.pd, IBV_MW_TYPE_2)), *one = NEED(ibv_alloc_mw(b.pd, IBV_MW_TYPE_1));
    struct ibv_mw_bind_info info = {mr, (uintptr_t)b.buffer, SIZE, WINDOW_ACCESS};
    struct ibv_qp_ex *ex;
    struct ibv_qp *old = b.qp;
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    struct ibv_wc wc;

    printf("-- extended\n");
    b.qp = NEED(ibv_create_qp_ex(b.context, &init));
    ex = ibv_qp_to_qp_ex(b.qp);
    connect_again();
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_bind_mw(ex, mw, rkey, &info);
    printf("bind %s\n", rc_name(ibv_wr_complete(ex)));
    show_status("  bind", b.cq);
    try_write("write", (uintptr_t)b.buffer, 8, rkey);
    ibv_wr_start(ex);
    ibv_wr_local_inv(ex, rkey);
    printf("invalidate %s\n", rc_name(ibv_wr_complete(ex)));
    show_status("  invalidate", b.cq);
    try_write("dead rkey", (uintptr_t)b.buffer, 8, rkey);
    ibv_wr_start(ex);
    ibv_wr_bind_mw(ex, one, ibv_inc_rkey(one->rkey), &info);
    printf("a window of type 1 %s\n", rc_name(ibv_wr_complete(ex)));
    /* The other way round: b's QP ends a window of a. */
    ZERO(ibv_dealloc_mw(mw));
    mw = NEED(ibv_alloc_mw(a.pd, IBV_MW_TYPE_2));
    rkey = ibv_inc_rkey(mw->rkey);
    {
        struct ibv_mr *theirs = NEED(ibv_reg_mr(a.pd, b.buffer, SIZE, ALL_ACCESS | IBV_ACCESS_MW_BIND));

        ZERO(bind2(&a, mw, rkey, theirs, 0, SIZE, WINDOW_ACCESS));
        show_status("bind", a.cq);
        ZERO(recv_one(&a, 60, 0, 64));
        ibv_wr_start(ex);
        ibv_wr_send_inv(ex, rkey);
        printf("send with invalidate %s\n", rc_name(ibv_wr_complete(ex)));
        show_status("  send", b.cq);
        wc = next_wc(a.cq);
        printf("  receive %s, with invalidate %s, that rkey %s\n", ibv_wc_status_str(wc.status),
               yes(wc.wc_flags == IBV_WC_WITH_INV), yes(wc.invalidated_rkey == rkey));
        printf("region free again: %s\n", rc_name(ibv_dereg_mr(theirs)));
    }
    /* A QP that goes takes its windows along. */
    ZERO(ibv_dealloc_mw(mw));
    mw = NEED(ibv_alloc_mw(b.pd, IBV_MW_TYPE_2));
    ZERO(bind2(&b, mw, ibv_inc_rkey(mw->rkey), mr, 0, SIZE, WINDOW_ACCESS));
    show_status("bind", b.cq);
    printf("QP destroyed: %s\n", rc_name(ibv_destroy_qp(b.qp)));
    b.qp = old;
    connect_again();
    try_write("its rkey", (uintptr_t)b.buffer, 8, mw->rkey);
    ZERO(ibv_dealloc_mw(mw));
    ZERO(ibv_dealloc_mw(one));
}

int main(void)
{
    struct ibv_context *context;
    struct ibv_device_attr attr;
    struct ibv_pd *pd;
    struct ibv_mw *mw;

    start();
    context = open_device();
    ZERO(ibv_query_device(context, &attr));
    printf("windows %s, type 2B %s, extensions %s, some %s\n", yes(!!(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW)),
           yes(!!(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B)),
           yes(!!(attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS)), yes(attr.max_mw > 0));
    pd = NEED(ibv_alloc_pd(context));
    printf("unknown type: %s\n", pointer_name(ibv_alloc_mw(pd, 3)));
    mw = NEED(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    printf("PD of a window: %s\n", rc_name(ibv_dealloc_pd(pd)));
    ZERO(ibv_dealloc_mw(mw));
    ZERO(ibv_dealloc_pd(pd));
    make_side(&a, context, IBV_QPT_RC, SIZE);
    make_side(&b, context, IBV_QPT_RC, SIZE);
    mr = NEED(ibv_reg_mr(b.pd, b.buffer, SIZE, ALL_ACCESS | IBV_ACCESS_MW_BIND));
    join(&a, &b);
    type1();
    type2();
    in_order();
    extended();
    printf("deregister %s\n", rc_name(ibv_dereg_mr(mr)));
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
