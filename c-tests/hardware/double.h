/* A preloaded double of the kernel with one RDMA device that this machine does not have. /dev/zero stands for its node: a character
 * device that can be mapped. */
#ifndef HARDWARE_DOUBLE_H
#define HARDWARE_DOUBLE_H

#include <rdma/rdma_user_ioctl_cmds.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The node in /dev/infiniband, and its number, that of /dev/zero. */
#define NODE "uverbs0"
#define NODE_MAJOR 1
#define NODE_MINOR 5

/* The device, from SCRIPTED_DEVICE="NAME DRIVER_ID ABI NODE_TYPE VENDOR PART", the last two in hexadecimal. */
struct device {
	char name[64];
	unsigned driver, abi, node_type, vendor, part;
};

extern const struct device *the_device(void);

/* A line for the file that SCRIPTED_LOG names. */
extern void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* commands.c: carries out a command that came by ioctl; 0 or an errno value. */
extern int command(struct ib_uverbs_ioctl_hdr *hdr);

/* driver.c: what the device's own driver adds to an answer (the kernel's UHW_OUT), by the number of the object made. */
enum answer { ANSWER_CONTEXT, ANSWER_DEVICE, ANSWER_PD, ANSWER_CQ, ANSWER_QP };
extern void driver_answer(enum answer answer, void *out, size_t room);

/* netlink.c: NETLINK_RDMA. */
extern ssize_t netlink_request(const void *message, size_t length);
extern ssize_t netlink_answer(void *buffer, size_t room);

#endif
