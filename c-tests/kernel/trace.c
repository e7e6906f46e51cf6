/*
 * trace PROGRAM [ARGUMENT...]: which commands a program of one thread gives to nodes below /dev/infiniband, one line each:
 * ioctls by object, method and attributes in order of their ids, written commands by number and lengths, each with its
 * result. Of attributes it tells id, length, flags and small numbers; of handles, descriptors and addresses no value.
 */
#include "../common.h"

#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define ATTRS 64

static pid_t child;

/* Reads the program's memory; what it may not read either is zero. */
static void peek(void *to, uint64_t from, size_t length)
{
    struct iovec local = {to, length}, remote = {(void *)(uintptr_t)from, length};

    memset(to, 0, length);
    process_vm_readv(child, &local, 1, &remote, 1, 0);
}

static int is_node(uint64_t fd)
{
    char link[64], path[128];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/%d/fd/%d", child, (int)fd);
    n = readlink(link, path, sizeof(path) - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return !strncmp(path, "/dev/infiniband/", 16);
}

static int by_id(const void *a, const void *b)
{
    return ((const struct ib_uverbs_attr *)a)->attr_id - ((const struct ib_uverbs_attr *)b)->attr_id;
}

static void ioctl_line(char *line, size_t room, uint64_t at)
{
    struct {
        struct ib_uverbs_ioctl_hdr hdr;
        struct ib_uverbs_attr attrs[ATTRS];
    } m;
    unsigned n;

    peek(&m.hdr, at, sizeof(m.hdr));
    n = m.hdr.num_attrs < ATTRS ? m.hdr.num_attrs : ATTRS;
    peek(m.attrs, at + sizeof(m.hdr), n * sizeof(m.attrs[0]));
    qsort(m.attrs, n, sizeof(m.attrs[0]), by_id);
    snprintf(line, room, "ioctl object %u method %u driver %u:", m.hdr.object_id, m.hdr.method_id, m.hdr.driver_id);
    for (unsigned i = 0; i < n; i++) {
        const struct ib_uverbs_attr *a = &m.attrs[i];
        size_t used = strlen(line);

        snprintf(line + used, room - used, " %x/%u%s", a->attr_id, a->len,
                 a->flags & UVERBS_ATTR_F_MANDATORY ? "" : "?");
        used = strlen(line);
        /* Inline data are eight bytes at most; a large number may be an address. */
        if (a->len > 0 && a->len <= 8 && a->data < 1 << 20)
            snprintf(line + used, room - used, "=%" PRIu64, (uint64_t)a->data);
    }
}

static void write_line(char *line, size_t room, uint64_t at)
{
    struct ib_uverbs_cmd_hdr hdr;

    peek(&hdr, at, sizeof(hdr));
    snprintf(line, room, "write command %u, words %u and %u:", hdr.command, hdr.in_words, hdr.out_words);
}

/* The program's next stop; its status when it has ended. */
static int next_stop(int *status)
{
    if (ptrace(PTRACE_SYSCALL, child, NULL, NULL))
        die("ptrace");
    if (waitpid(child, status, 0) != child)
        die("waitpid");
    return WIFSTOPPED(*status);
}

int main(int argc, char **argv)
{
    char line[4096] = "";
    int status;

    start();
    if (argc < 2)
        die("which program?");
    child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execvp(argv[1], argv + 1);
        die("%s", argv[1]);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        die("%s", argv[1]);
    if (ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)))
        die("ptrace");
    while (next_stop(&status)) {
        struct __ptrace_syscall_info info;

        if (WSTOPSIG(status) != (SIGTRAP | 0x80))
            continue;
        if (ptrace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof(info), &info) <= 0)
            die("ptrace");
        if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
            const uint64_t *args = info.entry.args;

            *line = 0;
            if (info.entry.nr == SYS_ioctl && args[1] == RDMA_VERBS_IOCTL && is_node(args[0]))
                ioctl_line(line, sizeof(line), args[2]);
            else if (info.entry.nr == SYS_write && is_node(args[0]))
                write_line(line, sizeof(line), args[1]);
            else if (info.entry.nr == SYS_mmap && (int)args[4] >= 0 && is_node(args[4]))
                snprintf(line, sizeof(line), "mmap:");
        } else if (info.op == PTRACE_SYSCALL_INFO_EXIT && *line) {
            int64_t result = info.exit.rval;

            if (info.exit.is_error)
                printf("%s %s\n", line, strerrorname_np((int)-result));
            else
                printf("%s done\n", line);
            *line = 0;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
