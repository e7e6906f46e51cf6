/*
 * A program as it was built in 2006: it has the structures of IBVERBS_1.0 and is bound to that node's functions.
 * Sends, writes and an atomic go between two RC queue pairs, a datagram between two UD ones, all in this process.
 * Exit status: 0, or 1 after a line on stderr.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct device10 { void *dev, *ibdev, *real; void *ops[2]; };
struct context10;
struct pd10 { struct context10 *context; uint32_t handle; void *real; };
struct mr10 { struct context10 *context; struct pd10 *pd; uint32_t handle, lkey, rkey; void *real; };
struct cq10 {
	struct context10 *context;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events, async_events;
	void *real;
};
struct srq10 {
	struct context10 *context;
	void *srq_context;
	struct pd10 *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events;
	void *real;
};
struct cap { uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data; };
struct qp_init10 {
	void *qp_context;
	struct cq10 *send_cq, *recv_cq;
	struct srq10 *srq;
	struct cap cap;
	int qp_type, sq_sig_all;
};
struct qp10 {
	struct context10 *context;
	void *qp_context;
	struct pd10 *pd;
	struct cq10 *send_cq, *recv_cq;
	struct srq10 *srq;
	uint32_t handle, qp_num;
	int state, qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events;
	void *real;
};
struct ah10 { struct context10 *context; struct pd10 *pd; uint32_t handle; void *real; };
struct sge { uint64_t addr; uint32_t length, lkey; };
struct send_wr10 {
	struct send_wr10 *next;
	uint64_t wr_id;
	struct sge *sg_list;
	int num_sge, opcode, send_flags;
	uint32_t imm_data;
	union {
		struct { uint64_t remote_addr; uint32_t rkey; } rdma;
		struct { uint64_t remote_addr, compare_add, swap; uint32_t rkey; } atomic;
		struct { struct ah10 *ah; uint32_t remote_qpn, remote_qkey; } ud;
	} wr;
};
struct recv_wr10 { struct recv_wr10 *next; uint64_t wr_id; struct sge *sg_list; int num_sge; };
struct wc {
	uint64_t wr_id;
	int status, opcode;
	uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
	int wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};
struct context10 {
	struct device10 *device;
	struct {
		void *unused1[7];
		int (*poll_cq)(struct cq10 *, int, struct wc *);
		int (*req_notify_cq)(struct cq10 *, int);
		void *unused2[7];
		int (*post_srq_recv)(struct srq10 *, struct recv_wr10 *, struct recv_wr10 **);
		void *unused3[4];
		int (*post_send)(struct qp10 *, struct send_wr10 *, struct send_wr10 **);
		int (*post_recv)(struct qp10 *, struct recv_wr10 *, struct recv_wr10 **);
		void *unused4[4];
	} ops;
	int cmd_fd, async_fd, num_comp_vectors;
	void *real;
};
union gid { uint8_t raw[16]; uint64_t align; };
struct ah_attr {
	struct { union gid dgid; uint32_t flow_label; uint8_t sgid_index, hop_limit, traffic_class; } grh;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
struct qp_attr {
	int qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	int access;
	struct cap cap;
	struct ah_attr ah, alt_ah;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout;
	uint8_t retry_cnt, rnr_retry, alt_port_num, alt_timeout;
	uint32_t rate_limit;
};
/* What the program of 2006 reserved for the answers, no byte more than it used. */
struct port_attr { uint32_t state, max_mtu, active_mtu; uint8_t rest[36]; };
struct device_attr { char fw_ver[64]; uint64_t node_guid; uint8_t rest[160]; };

