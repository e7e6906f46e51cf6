/* multicast GROUP OTHER COUNT SENDERS sends|listens|forges: one process of a trial with groups, on one of several hosts. It has
 * three UD queue pairs: two in GROUP, one of which also sends, and one in OTHER, to which nobody sends. Prints `ready`; after SIGUSR1
 * it sends COUNT messages, and one with a wrong Q_Key that nobody may get. When both have got SENDERS times COUNT messages, and
 * nothing more for a while, it prints for each queue pair `qp I: N once, T again, W wrong`, leaves the groups, prints `left` and
 * waits for SIGUSR1 again. C_TESTS_GID is the index of the GID to send from. `forges`: the messages are packets that it makes
 * itself, from the same address by the interface C_TESTS_INTERFACE, and between them are others that nobody may get. */
#include "pair.h"
#include <net/if.h>

enum { GRH = 40, QPS = 3, DEPTH = 512, ROOM = 2048, LENGTH = 1000, QKEY = 0x22222222, HOPS = 33, CLASS = 0x62, NUMBERS = 1024 };
/* A silence that ends it, milliseconds: the first, while messages are missing, is an error. */
enum { PATIENCE = 15000, QUIET = 400 };

struct message {
	uint32_t pid, number, qpn, bad;
	union ibv_gid from;
	unsigned char rest[LENGTH - 32];
};

static volatile sig_atomic_t signals;
static struct pair p;
static struct ibv_qp *qp[QPS];
static struct ibv_ah *ah;
static union ibv_gid group, other;
static uint32_t senders[64];
static unsigned char seen[QPS][64][NUMBERS];
static unsigned long once[QPS], again[QPS], wrong[QPS];

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void post(int i, int slot)
{
	struct ibv_sge sge = {(uintptr_t)p.buf + (size_t)(i * DEPTH + slot) * ROOM, ROOM, p.mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = i * DEPTH + slot, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(qp[i], &wr, &bad));
}

static void pattern(struct message *m)
{
	for (unsigned i = 0; i < sizeof m->rest; i++)
		m->rest[i] = m->pid * 5 + m->number * 3 + i;
}

/* Source, destination, hop limit and traffic class are those of the sender. */
static int good_grh(const unsigned char *grh, const union ibv_gid *from)
{
	static const unsigned char zero[20];
	unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
	if (!memcmp(group.raw, mapped, 12))
		return !memcmp(grh, zero, 20) && grh[20] == 0x45 && grh[21] == CLASS && grh[28] == HOPS && grh[29] == 17 &&
		       !memcmp(grh + 32, from->raw + 12, 4) && !memcmp(grh + 36, group.raw + 12, 4);
	return grh[0] == (0x60 | CLASS >> 4) && (grh[1] & 0xf0) == (CLASS & 15) << 4 && grh[6] == 17 && grh[7] == HOPS &&
	       !memcmp(grh + 8, from->raw, 16) && !memcmp(grh + 24, group.raw, 16);
}

static void take(const struct ibv_wc *wc)
{
	int i = wc->wr_id / DEPTH, s = 0;
	unsigned char *at = (unsigned char *)p.buf + wc->wr_id * ROOM;
	struct message m, want;
	memcpy(&m, at + GRH, sizeof m);
	want = m;
	pattern(&want);
	if (wc->status != IBV_WC_SUCCESS || wc->byte_len != GRH + LENGTH || !(wc->wc_flags & IBV_WC_GRH) || wc->src_qp != m.qpn ||
	    m.bad || memcmp(&m, &want, sizeof m) || !good_grh(at, &m.from) || m.number >= NUMBERS || i == 2) {
		if (!wrong[i]++)
			fprintf(stderr, "qp %d: %s, %u bytes, flags %x, from %06x (%06x), number %u, grh %d\n", i,
				ibv_wc_status_str(wc->status), wc->byte_len, wc->wc_flags, wc->src_qp, m.qpn, m.number,
				good_grh(at, &m.from));
	} else {
		while (s < 63 && senders[s] && senders[s] != m.pid)
			s++;
		senders[s] = m.pid;
		if (seen[i][s][m.number]++)
			again[i]++;
		else
			once[i]++;
	}
	post(i, wc->wr_id % DEPTH);
}

