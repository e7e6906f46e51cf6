/* udp server|client HOST PORT echo|each|blast MS BYTES PACKETS: what plain UDP takes on the same way: the floor of `wire`.
 * Both ends poll, as programs that poll a CQ do. `echo`: datagrams of BYTES to and fro; prints `ns`, one way. `each`: the
 * same, the median of single ones, on the core to which it is bound from outside. `blast`: one system
 * call sends PACKETS datagrams of BYTES that the kernel cuts (GSO), the receiver takes them joined (GRO); prints `gbs` and
 * `mps`, gigabytes and million packets a second that arrived. The client's end is the run's; the server is killed. */
#include "bench.h"
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { BUF = 1 << 16, SOCKET_BUFFER = 4 << 20, TRY_NS = 20000000 };

struct result {
	uint64_t bytes, packets, ns;
};

static char buf[BUF];
static struct sockaddr_storage peer;
static socklen_t peer_len;

static int udp_open(int server, const char *host, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST}, *to;
	CHECK(!getaddrinfo(host, port, &hints, &to));
	memcpy(&peer, to->ai_addr, peer_len = to->ai_addrlen);
	int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1, size = SOCKET_BUFFER;
	CHECK(fd >= 0);
	/* What may be refused: then as much as an ordinary user has. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
	if (server)
		CHECK(!bind(fd, to->ai_addr, to->ai_addrlen));
	freeaddrinfo(to);
	return fd;
}

/* The next datagram, which may be many; its packets are of `*size` bytes. 0 if none came for a while. */
static ssize_t receive(int fd, size_t *size)
{
	struct iovec at = {buf, sizeof buf};
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct msghdr m = {.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = &at, .msg_iovlen = 1,
			   .msg_control = control, .msg_controllen = sizeof control};
	uint64_t end = 0;
	ssize_t n;
	for (int i = 1; (n = recvmsg(fd, &m, MSG_DONTWAIT)) < 0; i++) {
		CHECK(errno == EAGAIN || errno == ECONNREFUSED);
		if (i % 4096)
			continue;
		uint64_t now = now_ns();
		if (!end)
			end = now + TRY_NS;
		if (now > end)
			return 0;
	}
	peer_len = m.msg_namelen;
	*size = n;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
		int segment;
		memcpy(&segment, CMSG_DATA(c), sizeof segment);
		*size = segment;
	}
	return n;
}

static void serve_echo(int fd)
{
	size_t size;
	for (;;) {
		ssize_t n = receive(fd, &size);
		if (n > 0)
			sendto(fd, buf, n, 0, (void *)&peer, peer_len);
	}
}

static void exchange(int fd, size_t bytes, const struct sockaddr_storage *to, socklen_t len)
{
	size_t size;
	do {
		/* The server may not be there yet: that is an error here, or silence. */
		sendto(fd, buf, bytes, 0, (const void *)to, len);
	} while (!receive(fd, &size));
}

static void echo(int fd, size_t bytes, int each)
{
	struct sockaddr_storage to = peer;
	socklen_t len = peer_len;
	double ns = each ? TIMED(1, exchange(fd, bytes, &to, len)) : TIMED(64, exchange(fd, bytes, &to, len));
	say("ns", ns / 2);
}

/* Counts until a datagram of no packet's size asks for the count. */
static void serve_blast(int fd)
{
	struct result r = {0};
	uint64_t first = 0, last = 0;
	size_t size;
	for (;;) {
		ssize_t n = receive(fd, &size);
		if (!n)
			continue;
		if (n == 1) {
			r.ns = last - first;
			sendto(fd, &r, sizeof r, 0, (void *)&peer, peer_len);
			continue;
		}
		last = now_ns();
		if (!first) {
			first = last;
			continue;
		}
		r.bytes += n;
		r.packets += (n + size - 1) / size;
	}
}

static void blast(int fd, uint16_t bytes, int packets)
{
	struct sockaddr_storage to = peer;
	struct iovec at = {buf, (size_t)bytes * packets};
	char control[CMSG_SPACE(sizeof bytes)] __attribute__((aligned(8))) = {0};
	struct msghdr m = {.msg_name = &to, .msg_namelen = peer_len, .msg_iov = &at, .msg_iovlen = 1,
			   .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = IPPROTO_UDP, c->cmsg_type = UDP_SEGMENT, c->cmsg_len = CMSG_LEN(sizeof bytes);
	memcpy(CMSG_DATA(c), &bytes, sizeof bytes);
	CHECK(at.iov_len <= sizeof buf);
	struct result r = {0};
	size_t size;
	/* Until the server is there. */
	do
		sendto(fd, buf, 1, 0, (void *)&to, m.msg_namelen);
	while (receive(fd, &size) != sizeof r);
	/* Again where somebody else had the server's core all the time. */
	for (int tries = 0; tries < 10 && !r.packets; tries++) {
		for (uint64_t end = now_ns() + budget_ns; now_ns() < end;)
			for (int i = 0; i < 64; i++)
				sendmsg(fd, &m, 0);
		do
			sendto(fd, buf, 1, 0, (void *)&to, m.msg_namelen);
		while (receive(fd, &size) != sizeof r);
		memcpy(&r, buf, sizeof r);
	}
	CHECK(r.packets);
	say("gbs", (double)r.bytes / r.ns);
	say("mps", 1e3 * r.packets / r.ns);
}

int main(int argc, char **argv)
{
	CHECK(argc == 8);
	int server = !strcmp(argv[1], "server"), each = !strcmp(argv[4], "each"), echoes = each || !strcmp(argv[4], "echo");
	budget_ns = strtoull(argv[5], NULL, 10) * 1000000;
	if (!each)
		pin(server);
	alarm(60);
	int fd = udp_open(server, argv[2], argv[3]);
	if (server && echoes)
		serve_echo(fd);
	else if (server)
		serve_blast(fd);
	else if (echoes)
		echo(fd, atoi(argv[6]), each);
	else
		blast(fd, atoi(argv[6]), atoi(argv[7]));
	return 0;
}
