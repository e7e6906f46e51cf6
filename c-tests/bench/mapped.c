/* mapped REPETITIONS [MILLISECONDS]: WRITE into memory that both processes could map: an MR over a MAP_SHARED memfd, a buffer of
 * ibv_alloc_buf, device memory. For each, `WHAT_write8_ns`: 8 bytes one way, each side waiting for the other's bytes by looking at its
 * memory, as in ib_write_lat; and `WHAT_write1m_gbs`. Device memory is looked at by ibv_memcpy_from_dm. */
#include "two.h"

enum { DEPTH = 64, WINDOW = 16, LEN = 1 << 20, LAST = 1 << 30, EVERY = 32 };

enum kind { MEMFD, BUFFER, DEVICE, KINDS };
static const char *const names[KINDS] = {"memfd", "buffer", "dm"};

static enum kind kind;
static struct ibv_dm *dm;
static struct ibv_buf *buffer;
static uint64_t *at;
static int file;

/* Takes the place of the pair's MR for what the peer writes; `p.mr` stays for what we write from. */
static struct ibv_mr *target(void)
{
	struct ibv_alloc_dm_attr attr = {.length = LEN};
	struct ibv_mr *mr = NULL;
	if (kind == DEVICE) {
		CHECK(dm = ibv_alloc_dm(p.ctx, &attr));
		mr = ibv_reg_dm_mr(p.pd, dm, 0, LEN, REMOTE_ALL | IBV_ACCESS_ZERO_BASED);
	} else if (kind == BUFFER) {
		CHECK(at = ibv_alloc_buf(p.pd, LEN, &buffer));
		memset(at, 0, LEN);
		mr = ibv_reg_buf_mr(p.pd, buffer, at, LEN, REMOTE_ALL);
	} else {
		file = memfd_create("mapped", MFD_CLOEXEC);
		CHECK(file >= 0 && !ftruncate(file, LEN));
		at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		CHECK(at != MAP_FAILED);
		memset(at, 0, LEN);
		mr = ibv_reg_mr(p.pd, at, LEN, REMOTE_ALL);
	}
	CHECK(mr);
	p.me.rkey = mr->rkey;
	p.me.addr = kind == DEVICE ? 0 : (uintptr_t)at;
	return mr;
}

static void leave(struct ibv_mr *mr)
{
	tcp_sync(&p);
	CHECK(!ibv_dereg_mr(mr));
	if (kind == DEVICE)
		CHECK(!ibv_free_dm(dm));
	else if (kind == BUFFER)
		ibv_free_buf(buffer);
	else
		munmap(at, LEN), close(file);
	done();
}

static uint64_t look(void)
{
	uint64_t value;
	if (kind != DEVICE)
		return *(volatile uint64_t *)at;
	CHECK(!ibv_memcpy_from_dm(&value, dm, 0, sizeof value));
	return value;
}

static void write8(uint64_t value, int signaled)
{
	*(volatile uint64_t *)p.buf = value;
	struct ibv_sge s = {(uintptr_t)p.buf, sizeof value, p.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {p.peer.addr, p.peer.rkey},
				 .send_flags = IBV_SEND_INLINE | (signaled ? IBV_SEND_SIGNALED : 0)}, *bad;
	CHECK(!ibv_post_send(p.qp, &wr, &bad));
}

static void latency(int driver)
{
	char name[32];
	uint64_t n = 0;
	snprintf(name, sizeof name, "%s_write8_ns", names[kind]);
	if (driver) {
		double ns = TIMED(64, {
			n++;
			write8(n, n % EVERY == 0);
			if (n % EVERY == 0)
				wait_wc();
			while (look() != n)
				;
		});
		say(name, ns / 2);
		write8(LAST, 1);
		wait_wc();
		return;
	}
	for (uint64_t got; (got = look()) != LAST;) {
		if (got != n + 1)
			continue;
		n = got;
		write8(n, n % EVERY == 0);
		if (n % EVERY == 0)
			wait_wc();
	}
}

static void bandwidth(void)
{
	char name[32];
	int out = 0;
	double ns = TIMED(WINDOW, {
		if (out == WINDOW) {
			wait_wc();
			out--;
		}
		CHECK(!post_op(&p, IBV_WR_RDMA_WRITE, 0, LEN, 0, 1));
		out++;
	});
	for (; out; out--)
		wait_wc();
	snprintf(name, sizeof name, "%s_write1m_gbs", names[kind]);
	say(name, LEN / ns);
}

static void measure(int driver)
{
	memset(&p, 0, sizeof p);
	pair_create(&p, LEN, DEPTH);
	memset(p.buf, 1, LEN);
	struct ibv_mr *mr = target();
	meet();
	tcp_sync(&p);
	latency(driver);
	tcp_sync(&p);
	if (driver)
		bandwidth();
	leave(mr);
}

int main(int argc, char **argv)
{
	int driver = two_begin(argc, argv);
	for (int i = 0; i < repetitions; i++)
		for (kind = 0; kind < KINDS; kind++)
			measure(driver);
	return two_end(driver);
}
