/* parting server|client HOST PORT HOW END ROUNDS: the server sends, and the client, a process of its own each round, leaves as soon as
 * it has the last message. What it has taken was taken: each SEND of the server must succeed, though nobody is there any more.
 *
 * HOW the client learns of messages: `poll`; `nap`, where it mostly sleeps and the library's thread is at work; `ninth`, by an event that
 * only the library's thread can raise. That thread and the program share a processor, and it has the least of claims on it: so it
 * is held up in the midst of its work. `quiet`: a talk, of which the server's half is unsignaled.
 * END: `destroy` all objects, then exit(3); `exit` without; `quit` or `reset`: destroy or reset the QPs, then _exit(2). */
#include "pair.h"
#include <dirent.h>
#include <sched.h>

enum { QPS = 16, EACH = 2, SIZE = 1024, CHANNELS = 9, TALK = 64 };

struct side {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channels[CHANNELS];
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qps[QPS];
	struct ibv_mr *mr;
	char buf[2 * SIZE];
};

static struct side s;
static const char *how, *end;
static int is_quiet;

static void create_qps(void)
{
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = QPS * EACH + TALK, .max_sge = 1}};
	CHECK(s.srq = ibv_create_srq(s.pd, &srq));
	struct ibv_qp_init_attr init = {
		.send_cq = s.cq, .recv_cq = s.cq, .srq = s.srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = TALK, .max_send_sge = 1, .max_inline_data = 64},
	};
	for (int i = 0; i < QPS; i++) {
		CHECK(s.qps[i] = ibv_create_qp(s.pd, &init));
		qp_init(s.qps[i]);
	}
	struct ibv_sge sge = {(uintptr_t)s.buf + SIZE, SIZE, s.mr->lkey};
	for (int i = 0; i < QPS * EACH + TALK; i++) {
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
		CHECK(!ibv_post_srq_recv(s.srq, &wr, &bad));
	}
}

static void create(int channels)
{
	s.ctx = open_first();
	CHECK(s.pd = ibv_alloc_pd(s.ctx));
	CHECK(s.mr = ibv_reg_mr(s.pd, s.buf, sizeof s.buf, REMOTE_ALL));
	for (int i = 0; i < channels; i++)
		CHECK(s.channels[i] = ibv_create_comp_channel(s.ctx));
	CHECK(s.cq = ibv_create_cq(s.ctx, 4 * QPS * EACH + 4 * TALK, NULL, channels ? s.channels[channels - 1] : NULL, 0));
}

static void connect_qps(int tcp)
{
	struct about me[QPS], peer[QPS];
	for (int i = 0; i < QPS; i++) {
		me[i] = (struct about){.qpn = s.qps[i]->qp_num, .psn = (getpid() + i) & 0xffffff};
		CHECK(!ibv_query_gid(s.ctx, 1, own_gid(), &me[i].gid));
	}
	tcp_all(tcp, me, sizeof me, 1);
	tcp_all(tcp, peer, sizeof peer, 0);
	for (int i = 0; i < QPS; i++)
		qp_rts(s.qps[i], &me[i], &peer[i]);
	char c = 'r';
	tcp_all(tcp, &c, 1, 1);
	tcp_all(tcp, &c, 1, 0);
}

static void post(struct ibv_qp *qp, int flags)
{
	struct ibv_sge sge = {(uintptr_t)s.buf, is_quiet ? 16 : SIZE, s.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags}, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Polls for one completion; how many there were. */
static int take(enum ibv_wc_opcode *opcode)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(s.cq, 1, &wc);
	CHECK(n >= 0);
	if (n && wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s\n", wc.opcode & IBV_WC_RECV ? "receive" : "send", ibv_wc_status_str(wc.status));
		exit(1);
	}
	if (n)
		*opcode = wc.opcode;
	return n;
}

static void await(enum ibv_wc_opcode wanted, int count)
{
	enum ibv_wc_opcode opcode;
	while (count)
		if (take(&opcode))
			count -= opcode == wanted;
}

/* How the library's threads are scheduled from now on. */
static void schedule_the_library(int policy)
{
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *task; (task = readdir(tasks));) {
		int tid = atoi(task->d_name);
		struct sched_param none = {0};
		if (tid && tid != getpid())
			CHECK(!sched_setscheduler(tid, policy, &none));
	}
	closedir(tasks);
}

/* Everything on one processor, the library's thread behind all else. */
static void hold_up_the_library(int round)
{
	cpu_set_t all, one;
	CHECK(!sched_getaffinity(0, sizeof all, &all));
	int skip = round % CPU_COUNT(&all), cpu = 0;
	for (;; cpu++)
		if (CPU_ISSET(cpu, &all) && skip-- == 0)
			break;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *task; (task = readdir(tasks));)
		CHECK(!atoi(task->d_name) || !sched_setaffinity(atoi(task->d_name), sizeof one, &one));
	closedir(tasks);
	schedule_the_library(SCHED_IDLE);
}

