/* Sizes of queues and lists: as large as the device says they can be made and filled, and one more is refused. */
#include "common.h"

static struct ibv_context *context;
static struct ibv_device_attr attr;
static struct side s;

static struct ibv_qp *try_qp(enum ibv_qp_type type, struct ibv_qp_cap cap)
{
    struct ibv_qp_init_attr init = {.send_cq = s.cq, .recv_cq = s.cq, .cap = cap, .qp_type = type};

    return ibv_create_qp(s.pd, &init);
}

static void one_more(const char *what, struct ibv_qp_cap cap)
{
    printf("%s: %s\n", what, pointer_name(try_qp(IBV_QPT_RC, cap)));
}

/* Posts single receives until one is refused. */
static void fill_receives(const char *what, struct ibv_qp *qp, struct ibv_srq *srq, uint32_t max)
{
    struct ibv_recv_wr wr = {.num_sge = 0}, *bad = NULL;
    uint32_t n = 0;
    int rc;

    while ((rc = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) == 0 && n <= max)
        n++;
    printf("%s: as many as said %s, one more %s, named %s\n", what, yes(n == max), rc_name(rc), yes(bad == &wr));
}

static void work_requests(void)
{
    struct ibv_qp_cap cap = {.max_send_wr = (uint32_t)attr.max_qp_wr, .max_recv_wr = (uint32_t)attr.max_qp_wr};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad = NULL;
    struct ibv_qp *a = NEED(try_qp(IBV_QPT_RC, cap)), *b = NEED(try_qp(IBV_QPT_RC, cap));
    uint32_t n = 0;
    int rc;

    ZERO(to_init(a));
    ZERO(to_init(b));
    fill_receives("receives", a, NULL, cap.max_recv_wr);
    /* The peer has none, so nothing of this completes. */
    ZERO(to_rtr(a, b->qp_num, 200, &s.gid));
    ZERO(to_rtr(b, a->qp_num, 100, &s.gid));
    ZERO(to_rts(a, 100));
    while ((rc = ibv_post_send(a, &wr, &bad)) == 0 && n <= cap.max_send_wr)
        n++;
    printf("sends: as many as said %s, one more %s, named %s\n", yes(n == cap.max_send_wr), rc_name(rc), yes(bad == &wr));
    ZERO(ibv_destroy_qp(a));
    ZERO(ibv_destroy_qp(b));
    one_more("a longer send queue", (struct ibv_qp_cap){.max_send_wr = cap.max_send_wr + 1});
    one_more("a longer receive queue", (struct ibv_qp_cap){.max_recv_wr = cap.max_recv_wr + 1});
}

static void lists(void)
{
    uint32_t max = (uint32_t)attr.max_sge;
    struct ibv_qp_cap cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = max, .max_recv_sge = max};
    struct ibv_sge *from = NEED(calloc(max + 1, sizeof(*from))), *to = NEED(calloc(max + 1, sizeof(*to)));
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = to, .num_sge = (int)max}, *bad_receive;
    struct ibv_send_wr send = {.wr_id = 2,
                               .sg_list = from,
                               .num_sge = (int)max,
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad_send;
    struct side a = s, b = s;

    for (uint32_t i = 0; i <= max; i++) {
        from[i] = sge_of(&s, 3 * i, 3);
        to[i] = sge_of(&s, 4096 + 3 * i, 3);
    }
    a.qp = NEED(try_qp(IBV_QPT_RC, cap));
    b.qp = NEED(try_qp(IBV_QPT_RC, cap));
    join(&a, &b);
    fill(s.buffer, 3 * max, 5);
    ZERO(ibv_post_recv(b.qp, &receive, &bad_receive));
    ZERO(ibv_post_send(a.qp, &send, &bad_send));
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next_wc(s.cq);

        if (wc.status != IBV_WC_SUCCESS)
            die("%s", ibv_wc_status_str(wc.status));
    }
    printf("lists as long as said: data %s", yes(filled(s.buffer + 4096, 3 * max, 5)));
    receive.num_sge = send.num_sge = (int)max + 1;
    printf(", one more %s", rc_name(ibv_post_recv(b.qp, &receive, &bad_receive)));
    printf(" %s\n", rc_name(ibv_post_send(a.qp, &send, &bad_send)));
    memset(s.buffer, 0, 3 * max);
    send.num_sge = attr.max_sge_rd;
    send.opcode = IBV_WR_RDMA_READ;
    send.wr.rdma.remote_addr = (uintptr_t)s.buffer + 4096;
    send.wr.rdma.rkey = s.mr->rkey;
    ZERO(ibv_post_send(a.qp, &send, &bad_send));
    show_next("a READ into as many", s.cq);
    printf("data %s\n", yes(filled(s.buffer, 3 * (size_t)attr.max_sge_rd, 5)));
    ZERO(ibv_destroy_qp(a.qp));
    ZERO(ibv_destroy_qp(b.qp));
    one_more("a longer list to send", (struct ibv_qp_cap){.max_send_wr = 1, .max_send_sge = max + 1});
    one_more("a longer list to receive", (struct ibv_qp_cap){.max_recv_wr = 1, .max_recv_sge = max + 1});
    free(from);
    free(to);
}

