/* Two processes of one program, each on a core of its own and connected by a pair: what `PROGRAM REPETITIONS [MILLISECONDS]` have
 * in common. The driver measures and prints, the other one serves. */
#ifndef TWO_H
#define TWO_H

#include "bench.h"
#include <stdatomic.h>

/* Lines of their own: what one process writes does not take another's line away. */
struct shared {
	_Alignas(128) atomic_uint there;
	_Alignas(128) atomic_uint back;
	_Alignas(128) atomic_uint stop;
};

static struct shared *sh;
static struct pair p;
static pid_t peer_pid, child_pid;
static int repetitions, between;

/* Forks before the library is first called: two processes that know nothing of each other. Whether this one drives. */
static inline int two_begin(int argc, char **argv)
{
	int ends[2];
	CHECK(argc >= 2);
	repetitions = atoi(argv[1]);
	if (argc > 2)
		budget_ns = strtoull(argv[2], NULL, 10) * 1000000;
	setvbuf(stdout, NULL, _IOLBF, 0);
	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(sh != MAP_FAILED);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	child_pid = fork();
	CHECK(child_pid >= 0);
	int driver = child_pid != 0;
	between = ends[driver];
	close(ends[!driver]);
	pin(driver ? 0 : 1);
	alarm(300);
	return driver;
}

/* The driver's status is the other one's, too. */
static inline int two_end(int driver)
{
	int status = 0;
	if (driver)
		CHECK(waitpid(child_pid, &status, 0) == child_pid);
	return status != 0;
}

/* Exchanges parameters and takes the QP to RTS on both sides. */
static inline void meet(void)
{
	p.tcp = between;
	tcp_all(p.tcp, &p.me, sizeof p.me, 1);
	tcp_all(p.tcp, &p.peer, sizeof p.peer, 0);
	qp_rts(p.qp, &p.me, &p.peer);
	pid_t me = getpid();
	tcp_all(p.tcp, &me, sizeof me, 1);
	tcp_all(p.tcp, &peer_pid, sizeof peer_pid, 0);
}

/* Receives that are left over belong to the last part; a new QP starts clean. */
static inline void fresh(size_t len, int depth)
{
	memset(&p, 0, sizeof p);
	pair_create(&p, len, depth);
	memset(p.buf, 1, len);
	meet();
}

static inline void done(void)
{
	tcp_sync(&p);
	pair_destroy(&p);
	munmap(p.buf, p.len);
}

static inline void wait_wc(void)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(p.cq, 1, &wc)))
		;
	CHECK(n == 1);
	if (wc.status) {
		fprintf(stderr, "wr_id %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
		exit(1);
	}
}

#endif
