/* counters server|client HOST PORT SCRIPT [hold]: what a scripted exchange has to count, on whatever path it goes.
 *
 * SCRIPT is `exchange` (every kind of request, one after the other), `rnr` (a receive that comes late), `load` (many messages,
 * for ways that lose packets) or `local` (`exchange` between two QPs of the server; there is no client). Both ends look at their
 * own counters by <anyverbs.h>; the client is told the server's and compares. `hold`: says "ready" and waits for SIGUSR1. */
#include "counting.h"

/* Requests of the client, in order, with the packets of 1024 bytes that they take and the bytes around their payload. */
static const struct step {
	enum ibv_wr_opcode op;
	uint32_t len;
	int takes_receive;
} steps[] = {
	{IBV_WR_SEND, 8, 1},		{IBV_WR_SEND, 0, 1},   {IBV_WR_SEND, 3000, 1},	      {IBV_WR_SEND_WITH_IMM, 5, 1},
	{IBV_WR_RDMA_WRITE, 5000, 0},	{IBV_WR_RDMA_WRITE, 64, 0}, {IBV_WR_RDMA_WRITE_WITH_IMM, 100, 1},
	{IBV_WR_RDMA_READ, 2500, 0},	{IBV_WR_RDMA_READ, 8, 0},   {IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0},
	{IBV_WR_ATOMIC_CMP_AND_SWP, 8, 0}, {IBV_WR_RDMA_WRITE_WITH_IMM, 2100, 1},
};
#define STEPS (sizeof steps / sizeof *steps)

struct sums {
	uint64_t packets, words, answers, answer_words, writes, reads, atomics, sends, receives;
};

/* By the formats of the specification: BTH 12, RETH 16, AtomicETH 28, ImmDt 4, AETH 4, AtomicAckETH 8, ICRC 4 bytes. */
static struct sums expected(void)
{
	struct sums s = {0};
	for (size_t i = 0; i < STEPS; i++) {
		uint32_t len = steps[i].len, words = (len + 3) / 4, n = len ? (len + MTU - 1) / MTU : 1;
		s.receives += steps[i].takes_receive;
		switch (steps[i].op) {
		case IBV_WR_RDMA_READ:
			s.reads++, s.packets++, s.words += 8, s.answers += n;
			s.answer_words += 4 * n + (n > 1 ? 2 : 1) + words;
			break;
		case IBV_WR_ATOMIC_FETCH_AND_ADD:
		case IBV_WR_ATOMIC_CMP_AND_SWP:
			s.atomics++, s.packets++, s.words += 11, s.answers++, s.answer_words += 7;
			break;
		default:
			s.packets += n, s.words += 4 * n + words, s.answers++, s.answer_words += 5;
			if (steps[i].op == IBV_WR_SEND_WITH_IMM || steps[i].op == IBV_WR_RDMA_WRITE_WITH_IMM)
				s.words++;
			if (steps[i].op == IBV_WR_RDMA_WRITE || steps[i].op == IBV_WR_RDMA_WRITE_WITH_IMM)
				s.words += 4, s.writes++;
			else
				s.sends++;
		}
	}
	return s;
}

