/* atomics REPETITIONS [MILLISECONDS]: fetch-and-add, from its post to its completion, while the target polls its CQ and while it sleeps:
 * `fadd_polling_ns` and `fadd_idle_ns`. */
#include "two.h"

enum { DEPTH = 16, LEN = 4096 };

static void fetch_and_add(void)
{
	struct ibv_sge s = {(uintptr_t)p.buf, 8, p.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED}, *bad;
	wr.wr.atomic.remote_addr = p.peer.addr + 64;
	wr.wr.atomic.rkey = p.peer.rkey;
	wr.wr.atomic.compare_add = 1;
	CHECK(!ibv_post_send(p.qp, &wr, &bad));
	wait_wc();
}

static void measure(int driver, int polls, const char *name)
{
	struct ibv_wc wc;
	fresh(LEN, DEPTH);
	tcp_sync(&p);
	if (driver) {
		say(name, TIMED(50, fetch_and_add()));
		atomic_store(&sh->stop, 1);
	}
	while (!driver && polls && !atomic_load_explicit(&sh->stop, memory_order_relaxed))
		CHECK(ibv_poll_cq(p.cq, 1, &wc) == 0);
	done();
	if (driver)
		atomic_store(&sh->stop, 0);
	tcp_sync(&p);
}

int main(int argc, char **argv)
{
	int driver = two_begin(argc, argv);
	for (int i = 0; i < repetitions; i++) {
		measure(driver, 1, "fadd_polling_ns");
		measure(driver, 0, "fadd_idle_ns");
	}
	return two_end(driver);
}
