/*
 * soak [-s SEED] [-n SECONDS]: four processes, each in sessions with the three others at once. A session is a link of a
 * random transport (RC, UC, UD, XRC) and make (SRQ, ibv_wr_*, extended CQ, events, a window, a context of its own), all
 * operations both ways, every byte, answer and total checked; then its objects go. Beside them a thread of each process
 * makes, uses and unmakes objects. Every few seconds a process is killed and another takes its place: its peers' reliable
 * QPs go to ERR, and they meet the new one.
 */
#include "../stress/traffic.h"

#include <stddef.h>
#include <sys/prctl.h>
#include <sys/un.h>

enum { PROCESSES = 4, PATIENCE_MS = 60000, CREDITS = RECEIVES };

/* What all have done, for the last line. */
static struct counts {
    long sessions, operations, lost, alone;
} *counts;

static int me_process;
static uint64_t life, end_ms;
static pid_t family;
static struct ibv_context *common_context;

struct plan {
    enum ibv_qp_type type;
    int uses_srq, uses_ex, uses_cq_ex, uses_events, uses_window, owns_context;
};

/* One session of two processes, at one of them. */
struct session {
    int fd, other;
    struct plan plan;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_cq_ex *cq_ex;
    struct ibv_srq *srq;
    struct ibv_xrcd *xrcd;
    struct ibv_qp *target_qp; /* XRC */
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    unsigned char *memory;
    struct link l;
    uint32_t target_qpn, srqn, peer_target, peer_srqn;
    long credits, owed, paid;
    int is_connected, bound;
};

static int reliable(const struct session *s)
{
    return s->plan.type == IBV_QPT_RC || s->plan.type == IBV_QPT_XRC_SEND;
}

/* -1 where the peer is gone. */
static int say(int fd, const void *data, size_t size)
{
    return send(fd, data, size, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1;
}

static int listen_to(int fd, void *data, size_t size)
{
    size_t got = 0;

    while (got < size) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (poll(&p, 1, PATIENCE_MS) == 0)
            BAD("process %d: its peer says nothing", me_process);
        n = recv(fd, (char *)data + got, size - got, 0);
        if (n <= 0)
            return -1;
        got += (size_t)n;
    }
    return 0;
}

static int meet_again(int fd)
{
    char c = 'm';

    return say(fd, &c, 1) || listen_to(fd, &c, 1) ? -1 : 0;
}

static int is_gone(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};

    return poll(&p, 1, ms) == 1;
}

/* A completion in error is right only where the peer has died. */
static int in_error(struct session *s, uint64_t wr_id, enum ibv_wc_status status)
{
    if (!is_gone(s->fd, 10000))
        BAD("process %d with %d, type %d: wr_id 0x%" PRIx64 ": %s, and the peer lives", me_process, s->other,
            s->plan.type, wr_id, ibv_wc_status_str(status));
    return -1;
}

static int take_one(struct session *s, const struct ibv_wc *wc)
{
    if (wc->status)
        return in_error(s, wc->wr_id, wc->status);
    if (wc->wr_id & 1u << 31) {
        received(&s->l, wc);
        s->owed++;
    } else {
        sent(&s->l, (long)(wc->wr_id & 0x7fffffff));
    }
    return 0;
}

/* How many completions there were, or -1 where the peer is gone. */
static int take(struct session *s)
{
    struct ibv_poll_cq_attr attr = {0};
    struct ibv_wc wc[4];
    int n = 0;

    if (s->cq_ex) {
        if (ibv_start_poll(s->cq_ex, &attr))
            return 0;
        do {
            wc[n] = (struct ibv_wc){.wr_id = s->cq_ex->wr_id, .status = s->cq_ex->status};
            if (!wc[n].status && wc[n].wr_id & 1u << 31) {
                wc[n].byte_len = ibv_wc_read_byte_len(s->cq_ex);
                wc[n].wc_flags = ibv_wc_read_wc_flags(s->cq_ex);
                wc[n].imm_data = ibv_wc_read_imm_data(s->cq_ex);
            }
        } while (++n < 4 && !ibv_next_poll(s->cq_ex));
        ibv_end_poll(s->cq_ex);
    } else if ((n = ibv_poll_cq(s->cq, 1 + (int)draw(4), wc)) < 0) {
        BAD("ibv_poll_cq = %d", n);
    }
    for (int i = 0; i < n; i++)
        if (take_one(s, &wc[i]))
            return -1;
    return n;
}

