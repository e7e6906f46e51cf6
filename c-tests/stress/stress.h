/*
 * What the stress programs share. Each takes -s SEED (printed when something is wrong), -n COUNT, and ends itself by an
 * alarm when it hangs. Two processes are one program that executes itself again with a socket at SECOND_FD.
 */
#ifndef C_TESTS_STRESS_H
#define C_TESTS_STRESS_H

#include "../common.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define SECOND_FD 100

MAYBE uint64_t seed;
MAYBE long count;

MAYBE uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Each thread draws from its own stream. */
MAYBE __thread uint64_t drawn;
MAYBE uint64_t draw(uint64_t below)
{
    return mix(seed, ++drawn) % below;
}

#define BAD(...)                                                                                                       \
    do {                                                                                                               \
        fprintf(stderr, "seed %" PRIu64 ": ", seed);                                                                   \
        die(__VA_ARGS__);                                                                                              \
    } while (0)

MAYBE void options(int argc, char **argv, long default_count, int seconds)
{
    int o;

    seed = (uint64_t)now_ms() ^ (uint64_t)getpid() << 20;
    count = default_count;
    opterr = 0;
    while ((o = getopt(argc, argv, "s:n:")) != -1) {
        if (o == 's')
            seed = strtoull(optarg, NULL, 0);
        if (o == 'n')
            count = atol(optarg);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    limit_time((unsigned)seconds);
}

/* Fast to fill and to check: eight bytes depend on the seed and on where they lie. */
MAYBE uint64_t word_at(uint64_t s, size_t i)
{
    return (s + i) * 0x9e3779b97f4a7c15u;
}

MAYBE void put_pattern(unsigned char *p, size_t n, uint64_t s)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w = word_at(s, i);

        memcpy(p + i, &w, n - i < 8 ? n - i : 8);
    }
}

/* Where the bytes first differ, or -1. */
MAYBE long pattern_differs(const unsigned char *p, size_t n, uint64_t s)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w = word_at(s, i);

        if (memcmp(p + i, &w, n - i < 8 ? n - i : 8))
            return (long)i;
    }
    return -1;
}

/* Runs this program again with `mode` as its last argument; the socket to it is returned. */
MAYBE int second_process(char **argv, const char *mode, pid_t *pid)
{
    int pair[2];
    char seed_text[32], count_text[32];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        die("socketpair");
    snprintf(seed_text, sizeof(seed_text), "%" PRIu64, seed);
    snprintf(count_text, sizeof(count_text), "%ld", count);
    *pid = fork();
    if (*pid < 0)
        die("fork");
    if (*pid == 0) {
        dup2(pair[1], SECOND_FD);
        execl(own_path(), argv[0], "-s", seed_text, "-n", count_text, mode, NULL);
        _exit(127);
    }
    close(pair[1]);
    return pair[0];
}

MAYBE void expect_exit(pid_t pid, int status_wanted)
{
    int status;

    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != status_wanted)
        BAD("process %d ended with status 0x%x", (int)pid, status);
}

MAYBE long open_fds(void)
{
    long n = 0;

    for (int fd = 0; fd < 4096; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

MAYBE long rss_kib(void)
{
    FILE *f = NEED(fopen("/proc/self/statm", "re"));
    long size, resident;

    if (fscanf(f, "%ld %ld", &size, &resident) != 2)
        die("statm");
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* What one QP tells its peer. */
struct about {
    uint32_t qpn, psn, rkey, unused;
    uint64_t address;
    union ibv_gid gid;
};

/* Over the route of `ah`, with packets of `mtu`. */
MAYBE void connect_over(struct ibv_qp *qp, const struct about *me, const struct about *peer, struct ibv_ah_attr ah,
                        enum ibv_mtu mtu, uint8_t timeout, uint8_t retries, uint8_t rnr_retries)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer->qpn, .rq_psn = peer->psn,
        .max_dest_rd_atomic = 16, .min_rnr_timer = 1, .ah_attr = ah};
    int is_reliable = qp->qp_type != IBV_QPT_UC;

    ZERO(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   (is_reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = me->psn;
    a.timeout = timeout;
    a.retry_cnt = retries;
    a.rnr_retry = rnr_retries;
    a.max_rd_atomic = 16;
    ZERO(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN |
                                   (is_reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                                      IBV_QP_MAX_QP_RD_ATOMIC : 0)));
}

MAYBE void connect_qp(struct ibv_qp *qp, const struct about *me, const struct about *peer, uint8_t timeout,
                      uint8_t retries, uint8_t rnr_retries)
{
    connect_over(qp, me, peer, ah_to(&peer->gid), IBV_MTU_1024, timeout, retries, rnr_retries);
}

#endif