static void receive(void)
{
	enum ibv_wc_opcode opcode;
	if (is_quiet) {
		for (int i = 0; i < TALK; i++) {
			post(s.qps[0], IBV_SEND_SIGNALED | IBV_SEND_INLINE);
			await(IBV_WC_RECV, 1);
		}
		return;
	}
	for (int left = QPS * EACH; left;) {
		if (!strcmp(how, "ninth")) {
			CHECK(!ibv_req_notify_cq(s.cq, 0));
			if (!take(&opcode)) {
				/* Not by ibv_get_cq_event, in which this thread would do the library's work. */
				struct pollfd fd = {s.channels[CHANNELS - 1]->fd, POLLIN, 0};
				CHECK(poll(&fd, 1, 20000) == 1);
				struct ibv_cq *cq;
				void *context;
				CHECK(!ibv_get_cq_event(s.channels[CHANNELS - 1], &cq, &context));
				ibv_ack_cq_events(cq, 1);
				continue;
			}
			left--;
		} else if (take(&opcode)) {
			left--;
		} else if (!strcmp(how, "nap")) {
			usleep(20);
		}
	}
}

static void leave(void)
{
	if (!strcmp(end, "exit")) {
		/* Which waits for the library's thread, but not for ever. */
		schedule_the_library(SCHED_OTHER);
		exit(0);
	}
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
		if (!strcmp(end, "reset"))
			CHECK(!ibv_modify_qp(s.qps[i], &reset, IBV_QP_STATE));
		else
			CHECK(!ibv_destroy_qp(s.qps[i]));
	}
	if (strcmp(end, "destroy"))
		_exit(0);
	CHECK(!ibv_destroy_srq(s.srq) && !ibv_destroy_cq(s.cq));
	for (int i = 0; i < CHANNELS; i++)
		CHECK(!s.channels[i] || !ibv_destroy_comp_channel(s.channels[i]));
	CHECK(!ibv_dereg_mr(s.mr) && !ibv_dealloc_pd(s.pd) && !ibv_close_device(s.ctx));
	exit(0);
}

static void client(const char *host, int port, int round)
{
	create(strcmp(how, "ninth") ? 0 : CHANNELS);
	create_qps();
	connect_qps(tcp_open(0, host, port));
	if (strcmp(how, "poll") && !is_quiet)
		hold_up_the_library(round);
	receive();
	leave();
}

/* Of unsignaled SENDs no completion tells; that the queue has drained does. */
static void await_drained(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD};
	struct ibv_qp_init_attr init;
	enum ibv_wc_opcode opcode;
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
	do {
		take(&opcode);
		CHECK(!ibv_query_qp(qp, &a, IBV_QP_STATE, &init) && a.qp_state == IBV_QPS_SQD);
	} while (a.sq_draining);
}

static void server(int listener)
{
	create_qps();
	int tcp = accept(listener, NULL, NULL);
	CHECK(tcp >= 0);
	connect_qps(tcp);
	if (is_quiet) {
		for (int i = 0; i < TALK; i++) {
			await(IBV_WC_RECV, 1);
			post(s.qps[0], IBV_SEND_INLINE);
		}
		/* Once it has left it has had the last one. */
		char c;
		CHECK(recv(tcp, &c, 1, 0) <= 0);
		await_drained(s.qps[0]);
	} else {
		for (int i = 0; i < QPS * EACH; i++)
			post(s.qps[i % QPS], IBV_SEND_SIGNALED);
		await(IBV_WC_SEND, QPS * EACH);
	}
	for (int i = 0; i < QPS; i++)
		CHECK(!ibv_destroy_qp(s.qps[i]));
	CHECK(!ibv_destroy_srq(s.srq));
	close(tcp);
}

int main(int argc, char **argv)
{
	CHECK(argc == 7);
	how = argv[4];
	end = argv[5];
	is_quiet = !strcmp(how, "quiet");
	alarm(100);
	if (!strcmp(argv[1], "server")) {
		struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
		int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		CHECK(!bind(listener, (void *)&a, sizeof a) && !listen(listener, 4));
		create(0);
		for (int i = 0; i < atoi(argv[6]); i++)
			server(listener);
		return 0;
	}
	for (int i = 0; i < atoi(argv[6]); i++) {
		pid_t child = fork();
		int status;
		if (child == 0)
			client(argv[2], atoi(argv[3]), i);
		CHECK(waitpid(child, &status, 0) == child);
		if (status) {
			fprintf(stderr, "round %d: the client ended with status %x\n", i, status);
			return 1;
		}
	}
	return 0;
}
