/* steady server|client HOST PORT poll|events|reads MS: ping-pong of checked messages until MS milliseconds after `running`, which
 * the client prints once traffic flows. At its end it prints `exchanges N, longest gap US us`: between two completions.
 * `events`: both sides sleep on the completion channel instead of polling. `reads`: RDMA READs instead of messages, and the server
 * sleeps until the end, in no call of verbs. */
#include "pair.h"

enum { SIZE = 1500, WARM = 50 };

static struct ibv_wc wait_wc(struct pair *p)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(p->cq, 1, &wc)) == 0) {
		if (!p->channel)
			continue;
		struct ibv_cq *cq;
		void *unused;
		CHECK(!ibv_get_cq_event(p->channel, &cq, &unused));
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(p->cq, 0));
	}
	CHECK(n == 1);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "wr_id %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

static void fill(unsigned char *b, unsigned n, int server, int last)
{
	for (int i = 4; i < SIZE; i++)
		b[i] = n * 7 + i * 3 + server;
	b[0] = n, b[1] = n >> 8, b[2] = n >> 16, b[3] = last;
}

/* The client's READs of what the server wrote there before. */
static void reads(struct pair *p, uint64_t limit)
{
	unsigned char *in = (unsigned char *)p->buf, *want = in + 2 * SIZE;
	uint64_t gap = 0, start = 0, before = 0, now = 0;
	unsigned n;
	fill(want, 0, 1, 0);
	for (n = 0; !start || now - start < limit; n++) {
		if (n == WARM) {
			start = before = now_ns();
			printf("running\n");
		}
		memset(in, 0, SIZE);
		CHECK(!post_op(p, IBV_WR_RDMA_READ, 0, SIZE, SIZE, 2));
		CHECK(wait_wc(p).wr_id == 2 && !memcmp(in, want, SIZE));
		now = now_ns();
		if (start) {
			gap = now - before > gap ? now - before : gap;
			before = now;
		}
	}
	printf("exchanges %u, longest gap %llu us\n", n, (unsigned long long)gap / 1000);
}

int main(int argc, char **argv)
{
	CHECK(argc == 6);
	int server = !strcmp(argv[1], "server"), events = !strcmp(argv[4], "events"), last = 0;
	uint64_t limit = strtoull(argv[5], NULL, 10) * 1000000, gap = 0, start = 0, before = 0;
	struct pair p = {0};
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(90);
	pair_create(&p, 3 * SIZE, 4);
	if (events)
		pair_add_channel(&p, 4);
	unsigned char *in = (unsigned char *)p.buf, *out = in + SIZE, *want = out + SIZE;
	unsigned n = 0;
	if (server && !strcmp(argv[4], "reads"))
		fill(out, 0, 1, 0);
	else
		post_recv(&p, 0, SIZE, 1);
	pair_connect(&p, server, argv[2], atoi(argv[3]));

	if (!strcmp(argv[4], "reads")) {
		if (!server)
			reads(&p, limit);
		tcp_sync(&p);
		pair_destroy(&p);
		return 0;
	}
	for (int sent = 1, got = 0; !last; n++) {
		if (!server) {
			uint64_t now = now_ns();
			if (n == WARM) {
				start = before = now;
				printf("running\n");
			}
			last = start && now - start > limit;
			fill(out, n, 0, last);
			CHECK(!post_op(&p, IBV_WR_SEND, SIZE, SIZE, 0, 2));
			sent = 0;
		}
		for (got = 0; !sent || !got;) {
			struct ibv_wc wc = wait_wc(&p);
			got |= wc.wr_id == 1;
			sent |= wc.wr_id == 2;
		}
		last = server ? in[3] : last;
		fill(want, n, !server, last);
		CHECK(!memcmp(in, want, SIZE));
		post_recv(&p, 0, SIZE, 1);
		if (server) {
			fill(out, n, 1, last);
			CHECK(!post_op(&p, IBV_WR_SEND, SIZE, SIZE, 0, 2));
			sent = 0;
			if (last)
				CHECK(wait_wc(&p).wr_id == 2);
		} else if (start) {
			uint64_t now = now_ns();
			gap = now - before > gap ? now - before : gap;
			before = now;
		}
	}
	if (!server)
		printf("exchanges %u, longest gap %llu us\n", n, (unsigned long long)gap / 1000);
	tcp_sync(&p);
	pair_destroy(&p);
	return 0;
}
