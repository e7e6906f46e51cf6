/*
 * Mistakes that newcomers make, and the line with which the library explains each. Numbers that a run chooses have names:
 * A and B are the QPs, keys and buffers of the two sides; other large numbers are 0x#.
 */
#include "common.h"

static struct ibv_context *context;
static struct side a, b;
static struct ibv_mr *other_mr, *read_only;
static struct ibv_pd *other_pd;
static int words;
static off_t words_read;

/* Whose number this is; NULL where it is nobody's. */
static const char *name_of(uint64_t n)
{
    static char text[64];
    const struct side *sides[] = {&a, &b};

    for (int i = 0; i < 2; i++) {
        const struct side *s = sides[i];
        char letter = "AB"[i];

        if (s->qp && n == s->qp->qp_num)
            snprintf(text, sizeof(text), "QP.%c", letter);
        else if (s->mr && n == s->mr->lkey)
            snprintf(text, sizeof(text), "KEY.%c", letter);
        else if (s->buffer && n >= (uintptr_t)s->buffer && n <= (uintptr_t)s->buffer + s->size)
            snprintf(text, sizeof(text), "BUFFER.%c+%" PRIu64, letter, n - (uintptr_t)s->buffer);
        else
            continue;
        return text;
    }
    if (other_mr && n == other_mr->lkey)
        return "KEY.OTHER";
    if (read_only && n == read_only->lkey)
        return "KEY.READ_ONLY";
    return n > 0xffff ? "0x#" : NULL;
}

/* Prints what was said since the last time, with names for numbers. */
static void told(const char *mistake)
{
    static char text[8192];
    ssize_t n = pread(words, text, sizeof(text) - 1, words_read);
    struct ibv_port_attr port;
    char last[32], mtu[32];

    text[n > 0 ? n : 0] = 0;
    words_read += n > 0 ? n : 0;
    ZERO(ibv_query_port(context, PORT, &port));
    snprintf(last, sizeof(last), "expected 0 to %d\n", port.gid_tbl_len - 1);
    snprintf(mtu, sizeof(mtu), "active_mtu, %u", 128u << port.active_mtu);
    printf("%s\n", mistake);
    if (!*text)
        printf("    (nothing)\n");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        printf("    ");
        for (char *c = line; *c;) {
            char *end = c;
            const char *name = NULL;

            /* A small key may be the same number as what a line expects. */
            if (c[0] == '0' && c[1] == 'x' && (c - line < 8 || strncmp(c - 8, "bits of ", 8)))
                name = name_of(strtoull(c, &end, 16));
            /* A QP's number, however small it is. */
            if (!name && end - c == 8 && c - line >= 3 && !strncmp(c - 3, "qp", 2))
                name = "0x#";
            if (name) {
                printf("%s", name);
                c = end;
            } else if (strstr(line, "gid") && !strncmp(c, last, strlen(last) - 1)) {
                printf("expected 0 to LAST");
                c += strlen(last) - 1;
            } else if (!strncmp(c, mtu, strlen(mtu))) {
                printf("active_mtu, MTU");
                c += strlen(mtu);
            } else {
                putchar(*c++);
            }
        }
        printf("\n");
    }
}

static void fresh(enum ibv_qp_type type)
{
    make_side(&a, context, type, 8192);
    make_side(&b, context, type, 8192);
}

static void connected(enum ibv_qp_type type)
{
    fresh(type);
    join(&a, &b);
}

static void gone(void)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};

    while (poll(&fd, 1, 0) == 1) {
        struct ibv_async_event event;

        ZERO(ibv_get_async_event(context, &event));
        ibv_ack_async_event(&event);
    }
    drop_side(&a);
    drop_side(&b);
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
}

static void fails(int rc)
{
    if (rc == 0)
        die("it was not refused");
}

static void no_object(const void *made)
{
    if (made)
        die("it was made");
}

