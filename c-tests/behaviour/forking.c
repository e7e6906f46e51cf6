/* fork: children may do what they like with memory and exit; the parent's traffic goes on; a child has a device of its own. */
#include "behaviour.h"

#define CHILDREN 100

static int stop;
static long rounds;

/* Traffic that checks what comes, until told to stop. */
static void *traffic(void *arg)
{
    struct duo *d = arg;

    for (unsigned i = 0; !__atomic_load_n(&stop, __ATOMIC_SEQ_CST); i++) {
        fill(d->a.buffer, 1000, i);
        ZERO(recv_one(&d->b, i, 0, 1000));
        ZERO(send_one(&d->a, i, 0, 1000, IBV_SEND_SIGNALED));
        NEXT(d->a.cq, i, IBV_WC_SUCCESS);
        NEXT(d->b.cq, i, IBV_WC_SUCCESS);
        EXPECT(filled(d->b.buffer, 1000, i), "round %u", i);
        ZERO(rdma_one(&d->a, i, IBV_WR_RDMA_WRITE, 0, 1000, (uintptr_t)d->b.buffer + 4096, d->b.mr->rkey));
        NEXT(d->a.cq, i, IBV_WC_SUCCESS);
        EXPECT(filled(d->b.buffer + 4096, 1000, i), "round %u", i);
        __atomic_add_fetch(&rounds, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* Objects come and go, so that a fork often finds our locks held. */
static void *lock_holder(void *arg)
{
    struct ibv_context *context = arg;

    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        struct side s;

        make_side(&s, context, IBV_QPT_RC, 4096);
        drop_side(&s);
    }
    return NULL;
}

static void goes_on(void)
{
    long now = __atomic_load_n(&rounds, __ATOMIC_SEQ_CST);
    uint64_t end = now_ms() + 10000;

    while (__atomic_load_n(&rounds, __ATOMIC_SEQ_CST) < now + 10)
        EXPECT(now_ms() < end, "the parent's traffic stands still");
}

/* Writes to every page of this process that may be written. */
static void write_every_page(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long from, to;
    char line[512], mode[8];

    if (!maps)
        die("maps");
    while (fgets(line, sizeof(line), maps)) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || mode[1] != 'w' || mode[3] != 'p' ||
            strstr(line, "[stack") || strstr(line, "[v"))
            continue;
        for (volatile char *p = (char *)from; p < (char *)to; p += 4096)
            *p = *p;
    }
    fclose(maps);
}

static void own_device(void)
{
    struct duo d;

    make_duo(&d, IBV_QPT_RC);
    fill(d.a.buffer, 100, 3);
    ZERO(recv_one(&d.b, 1, 0, 100));
    ZERO(send_one(&d.a, 2, 0, 100, IBV_SEND_SIGNALED));
    NEXT(d.a.cq, 2, IBV_WC_SUCCESS);
    NEXT(d.b.cq, 1, IBV_WC_SUCCESS);
    EXPECT(filled(d.b.buffer, 100, 3));
    drop_duo(&d);
}

/* What a child does with the objects that it has inherited: each call ends, and harms nobody. */
static void use_what_was_inherited(struct duo *d)
{
    struct ibv_wc wc;

    send_one(&d->a, 1, 0, 8, IBV_SEND_SIGNALED);
    recv_one(&d->a, 1, 0, 8);
    ibv_poll_cq(d->a.cq, 1, &wc);
    ibv_req_notify_cq(d->a.cq, 0);
    ibv_reg_mr(d->a.pd, d->a.buffer, 4096, ALL_ACCESS);
    to_err(d->a.qp);
    ibv_destroy_qp(d->a.qp);
    ibv_destroy_cq(d->a.cq);
    ibv_dereg_mr(d->a.mr);
    ibv_dealloc_pd(d->a.pd);
    ibv_close_device(d->context);
}

static struct duo *inherited;

static void at_exit(void)
{
    if (inherited)
        use_what_was_inherited(inherited);
}

enum act { EXIT, UNDERSCORE_EXIT, EXEC, WRITE_PAGES, OPEN, USE, ACTS };

static void act(enum act what, struct duo *d)
{
    switch (what) {
    case EXIT:
        exit(0);
    case UNDERSCORE_EXIT:
        _exit(0);
    case EXEC:
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    case WRITE_PAGES:
        write_every_page();
        exit(0);
    case OPEN:
        own_device();
        exit(0);
    default:
        inherited = d;
        atexit(at_exit);
        write_every_page();
        own_device();
        exit(0);
    }
}

static void forks(int holders, enum act first, enum act last)
{
    pthread_t threads[4];
    struct duo d;
    int n = 0;

    make_duo(&d, IBV_QPT_RC);
    ZERO(pthread_create(&threads[n++], NULL, traffic, &d));
    for (int i = 0; i < holders; i++)
        ZERO(pthread_create(&threads[n++], NULL, lock_holder, d.context));
    goes_on();
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = child();

        if (pid == 0)
            act((enum act)((int)first + i % (int)(last - first + 1)), &d);
        ends_well(pid);
        if (i % 10 == 0)
            goes_on();
    }
    goes_on();
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < n; i++)
        ZERO(pthread_join(threads[i], NULL));
    EXPECT(no_event(d.context));
    drop_duo(&d);
}

