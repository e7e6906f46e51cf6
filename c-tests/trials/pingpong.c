/* pingpong -g INDEX [-c] [-p PORT] [-s SIZE] [-n ITERATIONS] [HOST]: RC SENDs back and forth, for machines without ibverbs-utils.
 * Takes what ibv_rc_pingpong calls these options, and ends with the same two lines. */
#include "pair.h"

int main(int argc, char **argv)
{
	int port = 18515, size = 4096, iters = 1000, check = 0, o;
	while ((o = getopt(argc, argv, "g:cp:s:n:")) != -1) {
		switch (o) {
		case 'g': break;
		case 'c': check = 1; break;
		case 'p': port = atoi(optarg); break;
		case 's': size = atoi(optarg); break;
		case 'n': iters = atoi(optarg); break;
		default: return 1;
		}
	}
	int client = optind < argc;
	struct pair p = {0};
	CHECK(size > 0 && iters > 0);
	alarm(120);
	pair_create(&p, 2 * (size_t)size, 8);
	post_recv(&p, size, size, 1);
	pair_connect(&p, !client, client ? argv[optind] : "127.0.0.1", port);
	printf("  local  QPN 0x%06x, PSN 0x%06x\n  remote QPN 0x%06x, PSN 0x%06x\n", p.me.qpn, p.me.psn, p.peer.qpn, p.peer.psn);
	uint64_t begin = now_ns();
	int sent = 0, got = 0;
	if (client)
		CHECK(!post_op(&p, IBV_WR_SEND, 0, size, 0, 2));
	while (sent < iters || got < iters) {
		if (good_wc(&p).wr_id == 2) {
			sent++;
			continue;
		}
		for (int b = 0; check && b < size; b += 512)
			if (p.buf[size + b] != (char)got)
				printf("invalid data at byte %d of message %d\n", b, got);
		got++;
		if (got < iters)
			post_recv(&p, size, size, 1);
		/* The server answers with the number it got, the client goes on with the next. */
		memset(p.buf, client ? got : got - 1, size);
		if (!client || got < iters)
			CHECK(!post_op(&p, IBV_WR_SEND, 0, size, 0, 2));
	}
	double usec = (now_ns() - begin) / 1e3;
	long long bytes = (long long)size * iters * 2;
	printf("%lld bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, usec / 1e6, bytes * 8. / usec);
	printf("%d iters in %.2f seconds = %.2f usec/iter\n", iters, usec / 1e6, usec / iters);
	tcp_sync(&p);
	pair_destroy(&p);
	return 0;
}
