/* order server|client HOST PORT ROUNDS: a SEND and then an RDMA WRITE to the same bytes end with the WRITE's bytes.
 * `order loop - - ROUNDS` does the same between two QPs of one process. */
#include "pair.h"

enum { MAX = 65536, MARK = 3 * MAX, LEN = 4 * MAX };
static const uint32_t sizes[] = {8, 256, 4096, 5000, MAX};

static void check_bytes(const char *buf, uint32_t size, int want, int round)
{
	for (uint32_t i = 0; i < size; i++)
		if (buf[i] != (char)want) {
			fprintf(stderr, "round %d, %u bytes: byte %u is 0x%02x, not the WRITE's 0x%02x\n", round, size, i,
				buf[i] & 0xff, want);
			exit(1);
		}
}

/* Layout of a buffer: [0, MAX) target of both, [MAX, 2 MAX) source of the SEND, [2 MAX, 3 MAX) of the WRITE, MARK the mark. */
static void initiate(struct pair *p, int rounds)
{
	for (int r = 0; r < rounds; r++) {
		uint32_t size = sizes[r % 5];
		int several = r % 3;
		memset(p->buf + MAX, 0x40 | (r & 15), size);
		memset(p->buf + 2 * MAX, 0x80 | (r & 15), size);
		post_recv(p, MARK + 64, 64, 1);
		CHECK(!post_op(p, IBV_WR_SEND, MAX, size, 0, 10));
		/* Sometimes let the SEND be acknowledged first, sometimes put more WRITEs behind it. */
		if (several == 1)
			good_wc(p);
		for (int i = 0; i <= several; i++)
			CHECK(!post_op(p, IBV_WR_RDMA_WRITE, 2 * MAX, size, 0, 11));
		CHECK(!post_op(p, IBV_WR_SEND, MARK, 64, 0, 12));
		for (int left = (several != 1) + several + 1 + 1 + 1; left; left--)
			good_wc(p);
	}
}

static void respond(struct pair *p, int rounds)
{
	post_recv(p, 0, MAX, 2);
	post_recv(p, MARK + 128, 64, 3);
	tcp_sync(p);
	for (int r = 0; r < rounds; r++) {
		/* Completions of the SEND's receive and of earlier replies come in between. */
		while (good_wc(p).wr_id != 3)
			;
		check_bytes(p->buf, sizes[r % 5], 0x80 | (r & 15), r);
		post_recv(p, 0, MAX, 2);
		post_recv(p, MARK + 128, 64, 3);
		CHECK(!post_op(p, IBV_WR_SEND, MARK, 64, 0, 13));
	}
}

static void *respond_thread(void *arg)
{
	struct pair *p = arg;
	respond(p, p->me.pad);
	return NULL;
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	int rounds = atoi(argv[4]);
	alarm(300);
	struct pair p = {0};
	pair_create(&p, LEN, 16);
	if (strcmp(argv[1], "loop")) {
		int server = !strcmp(argv[1], "server");
		pair_connect(&p, server, argv[2], atoi(argv[3]));
		if (server) {
			respond(&p, rounds);
		} else {
			tcp_sync(&p);
			initiate(&p, rounds);
		}
		tcp_sync(&p);
	} else {
		struct pair q = {0};
		pthread_t t;
		int fds[2];
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
		pair_create(&q, LEN, 16);
		p.tcp = fds[0];
		q.tcp = fds[1];
		p.peer = q.me;
		q.peer = p.me;
		qp_rts(p.qp, &p.me, &p.peer);
		qp_rts(q.qp, &q.me, &q.peer);
		q.me.pad = rounds;
		CHECK(!pthread_create(&t, NULL, respond_thread, &q));
		tcp_sync(&p);
		initiate(&p, rounds);
		CHECK(!pthread_join(t, NULL));
		pair_destroy(&q);
	}
	pair_destroy(&p);
	printf("%d rounds in order\n", rounds);
	return 0;
}
