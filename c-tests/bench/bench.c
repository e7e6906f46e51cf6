/* bench REPETITIONS [MILLISECONDS]: the floors and RC SEND, WRITE and READ between two processes, each on a core of its own.
 * Everything is measured once a repetition, floors and verbs interleaved, since floors drift. Prints `NAME VALUE` lines:
 * names ending in _ns are nanoseconds an operation (send8 and hop: one way), names ending in _gbs are gigabytes a second. */
#include "two.h"
#include <sys/uio.h>

enum { DEPTH = 64, WINDOW = 16, BUF = 2 << 20, HALF = 1 << 20 };

static void hop(int driver)
{
	if (!driver) {
		for (unsigned n = 1;; n++) {
			while (atomic_load_explicit(&sh->there, memory_order_acquire) != n)
				;
			unsigned stop = atomic_load_explicit(&sh->stop, memory_order_relaxed);
			atomic_store_explicit(&sh->back, n, memory_order_release);
			if (stop)
				return;
		}
	}
	unsigned n = 0;
	double ns = TIMED(100, {
		atomic_store_explicit(&sh->there, ++n, memory_order_release);
		while (atomic_load_explicit(&sh->back, memory_order_acquire) != n)
			;
	});
	atomic_store(&sh->stop, 1);
	atomic_store(&sh->there, ++n);
	while (atomic_load(&sh->back) != n)
		;
	atomic_store(&sh->stop, 0);
	atomic_store(&sh->there, 0);
	atomic_store(&sh->back, 0);
	say("hop_ns", ns / 2);
}

static double vm(int write, size_t len, int chunk)
{
	struct iovec local = {p.buf, len}, remote = {(void *)(uintptr_t)p.peer.addr, len};
	return TIMED(chunk, {
		ssize_t n = write ? process_vm_writev(peer_pid, &local, 1, &remote, 1, 0)
				  : process_vm_readv(peer_pid, &local, 1, &remote, 1, 0);
		CHECK(n == (ssize_t)len);
	});
}

static double copy(size_t len, int chunk)
{
	return TIMED(chunk, {
		memcpy(p.buf + HALF, p.buf, len);
		__asm__ volatile("" ::: "memory");
	});
}

static double one_sided_latency(enum ibv_wr_opcode op)
{
	return TIMED(50, {
		CHECK(!post_op(&p, op, 0, 8, 0, 1));
		wait_wc();
	});
}

static double one_sided_bandwidth(enum ibv_wr_opcode op, uint32_t len)
{
	int out = 0;
	double ns = TIMED(WINDOW, {
		if (out == WINDOW) {
			wait_wc();
			out--;
		}
		CHECK(!post_op(&p, op, 0, len, 0, 1));
		out++;
	});
	for (; out; out--)
		wait_wc();
	return ns;
}

static void send8_post(char stop, int signaled)
{
	p.buf[0] = stop;
	struct ibv_sge s = {(uintptr_t)p.buf, 8, p.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 100, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_INLINE | (signaled ? IBV_SEND_SIGNALED : 0)}, *bad;
	CHECK(!ibv_post_send(p.qp, &wr, &bad));
}

/* Waits for a message and for `sends` completions of our own, posts the receive again; gives the first byte. */
static char send8_both(int sends)
{
	struct ibv_wc wc;
	char got = 0;
	for (int left = 1 + sends; left;) {
		int n = ibv_poll_cq(p.cq, 1, &wc);
		CHECK(n >= 0);
		if (!n)
			continue;
		CHECK(wc.status == IBV_WC_SUCCESS);
		left--;
		if (wc.wr_id != 100) {
			got = p.buf[HALF + wc.wr_id * 64];
			post_recv(&p, HALF + wc.wr_id * 64, 64, wc.wr_id);
		}
	}
	return got;
}

