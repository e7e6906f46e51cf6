/* An end: its memory, queues and connection. */
#include "conform.h"

#define PATH_MTU IBV_MTU_1024

unsigned own_seed(const struct end *e, int role)
{
    return e->seed + (role == ACTIVE ? 0 : 101);
}

/* The whole mapping shows the same 2 MiB again and again: a message of 2 GiB then needs no 2 GiB of memory. */
#define CHUNK (2ull << 20)

void map_alias(struct end *e)
{
    uint64_t size = ((uint64_t)e->max_message + CHUNK) & ~(CHUNK - 1);
    int fd;

    if (e->alias)
        return;
    fd = memfd_create("conform", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, CHUNK))
        die("memfd");
    e->alias = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (e->alias == MAP_FAILED)
        die("mmap");
    for (uint64_t at = 0; at < size; at += CHUNK)
        if (mmap(e->alias + at, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            die("mmap");
    close(fd);
    e->alias_size = size;
    e->alias_mr = NEED(ibv_reg_mr(e->pd, e->alias, size, ALL_ACCESS));
}

void open_end(struct end *e, int role, int control, unsigned seed, int wait_ms)
{
    unsigned mtu;

    memset(e, 0, sizeof(*e));
    e->role = role;
    e->control = control;
    e->seed = seed;
    e->wait_ms = wait_ms;
    e->context = open_device();
    if (fcntl(e->context->async_fd, F_SETFL, fcntl(e->context->async_fd, F_GETFL) | O_NONBLOCK))
        die("O_NONBLOCK");
    ZERO(ibv_query_device(e->context, &e->device));
    ZERO(ibv_query_port(e->context, PORT, &e->port));
    ZERO(ibv_query_gid(e->context, PORT, gid_index(), &e->gid));
    e->max_message = e->port.max_msg_sz;
    mtu = 128u << e->port.active_mtu;
    e->datagram = mtu;
    e->pd = NEED(ibv_alloc_pd(e->context));
    e->other_pd = NEED(ibv_alloc_pd(e->context));
    e->buffer = pages(BUFFER);
    e->mr = NEED(ibv_reg_mr(e->pd, e->buffer + REGION_START, REGION_END - REGION_START, ALL_ACCESS));
    e->other = NEED(ibv_reg_mr(e->other_pd, e->buffer + REGION_START, REGION_END - REGION_START, ALL_ACCESS));
    e->read_only = NEED(ibv_reg_mr(e->pd, e->buffer + REGION_START, REGION_END - REGION_START, 0));
    if (e->device.device_cap_flags & IBV_DEVICE_XRC) {
        struct ibv_xrcd_init_attr attr = {
            .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};

        e->xrcd = NEED(ibv_open_xrcd(e->context, &attr));
    }
}

void close_end(struct end *e)
{
    if (e->xrcd)
        ZERO(ibv_close_xrcd(e->xrcd));
    if (e->alias_mr)
        ZERO(ibv_dereg_mr(e->alias_mr));
    if (e->alias)
        munmap(e->alias, e->alias_size);
    ZERO(ibv_dereg_mr(e->read_only));
    ZERO(ibv_dereg_mr(e->other));
    ZERO(ibv_dereg_mr(e->mr));
    munmap(e->buffer, BUFFER);
    ZERO(ibv_dealloc_pd(e->other_pd));
    ZERO(ibv_dealloc_pd(e->pd));
    ZERO(ibv_close_device(e->context));
}

struct ibv_sge place(const struct end *e, uint32_t offset, uint32_t length)
{
    struct ibv_sge sge = {.addr = (uintptr_t)e->buffer + offset, .length = length, .lkey = e->mr->lkey};

    return sge;
}

/* The call `what` gave this errno; the case cannot go on. */
static int refused(struct end *e, const char *what)
{
    e->me.refused = errno ? errno : EIO;
    snprintf(e->me.what, sizeof(e->me.what), "%s", what);
    return e->me.refused;
}

static int make_srq(struct end *e)
{
    struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = 16, .max_sge = 1}};

    if (e->kase->transport == XRC) {
        attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD;
        attr.srq_type = IBV_SRQT_XRC;
        attr.pd = e->pd;
        attr.xrcd = e->xrcd;
        attr.cq = e->recv_cq;
        attr.attr.max_sge = (uint32_t)(e->device.max_srq_sge < 256 ? e->device.max_srq_sge : 256);
        e->srq = ibv_create_srq_ex(e->context, &attr);
        e->cap.max_recv_sge = attr.attr.max_sge;
        return !e->srq || ibv_get_srq_num(e->srq, &e->me.srqn);
    }
    e->srq = ibv_create_srq(e->pd, &(struct ibv_srq_init_attr){.attr = attr.attr});
    return !e->srq;
}

