/* The commands of uverbs as far as it takes to open a device and to make a PD, an MR, a CQ and a QP. Each is noted: object, method, and
 * of each attribute the id and the length. */
#include "double.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Whether the device was taken away, and where its asynchronous events are written. */
static int gone, events = -1;

/* What a program calls: from now on every command fails, and the context is told. */
void scripted_unplug(void)
{
	const struct ib_uverbs_async_event_desc event = {.event_type = 8 /* IBV_EVENT_DEVICE_FATAL */};

	gone = 1;
	note("the device is gone");
	if (write(events, &event, sizeof(event)) != sizeof(event))
		_exit(9);
}

/* The end that the context reads. */
static int event_channel(void)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	events = ends[1];
	return ends[0];
}

static struct ib_uverbs_attr *find(struct ib_uverbs_ioctl_hdr *hdr, unsigned id)
{
	for (unsigned i = 0; i < hdr->num_attrs; i++)
		if (hdr->attrs[i].attr_id == id)
			return &hdr->attrs[i];
	return NULL;
}

static void *address(const struct ib_uverbs_attr *attr)
{
	return (void *)(uintptr_t)attr->data;
}

/* Fills the answer behind an attribute, if it is there: no more than has room, zeros where the value ends. */
static void put(struct ib_uverbs_ioctl_hdr *hdr, unsigned id, const void *value, size_t length)
{
	struct ib_uverbs_attr *attr = find(hdr, id);

	if (!attr)
		return;
	memset(address(attr), 0, attr->len);
	memcpy(address(attr), value, length < attr->len ? length : attr->len);
	attr->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}

static void put32(struct ib_uverbs_ioctl_hdr *hdr, unsigned id, uint32_t value)
{
	put(hdr, id, &value, 4);
}

/* What the driver adds. */
static void put_driver(struct ib_uverbs_ioctl_hdr *hdr, enum answer answer)
{
	struct ib_uverbs_attr *attr = find(hdr, UVERBS_ATTR_UHW_OUT);

	if (!attr)
		return;
	memset(address(attr), 0, attr->len);
	driver_answer(answer, address(attr), attr->len);
	attr->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}

static uint32_t number_of(const struct ib_uverbs_attr *attr)
{
	uint32_t number = 0;

	if (attr)
		memcpy(&number, attr->len > 8 ? address(attr) : (const void *)&attr->data, 4);
	return number;
}

static void note_command(struct ib_uverbs_ioctl_hdr *hdr)
{
	char line[512];
	size_t at = 0;

	at += (size_t)snprintf(line, sizeof(line), "ioctl object %u method %u:", hdr->object_id, hdr->method_id);
	if (hdr->object_id == UVERBS_OBJECT_DEVICE && hdr->method_id == UVERBS_METHOD_INVOKE_WRITE)
		at += (size_t)snprintf(line + at, sizeof(line) - at, " write %#x",
				       number_of(find(hdr, UVERBS_ATTR_WRITE_CMD)));
	/* The order of attributes means nothing. */
	for (unsigned id = 0; id < 0x10000 && at < sizeof(line); id++) {
		const struct ib_uverbs_attr *attr = find(hdr, id);

		if (attr)
			at += (size_t)snprintf(line + at, sizeof(line) - at, " %x+%u", id, attr->len);
	}
	note("%s", line);
}

static uint32_t next_handle(void)
{
	static uint32_t last;

	return ++last;
}

static void query_device(struct ib_uverbs_ioctl_hdr *hdr)
{
	struct ib_uverbs_ex_query_device_resp answer = {
		.base = {
			.fw_ver = (uint64_t)16 << 32 | 35 << 16 | 1000,
			.node_guid = 0x3412000003c90200,
			.sys_image_guid = 0x3412000003c90200,
			.max_mr_size = UINT64_MAX,
			.page_size_cap = 0xfffffffffffff000,
			.vendor_id = the_device()->vendor,
			.vendor_part_id = the_device()->part,
			.max_qp = 1 << 17,
			.max_qp_wr = 1 << 14,
			.max_sge = 30,
			.max_sge_rd = 30,
			.max_cq = 1 << 16,
			.max_cqe = (1 << 22) - 1,
			.max_mr = 1 << 20,
			.max_pd = 1 << 15,
			.max_qp_rd_atom = 16,
			.max_qp_init_rd_atom = 16,
			.max_ah = 1 << 20,
			.max_srq = 1 << 16,
			.max_srq_wr = (1 << 15) - 1,
			.max_srq_sge = 31,
			.max_pkeys = 128,
			.local_ca_ack_delay = 16,
			.phys_port_cnt = 1,
		},
		.response_length = sizeof(answer),
	};

	put(hdr, UVERBS_ATTR_CORE_OUT, &answer, sizeof(answer));
	put_driver(hdr, ANSWER_DEVICE);
}

