/* Under `anyverbs run`: each call that takes a path finds the first device below /sys and /dev as libibverbs tells it, and any other path
 * as the kernel has it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(ok) ((ok) ? (void)0 : die(#ok, __LINE__))
#define CLASS "/sys/class/infiniband"

static void die(const char *what, int line)
{
	fprintf(stderr, "line %d: %s failed: %s\n", line, what, strerror(errno));
	exit(1);
}

static char name[64], node[64];

static const char *path(const char *format, int index)
{
	static char whole[512];
	int n = snprintf(whole, sizeof whole, CLASS "/%s/", name);

	snprintf(whole + n, sizeof whole - (size_t)n, format, index);
	return whole;
}

/* The first line of a file of the device; empty where there is none. */
static const char *line(const char *format, int index)
{
	static char text[256];
	FILE *file = fopen(path(format, index), "r");

	text[0] = 0;
	if (file) {
		if (!fgets(text, sizeof text, file))
			text[0] = 0;
		text[strcspn(text, "\n")] = 0;
		fclose(file);
	}
	return text;
}

static int lists(const char *folder, const char *wanted)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	int found = 0;

	CHECK(dir);
	while ((entry = readdir(dir)))
		found += !strcmp(entry->d_name, wanted);
	closedir(dir);
	return found;
}

