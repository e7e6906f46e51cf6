/* forged victim|client HOST PORT OWN PEER OTHER: the client sends packets that nobody should send, each with a right ICRC unless
 * that is what is wrong, to UDP port 4791 of the victim's address PEER. The victim must drop each, count it where it belongs and
 * nowhere else, and notice nothing of it otherwise: an exchange over a real queue pair follows every case. OWN and PEER are the
 * addresses of a process's own end and of the other one, both of IPv4 or of IPv6; OTHER is a second one of the client's. */
#include "pair.h"
#include <anyverbs.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

enum { ROOM = 256, SIZE = 64, MEMORY = 4096, FIRST_PSN = 100, MTU = 1024, LIMIT_MS = 10000 };
enum target { LIVE, RC, UC, UD, EARLY, NOBODY };
static const uint32_t QKEY = 0x1234567;

struct qps {
	uint32_t qpn[5];
	uint32_t rkey, pad;
	uint64_t addr;
};

struct packet {
	uint8_t b[MTU * 4];
	size_t len; /* of the UDP payload, ICRC included */
};

static struct pair p;
static struct qps qps;
static struct ibv_qp *qp[5];
static struct ibv_cq *quiet;
static int family, sgid_index, exchanges;
static uint8_t own[16], peer[16], other[16], memory[MEMORY] __attribute__((aligned(64)));
static struct ibv_mr *memory_mr;

/* Making packets. */

static void put(uint8_t *b, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		b[i] = value >> 8 * (bytes - 1 - i);
}

/* A request of this opcode with `payload` bytes behind `headers` bytes of extended headers, for the expected PSN of the target. */
static void request(struct packet *k, enum target to, uint8_t opcode, size_t headers, size_t payload)
{
	size_t pad = -payload & 3;
	memset(k, 0, sizeof *k);
	k->len = 12 + headers + payload + pad + 4;
	k->b[0] = opcode;
	k->b[1] = 0x40 | pad << 4;
	put(k->b + 2, 0xffff, 2);
	put(k->b + 5, to == NOBODY ? 0 : qps.qpn[to], 3);
	k->b[8] = 0x80;
	put(k->b + 9, to == LIVE ? p.me.psn + exchanges : FIRST_PSN, 3);
	memset(k->b + 12 + headers, 0x5a, payload);
}

static void reth(struct packet *k, uint32_t length)
{
	put(k->b + 12, qps.addr, 8);
	put(k->b + 20, qps.rkey, 4);
	put(k->b + 24, length, 4);
}

static void deth(struct packet *k, uint32_t qkey)
{
	put(k->b + 12, qkey, 4);
	put(k->b + 16, p.qp->qp_num, 4);
}