/* One send in `every` asks for a completion: all of them as in ibv_rc_pingpong, or few as in ib_send_lat. */
static void send8(int driver, int every, const char *name)
{
	int n = 0, owed = 0;
	if (driver) {
		double ns = TIMED(64, {
			int signaled = ++n % every == 0;
			send8_post(0, signaled);
			send8_both(signaled);
		});
		send8_post(1, 1);
		send8_both(1);
		say(name, ns / 2);
		return;
	}
	/* The completion of an answer comes with the next message, or after the last. */
	for (int stop = 0; !stop; n++) {
		stop = send8_both(owed);
		owed = stop || n % every == 0;
		send8_post(stop, owed);
	}
	wait_wc();
}

/* The last message is one byte long. */
static void send_bandwidth(int driver, uint32_t len, const char *name)
{
	struct ibv_wc wc;
	if (!driver) {
		for (int i = 0; i < DEPTH - 16; i++)
			post_recv(&p, 0, len, i);
		tcp_sync(&p);
		for (;;) {
			int n = ibv_poll_cq(p.cq, 1, &wc);
			CHECK(n >= 0 && (!n || wc.status == IBV_WC_SUCCESS));
			if (n && wc.byte_len == 1)
				break;
			if (n)
				post_recv(&p, 0, len, wc.wr_id);
		}
		return;
	}
	tcp_sync(&p);
	double ns = one_sided_bandwidth(IBV_WR_SEND, len);
	CHECK(!post_op(&p, IBV_WR_SEND, 0, 1, 0, 1));
	wait_wc();
	say(name, len / ns);
}

static void repetition(int driver)
{
	fresh(BUF, DEPTH);
	tcp_sync(&p);
	hop(driver);
	for (int i = 0; i < 8; i++)
		post_recv(&p, HALF + i * 64, 64, i);
	tcp_sync(&p);
	send8(driver, 1, "send8_ns");
	send8(driver, 32, "send8_few_ns");
	hop(driver);
	done();

	fresh(BUF, DEPTH);
	if (driver) {
		say("pvw8_ns", vm(1, 8, 50));
		say("write8_ns", one_sided_latency(IBV_WR_RDMA_WRITE));
		say("pvr8_ns", vm(0, 8, 50));
		say("read8_ns", one_sided_latency(IBV_WR_RDMA_READ));
		say("memcpy64k_gbs", 65536 / copy(65536, 10));
		say("pvw64k_gbs", 65536 / vm(1, 65536, 10));
		say("pvw64k_whole_gbs", 65536 / whole_ns);
		say("write64k_gbs", 65536 / one_sided_bandwidth(IBV_WR_RDMA_WRITE, 65536));
		say("pvr64k_gbs", 65536 / vm(0, 65536, 10));
		say("pvr64k_whole_gbs", 65536 / whole_ns);
		say("read64k_gbs", 65536 / one_sided_bandwidth(IBV_WR_RDMA_READ, 65536));
		say("memcpy1m_gbs", HALF / copy(HALF, 4));
		say("pvw1m_gbs", HALF / vm(1, HALF, 4));
		say("pvw1m_whole_gbs", HALF / whole_ns);
		say("write1m_gbs", HALF / one_sided_bandwidth(IBV_WR_RDMA_WRITE, HALF));
		say("pvr1m_gbs", HALF / vm(0, HALF, 4));
		say("pvr1m_whole_gbs", HALF / whole_ns);
		say("read1m_gbs", HALF / one_sided_bandwidth(IBV_WR_RDMA_READ, HALF));
	}
	done();

	fresh(BUF, DEPTH);
	send_bandwidth(driver, 65536, "send64k_gbs");
	done();
	fresh(BUF, DEPTH);
	send_bandwidth(driver, HALF, "send1m_gbs");
	done();
}

int main(int argc, char **argv)
{
	int driver = two_begin(argc, argv);
	for (int i = 0; i < repetitions; i++)
		repetition(driver);
	return two_end(driver);
}