static struct ibv_qp_attr rtr(void)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = 7,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = ah_to(&a.gid),
    };

    return attr;
}

#define RTR_MASK                                                                                                      \
    (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |       \
     IBV_QP_MIN_RNR_TIMER)

static void connecting(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};

    fresh(IBV_QPT_RC);
    fails(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
    told("RESET to RTS");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 2};
    fails(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    told("a port that is not there");
    ZERO(to_init(a.qp));
    attr = rtr();
    fails(ibv_modify_qp(a.qp, &attr, RTR_MASK & ~IBV_QP_DEST_QPN));
    told("RTR without one attribute");
    fails(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
    told("RTR without any");
    fails(ibv_modify_qp(a.qp, &attr, RTR_MASK | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN));
    told("RTR with what belongs to RTS");
    attr.ah_attr.is_global = 0;
    fails(ibv_modify_qp(a.qp, &attr, RTR_MASK));
    told("RTR without a GRH");
    attr = rtr();
    attr.ah_attr.grh.sgid_index = 99;
    fails(ibv_modify_qp(a.qp, &attr, RTR_MASK));
    told("a GID index beyond the table");
    attr = rtr();
    memset(&attr.ah_attr.grh.dgid, 0, 16);
    fails(ibv_modify_qp(a.qp, &attr, RTR_MASK));
    told("no destination GID");
    attr = rtr();
    attr.path_mtu = 1024;
    fails(ibv_modify_qp(a.qp, &attr, RTR_MASK));
    told("an MTU in bytes");
    ZERO(to_rtr(a.qp, 7, 1, &a.gid));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 40, .retry_cnt = 7, .rnr_retry = 7};
    fails(ibv_modify_qp(a.qp, &attr,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_MAX_QP_RD_ATOMIC));
    told("a timeout out of range");
    gone();
}

static void creating(void)
{
    struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1u << 20}};
    struct ibv_ah_attr ah;
    struct ibv_cq *small;
    struct ibv_wc wc;

    connected(IBV_QPT_RC);
    qp.send_cq = qp.recv_cq = a.cq;
    no_object(ibv_create_qp(a.pd, &qp));
    told("a send queue too long");
    qp.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_send_sge = 1000};
    no_object(ibv_create_qp(a.pd, &qp));
    told("too many SGEs per request");
    qp.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_inline_data = 1u << 20};
    no_object(ibv_create_qp(a.pd, &qp));
    told("too much inline data");
    qp.cap.max_inline_data = 0;
    qp.qp_type = IBV_QPT_RAW_PACKET;
    no_object(ibv_create_qp(a.pd, &qp));
    told("a raw packet QP");
    qp.qp_type = IBV_QPT_RC;
    qp.recv_cq = NULL;
    no_object(ibv_create_qp(a.pd, &qp));
    told("no recv_cq");
    no_object(ibv_create_cq(context, 0, NULL, NULL, 0));
    told("a CQ of no entries");
    ah = ah_to(&a.gid);
    ah.is_global = 0;
    no_object(ibv_create_ah(a.pd, &ah));
    told("an address handle without a GRH");
    no_object(ibv_reg_mr(a.pd, a.buffer, 4096, IBV_ACCESS_REMOTE_WRITE));
    told("REMOTE_WRITE without LOCAL_WRITE");
    no_object(ibv_reg_mr(a.pd, a.buffer, 4096, 1 << 15));
    told("an access flag that is none");
    no_object(ibv_reg_mr(a.pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE));
    told("memory that is not there");
    small = NEED(ibv_create_cq(context, 8, NULL, NULL, 0));
    fails(ibv_resize_cq(small, 0));
    told("a CQ resized to nothing");
    ZERO(ibv_destroy_cq(small));
    for (unsigned i = 0; i < 3; i++) {
        ZERO(recv_one(&b, i, 0, 8));
        ZERO(send_one(&a, i, 0, 8, IBV_SEND_SIGNALED));
    }
    fails(ibv_resize_cq(a.cq, 2));
    told("a CQ resized below what it holds");
    while (ibv_poll_cq(a.cq, 1, &wc) > 0)
        ;
    gone();
}