#define BIND(type, name, ...)                                                                                          \
	type name(__VA_ARGS__);                                                                                        \
	__asm__(".symver " #name ", ibv_" #name "@IBVERBS_1.0")
BIND(struct device10 **, get_device_list, int *);
BIND(void, free_device_list, struct device10 **);
BIND(const char *, get_device_name, struct device10 *);
BIND(uint64_t, get_device_guid, struct device10 *);
BIND(struct context10 *, open_device, struct device10 *);
BIND(int, close_device, struct context10 *);
BIND(int, query_device, struct context10 *, struct device_attr *);
BIND(int, query_port, struct context10 *, uint8_t, struct port_attr *);
BIND(int, query_gid, struct context10 *, uint8_t, int, union gid *);
BIND(int, query_pkey, struct context10 *, uint8_t, int, uint16_t *);
BIND(struct pd10 *, alloc_pd, struct context10 *);
BIND(int, dealloc_pd, struct pd10 *);
BIND(struct mr10 *, reg_mr, struct pd10 *, void *, size_t, int);
BIND(int, dereg_mr, struct mr10 *);
BIND(struct cq10 *, create_cq, struct context10 *, int, void *, void *, int);
/* These two have one node for all programs; what a channel is, only the library knows. */
void *ibv_create_comp_channel(struct context10 *);
int ibv_destroy_comp_channel(void *);
BIND(int, get_cq_event, void *, struct cq10 **, void **);
BIND(void, ack_cq_events, struct cq10 *, unsigned int);
BIND(int, resize_cq, struct cq10 *, int);
BIND(int, destroy_cq, struct cq10 *);
BIND(struct srq10 *, create_srq, struct pd10 *, void *);
BIND(int, query_srq, struct srq10 *, uint32_t *);
BIND(int, destroy_srq, struct srq10 *);
BIND(struct qp10 *, create_qp, struct pd10 *, struct qp_init10 *);
BIND(int, query_qp, struct qp10 *, struct qp_attr *, int, struct qp_init10 *);
BIND(int, modify_qp, struct qp10 *, struct qp_attr *, int);
BIND(int, destroy_qp, struct qp10 *);
BIND(struct ah10 *, create_ah, struct pd10 *, struct ah_attr *);
BIND(int, destroy_ah, struct ah10 *);

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "compat10.c:%d: %s (errno %d)\n", __LINE__, #what, errno);                     \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { RC = 2, UD = 4, RESET = 0, INIT, RTR, RTS };
enum { WRITE = 0, SEND = 2, SEND_IMM = 3, FETCH_ADD = 6, SIGNALED = 2 };
enum { STATE = 1, ACCESS = 8, PKEY = 16, PORT = 32, QKEY = 64, AV = 128, MTU = 256, TIMEOUT = 512, RETRY = 1024 };
enum { RNR = 2048, RQ_PSN = 4096, RD = 8192, MIN_RNR = 32768, SQ_PSN = 65536, DEST_RD = 131072, DEST = 1048576 };

static struct context10 *ctx;
static struct pd10 *pd;
static struct cq10 *cq;
static struct mr10 *mr;
static union gid gid;
static uint8_t mem[4096] __attribute__((aligned(64)));

static struct wc await(uint64_t wr_id)
{
	static struct wc early[8];
	static int waiting;
	time_t end = time(NULL) + 20;

	for (;;) {
		struct wc wc;

		for (int i = 0; i < waiting; i++)
			if (early[i].wr_id == wr_id) {
				wc = early[i];
				early[i] = early[--waiting];
				return wc;
			}
		CHECK(time(NULL) < end);
		int n = cq->context->ops.poll_cq(cq, 1, &wc);
		CHECK(n >= 0 && waiting < 8);
		if (n)
			early[waiting++] = wc;
	}
}

static struct qp10 *make_qp(int type, struct srq10 *srq)
{
	struct qp_init10 init = { .qp_context = &mem, .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type };
	init.cap = (struct cap){ 8, 8, 2, 2, 16 };
	struct qp10 *qp = create_qp(pd, &init);
	CHECK(qp && qp->context == ctx && qp->qp_context == &mem && qp->send_cq == cq && qp->pd == pd && qp->srq == srq);
	CHECK(init.cap.send_wr >= 8 && qp->state == RESET && qp->qp_num);

	struct qp_attr attr = { .qp_state = INIT, .port_num = 1, .qkey = 17, .access = 15 };
	CHECK(!modify_qp(qp, &attr, STATE | PKEY | PORT | (type == UD ? QKEY : ACCESS)));
	CHECK(qp->state == INIT);
	return qp;
}

static struct ah_attr path(void)
{
	struct ah_attr ah = { .is_global = 1, .port_num = 1 };
	ah.grh.dgid = gid;
	ah.grh.hop_limit = 1;
	return ah;
}

static void connect_qp(struct qp10 *qp, uint32_t dest)
{
	struct qp_attr attr = { .qp_state = RTR, .path_mtu = 3, .dest_qp_num = dest, .rq_psn = 5, .max_dest_rd_atomic = 1 };
	attr.min_rnr_timer = 12;
	attr.ah = path();
	CHECK(!modify_qp(qp, &attr, STATE | AV | MTU | DEST | RQ_PSN | DEST_RD | MIN_RNR));
	attr = (struct qp_attr){ .qp_state = RTS, .sq_psn = 5, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	attr.max_rd_atomic = 1;
	CHECK(!modify_qp(qp, &attr, STATE | SQ_PSN | TIMEOUT | RETRY | RNR | RD));
	CHECK(qp->state == RTS);
}

static void reliable(void)
{
	uint32_t srq_attr[8] = { 0, 0, 8, 1, 0 }; /* srq_context, max_wr, max_sge, srq_limit */
	struct srq10 *srq = create_srq(pd, srq_attr);
	CHECK(srq && srq->context == ctx && srq->pd == pd);
	CHECK(!query_srq(srq, srq_attr) && srq_attr[0] >= 8);
	struct qp10 *a = make_qp(RC, NULL), *b = make_qp(RC, srq);
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);

	struct sge in[2] = { { (uintptr_t)mem + 1024, 64, mr->lkey }, { (uintptr_t)mem + 2048, 64, mr->lkey } };
	struct recv_wr10 second = { NULL, 12, &in[1], 1 }, first = { &second, 11, &in[0], 1 }, *bad_recv = NULL;
	CHECK(!srq->context->ops.post_srq_recv(srq, &first, &bad_recv));

	uint64_t counter = 40;
	memcpy(mem + 3072, &counter, 8);
	memcpy(mem, "from the days of 1.0", 21);
	struct sge out = { (uintptr_t)mem, 21, mr->lkey }, old = { (uintptr_t)mem + 512, 8, mr->lkey };
	struct send_wr10 add = { NULL, 4, &old, 1, FETCH_ADD, SIGNALED, 0, .wr.atomic = { (uintptr_t)mem + 3072, 2, 0, mr->rkey } };
	struct send_wr10 write = { &add, 3, &out, 1, WRITE, SIGNALED, 0, .wr.rdma = { (uintptr_t)mem + 3584, mr->rkey } };
	struct send_wr10 imm = { &write, 2, &out, 1, SEND_IMM, SIGNALED, 0x01020304 };
	struct send_wr10 send = { &imm, 1, &out, 1, SEND, SIGNALED }, *bad = NULL;
	CHECK(!a->context->ops.post_send(a, &send, &bad));
	for (uint64_t id = 1; id <= 4; id++)
		CHECK(await(id).status == 0);
	struct wc wc = await(11);
	CHECK(wc.status == 0 && wc.byte_len == 21 && wc.qp_num == b->qp_num && !strcmp((char *)mem + 1024, (char *)mem));
	wc = await(12);
	CHECK(wc.status == 0 && wc.imm_data == 0x01020304 && !strcmp((char *)mem + 2048, (char *)mem));
	CHECK(!strcmp((char *)mem + 3584, (char *)mem));
	memcpy(&counter, mem + 512, 8);
	CHECK(counter == 40);
	memcpy(&counter, mem + 3072, 8);
	CHECK(counter == 42);

	/* The second of two requests is refused, and `bad` points at it. */
	struct send_wr10 wrong = { NULL, 6, &out, 1000, SEND, SIGNALED }, right = { &wrong, 5, &out, 1, WRITE, SIGNALED, 0,
		.wr.rdma = { (uintptr_t)mem + 3584, mr->rkey } };
	CHECK(a->context->ops.post_send(a, &right, &bad) && bad == &wrong);
	CHECK(await(5).status == 0);

	struct qp_attr attr;
	struct qp_init10 init;
	CHECK(!query_qp(a, &attr, STATE, &init) && attr.qp_state == RTS && init.send_cq == cq && !init.srq);
	CHECK(init.qp_context == &mem && init.qp_type == RC);
	CHECK(!query_qp(b, &attr, STATE, &init) && init.srq == srq);
	CHECK(!destroy_qp(a) && !destroy_qp(b) && !destroy_srq(srq));
}

static void datagram(void)
{
	struct qp10 *a = make_qp(UD, NULL), *b = make_qp(UD, NULL), *both[2] = { a, b };
	for (int i = 0; i < 2; i++) {
		struct qp_attr attr = { .qp_state = RTR };
		CHECK(!modify_qp(both[i], &attr, STATE));
		attr.qp_state = RTS;
		CHECK(!modify_qp(both[i], &attr, STATE | SQ_PSN));
	}
	struct ah_attr to = path();
	struct ah10 *ah = create_ah(pd, &to);
	CHECK(ah && ah->context == ctx && ah->pd == pd);
	struct sge in = { (uintptr_t)mem + 1024, 128, mr->lkey }, out = { (uintptr_t)mem, 9, mr->lkey };
	struct recv_wr10 recv = { NULL, 21, &in, 1 }, *bad_recv = NULL;
	CHECK(!b->context->ops.post_recv(b, &recv, &bad_recv));
	memcpy(mem, "datagram", 9);
	struct send_wr10 send = { NULL, 22, &out, 1, SEND, SIGNALED, 0, .wr.ud = { ah, b->qp_num, 17 } }, *bad = NULL;
	CHECK(!a->context->ops.post_send(a, &send, &bad));
	CHECK(await(22).status == 0);
	struct wc wc = await(21);
	CHECK(wc.status == 0 && wc.byte_len == 49 && wc.src_qp == a->qp_num && !strcmp((char *)mem + 1064, "datagram"));
	CHECK(!destroy_ah(ah) && !destroy_qp(a) && !destroy_qp(b));
}

int main(void)
{
	int n = -1;
	struct device10 **list = get_device_list(&n);
	CHECK(list && n > 0 && list[0] && !list[n] && *get_device_name(list[0]));
	struct device10 *device = list[0];
	uint64_t guid = get_device_guid(device);
	CHECK((ctx = open_device(device)) && ctx->device == device && ctx->num_comp_vectors >= 1);
	free_device_list(list);
	list = get_device_list(NULL);
	CHECK(list && list[0] == device);
	free_device_list(list);

	struct { struct device_attr attr; uint64_t guard; } dev = { .guard = 0x5ec0de };
	struct { struct port_attr attr; uint64_t guard; } port = { .guard = 0x5ec0de };
	uint16_t pkey = 0;
	CHECK(!query_device(ctx, &dev.attr) && dev.guard == 0x5ec0de && dev.attr.node_guid == guid);
	CHECK(!query_port(ctx, 1, &port.attr) && port.guard == 0x5ec0de && port.attr.state == 4);
	CHECK(!query_gid(ctx, 1, 0, &gid) && !query_pkey(ctx, 1, 0, &pkey) && pkey == 0xffff);

	CHECK((pd = alloc_pd(ctx)) && pd->context == ctx);
	CHECK((mr = reg_mr(pd, mem, sizeof(mem), 15)) && mr->context == ctx && mr->pd == pd);
	void *channel = ibv_create_comp_channel(ctx);
	CHECK(channel);
	CHECK((cq = create_cq(ctx, 32, &n, channel, 0)) && cq->context == ctx && cq->cq_context == &n && cq->cqe >= 32);
	CHECK(!ctx->ops.req_notify_cq(cq, 0));
	CHECK(dealloc_pd(pd));
	reliable();
	datagram();
	struct cq10 *of = NULL;
	void *of_context = NULL;
	CHECK(!get_cq_event(channel, &of, &of_context) && of == cq && of_context == &n);
	ack_cq_events(cq, 1);
	CHECK(ibv_destroy_comp_channel(channel));
	CHECK(!resize_cq(cq, 64) && cq->cqe >= 64);
	CHECK(!destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !dereg_mr(mr) && !dealloc_pd(pd) && !close_device(ctx));
	return 0;
}
