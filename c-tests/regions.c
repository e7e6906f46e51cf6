/* Regions of special kinds: null, by descriptor, zero-based, re-registered; and ATOMIC WRITE. */
#include "common.h"

#define SIZE 16384

static struct side a, b;

static void show(const char *label, struct ibv_cq *cq)
{
    struct ibv_wc wc = next_wc(cq);

    printf("%s: %s\n", label, ibv_wc_status_str(wc.status));
}

static void connect_again(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    struct ibv_wc wc;

    ZERO(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
    ZERO(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
    while (ibv_poll_cq(a.cq, 1, &wc) > 0 || ibv_poll_cq(b.cq, 1, &wc) > 0)
        ;
    join(&a, &b);
}

static int all(const unsigned char *p, size_t n, unsigned char value)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != value)
            return 0;
    return 1;
}

static void null_region(void)
{
    struct ibv_mr *null = NEED(ibv_alloc_null_mr(a.pd));
    struct ibv_sge list[3] = {sge_of(&a, 0, 100), {.addr = 0x5000, .length = 9000, .lkey = null->lkey}, sge_of(&a, 200, 100)};
    struct ibv_send_wr wr = {
        .wr_id = 1, .sg_list = list, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    printf("-- null\n");
    fill(a.buffer, 300, 1);
    memset(b.buffer, 0xee, SIZE);
    wr.wr.rdma.remote_addr = (uintptr_t)b.buffer;
    wr.wr.rdma.rkey = b.mr->rkey;
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    show("write from it", a.cq);
    printf("  data %s, zeros between %s\n",
           yes(filled(b.buffer, 100, 1) && !memcmp(b.buffer + 9100, a.buffer + 200, 100)), yes(all(b.buffer + 100, 9000, 0)));
    memset(a.buffer, 0, 300);
    wr.opcode = IBV_WR_RDMA_READ;
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    show("read into it", a.cq);
    printf("  data %s\n", yes(filled(a.buffer, 100, 1) && all(a.buffer + 100, 100, 0)));
    /* A receive that wants the last bytes only. */
    {
        struct ibv_recv_wr r = {.wr_id = 2, .sg_list = list + 1, .num_sge = 2}, *bad_r;

        ZERO(ibv_post_recv(a.qp, &r, &bad_r));
        fill(b.buffer, 9100, 2);
        memset(a.buffer, 0, SIZE);
        ZERO(send_one(&b, 3, 0, 9100, IBV_SEND_SIGNALED));
        show("send", b.cq);
        show("received", a.cq);
        printf("  data %s\n", yes(!memcmp(a.buffer + 200, b.buffer + 9000, 100)));
    }
    printf("deregister %s\n", rc_name(ibv_dereg_mr(null)));
}

static void by_descriptor(void)
{
    int fd = memfd_create("c-tests", 0);
    unsigned char *file;
    struct ibv_mr *mr;

    printf("-- by descriptor\n");
    ZERO(ftruncate(fd, SIZE));
    file = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    mr = NEED(ibv_reg_dmabuf_mr(b.pd, 4096 + 64, 8192, 0x10040, fd, ALL_ACCESS));
    fill(a.buffer, 8192, 3);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 8192, 0x10040, mr->rkey));
    show("write", a.cq);
    printf("  data %s\n", yes(filled(file + 4096 + 64, 8192, 3)));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, 0x10040 + 8185, mr->rkey));
    show("past its end", a.cq);
    connect_again();
    ZERO(ibv_dereg_mr(mr));
    printf("beyond the file: %s\n", pointer_name(ibv_reg_dmabuf_mr(b.pd, 4096, SIZE, 0, fd, ALL_ACCESS)));
    printf("iova at another place in the page: %s\n", pointer_name(ibv_reg_dmabuf_mr(b.pd, 0, 4096, 8, fd, ALL_ACCESS)));
    printf("bad flags: %s\n", pointer_name(ibv_reg_dmabuf_mr(b.pd, 0, 4096, 0, fd, IBV_ACCESS_REMOTE_WRITE)));
    close(fd);
    printf("closed descriptor: %s\n", pointer_name(ibv_reg_dmabuf_mr(b.pd, 0, 4096, 0, fd, ALL_ACCESS)));
    printf("no descriptor: %s\n", pointer_name(ibv_reg_dmabuf_mr(b.pd, 0, 4096, 0, -1, ALL_ACCESS)));
    munmap(file, SIZE);
}

static void zero_based(void)
{
    struct ibv_mr *mr = NEED(ibv_reg_mr(b.pd, b.buffer + 1000, 1000, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
    struct ibv_mr *moved = NEED(ibv_reg_mr_iova(b.pd, b.buffer, SIZE, 0x700000000000, ALL_ACCESS));

    printf("-- zero-based\n");
    fill(a.buffer, 1000, 4);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 1000, 0, mr->rkey));
    show("write", a.cq);
    printf("  data %s\n", yes(filled(b.buffer + 1000, 1000, 4)));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 1000, 0x700000000000 + 1000, moved->rkey));
    show("read by iova", a.cq);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 1000, 1, mr->rkey));
    show("past its end", a.cq);
    connect_again();
    ZERO(ibv_dereg_mr(mr));
    ZERO(ibv_dereg_mr(moved));
}

static const char *rereg_name(int result)
{
    return result == 0                                       ? "0"
           : result == IBV_REREG_MR_ERR_INPUT                ? "ERR_INPUT"
           : result == IBV_REREG_MR_ERR_DONT_FORK_NEW        ? "ERR_DONT_FORK_NEW"
           : result == IBV_REREG_MR_ERR_DO_FORK_OLD          ? "ERR_DO_FORK_OLD"
           : result == IBV_REREG_MR_ERR_CMD                  ? "ERR_CMD"
           : result == IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW  ? "ERR_CMD_AND_DO_FORK_NEW"
                                                             : "?";
}