static int make_qp_of(struct end *e)
{
    const struct kase *k = e->kase;
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND};
    uint32_t sges = (uint32_t)(e->device.max_sge < 256 ? e->device.max_sge : 256);
    struct ibv_qp_init_attr_ex attr = {.qp_type = types[k->transport], .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = e->pd};

    if (k->transport == XRC && e->role == PASSIVE) {
        attr.qp_type = IBV_QPT_XRC_RECV;
        attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        attr.xrcd = e->xrcd;
        e->qp = ibv_create_qp_ex(e->context, &attr);
        return !e->qp;
    }
    attr.send_cq = e->send_cq;
    attr.cap = (struct ibv_qp_cap){.max_send_wr = 16, .max_send_sge = sges, .max_inline_data = 200};
    if (k->transport != XRC) {
        attr.recv_cq = e->recv_cq;
        attr.srq = e->srq;
        if (!e->srq) {
            attr.cap.max_recv_wr = 16;
            attr.cap.max_recv_sge = sges;
        }
    }
    if (k->api == WR) {
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = send_ops(SEND) | send_ops(k->op);
        /* The last request of XRC goes out as SEND; windows are tried out by WRITEs. */
        if (k->op == BIND_MW || k->op == LOCAL_INV || k->op == SEND_INV)
            attr.send_ops_flags |= send_ops(BIND_MW) | send_ops(WRITE);
    }
    /* ibv_create_qp is another way into the library; both are used. */
    if (k->api == POST && k->transport != XRC) {
        struct ibv_qp_init_attr plain = {.send_cq = attr.send_cq,
                                         .recv_cq = attr.recv_cq,
                                         .srq = attr.srq,
                                         .cap = attr.cap,
                                         .qp_type = attr.qp_type};

        e->qp = ibv_create_qp(e->pd, &plain);
        attr.cap = plain.cap;
    } else {
        e->qp = ibv_create_qp_ex(e->context, &attr);
    }
    e->cap.max_send_sge = attr.cap.max_send_sge;
    e->cap.max_inline_data = attr.cap.max_inline_data;
    if (k->transport != XRC)
        e->cap.max_recv_sge = attr.cap.max_recv_sge;
    return !e->qp;
}

int make_queues(struct end *e, const struct kase *k, int with_srq)
{
    struct ibv_comp_channel *sends = NULL, *receives = NULL;

    e->kase = k;
    memset(&e->me, 0, sizeof(e->me));
    memset(&e->cap, 0, sizeof(e->cap));
    memset(&e->report, 0, sizeof(e->report));
    e->pendings = 0;
    e->marker_received = 0;
    e->hurried = 0;
    if (!e->depth)
        e->depth = 64;
    if (k->kind == EVENT) {
        e->channel = NEED(ibv_create_comp_channel(e->context));
        if (fcntl(e->channel->fd, F_SETFL, fcntl(e->channel->fd, F_GETFL) | O_NONBLOCK))
            die("O_NONBLOCK");
        *(k->event == ARM_SEND ? &sends : &receives) = e->channel;
    }
    e->send_cq = NEED(ibv_create_cq(e->context, 64, NULL, sends, 0));
    e->recv_cq = NEED(ibv_create_cq(e->context, (int)e->depth, NULL, receives, 0));
    e->me.psn = (e->seed * 2654435761u + (unsigned)e->role) & 0xffffff;
    e->me.addr = (uintptr_t)e->buffer;
    e->me.gid = e->gid;
    e->me.rkey = e->mr->rkey;
    e->me.other_pd = e->other->rkey;
    errno = 0;
    if ((with_srq || (k->transport == XRC && e->role == PASSIVE)) && make_srq(e))
        return refused(e, "ibv_create_srq");
    if (make_qp_of(e))
        return refused(e, "ibv_create_qp");
    e->me.qpn = e->qp->qp_num;
    e->me.max_send_sge = e->cap.max_send_sge;
    e->me.max_recv_sge = e->cap.max_recv_sge;
    e->me.max_inline = e->cap.max_inline_data;
    return 0;
}

int greet(struct end *e)
{
    tell(e->control, &e->me, sizeof(e->me));
    hear(e->control, &e->peer, sizeof(e->peer));
    if (e->me.refused || e->peer.refused)
        return e->me.refused ? e->me.refused : e->peer.refused;
    if (e->kase->transport == UD) {
        struct ibv_ah_attr attr = ah_to(&e->peer.gid);

        e->ah = NEED(ibv_create_ah(e->pd, &attr));
        e->other_ah = NEED(ibv_create_ah(e->other_pd, &attr));
    }
    return 0;
}

