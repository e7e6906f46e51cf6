/* unreliable server|client|local HOST PORT uc|ud: what scripted messages over UC or UD have to count at both ends, on whatever path
 * they go: those that are taken, and those that nobody takes. Nothing of it is answered. `local` is both ends. */
#include "counting.h"

enum { GRH = 40, AREA = 8192, QKEY = 0x1234567, LIMIT_MS = 20000 };

static struct pair p;
/* Of the server and of the client; the other one's is not there. */
static struct ibv_qp *taker, *sender;
static uint64_t received;
/* Ends with the port, which no other pair has. */
static union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 239, 77}};

/* What the client sends, in order. */
static const struct step {
	enum ibv_wr_opcode op;
	uint32_t len;
} uc_steps[] = {
	{IBV_WR_SEND, 8},	   {IBV_WR_SEND, 0},	  {IBV_WR_SEND, 3000},		   {IBV_WR_SEND_WITH_IMM, 5},
	{IBV_WR_RDMA_WRITE, 5000}, {IBV_WR_RDMA_WRITE, 64}, {IBV_WR_RDMA_WRITE_WITH_IMM, 2100},
}, ud_steps[] = {
	{IBV_WR_SEND, 8}, {IBV_WR_SEND, 0}, {IBV_WR_SEND, 1000}, {IBV_WR_SEND_WITH_IMM, 5},
};
#define COUNT(steps) (sizeof steps / sizeof *steps)

struct sums {
	uint64_t packets, words, sends, writes, receives;
};

/* By the formats of the specification: BTH 12, DETH 8, RETH 16, ImmDt 4, ICRC 4 bytes. */
static void add(struct sums *s, const struct step *step, int ud)
{
	uint32_t n = step->len ? (step->len + MTU - 1) / MTU : 1;
	int write = step->op == IBV_WR_RDMA_WRITE || step->op == IBV_WR_RDMA_WRITE_WITH_IMM;
	int imm = step->op == IBV_WR_SEND_WITH_IMM || step->op == IBV_WR_RDMA_WRITE_WITH_IMM;
	s->packets += n;
	s->words += (4 + 2 * ud) * n + (step->len + 3) / 4 + 4 * write + imm;
	s->sends += !write;
	s->writes += write;
	s->receives += !write || imm;
}

static struct ibv_qp *make_qp(int ud)
{
	struct ibv_qp_init_attr init = {
		.send_cq = p.cq, .recv_cq = p.cq, .qp_type = ud ? IBV_QPT_UD : IBV_QPT_UC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE_ALL, .qkey = QKEY};
	struct ibv_qp *qp = ibv_create_qp(p.pd, &init);
	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
	return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer_qpn)
{
	int ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer_qpn, .rq_psn = 7,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = p.peer.gid, .hop_limit = 8, .sgid_index = own_gid()}},
	};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)));
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = 7;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static void receive(int n)
{
	for (int i = 0; i < n; i++) {
		struct ibv_sge s = {(uintptr_t)p.buf, AREA, p.mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &s, .num_sge = 1}, *bad;
		CHECK(!ibv_post_recv(taker, &wr, &bad));
	}
}

/* To a group or the peer's queue pair where `ah` is; sent when it returns. */
static void send_step(const struct step *s, struct ibv_ah *ah, uint32_t to, uint32_t qkey)
{
	struct ibv_sge sge = {(uintptr_t)p.buf, s->len, p.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = s->op, .send_flags = IBV_SEND_SIGNALED}, *bad;
	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = to;
		wr.wr.ud.remote_qkey = qkey;
	} else {
		wr.wr.rdma.remote_addr = p.peer.addr + AREA;
		wr.wr.rdma.rkey = p.peer.rkey;
	}
	CHECK(!ibv_post_send(sender, &wr, &bad));
	while (good_wc(&p).wr_id != 2)
		received++;
}

static struct ibv_ah *way(const union ibv_gid *to)
{
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = *to, .hop_limit = 8, .sgid_index = own_gid()}};
	struct ibv_ah *ah = ibv_create_ah(p.pd, &a);
	CHECK(ah);
	return ah;
}

/* The server takes what it is to take, and waits until the last packet has been counted. */
static void serve(const struct sums *taken, uint64_t packets)
{
	uint64_t end = now_ns() + LIMIT_MS * 1000000ull;
	for (; received < taken->receives; received++)
		CHECK(good_wc(&p).wr_id == 1);
	do {
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(p.cq, 1, &wc) == 0);
		look(taker, mine, &n_mine);
	} while (my("counters/port_rcv_packets") < packets && now_ns() < end);
}

