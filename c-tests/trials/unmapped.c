/* unmapped server|client HOST PORT read|write|send[-own]: the server unmaps memory that is registered, the client then reads or writes it
 * (remote access error), or sends into it (remote operational error, and a local protection error there). `-own`: the client
 * unmaps what it reads into, writes from or sends (local protection error, and the server sees nothing). Nobody crashes. */
#include "pair.h"

enum { LEN = 1 << 16 };

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	int server = !strcmp(argv[1], "server"), rd = !strncmp(argv[4], "read", 4), snd = !strncmp(argv[4], "send", 4);
	int own = !!strchr(argv[4], '-');
	struct pair p = {0};
	alarm(60);
	pair_create(&p, LEN, 16);
	if (server && snd)
		post_recv(&p, 0, LEN, 1);
	pair_connect(&p, server, argv[2], atoi(argv[3]));
	if (server) {
		CHECK(own || !munmap(p.buf, LEN));
		tcp_sync(&p);
		tcp_sync(&p);
		struct ibv_wc none;
		if (own)
			CHECK(!ibv_poll_cq(p.cq, 1, &none));
		else if (snd) {
			struct ibv_wc wc = next_wc(&p, 5000);
			printf("receiver: %s\n", ibv_wc_status_str(wc.status));
			CHECK(wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR);
		}
	} else {
		CHECK(!own || !munmap(p.buf, LEN));
		tcp_sync(&p);
		CHECK(!post_op(&p, snd ? IBV_WR_SEND : rd ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, 4096, 8192, 7));
		struct ibv_wc wc = next_wc(&p, 5000);
		printf("sender: %s\n", ibv_wc_status_str(wc.status));
		CHECK(wc.wr_id == 7);
		CHECK(wc.status == (own ? IBV_WC_LOC_PROT_ERR : snd ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR));
		tcp_sync(&p);
	}
	pair_destroy(&p);
	return 0;
}
