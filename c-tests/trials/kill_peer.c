/* kill_peer server|client HOST PORT [fork|events]: sends, receives and writes outstanding in both directions until the peer dies.
 * Prints `running` once traffic flows; when the peer is gone `noticed NS` (CLOCK_MONOTONIC), after everything is destroyed
 * `destroyed NS`, and exits with 0. `fork`: a child that has inherited everything stays alive after us for a while.
 * `events`: sleeps on the completion channel instead of polling. */
#include "pair.h"

enum { DEPTH = 16, SIZE = 16384 };

int main(int argc, char **argv)
{
	CHECK(argc >= 4);
	int server = !strcmp(argv[1], "server"), events = argc > 4 && !strcmp(argv[4], "events");
	struct pair p = {0};
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	pair_create(&p, (size_t)3 * DEPTH * SIZE, 2 * DEPTH);
	if (events)
		pair_add_channel(&p, 2 * DEPTH);
	for (int i = 0; i < DEPTH; i++)
		post_recv(&p, (size_t)i * SIZE, SIZE, i);
	pair_connect(&p, server, argv[2], atoi(argv[3]));

	if (argc > 4 && !strcmp(argv[4], "fork") && !fork()) {
		/* Not _exit: everything inherited stays open for as long as this lives. */
		for (int i = 0; i < 50 && getppid() != 1; i++)
			usleep(100000);
		sleep(3);
		_exit(0);
	}
	for (int i = 0; i < DEPTH; i++)
		CHECK(!post_op(&p, i % 4 == 3 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, (size_t)(DEPTH + i) * SIZE, SIZE,
			       (size_t)2 * DEPTH * SIZE, 100 + i));
	unsigned long received = 0, errors = 0, acked = 0;
	while (!errors) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(p.cq, 1, &wc);
		CHECK(n >= 0);
		if (!n && events) {
			struct ibv_cq *cq;
			void *unused;
			CHECK(!ibv_get_cq_event(p.channel, &cq, &unused));
			acked++;
			CHECK(!ibv_req_notify_cq(p.cq, 0));
		}
		if (!n)
			continue;
		if (wc.status != IBV_WC_SUCCESS) {
			errors++;
		} else if (wc.wr_id < 100) {
			post_recv(&p, wc.wr_id * SIZE, SIZE, wc.wr_id);
			if (++received == 4 * DEPTH)
				printf("running\n");
		} else {
			int i = wc.wr_id - 100;
			CHECK(!post_op(&p, i % 4 == 3 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, (size_t)(DEPTH + i) * SIZE, SIZE,
				       (size_t)2 * DEPTH * SIZE, wc.wr_id));
		}
	}
	printf("noticed %llu\n", (unsigned long long)now_ns());
	/* DEPTH sends and DEPTH receives were outstanding; one has been polled, the others all complete. */
	for (int i = 1; i < 2 * DEPTH; i++)
		next_wc(&p, 2000);
	if (acked)
		ibv_ack_cq_events(p.cq, acked);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(p.qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_ERR);
	struct ibv_async_event ev;
	CHECK(!ibv_get_async_event(p.ctx, &ev));
	CHECK(ev.event_type == IBV_EVENT_QP_FATAL && ev.element.qp == p.qp);
	ibv_ack_async_event(&ev);
	pair_destroy(&p);
	printf("destroyed %llu\n", (unsigned long long)now_ns());
	return 0;
}
