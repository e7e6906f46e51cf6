/* A peer that breaks the rules of the shared memory path, seen from outside: it knows nothing about the format.
 *
 *   hostile rings HOST PORT SEED       connects properly, then fills every shared writable mapping it has with noise, and sends
 *   hostile unsealed HOST PORT         never seals a memfd
 *   hostile truncated HOST PORT        connects properly, then cuts every memfd that it can cut
 *   hostile knock SEED NAME...         connects to each abstract socket NAME (hex) and talks nonsense, with descriptors and without
 *   hostile victim HOST PORT           the other side: waits for an error or the end, then still works with itself; exits with 0
 *
 * Only what happens to the victim counts: every hostile role exits with 0. */
#include "pair.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/un.h>

static int never_seal;

/* The library's own calls come here: the program is linked with -rdynamic. */
int fcntl(int fd, int cmd, ...)
{
	static int (*real)(int, int, ...);
	va_list ap;
	va_start(ap, cmd);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	if (never_seal && cmd == F_ADD_SEALS)
		return 0;
	if (!real)
		real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
	return real(fd, cmd, arg);
}

int fcntl64(int fd, int cmd, ...) __attribute__((alias("fcntl")));

static uint64_t seed;

static uint32_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed >> 16;
}

static void noise(char *at, size_t len)
{
	for (size_t i = 0; i + 4 <= len; i += 4) {
		uint32_t r = rnd();
		/* Large numbers, small ones and ones just beyond a power of two. */
		uint32_t v = r % 3 == 0 ? r : r % 3 == 1 ? r % 64 : (1u << (r % 31)) + r % 3;
		memcpy(at + i, &v, 4);
	}
}

static int spoil_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512], perms[8], name[256];
	unsigned long lo, hi;
	int found = 0;
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		name[0] = 0;
		if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &lo, &hi, perms, name) < 3)
			continue;
		if (perms[1] == 'w' && perms[3] == 's' && strstr(name, "memfd")) {
			noise((char *)lo, hi - lo);
			found++;
		}
	}
	fclose(f);
	return found;
}

static int cut_memfds(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	char path[300], to[256];
	int cut = 0;
	CHECK(d);
	while ((e = readdir(d))) {
		snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
		ssize_t n = readlink(path, to, sizeof to - 1);
		if (n <= 0)
			continue;
		to[n] = 0;
		if (strstr(to, "memfd") && !ftruncate(atoi(e->d_name), 0))
			cut++;
	}
	closedir(d);
	return cut;
}

static void knock(const char *hex)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t n = strlen(hex) / 2;
	for (size_t i = 0; i < n && i < sizeof a.sun_path; i++) {
		unsigned b;
		sscanf(hex + 2 * i, "%2x", &b);
		a.sun_path[i] = b;
	}
	for (int i = 0; i < 60; i++) {
		int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fds[4], nfds = rnd() % 4;
		char data[4096], control[CMSG_SPACE(sizeof fds)] = {0};
		if (connect(s, (void *)&a, offsetof(struct sockaddr_un, sun_path) + n)) {
			close(s);
			continue;
		}
		noise(data, sizeof data);
		struct iovec iov = {data, (size_t[]){0, 1, 8, 64, 500, 4096}[rnd() % 6]};
		struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
		for (int k = 0; k < nfds; k++) {
			fds[k] = memfd_create("x", rnd() % 2 ? MFD_ALLOW_SEALING : 0);
			if (rnd() % 2)
				CHECK(!ftruncate(fds[k], rnd() % 3 * 4096));
		}
		if (nfds) {
			m.msg_control = control;
			m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
			struct cmsghdr *c = CMSG_FIRSTHDR(&m);
			*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(nfds * sizeof(int))};
			memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
		}
		if (sendmsg(s, &m, MSG_NOSIGNAL) < 0)
			(void)!write(2, "", 0);
		/* Sometimes stay a moment to see what comes back, sometimes go at once. */
		struct pollfd pf = {s, POLLIN, 0};
		if (rnd() % 2 && poll(&pf, 1, 20) > 0)
			(void)!recv(s, data, sizeof data, MSG_DONTWAIT);
		for (int k = 0; k < nfds; k++)
			close(fds[k]);
		close(s);
	}
}

/* Two QPs of one process still exchange a message. */
static void still_works(void)
{
	struct pair a = {0}, b = {0};
	pair_create(&a, 8192, 4);
	pair_create(&b, 8192, 4);
	a.peer = b.me;
	b.peer = a.me;
	qp_rts(a.qp, &a.me, &a.peer);
	qp_rts(b.qp, &b.me, &b.peer);
	post_recv(&b, 0, 64, 1);
	CHECK(!post_op(&a, IBV_WR_SEND, 0, 64, 0, 2));
	good_wc(&a);
	good_wc(&b);
	pair_destroy(&a);
	pair_destroy(&b);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 4);
	const char *role = argv[1];
	struct pair p = {0};
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(60);
	if (!strcmp(role, "knock")) {
		seed = strtoull(argv[2], NULL, 10) | 1;
		for (int i = 3; i < argc; i++)
			knock(argv[i]);
		return 0;
	}
	int victim = !strcmp(role, "victim");
	seed = (argc > 4 ? strtoull(argv[4], NULL, 10) : 1) | 1;
	never_seal = !strcmp(role, "unsealed");
	pair_create(&p, 1 << 20, 32);
	for (int i = 0; i < 16; i++)
		post_recv(&p, (size_t)i * 4096, 4096, i);
	pair_connect(&p, victim, argv[2], atoi(argv[3]));
	if (victim) {
		struct ibv_wc wc;
		char c;
		printf("connected\n");
		/* Traffic of our own both ways until the other side is done or the QP fails. */
		for (int sending = 0;;) {
			int n = ibv_poll_cq(p.cq, 1, &wc);
			CHECK(n >= 0);
			if (n && wc.status != IBV_WC_SUCCESS)
				break;
			if (n && wc.wr_id < 100)
				post_recv(&p, wc.wr_id * 4096, 4096, wc.wr_id);
			else if (n)
				sending = 0;
			if (!sending++)
				CHECK(!post_op(&p, IBV_WR_SEND, 65536, 512, 0, 100));
			if (!n && recv(p.tcp, &c, 1, MSG_DONTWAIT | MSG_PEEK) == 0)
				break;
		}
		still_works();
		pair_destroy(&p);
		printf("unharmed\n");
		return 0;
	}
	for (int round = 0; round < 200; round++) {
		struct ibv_wc wc;
		if (round == 20 && !strcmp(role, "rings"))
			printf("spoilt %d mappings\n", spoil_maps());
		if (round == 20 && !strcmp(role, "truncated"))
			printf("cut %d memfds\n", cut_memfds());
		if (round > 20 && !strcmp(role, "rings") && round % 10 == 0)
			spoil_maps();
		if (post_op(&p, round % 3 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, 65536, 4096, 131072, 100))
			break;
		for (int spin = 0; spin < 10000; spin++)
			if (ibv_poll_cq(p.cq, 1, &wc) == 1 && wc.wr_id >= 100)
				break;
			else if (spin % 100 == 99)
				usleep(10);
	}
	printf("done\n");
	fflush(stdout);
	/* Neither destructors nor anything else of the spoilt library. */
	_exit(0);
}
