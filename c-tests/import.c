/* A second context over a duplicate of cmd_fd, and PD, MR and device memory by their handles. */
#include "partners.h"
#include <sched.h>

/* On one processor an answer is read before the thread that sent it goes on. */
static void stay_on_one_processor(void)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ZERO(sched_setaffinity(0, sizeof(one), &one));
}

static struct ibv_context *import(int fd)
{
    int copy = dup(fd);
    struct ibv_context *context = ibv_import_device(copy);

    if (!context)
        close(copy);
    return context;
}

/* What another process is told beside the descriptor. */
struct handles {
    uint32_t pd, mr, dm, unused;
    size_t at;
};

/*
 * Another process can open the device so, but not reach its parent's memory. Device memory it shares: what its QPs write
 * there the parent sees.
 */
static int in_another_process(int fd, const struct handles *handles, const char *text)
{
    struct ibv_context *context = NEED(import(fd));
    unsigned access = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    char found[8] = "";
    struct ibv_mr *mr;
    struct ibv_dm *dm;
    struct side a, b;
    struct ibv_wc wc;
    int refused, none;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    refused = !ibv_import_pd(context, handles->pd) && errno == EOPNOTSUPP;
    refused &= !ibv_import_mr(a.pd, handles->mr) && errno == EOPNOTSUPP;
    none = !ibv_import_dm(context, 0x7fffffff) && errno == EINVAL;
    dm = NEED(ibv_import_dm(context, handles->dm));
    ZERO(ibv_memcpy_from_dm(found, dm, 0, 8));
    mr = NEED(ibv_reg_dm_mr(b.pd, dm, 0, 4096, access));
    memcpy(a.buffer, text, 8);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, handles->at, mr->rkey));
    wc = next_wc(a.cq);
    ZERO(ibv_dereg_mr(mr));
    ibv_unimport_dm(dm);
    drop_side(&a);
    drop_side(&b);
    ZERO(ibv_close_device(context));
    return refused && none && !strcmp(found, "shared") && wc.status == IBV_WC_SUCCESS;
}

/* Device memory can be freed as soon as nobody has it, also where another process has only just had its answer. */
static void take_in_turns(struct ibv_context *context, int rounds)
{
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    struct ibv_context *second;
    int to[2], from[2], status, failed = 0;
    struct ibv_dm *dm;
    uint32_t handle;
    pid_t child;

    ZERO(pipe(to));
    ZERO(pipe(from));
    child = fork();
    if (child == 0) {
        close(to[1]);
        second = NEED(import(context->cmd_fd));
        while (read(to[0], &handle, sizeof(handle)) == sizeof(handle)) {
            ibv_unimport_dm(NEED(ibv_import_dm(second, handle)));
            if (write(from[1], &handle, sizeof(handle)) != sizeof(handle))
                die("write");
        }
        ZERO(ibv_close_device(second));
        exit(0);
    }
    close(from[1]);
    close(to[0]);
    for (int i = 0; i < rounds; i++) {
        dm = NEED(ibv_alloc_dm(context, &attr));
        if (write(to[1], &dm->handle, sizeof(handle)) != sizeof(handle))
            die("write");
        if (read(from[0], &handle, sizeof(handle)) != sizeof(handle))
            die("read");
        failed += ibv_free_dm(dm) != 0;
    }
    close(to[1]);
    close(from[0]);
    ZERO(waitpid(child, &status, 0) != child);
    ZERO(status);
    printf("freed after an import elsewhere: %d of %d refused\n", failed, rounds);
}

/* A process that was not forked from this one since it opened the device gets the descriptor over a socket. */
static void pass(int socket, int *fd, struct handles *handles, int gives)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data = {.iov_base = handles, .iov_len = sizeof(*handles)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct cmsghdr *head = &control.head;

    memset(&control, 0, sizeof(control));
    if (gives) {
        *head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), fd, sizeof(*fd));
        if (sendmsg(socket, &message, 0) != (ssize_t)sizeof(*handles))
            die("sendmsg");
        return;
    }
    if (recvmsg(socket, &message, 0) != (ssize_t)sizeof(*handles) || head->cmsg_type != SCM_RIGHTS)
        die("recvmsg");
    memcpy(fd, CMSG_DATA(head), sizeof(*fd));
}