/* Unreliable links send a message only where the peer has told of a receive for it: a byte for each that it has taken. */
static int exchange_credits(struct session *s, long messages)
{
    char bytes[64];
    ssize_t n;

    memset(bytes, 'c', sizeof(bytes));
    for (; s->owed > 0; s->owed -= n) {
        n = s->owed < 64 ? s->owed : 64;
        if (say(s->fd, bytes, (size_t)n))
            return -1;
    }
    /* What follows the last of them is something else. */
    if (s->paid == messages)
        return 0;
    n = messages - s->paid < 64 ? messages - s->paid : 64;
    n = recv(s->fd, bytes, (size_t)n, MSG_DONTWAIT);
    if (n > 0) {
        s->credits += n;
        s->paid += n;
    }
    return n == 0 || (n < 0 && errno != EAGAIN) ? -1 : 0;
}

/* Sleeps until something may have come, at most for a while. */
static int sleep_on(struct session *s)
{
    struct pollfd p[2] = {{.fd = s->channel->fd, .events = POLLIN}, {.fd = s->fd, .events = POLLRDHUP}};
    struct ibv_cq *cq;
    void *context;
    int n;

    ZERO(ibv_req_notify_cq(s->cq, 0));
    n = take(s);
    if (n)
        return n < 0 ? -1 : 0;
    /* Credits come over the socket, which may be read by then. */
    if (!reliable(s))
        p[1].events |= POLLIN;
    if (poll(p, 2, 200) > 0 && p[0].revents & POLLIN && !ibv_get_cq_event(s->channel, &cq, &context))
        ibv_ack_cq_events(cq, 1);
    return p[1].revents & POLLRDHUP ? -1 : 0;
}

static int may_post(struct session *s)
{
    struct link *l = &s->l;

    if (l->posted == l->count || l->posted - l->done == WINDOW)
        return 0;
    return reliable(s) || !is_message(op_at(l, l->ours, l->posted).kind) || s->credits > 0;
}

static long messages_of(const struct link *l)
{
    long n = 0;

    for (long i = 0; i < l->count; i++)
        n += is_message(op_at(l, l->ours, i).kind);
    return n;
}

static int traffic(struct session *s)
{
    struct link *l = &s->l;
    long messages = messages_of(l);
    uint64_t last = now_ms();

    while (l->done < l->count || messages_left(l) || (!reliable(s) && (s->paid < messages || s->owed))) {
        int any, posted = 0;

        while (may_post(s) && draw(4)) {
            if (!reliable(s))
                s->credits -= is_message(op_at(l, l->ours, l->posted).kind);
            post_next(l);
            posted = 1;
        }
        any = take(s);
        if (any < 0 || (!reliable(s) && exchange_credits(s, messages)))
            return -1;
        if (any || posted)
            last = now_ms();
        else if (s->plan.uses_events && !may_post(s) && sleep_on(s))
            return -1;
        else if (now_ms() - last > 20 && is_gone(s->fd, 0))
            return -1;
        if (now_ms() - last > PATIENCE_MS)
            BAD("process %d with %d, type %d: stands still: %ld posted, %ld done, %ld heard of %ld, %ld credits, %ld paid",
                me_process, s->other, s->plan.type, l->posted, l->done, l->heard, l->count, s->credits, s->paid);
    }
    return 0;
}

