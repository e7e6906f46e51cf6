/* Large regions and messages: offsets beyond 4 GiB, odd lengths, and messages that are too long. Memory is sparse. */
#include "common.h"

#define REGION (6ull << 30)
#define FAR (4ull << 30)

static unsigned char *sparse(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

int main(void)
{
    static const uint32_t lengths[] = {1023, 1024, 1025, 65535, 1u << 24};
    struct ibv_context *context;
    struct side a, b;
    struct ibv_port_attr port;
    struct ibv_mr *mr;
    unsigned char *region;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 32u << 20);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    region = sparse(REGION);
    mr = NEED(ibv_reg_mr(b.pd, region, REGION, ALL_ACCESS));
    printf("region of 6 GiB: length %s\n", yes(mr->length == REGION));
    for (unsigned i = 0; i < 5; i++) {
        uint64_t at = FAR + 4096 * i + i;

        fill(a.buffer, lengths[i], i);
        ZERO(rdma_one(&a, i, IBV_WR_RDMA_WRITE, 0, lengths[i], (uintptr_t)region + at, mr->rkey));
        show_next("write", a.cq);
        printf("  %u bytes at 4 GiB and more: %s, none at the same place below: %s\n", lengths[i],
               yes(filled(region + at, lengths[i], i)), yes(region[at - FAR + 1] == 0));
        memset(a.buffer, 0, lengths[i]);
        ZERO(rdma_one(&a, i, IBV_WR_RDMA_READ, 0, lengths[i], (uintptr_t)region + at, mr->rkey));
        show_next("read", a.cq);
        printf("  the same %s\n", yes(filled(a.buffer, lengths[i], i)));
    }
    ZERO(rdma_one(&a, 9, IBV_WR_RDMA_WRITE, 0, 4096, (uintptr_t)region + REGION - 4096, mr->rkey));
    show_next("the last page", a.cq);

    /* Many SGEs whose sum is more than a message may have. */
    ZERO(ibv_query_port(context, PORT, &port));
    {
        struct ibv_mr *local = NEED(ibv_reg_mr(a.pd, region, REGION, IBV_ACCESS_LOCAL_WRITE));
        struct ibv_sge list[3];
        struct ibv_send_wr wr = {
            .wr_id = 10, .sg_list = list, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
        struct ibv_send_wr *bad;
        int rc;

        for (int i = 0; i < 3; i++)
            list[i] = (struct ibv_sge){.addr = (uintptr_t)region, .length = 1u << 30, .lkey = local->lkey};
        wr.wr.rdma.remote_addr = (uintptr_t)region;
        wr.wr.rdma.rkey = mr->rkey;
        rc = ibv_post_send(a.qp, &wr, &bad);
        if (rc == 0) {
            struct ibv_wc wc = next_wc(a.cq);

            rc = wc.status != IBV_WC_SUCCESS;
        }
        printf("3 GiB in one message: fails %s\n", yes(rc != 0 || port.max_msg_sz >= 3u << 30));
        ZERO(ibv_dereg_mr(local));
    }
    ZERO(ibv_dereg_mr(mr));
    munmap(region, REGION);
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