TEST(a_hundred_children_that_write_every_page_and_exit_leave_traffic_alone)
{
    forks(0, WRITE_PAGES, WRITE_PAGES);
}

TEST(children_that_exit_or_exec_leave_traffic_alone)
{
    forks(0, EXIT, EXEC);
}

TEST(children_of_a_process_whose_threads_hold_locks_exit_and_open_the_device)
{
    forks(2, EXIT, OPEN);
}

TEST(children_that_use_and_destroy_what_they_inherited_harm_nobody)
{
    forks(1, USE, USE);
}

/* Traffic to another process, several children alive at once. */
static void echo(int fd)
{
    struct side s;

    make_side(&s, open_device(), IBV_QPT_RC, 4096);
    ZERO(to_init(s.qp));
    for (unsigned i = 0; i < 4; i++)
        ZERO(recv_one(&s, i, 0, 100));
    join_over(fd, &s);
    for (;;) {
        struct pollfd gone = {.fd = fd, .events = POLLIN};
        struct ibv_wc wc;

        if (ibv_poll_cq(s.cq, 1, &wc) == 0) {
            if (poll(&gone, 1, 0) == 1)
                exit(0);
            continue;
        }
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        if (!(wc.opcode & IBV_WC_RECV))
            continue;
        ZERO(recv_one(&s, 1, 0, 100));
        ZERO(send_one(&s, 2, 0, 100, IBV_SEND_SIGNALED));
    }
}

TEST_BETWEEN(children_leave_connections_to_other_processes_alone)
{
    pid_t peer, children[10] = {0};
    struct side s;
    int fd;

    peer = with_other(echo, &fd);
    make_side(&s, open_device(), IBV_QPT_RC, 8192);
    ZERO(to_init(s.qp));
    for (unsigned i = 0; i < 4; i++)
        ZERO(recv_one(&s, 100 + i, 4096, 100));
    join_over(fd, &s);
    for (unsigned i = 0; i < CHILDREN; i++) {
        pid_t *slot = &children[i % 10];

        if (*slot)
            ends_well(*slot);
        *slot = child();
        if (*slot == 0) {
            write_every_page();
            if (i % 3 == 0)
                own_device();
            usleep(i % 7 * 1000);
            exit(0);
        }
        for (unsigned m = 0; m < 20; m++) {
            int seen = 0;

            ZERO(send_one(&s, m, 0, 100, IBV_SEND_SIGNALED));
            while (seen != 3) {
                struct ibv_wc wc = next_wc(s.cq);

                EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
                seen |= wc.opcode & IBV_WC_RECV ? 1 : 2;
            }
            ZERO(recv_one(&s, 100, 4096, 100));
        }
    }
    for (int i = 0; i < 10; i++)
        ends_well(children[i]);
    EXPECT(no_event(s.context));
    close(fd);
    ends_well(peer);
    drop_side(&s);
}

/* The parent dies; the child, which has inherited nothing useful, lives on with a device of its own. */
TEST(a_child_outlives_its_parent)
{
    int fds[2];
    char c;
    pid_t parent;

    ZERO(pipe2(fds, O_CLOEXEC));
    parent = child();
    if (parent == 0) {
        struct duo d;
        pid_t pid;

        make_duo(&d, IBV_QPT_RC);
        pid = fork();
        if (pid < 0)
            die("fork");
        if (pid == 0) {
            pid_t dead = getppid();
            uint64_t end = now_ms() + 10000;

            alarm(50);
            while (getppid() == dead && now_ms() < end)
                usleep(1000);
            own_device();
            if (write(fds[1], "x", 1) != 1)
                _exit(1);
            exit(0);
        }
        _exit(0);
    }
    ends_well(parent);
    close(fds[1]);
    EXPECT(read(fds[0], &c, 1) == 1, "the child has failed");
}

TEST(ibv_fork_init_is_not_needed_and_never_fails)
{
    struct duo d;

    EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    ZERO(ibv_fork_init());
    make_duo(&d, IBV_QPT_RC);
    ZERO(ibv_fork_init());
    EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
    drop_duo(&d);
    ZERO(ibv_fork_init());
}

/* A child sees registered memory as it was, and its writes stay its own: nobody called madvise on it. */
TEST(registered_memory_is_inherited_as_any_other)
{
    struct duo d;
    pid_t pid;

    make_duo(&d, IBV_QPT_RC);
    fill(d.a.buffer, d.a.size, 9);
    pid = child();
    if (pid == 0) {
        EXPECT(filled(d.a.buffer, d.a.size, 9), "the child sees other bytes");
        memset(d.a.buffer, 0, d.a.size);
        exit(0);
    }
    ends_well(pid);
    EXPECT(filled(d.a.buffer, d.a.size, 9), "the child's writes came through");
    ZERO(recv_one(&d.b, 1, 0, 4096));
    ZERO(send_one(&d.a, 2, 0, 4096, IBV_SEND_SIGNALED));
    NEXT(d.b.cq, 1, IBV_WC_SUCCESS);
    EXPECT(filled(d.b.buffer, 4096, 9));
    drop_duo(&d);
}
