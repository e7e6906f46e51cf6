/* count server|client PORT ROUNDS: 8-byte SENDs for an instruction counter. The client posts, waits until the server, which polls, has
 * taken the message and says so by TCP, and polls once: that poll takes the acknowledgement and finds the completion, unless a thread of
 * the library has been faster. A counter looks into `counted_post` and `counted_poll` alone (callgrind's --toggle-collect and
 * --dump-after), which are one call each; as many messages as it takes to settle go before them. */
#include "bench.h"

enum { DEPTH = 64, LEN = 4096, WARM = 400, ALIVE = 130 };

static struct pair p;

__attribute__((noinline)) int counted_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int failed = ibv_post_send(qp, wr, bad);
	/* So that this is a call and no jump. */
	__asm__ volatile("" ::: "memory");
	return failed;
}

__attribute__((noinline)) int counted_poll(struct ibv_cq *cq, struct ibv_wc *wc)
{
	int n = ibv_poll_cq(cq, 1, wc);
	__asm__ volatile("" ::: "memory");
	return n;
}

static void one_more(char *c, int out)
{
	tcp_all(p.tcp, c, 1, out);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int server = !strcmp(argv[1], "server"), rounds = atoi(argv[3]);
	char c = 0;
	pin(server);
	alarm(120);
	pair_create(&p, LEN, DEPTH);
	pair_connect(&p, server, "127.0.0.1", atoi(argv[2]));
	struct ibv_sge s = {(uintptr_t)p.buf, 8, p.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	if (server)
		post_recv(&p, 0, 64, 0);
	tcp_sync(&p);
	for (int i = 0; i < WARM + rounds; i++) {
		if (server) {
			int n;
			while (!(n = ibv_poll_cq(p.cq, 1, &wc)))
				;
			CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
			post_recv(&p, 0, 64, 0);
			one_more(&c, 1);
		} else {
			/* A process that does not keep polling has its completions made by a thread of the library. */
			for (int j = 0; j < ALIVE; j++)
				CHECK(ibv_poll_cq(p.cq, 1, &wc) == 0);
			CHECK(!(i < WARM ? ibv_post_send : counted_post)(p.qp, &wr, &bad));
			one_more(&c, 0);
			int n = i < WARM ? 0 : counted_poll(p.cq, &wc);
			while (!n)
				n = ibv_poll_cq(p.cq, 1, &wc);
			CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
		}
	}
	tcp_sync(&p);
	pair_destroy(&p);
	return 0;
}