static void check(const struct sums *sent, const struct sums *taken, uint64_t no_receive, uint64_t wrong_keys, uint64_t to_group)
{
	is("rdma_sends", my("hw_counters/rdma_sends"), sent->sends);
	is("packets sent", my("counters/port_xmit_packets"), sent->packets);
	is("by the other name", my("hw_counters/sent_pkts"), sent->packets);
	is("words sent", my("counters/port_xmit_data"), sent->words);
	is("to one queue pair", my("counters/unicast_xmit_packets"), sent->packets - to_group);
	is("to groups", my("counters/multicast_xmit_packets"), to_group);
	is("answers", my("counters/port_rcv_packets"), 0);
	is("words of answers", my("counters/port_rcv_data"), 0);
	is("sent again", my("hw_counters/retrans_pkts"), 0);
	is("failed", my("hw_counters/req_cqe_error"), 0);
	is("the peer's rdma_recvs", their("hw_counters/rdma_recvs"), taken->receives);
	is("the peer's rx_write_requests", their("hw_counters/rx_write_requests"), taken->writes);
	is("packets at the peer", their("counters/port_rcv_packets"), sent->packets);
	is("by the other name", their("hw_counters/rcvd_pkts"), sent->packets);
	is("words at the peer", their("counters/port_rcv_data"), sent->words);
	is("for one queue pair", their("counters/unicast_rcv_packets"), sent->packets - to_group);
	is("for groups", their("counters/multicast_rcv_packets"), to_group);
	is("answers of the peer", their("counters/port_xmit_packets"), 0);
	is("messages without a receive", their("hw_counters/out_of_buffer"), no_receive);
	is("Q_Key violations", their("hw_counters/qkey_viol_cntr"), wrong_keys);
	is("dropped", their("hw_counters/rx_drops"), no_receive);
	is("RNR NAKs", their("hw_counters/send_rnr_err"), 0);
	is("failed at the peer", their("hw_counters/resp_cqe_error"), 0);
	is("malformed", their("counters/port_rcv_errors"), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	alarm(120);
	int local = !strcmp(argv[1], "local"), server = !strcmp(argv[1], "server"), ud = !strcmp(argv[4], "ud");
	const struct step *steps = ud ? ud_steps : uc_steps, in_vain = {IBV_WR_SEND, 100};
	size_t n = ud ? COUNT(ud_steps) : COUNT(uc_steps);
	struct sums sent = {0}, taken = {0};
	for (size_t i = 0; i < n; i++)
		add(&sent, &steps[i], ud), add(&taken, &steps[i], ud);
	/* One to the group, one with a wrong Q_Key; and one without a receive, over UC too. */
	if (ud)
		add(&sent, &steps[0], 1), add(&taken, &steps[0], 1), add(&sent, &in_vain, 1);
	add(&sent, &in_vain, ud);
	group.raw[14] = atoi(argv[3]) >> 8;
	group.raw[15] = atoi(argv[3]);
	pair_create(&p, 2 * AREA, 32);
	uint32_t to;
	if (local) {
		p.peer = p.me;
		taker = make_qp(ud), sender = make_qp(ud);
		to = taker->qp_num;
		connect_qp(taker, sender->qp_num);
		connect_qp(sender, to);
	} else {
		pair_connect(&p, server, argv[2], atoi(argv[3]));
		struct ibv_qp *qp = make_qp(ud);
		*(server ? &taker : &sender) = qp;
		uint32_t own = qp->qp_num;
		tcp_all(p.tcp, &own, sizeof own, 1);
		tcp_all(p.tcp, &to, sizeof to, 0);
		connect_qp(qp, to);
	}
	if (taker) {
		receive(taken.receives);
		if (ud)
			CHECK(!ibv_attach_mcast(taker, &group, 0));
	}
	if (!local)
		tcp_sync(&p);
	if (sender) {
		struct ibv_ah *ah = ud ? way(&p.peer.gid) : NULL;
		for (size_t i = 0; i < n; i++)
			send_step(&steps[i], ah, to, QKEY);
		if (ud) {
			send_step(&in_vain, ah, to, QKEY + 1);
			send_step(&steps[0], way(&group), 0xffffff, QKEY);
		}
		send_step(&in_vain, ah, to, QKEY);
	}
	if (taker)
		serve(&taken, sent.packets);
	if (local) {
		look(sender, mine, &n_mine);
		look(taker, theirs, &n_theirs);
	} else {
		tcp_sync(&p);
		look(server ? taker : sender, mine, &n_mine);
		tell(&p);
	}
	if (sender)
		check(&sent, &taken, 1, ud, ud);
	if (!local)
		tcp_sync(&p);
	return wrong;
}
