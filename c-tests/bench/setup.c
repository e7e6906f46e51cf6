/* setup FEW MANY: what it takes to make and to destroy objects, nanoseconds each, FEW at a time and then MANY, `NAME_few_ns` and
 * `NAME_many_ns`: `reg1m`, an MR of 1 MiB of memory that is there; `cq`; `qp`; `connect`, a QP from RESET to RTS, both
 * processes at the same time; `first`, the first SEND and its completion on each of them. All of a round lives at once. */
#include "two.h"

enum { LEN = 1 << 20, DEPTH = 16, WARM = 100 };

static void **made;
static struct about *mine, *theirs;

static double since(uint64_t begin, int n)
{
	return (double)(now_ns() - begin) / n;
}

/* Nothing is said of the round that warms up. */
static void line(const char *what, const char *size, double ns)
{
	if (!size)
		return;
	char name[32];
	snprintf(name, sizeof name, "%s_%s_ns", what, size);
	say(name, ns);
}

static struct ibv_qp *new_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = p.cq, .recv_cq = p.cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
	};
	return ibv_create_qp(p.pd, &init);
}

static void objects(int n, const char *size)
{
	uint64_t begin = now_ns();
	for (int i = 0; i < n; i++)
		CHECK(made[i] = ibv_reg_mr(p.pd, p.buf, LEN, REMOTE_ALL));
	for (int i = 0; i < n; i++)
		CHECK(!ibv_dereg_mr(made[i]));
	line("reg1m", size, since(begin, n));
	begin = now_ns();
	for (int i = 0; i < n; i++)
		CHECK(made[i] = ibv_create_cq(p.ctx, 16, NULL, NULL, 0));
	for (int i = 0; i < n; i++)
		CHECK(!ibv_destroy_cq(made[i]));
	line("cq", size, since(begin, n));
	begin = now_ns();
	for (int i = 0; i < n; i++)
		CHECK(made[i] = new_qp());
	for (int i = 0; i < n; i++)
		CHECK(!ibv_destroy_qp(made[i]));
	line("qp", size, since(begin, n));
}

/* Both ways at once, so that neither waits for what the other writes. */
static void exchange(const void *out, void *in, size_t len)
{
	for (size_t at = 0, part; at < len; at += part) {
		part = len - at < 4096 ? len - at : 4096;
		tcp_all(p.tcp, (char *)out + at, part, 1);
		tcp_all(p.tcp, (char *)in + at, part, 0);
	}
}

static void connects(int driver, int n, const char *size)
{
	struct ibv_recv_wr receive = {0}, *bad_receive;
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad;
	struct ibv_wc wc;
	for (int i = 0; i < n; i++) {
		struct ibv_qp *qp = made[i] = new_qp();
		CHECK(qp);
		mine[i] = p.me;
		mine[i].qpn = qp->qp_num;
	}
	exchange(mine, theirs, n * sizeof *mine);
	tcp_sync(&p);
	uint64_t begin = now_ns();
	for (int i = 0; i < n; i++) {
		qp_init(made[i]);
		CHECK(!ibv_post_recv(made[i], &receive, &bad_receive));
		qp_rts(made[i], &mine[i], &theirs[i]);
	}
	tcp_sync(&p);
	if (driver)
		line("connect", size, since(begin, n));
	begin = now_ns();
	for (int i = 0; i < n; i++) {
		if (driver)
			CHECK(!ibv_post_send(made[i], &send, &bad));
		int got;
		while (!(got = ibv_poll_cq(p.cq, 1, &wc)))
			;
		CHECK(got == 1 && wc.status == IBV_WC_SUCCESS);
	}
	if (driver)
		line("first", size, since(begin, n));
	tcp_sync(&p);
	for (int i = 0; i < n; i++)
		CHECK(!ibv_destroy_qp(made[i]));
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	int sizes[2] = {atoi(argv[1]), atoi(argv[2])}, most = WARM;
	for (int i = 0; i < 2; i++)
		most = sizes[i] > most ? sizes[i] : most;
	int driver = two_begin(argc, argv);
	CHECK(made = calloc(most, sizeof *made));
	CHECK(mine = calloc(most, sizeof *mine));
	CHECK(theirs = calloc(most, sizeof *theirs));
	memset(&p, 0, sizeof p);
	pair_create(&p, LEN, DEPTH);
	memset(p.buf, 1, LEN);
	meet();
	for (int i = 0; i < 3; i++) {
		const char *size = (const char *[]){NULL, "few", "many"}[i];
		int n = i ? sizes[i - 1] : WARM;
		if (driver)
			objects(n, size);
		tcp_sync(&p);
		connects(driver, n, size);
		tcp_sync(&p);
	}
	done();
	return two_end(driver);
}
