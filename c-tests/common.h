/*
 * What the test programs share. They use nothing but verbs.h, libc and pthread, compile against any rdma-core release
 * since 44 and against our headers, and print the same lines on every conforming device: names of statuses, never
 * numbers that a device chooses. A line on stderr and exit status 1 mean that a program could not go on.
 */
#ifndef C_TESTS_COMMON_H
#define C_TESTS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAYBE __attribute__((unused)) static
#define PORT 1
#define QKEY 0x11111111u
#define ALL_ACCESS                                                                                                    \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

MAYBE __attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...)
{
    int saved = errno;
    va_list args;

    fflush(stdout);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (errno %s)\n", saved ? strerrorname_np(saved) : "0");
    exit(1);
}

/* A pointer that must not be NULL, and a return value that must be 0. */
#define NEED(pointer)                                                                                                 \
    ({                                                                                                                \
        __typeof__(pointer) need_ = (pointer);                                                                        \
        if (!need_)                                                                                                   \
            die("%s:%d: %s", __FILE__, __LINE__, #pointer);                                                           \
        need_;                                                                                                        \
    })
#define ZERO(call)                                                                                                    \
    do {                                                                                                              \
        int zero_ = (call);                                                                                           \
        if (zero_)                                                                                                    \
            die("%s:%d: %s = %d", __FILE__, __LINE__, #call, zero_);                                                  \
    } while (0)

/* The name of a returned errno value; wrong conventions show. */
MAYBE const char *rc_name(int rc)
{
    static char text[4][32];
    static unsigned next;
    char *t = text[next++ % 4];
    const char *name = rc ? strerrorname_np(rc < 0 ? -rc : rc) : "0";

    snprintf(t, sizeof(text[0]), "%s%s", rc < 0 ? "minus " : "", name ? name : "?");
    return t;
}

/* The same for a call that returns a pointer. */
MAYBE const char *pointer_name(const void *p)
{
    return p ? "made" : rc_name(errno);
}

MAYBE const char *yes(int condition)
{
    return condition ? "yes" : "no";
}

MAYBE uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* No program outlives its test: SIGALRM ends one that hangs. Checkers that slow programs down set C_TESTS_SECONDS. */
MAYBE void limit_time(unsigned seconds)
{
    const char *given = getenv("C_TESTS_SECONDS");

    alarm(given ? (unsigned)atoi(given) : seconds);
}

MAYBE void start(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    limit_time(60);
}

/* The first device, or the one that C_TESTS_DEVICE names. */
MAYBE struct ibv_context *open_device(void)
{
    const char *name = getenv("C_TESTS_DEVICE");
    int n, i = 0;
    struct ibv_device **list = NEED(ibv_get_device_list(&n));
    struct ibv_context *context;

    while (i < n && name && strcmp(ibv_get_device_name(list[i]), name))
        i++;
    if (i == n)
        die("no such device");
    context = NEED(ibv_open_device(list[i]));
    ibv_free_device_list(list);
    return context;
}

/* The row of the GID table that both sides' packets leave from: 0, or C_TESTS_GID. */
MAYBE uint8_t gid_index(void)
{
    const char *index = getenv("C_TESTS_GID");

    return (uint8_t)(index ? atoi(index) : 0);
}

/* One side of a connection, with a registered buffer. */
struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *buffer;
    size_t size;
    union ibv_gid gid;
};

MAYBE void *pages(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

MAYBE struct ibv_qp *make_qp(struct side *s, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .srq = srq,
        .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
        .qp_type = type,
    };

    return NEED(ibv_create_qp(s->pd, &attr));
}

MAYBE void make_side(struct side *s, struct ibv_context *context, enum ibv_qp_type type, size_t size)
{
    memset(s, 0, sizeof(*s));
    s->context = context;
    s->size = size;
    s->buffer = pages(size);
    s->pd = NEED(ibv_alloc_pd(context));
    s->mr = NEED(ibv_reg_mr(s->pd, s->buffer, size, ALL_ACCESS));
    s->cq = NEED(ibv_create_cq(context, 128, NULL, NULL, 0));
    s->qp = make_qp(s, type, NULL);
    ZERO(ibv_query_gid(context, PORT, gid_index(), &s->gid));
}

MAYBE void drop_side(struct side *s)
{
    ZERO(ibv_destroy_qp(s->qp));
    ZERO(ibv_destroy_cq(s->cq));
    ZERO(ibv_dereg_mr(s->mr));
    ZERO(ibv_dealloc_pd(s->pd));
    munmap(s->buffer, s->size);
}

MAYBE int to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = PORT,
        .qkey = QKEY,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    int ud = qp->qp_type == IBV_QPT_UD;

    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

MAYBE struct ibv_ah_attr ah_to(const union ibv_gid *gid)
{
    struct ibv_ah_attr attr = {
        .is_global = 1, .port_num = PORT, .grh = {.dgid = *gid, .sgid_index = gid_index(), .hop_limit = 64}};

    return attr;
}

MAYBE int to_rtr(struct ibv_qp *qp, uint32_t dest, uint32_t psn, const union ibv_gid *gid)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = dest,
        .rq_psn = psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
    };
    int mask = IBV_QP_STATE;

    if (qp->qp_type != IBV_QPT_UD) {
        attr.ah_attr = ah_to(gid);
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    }
    if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return ibv_modify_qp(qp, &attr, mask);
}