int main(int argc, char **argv)
{
    struct handles handles;
    struct partner other;
    struct ibv_alloc_dm_attr dm_attr = {.length = 4096};
    struct ibv_context *context, *second;
    struct ibv_dm *dm, *same;
    struct ibv_mr *mr;
    struct ibv_pd *pd;
    struct side a, b;
    char text[8] = "";
    int status, fd;
    pid_t child;

    start();
    if (argc == 3) {
        pass(atoi(argv[1]), &fd, &handles, 0);
        return !in_another_process(fd, &handles, "a guest");
    }
    stay_on_one_processor();
    context = open_device();
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    printf("a file: %s", pointer_name(ibv_import_device(fd)));
    printf(", none: %s\n", pointer_name(ibv_import_device(-1)));
    close(fd);

    make_side(&a, context, IBV_QPT_RC, 4096);
    second = NEED(import(context->cmd_fd));
    printf("the same device %s, another context %s\n", yes(second->device == context->device), yes(second != context));
    pd = NEED(ibv_import_pd(second, a.pd->handle));
    mr = NEED(ibv_import_mr(pd, a.mr->handle));
    printf("PD handle %s, lkey %s, rkey %s, length %s, context %s\n", yes(pd->handle == a.pd->handle),
           yes(mr->lkey == a.mr->lkey), yes(mr->rkey == a.mr->rkey), yes(mr->length == a.size),
           yes(pd->context == second && mr->context == second));
    printf("no such PD: %s", pointer_name(ibv_import_pd(second, 0x7fffffff)));
    printf(", MR: %s", pointer_name(ibv_import_mr(pd, 0x7fffffff)));
    printf(", DM: %s\n", pointer_name(ibv_import_dm(second, 0x7fffffff)));

    /* A QP of the imported PD uses the imported MR. */
    memset(&b, 0, sizeof(b));
    b = a;
    b.context = second;
    b.pd = pd;
    b.mr = mr;
    b.cq = NEED(ibv_create_cq(second, 16, NULL, NULL, 0));
    b.qp = make_qp(&b, IBV_QPT_RC, NULL);
    join(&a, &b);
    fill(a.buffer, 100, 5);
    ZERO(recv_one(&b, 1, 2048, 100));
    ZERO(send_one(&a, 2, 0, 100, IBV_SEND_SIGNALED));
    show_next("send", a.cq);
    show_next("recv", b.cq);
    printf("data %s\n", yes(filled(b.buffer + 2048, 100, 5)));

    dm = NEED(ibv_alloc_dm(context, &dm_attr));
    ZERO(ibv_memcpy_to_dm(dm, 0, "shared", 8));
    same = NEED(ibv_import_dm(second, dm->handle));
    ZERO(ibv_memcpy_from_dm(text, same, 0, 8));
    printf("device memory: %s\n", text);

    handles = (struct handles){.pd = a.pd->handle, .mr = a.mr->handle, .dm = dm->handle, .at = 64};
    child = fork();
    if (child == 0)
        exit(!in_another_process(context->cmd_fd, &handles, "a child"));
    if (waitpid(child, &status, 0) != child)
        die("waitpid");
    ZERO(ibv_memcpy_from_dm(text, same, 64, 8));
    printf("another process: %s, shared is what %s has written\n", status ? "wrong" : "its own device, no PDs and MRs of ours", text);
    other = spawn_partner("import", -1);
    handles.at = 72;
    pass(other.socket, &context->cmd_fd, &handles, 1);
    if (waitpid(other.pid, &status, 0) != other.pid)
        die("waitpid");
    ZERO(ibv_memcpy_from_dm(text, same, 72, 8));
    take_in_turns(context, 300);
    printf("one that was not forked: %s, shared is what %s has written\n", status ? "wrong" : "the same", text);

    ibv_unimport_dm(same);
    ZERO(ibv_free_dm(dm));
    ZERO(ibv_destroy_qp(b.qp));
    ZERO(ibv_destroy_cq(b.cq));
    ibv_unimport_mr(mr);
    ibv_unimport_pd(pd);
    ZERO(ibv_close_device(second));
    printf("the original goes on: ");
    printf("%s\n", state_name(state_of(a.qp)));
    drop_side(&a);
    ZERO(ibv_close_device(context));
    return 0;
}