/* What the QP lets peers do: all but what a case QP_FORBIDDEN needs. */
static unsigned qp_access(const struct end *e)
{
    const struct kase *k = e->kase;
    unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    unsigned flush = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;

    if (k->kind != OPERATION || k->condition == ILLEGAL)
        return access;
    if (k->condition != QP_FORBIDDEN)
        return access | (k->op == FLUSH ? flush : 0);
    switch (k->op) {
    case READ:
        return access & ~(unsigned)IBV_ACCESS_REMOTE_READ;
    case CMP_SWAP:
    case FETCH_ADD:
        return access & ~(unsigned)IBV_ACCESS_REMOTE_ATOMIC;
    case FLUSH:
        return access;
    default:
        return access & ~(unsigned)(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    }
}

/* One step of the QP, with all attributes that it needs; returns what ibv_modify_qp returns. */
int attr_to(struct end *e, enum ibv_qp_state state)
{
    const struct kase *k = e->kase;
    enum transport t = k->transport;
    int rnr = k->kind == OPERATION && k->condition == NO_RECEIVE;
    int lost = k->kind == OPERATION && k->op == SEND_INV && k->condition == BAD_RKEY;
    int responds = t == RC || (t == XRC && e->role == PASSIVE), requests = t == RC || (t == XRC && e->role == ACTIVE);
    enum ibv_qp_state from = e->qp->state;
    int mask = IBV_QP_STATE;
    struct ibv_qp_attr attr = {
        .qp_state = state,
        .port_num = PORT,
        .qkey = CONFORM_QKEY,
        .qp_access_flags = qp_access(e),
        .path_mtu = PATH_MTU,
        .dest_qp_num = e->peer.qpn,
        .rq_psn = e->peer.psn,
        .sq_psn = e->me.psn,
        .max_rd_atomic = 4,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .timeout = lost ? 8 : 17,
        .retry_cnt = lost ? 1 : 7,
        .rnr_retry = rnr ? 1 : 7,
    };

    attr.ah_attr = ah_to(&e->peer.gid);
    if (state == IBV_QPS_INIT)
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (t == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (state == IBV_QPS_RTR && t != UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (state == IBV_QPS_RTR && responds)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (state == IBV_QPS_RTS && from == IBV_QPS_RTR) {
        mask |= IBV_QP_SQ_PSN;
        if (requests)
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        else if (t == XRC)
            mask |= IBV_QP_TIMEOUT;
    }
    if (state == IBV_QPS_SQD && k->kind == EVENT) {
        attr.en_sqd_async_notify = 1;
        mask |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
    }
    return ibv_modify_qp(e->qp, &attr, mask);
}

/* From where the QP is to RTS at most, step by step. */
int up_to(struct end *e, enum ibv_qp_state state)
{
    static const enum ibv_qp_state steps[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};

    for (int i = 0; i < 3; i++) {
        int rc;

        if (steps[i] <= e->qp->state || steps[i] > state)
            continue;
        rc = attr_to(e, steps[i]);
        if (rc)
            return rc;
    }
    return 0;
}

int post_receive(struct end *e, unsigned number, const struct ibv_sge *list, int n)
{
    struct ibv_recv_wr wr = {.wr_id = TAG | number, .sg_list = (struct ibv_sge *)(uintptr_t)list, .num_sge = n};
    struct ibv_recv_wr *bad = NULL;
    int rc = e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);

    if (rc == 0)
        e->pending[e->pendings++] = number;
    else if (bad != &wr)
        return EPROTO;
    return rc;
}

int receive_at(struct end *e, unsigned number, uint32_t offset, uint32_t length)
{
    struct ibv_sge sge = place(e, offset, length + (e->kase->transport == UD ? GRH : 0));

    return post_receive(e, number, &sge, 1);
}

void drop_queues(struct end *e)
{
    /* The window first: soft-RoCE waits for 50 seconds where its QP goes before it. */
    if (e->mw)
        ZERO(ibv_dealloc_mw(e->mw));
    if (e->qp)
        ZERO(ibv_destroy_qp(e->qp));
    if (e->ah)
        ZERO(ibv_destroy_ah(e->ah));
    if (e->other_ah)
        ZERO(ibv_destroy_ah(e->other_ah));
    if (e->srq)
        ZERO(ibv_destroy_srq(e->srq));
    ZERO(ibv_destroy_cq(e->send_cq));
    ZERO(ibv_destroy_cq(e->recv_cq));
    if (e->channel)
        ZERO(ibv_destroy_comp_channel(e->channel));
    if (e->bindable)
        ZERO(ibv_dereg_mr(e->bindable));
    if (e->forbidden)
        ZERO(ibv_dereg_mr(e->forbidden));
    e->qp = NULL;
    e->ah = e->other_ah = NULL;
    e->srq = NULL;
    e->send_cq = e->recv_cq = NULL;
    e->channel = NULL;
    e->mw = NULL;
    e->bindable = e->forbidden = NULL;
    e->depth = 0;
}