static void make_queues(struct session *s)
{
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_srq_init_attr_ex srq_attr = {
        .attr = {.max_wr = RECEIVES, .max_sge = 1}, .pd = s->pd, .srq_type = IBV_SRQT_BASIC,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD};
    struct ibv_xrcd_init_attr xrcd_attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};

    s->channel = NEED(ibv_create_comp_channel(s->context));
    /* It may be readable without an event. */
    ZERO(fcntl(s->channel->fd, F_SETFL, O_NONBLOCK));
    cq_attr.channel = s->channel;
    if (s->plan.uses_cq_ex) {
        s->cq_ex = NEED(ibv_create_cq_ex(s->context, &cq_attr));
        s->cq = ibv_cq_ex_to_cq(s->cq_ex);
    } else {
        s->cq = NEED(ibv_create_cq(s->context, 64, NULL, s->channel, 0));
    }
    if (s->plan.type == IBV_QPT_XRC_SEND) {
        s->xrcd = NEED(ibv_open_xrcd(s->context, &xrcd_attr));
        srq_attr.srq_type = IBV_SRQT_XRC;
        srq_attr.xrcd = s->xrcd;
        srq_attr.cq = s->cq;
        srq_attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    if (s->xrcd || s->plan.uses_srq)
        s->srq = NEED(ibv_create_srq_ex(s->context, &srq_attr));
    if (s->xrcd)
        ZERO(ibv_get_srq_num(s->srq, &s->srqn));
}

static void make_qps(struct session *s)
{
    static const uint64_t offered[] = {
        [IBV_QPT_UD] = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
        [IBV_QPT_UC] = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
                       IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM};
    uint64_t all = offered[IBV_QPT_UC] | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    struct ibv_qp_init_attr_ex init = {
        .send_cq = s->cq, .recv_cq = s->cq, .srq = s->xrcd ? NULL : s->srq, .qp_type = s->plan.type, .pd = s->pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD, .send_ops_flags = reliable(s) ? all : offered[s->plan.type],
        .cap = {.max_send_wr = WINDOW + 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
                .max_inline_data = 64}};
    struct ibv_qp_init_attr_ex target = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = s->xrcd};

    if (s->plan.uses_ex)
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    s->l.qp = NEED(ibv_create_qp_ex(s->context, &init));
    if (s->plan.uses_ex)
        s->l.ex = NEED(ibv_qp_to_qp_ex(s->l.qp));
    ZERO(to_init(s->l.qp));
    if (s->xrcd) {
        s->target_qp = NEED(ibv_create_qp_ex(s->context, &target));
        s->target_qpn = s->target_qp->qp_num;
        ZERO(to_init(s->target_qp));
    }
}

static void make(struct session *s, uint64_t stream, int side)
{
    struct ibv_port_attr port;

    s->context = s->plan.owns_context ? open_device() : common_context;
    s->pd = NEED(ibv_alloc_pd(s->context));
    s->memory = pages(link_bytes());
    s->mr = NEED(ibv_reg_mr(s->pd, s->memory, link_bytes(), ALL_ACCESS | IBV_ACCESS_MW_BIND));
    begin_link(&s->l, s->memory, s->mr->lkey, 0, mix(stream, 10 + (uint64_t)side), mix(stream, 10 + (uint64_t)!side));
    s->l.count = 1 + (long)(mix(stream, 5) % 150);
    make_queues(s);
    s->l.srq = s->srq;
    make_qps(s);
    if (s->plan.type == IBV_QPT_UD) {
        ZERO(ibv_query_port(s->context, PORT, &port));
        s->l.n_kinds = SEND_IMM + 1;
        s->l.most = 128u << port.active_mtu;
        s->l.ahead = 40;
    }
    if (s->plan.type == IBV_QPT_UC) {
        s->l.n_kinds = WRITE_IMM + 1;
        s->l.ends_with_message = 1;
    }
    for (uint64_t i = 0; i < RECEIVES; i++)
        give_receive(&s->l, i);
    s->credits = CREDITS;
    s->l.me = (struct about){.qpn = s->l.qp->qp_num, .psn = (uint32_t)draw(1 << 24), .rkey = s->mr->rkey,
                             .address = (uintptr_t)s->l.target};
    ZERO(ibv_query_gid(s->context, PORT, 0, &s->l.me.gid));
}

