/* Opens the first device and, asked for "rc" or "ud", makes a PD, an MR, a CQ and a QP, posts, and destroys all; "gone" behind that has the
 * device taken away before. Says what each call gave, without what differs from run to run. Knows the public interface only. */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *pointer(const void *made)
{
	return made ? "made" : strerrorname_np(errno);
}

static const char *code(int rc)
{
	return rc == 0 ? "0" : rc < 0 ? strerrorname_np(errno) : strerrorname_np(rc);
}

/* To RTS, or for UD with a Q_Key. */
static void move(struct ibv_qp *qp, int state, int mask)
{
	struct ibv_qp_attr attr = {
		.qp_state = state,
		.pkey_index = 0,
		.port_num = 1,
		.qkey = 0x11111111,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.ah_attr = {.dlid = 1, .port_num = 1},
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = 0x1234,
		.rq_psn = 1,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.sq_psn = 1,
		.max_rd_atomic = 1,
	};

	int rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);

	printf("to state %d: %s, is %d\n", state, code(rc), qp->state);
}

/* The device goes: what its context is told, and what calls give then. */
static void unplug(struct ibv_context *context, struct ibv_pd *pd, struct ibv_qp *qp)
{
	void (*scripted_unplug)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "scripted_unplug");
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_async_event event;
	struct ibv_port_attr port;
	static char more[64];

	if (!scripted_unplug)
		exit(1);
	scripted_unplug();
	printf("event: %s", code(ibv_get_async_event(context, &event)));
	printf(" %s\n", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
	printf("port: %s", code(ibv_query_port(context, 1, &port)));
	printf(", pd %s", pointer(ibv_alloc_pd(context)));
	printf(", mr %s", pointer(ibv_reg_mr(pd, more, sizeof(more), 0)));
	printf(", cq %s", pointer(ibv_create_cq(context, 16, NULL, NULL, 0)));
	printf(", to state 6: %s\n", code(ibv_modify_qp(qp, &attr, IBV_QP_STATE)));
}

static void objects(struct ibv_context *context, enum ibv_qp_type type, int gone)
{
	static char buffer[8192];
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_wc wc;

	printf("pd %s\n", pointer(pd));
	if (!pd)
		exit(1);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	printf("mr %s", pointer(mr));
	if (!mr)
		exit(1);
	printf(" lkey %#x rkey %#x length %zu\n", mr->lkey, mr->rkey, mr->length);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	printf("cq %s", pointer(cq));
	if (!cq)
		exit(1);
	printf(" cqe %d\n", cq->cqe);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
	qp = ibv_create_qp(pd, &init);
	printf("qp %s", pointer(qp));
	if (!qp)
		exit(1);
	printf(" %#x state %d type %d sends %u receives %u\n", qp->qp_num, qp->state, qp->qp_type, init.cap.max_send_wr,
	       init.cap.max_recv_wr);
	if (type == IBV_QPT_RC) {
		move(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		move(qp, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					      IBV_QP_MIN_RNR_TIMER);
		move(qp, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC);
	} else {
		move(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
		move(qp, IBV_QPS_RTR, 0);
		move(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN);
	}
	struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = 64, .lkey = mr->lkey};
	struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad_receive;
	struct ibv_send_wr send = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;

	printf("receive posted: %s\n", code(ibv_post_recv(qp, &receive, &bad_receive)));
	if (type == IBV_QPT_RC)
		printf("send posted: %s\n", code(ibv_post_send(qp, &send, &bad_send)));
	printf("polled: %d\n", ibv_poll_cq(cq, 1, &wc));
	if (gone)
		unplug(context, pd, qp);
	printf("destroyed: qp %s", code(ibv_destroy_qp(qp)));
	printf(", cq %s", code(ibv_destroy_cq(cq)));
	printf(", mr %s", code(ibv_dereg_mr(mr)));
	printf(", pd %s\n", code(ibv_dealloc_pd(pd)));
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;

	setvbuf(stdout, NULL, _IONBF, 0);
	if (!list || !list[0]) {
		printf("no device\n");
		return 1;
	}
	printf("device %s, node %s, type %d, transport %d\n", ibv_get_device_name(list[0]), list[0]->dev_name, list[0]->node_type,
	       list[0]->transport_type);
	context = ibv_open_device(list[0]);
	printf("context %s\n", pointer(context));
	if (!context)
		return argc > 1;
	printf("vectors %d\n", context->num_comp_vectors);
	printf("query: %s", code(ibv_query_device(context, &attr)));
	printf(" max_qp %d max_sge %d firmware %s\n", attr.max_qp, attr.max_sge, attr.fw_ver);
	printf("port: %s", code(ibv_query_port(context, 1, &port)));
	printf(" state %d mtu %d layer %d\n", port.state, port.active_mtu, port.link_layer);
	if (argc > 1)
		objects(context, !strcmp(argv[1], "ud") ? IBV_QPT_UD : IBV_QPT_RC, argc > 2);
	printf("closed: %s\n", code(ibv_close_device(context)));
	ibv_free_device_list(list);
	return 0;
}
