/* The packets of the trial `forged`, and which case is made of them. */
#ifndef FORGED_H
#define FORGED_H

#include "pair.h"

enum { MTU = 1024, FIRST_PSN = 100 };
enum target { LIVE, RC, UC, UD, EARLY, NOBODY };
static const uint32_t QKEY = 0x1234567, GROUP_QPN = 0xffffff;

/* What the victim tells of its queue pairs and its memory. */
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
static int family, exchanges;

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
static void seal(struct packet *k, const uint8_t *src, const uint8_t *dst, uint16_t port, size_t longer)
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
		memcpy(h + 16, dst, 4);
	} else {
		h[0] = 0x6f;
		put(h + 4, 8 + k->len, 2);
		h[6] = 17;
		memcpy(h + 8, src, 16);
		memcpy(h + 24, dst, 16);
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
static void uc_write_imm(struct packet *k, enum target to, uint32_t length) { request(k, to, 0x2b, 20, 8), reth(k, length); }
static void uc_write_imm_short(struct packet *k, enum target to) { uc_write_imm(k, to, 16); }
static void uc_write_imm_long(struct packet *k, enum target to) { uc_write_imm(k, to, 4); }
static void to_group(struct packet *k, enum target to) { ud_send(k, to), put(k->b + 5, GROUP_QPN, 3); }
static void to_group_wrong_qkey(struct packet *k, enum target to) { ud_wrong_qkey(k, to), put(k->b + 5, GROUP_QPN, 3); }
static void to_group_rc(struct packet *k, enum target to) { send_only(k, to), put(k->b + 5, GROUP_QPN, 3); }
static void to_group_partition(struct packet *k, enum target to) { to_group(k, to), put(k->b + 2, 0x9234, 2); }
static void to_group_no_deth(struct packet *k, enum target to) { no_deth(k, to), put(k->b + 5, GROUP_QPN, 3); }
static void notification(struct packet *k, enum target to) { request(k, to, 0x81, 16, 0), memset(k->b + 8, 0, 20), k->b[4] = 0x40; }

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

enum { WRONG_ICRC = 1, OTHER_SOURCE = 2, JOINED = 4, LONGER = 8, TAKEN = 16, GROUP = 32, FOREIGN = 64, MARKED = 128, PARTLY = 256 };

#define MALFORMED {"counters/port_rcv_errors"}
#define DAMAGED {"hw_counters/rx_icrc_encapsulated", "counters/port_rcv_errors"}
#define UNWANTED {"hw_counters/rx_drops"}
#define CONGESTED {"hw_counters/np_ecn_marked_roce_packets", "hw_counters/np_cnp_sent"}

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
	{"a WRITE with immediate of less than it says over UC", UC, uc_write_imm_short, PARTLY, {0}, 0},
	{"a WRITE with immediate of more than it says over UC", UC, uc_write_imm_long, 0, {0}, 0},
	{"a right datagram to a group", UD, to_group, TAKEN | GROUP, {0}, 0},
	{"a datagram to a group and the QPN of a member", UD, ud_send, GROUP, UNWANTED, 0},
	{"a datagram to a group and the QPN of nobody", UD, unknown_qpn, GROUP, UNWANTED, 0},
	{"an opcode of RC to a group", UD, to_group_rc, GROUP, UNWANTED, 0},
	{"another Q_Key to a group", UD, to_group_wrong_qkey, GROUP, {"hw_counters/qkey_viol_cntr"}, 0},
	{"another partition to a group", UD, to_group_partition, GROUP, {"counters/port_rcv_constraint_errors"}, 0},
	{"a datagram to a group that ends in its DETH", UD, to_group_no_deth, GROUP, MALFORMED, 0},
	{"a wrong ICRC to a group", UD, to_group, GROUP | WRONG_ICRC, DAMAGED, 0},
	{"a group that none of our queue pairs is in", UD, to_group, FOREIGN, UNWANTED, 0},
	{"a CNP", RC, notification, 0, {"hw_counters/rp_cnp_handled"}, 0},
	{"a CNP for UC", UC, notification, 0, {"hw_counters/rp_cnp_handled"}, 0},
	{"a CNP for UD", UD, notification, 0, UNWANTED, 0},
	{"a CNP from another source", RC, notification, OTHER_SOURCE, UNWANTED, 0},
	{"a CNP with a wrong ICRC", RC, notification, WRONG_ICRC, DAMAGED, 0},
	{"ECN's CE on a right SEND", RC, send_only, TAKEN | MARKED, CONGESTED, 0},
	{"ECN's CE on a right SEND of UC", UC, uc_send, TAKEN | MARKED, CONGESTED, 0},
	{"ECN's CE on a right datagram", UD, ud_send, TAKEN | MARKED, {"hw_counters/np_ecn_marked_roce_packets"}, 0},
	{"ECN's CE, a wrong ICRC", RC, send_only, MARKED | WRONG_ICRC, DAMAGED, 0},
	{"ECN's CE, another source", RC, send_only, MARKED | OTHER_SOURCE, UNWANTED, 0},
	{"the middle of no message", RC, middle, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a first packet that is not full", RC, first_short, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"more than the path MTU", RC, above_mtu, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a WRITE of less than it says", RC, write_short, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a WRITE of more than it says", RC, write_long, 0, {0}, IBV_EVENT_QP_REQ_ERR},
	{"a WRITE by a wrong key", RC, write_far, 0, {"hw_counters/resp_remote_access_errors"}, IBV_EVENT_QP_ACCESS_ERR},
};
#define CASES (sizeof cases / sizeof *cases)

#endif