/* How much inline data there is is not told by the device: the most that a QP is made with is the limit. */
static void inline_data(void)
{
    uint32_t most = 0, step = 1 << 16;

    for (; step > 0; step /= 2) {
        struct ibv_qp *qp = try_qp(IBV_QPT_RC, (struct ibv_qp_cap){.max_send_wr = 1, .max_inline_data = most + step});

        if (qp) {
            most += step;
            ZERO(ibv_destroy_qp(qp));
        }
    }
    printf("inline data of 1024 bytes %s\n", yes(most >= 1024));
    one_more("one more", (struct ibv_qp_cap){.max_send_wr = 1, .max_inline_data = most + 1});
}

static void completion_queues(void)
{
    struct ibv_cq *cq = NEED(ibv_create_cq(context, attr.max_cqe, NULL, NULL, context->num_comp_vectors - 1));

    printf("a CQ of the most entries %s, resized to one more %s", yes(cq->cqe >= attr.max_cqe),
           rc_name(ibv_resize_cq(cq, attr.max_cqe + 1)));
    printf(", to fewer %s", rc_name(ibv_resize_cq(cq, 1)));
    printf(", to the most %s\n", rc_name(ibv_resize_cq(cq, attr.max_cqe)));
    ZERO(ibv_destroy_cq(cq));
    printf("made with one more: %s", pointer_name(ibv_create_cq(context, attr.max_cqe + 1, NULL, NULL, 0)));
    printf(", with none: %s", pointer_name(ibv_create_cq(context, 0, NULL, NULL, 0)));
    printf(", one vector more: %s\n", pointer_name(ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors)));
}

static void shared_receive_queues(void)
{
    struct ibv_srq_init_attr init = {
        .attr = {.max_wr = (uint32_t)attr.max_srq_wr, .max_sge = (uint32_t)attr.max_srq_sge}};
    struct ibv_srq_attr larger = {.max_wr = (uint32_t)attr.max_srq_wr + 1};
    struct ibv_srq *srq = NEED(ibv_create_srq(s.pd, &init));

    fill_receives("an SRQ", NULL, srq, init.attr.max_wr);
    printf("resized to one more %s\n", rc_name(ibv_modify_srq(srq, &larger, IBV_SRQ_MAX_WR)));
    ZERO(ibv_destroy_srq(srq));
    init.attr = (struct ibv_srq_attr){.max_wr = (uint32_t)attr.max_srq_wr + 1, .max_sge = 1};
    printf("a longer one: %s", pointer_name(ibv_create_srq(s.pd, &init)));
    init.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = (uint32_t)attr.max_srq_sge + 1};
    printf(", of longer lists: %s\n", pointer_name(ibv_create_srq(s.pd, &init)));
}

static void outstanding_reads(void)
{
    for (int more = 0; more < 2; more++) {
        struct ibv_qp *qp = NEED(try_qp(IBV_QPT_RC, (struct ibv_qp_cap){.max_send_wr = 1}));
        struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                                  .path_mtu = IBV_MTU_1024,
                                  .dest_qp_num = qp->qp_num,
                                  .max_dest_rd_atomic = (uint8_t)(attr.max_qp_rd_atom + more),
                                  .min_rnr_timer = 1,
                                  .ah_attr = ah_to(&s.gid)};
        struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                                  .max_rd_atomic = (uint8_t)(attr.max_qp_init_rd_atom + more)};
        int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

        ZERO(to_init(qp));
        printf("READs of the peer%s: %s", more ? ", one more" : "", rc_name(ibv_modify_qp(qp, &rtr, mask)));
        if (more)
            ZERO(to_rtr(qp, qp->qp_num, 0, &s.gid));
        mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_MAX_QP_RD_ATOMIC;
        printf(", its own: %s\n", rc_name(ibv_modify_qp(qp, &rts, mask)));
        ZERO(ibv_destroy_qp(qp));
    }
}

static union ibv_gid group(uint32_t n)
{
    union ibv_gid gid;
    char text[64];

