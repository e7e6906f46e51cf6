/*
 * forks [-s SEED] [-n COUNT]: a process with traffic to another one, in several threads, forks COUNT children, which
 * write every page, use what they inherited, destroy it in an atexit handler, open a context of their own and exchange
 * messages with a second QP of the parent. The parent's traffic goes on undisturbed, and no child hangs.
 */
#include "stress.h"

enum { LENGTH = 32 * 1024, DEPTH = 4 };

struct party {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;
    struct about me, peer;
};

static struct party main_party, for_children;
static int stop;
static long exchanged;

static void make(struct party *p, struct ibv_context *context)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};

    memset(p, 0, sizeof(*p));
    p->context = context;
    p->pd = NEED(ibv_alloc_pd(context));
    p->channel = NEED(ibv_create_comp_channel(context));
    p->cq = NEED(ibv_create_cq(context, 4 * DEPTH, NULL, p->channel, 0));
    init.send_cq = init.recv_cq = p->cq;
    p->qp = NEED(ibv_create_qp(p->pd, &init));
    p->memory = pages(2 * LENGTH);
    p->mr = NEED(ibv_reg_mr(p->pd, p->memory, 2 * LENGTH, ALL_ACCESS));
    ZERO(to_init(p->qp));
    p->me = (struct about){.qpn = p->qp->qp_num, .psn = 9, .rkey = p->mr->rkey, .address = (uintptr_t)p->memory};
    ZERO(ibv_query_gid(context, PORT, 0, &p->me.gid));
}

static void drop(struct party *p)
{
    ZERO(ibv_destroy_qp(p->qp));
    ZERO(ibv_destroy_cq(p->cq));
    ZERO(ibv_destroy_comp_channel(p->channel));
    ZERO(ibv_dereg_mr(p->mr));
    ZERO(ibv_dealloc_pd(p->pd));
}

