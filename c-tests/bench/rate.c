/* rate REPETITIONS MILLISECONDS PAIRS polls|waits: 8-byte SENDs between PAIRS pairs of processes at the same time, in lists of 32 of which one
 * asks for a completion. Senders have one core, receivers the other; they poll, or wait for events where the CQ is empty.
 * Prints `mps`, million messages a second of all pairs, by the completions that senders saw in the same interval, and `pairs`, how
 * many of them got any. */
#include "bench.h"
#include <stdatomic.h>

enum { LIST = 32, DEPTH = 512, RECEIVES = 1024, SMALL = 8, PAIRS = 64 };

struct all {
	_Alignas(128) atomic_int ready;
	_Alignas(128) _Atomic uint64_t begin;
	_Alignas(128) atomic_ullong sent[PAIRS];
};

static struct all *all;
static struct pair p;
static int waits;

/* As many completions as there are, at most LIST, at least one. */
static int completions(struct ibv_wc *wc)
{
	struct ibv_cq *cq;
	void *unused;
	for (;;) {
		int n = ibv_poll_cq(p.cq, LIST, wc);
		if (!n && waits) {
			CHECK(!ibv_req_notify_cq(p.cq, 0));
			n = ibv_poll_cq(p.cq, LIST, wc);
			if (!n) {
				CHECK(!ibv_get_cq_event(p.channel, &cq, &unused));
				ibv_ack_cq_events(cq, 1);
			}
		}
		CHECK(n >= 0);
		for (int i = 0; i < n; i++)
			if (wc[i].status) {
				fprintf(stderr, "wr_id %d: %s\n", (int)wc[i].wr_id, ibv_wc_status_str(wc[i].status));
				exit(1);
			}
		if (n)
			return n;
	}
}

static void post_receives(int n)
{
	struct ibv_sge s = {(uintptr_t)p.buf, 64, p.mr->lkey};
	struct ibv_recv_wr list[LIST], *bad;
	for (int i = 0; i < n; i++)
		list[i] = (struct ibv_recv_wr){.sg_list = &s, .num_sge = 1, .next = i + 1 < n ? list + i + 1 : NULL};
	CHECK(!ibv_post_recv(p.qp, list, &bad));
}

/* Until a message of one byte comes. */
static void receive(void)
{
	struct ibv_wc wc[LIST];
	for (int n, last = 0, taken = 0; !last;) {
		n = completions(wc);
		for (int i = 0; i < n; i++)
			last |= wc[i].byte_len == 1;
		taken += n;
		for (; taken >= LIST; taken -= LIST)
			post_receives(LIST);
	}
}

static void send_lists(int me)
{
	struct ibv_sge s = {(uintptr_t)p.buf, SMALL, p.mr->lkey};
	struct ibv_send_wr list[LIST], *bad;
	struct ibv_wc wc[LIST];
	for (int i = 0; i < LIST; i++)
		list[i] = (struct ibv_send_wr){.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .next = list + i + 1,
					       .send_flags = IBV_SEND_INLINE};
	list[LIST - 1].next = NULL;
	list[LIST - 1].send_flags |= IBV_SEND_SIGNALED;
	atomic_fetch_add(&all->ready, 1);
	while (!atomic_load(&all->begin) || now_ns() < all->begin)
		usleep(200);
	uint64_t end = all->begin + budget_ns, sent = 0;
	int out = 0;
	while (now_ns() < end) {
		for (; out < DEPTH / LIST; out++)
			CHECK(!ibv_post_send(p.qp, list, &bad));
		int n = completions(wc);
		out -= n;
		if (now_ns() < end)
			sent += n * LIST;
	}
	atomic_store(&all->sent[me], sent);
	while (out)
		out -= completions(wc);
	s.length = 1;
	list[0].next = NULL;
	list[0].send_flags |= IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(p.qp, list, &bad));
	completions(wc);
}

static void one(int me, int sends, int between)
{
	pin(!sends);
	pair_create(&p, 4096, RECEIVES);
	if (waits)
		pair_add_channel(&p, RECEIVES);
	p.tcp = between;
	tcp_all(between, &p.me, sizeof p.me, 1);
	tcp_all(between, &p.peer, sizeof p.peer, 0);
	qp_rts(p.qp, &p.me, &p.peer);
	for (int i = 0; i < RECEIVES / LIST && !sends; i++)
		post_receives(LIST);
	tcp_sync(&p);
	if (sends)
		send_lists(me);
	else
		receive();
	tcp_sync(&p);
	pair_destroy(&p);
}

static void measure(int pairs)
{
	memset(all, 0, sizeof *all);
	for (int i = 0; i < 2 * pairs; i++) {
		static int ends[2];
		if (i % 2 == 0)
			CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			alarm(100);
			close(ends[i % 2 == 0]);
			one(i / 2, i % 2, ends[i % 2]);
			exit(0);
		}
		if (i % 2)
			close(ends[0]), close(ends[1]);
	}
	while (atomic_load(&all->ready) < pairs) {
		CHECK(waitpid(-1, NULL, WNOHANG) == 0);
		usleep(1000);
	}
	/* When all of them are asleep, they begin together. */
	atomic_store(&all->begin, now_ns() + 5000000);
	uint64_t sum = 0, some = 0;
	for (int status, i = 0; i < 2 * pairs; i++)
		CHECK(wait(&status) > 0 && status == 0);
	for (int i = 0; i < pairs; i++)
		sum += all->sent[i], some += all->sent[i] != 0;
	say("mps", 1e3 * sum / budget_ns);
	say("pairs", some);
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	budget_ns = strtoull(argv[2], NULL, 10) * 1000000;
	int pairs = atoi(argv[3]);
	CHECK(pairs > 0 && pairs <= PAIRS);
	waits = !strcmp(argv[4], "waits");
	setvbuf(stdout, NULL, _IOLBF, 0);
	all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(all != MAP_FAILED);
	for (int i = 0; i < atoi(argv[1]); i++)
		measure(pairs);
	return 0;
}
