/* Regions by ibv_reg_mr_ex, and in buffers that the library allocates. */
#include "common.h"
#include <sys/wait.h>

#define SIZE 16384
#define MANY 1500

int main(void)
{
    struct ibv_context *context;
    struct side a, b;
    struct ibv_mr_init_attr attr = {.length = SIZE, .access = ALL_ACCESS};
    struct ibv_buf *buf;
    struct ibv_mr *mr;
    unsigned char *p;
    struct ibv_buf *many[MANY];
    int fd = memfd_create("c-tests", 0), status, i;
    unsigned char *view;
    pid_t child;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, SIZE);
    make_side(&b, context, IBV_QPT_RC, SIZE);
    join(&a, &b);
    fill(a.buffer, SIZE, 1);

    printf("no mask: %s\n", pointer_name(ibv_reg_mr_ex(b.pd, &attr)));
    attr.comp_mask = 1ull << 40;
    printf("unknown mask: %s\n", pointer_name(ibv_reg_mr_ex(b.pd, &attr)));
    attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA;
    attr.addr = b.buffer;
    attr.iova = 0x10000;
    mr = NEED(ibv_reg_mr_ex(b.pd, &attr));
    printf("address and iova, told %s\n", yes(mr->addr == b.buffer && mr->length == SIZE && mr->pd == b.pd));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 1000, 0x10000, mr->rkey));
    show_next("write", a.cq);
    printf("  data %s\n", yes(filled(b.buffer, 1000, 1)));
    ZERO(ibv_dereg_mr(mr));

    ZERO(ftruncate(fd, SIZE));
    attr.comp_mask = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_IOVA;
    attr.fd = fd;
    attr.fd_offset = 4096;
    attr.length = 4096;
    mr = NEED(ibv_reg_mr_ex(b.pd, &attr));
    ZERO(rdma_one(&a, 2, IBV_WR_RDMA_WRITE, 0, 4096, 0x10000, mr->rkey));
    show_next("write to a file", a.cq);
    p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    printf("  data %s\n", yes(filled(p + 4096, 4096, 1)));
    munmap(p, SIZE);
    ZERO(ibv_dereg_mr(mr));
    close(fd);

    printf("no bytes: %s\n", pointer_name(ibv_alloc_buf(b.pd, 0, &buf)));
    p = NEED(ibv_alloc_buf(b.pd, 10000, &buf));
    printf("on a page: %s\n", yes((uintptr_t)p % 4096 == 0));
    printf("beyond it: %s\n", pointer_name(ibv_reg_buf_mr(b.pd, buf, p, 10001, ALL_ACCESS)));
    printf("by another PD: %s\n", pointer_name(ibv_reg_buf_mr(a.pd, buf, p, 10000, ALL_ACCESS)));
    mr = NEED(ibv_reg_buf_mr(b.pd, buf, p + 100, 9900, ALL_ACCESS));
    ZERO(rdma_one(&a, 3, IBV_WR_RDMA_WRITE, 0, 9900, (uintptr_t)p + 100, mr->rkey));
    show_next("write to it", a.cq);
    printf("  data %s\n", yes(filled(p + 100, 9900, 1)));
    fd = ibv_export_buf_dmabuf_fd(buf);
    printf("as a dma-buf: %s\n", fd < 0 ? rc_name(errno) : "made");
    printf("  close-on-exec %s, of a size that stays %s\n", yes((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0), yes(ftruncate(fd, 0) != 0));
    view = mmap(NULL, 12288, PROT_READ, MAP_SHARED, fd, 0);
    printf("  the same memory %s\n", yes(view != MAP_FAILED && !memcmp(view, p, 12288)));
    munmap(view, 12288);
    close(fd);
    /* A child has it too, and lets go of it without taking it from us. */
    child = fork();
    if (!child) {
        p[0] = 77;
        ibv_free_buf(buf);
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    ZERO(waitpid(child, &status, 0) != child);
    printf("a child writes it and frees it: %s, it is still there %s\n", yes(p[0] == 77 && !status), yes(filled(p + 100, 9900, 1)));
    ZERO(rdma_one(&a, 4, IBV_WR_RDMA_WRITE, 0, 9900, (uintptr_t)p + 100, mr->rkey));
    show_next("write to it", a.cq);
    ZERO(ibv_dereg_mr(mr));
    ibv_free_buf(buf);
    /* More than there are descriptors for. */
    for (i = 0; i < MANY; i++)
        *(unsigned char *)NEED(ibv_alloc_buf(b.pd, 100, &many[i])) = 1;
    fd = dup(0);
    printf("%d buffers leave descriptors to others: %s\n", MANY, yes(fd >= 0 && fd < 600));
    close(fd);
    for (i = 0; i < MANY; i++)
        ibv_free_buf(many[i]);
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