static void send_one(uint32_t number, int bad)
{
	struct message *m = (struct message *)(p.buf + (size_t)QPS * DEPTH * ROOM);
	struct ibv_sge sge = {(uintptr_t)m, LENGTH, p.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1 << 30, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *refused;
	*m = (struct message){.pid = getpid(), .number = number, .qpn = qp[0]->qp_num, .bad = bad, .from = p.me.gid};
	pattern(m);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = bad ? QKEY + 1 : QKEY;
	CHECK(!ibv_post_send(qp[0], &wr, &refused));
}

static uint32_t crc(uint32_t crc, const unsigned char *b, size_t n)
{
	while (n--) {
		crc ^= *b++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return crc;
}

/* The ICRC of a packet from `from` and a port to a group: IP and UDP without what routers change, behind eight bytes of ones. */
static uint32_t icrc(const union ibv_gid *from, const union ibv_gid *to, uint16_t port, const unsigned char *b, size_t n, int v6)
{
	unsigned char h[68], *ip = h + 8, *udp = ip + (v6 ? 40 : 20);
	uint16_t udp_len = htons(8 + n + 4), ip_len = htons(20 + 8 + n + 4), roce = htons(4791);
	memset(h, 0xff, sizeof h);
	if (v6) {
		ip[0] = 0x6f;
		memcpy(ip + 4, &udp_len, 2);
		ip[6] = 17;
		memcpy(ip + 8, from->raw, 16);
		memcpy(ip + 24, to->raw, 16);
	} else {
		ip[0] = 0x45;
		memcpy(ip + 2, &ip_len, 2);
		memcpy(ip + 4, "\0\0\x40\0", 4);
		ip[9] = 17;
		memcpy(ip + 12, from->raw + 12, 4);
		memcpy(ip + 16, to->raw + 12, 4);
	}
	memcpy(udp, &port, 2);
	memcpy(udp + 2, &roce, 2);
	memcpy(udp + 4, &udp_len, 2);
	uint32_t c = crc(0xffffffff, h, udp + 8 - h);
	c = crc(crc(c, b, 4), (const unsigned char *)"\xff", 1);
	return ~crc(c, b + 5, n - 5);
}

/* A UDP socket whose packets leave from `from` as those of a queue pair do; its port in network byte order. */
static int forge_socket(const union ibv_gid *from, int v6, uint16_t *port)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6};
	struct sockaddr_in a4 = {.sin_family = AF_INET};
	socklen_t len = v6 ? sizeof a : sizeof a4;
	void *at = v6 ? (void *)&a : (void *)&a4;
	int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM, 0), hops = HOPS, class = CLASS, pmtu = IP_PMTUDISC_DO;
	int interface = if_nametoindex(getenv("C_TESTS_INTERFACE"));
	struct ip_mreqn out = {.imr_ifindex = interface};
	memcpy(&a.sin6_addr, from->raw, 16);
	memcpy(&a4.sin_addr, from->raw + 12, 4);
	CHECK(fd >= 0 && interface && !bind(fd, at, len) && !getsockname(fd, at, &len));
	*port = v6 ? a.sin6_port : a4.sin_port;
	if (v6) {
		CHECK(!setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof hops));
		CHECK(!setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &class, sizeof class));
		CHECK(!setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &interface, sizeof interface));
	} else {
		CHECK(!setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof hops));
		CHECK(!setsockopt(fd, IPPROTO_IP, IP_TOS, &class, sizeof class));
		CHECK(!setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &out, sizeof out));
		/* Packets that are not to be cut have the id 0. */
		CHECK(!setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &pmtu, sizeof pmtu));
	}
	return fd;
}

