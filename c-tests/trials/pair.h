/* What the trial programs share: an RC pair over the first device, parameters exchanged over TCP on 127.0.0.1. */
#ifndef PAIR_H
#define PAIR_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REMOTE_ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

#define CHECK(ok) ((ok) ? (void)0 : die(#ok, __LINE__))

static inline void die(const char *what, int line)
{
	fprintf(stderr, "line %d: %s failed: %s\n", line, what, strerror(errno));
	exit(1);
}

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* What one side tells the other. */
struct about {
	uint32_t qpn, psn, rkey, pad;
	uint64_t addr, len;
	union ibv_gid gid;
};

struct pair {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buf;
	size_t len;
	struct about me, peer;
	int tcp, server;
};

static inline void tcp_all(int fd, void *data, size_t len, int out)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = out ? send(fd, (char *)data + done, len - done, MSG_NOSIGNAL) : recv(fd, (char *)data + done, len - done, 0);
		if (n <= 0) {
			fprintf(stderr, "peer gone before the pair was connected\n");
			exit(3);
		}
		done += n;
	}
}

/* A step that both sides have reached. */
static inline void tcp_sync(struct pair *p)
{
	char c = 's';
	tcp_all(p->tcp, &c, 1, 1);
	tcp_all(p->tcp, &c, 1, 0);
}

static inline int tcp_open(int server, const char *host, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	CHECK(inet_pton(AF_INET, host, &a.sin_addr) == 1);
	if (!server) {
		for (int i = 0; connect(fd, (void *)&a, sizeof a); i++) {
			CHECK(i < 1000 && errno == ECONNREFUSED);
			usleep(5000);
		}
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	CHECK(!bind(fd, (void *)&a, sizeof a) && !listen(fd, 1));
	int c = accept(fd, NULL, NULL);
	CHECK(c >= 0);
	close(fd);
	return c;
}

/* The first device, or the one that C_TESTS_DEVICE names. */
static inline struct ibv_context *open_first(void)
{
	const char *name = getenv("C_TESTS_DEVICE");
	int n = 0, i = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	while (i < n && name && strcmp(ibv_get_device_name(list[i]), name))
		i++;
	CHECK(list && i < n);
	struct ibv_context *ctx = ibv_open_device(list[i]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

/* The row of the GID table that packets leave from: 0, or C_TESTS_GID. */
static inline int own_gid(void)
{
	const char *index = getenv("C_TESTS_GID");
	return index ? atoi(index) : 0;
}

static inline void qp_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE_ALL};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

/* By the GID at an index of our own table, with packets of this path MTU. */
static inline void qp_rts_by(struct ibv_qp *qp, const struct about *me, const struct about *peer, int gid_index, enum ibv_mtu mtu)
{
	const char *tclass = getenv("C_TESTS_TCLASS");
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer->qpn, .rq_psn = peer->psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1,
			    .grh = {.dgid = peer->gid, .hop_limit = 8, .sgid_index = gid_index,
				    .traffic_class = tclass ? atoi(tclass) : 0}},
	};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 14;
	a.retry_cnt = 7;
	a.rnr_retry = 7;
	a.sq_psn = me->psn;
	a.max_rd_atomic = 4;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void qp_rts(struct ibv_qp *qp, const struct about *me, const struct about *peer)
{
	qp_rts_by(qp, me, peer, own_gid(), IBV_MTU_1024);
}

/* CQ and QP, with the channel if there is one. */
static inline void pair_queues(struct pair *p, int depth)
{
	CHECK(p->cq = ibv_create_cq(p->ctx, 4 * depth, NULL, p->channel, 0));
	struct ibv_qp_init_attr init = {
		.send_cq = p->cq, .recv_cq = p->cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
	};
	CHECK(p->qp = ibv_create_qp(p->pd, &init));
	qp_init(p->qp);
	p->me.qpn = p->qp->qp_num;
}

/* The CQ and the QP of a pair that is not connected anew, on a channel. */
static inline void pair_add_channel(struct pair *p, int depth)
{
	CHECK(!ibv_destroy_qp(p->qp) && !ibv_destroy_cq(p->cq));
	CHECK(p->channel = ibv_create_comp_channel(p->ctx));
	pair_queues(p, depth);
	CHECK(!ibv_req_notify_cq(p->cq, 0));
}

/* Device, PD, CQ, QP and a buffer of `len` bytes, registered with every right; not yet connected. */
static inline void pair_create(struct pair *p, size_t len, int depth)
{
	p->ctx = open_first();
	CHECK(p->pd = ibv_alloc_pd(p->ctx));
	pair_queues(p, depth);
	p->len = len;
	p->buf = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p->buf != MAP_FAILED);
	memset(p->buf, 0, len);
	CHECK(p->mr = ibv_reg_mr(p->pd, p->buf, len, REMOTE_ALL));
	p->me = (struct about){.qpn = p->qp->qp_num, .psn = getpid() & 0xffffff, .rkey = p->mr->rkey,
			       .addr = (uintptr_t)p->buf, .len = len};
	CHECK(!ibv_query_gid(p->ctx, 1, own_gid(), &p->me.gid));
}

/* Exchanges parameters and takes the QP to RTS on both sides. */
static inline void pair_connect(struct pair *p, int server, const char *host, int port)
{
	p->server = server;
	p->tcp = tcp_open(server, host, port);
	tcp_all(p->tcp, &p->me, sizeof p->me, 1);
	tcp_all(p->tcp, &p->peer, sizeof p->peer, 0);
	qp_rts(p->qp, &p->me, &p->peer);
	tcp_sync(p);
}

static inline void pair_destroy(struct pair *p)
{
	CHECK(!ibv_destroy_qp(p->qp));
	CHECK(!ibv_destroy_cq(p->cq));
	if (p->channel)
		CHECK(!ibv_destroy_comp_channel(p->channel));
	CHECK(!ibv_dereg_mr(p->mr));
	CHECK(!ibv_dealloc_pd(p->pd));
	CHECK(!ibv_close_device(p->ctx));
}

static inline void post_recv(struct pair *p, size_t off, uint32_t len, uint64_t id)
{
	struct ibv_sge s = {(uintptr_t)p->buf + off, len, p->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(p->qp, &wr, &bad));
}

/* A signaled SEND, WRITE or READ of buf[off, off + len); `roff` is the place in the peer's buffer. */
static inline int post_op(struct pair *p, enum ibv_wr_opcode op, size_t off, uint32_t len, size_t roff, uint64_t id)
{
	struct ibv_sge s = {(uintptr_t)p->buf + off, len, p->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &s, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED}, *bad;
	wr.wr.rdma.remote_addr = p->peer.addr + roff;
	wr.wr.rdma.rkey = p->peer.rkey;
	return ibv_post_send(p->qp, &wr, &bad);
}

/* The next completion, at most `ms` milliseconds away. */
static inline struct ibv_wc next_wc(struct pair *p, int ms)
{
	struct ibv_wc wc;
	uint64_t end = now_ns() + ms * 1000000ull;
	int n;
	while ((n = ibv_poll_cq(p->cq, 1, &wc)) == 0)
		if (now_ns() > end) {
			errno = ETIMEDOUT;
			die("waiting for a completion", __LINE__);
		}
	CHECK(n == 1);
	return wc;
}

static inline struct ibv_wc good_wc(struct pair *p)
{
	struct ibv_wc wc = next_wc(p, 20000);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "wr_id %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

#endif
