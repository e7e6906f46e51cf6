/* shareable server|client HOST PORT WHERE WHAT: the client writes and reads memory of the server that both could map: WHERE is memfd, sealed
 * (a memfd that cannot shrink), shm, buffer (ibv_alloc_buf), dm (ibv_alloc_dm), or private for comparison. WHAT happens meanwhile: */
#include "pair.h"
#include <fcntl.h>

enum { LEN = 1 << 18, HALF = LEN / 2, PIECE = 4096, WARM = 2000, ROUNDS = 10 };

static struct pair p;
static const char *where, *what;
static struct ibv_mr *target;
static struct ibv_buf *buffer;
static struct ibv_dm *dm;
static char *at, copy[LEN];
static int file = -1;

static int is(const char *a, const char *b)
{
	return !strcmp(a, b);
}

/* The server's memory as it is now. */
static volatile char *look(void)
{
	if (!dm)
		return at;
	CHECK(!ibv_memcpy_from_dm(copy, dm, 0, LEN));
	return copy;
}

static void set(int value)
{
	if (!dm) {
		memset(at, value, LEN);
		return;
	}
	memset(copy, value, LEN);
	CHECK(!ibv_memcpy_to_dm(dm, 0, copy, LEN));
}

/* The bytes from `from` to `to` are all `value`. */
static int all(int from, int to, int value)
{
	volatile char *now = look();
	while (from < to && now[from] == (char)value)
		from++;
	return from == to;
}

static int new_file(void)
{
	char name[64];
	int fd;
	if (is(where, "shm")) {
		snprintf(name, sizeof name, "/anyverbs-%d-%llu", getpid(), (unsigned long long)now_ns());
		fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
		CHECK(fd >= 0 && !shm_unlink(name));
	} else {
		fd = memfd_create("shareable", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	}
	CHECK(fd >= 0 && !ftruncate(fd, LEN));
	if (is(where, "sealed"))
		CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	return fd;
}

static void allocate(void)
{
	struct ibv_alloc_dm_attr attr = {.length = LEN};
	if (is(where, "dm")) {
		CHECK(dm = ibv_alloc_dm(p.ctx, &attr));
	} else if (is(where, "buffer")) {
		CHECK(at = ibv_alloc_buf(p.pd, LEN, &buffer));
	} else {
		int flags = MAP_PRIVATE | MAP_ANONYMOUS;
		if (!is(where, "private"))
			file = new_file(), flags = MAP_SHARED;
		at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags, file, 0);
		CHECK(at != MAP_FAILED);
	}
	set(0);
}

static void let_go(void)
{
	if (dm)
		CHECK(!ibv_free_dm(dm));
	else if (buffer)
		ibv_free_buf(buffer);
	else if (at)
		CHECK(!munmap(at, LEN));
	if (file >= 0)
		close(file);
}

static void show(struct ibv_mr *mr, uint64_t addr)
{
	p.me.rkey = mr->rkey;
	p.me.addr = addr;
}

static void enter(int access)
{
	if (dm)
		CHECK(target = ibv_reg_dm_mr(p.pd, dm, 0, LEN, REMOTE_ALL | access | IBV_ACCESS_ZERO_BASED));
	else
		CHECK(target = ibv_reg_mr(p.pd, at, LEN, REMOTE_ALL | access));
	show(target, dm ? 0 : (uintptr_t)at);
}

/* What is registered now, told by the server to the client. */
static void agree(void)
{
	if (p.server)
		tcp_all(p.tcp, &p.me, sizeof p.me, 1);
	else
		tcp_all(p.tcp, &p.peer, sizeof p.peer, 0);
}

static void connect_anew(void)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct ibv_wc wc;
	CHECK(!ibv_modify_qp(p.qp, &reset, IBV_QP_STATE));
	while (ibv_poll_cq(p.cq, 1, &wc) > 0)
		;
	qp_init(p.qp);
	tcp_sync(&p);
	qp_rts(p.qp, &p.me, &p.peer);
	tcp_sync(&p);
}