static uint32_t crc(uint32_t c, const void *data, size_t n)
{
	for (const uint8_t *b = data; n--; b++) {
		c ^= *b;
		for (int i = 0; i < 8; i++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
	}
	return c;
}

/* The invariant CRC (IBA A17): what routers change counts as ones. `longer`: the IP header promises so many bytes more. */
static void seal(struct packet *k, const uint8_t *src, uint16_t port, size_t longer)
{
	uint8_t h[48], first[5];
	size_t ip = family == AF_INET ? 20 : 40, udp = 8 + k->len - longer;
	memset(h, 0xff, sizeof h);
	if (family == AF_INET) {
		h[0] = 0x45;
		put(h + 2, 28 + k->len, 2);
		put(h + 4, 0, 2);
		put(h + 6, 0x4000, 2);
		h[9] = 17;
		memcpy(h + 12, src, 4);
		memcpy(h + 16, peer, 4);
	} else {
		h[0] = 0x6f;
		put(h + 4, 8 + k->len, 2);
		h[6] = 17;
		memcpy(h + 8, src, 16);
		memcpy(h + 24, peer, 16);
	}
	put(h + ip, port, 2);
	put(h + ip + 2, 4791, 2);
	put(h + ip + 4, udp, 2);
	uint32_t c = crc(~0u, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
	c = crc(c, h, ip + 8);
	memcpy(first, k->b, 4);
	first[4] = 0xff;
	size_t end = k->len - longer - 4;
	c = ~crc(crc(c, first, 5), k->b + 5, end > 5 ? end - 5 : 0);
	for (int i = 0; i < 4; i++)
		k->b[end + i] = c >> 8 * i;
}

/* The cases: what is made of a packet before and after it is sealed. */

static void send_only(struct packet *k, enum target to) { request(k, to, 0x04, 0, 8); }
static void version(struct packet *k, enum target to) { request(k, to, 0x04, 0, 8), k->b[1] |= 1; }
static void pad(struct packet *k, enum target to) { request(k, to, 0x04, 0, 0), k->b[1] |= 0x30; }
static void unknown_opcode(struct packet *k, enum target to) { request(k, to, 0x1f, 0, 8); }
static void unknown_transport(struct packet *k, enum target to) { request(k, to, 0xe4, 0, 8); }
static void uc_send(struct packet *k, enum target to) { request(k, to, 0x24, 0, 8); }
static void ud_send(struct packet *k, enum target to) { request(k, to, 0x64, 8, 8), deth(k, QKEY); }
static void ud_wrong_qkey(struct packet *k, enum target to) { request(k, to, 0x64, 8, 8), deth(k, QKEY + 1); }
static void xrc_send(struct packet *k, enum target to) { request(k, to, 0xa4, 4, 8); }
static void partition(struct packet *k, enum target to) { request(k, to, 0x04, 0, 8), put(k->b + 2, 0x9234, 2); }
static void no_reth(struct packet *k, enum target to) { request(k, to, 0x0a, 0, 4); }
static void no_deth(struct packet *k, enum target to) { request(k, to, 0x64, 4, 0); }
static void bth_alone(struct packet *k, enum target to) { request(k, to, 0x04, 0, 0), k->len = 12; }
static void short_bth(struct packet *k, enum target to) { request(k, to, 0x04, 0, 0), k->len = 11; }
static void ahead(struct packet *k, enum target to) { request(k, to, 0x04, 0, 8), put(k->b + 9, p.me.psn + exchanges + 5, 3); }
static void multicast(struct packet *k, enum target to) { request(k, to, 0x04, 0, 8), put(k->b + 5, 0xffffff, 3); }
static void qpn_1(struct packet *k, enum target to) { request(k, to, 0x04, 0, 8), k->b[7] = 1; }
static void answer(struct packet *k, enum target to) { request(k, to, 0x11, 4, 0), put(k->b + 9, p.peer.psn + 1000, 3); }
static void write_only(struct packet *k, enum target to) { request(k, to, 0x0a, 16, 8), reth(k, 8); }
static void write_short(struct packet *k, enum target to) { request(k, to, 0x0a, 16, 8), reth(k, 16); }
static void write_long(struct packet *k, enum target to) { request(k, to, 0x0a, 16, 8), reth(k, 4); }
static void write_far(struct packet *k, enum target to) { request(k, to, 0x0a, 16, 8), reth(k, 8), put(k->b + 20, ~qps.rkey, 4); }
static void middle(struct packet *k, enum target to) { request(k, to, 0x01, 0, MTU); }
static void above_mtu(struct packet *k, enum target to) { request(k, to, 0x04, 0, MTU + 4); }
static void first_short(struct packet *k, enum target to) { request(k, to, 0x00, 0, 8); }
static void uc_middle(struct packet *k, enum target to) { request(k, to, 0x21, 0, MTU); }
static void uc_above_mtu(struct packet *k, enum target to) { request(k, to, 0x24, 0, MTU + 4); }
static void uc_read(struct packet *k, enum target to) { request(k, to, 0x2c, 16, 0), reth(k, 8); }

static void unknown_qpn(struct packet *k, enum target to)
{
	uint32_t number = qps.qpn[LIVE];
	for (int i = 0; i < 5; i++)
		number = number == qps.qpn[i] ? (number & ~0xfffu) | ((number + 7) & 0xfff) : number;
	request(k, to, 0x04, 0, 8);
	put(k->b + 5, number, 3);
}

static void behind(struct packet *k, enum target to)
{
	request(k, to, 0x04, 0, 8);
	put(k->b + 9, p.me.psn + exchanges - 1, 3);
}

enum { WRONG_ICRC = 1, OTHER_SOURCE = 2, JOINED = 4, LONGER = 8, TAKEN = 16 };

#define MALFORMED {"counters/port_rcv_errors"}
#define DAMAGED {"hw_counters/rx_icrc_encapsulated", "counters/port_rcv_errors"}
#define UNWANTED {"hw_counters/rx_drops"}

static const struct forged {
	const char *name;
	enum target to;
	void (*make)(struct packet *k, enum target to);
	int how;
	/* What counts it; of all others in `watched` none may. */
	const char *counted[2];
	/* The queue pair goes to ERR, with this event. */
	int event;
} cases[] = {
	/* What is right is taken, so the others are dropped for what is wrong in them. */
	{"a right SEND of UC", UC, uc_send, TAKEN, {0}, 0},
	{"a right datagram", UD, ud_send, TAKEN, {0}, 0},
	{"a right SEND of RC", RC, send_only, TAKEN, {0}, 0},
	{"a right WRITE", RC, write_only, TAKEN, {0}, 0},
	{"a wrong ICRC", LIVE, send_only, WRONG_ICRC, DAMAGED, 0},
	{"a wrong ICRC, WRITE", RC, write_only, WRONG_ICRC, DAMAGED, 0},
	{"a wrong ICRC, datagram", UD, ud_send, WRONG_ICRC, DAMAGED, 0},
	{"many joined by the kernel, with wrong ICRCs", LIVE, send_only, WRONG_ICRC | JOINED, DAMAGED, 0},
	{"an IP length beyond that of UDP", LIVE, send_only, LONGER, DAMAGED, 0},
	{"less than a BTH", LIVE, short_bth, WRONG_ICRC, MALFORMED, 0},
	{"a BTH alone", LIVE, bth_alone, WRONG_ICRC, DAMAGED, 0},
	{"a WRITE without RETH", LIVE, no_reth, 0, MALFORMED, 0},
	{"a datagram that ends in its DETH", UD, no_deth, 0, MALFORMED, 0},
	{"pad where nothing is padded", LIVE, pad, 0, MALFORMED, 0},
	{"a transport version", LIVE, version, 0, MALFORMED, 0},
	{"an opcode that there is not", LIVE, unknown_opcode, 0, MALFORMED, 0},
	{"a transport that there is not", LIVE, unknown_transport, 0, MALFORMED, 0},
	{"another partition", LIVE, partition, 0, {"counters/port_rcv_constraint_errors"}, 0},
	{"another Q_Key", UD, ud_wrong_qkey, 0, {"hw_counters/qkey_viol_cntr"}, 0},
	{"an opcode of UC for RC", LIVE, uc_send, 0, UNWANTED, 0},
	{"a datagram for RC", LIVE, ud_send, 0, UNWANTED, 0},
	{"an opcode of XRC for RC", LIVE, xrc_send, 0, UNWANTED, 0},
	{"an opcode of RC for UD", UD, send_only, 0, UNWANTED, 0},
	{"an opcode of RC for UC", UC, send_only, 0, UNWANTED, 0},
	{"a READ of UC", UC, uc_read, 0, MALFORMED, 0},
	{"a queue pair that does not listen yet", EARLY, send_only, 0, UNWANTED, 0},
	{"QPN 0", NOBODY, send_only, 0, UNWANTED, 0},
	{"QPN 1", NOBODY, qpn_1, 0, UNWANTED, 0},
	{"the multicast QPN to one host", NOBODY, multicast, 0, UNWANTED, 0},
	{"a QPN that nobody has", NOBODY, unknown_qpn, 0, UNWANTED, 0},
	{"another source", LIVE, send_only, OTHER_SOURCE, UNWANTED, 0},
	{"another source, UC", UC, uc_send, OTHER_SOURCE, UNWANTED, 0},
	{"a PSN ahead", LIVE, ahead, 0, {"hw_counters/out_of_seq_request"}, 0},
	{"a PSN behind", LIVE, behind, 0, {"hw_counters/duplicate_request"}, 0},
	{"an acknowledgement of nothing", LIVE, answer, 0, {0}, 0},
	{"the middle of no message of UC", UC, uc_middle, 0, {0}, 0},
	{"more than the path MTU over UC", UC, uc_above_mtu, 0, {0}, 0},
	{"the middle of no message", RC, middle, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a first packet that is not full", RC, first_short, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"more than the path MTU", RC, above_mtu, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a WRITE of less than it says", RC, write_short, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a WRITE of more than it says", RC, write_long, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a WRITE by a wrong key", RC, write_far, 0, {"hw_counters/resp_remote_access_errors"}, IBV_EVENT_QP_ACCESS_ERR},
};
#define CASES (sizeof cases / sizeof *cases)

static const char *const watched[] = {
	"counters/port_rcv_errors",	   "counters/port_rcv_constraint_errors", "hw_counters/rx_icrc_encapsulated",
	"hw_counters/rx_drops",		   "hw_counters/qkey_viol_cntr",	  "hw_counters/out_of_seq_request",
	"hw_counters/out_of_buffer",	   "hw_counters/resp_remote_access_errors",
	/* The packets of the exchange before may come again on a busy machine: of these two there may be more. */
	"hw_counters/duplicate_request", "counters/port_rcv_packets",
};
enum { WATCHED = sizeof watched / sizeof *watched, RECEIVED = WATCHED - 1, EXACT = WATCHED - 2 };

static void look(uint64_t values[WATCHED])
{
	static struct anyverbs_counter all[ROOM];
	size_t n = ROOM;
	CHECK(!anyverbs_query_port_counters(p.ctx, 1, all, &n) && n <= ROOM);
	for (int w = 0; w < WATCHED; w++) {
		size_t i = 0;
		while (i < n && strcmp(all[i].name, watched[w]))
			i++;
		if (i == n)
			die(watched[w], __LINE__);
		values[w] = all[i].value;
	}
}

/* Both ends. */

static struct ibv_ah_attr way(const union ibv_gid *to)
{
	return (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = *to, .sgid_index = sgid_index, .hop_limit = 8}};
}

/* To RTS, by way of RESET where it is in use. */
static void connect_qp(struct ibv_qp *q, uint32_t dest, uint32_t rq_psn, uint32_t sq_psn, int with_receive)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
	int rc = q->qp_type == IBV_QPT_RC, ud = q->qp_type == IBV_QPT_UD;
	CHECK(!ibv_modify_qp(q, &a, IBV_QP_STATE));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE_ALL, .qkey = QKEY};
	CHECK(!ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	if (with_receive) {
		struct ibv_sge s = {(uintptr_t)memory, MEMORY, memory_mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &s, .num_sge = 1}, *bad;
		CHECK(!ibv_post_recv(q, &wr, &bad));
	}
	a = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = dest, .rq_psn = rq_psn, .max_dest_rd_atomic = 4,
		.min_rnr_timer = 1, .ah_attr = way(&p.peer.gid),
	};
	int connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	CHECK(!ibv_modify_qp(q, &a, IBV_QP_STATE | (ud ? 0 : connected) | (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 14, a.retry_cnt = 7, a.rnr_retry = 7, a.sq_psn = sq_psn, a.max_rd_atomic = 4;
	int reliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(!ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? reliable : 0)));
}