static void destroying(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq_attr attr = {.srq_limit = 9};
    struct ibv_srq *srq;
    struct ibv_qp *qp;

    connected(IBV_QPT_RC);
    fails(ibv_dealloc_pd(a.pd));
    told("a PD in use");
    fails(ibv_destroy_cq(a.cq));
    told("a CQ in use");
    srq = NEED(ibv_create_srq(a.pd, &init));
    qp = make_qp(&a, IBV_QPT_RC, srq);
    fails(ibv_destroy_srq(srq));
    told("an SRQ in use");
    fails(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    told("an SRQ limit above its size");
    {
        struct ibv_sge sge = sge_of(&a, 0, 8);
        struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

        for (int i = 0; i < 8; i++)
            ZERO(ibv_post_srq_recv(srq, &wr, &bad));
        fails(ibv_post_srq_recv(srq, &wr, &bad));
        told("a full SRQ");
        attr.max_wr = 4;
        fails(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
        told("an SRQ resized below what it holds");
        fails(ibv_post_recv(qp, &wr, &bad));
        told("a receive on a QP with an SRQ");
    }
    ZERO(ibv_destroy_qp(qp));
    ZERO(ibv_destroy_srq(srq));
    gone();
}

static void posting(void)
{
    struct ibv_sge sges[8];
    struct ibv_send_wr wr = {.wr_id = 5, .sg_list = sges, .num_sge = 5, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_recv_wr rwr = {.wr_id = 6, .sg_list = sges, .num_sge = 5}, *rbad;

    fresh(IBV_QPT_RC);
    for (int i = 0; i < 8; i++)
        sges[i] = sge_of(&a, 0, 64);
    fails(recv_one(&a, 1, 0, 8));
    told("a receive in RESET");
    ZERO(to_init(a.qp));
    fails(send_one(&a, 1, 0, 8, 0));
    told("a send in INIT");
    ZERO(to_init(b.qp));
    ZERO(to_rtr(a.qp, b.qp->qp_num, 1, &a.gid));
    ZERO(to_rtr(b.qp, a.qp->qp_num, 1, &a.gid));
    ZERO(to_rts(a.qp, 1));
    ZERO(to_rts(b.qp, 1));
    fails(ibv_post_send(a.qp, &wr, &bad));
    told("a send of too many SGEs");
    fails(ibv_post_recv(a.qp, &rwr, &rbad));
    told("a receive of too many SGEs");
    sges[0].length = 1000;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_INLINE;
    fails(ibv_post_send(a.qp, &wr, &bad));
    told("inline data too long");
    wr.send_flags = 0;
    wr.opcode = IBV_WR_TSO;
    fails(ibv_post_send(a.qp, &wr, &bad));
    told("an opcode that is not for the QP");
    for (int i = 0; i < 32; i++)
        ZERO(recv_one(&a, 1, 0, 8));
    fails(recv_one(&a, 2, 0, 8));
    told("a full receive queue");
    for (int i = 0; i < 32; i++)
        ZERO(send_one(&a, 1, 0, 8, 0));
    fails(send_one(&a, 2, 0, 8, 0));
    told("a full send queue");
    gone();
}

/* One request of a to b that fails. */
static void fail_with(const char *mistake, enum ibv_wr_opcode opcode, const struct ibv_sge *local, uint64_t addr,
                      uint32_t rkey)
{
    struct ibv_sge sge = *local;
    struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
    struct ibv_wc wc;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = addr;
        wr.wr.atomic.rkey = rkey;
    } else {
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
    }
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    wc = next_wc(a.cq);
    if (wc.status == IBV_WC_SUCCESS)
        die("%s: it succeeded", mistake);
    told(mistake);
    gone();
}

static void moving(void)
{
    struct ibv_sge sge;

    connected(IBV_QPT_RC);
    sge = sge_of(&a, 0, 4097);
    fail_with("a WRITE one byte beyond the region", IBV_WR_RDMA_WRITE, &sge, (uintptr_t)b.buffer + 4096, b.mr->rkey);

    connected(IBV_QPT_RC);
    read_only = NEED(ibv_reg_mr(b.pd, b.buffer, 8192, IBV_ACCESS_REMOTE_READ));
    sge = sge_of(&a, 0, 64);
    {
        struct ibv_mr *mr = read_only;
        struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

        wr.wr.rdma.remote_addr = (uintptr_t)b.buffer;
        wr.wr.rdma.rkey = mr->rkey;
        ZERO(ibv_post_send(a.qp, &wr, &bad));
        next_wc(a.cq);
        told("a WRITE to a region that allows reads only");
        ZERO(ibv_dereg_mr(mr));
        read_only = NULL;
        gone();
    }

    connected(IBV_QPT_RC);
    sge = sge_of(&a, 0, 64);
    fail_with("a READ by a key that is none", IBV_WR_RDMA_READ, &sge, (uintptr_t)b.buffer, 0xfffffe01);

    connected(IBV_QPT_RC);
    {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};

        ZERO(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    }
    sge = sge_of(&a, 0, 64);
    fail_with("a READ from a QP that allows none", IBV_WR_RDMA_READ, &sge, (uintptr_t)b.buffer, b.mr->rkey);

    connected(IBV_QPT_RC);
    other_pd = NEED(ibv_alloc_pd(context));
    other_mr = NEED(ibv_reg_mr(other_pd, a.buffer, 8192, ALL_ACCESS));
    ZERO(recv_one(&b, 1, 0, 64));
    sge = sge_of(&a, 0, 64);
    sge.lkey = other_mr->lkey;
    fail_with("a SEND by the lkey of another PD", IBV_WR_SEND, &sge, 0, 0);
    ZERO(ibv_dereg_mr(other_mr));
    ZERO(ibv_dealloc_pd(other_pd));
    other_mr = NULL;

    connected(IBV_QPT_RC);
    sge = sge_of(&a, 8192 - 63, 64);
    fail_with("a SEND from beyond the region", IBV_WR_SEND, &sge, 0, 0);

    connected(IBV_QPT_RC);
    ZERO(recv_one(&b, 9, 0, 10));
    sge = sge_of(&a, 0, 11);
    fail_with("a receive too short", IBV_WR_SEND, &sge, 0, 0);

    connected(IBV_QPT_RC);
    sge = sge_of(&a, 0, 8);
    fail_with("an atomic that is not aligned", IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, (uintptr_t)b.buffer + 4, b.mr->rkey);

    connected(IBV_QPT_RC);
    sge = sge_of(&a, 0, 4);
    fail_with("an atomic of four bytes", IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, (uintptr_t)b.buffer, b.mr->rkey);
}

/* To INIT from wherever it is. */
static void begin_anew(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    ZERO(to_init(qp));
}

/* To RTS with few retries. */
static void few_retries(void)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 8, .retry_cnt = 2, .rnr_retry = 1, .max_rd_atomic = 1};

    fresh(IBV_QPT_RC);
    ZERO(to_init(a.qp));
    ZERO(to_init(b.qp));
    ZERO(to_rtr(a.qp, b.qp->qp_num, 1, &b.gid));
    ZERO(to_rtr(b.qp, a.qp->qp_num, 1, &a.gid));
    ZERO(ibv_modify_qp(a.qp, &attr,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC));
}

