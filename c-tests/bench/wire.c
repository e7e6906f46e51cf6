/* wire server|client HOST PORT WHAT AMOUNT BYTES MTU 4|6: RC between two hosts, both ends polling, each on a core of its own. HOST and PORT
 * are where the two meet by TCP over IPv4; 4 or 6 is the kind of GID that they use. WHAT and what the client prints:
 *   lat1, lat32         messages of BYTES to and fro, one in 1 or 32 asks for a completion: `ns`, one way
 *   write, read, send   as many as fit into a window: `gbs`, gigabytes a second
 *   rate                SENDs in lists of 16, of which one asks for a completion: `mps`, million messages a second
 *   count               WRITEs, and waits for events; AMOUNT is their number: what a profiler needs
 * AMOUNT is milliseconds otherwise. */
#include "bench.h"

enum { DEPTH = 512, RECEIVES = 256, LIST = 16, SMALL = 64, WINDOW = 16, LAST = 1000 };

static struct pair p;
static uint32_t size;
static int gid_index;

static int of_kind(const union ibv_gid *gid, int six)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	int four = !memcmp(gid->raw, mapped, sizeof mapped);
	return six ? !four && gid->raw[0] != 0xfe && gid->raw[0] != 0 : four;
}

static void meet(int server, const char *host, int port, int six, int mtu, int events)
{
	pair_create(&p, 2 * (size > SMALL ? size : SMALL), DEPTH);
	if (events)
		pair_add_channel(&p, DEPTH);
	while (ibv_query_gid(p.ctx, 1, gid_index, &p.me.gid) == 0 && !of_kind(&p.me.gid, six))
		gid_index++;
	CHECK(of_kind(&p.me.gid, six));
	p.tcp = tcp_open(server, host, port);
	tcp_all(p.tcp, &p.me, sizeof p.me, 1);
	tcp_all(p.tcp, &p.peer, sizeof p.peer, 0);
	enum ibv_mtu code = mtu >= 4096 ? IBV_MTU_4096 : mtu >= 2048 ? IBV_MTU_2048 : mtu >= 1024 ? IBV_MTU_1024 : IBV_MTU_256;
	qp_rts_by(p.qp, &p.me, &p.peer, gid_index, code);
}

/* Takes `n` completions; `LAST` is one that ends the run. Receives are posted again. */
static int take(int n)
{
	struct ibv_wc wc[LIST];
	int last = 0;
	while (n > 0) {
		int got = ibv_poll_cq(p.cq, n < LIST ? n : LIST, wc);
		CHECK(got >= 0);
		for (int i = 0; i < got; i++) {
			if (wc[i].status) {
				fprintf(stderr, "wr_id %d: %s\n", (int)wc[i].wr_id, ibv_wc_status_str(wc[i].status));
				exit(1);
			}
			if (!(wc[i].opcode & IBV_WC_RECV))
				continue;
			last |= wc[i].byte_len == 1;
			post_recv(&p, p.len / 2, p.len / 2, 0);
		}
		n -= got;
	}
	return last;
}

