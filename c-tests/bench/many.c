/* many REPETITIONS [MILLISECONDS]: 8-byte SENDs to and fro between two processes, once with one QP in the CQ and once with 256 in
 * it, of which one is active: `qp1_ns` and `qp256_ns`, one way. One message in 32 asks for a completion, as in ib_send_lat. */
#include "two.h"

enum { QPS = 256, DEPTH = 64, RECEIVES = 16, EVERY = 32, LEN = 4096, LAST = 7 };

static struct ibv_qp *others[QPS];

/* All of them are connected, none of them ever sends. */
static void others_begin(int n)
{
	for (int i = 0; i < n; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = p.cq, .recv_cq = p.cq, .qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		};
		struct about me = p.me, peer;
		CHECK(others[i] = ibv_create_qp(p.pd, &init));
		qp_init(others[i]);
		me.qpn = others[i]->qp_num;
		tcp_all(p.tcp, &me, sizeof me, 1);
		tcp_all(p.tcp, &peer, sizeof peer, 0);
		qp_rts(others[i], &me, &peer);
	}
}

static void send8(char first, int signaled)
{
	p.buf[0] = first;
	struct ibv_sge s = {(uintptr_t)p.buf, 8, p.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = LEN, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_INLINE | (signaled ? IBV_SEND_SIGNALED : 0)}, *bad;
	CHECK(!ibv_post_send(p.qp, &wr, &bad));
}

/* Takes `n` completions; the first byte of the message, if one was among them. */
static char take(int n)
{
	struct ibv_wc wc;
	char first = 0;
	while (n) {
		int got = ibv_poll_cq(p.cq, 1, &wc);
		if (!got)
			continue;
		CHECK(got == 1 && wc.status == IBV_WC_SUCCESS);
		n--;
		if (wc.wr_id == LEN)
			continue;
		first = p.buf[wc.wr_id];
		post_recv(&p, wc.wr_id, 64, wc.wr_id);
	}
	return first;
}

static void measure(int driver, int qps, const char *name)
{
	int n = 0, owed = 0;
	fresh(LEN, DEPTH);
	others_begin(qps - 1);
	for (int i = 1; i <= RECEIVES; i++)
		post_recv(&p, 64 * i, 64, 64 * i);
	tcp_sync(&p);
	if (driver) {
		double ns = TIMED(64, {
			int signaled = ++n % EVERY == 0;
			send8(0, signaled);
			take(1 + signaled);
		});
		send8(LAST, 1);
		take(2);
		say(name, ns / 2);
	} else {
		for (int last = 0; !last; n++) {
			last = take(1 + owed) == LAST;
			owed = last || n % EVERY == 0;
			send8(last, owed);
		}
		take(1);
	}
	for (int i = 0; i < qps - 1; i++)
		CHECK(!ibv_destroy_qp(others[i]));
	done();
}

int main(int argc, char **argv)
{
	int driver = two_begin(argc, argv);
	for (int i = 0; i < repetitions; i++) {
		measure(driver, 1, "qp1_ns");
		measure(driver, QPS, "qp256_ns");
	}
	return two_end(driver);
}