static void address(const char *text, uint8_t to[16])
{
	family = strchr(text, ':') ? AF_INET6 : AF_INET;
	CHECK(inet_pton(family, text, to) == 1);
}

static void find_own_gid(void)
{
	union ibv_gid g, wanted = {.raw = {[10] = 0xff, [11] = 0xff}};
	memcpy(wanted.raw + (family == AF_INET ? 12 : 0), own, family == AF_INET ? 4 : 16);
	while (ibv_query_gid(p.ctx, 1, sgid_index, &g) || memcmp(&g, &wanted, sizeof g))
		CHECK(sgid_index++ < 256);
	p.me.gid = wanted;
}

/* One message each way, checked; the client's goes first. */
static void exchange(void)
{
	char *in = p.buf, *out = p.buf + SIZE;
	memset(out, exchanges + p.server, SIZE);
	if (p.server)
		CHECK(good_wc(&p).wr_id == 1);
	CHECK(!post_op(&p, IBV_WR_SEND, SIZE, SIZE, 0, 2));
	/* The answer may be here before the acknowledgement. */
	for (int ids = p.server ? 2 : 3; ids;)
		ids -= good_wc(&p).wr_id;
	for (int i = 0; i < SIZE; i++)
		CHECK(in[i] == (char)(exchanges + !p.server));
	post_recv(&p, 0, SIZE, 1);
	exchanges++;
}

