/* Without memory, without descriptors, and started without a standard input and output: errors, and no harm done. */
#include "common.h"

#include <sys/resource.h>
#include <sys/wait.h>

static void limit(int resource, rlim_t most)
{
    struct rlimit r;

    ZERO(getrlimit(resource, &r));
    r.rlim_cur = most;
    ZERO(setrlimit(resource, &r));
}

static void without_memory(void)
{
    struct ibv_context *context = open_device();
    struct ibv_device_attr attr;
    struct ibv_pd *pd = NEED(ibv_alloc_pd(context));
    struct ibv_cq *cq = NEED(ibv_create_cq(context, 1, NULL, NULL, 0));
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq_attr larger = {0};
    struct ibv_srq *srq = NEED(ibv_create_srq(pd, &srq_init));
    unsigned long used = 0;
    FILE *statm = NEED(fopen("/proc/self/statm", "r"));
    struct ibv_qp *qp;
    int rc;

    ZERO(ibv_query_device(context, &attr));
    ZERO(fscanf(statm, "%lu", &used) != 1);
    fclose(statm);
    init.cap = (struct ibv_qp_cap){attr.max_qp_wr, attr.max_qp_wr, attr.max_sge, attr.max_sge, 512};
    limit(RLIMIT_AS, used * sysconf(_SC_PAGESIZE) + (3 << 20));
    printf("a large CQ: %s\n", pointer_name(ibv_create_cq(context, attr.max_cqe, NULL, NULL, 0)));
    printf("a larger CQ: %s\n", rc_name(ibv_resize_cq(cq, attr.max_cqe)));
    printf("a large QP: %s\n", pointer_name(ibv_create_qp(pd, &init)));
    srq_init.attr.max_wr = attr.max_srq_wr;
    srq_init.attr.max_sge = attr.max_srq_sge;
    printf("a large SRQ: %s\n", pointer_name(ibv_create_srq(pd, &srq_init)));
    init.cap = (struct ibv_qp_cap){1, 1, 1, 1, 0};
    qp = NEED(ibv_create_qp(pd, &init));
    larger.max_wr = 1;
    rc = ibv_modify_srq(srq, &larger, IBV_SRQ_MAX_WR);
    printf("small ones: %s\n", rc_name(rc));
    ZERO(ibv_destroy_qp(qp));
    ZERO(ibv_destroy_srq(srq));
    ZERO(ibv_destroy_cq(cq));
    ZERO(ibv_dealloc_pd(pd));
    ZERO(ibv_close_device(context));
}

/* As many descriptors as opening takes, and fewer: a context with all of its own, or none. */
static void without_descriptors(void)
{
    struct ibv_device **list = NEED(ibv_get_device_list(NULL));
    struct ibv_context *context = NULL;
    int refused = 0, half = 0;

    for (rlim_t most = 3; most < 200 && !context; most++) {
        limit(RLIMIT_NOFILE, most);
        context = ibv_open_device(list[0]);
        refused += !context;
        half += context && (context->async_fd < 0 || context->cmd_fd < 0);
    }
    printf("opened at last %s, after refusals %s, half open %s\n", yes(context != NULL), yes(refused > 0), yes(half));
    if (context)
        ZERO(ibv_close_device(context));
    ibv_free_device_list(list);
}

/* Nothing of the library's may be what the program takes for its standard files. */
static void without_standard_files(int report)
{
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    struct side s;
    int low = 0;

    for (int fd = 0; fd < 3; fd++)
        close(fd);
    context = open_device();
    channel = NEED(ibv_create_comp_channel(context));
    make_side(&s, context, IBV_QPT_RC, 4096);
    for (int fd = 0; fd < 3; fd++)
        low += fcntl(fd, F_GETFD) >= 0;
    dprintf(report, "descriptors below 3: %d\n", low);
    drop_side(&s);
    ZERO(ibv_destroy_comp_channel(channel));
    ZERO(ibv_close_device(context));
}

static void in_child(const char *what, void (*run)(void), void (*reporting)(int))
{
    int report = fcntl(1, F_DUPFD, 100), status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        alarm(60);
        if (run)
            run();
        else
            reporting(report);
        fflush(stdout);
        _exit(0);
    }
    close(report);
    waitpid(pid, &status, 0);
    printf("%s: ended well %s\n", what, yes(WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

int main(void)
{
    start();
    in_child("no memory", without_memory, NULL);
    in_child("no descriptors", without_descriptors, NULL);
    in_child("no standard files", NULL, without_standard_files);
    return 0;
}