static void gids(struct ibv_context *ctx)
{
	struct ibv_port_attr port;

	CHECK(!ibv_query_port(ctx, 1, &port));
	CHECK(port.gid_tbl_len > 0);
	for (int i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;
		char text[64] = "", ifname[IF_NAMESIZE];

		if (ibv_query_gid_ex(ctx, 1, (uint32_t)i, &entry, 0)) {
			CHECK(!strcmp(line("ports/1/gids/%d", i), "0000:0000:0000:0000:0000:0000:0000:0000"));
			continue;
		}
		for (int k = 0; k < 16; k += 2)
			sprintf(text + strlen(text), "%s%02x%02x", k ? ":" : "", entry.gid.raw[k], entry.gid.raw[k + 1]);
		CHECK(!strcmp(line("ports/1/gids/%d", i), text));
		CHECK(!strcmp(line("ports/1/gid_attrs/types/%d", i),
			      entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1"));
		/* A GID of an InfiniBand port has no interface, and no file that would name it. */
		if (!entry.ndev_ifindex)
			ifname[0] = 0;
		else
			CHECK(if_indextoname(entry.ndev_ifindex, ifname));
		CHECK(!strcmp(line("ports/1/gid_attrs/ndevs/%d", i), ifname));
	}
	CHECK(access(path("ports/1/gids/%d", port.gid_tbl_len), F_OK) && errno == ENOENT);
	CHECK(!strcmp(line("ports/1/state", 0), "4: ACTIVE"));
	CHECK(!strcmp(line("ports/1/pkeys/0", 0), "0xffff"));
	CHECK(!strcmp(line("ports/1/link_layer", 0), port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand"));
	CHECK((int)strtol(line("ports/1/lid", 0), NULL, 16) == port.lid);
}

static void identity(struct ibv_context *ctx)
{
	struct ibv_device_attr attr;
	uint64_t guid = be64toh(ibv_get_device_guid(ctx->device));
	char text[32];

	CHECK(!ibv_query_device(ctx, &attr));
	sprintf(text, "%04x:%04x:%04x:%04x", (int)(guid >> 48) & 0xffff, (int)(guid >> 32) & 0xffff, (int)(guid >> 16) & 0xffff,
		(int)guid & 0xffff);
	CHECK(!strcmp(line("node_guid", 0), text));
	CHECK(strtoul(line("device/vendor", 0), NULL, 16) == attr.vendor_id);
	CHECK(strtoul(line("device/device", 0), NULL, 16) == attr.vendor_part_id);
	CHECK(*line("device/numa_node", 0) && *line("device/local_cpus", 0));
	CHECK(!strcmp(line("fw_ver", 0), attr.fw_ver));
	CHECK(!strcmp(ctx->device->ibdev_path + strlen(CLASS) + 1, name));
}

static void node_is_a_device(void)
{
	char whole[PATH_MAX], resolved[PATH_MAX], *got;
	struct stat st;
	struct statx sx;
	int fd;

	snprintf(whole, sizeof whole, "/dev/infiniband/%s", node);
	CHECK(!stat(whole, &st) && S_ISCHR(st.st_mode));
	CHECK(!lstat(whole, &st) && S_ISCHR(st.st_mode));
	CHECK(!fstatat(AT_FDCWD, whole, &st, 0) && S_ISCHR(st.st_mode));
	CHECK(!statx(AT_FDCWD, whole, 0, STATX_TYPE, &sx) && S_ISCHR(sx.stx_mode));
	CHECK(!access(whole, R_OK | W_OK) && !faccessat(AT_FDCWD, whole, R_OK, AT_EACCESS));
	CHECK((fd = open(whole, O_RDWR | O_CLOEXEC)) >= 0);
	CHECK(!fstat(fd, &st) && S_ISCHR(st.st_mode));
	close(fd);
	CHECK(realpath(whole, resolved) == resolved && !strcmp(resolved, whole));
	CHECK((got = realpath(whole, NULL)) && !strcmp(got, whole));
	free(got);
	CHECK(readlink(whole, resolved, sizeof resolved) < 0 && errno == EINVAL);
	CHECK(lists("/dev/infiniband", node) == 1);
	snprintf(whole, sizeof whole, "/dev/infiniband/../infiniband//%s", node);
	CHECK(!access(whole, F_OK));
	CHECK(access("/dev/infiniband/uverbs77", F_OK) && errno == ENOENT);
}

static void links(void)
{
	char resolved[PATH_MAX], expected[PATH_MAX];
	struct stat st;
	ssize_t n;
	int dir, fd;

	snprintf(expected, sizeof expected, CLASS "/%s", name);
	CHECK(lists(CLASS, name) == 1 && lists("/sys/class/infiniband_verbs", node) == 1);
	CHECK(!lstat(expected, &st) && S_ISLNK(st.st_mode));
	CHECK(!stat(expected, &st) && S_ISDIR(st.st_mode));
	CHECK(!lstat(path("", 0), &st) && S_ISDIR(st.st_mode));
	CHECK(!lstat(path(".", 0), &st) && S_ISDIR(st.st_mode));
	CHECK((n = readlink(expected, resolved, sizeof resolved - 1)) > 0);
	resolved[n] = 0;
	CHECK(!strncmp(resolved, "../../devices/", 14) && strstr(resolved, name));
	CHECK(realpath(path("../..", 0), resolved) && !strncmp(resolved, "/sys/devices/", 13));
	strcat(resolved, "/numa_node");
	CHECK(!access(resolved, R_OK));
	CHECK((dir = open(CLASS, O_RDONLY | O_DIRECTORY)) >= 0);
	snprintf(expected, sizeof expected, "%s/ports/1/rate", name);
	CHECK((fd = openat(dir, expected, O_RDONLY)) >= 0);
	close(fd);
	close(dir);
	CHECK((dir = open("/sys/class", O_RDONLY | O_DIRECTORY)) >= 0);
	snprintf(expected, sizeof expected, "infiniband/%s/ports/1/rate", name);
	CHECK((fd = openat(dir, expected, O_RDONLY)) >= 0);
	close(fd);
	close(dir);
	CHECK(open(path("ports/2", 0), O_RDONLY) < 0 && errno == ENOENT);
}

/* What the C library says of a path that is not the view's is what the kernel says of it. */
static void elsewhere(void)
{
	static const char *const paths[] = {"/", "/dev", "/dev/null", "/sys/class", "/sys/class/net", "/sys/class/infiniband_mad",
					    "/dev/infinibands", "/sys/devices/virtual", "/tmp/infiniband", "/proc/self/exe",
					    "/sys/class/infiniband/../net", "/no/such/infiniband/uverbs0"};

	for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
		struct stat said, is;
		/* The kernel knows no /sys/class/infiniband to go up from. */
		const char *real = strstr(paths[i], "/../") ? "/sys/class/net" : paths[i];
		long there = syscall(SYS_newfstatat, AT_FDCWD, real, &is, 0);

		CHECK(stat(paths[i], &said) == there);
		CHECK(there || (said.st_ino == is.st_ino && said.st_dev == is.st_dev));
		CHECK(access(paths[i], F_OK) == there);
	}
	const char *volatile none = NULL;
	CHECK(access(none, F_OK) < 0 && errno == EFAULT);
}

/* A child has a view of its own, and takes nothing of its parent's along when it ends. */
static void children(void)
{
	for (int how = 0; how < 3; how++) {
		int status;
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			int found = how == 2 || lists(CLASS, name) == 1;

			if (how == 0)
				_exit(!found);
			exit(!found);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(*line("node_guid", 0));
	}
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;

	CHECK(list && list[0]);
	CHECK((ctx = ibv_open_device(list[0])));
	strcpy(name, ibv_get_device_name(list[0]));
	strcpy(node, list[0]->dev_name);
	gids(ctx);
	identity(ctx);
	node_is_a_device();
	links();
	elsewhere();
	children();
	CHECK(!ibv_close_device(ctx));
	ibv_free_device_list(list);
	puts("ok");
	return 0;
}
