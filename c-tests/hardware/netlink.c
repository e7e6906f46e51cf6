/* Netlink as far as a library asks for devices: RDMA_NLDEV_CMD_GET and RDMA_NLDEV_CMD_GET_CHARDEV. */
#include "double.h"

#include <errno.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <string.h>

/* In headers newer than some distributions'. */
#define ATTR_UVERBS_DRIVER_ID 73

/* What waits for the reader: datagrams, each with its length in front. */
static struct {
	uint32_t length;
	unsigned char bytes[512];
} queue[4];
static unsigned first, last;

static unsigned char *add(unsigned char *at, uint16_t kind, const void *value, uint16_t length)
{
	const struct nlattr head = {.nla_len = (uint16_t)(NLA_HDRLEN + length), .nla_type = kind};

	memcpy(at, &head, sizeof(head));
	memcpy(at + NLA_HDRLEN, value, length);
	return at + NLA_ALIGN(NLA_HDRLEN + length);
}

static unsigned char *add32(unsigned char *at, uint16_t kind, uint32_t value)
{
	return add(at, kind, &value, 4);
}

static unsigned char *add64(unsigned char *at, uint16_t kind, uint64_t value)
{
	return add(at, kind, &value, 8);
}

static unsigned char *add_text(unsigned char *at, uint16_t kind, const char *text)
{
	return add(at, kind, text, (uint16_t)(strlen(text) + 1));
}

static unsigned char *begin(unsigned slot)
{
	memset(&queue[slot], 0, sizeof(queue[slot]));
	return queue[slot].bytes + NLMSG_HDRLEN;
}

static void end(unsigned slot, const struct nlmsghdr *request, uint16_t type, uint16_t flags, unsigned char *at)
{
	struct nlmsghdr head = *request;

	head.nlmsg_len = (uint32_t)(at - queue[slot].bytes);
	head.nlmsg_type = type;
	head.nlmsg_flags = flags;
	memcpy(queue[slot].bytes, &head, sizeof(head));
	queue[slot].length = head.nlmsg_len;
}

ssize_t netlink_request(const void *message, size_t length)
{
	const struct device *device = the_device();
	const struct nlmsghdr *request = message;
	uint8_t node_type = (uint8_t)device->node_type;
	unsigned char *at;

	first = last = 0;
	if (request->nlmsg_type == RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)) {
		note("netlink: devices");
		at = add32(begin(0), RDMA_NLDEV_ATTR_DEV_INDEX, 3);
		at = add_text(at, RDMA_NLDEV_ATTR_DEV_NAME, device->name);
		at = add32(at, RDMA_NLDEV_ATTR_PORT_INDEX, 1);
		at = add64(at, RDMA_NLDEV_ATTR_NODE_GUID, 0x0002c90300001234);
		at = add64(at, RDMA_NLDEV_ATTR_SYS_IMAGE_GUID, 0x0002c90300001234);
		at = add(at, RDMA_NLDEV_ATTR_DEV_NODE_TYPE, &node_type, 1);
		end(0, request, request->nlmsg_type, NLM_F_MULTI, at);
		end(1, request, NLMSG_DONE, NLM_F_MULTI, begin(1) + 4);
		last = 2;
	} else if (request->nlmsg_type == RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV)) {
		note("netlink: node");
		at = add_text(begin(0), RDMA_NLDEV_ATTR_CHARDEV_NAME, NODE);
		at = add64(at, RDMA_NLDEV_ATTR_CHARDEV, NODE_MAJOR << 8 | NODE_MINOR);
		at = add64(at, RDMA_NLDEV_ATTR_CHARDEV_ABI, device->abi);
		at = add32(at, ATTR_UVERBS_DRIVER_ID, device->driver);
		end(0, request, request->nlmsg_type, 0, at);
		last = 1;
	} else {
		int refused[5] = {-EOPNOTSUPP};

		note("netlink: %u", request->nlmsg_type);
		at = begin(0);
		memcpy(at, refused, sizeof(refused));
		end(0, request, NLMSG_ERROR, 0, at + sizeof(refused));
		last = 1;
	}
	return (ssize_t)length;
}

ssize_t netlink_answer(void *buffer, size_t room)
{
	size_t length;

	if (first == last) {
		errno = EAGAIN;
		return -1;
	}
	length = queue[first].length < room ? queue[first].length : room;
	memcpy(buffer, queue[first].bytes, length);
	first++;
	return (ssize_t)length;
}