/* One WRITE or READ, to its end. */
static enum ibv_wc_status one(enum ibv_wr_opcode op, size_t off, uint32_t len, size_t roff)
{
	CHECK(!post_op(&p, op, off, len, roff, 1));
	return next_wc(&p, 20000).status;
}

static void good(enum ibv_wr_opcode op, size_t off, uint32_t len, size_t roff)
{
	enum ibv_wc_status status = one(op, off, len, roff);
	if (status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(status));
		exit(1);
	}
}

/* Client: enough for whatever makes access faster to be in place. */
static void warm(size_t roff)
{
	for (int i = 0; i < WARM; i++)
		good(i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, 8, roff);
}

/* Client: WRITEs until one fails, or for two seconds. */
static enum ibv_wc_status write_on(size_t roff)
{
	uint64_t end = now_ns() + 2000000000ull;
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	memset(p.buf, 1, PIECE);
	while (status == IBV_WC_SUCCESS && now_ns() < end)
		status = one(IBV_WR_RDMA_WRITE, 0, PIECE, roff);
	return status;
}

/* Server: the client has begun. */
static void wait_for_writes(int from)
{
	while (!look()[from])
		;
}

static void refused(enum ibv_wc_status status)
{
	printf("client: %s\n", ibv_wc_status_str(status));
	CHECK(status == IBV_WC_REM_ACCESS_ERR);
}

/* data: every byte, of many lengths at odd places, and nothing beside them; READs and atomics see the same. */
static void data(void)
{
	static const int sizes[] = {1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 127, 1000, 4096, 65536, 100001};
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int n = sizes[i], from = 1001 + i;
		if (p.server) {
			set(0x55);
			tcp_sync(&p);
			tcp_sync(&p);
			volatile char *now = look();
			for (int k = 0; k < LEN; k++)
				CHECK(now[k] == (k < from || k >= from + n ? 0x55 : (char)(k * 7 + i)));
		} else {
			tcp_sync(&p);
			for (int k = 0; k < n; k++)
				p.buf[k] = (from + k) * 7 + i;
			good(IBV_WR_RDMA_WRITE, 0, n, from);
			memset(p.buf, 0, n);
			good(IBV_WR_RDMA_READ, 0, n, from);
			for (int k = 0; k < n; k++)
				CHECK(p.buf[k] == (char)((from + k) * 7 + i));
			tcp_sync(&p);
		}
	}
	uint64_t sum;
	if (p.server) {
		set(0);
		tcp_sync(&p);
		tcp_sync(&p);
		memcpy(&sum, (char *)look() + 64, 8);
		CHECK(sum == 1000);
		return;
	}
	tcp_sync(&p);
	for (int i = 0; i < 1000; i++) {
		struct ibv_sge s = {(uintptr_t)p.buf, 8, p.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
					 .wr.atomic = {.remote_addr = p.peer.addr + 64, .compare_add = 1, .rkey = p.peer.rkey}}, *bad;
		CHECK(!ibv_post_send(p.qp, &wr, &bad));
		CHECK(good_wc(&p).opcode == IBV_WC_FETCH_ADD && *(uint64_t *)p.buf == (unsigned)i);
		good(IBV_WR_RDMA_READ, 0, 8, 64);
		CHECK(*(uint64_t *)p.buf == i + 1u);
	}
	tcp_sync(&p);
}

