/* forged victim|client HOST PORT OWN PEER OTHER: the client sends packets that nobody should send, each with a right ICRC unless
 * that is what is wrong, to UDP port 4791 of the victim's address PEER or of a multicast group. The victim must drop each, count it
 * where it belongs and nowhere else, and notice nothing of it otherwise: an exchange over a real queue pair follows every case. OWN
 * and PEER are the addresses of a process's own end and of the other one, both of IPv4 or of IPv6; OTHER is a second one of the
 * client's. C_TESTS_INTERFACE is where groups are reached. */
#include "forged.h"
#include <anyverbs.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

enum { ROOM = 256, SIZE = 64, MEMORY = 4096, LIMIT_MS = 10000 };
/* The groups that the victim's UD queue pair is in, as they may end; one socket can be in 20 of IPv4. */
enum { GROUPS = 24, FOREIGN_GROUP = 200 };

static struct ibv_qp *qp[5];
static struct ibv_cq *quiet;
static int sgid_index;
static uint8_t own[16], peer[16], other[16], group[16], foreign[16], memory[MEMORY] __attribute__((aligned(64)));
static struct ibv_mr *memory_mr;

static const char *const watched[] = {
	"counters/port_rcv_errors",	   "counters/port_rcv_constraint_errors", "hw_counters/rx_icrc_encapsulated",
	"hw_counters/rx_drops",		   "hw_counters/qkey_viol_cntr",	  "hw_counters/out_of_seq_request",
	"hw_counters/out_of_buffer",	   "hw_counters/resp_remote_access_errors",
	"hw_counters/rp_cnp_handled",	   "hw_counters/np_cnp_sent",		  "hw_counters/np_ecn_marked_roce_packets",
	"counters/multicast_rcv_packets",
	/* The packets of the exchange before may come again on a busy machine: of these two there may be more. */
	"hw_counters/duplicate_request", "counters/port_rcv_packets",
};
enum { WATCHED = sizeof watched / sizeof *watched, RECEIVED = WATCHED - 1, EXACT = WATCHED - 2, TO_GROUPS = WATCHED - 3 };

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

/* A multicast address of this family. */
static void group_address(uint8_t to[16], int number)
{
	char text[32];
	snprintf(text, sizeof text, family == AF_INET ? "239.77.9.%d" : "ff15::77:9:%x", number);
	address(text, to);
}

static unsigned interface(void)
{
	const char *name = getenv("C_TESTS_INTERFACE");
	unsigned index = name ? if_nametoindex(name) : 0;
	CHECK(index);
	return index;
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

/* In more groups than one socket may be, of IPv4, so that the port hears all groups of this host; another socket is in FOREIGN's. */
static void join_groups(void)
{
	for (int i = 0; i < GROUPS; i++) {
		union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
		uint8_t ip[16];
		group_address(ip, i);
		memcpy(gid.raw + (family == AF_INET ? 12 : 0), ip, family == AF_INET ? 4 : 16);
		CHECK(!ibv_attach_mcast(qp[UD], &gid, 0));
	}
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0);
	if (family == AF_INET) {
		struct ip_mreqn m = {.imr_ifindex = interface()};
		memcpy(&m.imr_multiaddr, foreign, 4);
		CHECK(!setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof m));
	} else {
		struct ipv6_mreq m = {.ipv6mr_interface = interface()};
		memcpy(&m.ipv6mr_multiaddr, foreign, 16);
		CHECK(!setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m, sizeof m));
	}
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
		int counts = w == RECEIVED || (a && !strcmp(a, watched[w])) || (b && !strcmp(b, watched[w])) ||
			     (w == TO_GROUPS && c->how & (GROUP | FOREIGN));
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
	/* What a WRITE has brought before it turns out to be wrong may stay. */
	if ((touched > 0) != (taken > 0) && !(c->how & PARTLY) && ++bad)
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
	if (family == AF_INET) {
		struct ip_mreqn m = {.imr_ifindex = interface()};
		CHECK(!setsockopt(s.fd, IPPROTO_IP, IP_MULTICAST_IF, &m, sizeof m));
	} else {
		int index = interface();
		CHECK(!setsockopt(s.fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index));
	}
	s.port = ntohs(family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port : ((struct sockaddr_in6 *)&a)->sin6_port);
	return s;
}

static void transmit(const struct source *s, const uint8_t *dst, const void *data, size_t len)
{
	struct sockaddr_storage a;
	socklen_t n = socket_address(&a, dst, 4791);
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
	transmit(s, peer, all, 20 * size);
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
	const uint8_t *dst = c->how & GROUP ? group : c->how & FOREIGN ? foreign : peer;
	int class = c->how & MARKED ? 3 : 0;
	struct packet k;
	c->make(&k, c->to);
	if (c->how & LONGER) {
		k.len += 4;
		seal(&k, own, peer, 0xc000, 4);
		return transmit_longer(&k);
	}
	if (k.len >= 16)
		seal(&k, s->address, dst, s->port, 0);
	if (c->how & WRONG_ICRC)
		k.b[k.len - 1] ^= 0x10;
	if (c->how & JOINED)
		return transmit_joined(s, &k);
	if (family == AF_INET)
		CHECK(!setsockopt(s->fd, IPPROTO_IP, IP_TOS, &class, sizeof class));
	else
		CHECK(!setsockopt(s->fd, IPPROTO_IPV6, IPV6_TCLASS, &class, sizeof class));
	transmit(s, dst, k.b, k.len);
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
	group_address(group, 0);
	group_address(foreign, FOREIGN_GROUP);
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
	if (p.server)
		join_groups();
	tcp_sync(&p);
	exchange();
	struct source mine = {0}, others = {0};
	if (!p.server)
		mine = source(own), others = source(other);
	for (size_t i = 0; i < CASES; i++) {
		/* No socket has more groups of IPv6 than it may be in, so the kernel lets none of other sockets through. */
		if (family == AF_INET6 && cases[i].how & FOREIGN)
			continue;
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