static void give_receive(struct party *p)
{
    struct ibv_sge sge = {(uintptr_t)p->memory + LENGTH, LENGTH, p->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

    ZERO(ibv_post_recv(p->qp, &wr, &bad));
}

static void send_pattern(struct party *p, uint32_t length, uint64_t pattern)
{
    struct ibv_sge sge = {(uintptr_t)p->memory, length, p->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED}, *bad;

    put_pattern(p->memory, length, pattern);
    ZERO(ibv_post_send(p->qp, &wr, &bad));
}

/* Both completions of an exchange, in either order. */
static void both(struct party *p, uint64_t pattern)
{
    for (int seen = 0; seen != 3;) {
        struct ibv_wc wc = next_wc(p->cq);

        if (wc.status)
            BAD("wr_id %" PRIu64 ": %s", wc.wr_id, ibv_wc_status_str(wc.status));
        if (wc.wr_id == 1 && pattern_differs(p->memory + LENGTH, wc.byte_len, pattern) >= 0)
            BAD("message %" PRIu64 " differs", pattern);
        seen |= (int)wc.wr_id;
    }
}

static void ping_pong(struct party *p, uint64_t pattern)
{
    uint32_t length = 1 + (uint32_t)(mix(seed, pattern) % LENGTH);

    send_pattern(p, length, pattern);
    both(p, pattern);
    give_receive(p);
}

/* The word of whoever stops comes in its message, so both make the same number of exchanges. */
static void *traffic(void *unused)
{
    (void)unused;
    for (uint64_t i = 0; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); i++) {
        ping_pong(&main_party, i);
        __atomic_add_fetch(&exchanged, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Takes the library's locks as often as it can. */
static void *objects(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        struct party p;

        make(&p, main_party.context);
        drop(&p);
        munmap(p.memory, 2 * LENGTH);
    }
    return NULL;
}

/* Another thread blocks in the library while children are made. */
static void *events(void *unused)
{
    struct ibv_async_event event;

    (void)unused;
    ibv_get_async_event(main_party.context, &event);
    return NULL;
}

static void use_inherited(void)
{
    struct ibv_wc wc;
    struct ibv_sge sge = {(uintptr_t)main_party.memory, 8, main_party.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_recv_wr rwr = {.sg_list = &sge, .num_sge = 1}, *rbad;
    struct ibv_cq *cq;
    void *c;

    if (ibv_post_send(main_party.qp, &wr, &bad) == 0 || ibv_post_recv(main_party.qp, &rwr, &rbad) == 0)
        BAD("an inherited QP takes requests");
    if (ibv_poll_cq(main_party.cq, 1, &wc) > 0)
        BAD("an inherited CQ gives completions");
    (void)ibv_req_notify_cq(main_party.cq, 0);
    if (ibv_get_cq_event(main_party.channel, &cq, &c) == 0)
        BAD("an inherited channel gives events");
    if (to_err(main_party.qp) == 0)
        BAD("an inherited QP can be modified");
    if (ibv_reg_mr(main_party.pd, main_party.memory, 64, 0))
        BAD("memory can be registered in an inherited context");
}

static void let_go(void)
{
    drop(&main_party);
    drop(&for_children);
    ZERO(ibv_close_device(main_party.context));
}

/* Every page that it may write, of the heap, the stack, data and anonymous memory. */
MAYBE void write_pages(void)
{
    FILE *maps = NEED(fopen("/proc/self/maps", "re"));
    char line[512];
    unsigned long from, to;
    char mode[8], path[256];
    volatile char local[65536];

    for (size_t i = 0; i < sizeof(local); i += 512)
        local[i] = 1;
    while (fgets(line, sizeof(line), maps)) {
        path[0] = 0;
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &from, &to, mode, path) < 3 || mode[1] != 'w' ||
            strstr(path, "[stack]"))
            continue;
        for (unsigned long p = from; p < to; p += 4096) {
            volatile char *at = (volatile char *)p;

            *at = *at;
        }
    }
    fclose(maps);
}

static void child(int number, int fd)
{
    struct party own;

    alarm(20);
#ifndef __SANITIZE_ADDRESS__
    /* Its own terabytes of writable pages are not for writing. */
    if (number % 2)
        write_pages();
#endif
    use_inherited();
    if (number % 3 == 0)
        exit(0);
    if (number % 3 == 1) {
        let_go();
        _exit(0);
    }
    make(&own, open_device());
    give_receive(&own);
    tell(fd, &own.me, sizeof(own.me));
    hear(fd, &own.peer, sizeof(own.peer));
    connect_qp(own.qp, &own.me, &own.peer, 18, 7, 7);
    together(fd);
    for (uint64_t i = 0; i < 20; i++)
        ping_pong(&own, i);
    together(fd);
    drop(&own);
    ZERO(ibv_close_device(own.context));
    exit(0);
}

static void serve(int fd)
{
    struct party *p = &for_children;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    struct ibv_wc wc;

    ZERO(ibv_modify_qp(p->qp, &reset, IBV_QP_STATE));
    while (ibv_poll_cq(p->cq, 1, &wc) > 0)
        ;
    ZERO(to_init(p->qp));
    give_receive(p);
    tell(fd, &p->me, sizeof(p->me));
    hear(fd, &p->peer, sizeof(p->peer));
    connect_qp(p->qp, &p->me, &p->peer, 18, 7, 7);
    together(fd);
    for (uint64_t i = 0; i < 20; i++)
        ping_pong(p, i);
    together(fd);
}

static void connect_main(int fd)
{
    give_receive(&main_party);
    tell(fd, &main_party.me, sizeof(struct about));
    hear(fd, &main_party.peer, sizeof(struct about));
    connect_qp(main_party.qp, &main_party.me, &main_party.peer, 18, 7, 7);
    together(fd);
}

int main(int argc, char **argv)
{
    int fd;
    pid_t second;
    pthread_t threads[3];
    long before = -1;

    options(argc, argv, 40, 60);
    if (optind < argc) {
        /* The other process echoes until it is killed. */
        make(&main_party, open_device());
        connect_main(SECOND_FD);
        traffic(NULL);
    }
    fd = second_process(argv, "second", &second);
    make(&main_party, open_device());
    make(&for_children, main_party.context);
    connect_main(fd);
    ZERO(pthread_create(&threads[0], NULL, traffic, NULL));
    ZERO(pthread_create(&threads[1], NULL, objects, NULL));
    ZERO(pthread_create(&threads[2], NULL, events, NULL));
    for (int i = 0; i < count; i++) {
        int pair[2];
        pid_t pid;

        ZERO(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        usleep((useconds_t)draw(3000));
        pid = fork();
        if (pid < 0)
            die("fork");
        if (pid == 0) {
            if (i % 3 == 0)
                atexit(let_go);
            close(pair[0]);
            child(i, pair[1]);
        }
        close(pair[1]);
        if (i % 3 == 2)
            serve(pair[0]);
        close(pair[0]);
        expect_exit(pid, 0);
        if (__atomic_load_n(&exchanged, __ATOMIC_RELAXED) == before) {
            usleep(500000);
            if (__atomic_load_n(&exchanged, __ATOMIC_RELAXED) == before)
                BAD("after child %d the traffic stands still", i);
        }
        before = __atomic_load_n(&exchanged, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    ZERO(pthread_join(threads[0], NULL));
    ZERO(pthread_join(threads[1], NULL));
    kill(second, SIGKILL);
    waitpid(second, NULL, 0);
    printf("ok\n");
    /* A thread is in ibv_get_async_event still. */
    _exit(0);
}