/* last: who waits for the last byte of a WRITE finds the others, and who waits for a second WRITE finds the first. */
static void last(void)
{
	static const int sizes[] = {2, 8, 16, 24, 64, 100, 1000, 4096, 70000};
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int round = 1; round < 60; round++) {
			int n = sizes[i];
			if (p.server) {
				while (look()[n - 1] != (char)round)
					;
				CHECK(all(0, n, round));
				while (look()[HALF] != (char)round)
					;
				CHECK(all(HALF - 8, HALF + 1, round));
			} else {
				memset(p.buf, round, n);
				good(IBV_WR_RDMA_WRITE, 0, n, 0);
				CHECK(!post_op(&p, IBV_WR_RDMA_WRITE, 0, 1, HALF - 8, 1));
				for (int k = 1; k <= 8; k++)
					CHECK(!post_op(&p, IBV_WR_RDMA_WRITE, 0, 1, HALF - 8 + k, 1));
				for (int k = 0; k <= 8; k++)
					good_wc(&p);
			}
			tcp_sync(&p);
		}
}

/* dereg: when ibv_dereg_mr has returned, nothing is written any more. */
static void dereg(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		if (p.server) {
			if (i)
				enter(0);
			set(0);
			agree();
			wait_for_writes(0);
			CHECK(!ibv_dereg_mr(target));
			set(0);
			tcp_sync(&p);
			CHECK(all(0, LEN, 0));
		} else {
			agree();
			refused(write_on(0));
			tcp_sync(&p);
		}
		connect_anew();
	}
	if (p.server)
		enter(0);
}

/* rereg: when ibv_rereg_mr has returned, what the region was is not written any more, and what it is now is. */
static void rereg(void)
{
	if (p.server) {
		wait_for_writes(0);
		CHECK(!ibv_rereg_mr(target, IBV_REREG_MR_CHANGE_TRANSLATION, p.pd, at + HALF, HALF, 0));
		set(0);
		tcp_sync(&p);
		CHECK(all(0, LEN, 0));
		connect_anew();
		show(target, (uintptr_t)at + HALF);
		agree();
		tcp_sync(&p);
		CHECK(all(0, HALF, 0) && all(HALF, HALF + 8, 1));
		return;
	}
	refused(write_on(0));
	tcp_sync(&p);
	connect_anew();
	agree();
	warm(0);
	tcp_sync(&p);
}

/* truncate: a file that is made shorter under a region ends nobody, neither who writes there nor whose it is. */
static void truncate_it(void)
{
	if (p.server) {
		wait_for_writes(HALF);
		CHECK(!ftruncate(file, PIECE));
		tcp_sync(&p);
	} else {
		refused(write_on(HALF));
		tcp_sync(&p);
	}
}

/* unmap: a region that is unmapped is there still or gives an error. */
static void unmap(void)
{
	if (p.server) {
		wait_for_writes(0);
		CHECK(!munmap(at, LEN));
		at = NULL;
		tcp_sync(&p);
		return;
	}
	enum ibv_wc_status status = write_on(0);
	printf("client: %s\n", ibv_wc_status_str(status));
	CHECK(status == IBV_WC_SUCCESS || status == IBV_WC_REM_ACCESS_ERR);
	tcp_sync(&p);
}

/* kill: WRITEs to a process that is gone fail, though its memory may be there still. */
static void killed(void)
{
	if (p.server) {
		wait_for_writes(0);
		raise(SIGKILL);
	}
	uint64_t end = now_ns() + 5000000000ull;
	enum ibv_wc_status status;
	while ((status = write_on(0)) == IBV_WC_SUCCESS)
		CHECK(now_ns() < end);
	printf("client: %s\n", ibv_wc_status_str(status));
	CHECK(status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR);
}