static void do_step(struct pair *p, struct ibv_qp *qp, const struct step *s)
{
	struct ibv_sge sge = {(uintptr_t)p->buf, s->len, p->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = s->op, .send_flags = IBV_SEND_SIGNALED}, *bad;
	if (s->op == IBV_WR_ATOMIC_FETCH_AND_ADD || s->op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = p->peer.addr + 8192;
		wr.wr.atomic.rkey = p->peer.rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = p->peer.addr + 16384;
		wr.wr.rdma.rkey = p->peer.rkey;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (good_wc(p).wr_id != 2)
		;
}

/* What both ends must have counted of `exchange`. Packets that a busy machine sent twice are told by the counters themselves. */
static void check_exchange(int on_wire)
{
	struct sums s = expected();
	is("rdma_sends", my("hw_counters/rdma_sends"), s.sends);
	is("the peer's rdma_recvs", their("hw_counters/rdma_recvs"), s.receives);
	is("the peer's rx_atomic_requests", their("hw_counters/rx_atomic_requests"), s.atomics);
	is("the peer's rx_write_requests", their("hw_counters/rx_write_requests"), s.writes);
	is("the peer's rx_read_requests", their("hw_counters/rx_read_requests"), s.reads);
	is("sent_pkts", my("hw_counters/sent_pkts"), my("counters/port_xmit_packets"));
	is("unicast", my("counters/unicast_xmit_packets"), my("counters/port_xmit_packets"));
	is("sent without retries", my("counters/port_xmit_packets") - my("hw_counters/retrans_pkts"), s.packets);
	if (!on_wire)
		is("sent again over memory", my("hw_counters/retrans_pkts"), 0);
	if (my("hw_counters/retrans_pkts") > 0)
		return;
	is("words sent", my("counters/port_xmit_data"), s.words);
	is("answers", my("counters/port_rcv_packets"), s.answers);
	is("words of answers", my("counters/port_rcv_data"), s.answer_words);
	is("packets at the peer", their("counters/port_rcv_packets"), s.packets);
	is("words at the peer", their("counters/port_rcv_data"), s.words);
	is("answers of the peer", their("counters/port_xmit_packets"), s.answers);
	is("words of answers of the peer", their("counters/port_xmit_data"), s.answer_words);
}

static void rnr(struct pair *p)
{
	if (p->server) {
		/* The client waits for this receive, and has been told so at least once. */
		uint64_t end = now_ns() + 20000000000ull;
		do {
			struct ibv_wc wc;
			CHECK(ibv_poll_cq(p->cq, 1, &wc) == 0 && now_ns() < end);
			look(p->qp, mine, &n_mine);
		} while (my("hw_counters/send_rnr_err") == 0);
		post_recv(p, 0, 4096, 1);
		good_wc(p);
	} else {
		CHECK(!post_op(p, IBV_WR_SEND, 0, 3000, 0, 2));
		good_wc(p);
	}
}

static void check_rnr(void)
{
	uint64_t refusals = my("hw_counters/rcvd_rnr_err");
	at_least("RNR NAKs received", refusals, 1);
	at_least("RNR NAKs sent", their("hw_counters/send_rnr_err"), refusals);
	is("by its other name", my("hw_counters/rnr_nak_retry_err"), refusals);
	at_least("sent again", my("hw_counters/retrans_pkts"), 1);
	is("sent", my("counters/port_xmit_packets") - my("hw_counters/retrans_pkts"), 3);
	at_least("out_of_buffer", their("hw_counters/out_of_buffer"), refusals);
	is("timeouts", my("hw_counters/retry_exceeded_err") + my("hw_counters/req_cqe_error"), 0);
	at_least("packets at the peer", my("counters/port_xmit_packets"), their("counters/port_rcv_packets"));
}

#define MESSAGES 1500

static void load(struct pair *p)
{
	if (p->server) {
		for (int i = 0; i < 16; i++)
			post_recv(p, 0, 8192, 1);
		tcp_sync(p);
		for (int i = 0; i < MESSAGES; i++) {
			good_wc(p);
			post_recv(p, 0, 8192, 1);
		}
		return;
	}
	tcp_sync(p);
	int posted = 0, done = 0;
	while (done < MESSAGES) {
		while (posted < MESSAGES && posted - done < 8)
			CHECK(!post_op(p, IBV_WR_SEND, 0, 8000, 0, ++posted));
		good_wc(p);
		done++;
	}
}

/* Packets were lost, and everything arrived. */
static void check_load(void)
{
	uint64_t again = my("hw_counters/retrans_pkts"), sent = my("counters/port_xmit_packets");
	is("sends", my("hw_counters/rdma_sends"), MESSAGES);
	is("receives", their("hw_counters/rdma_recvs"), MESSAGES);
	is("sent without retries", sent - again, MESSAGES * 8);
	at_least("sent again", again, 1);
	at_least("times that it began again", my("hw_counters/completer_retry_err"), 1);
	at_least("losses noticed",
		 my("hw_counters/rcvd_seq_err") + my("hw_counters/implied_nak_seq_err") + my("hw_counters/completer_retry_err"), 1);
	/* Every packet was in order once; what came otherwise was lost, early or late. */
	uint64_t got = their("counters/port_rcv_packets");
	is("in order", got - their("hw_counters/out_of_seq_request") - their("hw_counters/duplicate_request") -
			       their("hw_counters/send_rnr_err"),
	   MESSAGES * 8);
	at_least("not more than was sent", sent, got);
	at_least("answers", their("counters/port_xmit_packets"), my("counters/port_rcv_packets"));
}

/* What is no argument is refused, and a short array is filled as far as it goes. */
static void mistakes(struct pair *p)
{
	struct anyverbs_counter some[4] = {0};
	size_t n = 3;
	CHECK(!anyverbs_query_port_counters(p->ctx, 1, some, &n) && n == n_mine);
	CHECK(some[2].name && !some[3].name && strchr(some[0].name, '/'));
	n = 0;
	CHECK(!anyverbs_query_qp_counters(p->qp, NULL, &n) && n == n_mine);
	CHECK(anyverbs_query_qp_counters(p->qp, NULL, &n) == EINVAL && anyverbs_query_qp_counters(NULL, some, &n) == EINVAL);
	CHECK(anyverbs_query_qp_counters(p->qp, some, NULL) == EINVAL);
	CHECK(anyverbs_query_port_counters(p->ctx, 2, mine, &n) == EINVAL);
}

/* The port has what its QPs have, also when they are gone. */
static void check_port(struct pair *p, uint64_t sent)
{
	size_t n = ROOM;
	CHECK(!anyverbs_query_port_counters(p->ctx, 1, mine, &n));
	n_mine = n;
	at_least("the port's packets", my("counters/port_xmit_packets"), sent);
	is("both names", my("hw_counters/sent_pkts"), my("counters/port_xmit_packets"));
	struct ibv_port_attr attr;
	CHECK(!ibv_query_port(p->ctx, 1, &attr) && attr.bad_pkey_cntr == my("counters/port_rcv_constraint_errors") &&
	      attr.qkey_viol_cntr == my("hw_counters/qkey_viol_cntr"));
}

static void hold(int argc, char **argv)
{
	sigset_t set;
	if (argc < 6 || strcmp(argv[5], "hold"))
		return;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	printf("ready\n");
	fflush(stdout);
	/* Being stopped and continued interrupts it. */
	while (sigtimedwait(&set, NULL, &(struct timespec){.tv_sec = 100}) != SIGUSR1)
		CHECK(errno == EINTR);
}

static int local(int argc, char **argv)
{
	struct pair p = {0};
	pair_create(&p, 65536, 32);
	struct ibv_qp_init_attr init = {
		.send_cq = p.cq, .recv_cq = p.cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *a = p.qp, *b = ibv_create_qp(p.pd, &init);
	CHECK(b);
	qp_init(b);
	p.qp = b;
	p.peer = p.me;
	struct about me = p.me, other = p.me;
	me.qpn = a->qp_num, other.qpn = b->qp_num;
	qp_rts(a, &me, &other);
	qp_rts(b, &other, &me);
	for (size_t i = 0; i < STEPS; i++) {
		if (steps[i].takes_receive)
			post_recv(&p, 32768, 8192, 1);
		do_step(&p, a, &steps[i]);
	}
	look(a, mine, &n_mine);
	look(b, theirs, &n_theirs);
	check_exchange(0);
	mistakes(&p);
	uint64_t all = my("counters/port_xmit_packets") + their("counters/port_xmit_packets");
	check_port(&p, all);
	CHECK(!ibv_destroy_qp(a));
	check_port(&p, all);
	hold(argc, argv);
	return wrong;
}

int main(int argc, char **argv)
{
	CHECK(argc >= 5);
	alarm(120);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(!sigprocmask(SIG_BLOCK, &set, NULL));
	const char *script = argv[4];
	if (!strcmp(script, "local"))
		return local(argc, argv);
	int server = !strcmp(argv[1], "server");
	struct pair p = {0};
	pair_create(&p, 65536, 32);
	if (server && !strcmp(script, "exchange"))
		for (size_t i = 0; i < STEPS; i++)
			if (steps[i].takes_receive)
				post_recv(&p, 32768, 8192, 1);
	pair_connect(&p, server, argv[2], atoi(argv[3]));
	enum anyverbs_path path;
	CHECK(!anyverbs_qp_path(p.qp, &path));
	if (!strcmp(script, "rnr"))
		rnr(&p);
	else if (!strcmp(script, "load"))
		load(&p);
	else if (!server)
		for (size_t i = 0; i < STEPS; i++)
			do_step(&p, p.qp, &steps[i]);
	tcp_sync(&p);
	look(p.qp, mine, &n_mine);
	tell(&p);
	if (!server) {
		if (!strcmp(script, "rnr"))
			check_rnr();
		else if (!strcmp(script, "load"))
			check_load();
		else
			check_exchange(path == ANYVERBS_PATH_UDP);
		mistakes(&p);
	}
	uint64_t sent = my("counters/port_xmit_packets");
	hold(argc, argv);
	tcp_sync(&p);
	CHECK(!ibv_destroy_qp(p.qp));
	check_port(&p, sent);
	return wrong;
}