/* The peer's operations go through a window of type 2 instead of the region. */
static int bind_window(struct session *s)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    uint32_t theirs;
    struct ibv_wc wc;

    s->mw = NEED(ibv_alloc_mw(s->pd, IBV_MW_TYPE_2));
    wr.bind_mw.mw = s->mw;
    wr.bind_mw.rkey = ibv_inc_rkey(s->mw->rkey);
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
        s->mr, (uintptr_t)s->l.target, (size_t)SLOTS * longest + 64,
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    ZERO(ibv_post_send(s->l.qp, &wr, &bad));
    wc = next_wc(s->cq);
    if (wc.status)
        return in_error(s, 0, wc.status);
    s->bound = 1;
    if (say(s->fd, &wr.bind_mw.rkey, 4) || listen_to(s->fd, &theirs, 4))
        return -1;
    s->l.peer.rkey = theirs;
    return 0;
}

static int connect_all(struct session *s)
{
    struct {
        struct about about;
        uint32_t target, srqn;
    } ours, theirs;
    struct ibv_ah_attr attr;

    memset(&ours, 0, sizeof(ours));
    ours.about = s->l.me;
    ours.target = s->target_qpn;
    ours.srqn = s->srqn;
    if (say(s->fd, &ours, sizeof(ours)) || listen_to(s->fd, &theirs, sizeof(theirs)))
        return -1;
    s->l.peer = theirs.about;
    if (s->plan.type == IBV_QPT_UD) {
        ZERO(to_rtr(s->l.qp, 0, 0, NULL));
        ZERO(to_rts(s->l.qp, s->l.me.psn));
        attr = ah_to(&theirs.about.gid);
        s->l.ah = NEED(ibv_create_ah(s->pd, &attr));
    } else if (s->xrcd) {
        struct about peer = theirs.about;

        /* Our sender goes to their receiver, theirs to ours. */
        s->l.srqn = theirs.srqn;
        peer.qpn = theirs.target;
        connect_qp(s->l.qp, &s->l.me, &peer, 18, 7, 7);
        connect_qp(s->target_qp, &s->l.me, &theirs.about, 18, 7, 7);
    } else if (s->plan.type == IBV_QPT_UC) {
        ZERO(to_rtr(s->l.qp, theirs.about.qpn, theirs.about.psn, &theirs.about.gid));
        ZERO(to_rts(s->l.qp, s->l.me.psn));
    } else {
        connect_qp(s->l.qp, &s->l.me, &theirs.about, 18, 7, 7);
    }
    if (meet_again(s->fd))
        return -1;
    s->is_connected = 1;
    return s->plan.uses_window ? bind_window(s) : 0;
}

static int finish(struct session *s)
{
    struct totals ours = totals_of(&s->l), theirs;
    struct ibv_wc wc;

    if (say(s->fd, &ours, sizeof(ours)) || listen_to(s->fd, &theirs, sizeof(theirs)))
        return -1;
    check_totals(&s->l, &theirs);
    if (ibv_poll_cq(s->cq, 1, &wc)) {
        if (wc.status)
            return in_error(s, wc.wr_id, wc.status);
        BAD("process %d: a completion too many", me_process);
    }
    if (meet_again(s->fd))
        return -1;
    __atomic_fetch_add(&counts->sessions, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counts->operations, s->l.count, __ATOMIC_RELAXED);
    return 0;
}

/* Reliable QPs to a process that has died go to ERR by themselves. */
static void expect_error(struct session *s)
{
    uint64_t end = now_ms() + 20000;
    struct ibv_qp *qp = s->l.qp;

    __atomic_fetch_add(&counts->lost, 1, __ATOMIC_RELAXED);
    if (!s->is_connected || !reliable(s))
        return;
    while (state_of(qp) != IBV_QPS_ERR) {
        if (now_ms() > end)
            BAD("process %d: the QP to dead process %d is in %s", me_process, s->other, state_name(state_of(qp)));
        usleep(10000);
    }
}

static void unmake(struct session *s)
{
    ZERO(ibv_destroy_qp(s->l.qp));
    if (s->target_qp)
        ZERO(ibv_destroy_qp(s->target_qp));
    if (s->mw)
        ZERO(ibv_dealloc_mw(s->mw));
    if (s->l.ah)
        ZERO(ibv_destroy_ah(s->l.ah));
    if (s->srq)
        ZERO(ibv_destroy_srq(s->srq));
    if (s->xrcd)
        ZERO(ibv_close_xrcd(s->xrcd));
    ZERO(ibv_destroy_cq(s->cq));
    ZERO(ibv_destroy_comp_channel(s->channel));
    ZERO(ibv_dereg_mr(s->mr));
    ZERO(ibv_dealloc_pd(s->pd));
    munmap(s->memory, link_bytes());
    if (s->plan.owns_context)
        ZERO(ibv_close_device(s->context));
}