/* The victim. */

static enum ibv_qp_state state_of(struct ibv_qp *q)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	CHECK(!ibv_query_qp(q, &a, IBV_QP_STATE, &i));
	return a.qp_state;
}

static int next_event(int ms)
{
	struct pollfd f = {.fd = p.ctx->async_fd, .events = POLLIN};
	struct ibv_async_event e;
	if (poll(&f, 1, ms) != 1)
		return -1;
	CHECK(!ibv_get_async_event(p.ctx, &e));
	ibv_ack_async_event(&e);
	/* The move to RTR lets the first packet tell that the connection is established. */
	return e.event_type == IBV_EVENT_COMM_EST ? next_event(ms) : (int)e.event_type;
}

static int quiet_completions(void)
{
	struct ibv_wc wc;
	int n = 0;
	while (ibv_poll_cq(quiet, 1, &wc) == 1)
		n += wc.status == IBV_WC_SUCCESS;
	return n;
}

static void make_qps(void)
{
	static const enum ibv_qp_type types[] = {[RC] = IBV_QPT_RC, [UC] = IBV_QPT_UC, [UD] = IBV_QPT_UD, [EARLY] = IBV_QPT_RC};
	CHECK(quiet = ibv_create_cq(p.ctx, 64, NULL, NULL, 0));
	CHECK(memory_mr = ibv_reg_mr(p.pd, memory, MEMORY, REMOTE_ALL));
	for (int i = RC; i <= EARLY; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = quiet, .recv_cq = quiet, .qp_type = types[i],
			.cap = {.max_send_wr = 1, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		};
		CHECK(qp[i] = ibv_create_qp(p.pd, &init));
		qps.qpn[i] = qp[i]->qp_num;
	}
	qps.qpn[LIVE] = p.qp->qp_num;
	qps.rkey = memory_mr->rkey;
	qps.addr = (uintptr_t)memory;
	qp_init(qp[EARLY]);
}

