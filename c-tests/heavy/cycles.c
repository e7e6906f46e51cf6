/*
 * cycles [-n COUNT] OBJECT...: each object (all of them without a name) made and unmade COUNT times, QPs connected, after
 * as many to warm: memory stays flat, and no descriptor is left. A line for each.
 */
#include "heavy.h"

/* Bytes that COUNT cycles may add: what the allocator and the library's tables move by themselves. */
enum { SLACK = 256 * 1024 };

static struct side s;
static struct ibv_srq *srq;
static struct ibv_xrcd *xrcd;
static struct ibv_mr *bindable;
static struct ibv_ah_attr ah_attr;

static void pd(void)
{
    ZERO(ibv_dealloc_pd(NEED(ibv_alloc_pd(s.context))));
}

static void mr(void)
{
    ZERO(ibv_dereg_mr(NEED(ibv_reg_mr(s.pd, s.buffer, s.size, ALL_ACCESS))));
}

static void null_mr(void)
{
    ZERO(ibv_dereg_mr(NEED(ibv_alloc_null_mr(s.pd))));
}

static void rereg_mr(void)
{
    struct ibv_mr *region = NEED(ibv_reg_mr(s.pd, s.buffer, s.size, ALL_ACCESS));

    ZERO(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, s.buffer + 64, 64, 0));
    ZERO(ibv_dereg_mr(region));
}

static void window_1(void)
{
    ZERO(ibv_dealloc_mw(NEED(ibv_alloc_mw(s.pd, IBV_MW_TYPE_1))));
}

/* Bound by an RC QP to the region, and unmade while bound. */
static void window_2(void)
{
    struct ibv_mw *mw = NEED(ibv_alloc_mw(s.pd, IBV_MW_TYPE_2));
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){bindable, (uintptr_t)s.buffer, 64, IBV_ACCESS_REMOTE_READ};
    ZERO(ibv_post_send(s.qp, &wr, &bad));
    if (next_wc(s.cq).status)
        die("bind");
    ZERO(ibv_dealloc_mw(mw));
}

static void cq(void)
{
    ZERO(ibv_destroy_cq(NEED(ibv_create_cq(s.context, 256, NULL, NULL, 0))));
}

static void cq_ex(void)
{
    struct ibv_cq_init_attr_ex attr = {
        .cqe = 256, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};

    ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(NEED(ibv_create_cq_ex(s.context, &attr)))));
}

static void cq_resized(void)
{
    struct ibv_cq *one = NEED(ibv_create_cq(s.context, 16, NULL, NULL, 0));

    ZERO(ibv_resize_cq(one, 500));
    ZERO(ibv_destroy_cq(one));
}

static void channel(void)
{
    struct ibv_comp_channel *one = NEED(ibv_create_comp_channel(s.context));
    struct ibv_cq *armed = NEED(ibv_create_cq(s.context, 16, NULL, one, 0));

    ZERO(ibv_req_notify_cq(armed, 0));
    ZERO(ibv_destroy_cq(armed));
    ZERO(ibv_destroy_comp_channel(one));
}

static void srqs(void)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 128, .max_sge = 1}};
    struct ibv_srq *one = NEED(ibv_create_srq(s.pd, &attr));
    struct ibv_sge sge = sge_of(&s, 0, 64);
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

    ZERO(ibv_post_srq_recv(one, &wr, &bad));
    ZERO(ibv_destroy_srq(one));
}

static void xrcds(void)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};

    ZERO(ibv_close_xrcd(NEED(ibv_open_xrcd(s.context, &attr))));
}

static void xrc_srq(void)
{
    struct ibv_srq_init_attr_ex attr = {
        .attr = {.max_wr = 128, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = s.pd, .xrcd = xrcd, .cq = s.cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD};

    ZERO(ibv_destroy_srq(NEED(ibv_create_srq_ex(s.context, &attr))));
}

static struct ibv_qp *qp_of(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = s.cq, .recv_cq = s.cq, .qp_type = type, .pd = s.pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
        .cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 2, .max_recv_sge = 2}};

    if (type == IBV_QPT_XRC_RECV) {
        attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        attr.xrcd = xrcd;
    }
    return NEED(ibv_create_qp_ex(s.context, &attr));
}

