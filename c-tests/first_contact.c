/*
 * Two processes that connect to each other at the same moment: datagrams come in the order in which they were sent, while
 * the receiver is stopped again and again.
 */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ROUNDS 200
#define GRH 40
#define MESSAGES 200
#define RECEIVES 24
#define ROOM 256

/* What the two processes, and the one that stops them, know of each other. */
struct shared {
    struct {
        uint32_t qpn;
        union ibv_gid gid;
        int is_ready, may_send, has_sent;
    } side[2];
    uint32_t received;
};

static struct shared *shared;

static void set(int *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

/* Never sleeps: whoever waits goes on at once when its process does. */
static void until(const int *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void send_number(struct side *s, struct ibv_ah *ah, uint32_t qpn, uint32_t number)
{
    struct ibv_sge sge = sge_of(s, 0, sizeof(number));
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    memcpy(s->buffer, &number, sizeof(number));
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = QKEY;
    ZERO(ibv_post_send(s->qp, &wr, &bad));
}

/* The number in the next message. */
static uint32_t receive(struct side *s)
{
    struct ibv_wc wc;
    uint32_t number;

    do
        wc = next_wc(s->cq);
    while (wc.opcode == IBV_WC_SEND);
    if (wc.status != IBV_WC_SUCCESS)
        die("%s", ibv_wc_status_str(wc.status));
    memcpy(&number, s->buffer + (1 + wc.wr_id) * ROOM + GRH, sizeof(number));
    ZERO(recv_one(s, wc.wr_id, (1 + wc.wr_id) * ROOM, ROOM));
    return number;
}

/* The first to send sends one message; the other one answers it, before it has come and afterwards. */
static int process(int first)
{
    int me = !first;
    struct ibv_context *context = open_device();
    struct side s;
    struct ibv_ah_attr attr;
    struct ibv_ah *ah;
    int wrong = 0;

    make_side(&s, context, IBV_QPT_UD, (1 + RECEIVES) * ROOM);
    ZERO(to_init(s.qp));
    ZERO(to_rtr(s.qp, 0, 0, &s.gid));
    ZERO(to_rts(s.qp, 0));
    for (unsigned i = 0; i < RECEIVES; i++)
        ZERO(recv_one(&s, i, (1 + i) * ROOM, ROOM));
    shared->side[me].qpn = s.qp->qp_num;
    shared->side[me].gid = s.gid;
    set(&shared->side[me].is_ready);
    until(&shared->side[!me].is_ready);
    attr = ah_to(&shared->side[!me].gid);
    ah = NEED(ibv_create_ah(s.pd, &attr));

    until(&shared->side[me].may_send);
    send_number(&s, ah, shared->side[!me].qpn, 0);
    if (first) {
        set(&shared->side[me].has_sent);
        for (uint32_t i = 0; i < MESSAGES; i++) {
            wrong |= receive(&s) != i;
            __atomic_store_n(&shared->received, i + 1, __ATOMIC_RELEASE);
        }
        ZERO(ibv_destroy_ah(ah));
        drop_side(&s);
        ZERO(ibv_close_device(context));
    } else {
        wrong |= receive(&s) != 0;
        for (uint32_t i = 1; i < MESSAGES; i++) {
            while (i >= __atomic_load_n(&shared->received, __ATOMIC_ACQUIRE) + RECEIVES - 4)
                sched_yield();
            send_number(&s, ah, shared->side[!me].qpn, i);
            next_wc(s.cq);
        }
        /* Until it is killed: with the sender would go what it has sent. */
        pause();
    }
    return wrong;
}

static pid_t begin(int first)
{
    pid_t child = fork();

    if (child < 0)
        die("fork");
    if (!child) {
        /* A process that is stopped hears no alarm. */
        ZERO(prctl(PR_SET_PDEATHSIG, SIGKILL));
        limit_time(60);
        _exit(process(first));
    }
    return child;
}

static void spin(long us)
{
    struct timespec a, b;

    clock_gettime(CLOCK_MONOTONIC, &a);
    do
        clock_gettime(CLOCK_MONOTONIC, &b);
    while ((b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000 < us);
}

static void halt(pid_t child)
{
    int status;

    ZERO(kill(child, SIGSTOP));
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
        die("stop");
}

static int round_is_right(unsigned *seed)
{
    pid_t first, second;
    unsigned stops = 0;
    int status;

    /* Both send before they know that the other one has: each finds a connection of the other's. */
    memset(shared, 0, sizeof(*shared));
    first = begin(1);
    second = begin(0);
    until(&shared->side[0].is_ready);
    until(&shared->side[1].is_ready);
    halt(second);
    set(&shared->side[0].may_send);
    until(&shared->side[0].has_sent);
    halt(first);
    set(&shared->side[1].may_send);
    ZERO(kill(second, SIGCONT));
    while (waitpid(first, &status, WNOHANG) != first) {
        ZERO(kill(first, SIGCONT));
        spin(rand_r(seed) % (100 + stops));
        ZERO(kill(first, SIGSTOP));
        spin(100);
        stops++;
    }
    ZERO(kill(second, SIGKILL));
    waitpid(second, NULL, 0);
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

int main(void)
{
    const char *given = getenv("C_TESTS_SEED");
    unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL), state = seed;
    int right = 0;

    start();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    for (int i = 0; i < ROUNDS; i++)
        right += round_is_right(&state);
    printf("datagrams in order: %d of %d\n", right, ROUNDS);
    if (right < ROUNDS)
        fprintf(stderr, "C_TESTS_SEED=%u\n", seed);
    return 0;
}
