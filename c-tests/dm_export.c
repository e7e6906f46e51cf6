/* Device memory as a dma-buf: a descriptor that is mapped, registered, and outlives the object. */
#include "common.h"

int main(void)
{
    struct ibv_alloc_dm_attr attr = {.length = 5000};
    char text[8] = "", *mapped;
    struct ibv_context *context;
    struct ibv_mr *mr, *again;
    struct ibv_dm *dm;
    struct side a, b;
    int fd, second;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    dm = NEED(ibv_alloc_dm(context, &attr));
    ZERO(ibv_memcpy_to_dm(dm, 0, "device", 8));
    fd = ibv_dm_export_dmabuf_fd(dm);
    second = ibv_dm_export_dmabuf_fd(dm);
    printf("exported %s, twice %s, close-on-exec %s\n", yes(fd > 2), yes(second > 2 && second != fd),
           yes((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0));
    close(second);
    mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        die("mmap");
    printf("mapped: %s, cannot be made smaller %s\n", mapped, yes(ftruncate(fd, 0) != 0));

    /* As a region of its own kind, from an offset on. */
    mr = NEED(ibv_reg_dmabuf_mr(b.pd, 4096, 4096, 4096, fd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    memcpy(a.buffer, "written", 8);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, 4096 + 100, mr->rkey));
    show_next("write", a.cq);
    ZERO(ibv_memcpy_from_dm(text, dm, 4196, 8));
    printf("in the device memory: %s, mapped: %s\n", text, mapped + 4196);
    printf("beyond it: %s\n", pointer_name(ibv_reg_dmabuf_mr(b.pd, 4096, 8192, 4096, fd, IBV_ACCESS_LOCAL_WRITE)));

    printf("freed: %s\n", rc_name(ibv_free_dm(dm)));
    memcpy(a.buffer, "outlive", 8);
    ZERO(rdma_one(&a, 2, IBV_WR_RDMA_WRITE, 0, 8, 4096 + 200, mr->rkey));
    show_next("write", a.cq);
    printf("mapped: %s\n", mapped + 4296);
    ZERO(ibv_dereg_mr(mr));
    again = NEED(ibv_reg_dmabuf_mr(b.pd, 0, 4096, 0, fd, IBV_ACCESS_LOCAL_WRITE));
    ZERO(ibv_dereg_mr(again));
    close(fd);
    munmap(mapped, 8192);

    /* What comes after is zero again. */
    dm = NEED(ibv_alloc_dm(context, &attr));
    ZERO(ibv_memcpy_from_dm(text, dm, 0, 8));
    printf("the next one begins with zeros %s\n", yes(!memcmp(text, "\0\0\0\0\0\0\0", 8)));
    ZERO(ibv_free_dm(dm));
    drop_side(&a);
    drop_side(&b);
    ZERO(ibv_close_device(context));
    return 0;
}
