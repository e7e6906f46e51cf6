/* Device memory: copies in and out, bounds, and RDMA to and from it. */
#include "common.h"

#include <sys/wait.h>

/* A child of a fork allocates over its parent's context. */
static int in_child(struct ibv_context *context)
{
    struct ibv_alloc_dm_attr want = {.length = 4096};
    struct ibv_dm *dm;
    int status;
    pid_t pid = fork();

    if (pid < 0)
        die("fork");
    if (pid == 0) {
        uint32_t word = 7, back = 0;

        alarm(30);
        dm = ibv_alloc_dm(context, &want);
        _exit(!dm || ibv_memcpy_to_dm(dm, 0, &word, 4) || ibv_memcpy_from_dm(&back, dm, 0, 4) || back != 7 ||
              ibv_free_dm(dm));
    }
    if (waitpid(pid, &status, 0) != pid)
        die("waitpid");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void)
{
    struct ibv_context *context;
    struct ibv_device_attr_ex attr;
    struct ibv_alloc_dm_attr want = {.length = 4096}, odd = {.length = 64, .comp_mask = 1};
    struct side a, b;
    struct ibv_dm *dm;
    struct ibv_mr *mr;
    unsigned char host[4096];

    start();
    context = open_device();
    ZERO(ibv_query_device_ex(context, NULL, &attr));
    printf("device has some: %s\n", yes(attr.max_dm_size >= 4096));
    want.length = attr.max_dm_size + 1;
    printf("more than there is: %s\n", pointer_name(ibv_alloc_dm(context, &want)));
    printf("unknown attribute: %s\n", pointer_name(ibv_alloc_dm(context, &odd)));
    want.length = 4096;
    dm = NEED(ibv_alloc_dm(context, &want));
    fill(host, sizeof(host), 1);
    printf("in %s", rc_name(ibv_memcpy_to_dm(dm, 0, host, sizeof(host))));
    memset(host, 0, sizeof(host));
    printf(", out %s", rc_name(ibv_memcpy_from_dm(host, dm, 0, sizeof(host))));
    printf(", data %s\n", yes(filled(host, sizeof(host), 1)));
    printf("past the end: %s %s\n", rc_name(ibv_memcpy_to_dm(dm, 4092, host, 8)),
           rc_name(ibv_memcpy_from_dm(host, dm, 4097, 0)));

    printf("not in words: %s %s\n", rc_name(ibv_memcpy_to_dm(dm, 2, host, 8)), rc_name(ibv_memcpy_from_dm(host, dm, 4, 7)));
    printf("of a forked child: %s\n", yes(in_child(context)));

    make_side(&a, context, IBV_QPT_RC, 8192);
    make_side(&b, context, IBV_QPT_RC, 8192);
    join(&a, &b);
    printf("region without ZERO_BASED: refused %s\n",
           yes(ibv_reg_dm_mr(b.pd, dm, 0, 4096, IBV_ACCESS_LOCAL_WRITE) == NULL));
    mr = NEED(ibv_reg_dm_mr(b.pd, dm, 0, 4096, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
    fill(a.buffer, 1000, 2);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 1000, 100, mr->rkey));
    show_next("write", a.cq);
    ZERO(ibv_memcpy_from_dm(host, dm, 100, 1000));
    printf("  data %s\n", yes(filled(host, 1000, 2)));
    ZERO(rdma_one(&a, 2, IBV_WR_RDMA_READ, 4096, 1000, 100, mr->rkey));
    show_next("read", a.cq);
    printf("  data %s\n", yes(filled(a.buffer + 4096, 1000, 2)));

    /* A receive into it: SGE addresses count from the start of the region. */
    {
        struct ibv_sge sge = {.addr = 2000, .length = 100, .lkey = mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1}, *bad;

        ZERO(ibv_post_recv(b.qp, &wr, &bad));
        ZERO(send_one(&a, 4, 0, 100, IBV_SEND_SIGNALED));
        show_next("send", a.cq);
        show_next("  recv", b.cq);
        ZERO(ibv_memcpy_from_dm(host, dm, 2000, 100));
        printf("  data %s\n", yes(filled(host, 100, 2)));
    }
    ZERO(rdma_one(&a, 5, IBV_WR_RDMA_WRITE, 0, 8, 4092, mr->rkey));
    show_next("write past the end", a.cq);
    printf("freed under its region: %s\n", rc_name(ibv_free_dm(dm)));
    ZERO(ibv_dereg_mr(mr));
    printf("freed after it: %s\n", rc_name(ibv_free_dm(dm)));
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