static int one_session(int fd, int other, uint64_t stream)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND};
    uint64_t r = mix(stream, 1), own = draw(16);
    struct session s = {.fd = fd, .other = other};
    int lost;

    /* The transport and the window concern both. */
    s.plan.type = types[r % 6];
    s.plan.uses_window = s.plan.type == IBV_QPT_RC && (r >> 8) % 3 == 0;
    s.plan.uses_srq = own & 1;
    s.plan.uses_ex = !!(own & 2);
    s.plan.uses_cq_ex = !!(own & 4);
    s.plan.uses_events = !!(own & 8);
    s.plan.owns_context = draw(4) == 0;
    make(&s, stream, me_process > other);
    lost = connect_all(&s) || traffic(&s) || finish(&s);
    if (lost)
        expect_error(&s);
    unmake(&s);
    return lost ? -1 : 0;
}

static socklen_t name_of(struct sockaddr_un *at, int lower, int higher)
{
    memset(at, 0, sizeof(*at));
    at->sun_family = AF_UNIX;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)snprintf(at->sun_path + 1, sizeof(at->sun_path) - 1, "anyverbs-soak-%d-%d-%d", (int)family,
                                        lower, higher));
}

/* A socket to the other process: the lower one listens. -1 where it is time to end. */
static int join_process(int listener, int other)
{
    struct sockaddr_un at;
    socklen_t length = name_of(&at, other, me_process);

    while (now_ms() < end_ms) {
        if (listener >= 0) {
            struct pollfd p = {.fd = listener, .events = POLLIN};
            int fd = poll(&p, 1, 50) == 1 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;

            if (fd >= 0)
                return fd;
        } else {
            int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

            if (!connect(fd, (struct sockaddr *)&at, length))
                return fd;
            close(fd);
            usleep(20000);
        }
    }
    return -1;
}

static void *with_one(void *arg)
{
    int other = (int)(uintptr_t)arg, listener = -1, fd;
    struct sockaddr_un at;
    socklen_t length = name_of(&at, me_process, other);

    drawn = mix(seed, life * 64 + (uint64_t)other) >> 8;
    if (me_process < other) {
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, (struct sockaddr *)&at, length) || listen(listener, 4))
            BAD("listening");
    }
    while ((fd = join_process(listener, other)) >= 0) {
        /* Both draw a word for each session; what they make of it follows from both. 0 ends. */
        for (;;) {
            uint64_t words[2] = {now_ms() < end_ms ? draw(1ull << 62) | 1 : 0, 0};

            if (say(fd, &words[0], 8) || listen_to(fd, &words[1], 8) || !words[0] || !words[1])
                break;
            if (one_session(fd, other, words[0] ^ words[1]))
                break;
        }
        close(fd);
    }
    if (listener >= 0)
        close(listener);
    return NULL;
}

