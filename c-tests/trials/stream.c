/* stream server|client HOST PORT MIB: RDMA WRITEs of that many MiB, 256 KiB each and four at a time, whose last carries an
 * immediate; the server looks at every byte. C_TESTS_TCLASS is the traffic class of the connection. The client prints what both have
 * counted of congestion, which is the same. */
#include "counting.h"

enum { CHUNK = 256 << 10, WINDOW = 4 };

static unsigned char byte_at(size_t i)
{
	return i * 7 + (i >> 8) * 3 + (i >> 16) * 5 + (i >> 24);
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	int server = !strcmp(argv[1], "server");
	size_t total = strtoul(argv[4], NULL, 10) << 20, chunks = total / CHUNK;
	struct pair p = {0};
	alarm(120);
	pair_create(&p, total, 2 * WINDOW);
	if (server)
		post_recv(&p, 0, 0, 1);
	for (size_t i = 0; !server && i < total; i++)
		p.buf[i] = byte_at(i);
	pair_connect(&p, server, argv[2], atoi(argv[3]));
	if (server) {
		CHECK(next_wc(&p, 90000).status == IBV_WC_SUCCESS);
		for (size_t i = 0; i < total; i++)
			if ((unsigned char)p.buf[i] != byte_at(i)) {
				fprintf(stderr, "byte %zu is wrong\n", i);
				exit(1);
			}
	} else {
		uint64_t before = now_ns();
		for (size_t sent = 0, done = 0; done < chunks; done++) {
			for (; sent < chunks && sent < done + WINDOW; sent++) {
				enum ibv_wr_opcode op = sent + 1 < chunks ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM;
				CHECK(!post_op(&p, op, sent * CHUNK, CHUNK, sent * CHUNK, sent));
			}
			CHECK(next_wc(&p, 60000).status == IBV_WC_SUCCESS);
		}
		printf("%zu bytes in %llu us\n", total, (unsigned long long)(now_ns() - before) / 1000);
	}
	tcp_sync(&p);
	look(p.qp, mine, &n_mine);
	tell(&p);
	if (!server) {
		uint64_t marked = their("hw_counters/np_ecn_marked_roce_packets"), sent = their("hw_counters/np_cnp_sent");
		uint64_t end = now_ns() + 5000000000ull;
		/* The last one may be on its way. */
		while (my("hw_counters/rp_cnp_handled") < sent && now_ns() < end) {
			CHECK(ibv_poll_cq(p.cq, 0, NULL) == 0);
			look(p.qp, mine, &n_mine);
		}
		is("CNPs handled", my("hw_counters/rp_cnp_handled"), sent);
		at_least("packets marked", marked, sent);
		is("CNPs of the client", my("hw_counters/np_cnp_sent") + their("hw_counters/rp_cnp_handled"), 0);
		printf("%llu of %llu packets marked, %llu CNPs\n", (unsigned long long)marked,
		       (unsigned long long)their("counters/port_rcv_packets"), (unsigned long long)sent);
	}
	tcp_sync(&p);
	pair_destroy(&p);
	return wrong;
}
