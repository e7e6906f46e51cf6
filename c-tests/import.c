/* A second context over a duplicate of cmd_fd, and PD, MR and device memory by their handles. */
#include "common.h"
#include <sys/wait.h>

static struct ibv_context *import(int fd)
{
    int copy = dup(fd);
    struct ibv_context *context = ibv_import_device(copy);

    if (!context)
        close(copy);
    return context;
}

/* Another process can open the device so, but not reach its parent's memory. */
static int in_another_process(int fd, uint32_t pd, uint32_t dm)
{
    struct ibv_context *context = NEED(import(fd));
    struct ibv_pd *own = NEED(ibv_alloc_pd(context));
    int refused = !ibv_import_pd(context, pd) && errno == EINVAL && !ibv_import_dm(context, dm) && errno == EINVAL;

    ZERO(ibv_dealloc_pd(own));
    ZERO(ibv_close_device(context));
    return !refused;
}

int main(void)
{
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

    child = fork();
    if (child == 0)
        _exit(in_another_process(context->cmd_fd, a.pd->handle, dm->handle));
    if (waitpid(child, &status, 0) != child)
        die("waitpid");
    printf("another process: %s\n", status ? "wrong" : "its own device, no objects of ours");

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