/* Objects come and go beside the traffic, each used for what it is for. */
static void *alone(void *arg)
{
    (void)arg;
    drawn = mix(seed, life * 64 + 63) >> 8;
    while (now_ms() < end_ms) {
        struct ibv_context *context = draw(2) ? open_device() : common_context;
        enum ibv_qp_type type = draw(2) ? IBV_QPT_RC : IBV_QPT_UC;
        struct ibv_alloc_dm_attr dm_attr = {.length = 4096};
        uint32_t length = 1 + (uint32_t)draw(60000);
        uint64_t pattern = draw(1ull << 60);
        struct side a, b;
        struct ibv_dm *dm;
        struct ibv_mr *region;
        unsigned char text[64], back[64];

        make_side(&a, context, type, 65536);
        make_side(&b, context, type, 65536);
        join(&a, &b);
        put_pattern(a.buffer, length, pattern);
        ZERO(ibv_resize_cq(b.cq, 1 + (int)draw(1000)));
        ZERO(recv_one(&b, 1, 0, length));
        ZERO(send_one(&a, 1, 0, length, IBV_SEND_SIGNALED));
        if (next_wc(a.cq).status || next_wc(b.cq).status || pattern_differs(b.buffer, length, pattern) >= 0)
            BAD("process %d alone: %u bytes", me_process, length);
        region = NEED(ibv_reg_mr(a.pd, a.buffer, length, IBV_ACCESS_LOCAL_WRITE));
        ZERO(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b.buffer, length, 0));
        ZERO(ibv_dereg_mr(region));
        dm = ibv_alloc_dm(context, &dm_attr);
        if (dm) {
            put_pattern(text, sizeof(text), pattern);
            ZERO(ibv_memcpy_to_dm(dm, 128, text, sizeof(text)));
            ZERO(ibv_memcpy_from_dm(back, dm, 128, sizeof(back)));
            if (memcmp(text, back, sizeof(text)))
                BAD("process %d alone: device memory", me_process);
            ZERO(ibv_free_dm(dm));
        }
        if (draw(2))
            ZERO(to_err(a.qp));
        drop_side(&a);
        drop_side(&b);
        if (context != common_context)
            ZERO(ibv_close_device(context));
        __atomic_fetch_add(&counts->alone, 1, __ATOMIC_RELAXED);
        usleep((useconds_t)draw(20000));
    }
    return NULL;
}

static void be_process(void)
{
    pthread_t threads[PROCESSES];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit_time((unsigned)count + 120);
    /* Some do without direct access to peers' memory, or without guarded copies. */
    drawn = mix(seed, life) >> 8;
    if (draw(3) == 0)
        setenv("ANYVERBS_DIRECT", "0", 1);
    if (draw(4) == 0)
        setenv("ANYVERBS_SIGSEGV", "0", 1);
    common_context = open_device();
    for (int i = 0; i < PROCESSES; i++)
        ZERO(pthread_create(&threads[i], NULL, i == me_process ? alone : with_one, (void *)(uintptr_t)i));
    for (int i = 0; i < PROCESSES; i++)
        ZERO(pthread_join(threads[i], NULL));
    ZERO(ibv_close_device(common_context));
    exit(0);
}

static pid_t start_process(int number, uint64_t which_life)
{
    pid_t pid = fork();

    if (pid < 0)
        die("fork");
    if (pid == 0) {
        me_process = number;
        life = which_life;
        be_process();
    }
    return pid;
}

/* Nobody may end before it is time. */
static void check_alive(pid_t *pids)
{
    for (int i = 0; i < PROCESSES; i++) {
        int status;

        if (waitpid(pids[i], &status, WNOHANG) == pids[i])
            BAD("process %d (%d) ended with status 0x%x", i, (int)pids[i], status);
    }
}

int main(int argc, char **argv)
{
    pid_t pids[PROCESSES];
    uint64_t lives = 0, death;

    options(argc, argv, 30, 3600);
    longest = 48 * 1024;
    family = getpid();
    end_ms = now_ms() + (uint64_t)count * 1000;
    counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        die("mmap");
    drawn = 1;
    for (int i = 0; i < PROCESSES; i++)
        pids[i] = start_process(i, ++lives);
    death = now_ms() + 1000 + draw(3000);
    while (now_ms() + 2000 < end_ms) {
        int victim = (int)draw(PROCESSES);

        usleep(20000);
        check_alive(pids);
        if (now_ms() < death)
            continue;
        ZERO(kill(pids[victim], SIGKILL));
        waitpid(pids[victim], NULL, 0);
        pids[victim] = start_process(victim, ++lives);
        death = now_ms() + 500 + draw(4000);
    }
    for (int i = 0; i < PROCESSES; i++)
        expect_exit(pids[i], 0);
    if (!counts->sessions || !counts->alone || (count > 20 && !counts->lost))
        BAD("nothing happened");
    fprintf(stderr,
            "%ld sessions' ends, %ld operations, %" PRIu64 " deaths, %ld sessions lost by them, %ld rounds alone\n",
            counts->sessions, counts->operations, lives - PROCESSES, counts->lost, counts->alone);
    printf("ok\n");
    return 0;
}