static void reregister(void)
{
    const int where = IBV_REREG_MR_CHANGE_TRANSLATION, who = IBV_REREG_MR_CHANGE_PD, what = IBV_REREG_MR_CHANGE_ACCESS;
    struct ibv_pd *pd = NEED(ibv_alloc_pd(b.context));
    struct ibv_mr *mr = NEED(ibv_reg_mr(b.pd, b.buffer, 4096, ALL_ACCESS));
    unsigned char *gone = pages(4096);
    uint32_t key = mr->rkey;

    printf("-- re-registered\n");
    munmap(gone, 4096);
    printf("nothing to change: %s\n", rereg_name(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0)));
    printf("no address: %s\n", rereg_name(ibv_rereg_mr(mr, where, NULL, NULL, 4096, 0)));
    printf("no PD: %s\n", rereg_name(ibv_rereg_mr(mr, who, NULL, NULL, 0, 0)));
    printf("bad flags: %s\n", rereg_name(ibv_rereg_mr(mr, what, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE)));
    printf("no memory: %s\n", rereg_name(ibv_rereg_mr(mr, where, NULL, gone, 4096, 0)));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 4096, (uintptr_t)b.buffer, mr->rkey));
    show("as it was", a.cq);
    printf("place: %s", rereg_name(ibv_rereg_mr(mr, where, NULL, b.buffer + 4096, 8192, 0)));
    printf(", told %s\n", yes(mr->addr == b.buffer + 4096 && mr->length == 8192 && mr->rkey == key));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 8192, (uintptr_t)b.buffer + 4096, mr->rkey));
    show("new place", a.cq);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 8, (uintptr_t)b.buffer, mr->rkey));
    show("old place", a.cq);
    connect_again();
    printf("access: %s\n", rereg_name(ibv_rereg_mr(mr, what, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)b.buffer + 4096, mr->rkey));
    show("write", a.cq);
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_READ, 0, 8, (uintptr_t)b.buffer + 4096, mr->rkey));
    show("read", a.cq);
    connect_again();
    printf("PD: %s", rereg_name(ibv_rereg_mr(mr, who, pd, NULL, 0, 0)));
    printf(", told %s\n", yes(mr->pd == pd));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)b.buffer + 4096, mr->rkey));
    show("write", a.cq);
    connect_again();
    printf("its PD: %s\n", rc_name(ibv_dealloc_pd(pd)));
    printf("all at once: %s\n", rereg_name(ibv_rereg_mr(mr, where | who | what, b.pd, b.buffer, SIZE, ALL_ACCESS)));
    printf("the other PD: %s\n", rc_name(ibv_dealloc_pd(pd)));
    ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, SIZE, (uintptr_t)b.buffer, mr->rkey));
    show("write", a.cq);
    ZERO(ibv_dereg_mr(mr));
}

static void atomic_write(void)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = a.cq,
        .recv_cq = a.cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = a.pd,
        .send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
    };
    struct ibv_qp *old = a.qp;
    struct ibv_qp_ex *ex;
    struct ibv_wc wc;

    printf("-- atomic write\n");
    fill(a.buffer, 64, 5);
    memset(b.buffer, 0, 64);
    ZERO(rdma_one(&a, 1, IBV_WR_ATOMIC_WRITE, 0, 8, (uintptr_t)b.buffer + 8, b.mr->rkey));
    show("posted", a.cq);
    printf("  data %s\n", yes(all(b.buffer, 8, 0) && filled(b.buffer + 8, 8, 5) && all(b.buffer + 16, 8, 0)));
    ZERO(rdma_one(&a, 1, IBV_WR_ATOMIC_WRITE, 0, 8, (uintptr_t)b.buffer + 4, b.mr->rkey));
    show("not aligned", a.cq);
    connect_again();
    ZERO(rdma_one(&a, 1, IBV_WR_ATOMIC_WRITE, 0, 16, (uintptr_t)b.buffer, b.mr->rkey));
    show("16 bytes", a.cq);
    connect_again();
    ZERO(rdma_one(&a, 1, IBV_WR_ATOMIC_WRITE, 0, 8, (uintptr_t)b.buffer + SIZE, b.mr->rkey));
    show("past the end", a.cq);
    a.qp = NEED(ibv_create_qp_ex(a.context, &init));
    ex = ibv_qp_to_qp_ex(a.qp);
    connect_again();
    ibv_wr_start(ex);
    ex->wr_id = 7;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(ex, b.mr->rkey, (uintptr_t)b.buffer, a.buffer + 1);
    printf("complete %s\n", rc_name(ibv_wr_complete(ex)));
    wc = next_wc(a.cq);
    printf("extended: %s, wr_id %" PRIu64 ", its opcode %s, data %s\n", ibv_wc_status_str(wc.status), wc.wr_id,
           yes(wc.opcode == IBV_WC_ATOMIC_WRITE), yes(!memcmp(b.buffer, a.buffer + 1, 8)));
    ZERO(ibv_destroy_qp(a.qp));
    a.qp = old;
}

int main(void)
{
    struct ibv_context *context;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, SIZE);
    make_side(&b, context, IBV_QPT_RC, SIZE);
    join(&a, &b);
    null_region();
    by_descriptor();
    zero_based();
    reregister();
    atomic_write();
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