/* Two QPs, each other's peer; one message goes over those that have both halves. */
static void two(enum ibv_qp_type first, enum ibv_qp_type second)
{
    struct ibv_qp *qps[2] = {qp_of(first), qp_of(second)};
    struct ibv_ah *ah = NULL;
    struct ibv_sge sge = sge_of(&s, 0, 64), into = sge_of(&s, 1024, 128);
    struct ibv_recv_wr receive = {.sg_list = &into, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    for (int i = 0; i < 2; i++)
        ZERO(to_init(qps[i]));
    for (int i = 0; i < 2; i++) {
        ZERO(to_rtr(qps[i], qps[!i]->qp_num, 100, &s.gid));
        ZERO(to_rts(qps[i], 100));
    }
    if (first == second) {
        if (first == IBV_QPT_UD) {
            send.wr.ud.ah = ah = NEED(ibv_create_ah(s.pd, &ah_attr));
            send.wr.ud.remote_qpn = qps[1]->qp_num;
            send.wr.ud.remote_qkey = QKEY;
        }
        ZERO(ibv_post_recv(qps[1], &receive, &bad_receive));
        ZERO(ibv_post_send(qps[0], &send, &bad));
        for (int i = 0; i < 2; i++)
            if (next_wc(s.cq).status)
                die("a completion in error");
    }
    if (ah)
        ZERO(ibv_destroy_ah(ah));
    for (int i = 0; i < 2; i++)
        ZERO(ibv_destroy_qp(qps[i]));
}

static void rc(void)
{
    two(IBV_QPT_RC, IBV_QPT_RC);
}

static void uc(void)
{
    two(IBV_QPT_UC, IBV_QPT_UC);
}

static void ud(void)
{
    two(IBV_QPT_UD, IBV_QPT_UD);
}

static void xrc(void)
{
    two(IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV);
}

static void rc_over_srq(void)
{
    ZERO(ibv_destroy_qp(make_qp(&s, IBV_QPT_RC, srq)));
}

static void ah(void)
{
    ZERO(ibv_destroy_ah(NEED(ibv_create_ah(s.pd, &ah_attr))));
}

static void dm(void)
{
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    struct ibv_dm *one = NEED(ibv_alloc_dm(s.context, &attr));
    struct ibv_mr *region = NEED(ibv_reg_dm_mr(s.pd, one, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED));

    ZERO(ibv_dereg_mr(region));
    ZERO(ibv_free_dm(one));
}

static void domains(void)
{
    struct ibv_td_init_attr attr = {0};
    struct ibv_td *td = NEED(ibv_alloc_td(s.context, &attr));
    struct ibv_parent_domain_init_attr parent = {.pd = s.pd, .td = td};

    ZERO(ibv_dealloc_pd(NEED(ibv_alloc_parent_domain(s.context, &parent))));
    ZERO(ibv_dealloc_td(td));
}

static void context(void)
{
    ZERO(ibv_close_device(open_device()));
}

static const struct object {
    const char *name;
    void (*cycle)(void);
} objects[] = {
    {"pd", pd},       {"mr", mr},           {"null-mr", null_mr}, {"mr-rereg", rereg_mr}, {"mw-1", window_1},
    {"mw-2", window_2}, {"cq", cq},         {"cq-ex", cq_ex},     {"cq-resize", cq_resized}, {"channel", channel},
    {"srq", srqs},    {"xrcd", xrcds},      {"xrc-srq", xrc_srq}, {"rc", rc},             {"uc", uc},
    {"ud", ud},       {"xrc", xrc},         {"rc-srq", rc_over_srq}, {"ah", ah},          {"dm", dm},
    {"td", domains},  {"context", context},
};

static void measure(const struct object *o)
{
    long before, fds, grown, fds_now;
    uint64_t from;

    for (long i = 0; i < count; i++)
        o->cycle();
    before = used();
    fds = open_fds();
    from = now_ms();
    for (long i = 0; i < count; i++)
        o->cycle();
    grown = used() - before;
    fds_now = open_fds();
    printf("%s: %ld cycles in %" PRIu64 " ms, %ld KiB, %ld descriptors\n", o->name, count, now_ms() - from, grown / 1024,
           fds_now - fds);
    if (grown > SLACK)
        die("%s: %ld cycles cost %ld bytes", o->name, count, grown);
    if (fds_now > fds)
        die("%s: %ld cycles cost %ld descriptors", o->name, count, fds_now - fds);
}

int main(int argc, char **argv)
{
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_xrcd_init_attr xrcd_attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    size_t n = sizeof(objects) / sizeof(objects[0]);
    struct side peer;

    options(argc, argv, 100000, 600);
    make_side(&s, open_device(), IBV_QPT_RC, 8192);
    make_side(&peer, s.context, IBV_QPT_RC, 64);
    join(&s, &peer);
    ah_attr = ah_to(&s.gid);
    srq = NEED(ibv_create_srq(s.pd, &srq_attr));
    xrcd = NEED(ibv_open_xrcd(s.context, &xrcd_attr));
    bindable = NEED(ibv_reg_mr(s.pd, s.buffer, s.size, ALL_ACCESS | IBV_ACCESS_MW_BIND));
    for (size_t i = 0; i < n; i++) {
        int wanted = optind == argc;

        for (int word = optind; word < argc; word++)
            wanted |= !strcmp(argv[word], objects[i].name);
        if (wanted)
            measure(&objects[i]);
    }
    ZERO(ibv_dereg_mr(bindable));
    ZERO(ibv_close_xrcd(xrcd));
    ZERO(ibv_destroy_srq(srq));
    drop_side(&peer);
    {
        struct ibv_context *last = s.context;

        drop_side(&s);
        ZERO(ibv_close_device(last));
    }
    return 0;
}