static int suffer(const struct forged *c)
{
	int bad = 0, came = 0, waits, taken = c->how & TAKEN, events = c->event ? 1 : 0, packets = c->how & JOINED ? 20 : 1;
	uint64_t before[WATCHED], after[WATCHED], expected[WATCHED], end = now_ns() + LIMIT_MS * 1000000ull;
	if (c->to == RC || c->to == UC || c->to == UD)
		connect_qp(qp[c->to], 0x000005, FIRST_PSN, 7, 1);
	quiet_completions();
	memset(memory, 0xa5, MEMORY);
	look(before);
	tcp_sync(&p);
	for (int w = 0; w < WATCHED; w++) {
		const char *a = c->counted[0], *b = c->counted[1];
		int counts = w == RECEIVED || (a && !strcmp(a, watched[w])) || (b && !strcmp(b, watched[w]));
		expected[w] = counts ? packets : 0;
	}
	do {
		CHECK(ibv_poll_cq(p.cq, 0, NULL) == 0);
		came += quiet_completions();
		look(after);
		waits = came < (taken && c->make != write_only);
		for (int w = 0; w < WATCHED; w++)
			waits |= after[w] - before[w] < expected[w];
	} while (waits && now_ns() < end);
	for (int w = 0; w < WATCHED; w++) {
		uint64_t got = after[w] - before[w];
		if ((got < expected[w] || (got > expected[w] && w < EXACT)) && ++bad)
			fprintf(stderr, "%s: %s grew by %llu, expected %llu\n", c->name, watched[w], (unsigned long long)got,
				(unsigned long long)expected[w]);
	}
	int touched = 0, event = next_event(events ? LIMIT_MS : 0);
	came += quiet_completions();
	for (int i = 0; i < MEMORY; i++)
		touched += memory[i] != 0xa5;
	if (came != (taken && c->make != write_only) && ++bad)
		fprintf(stderr, "%s: %d receives completed\n", c->name, came);
	if ((touched > 0) != (taken > 0) && ++bad)
		fprintf(stderr, "%s: %d bytes of memory have changed\n", c->name, touched);
	if (event != (events ? c->event : -1) && ++bad)
		fprintf(stderr, "%s: event %d, expected %d\n", c->name, event, events ? c->event : -1);
	if (c->to != NOBODY) {
		struct ibv_qp *q = c->to == LIVE ? p.qp : qp[c->to];
		enum ibv_qp_state s = state_of(q), expected = events ? IBV_QPS_ERR : c->to == EARLY ? IBV_QPS_INIT : IBV_QPS_RTS;
		if (s != expected && ++bad)
			fprintf(stderr, "%s: state %d, expected %d\n", c->name, s, expected);
	}
	return bad;
}

