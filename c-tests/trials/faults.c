/* Faults on request, by anyverbs.h and by ANYVERBS_FAULTS, on whatever path leads from one end to the other.
 *
 * faults server|client HOST PORT: loss, delay, RNR and the end of queue pairs at run time.
 * faults server|client HOST PORT uc|ud: the client, under ANYVERBS_FAULTS, sends numbers; the server prints those that came.
 * faults local [uc|ud]: the same with both ends in one process. */
#include "pair.h"
#include <anyverbs.h>

enum { DEPTH = 64, SIZE = 3000, COUNT = 100, NUMBERS = 400, BURST = 20, QKEY = 0x1234 };

static int kind = IBV_QPT_RC;

/* What one end gets to begin with: its connection to the other, and which it is. */
struct end {
	int tcp, server;
};

static uint64_t sum(const struct anyverbs_fault_counts *c)
{
	return c->lost + c->duplicated + c->reordered + c->corrupted + c->delayed + c->rnr + c->killed;
}

static struct anyverbs_fault_counts counts(struct pair *p)
{
	struct anyverbs_fault_counts qp, all;
	CHECK(!anyverbs_read_qp_faults(p->qp, &qp, sizeof qp));
	CHECK(!anyverbs_read_faults(p->ctx, &all, sizeof all));
	CHECK(sum(&all) >= sum(&qp));
	return qp;
}

static unsigned char byte(size_t i, unsigned n)
{
	return (i * 7 + n * 13 + (i >> 8)) & 0xff;
}

/* `n` messages of SIZE bytes arrive once, in order and whole. */
static void exact(struct pair *p, unsigned n)
{
	for (unsigned done = 0; done < n; done += BURST) {
		if (p->server)
			for (unsigned k = 0; k < BURST; k++)
				post_recv(p, k * SIZE, SIZE, done + k);
		tcp_sync(p);
		for (unsigned k = 0; k < BURST && !p->server; k++) {
			for (size_t i = 0; i < SIZE; i++)
				p->buf[k * SIZE + i] = byte(i, done + k);
			CHECK(!post_op(p, IBV_WR_SEND, k * SIZE, SIZE, 0, done + k));
		}
		for (unsigned k = 0; k < BURST; k++) {
			struct ibv_wc wc = good_wc(p);
			CHECK(wc.wr_id == done + k);
			for (size_t i = 0; i < SIZE && p->server; i++)
				CHECK((unsigned char)p->buf[k * SIZE + i] == byte(i, done + k));
		}
	}
	tcp_sync(p);
}

