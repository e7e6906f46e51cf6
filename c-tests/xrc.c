/* XRC: one receiving QP, several SRQs that senders choose by number. */
#include "common.h"

static struct ibv_context *context;
static struct ibv_xrcd *xrcd;
static struct side s;

static struct ibv_srq *make_srq(struct ibv_pd *pd, uint32_t *number)
{
    struct ibv_srq_init_attr_ex attr = {
        .attr = {.max_wr = 8, .max_sge = 1},
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
        .srq_type = IBV_SRQT_XRC,
        .pd = pd,
        .xrcd = xrcd,
        .cq = s.cq,
    };
    struct ibv_srq *srq = NEED(ibv_create_srq_ex(context, &attr));

    ZERO(ibv_get_srq_num(srq, number));
    return srq;
}

static struct ibv_qp *make_xrc(enum ibv_qp_type type, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr_ex attr = {.qp_type = type};

    if (type == IBV_QPT_XRC_SEND) {
        attr.send_cq = cq;
        attr.cap.max_send_wr = 8;
        attr.cap.max_send_sge = 1;
        attr.pd = s.pd;
        attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    } else {
        attr.xrcd = xrcd;
        attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    }
    return NEED(ibv_create_qp_ex(context, &attr));
}

static void send_xrc(struct ibv_qp *qp, struct ibv_cq *cq, uint32_t srqn, unsigned seed)
{
    struct ibv_sge sge = sge_of(&s, 0, 100);
    struct ibv_send_wr wr = {
        .wr_id = seed, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    fill(s.buffer, 100, seed);
    wr.qp_type.xrc.remote_srqn = srqn;
    ZERO(ibv_post_send(qp, &wr, &bad));
    show_next("send", cq);
}

/* RDMA and atomics: the PD of the SRQ that the request names is the one that counts. */
static void reach(const char *what, struct ibv_qp *qp, struct ibv_cq *cq, enum ibv_wr_opcode opcode, uint32_t srqn)
{
    struct ibv_sge sge = sge_of(&s, 4096, 8);
    struct ibv_send_wr wr = {
        .wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    uint64_t remote = (uintptr_t)s.buffer + 5000;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = remote;
        wr.wr.atomic.rkey = s.mr->rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = s.mr->rkey;
    }
    wr.qp_type.xrc.remote_srqn = srqn;
    ZERO(ibv_post_send(qp, &wr, &bad));
    show_next(what, cq);
}

static void connect_xrc(struct ibv_qp *out, struct ibv_qp *in)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    ZERO(ibv_modify_qp(in, &attr, IBV_QP_STATE));
    ZERO(ibv_modify_qp(out, &attr, IBV_QP_STATE));
    ZERO(to_init(in));
    ZERO(to_init(out));
    ZERO(to_rtr(in, out->qp_num, 10, &s.gid));
    ZERO(to_rtr(out, in->qp_num, 20, &s.gid));
    ZERO(to_rts(in, 20));
    ZERO(to_rts(out, 10));
}

static void post(struct ibv_srq *srq, uint64_t wr_id, size_t offset)
{
    struct ibv_sge sge = sge_of(&s, offset, 100);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    ZERO(ibv_post_srq_recv(srq, &wr, &bad));
}

int main(void)
{
    char name[] = "/tmp/anyverbs-xrc-XXXXXX";
    int fd;
    struct ibv_xrcd_init_attr init = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .oflags = O_CREAT};
    struct ibv_xrcd *again;
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_srq *one, *two, *other;
    uint32_t first, second, third;
    struct ibv_pd *other_pd;
    struct ibv_cq *cq;
    struct ibv_qp *out, *in;

    start();
    context = open_device();
    fd = mkstemp(name);
    if (fd < 0)
        die("mkstemp");
    unlink(name);
    make_side(&s, context, IBV_QPT_RC, 8192);
    cq = NEED(ibv_create_cq(context, 16, NULL, NULL, 0));
    init.fd = fd;
    init.oflags = 0;
    printf("a domain that nobody made: %s", pointer_name(ibv_open_xrcd(context, &init)));
    init.oflags = O_CREAT | O_EXCL;
    xrcd = NEED(ibv_open_xrcd(context, &init));
    printf(", made twice: %s", pointer_name(ibv_open_xrcd(context, &init)));
    init.oflags = 0;
    again = NEED(ibv_open_xrcd(context, &init));
    printf(", opened: %s\n", rc_name(ibv_close_xrcd(again)));
    ZERO(ibv_close_xrcd(xrcd));
    init.oflags = O_CREAT;
    xrcd = NEED(ibv_open_xrcd(context, &init));
    again = NEED(ibv_open_xrcd(context, &init));
    one = make_srq(s.pd, &first);
    two = make_srq(s.pd, &second);
    printf("numbers differ %s\n", yes(first != second));
    in = make_xrc(IBV_QPT_XRC_RECV, NULL);
    out = make_xrc(IBV_QPT_XRC_SEND, cq);
    printf("receiver: receive refused %s, send refused %s\n",
           yes(ibv_post_recv(in, &(struct ibv_recv_wr){.wr_id = 1}, &(struct ibv_recv_wr *){NULL}) != 0),
           yes(ibv_post_send(in, &(struct ibv_send_wr){.wr_id = 1}, &(struct ibv_send_wr *){NULL}) != 0));
    connect_xrc(out, in);

    post(one, 11, 1000);
    post(two, 22, 2000);
    send_xrc(out, cq, second, 5);
    show_next("  recv", s.cq);
    printf("  data %s\n", yes(filled(s.buffer + 2000, 100, 5)));
    send_xrc(out, cq, first, 6);
    show_next("  recv", s.cq);
    printf("  data %s\n", yes(filled(s.buffer + 1000, 100, 6)));

    post(one, 12, 3000);
    send_xrc(out, cq, first, 7);
    show_next("  recv", s.cq);

    memset(s.buffer + 4096, 1, 8);
    reach("write", out, cq, IBV_WR_RDMA_WRITE, first);
    reach("add", out, cq, IBV_WR_ATOMIC_FETCH_AND_ADD, second);
    printf("  data %s\n", yes(s.buffer[4096] == 1 && s.buffer[5000] == 2 && s.buffer[5001] == 1));
    reach("read", out, cq, IBV_WR_RDMA_READ, second);
    printf("  data %s\n", yes(s.buffer[4096] == 2));
    other_pd = NEED(ibv_alloc_pd(context));
    other = make_srq(other_pd, &third);
    for (int i = 0; i < 3; i++) {
        reach("by an SRQ of another PD", out, cq, opcodes[i], third);
        printf("  states %s %s, data %s\n", state_name(state_of(out)), state_name(state_of(in)), yes(s.buffer[5000] == 2));
        connect_xrc(out, in);
    }
    ZERO(ibv_destroy_srq(other));
    ZERO(ibv_dealloc_pd(other_pd));

    send_xrc(out, cq, first ^ 0x7ff, 8);
    printf("  states %s %s\n", state_name(state_of(out)), state_name(state_of(in)));
    ZERO(ibv_close_xrcd(again));
    printf("domain closed under its objects: refused %s\n", yes(ibv_close_xrcd(xrcd) != 0));
    ZERO(ibv_destroy_qp(out));
    ZERO(ibv_destroy_qp(in));
    ZERO(ibv_destroy_srq(one));
    ZERO(ibv_destroy_srq(two));
    printf("and after them: %s\n", rc_name(ibv_close_xrcd(xrcd)));
    ZERO(ibv_destroy_cq(cq));
    drop_side(&s);
    close(fd);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