static void post_message(uint32_t len, int signaled)
{
	struct ibv_sge s = {(uintptr_t)p.buf, len, p.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	wr.send_flags = (len <= SMALL ? IBV_SEND_INLINE : 0) | (signaled ? IBV_SEND_SIGNALED : 0);
	CHECK(!ibv_post_send(p.qp, &wr, &bad));
}

/* A message of one byte ends it. */
static void latency(int server, int every)
{
	int n = 0, owed = 0;
	if (!server) {
		double ns = TIMED(64, {
			int signaled = ++n % every == 0;
			post_message(size, signaled);
			take(1 + signaled);
		});
		post_message(1, 1);
		take(2);
		say("ns", ns / 2);
		return;
	}
	for (int last = 0; !last; n++) {
		last = take(1 + owed);
		owed = last || n % every == 0;
		post_message(last ? 1 : size, owed);
	}
	take(1);
}

/* A message of one byte ends SENDs; for the others the server has nothing to do but look. */
static void bandwidth(int server, enum ibv_wr_opcode op)
{
	if (server) {
		while (op == IBV_WR_SEND && !take(1))
			;
		struct pollfd end = {p.tcp, POLLIN, 0};
		struct ibv_wc wc;
		for (unsigned i = 0; op != IBV_WR_SEND && (i % 1024 || poll(&end, 1, 0) == 0); i++)
			CHECK(ibv_poll_cq(p.cq, 1, &wc) == 0);
		return;
	}
	uint64_t begin = now_ns(), end = begin + budget_ns, done = 0;
	for (int i = 0; i < WINDOW; i++)
		CHECK(!post_op(&p, op, 0, size, p.len / 2, 0));
	while (now_ns() < end) {
		take(1);
		CHECK(!post_op(&p, op, 0, size, p.len / 2, 0));
		done++;
	}
	double ns = now_ns() - begin;
	take(WINDOW);
	say("gbs", done * size / ns);
	if (op == IBV_WR_SEND) {
		post_message(1, 1);
		take(1);
	}
}

static void rate(int server)
{
	if (server) {
		while (!take(1))
			;
		return;
	}
	struct ibv_sge s = {(uintptr_t)p.buf, size, p.mr->lkey};
	struct ibv_send_wr list[LIST], *bad;
	for (int i = 0; i < LIST; i++)
		list[i] = (struct ibv_send_wr){.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .next = list + i + 1,
					       .send_flags = IBV_SEND_INLINE};
	list[LIST - 1].next = NULL;
	list[LIST - 1].send_flags |= IBV_SEND_SIGNALED;
	uint64_t begin = now_ns(), end = begin + budget_ns, done = 0;
	int out = 0;
	while (now_ns() < end) {
		for (; out < RECEIVES / LIST / 2; out++)
			CHECK(!ibv_post_send(p.qp, list, &bad));
		take(1);
		out--;
		done += LIST;
	}
	double ns = now_ns() - begin;
	take(out);
	say("mps", 1e3 * done / ns);
	post_message(1, 1);
	take(1);
}

static void count(int server, int n)
{
	if (server)
		return;
	for (int out = 0; n > 0 || out > 0;) {
		for (; out < WINDOW && n > 0; out++, n--)
			CHECK(!post_op(&p, IBV_WR_RDMA_WRITE, 0, size, p.len / 2, 0));
		struct ibv_cq *cq;
		void *unused;
		struct ibv_wc wc;
		CHECK(!ibv_req_notify_cq(p.cq, 0));
		int got = ibv_poll_cq(p.cq, 1, &wc);
		if (!got) {
			CHECK(!ibv_get_cq_event(p.channel, &cq, &unused));
			ibv_ack_cq_events(cq, 1);
		}
		CHECK(got >= 0 && (!got || wc.status == IBV_WC_SUCCESS));
		out -= got;
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 9);
	int server = !strcmp(argv[1], "server"), amount = atoi(argv[5]);
	const char *what = argv[4];
	size = atoi(argv[6]);
	budget_ns = amount * 1000000ull;
	pin(server);
	alarm(120);
	meet(server, argv[2], atoi(argv[3]), atoi(argv[8]) == 6, atoi(argv[7]), !strcmp(what, "count"));
	for (int i = 0; i < RECEIVES; i++)
		post_recv(&p, p.len / 2, p.len / 2, 0);
	tcp_sync(&p);
	if (!strncmp(what, "lat", 3))
		latency(server, atoi(what + 3));
	else if (!strcmp(what, "rate"))
		rate(server);
	else if (!strcmp(what, "count"))
		count(server, amount);
	else
		bandwidth(server, !strcmp(what, "write") ? IBV_WR_RDMA_WRITE : !strcmp(what, "read") ? IBV_WR_RDMA_READ : IBV_WR_SEND);
	tcp_sync(&p);
	pair_destroy(&p);
	return 0;
}