static void waiting(void)
{
    struct ibv_sge sge;

    few_retries();
    sge = sge_of(&a, 0, 8);
    fail_with("no receive is posted", IBV_WR_SEND, &sge, 0, 0);
    few_retries();
    ZERO(to_err(b.qp));
    sge = sge_of(&a, 0, 8);
    fail_with("the peer's QP is in ERR", IBV_WR_SEND, &sge, 0, 0);
    few_retries();
    begin_anew(b.qp);
    sge = sge_of(&a, 0, 8);
    fail_with("the peer's QP is in INIT", IBV_WR_SEND, &sge, 0, 0);
    few_retries();
    begin_anew(b.qp);
    ZERO(to_rtr(b.qp, a.qp->qp_num, 7, &a.gid));
    sge = sge_of(&a, 0, 8);
    fail_with("the peer expects another PSN", IBV_WR_SEND, &sge, 0, 0);
    few_retries();
    begin_anew(b.qp);
    ZERO(to_rtr(b.qp, b.qp->qp_num, 1, &b.gid));
    sge = sge_of(&a, 0, 8);
    fail_with("the peer is connected to another QP", IBV_WR_SEND, &sge, 0, 0);
}

/* An XRC sender names an SRQ that is none. */
static void naming(void)
{
    struct ibv_xrcd_init_attr none = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *domain = NEED(ibv_open_xrcd(context, &none));
    struct ibv_qp_init_attr_ex receiver = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain};
    struct ibv_qp_init_attr sender = {.qp_type = IBV_QPT_XRC_SEND, .cap = {.max_send_wr = 1, .max_send_sge = 1}};
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

    fresh(IBV_QPT_RC);
    ZERO(ibv_destroy_qp(a.qp));
    ZERO(ibv_destroy_qp(b.qp));
    sender.send_cq = a.cq;
    a.qp = NEED(ibv_create_qp(a.pd, &sender));
    b.qp = NEED(ibv_create_qp_ex(context, &receiver));
    join(&a, &b);
    sge = sge_of(&a, 0, 8);
    wr.qp_type.xrc.remote_srqn = 7;
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    if (next_wc(a.cq).status != IBV_WC_REM_INV_REQ_ERR)
        die("it was taken");
    told("an SRQ number that is none");
    gone();
    ZERO(ibv_close_xrcd(domain));
}