static void is_failed(struct pair *p)
{
	struct pollfd fd = {.fd = p->ctx->async_fd, .events = POLLIN};
	int type;
	/* Addresses of the host may come and go meanwhile. */
	do {
		struct ibv_async_event event;
		CHECK(poll(&fd, 1, 5000) == 1 && !ibv_get_async_event(p->ctx, &event));
		type = event.event_type;
		CHECK(type != IBV_EVENT_QP_FATAL || event.element.qp == p->qp);
		CHECK(type != IBV_EVENT_QP_REQ_ERR && type != IBV_EVENT_QP_ACCESS_ERR);
		ibv_ack_async_event(&event);
	} while (type != IBV_EVENT_QP_FATAL);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(p->qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	CHECK(counts(p).killed == 1);
}

/* The queue pair that `killer` has fails with its sixth request; the other one sees what a network card would show it. */
static void end_of_qp(struct pair *p, int killer)
{
	if (p->server)
		for (unsigned k = 0; k < 10; k++)
			post_recv(p, k * SIZE, SIZE, k);
	if (p->server == killer)
		CHECK(!anyverbs_set_faults(p->ctx, "kill_qp_after=5"));
	tcp_sync(p);
	for (unsigned k = 0; k < 10 && !p->server; k++)
		CHECK(!post_op(p, IBV_WR_SEND, k * SIZE, SIZE, 0, k));
	/* Where the sender fails, the receiver hears nothing of it. */
	unsigned mine = p->server && !killer ? 5 : 10;
	for (unsigned k = 0; k < mine; k++) {
		struct ibv_wc wc = next_wc(p, 20000);
		enum ibv_wc_status sixth = p->server == killer ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_REM_OP_ERR;
		enum ibv_wc_status wanted = k < 5 ? IBV_WC_SUCCESS : k == 5 ? sixth : IBV_WC_WR_FLUSH_ERR;
		if (wc.wr_id != k || wc.status != wanted) {
			fprintf(stderr, "request %u: %s instead of %s\n", k, ibv_wc_status_str(wc.status), ibv_wc_status_str(wanted));
			exit(1);
		}
	}
	if (p->server == killer)
		is_failed(p);
	tcp_sync(p);
}

static void fresh(struct pair *p, struct end *e)
{
	memset(p, 0, sizeof *p);
	pair_create(p, DEPTH * SIZE, DEPTH);
	p->server = e->server;
	p->tcp = e->tcp;
	tcp_all(p->tcp, &p->me, sizeof p->me, 1);
	tcp_all(p->tcp, &p->peer, sizeof p->peer, 0);
	qp_rts(p->qp, &p->me, &p->peer);
	tcp_sync(p);
}

static void run_time(struct end *e)
{
	struct pair p;
	fresh(&p, e);
	exact(&p, COUNT);
	struct anyverbs_fault_counts c = counts(&p);
	CHECK(sum(&c) == 0);
	if (p.server) {
		CHECK(!anyverbs_set_qp_faults(p.qp, "rnr=30%,seed=5"));
	} else {
		CHECK(!anyverbs_set_qp_faults(p.qp, "loss=10%, dup=5%, reorder=5%, corrupt=5%, delay=200us, seed=3"));
		errno = 0;
		CHECK(anyverbs_set_qp_faults(p.qp, "loss=1%,delya=2s") == EINVAL && errno == EINVAL);
	}
	exact(&p, COUNT);
	c = counts(&p);
	if (p.server)
		CHECK(c.rnr > 10 && c.lost == 0);
	else
		CHECK(c.lost > 1 && c.corrupted > 0 && c.delayed >= COUNT && c.rnr == 0);
	CHECK(!anyverbs_set_qp_faults(p.qp, NULL));
	tcp_sync(&p);
	c = counts(&p);
	uint64_t before = sum(&c);
	exact(&p, COUNT);
	c = counts(&p);
	CHECK(sum(&c) == before);
	/* What is held back goes when faults end. */
	if (p.server)
		post_recv(&p, 0, SIZE, 1);
	tcp_sync(&p);
	if (!p.server) {
		uint64_t begin = now_ns();
		CHECK(!anyverbs_set_qp_faults(p.qp, "delay=10s"));
		CHECK(!post_op(&p, IBV_WR_SEND, 0, SIZE, 0, 1));
		CHECK(!anyverbs_set_qp_faults(p.qp, ""));
		good_wc(&p);
		CHECK(now_ns() - begin < 9000000000ull);
	} else {
		good_wc(&p);
	}
	tcp_sync(&p);
	end_of_qp(&p, 0);
	pair_destroy(&p);
	fresh(&p, e);
	end_of_qp(&p, 1);
	pair_destroy(&p);
	/* All that is sent is lost: the sender gives up in time. */
	fresh(&p, e);
	if (!p.server) {
		CHECK(!anyverbs_set_faults(p.ctx, "loss=100%"));
		struct ibv_qp_attr back = {.qp_state = IBV_QPS_RESET};
		CHECK(!ibv_modify_qp(p.qp, &back, IBV_QP_STATE));
		qp_init(p.qp);
		qp_rts(p.qp, &p.me, &p.peer);
		CHECK(!post_op(&p, IBV_WR_SEND, 0, 100, 0, 77));
		struct ibv_wc wc = next_wc(&p, 20000);
		CHECK(wc.wr_id == 77 && wc.status == IBV_WC_RETRY_EXC_ERR);
		CHECK(counts(&p).lost >= 3);
	}
	tcp_sync(&p);
	pair_destroy(&p);
}

/* UC and UD: numbers sent one by one; what does not come is lost. */
static void numbers(struct end *e)
{
	struct pair p = {0};
	p.server = e->server;
	p.tcp = e->tcp;
	p.ctx = open_first();
	/* In one process the client's queue pair is the first one, too. */
	if (p.server)
		tcp_sync(&p);
	CHECK(p.pd = ibv_alloc_pd(p.ctx));
	CHECK(p.cq = ibv_create_cq(p.ctx, 4 * NUMBERS, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = p.cq, .recv_cq = p.cq, .qp_type = kind,
		.cap = {.max_send_wr = BURST, .max_recv_wr = 2 * NUMBERS, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
	};
	CHECK(p.qp = ibv_create_qp(p.pd, &init));
	if (!p.server)
		tcp_sync(&p);
	p.len = 4096;
	CHECK(p.buf = aligned_alloc(4096, p.len));
	CHECK(p.mr = ibv_reg_mr(p.pd, p.buf, p.len, REMOTE_ALL));
	p.me = (struct about){.qpn = p.qp->qp_num, .psn = 5};
	CHECK(!ibv_query_gid(p.ctx, 1, 0, &p.me.gid));
	tcp_all(p.tcp, &p.me, sizeof p.me, 1);
	tcp_all(p.tcp, &p.peer, sizeof p.peer, 0);
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = p.peer.gid, .hop_limit = 8}};
	struct ibv_ah *ah = NULL;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	int base = IBV_QP_STATE, uc = kind == IBV_QPT_UC;
	CHECK(!ibv_modify_qp(p.qp, &a, base | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (uc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = p.peer.qpn, .rq_psn = 5, .ah_attr = to};
	CHECK(!ibv_modify_qp(p.qp, &a, base | (uc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN : 0)));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 5};
	CHECK(!ibv_modify_qp(p.qp, &a, base | IBV_QP_SQ_PSN));
	if (!uc)
		CHECK(ah = ibv_create_ah(p.pd, &to));
	for (unsigned i = 0; i < 2 * NUMBERS && p.server; i++)
		post_recv(&p, 0, 100, i);
	for (unsigned done = 0; done < NUMBERS; done += BURST) {
		tcp_sync(&p);
		for (unsigned k = 0; k < BURST && !p.server; k++) {
			struct ibv_sge s = {(uintptr_t)p.buf, 16, p.mr->lkey};
			struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(done + k),
						 .send_flags = IBV_SEND_SIGNALED}, *bad;
			if (ah) {
				wr.wr.ud.ah = ah;
				wr.wr.ud.remote_qpn = p.peer.qpn;
				wr.wr.ud.remote_qkey = QKEY;
			}
			CHECK(!ibv_post_send(p.qp, &wr, &bad));
		}
		for (unsigned k = 0; k < BURST && !p.server; k++)
			good_wc(&p);
	}
	tcp_sync(&p);
	struct ibv_wc wc;
	for (uint64_t last = now_ns(); p.server && now_ns() - last < 300000000;)
		if (ibv_poll_cq(p.cq, 1, &wc)) {
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_WITH_IMM);
			printf("%u ", ntohl(wc.imm_data));
			last = now_ns();
		}
	if (p.server)
		printf("\n");
	/* Both may be threads of one process. */
	tcp_sync(&p);
	if (!p.server) {
		struct anyverbs_fault_counts c = counts(&p);
		printf("lost %llu, twice %llu\n", (unsigned long long)(c.lost + c.corrupted), (unsigned long long)c.duplicated);
	}
	if (ah)
		CHECK(!ibv_destroy_ah(ah));
	free(p.buf);
}

static void *one_end(void *end)
{
	if (kind == IBV_QPT_RC)
		run_time(end);
	else
		numbers(end);
	return NULL;
}

int main(int argc, char **argv)
{
	alarm(120);
	if (argc > 1 && (!strcmp(argv[argc - 1], "uc") || !strcmp(argv[argc - 1], "ud")))
		kind = argv[--argc][1] == 'c' ? IBV_QPT_UC : IBV_QPT_UD;
	if (argc == 2 && !strcmp(argv[1], "local")) {
		int fds[2];
		pthread_t client;
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
		struct end ends[2] = {{fds[0], 1}, {fds[1], 0}};
		CHECK(!pthread_create(&client, NULL, one_end, &ends[1]));
		one_end(&ends[0]);
		CHECK(!pthread_join(client, NULL));
	} else {
		CHECK(argc == 4);
		struct end end = {.server = !strcmp(argv[1], "server")};
		end.tcp = tcp_open(end.server, argv[2], atoi(argv[3]));
		one_end(&end);
	}
	printf("ok\n");
	return 0;
}