static int invoke(struct ib_uverbs_ioctl_hdr *hdr)
{
	const struct ib_uverbs_query_port_resp port = {
		.max_msg_sz = 1 << 30, .gid_tbl_len = 16, .pkey_tbl_len = 1, .lid = 1, .state = 4, .max_mtu = 5, .active_mtu = 5,
		.active_width = 2, .active_speed = 32, .phys_state = 5, .link_layer = 1,
	};

	switch (number_of(find(hdr, UVERBS_ATTR_WRITE_CMD))) {
	case IB_USER_VERBS_CMD_QUERY_DEVICE:
	case IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_CMD_QUERY_DEVICE:
		query_device(hdr);
		return 0;
	case IB_USER_VERBS_CMD_QUERY_PORT:
		put(hdr, UVERBS_ATTR_CORE_OUT, &port, sizeof(port));
		return 0;
	case IB_USER_VERBS_CMD_ALLOC_PD: {
		const struct ib_uverbs_alloc_pd_resp pd = {.pd_handle = next_handle()};

		put(hdr, UVERBS_ATTR_CORE_OUT, &pd, sizeof(pd));
		put_driver(hdr, ANSWER_PD);
		return 0;
	}
	case IB_USER_VERBS_CMD_REG_MR: {
		const struct ib_uverbs_reg_mr_resp mr = {.mr_handle = next_handle(), .lkey = 0x1100, .rkey = 0x1101};

		put(hdr, UVERBS_ATTR_CORE_OUT, &mr, sizeof(mr));
		return 0;
	}
	case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: {
		const struct ib_uverbs_create_comp_channel_resp channel = {.fd = (uint32_t)eventfd(0, EFD_CLOEXEC)};

		put(hdr, UVERBS_ATTR_CORE_OUT, &channel, sizeof(channel));
		return 0;
	}
	case IB_USER_VERBS_CMD_MODIFY_QP:
	case IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_EX_CMD_MODIFY_QP:
	case IB_USER_VERBS_CMD_DEALLOC_PD:
	case IB_USER_VERBS_CMD_DEREG_MR:
		return 0;
	default:
		return EOPNOTSUPP;
	}
}

static int device_method(struct ib_uverbs_ioctl_hdr *hdr)
{
	const struct ib_uverbs_query_port_resp_ex port = {
		.legacy_resp = {.max_msg_sz = 1 << 30, .gid_tbl_len = 16, .pkey_tbl_len = 1, .lid = 1, .state = 4, .max_mtu = 5,
				.active_mtu = 5, .active_width = 2, .active_speed = 32, .phys_state = 5, .link_layer = 1}};
	const uint64_t core_support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;

	switch (hdr->method_id) {
	case UVERBS_METHOD_INVOKE_WRITE:
		return invoke(hdr);
	case UVERBS_METHOD_GET_CONTEXT:
		put32(hdr, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 8);
		put(hdr, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &core_support, sizeof(core_support));
		put_driver(hdr, ANSWER_CONTEXT);
		return 0;
	case UVERBS_METHOD_QUERY_PORT:
		put(hdr, UVERBS_ATTR_QUERY_PORT_RESP, &port, sizeof(port));
		return 0;
	default:
		return EPROTONOSUPPORT;
	}
}

/* A destroyed object has told no events. */
static int destroyed(struct ib_uverbs_ioctl_hdr *hdr, unsigned answer)
{
	const uint64_t none = 0;

	put(hdr, answer, &none, sizeof(none));
	return 0;
}

int command(struct ib_uverbs_ioctl_hdr *hdr)
{
	note_command(hdr);
	if (gone)
		return EIO;
	switch (hdr->object_id << 8 | hdr->method_id) {
	case UVERBS_OBJECT_CQ << 8 | UVERBS_METHOD_CQ_CREATE:
		find(hdr, UVERBS_ATTR_CREATE_CQ_HANDLE)->data = next_handle();
		put32(hdr, UVERBS_ATTR_CREATE_CQ_RESP_CQE, number_of(find(hdr, UVERBS_ATTR_CREATE_CQ_CQE)));
		put_driver(hdr, ANSWER_CQ);
		return 0;
	case UVERBS_OBJECT_QP << 8 | UVERBS_METHOD_QP_CREATE: {
		/* The answer may lie where the request does. */
		const struct ib_uverbs_qp_cap cap = *(const struct ib_uverbs_qp_cap *)address(find(hdr, UVERBS_ATTR_CREATE_QP_CAP));

		find(hdr, UVERBS_ATTR_CREATE_QP_HANDLE)->data = next_handle();
		put(hdr, UVERBS_ATTR_CREATE_QP_RESP_CAP, &cap, sizeof(cap));
		put32(hdr, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, 0x1234);
		put_driver(hdr, ANSWER_QP);
		return 0;
	}
	case UVERBS_OBJECT_ASYNC_EVENT << 8 | UVERBS_METHOD_ASYNC_EVENT_ALLOC:
		find(hdr, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)->data_s64 = event_channel();
		return 0;
	case UVERBS_OBJECT_CQ << 8 | UVERBS_METHOD_CQ_DESTROY:
		return destroyed(hdr, UVERBS_ATTR_DESTROY_CQ_RESP);
	case UVERBS_OBJECT_QP << 8 | UVERBS_METHOD_QP_DESTROY:
		return destroyed(hdr, UVERBS_ATTR_DESTROY_QP_RESP);
	case UVERBS_OBJECT_PD << 8 | UVERBS_METHOD_PD_DESTROY:
	case UVERBS_OBJECT_MR << 8 | UVERBS_METHOD_MR_DESTROY:
		return 0;
	}
	return hdr->object_id == UVERBS_OBJECT_DEVICE ? device_method(hdr) : EPROTONOSUPPORT;
}