static void datagrams(void)
{
    struct ibv_ah_attr to;
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_ah *ah;
    struct ibv_wc wc;

    connected(IBV_QPT_UD);
    to = ah_to(&b.gid);
    ah = NEED(ibv_create_ah(a.pd, &to));
    sge = sge_of(&a, 0, 8);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = b.qp->qp_num;
    wr.wr.ud.remote_qkey = 0x22222222;
    wr.send_flags = IBV_SEND_SIGNALED;
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    next_wc(a.cq);
    told("a wrong Q_Key");
    wr.wr.ud.remote_qkey = QKEY;
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    next_wc(a.cq);
    told("a datagram that nobody waits for");
    ZERO(recv_one(&b, 1, 0, 40));
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    next_wc(a.cq);
    told("a receive without the 40 bytes of the GRH");
    wr.wr.ud.ah = NULL;
    fails(ibv_post_send(a.qp, &wr, &bad));
    told("a datagram without an address handle");
    wr.wr.ud.ah = ah;
    sge.length = 5000;
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    wc = next_wc(a.cq);
    if (wc.status == IBV_WC_SUCCESS)
        die("it was sent");
    told("a datagram above the MTU");
    ZERO(ibv_destroy_ah(ah));
    gone();
}

int main(void)
{
    start();
    setenv("ANYVERBS_EXPLAIN", "1", 1);
    words = memfd_create("words", MFD_CLOEXEC);
    if (words < 0 || dup2(words, STDERR_FILENO) < 0)
        return 1;
    context = open_device();
    connecting();
    creating();
    destroying();
    posting();
    moving();
    waiting();
    naming();
    datagrams();
    ZERO(ibv_close_device(context));
    return 0;
}