/* window: a window shows its part and no more, and nothing once it is invalidated. */
static void window(void)
{
	struct ibv_mw *mw = NULL;
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
	if (p.server) {
		CHECK(!ibv_dereg_mr(target));
		enter(IBV_ACCESS_MW_BIND);
		CHECK(mw = ibv_alloc_mw(p.pd, IBV_MW_TYPE_2));
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.bind_info.mr = target;
		wr.bind_mw.bind_info.addr = (uintptr_t)at + PIECE;
		wr.bind_mw.bind_info.length = 2 * PIECE;
		wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
		CHECK(!ibv_post_send(p.qp, &wr, &bad));
		good_wc(&p);
		p.me.rkey = wr.bind_mw.rkey;
		p.me.addr = (uintptr_t)at;
		agree();
		wait_for_writes(2 * PIECE);
		wr.opcode = IBV_WR_LOCAL_INV;
		wr.invalidate_rkey = p.me.rkey;
		CHECK(!ibv_post_send(p.qp, &wr, &bad));
		good_wc(&p);
		set(0);
		tcp_sync(&p);
		CHECK(all(0, LEN, 0));
		connect_anew();
		CHECK(!ibv_dealloc_mw(mw));
		tcp_sync(&p);
		return;
	}
	agree();
	warm(PIECE);
	refused(write_on(2 * PIECE));
	tcp_sync(&p);
	connect_anew();
	tcp_sync(&p);
}

/* beyond: what lies before and behind the region is out of reach. */
static void beyond(void)
{
	if (!p.server) {
		static const size_t places[] = {LEN - PIECE + 1, LEN, (size_t)-1, (size_t)1 << 40};
		for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
			warm(LEN - 8);
			refused(one(IBV_WR_RDMA_WRITE, 0, PIECE, places[i]));
			tcp_sync(&p);
			connect_anew();
		}
		return;
	}
	for (int i = 0; i < 4; i++) {
		tcp_sync(&p);
		connect_anew();
	}
}

/* odp: a region that is paged on demand is what is mapped there now. */
static void on_demand(void)
{
	if (!p.server) {
		agree();
		warm(0);
		tcp_sync(&p);
		tcp_sync(&p);
		memset(p.buf, 7, PIECE);
		good(IBV_WR_RDMA_WRITE, 0, PIECE, 0);
		tcp_sync(&p);
		return;
	}
	CHECK(!ibv_dereg_mr(target));
	enter(IBV_ACCESS_ON_DEMAND);
	agree();
	tcp_sync(&p);
	int other = new_file();
	CHECK(mmap(at, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, other, 0) == at);
	close(other);
	tcp_sync(&p);
	tcp_sync(&p);
	CHECK(all(0, PIECE, 7));
}

/* child: a child of the owner has the memory, and its end changes nothing. */
static void child(void)
{
	if (!p.server) {
		warm(0);
		tcp_sync(&p);
		tcp_sync(&p);
		memset(p.buf, 9, PIECE);
		good(IBV_WR_RDMA_WRITE, 0, PIECE, 0);
		tcp_sync(&p);
		return;
	}
	int status = -1;
	tcp_sync(&p);
	pid_t pid = fork();
	if (!pid) {
		memset(at, 3, LEN);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(!status);
	tcp_sync(&p);
	tcp_sync(&p);
	CHECK(all(0, PIECE, 9));
}

static const struct {
	const char *name;
	void (*run)(void);
} things[] = {{"data", data}, {"last", last}, {"dereg", dereg}, {"rereg", rereg}, {"truncate", truncate_it}, {"unmap", unmap},
	      {"kill", killed}, {"window", window}, {"beyond", beyond}, {"odp", on_demand}, {"child", child}};

/* A server that is to be killed is a child of the one that tells how it went. */
static void stand_in(void)
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		return;
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	exit(0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 6);
	int server = is(argv[1], "server");
	where = argv[4];
	what = argv[5];
	alarm(60);
	if (server && is(what, "kill"))
		stand_in();
	pair_create(&p, LEN, 16);
	if (server) {
		allocate();
		enter(0);
	}
	pair_connect(&p, server, argv[2], atoi(argv[3]));
	unsigned i = 0;
	while (i < sizeof things / sizeof *things && !is(things[i].name, what))
		i++;
	CHECK(i < sizeof things / sizeof *things);
	things[i].run();
	if (server) {
		CHECK(!ibv_dereg_mr(target));
		let_go();
	}
	pair_destroy(&p);
	return 0;
}