static void forge(unsigned count, int gid)
{
	enum { GOOD, PARTITION, CHECKSUM, MEMBER, KEY, KINDS };
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(4791)};
	struct sockaddr_in to4 = {.sin_family = AF_INET, .sin_port = htons(4791)};
	unsigned char b[12 + 8 + LENGTH + 4];
	union ibv_gid from;
	uint16_t port;
	CHECK(!ibv_query_gid(open_first(), 1, gid, &from));
	int v6 = group.raw[0] == 0xff, fd = forge_socket(&from, v6, &port);
	memcpy(&to.sin6_addr, group.raw, 16);
	memcpy(&to4.sin_addr, group.raw + 12, 4);
	printf("ready\n");
	while (!signals)
		usleep(1000);
	for (unsigned i = 0; i < count * KINDS; i++) {
		int kind = i % KINDS;
		struct message m = {.pid = getpid(), .number = i / KINDS, .qpn = 0x123456, .bad = kind, .from = from};
		uint32_t dest = htonl(kind == MEMBER ? 0x000123 : 0xffffff), psn = htonl(i), key = htonl(kind == KEY ? QKEY + 1 : QKEY);
		uint32_t src = htonl(m.qpn), sum;
		uint16_t partition = htons(kind == PARTITION ? 0x8001 : 0xffff);
		pattern(&m);
		b[0] = 0x64;
		b[1] = 0x40;
		memcpy(b + 2, &partition, 2);
		memcpy(b + 4, &dest, 4);
		memcpy(b + 8, &psn, 4);
		memcpy(b + 12, &key, 4);
		memcpy(b + 16, &src, 4);
		memcpy(b + 20, &m, sizeof m);
		sum = htole32(icrc(&from, &group, port, b, sizeof b - 4, v6) ^ (kind == CHECKSUM));
		memcpy(b + sizeof b - 4, &sum, 4);
		CHECK(sendto(fd, b, sizeof b, 0, v6 ? (void *)&to : (void *)&to4, v6 ? sizeof to : sizeof to4) == sizeof b);
		usleep(300);
	}
	printf("left\n");
	while (signals < 2)
		usleep(1000);
	exit(0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 6 && sizeof(struct message) == LENGTH);
	unsigned count = atoi(argv[3]), total = count * atoi(argv[4]), sent = 0;
	int sends = !strcmp(argv[5], "sends"), under_way = 0, gid = getenv("C_TESTS_GID") ? atoi(getenv("C_TESTS_GID")) : 0;
	CHECK(inet_pton(AF_INET6, argv[1], &group) == 1 && inet_pton(AF_INET6, argv[2], &other) == 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(90);
	signal(SIGUSR1, on_signal);
	if (!strcmp(argv[5], "forges"))
		forge(count, gid);
	pair_create(&p, (size_t)(QPS * DEPTH + 1) * ROOM, 4);
	CHECK(!ibv_destroy_qp(p.qp) && !ibv_destroy_cq(p.cq));
	CHECK(p.cq = ibv_create_cq(p.ctx, QPS * DEPTH + 16, NULL, NULL, 0));
	CHECK(!ibv_query_gid(p.ctx, 1, gid, &p.me.gid));
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = p.cq, .recv_cq = p.cq, .qp_type = IBV_QPT_UD,
			.cap = {.max_send_wr = 8, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
		};
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
		CHECK(qp[i] = ibv_create_qp(p.pd, &init));
		CHECK(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
		a.qp_state = IBV_QPS_RTR;
		CHECK(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE));
		a.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
		CHECK(!ibv_attach_mcast(qp[i], i == 2 ? &other : &group, 0));
		for (int slot = 0; slot < DEPTH; slot++)
			post(i, slot);
	}
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1,
				 .grh = {.dgid = group, .sgid_index = gid, .hop_limit = HOPS, .traffic_class = CLASS}};
	CHECK(ah = ibv_create_ah(p.pd, &to));
	printf("ready\n");

	uint64_t last = now_ns(), next = 0;
	for (;;) {
		struct ibv_wc wc;
		uint64_t now = now_ns();
		int n = ibv_poll_cq(p.cq, 1, &wc);
		CHECK(n >= 0);
		if (n && wc.wr_id == 1 << 30) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			under_way = 0;
		} else if (n) {
			take(&wc);
		}
		if (n) {
			last = now;
			continue;
		}
		/* A message in a millisecond is what any socket buffer takes. */
		if (sends && signals && sent < count && !under_way && now >= next) {
			send_one(sent, 0);
			under_way = 1;
			sent++;
			next = now + 1000000;
			last = now;
		} else if (sends && sent == count && !under_way) {
			send_one(0, 1);
			under_way = 1;
			sent++;
		} else {
			usleep(100);
		}
		int complete = once[0] >= total && once[1] >= total && (!sends || sent > count);
		if (now - last > (complete ? QUIET : PATIENCE) * 1000000ull)
			break;
	}
	for (int i = 0; i < QPS; i++) {
		printf("qp %d: %lu once, %lu again, %lu wrong\n", i, once[i], again[i], wrong[i]);
		CHECK(!ibv_detach_mcast(qp[i], i == 2 ? &other : &group, 0));
	}
	printf("left\n");
	for (int before = sends ? 1 : 0; signals <= before;)
		usleep(1000);
	CHECK(!ibv_destroy_ah(ah));
	for (int i = 1; i < QPS; i++)
		CHECK(!ibv_destroy_qp(qp[i]));
	p.qp = qp[0];
	pair_destroy(&p);
	return 0;
}