    /* Groups of this run's own. */
    snprintf(text, sizeof(text), "ff15:%x:%x:%x::1", (unsigned)getpid() & 0xffff, n >> 16, n & 0xffff);
    if (inet_pton(AF_INET6, text, &gid) != 1)
        die("%s", text);
    return gid;
}

static void multicast(void)
{
    uint32_t each = (uint32_t)attr.max_mcast_qp_attach, total = (uint32_t)attr.max_total_mcast_qp_attach;
    struct ibv_qp **qps = NEED(calloc(each + 1, sizeof(*qps)));
    struct ibv_qp_cap cap = {.max_send_wr = 1, .max_recv_wr = 1};
    uint32_t n = 0, groups = (uint32_t)attr.max_mcast_grp;
    union ibv_gid gid = group(0);

    for (uint32_t i = 0; i <= each; i++) {
        qps[i] = NEED(try_qp(IBV_QPT_UD, cap));
        ZERO(to_init(qps[i]));
    }
    /* One QP in all groups. */
    for (; n < groups; n++) {
        gid = group(n);
        ZERO(ibv_attach_mcast(qps[0], &gid, 0));
    }
    gid = group(groups);
    printf("one more group: %s", rc_name(ibv_attach_mcast(qps[0], &gid, 0)));
    gid = group(groups - 1);
    printf(", a known one: %s\n", rc_name(ibv_attach_mcast(qps[1], &gid, 0)));
    ZERO(ibv_detach_mcast(qps[1], &gid, 0));
    while (n-- > 0) {
        gid = group(n);
        ZERO(ibv_detach_mcast(qps[0], &gid, 0));
    }
    /* All QPs in as many groups as that makes the total. */
    for (n = 0; n < total; n++) {
        gid = group(n / each);
        ZERO(ibv_attach_mcast(qps[n % each], &gid, 0));
    }
    printf("one more QP in a group: %s", rc_name(ibv_attach_mcast(qps[each], &gid, 0)));
    gid = group(total / each);
    printf(", one more in all: %s", rc_name(ibv_attach_mcast(qps[0], &gid, 0)));
    gid = group(0);
    ZERO(ibv_detach_mcast(qps[0], &gid, 0));
    printf(", instead of another: %s\n", rc_name(ibv_attach_mcast(qps[each], &gid, 0)));
    ZERO(ibv_detach_mcast(qps[each], &gid, 0));
    for (n = 1; n < total; n++) {
        gid = group(n / each);
        ZERO(ibv_detach_mcast(qps[n % each], &gid, 0));
    }
    for (uint32_t i = 0; i <= each; i++)
        ZERO(ibv_destroy_qp(qps[i]));
    free(qps);
}

static void tables(void)
{
    struct ibv_port_attr port;
    union ibv_gid gid;
    __be16 pkey;

    ZERO(ibv_query_port(context, PORT, &port));
    printf("P_Keys: the last %s", rc_name(ibv_query_pkey(context, PORT, port.pkey_tbl_len - 1, &pkey)));
    printf(", one more %s, as the device says %s\n", yes(ibv_query_pkey(context, PORT, port.pkey_tbl_len, &pkey) != 0),
           yes(port.pkey_tbl_len == attr.max_pkeys));
    printf("GIDs: one more %s\n", yes(ibv_query_gid(context, PORT, port.gid_tbl_len, &gid) != 0));
    printf("ports: one more %s\n", rc_name(ibv_query_port(context, (uint8_t)(attr.phys_port_cnt + 1), &port)));
}

static void device_memory(void)
{
    struct ibv_device_attr_ex more;
    struct ibv_alloc_dm_attr wanted = {0};
    struct ibv_dm *dm;

    ZERO(ibv_query_device_ex(context, NULL, &more));
    wanted.length = more.max_dm_size;
    dm = NEED(ibv_alloc_dm(context, &wanted));
    wanted.length = 1;
    printf("device memory beyond all of it: %s", pointer_name(ibv_alloc_dm(context, &wanted)));
    ZERO(ibv_free_dm(dm));
    wanted.length = more.max_dm_size + 1;
    printf(", more at once: %s\n", pointer_name(ibv_alloc_dm(context, &wanted)));
}

int main(void)
{
    start();
    context = open_device();
    ZERO(ibv_query_device(context, &attr));
    make_side(&s, context, IBV_QPT_RC, 8192);
    work_requests();
    lists();
    inline_data();
    completion_queues();
    shared_receive_queues();
    outstanding_reads();
    multicast();
    tables();
    device_memory();
    drop_side(&s);
    ZERO(ibv_close_device(context));
    return 0;
}
