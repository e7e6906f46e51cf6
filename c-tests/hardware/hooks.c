/* The C library's calls that reach a kernel's RDMA parts, led to the double. All others go where they went. */
#include "double.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <rdma/rdma_user_ioctl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define REAL(call) ((__typeof__(&call))real(#call))
#define ZERO "/dev/zero"

static void *real(const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);

	if (!function)
		abort();
	return function;
}

const struct device *the_device(void)
{
	static struct device device;

	if (!device.name[0]) {
		const char *text = getenv("SCRIPTED_DEVICE");

		if (!text || sscanf(text, "%63s %u %u %u %x %x", device.name, &device.driver, &device.abi, &device.node_type,
				    &device.vendor, &device.part) != 6)
			abort();
	}
	return &device;
}

void note(const char *format, ...)
{
	const char *path = getenv("SCRIPTED_LOG");
	va_list args;
	char line[1024];
	int fd, n;

	if (!path)
		return;
	va_start(args, format);
	n = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (n < 0 || n >= (int)sizeof(line) - 1)
		abort();
	line[n++] = '\n';
	fd = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0 || REAL(write)(fd, line, (size_t)n) != n)
		abort();
	close(fd);
}

static const char *led(const char *path)
{
	return path && !strcmp(path, "/dev/infiniband/" NODE) ? ZERO : path;
}

static int is_node(int fd)
{
	struct stat status;

	return !fstat(fd, &status) && S_ISCHR(status.st_mode) && status.st_rdev == makedev(NODE_MAJOR, NODE_MINOR);
}

/* Paths. */

int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return REAL(open)(led(path), flags, mode);
}

int open64(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return REAL(open)(led(path), flags | O_LARGEFILE, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return REAL(openat)(folder, led(path), flags, mode);
}

int stat(const char *path, struct stat *status)
{
	return REAL(stat)(led(path), status);
}

int stat64(const char *path, struct stat64 *status)
{
	return REAL(stat64)(led(path), status);
}

int access(const char *path, int mode)
{
	return REAL(access)(led(path), mode);
}

/* Commands. */

static int ruled(struct ib_uverbs_ioctl_hdr *hdr)
{
	int error = command(hdr);

	if (!error)
		return 0;
	errno = error;
	return -1;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	return request == RDMA_VERBS_IOCTL && is_node(fd) ? ruled(argument) : REAL(ioctl)(fd, request, argument);
}

static ssize_t written(const void *request, size_t length)
{
	note("write %#x of %zu", *(const uint32_t *)request, length);
	errno = EINVAL;
	return -1;
}

ssize_t write(int fd, const void *request, size_t length)
{
	return length >= 8 && is_node(fd) ? written(request, length) : REAL(write)(fd, request, length);
}

/* A library may go past the wrappers. */
long syscall(long number, ...)
{
	va_list args;
	long a[6];

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (number == SYS_openat)
		a[1] = (long)led((const char *)a[1]);
	if (number == SYS_write && a[2] >= 8 && is_node((int)a[0]))
		return written((const void *)a[1], (size_t)a[2]);
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Netlink. */

static int netlink_fd = -1;

int socket(int domain, int type, int protocol)
{
	if (domain != AF_NETLINK || protocol != NETLINK_RDMA)
		return REAL(socket)(domain, type, protocol);
	if (getenv("SCRIPTED_NO_NETLINK")) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	netlink_fd = REAL(socket)(AF_UNIX, SOCK_DGRAM | (type & SOCK_CLOEXEC), 0);
	return netlink_fd;
}

int close(int fd)
{
	if (fd >= 0 && fd == netlink_fd)
		netlink_fd = -1;
	return REAL(close)(fd);
}

static int is_netlink(int fd)
{
	return fd >= 0 && fd == netlink_fd;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	return is_netlink(fd) ? 0 : REAL(bind)(fd, address, length);
}

int getsockname(int fd, struct sockaddr *restrict address, socklen_t *restrict length)
{
	const struct sockaddr_nl own = {.nl_family = AF_NETLINK, .nl_pid = (uint32_t)getpid()};

	if (!is_netlink(fd))
		return REAL(getsockname)(fd, address, length);
	memcpy(address, &own, *length < sizeof(own) ? *length : sizeof(own));
	*length = sizeof(own);
	return 0;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	return is_netlink(fd) && level == SOL_NETLINK ? 0 : REAL(setsockopt)(fd, level, name, value, length);
}

ssize_t send(int fd, const void *message, size_t length, int flags)
{
	return is_netlink(fd) ? netlink_request(message, length) : REAL(send)(fd, message, length, flags);
}

ssize_t recv(int fd, void *buffer, size_t room, int flags)
{
	return is_netlink(fd) ? netlink_answer(buffer, room) : REAL(recv)(fd, buffer, room, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (!is_netlink(fd))
		return REAL(sendmsg)(fd, message, flags);
	return netlink_request(message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};

	if (!is_netlink(fd))
		return REAL(recvmsg)(fd, message, flags);
	if (message->msg_name)
		memcpy(message->msg_name, &kernel, sizeof(kernel));
	message->msg_namelen = sizeof(kernel);
	message->msg_flags = 0;
	message->msg_controllen = 0;
	return netlink_answer(message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
}