/* The client. */

struct source {
	int fd;
	uint16_t port;
	const uint8_t *address;
};

static socklen_t socket_address(struct sockaddr_storage *to, const uint8_t *ip, uint16_t port)
{
	memset(to, 0, sizeof *to);
	to->ss_family = family;
	if (family == AF_INET) {
		struct sockaddr_in *a = (void *)to;
		a->sin_port = htons(port);
		memcpy(&a->sin_addr, ip, 4);
		return sizeof *a;
	}
	struct sockaddr_in6 *a = (void *)to;
	a->sin6_port = htons(port);
	memcpy(&a->sin6_addr, ip, 16);
	return sizeof *a;
}

static struct source source(const uint8_t *ip)
{
	struct source s = {.address = ip};
	struct sockaddr_storage a;
	socklen_t n = socket_address(&a, ip, 0);
	int dont_fragment = IP_PMTUDISC_DO;
	CHECK((s.fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
	CHECK(!bind(s.fd, (void *)&a, n) && !getsockname(s.fd, (void *)&a, &n));
	/* The IPv4 id is then 0, which the ICRC covers. */
	if (family == AF_INET)
		CHECK(!setsockopt(s.fd, IPPROTO_IP, IP_MTU_DISCOVER, &dont_fragment, sizeof dont_fragment));
	s.port = ntohs(family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port : ((struct sockaddr_in6 *)&a)->sin6_port);
	return s;
}

static void transmit(const struct source *s, const void *data, size_t len)
{
	struct sockaddr_storage a;
	socklen_t n = socket_address(&a, peer, 4791);
	CHECK(sendto(s->fd, data, len, 0, (void *)&a, n) == (ssize_t)len);
}

/* Twenty times the packet, as one datagram that the kernel cuts. */
static void transmit_joined(const struct source *s, const struct packet *k)
{
	static uint8_t all[20 * 64];
	int size = k->len;
	CHECK(k->len <= 64);
	for (int i = 0; i < 20; i++)
		memcpy(all + i * size, k->b, size);
	CHECK(!setsockopt(s->fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size));
	transmit(s, all, 20 * size);
	size = 0;
	CHECK(!setsockopt(s->fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size));
}

/* An IP packet with four bytes behind its UDP datagram, which the ICRC takes for part of it. */
static void transmit_longer(const struct packet *k)
{
	uint8_t b[256] = {0};
	struct sockaddr_storage a;
	socklen_t n = socket_address(&a, peer, 0);
	uint8_t *udp = b + (family == AF_INET ? 20 : 40);
	int fd = socket(family, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
	CHECK(fd >= 0 && k->len < 128);
	put(udp, 0xc000, 2);
	put(udp + 2, 4791, 2);
	put(udp + 4, 8 + k->len - 4, 2);
	memcpy(udp + 8, k->b, k->len);
	size_t len = udp + 8 + k->len - b;
	if (family == AF_INET) {
		b[0] = 0x45;
		put(b + 2, len, 2);
		b[6] = 0x40;
		b[8] = 64;
		b[9] = 17;
		memcpy(b + 12, own, 4);
		memcpy(b + 16, peer, 4);
	} else {
		b[0] = 0x60;
		put(b + 4, 8 + k->len, 2);
		b[6] = 17;
		b[7] = 64;
		memcpy(b + 8, own, 16);
		memcpy(b + 24, peer, 16);
	}
	CHECK(sendto(fd, b, len, 0, (void *)&a, n) == (ssize_t)len);
	close(fd);
}

static void attack(const struct forged *c, const struct source *mine, const struct source *others)
{
	const struct source *s = c->how & OTHER_SOURCE ? others : mine;
	struct packet k;
	c->make(&k, c->to);
	if (c->how & LONGER) {
		k.len += 4;
		seal(&k, own, 0xc000, 4);
		return transmit_longer(&k);
	}
	if (k.len >= 16)
		seal(&k, s->address, s->port, 0);
	if (c->how & WRONG_ICRC)
		k.b[k.len - 1] ^= 0x10;
	if (c->how & JOINED)
		return transmit_joined(s, &k);
	transmit(s, k.b, k.len);
}

int main(int argc, char **argv)
{
	CHECK(argc == 7);
	int bad = 0;
	alarm(150);
	p.server = !strcmp(argv[1], "victim");
	address(argv[4], own);
	address(argv[5], peer);
	address(argv[6], other);
	pair_create(&p, 2 * SIZE, 4);
	find_own_gid();
	p.tcp = tcp_open(p.server, argv[2], atoi(argv[3]));
	tcp_all(p.tcp, &p.me, sizeof p.me, 1);
	tcp_all(p.tcp, &p.peer, sizeof p.peer, 0);
	if (p.server)
		make_qps();
	tcp_all(p.tcp, &qps, sizeof qps, p.server);
	connect_qp(p.qp, p.peer.qpn, p.peer.psn, p.me.psn, 0);
	post_recv(&p, 0, SIZE, 1);
	tcp_sync(&p);
	exchange();
	struct source mine = {0}, others = {0};
	if (!p.server)
		mine = source(own), others = source(other);
	for (size_t i = 0; i < CASES; i++) {
		tcp_sync(&p);
		if (p.server) {
			bad += suffer(&cases[i]);
		} else {
			tcp_sync(&p);
			attack(&cases[i], &mine, &others);
		}
		tcp_sync(&p);
		exchange();
	}
	if (p.server)
		printf("%zu cases, %d wrong\n", CASES, bad);
	tcp_sync(&p);
	return bad != 0;
}
