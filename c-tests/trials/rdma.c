/* rdma server|client HOST PORT: the client WRITEs and READs the server's memory at several sizes and offsets, adds to and swaps
 * a counter there, and sends; both compare every byte. The server's CPU does nothing but wait in between. */
#include "pair.h"

enum { LEN = 4 << 20, HALF = LEN / 2, COUNTER = LEN - 64 };
static const uint32_t sizes[] = {1, 8, 63, 4096, 4097, 65536, 1 << 20};

static unsigned char pattern(size_t i, unsigned seed)
{
	return (i * 31 + seed * 17 + (i >> 12)) & 0xff;
}

static void fill(char *buf, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = pattern(i, seed);
}

static void same(const char *buf, size_t len, unsigned seed, const char *what)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)buf[i] != pattern(i, seed)) {
			fprintf(stderr, "%s of %zu bytes: byte %zu differs\n", what, len, i);
			exit(1);
		}
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int server = !strcmp(argv[1], "server");
	struct pair p = {0};
	alarm(120);
	pair_create(&p, LEN, 16);
	pair_connect(&p, server, argv[2], atoi(argv[3]));
	for (unsigned k = 0; k < sizeof sizes / sizeof *sizes; k++) {
		uint32_t n = sizes[k], off = k * 13;
		if (server) {
			fill(p.buf + HALF + off, n, k + 100);
			tcp_sync(&p);
			tcp_sync(&p);
			same(p.buf + off, n, k, "WRITE");
			CHECK(p.buf[off + n] == 0);
			memset(p.buf, 0, HALF);
			post_recv(&p, 0, n, 1);
			tcp_sync(&p);
			struct ibv_wc wc = good_wc(&p);
			CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == n);
			same(p.buf, n, k, "SEND");
			memset(p.buf, 0, HALF);
			tcp_sync(&p);
			continue;
		}
		fill(p.buf, n, k);
		tcp_sync(&p);
		CHECK(!post_op(&p, IBV_WR_RDMA_WRITE, 0, n, off, 1));
		CHECK(good_wc(&p).opcode == IBV_WC_RDMA_WRITE);
		CHECK(!post_op(&p, IBV_WR_RDMA_READ, HALF, n, HALF + off, 2));
		CHECK(good_wc(&p).opcode == IBV_WC_RDMA_READ);
		same(p.buf + HALF, n, k + 100, "READ");
		tcp_sync(&p);
		tcp_sync(&p);
		CHECK(!post_op(&p, IBV_WR_SEND, 0, n, 0, 3));
		CHECK(good_wc(&p).opcode == IBV_WC_SEND);
		tcp_sync(&p);
	}
	if (!server) {
		struct ibv_sge s = {(uintptr_t)p.buf, 8, p.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &s, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
		for (uint64_t i = 0; i < 100; i++) {
			wr.opcode = i % 2 ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
			wr.wr.atomic.remote_addr = p.peer.addr + COUNTER;
			wr.wr.atomic.rkey = p.peer.rkey;
			wr.wr.atomic.compare_add = i % 2 ? i : 1;
			wr.wr.atomic.swap = i + 1;
			CHECK(!ibv_post_send(p.qp, &wr, &bad));
			good_wc(&p);
			CHECK(*(uint64_t *)p.buf == i);
		}
	}
	tcp_sync(&p);
	if (server)
		CHECK(*(uint64_t *)(p.buf + COUNTER) == 100);
	pair_destroy(&p);
	printf("ok\n");
	return 0;
}