MAYBE int to_rts(struct ibv_qp *qp, uint32_t psn)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

    if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (qp->qp_type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_TIMEOUT;
    return ibv_modify_qp(qp, &attr, mask);
}

MAYBE int to_err(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/* Two fresh QPs of one process, each other's peer. */
MAYBE void join(struct side *a, struct side *b)
{
    ZERO(to_init(a->qp));
    ZERO(to_init(b->qp));
    ZERO(to_rtr(a->qp, b->qp->qp_num, 200, &b->gid));
    ZERO(to_rtr(b->qp, a->qp->qp_num, 100, &a->gid));
    ZERO(to_rts(a->qp, 100));
    ZERO(to_rts(b->qp, 200));
}

MAYBE enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    ZERO(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
    return attr.qp_state;
}

MAYBE const char *state_name(enum ibv_qp_state state)
{
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

    return (unsigned)state < 7 ? names[state] : "?";
}

MAYBE struct ibv_sge sge_of(const struct side *s, size_t offset, uint32_t length)
{
    struct ibv_sge sge = {.addr = (uintptr_t)s->buffer + offset, .length = length, .lkey = s->mr->lkey};

    return sge;
}

MAYBE int recv_one(struct side *s, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = sge_of(s, offset, length);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    return ibv_post_recv(s->qp, &wr, &bad);
}

MAYBE int send_one(struct side *s, uint64_t wr_id, size_t offset, uint32_t length, unsigned flags)
{
    struct ibv_sge sge = sge_of(s, offset, length);
    struct ibv_send_wr wr = {
        .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags};
    struct ibv_send_wr *bad;

    return ibv_post_send(s->qp, &wr, &bad);
}

/* RDMA WRITE, WRITE_WITH_IMM or READ between this buffer and the peer's. */
MAYBE int rdma_one(struct side *s, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, uint32_t length,
                   uint64_t remote, uint32_t rkey)
{
    struct ibv_sge sge = sge_of(s, offset, length);
    struct ibv_send_wr wr = {
        .wr_id = wr_id, .sg_list = &sge, .num_sge = length ? 1 : 0, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    wr.imm_data = htonl(0x01020304);
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    return ibv_post_send(s->qp, &wr, &bad);
}

/* Polls until a completion comes, at most ten seconds. */
MAYBE struct ibv_wc next_wc(struct ibv_cq *cq)
{
    uint64_t end = now_ms() + 10000;
    struct ibv_wc wc;
    int n;

    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        if (now_ms() > end)
            die("no completion");
    if (n < 0)
        die("ibv_poll_cq = %d", n);
    return wc;
}

MAYBE const char *opcode_name(enum ibv_wc_opcode opcode)
{
    switch (opcode) {
    case IBV_WC_SEND:
        return "SEND";
    case IBV_WC_RDMA_WRITE:
        return "RDMA_WRITE";
    case IBV_WC_RDMA_READ:
        return "RDMA_READ";
    case IBV_WC_COMP_SWAP:
        return "COMP_SWAP";
    case IBV_WC_FETCH_ADD:
        return "FETCH_ADD";
    case IBV_WC_RECV:
        return "RECV";
    case IBV_WC_RECV_RDMA_WITH_IMM:
        return "RECV_RDMA_WITH_IMM";
    default:
        return "other";
    }
}

/* A failed completion shows only what is valid in it, and whether it is one of a receive. */
MAYBE void show_wc(const char *label, const struct ibv_wc *wc)
{
    printf("%s: wr_id %" PRIu64 ", %s", label, wc->wr_id, ibv_wc_status_str(wc->status));
    if (wc->status != IBV_WC_SUCCESS) {
        printf(", %s\n", wc->opcode & IBV_WC_RECV ? "receive" : "send");
        return;
    }
    printf(", %s", opcode_name(wc->opcode));
    if (wc->opcode & IBV_WC_RECV) {
        printf(", %u bytes", wc->byte_len);
        if (wc->wc_flags & IBV_WC_WITH_IMM)
            printf(", imm %08x", ntohl(wc->imm_data));
    }
    printf("\n");
}

MAYBE void show_next(const char *label, struct ibv_cq *cq)
{
    struct ibv_wc wc = next_wc(cq);

    show_wc(label, &wc);
}

MAYBE void fill(unsigned char *p, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        p[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

MAYBE int filled(const unsigned char *p, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        if (p[i] != (unsigned char)(i * 7 + i / 251 + seed))
            return 0;
    return 1;
}

/* The next asynchronous event, at most ten seconds away; already acknowledged. */
MAYBE struct ibv_async_event next_event(struct ibv_context *context)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};
    struct ibv_async_event event;

    if (poll(&fd, 1, 10000) != 1)
        die("no asynchronous event");
    ZERO(ibv_get_async_event(context, &event));
    ibv_ack_async_event(&event);
    return event;
}

/* This program's file, also where a checker stands in for it. */
MAYBE const char *own_path(void)
{
    static char path[4096];

    if (readlink("/proc/self/exe", path, sizeof(path) - 1) <= 0)
        die("/proc/self/exe");
    return path;
}

/*
 * Two processes: "server [ADDRESS]" listens there, else on 127.0.0.1, and prints "port N" first; "client N [ADDRESS]"
 * connects to it.
 */
MAYBE int meet(int argc, char **argv)
{
    int is_server = argc > 1 && !strcmp(argv[1], "server"), given = is_server ? 2 : 3;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(at);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), peer;

    if (argc > given && inet_pton(AF_INET, argv[given], &at.sin_addr) != 1)
        die("%s is no IPv4 address", argv[given]);
    if (is_server) {
        if (bind(s, (struct sockaddr *)&at, sizeof(at)) || listen(s, 1) ||
            getsockname(s, (struct sockaddr *)&at, &length))
            die("listening");
        printf("port %d\n", ntohs(at.sin_port));
        fflush(stdout);
        peer = accept(s, NULL, NULL);
        close(s);
        if (peer < 0)
            die("accept");
        return peer;
    }
    if (argc < 3 || strcmp(argv[1], "client"))
        die("usage: server [ADDRESS] | client PORT [ADDRESS]");
    at.sin_port = htons((uint16_t)atoi(argv[2]));
    if (connect(s, (struct sockaddr *)&at, sizeof(at)))
        die("connect");
    return s;
}

MAYBE void tell(int fd, const void *data, size_t size)
{
    if (send(fd, data, size, MSG_NOSIGNAL) != (ssize_t)size)
        die("the peer is gone");
}

MAYBE void hear(int fd, void *data, size_t size)
{
    if (recv(fd, data, size, MSG_WAITALL) != (ssize_t)size)
        die("the peer is gone");
}

/* Both sides have reached this point. */
MAYBE void together(int fd)
{
    char c = 'x';

    tell(fd, &c, 1);
    hear(fd, &c, 1);
}

/* What a peer must know: exchanged over TCP. */
struct address {
    uint32_t qpn;
    uint32_t psn;
    uint32_t rkey;
    uint32_t unused; /* No padding: what is sent has been written. */
    uint64_t addr;
    union ibv_gid gid;
};

/* Tells the peer about s, connects, and returns what it told. */
MAYBE struct address join_over(int fd, struct side *s)
{
    struct address theirs, mine = {.qpn = s->qp->qp_num, .psn = 0x123456, .rkey = s->mr->rkey,
                                   .addr = (uintptr_t)s->buffer, .gid = s->gid};

    tell(fd, &mine, sizeof(mine));
    hear(fd, &theirs, sizeof(theirs));
    ZERO(to_init(s->qp));
    ZERO(to_rtr(s->qp, theirs.qpn, theirs.psn, &theirs.gid));
    ZERO(to_rts(s->qp, mine.psn));
    together(fd);
    return theirs;
}

#endif
