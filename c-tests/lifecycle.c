/* Every kind of object made, used and unmade many times: no descriptor, thread or mapping is left behind. */
#include "common.h"

#include <dirent.h>

#define WARM 5
#define ROUNDS 100

static int entries(const char *path)
{
    DIR *dir = NEED(opendir(path));
    int n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int mappings(void)
{
    FILE *maps = NEED(fopen("/proc/self/maps", "r"));
    int n = 0, c;

    while ((c = getc(maps)) != EOF)
        n += c == '\n';
    fclose(maps);
    return n;
}

static void one_round(void)
{
    struct ibv_context *context = open_device();
    struct ibv_comp_channel *channel = NEED(ibv_create_comp_channel(context));
    struct ibv_cq *extra = NEED(ibv_create_cq(context, 10, NULL, channel, 0));
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_alloc_dm_attr dm_attr = {.length = 4096};
    struct ibv_xrcd_init_attr xrcd_attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_parent_domain_init_attr parent = {0};
    struct ibv_ah_attr ah_attr;
    struct side a, b, u;
    struct ibv_srq *srq;
    struct ibv_xrcd *xrcd;
    struct ibv_dm *dm;
    struct ibv_ah *ah;
    struct ibv_pd *pd;
    struct ibv_td *td;

    make_side(&a, context, IBV_QPT_RC, 65536);
    make_side(&b, context, IBV_QPT_RC, 65536);
    make_side(&u, context, IBV_QPT_UD, 4096);
    join(&a, &b);
    ZERO(ibv_resize_cq(b.cq, 300));
    ZERO(recv_one(&b, 1, 0, 65536));
    ZERO(send_one(&a, 1, 0, 65536, IBV_SEND_SIGNALED));
    next_wc(a.cq);
    next_wc(b.cq);
    srq = NEED(ibv_create_srq(a.pd, &srq_attr));
    xrcd = NEED(ibv_open_xrcd(context, &xrcd_attr));
    dm = NEED(ibv_alloc_dm(context, &dm_attr));
    ah_attr = ah_to(&u.gid);
    ah = NEED(ibv_create_ah(u.pd, &ah_attr));
    td = ibv_alloc_td(context, &td_attr);
    if (td) {
        parent.pd = a.pd;
        parent.td = td;
        pd = NEED(ibv_alloc_parent_domain(context, &parent));
        ZERO(ibv_dealloc_pd(pd));
        ZERO(ibv_dealloc_td(td));
    }
    ZERO(ibv_destroy_ah(ah));
    ZERO(ibv_free_dm(dm));
    ZERO(ibv_close_xrcd(xrcd));
    ZERO(ibv_destroy_srq(srq));
    drop_side(&a);
    drop_side(&b);
    drop_side(&u);
    ZERO(ibv_destroy_cq(extra));
    ZERO(ibv_destroy_comp_channel(channel));
    ZERO(ibv_close_device(context));
}

int main(void)
{
    int descriptors, threads, maps;

    start();
    for (int i = 0; i < WARM; i++)
        one_round();
    descriptors = entries("/proc/self/fd");
    threads = entries("/proc/self/task");
    maps = mappings();
    for (int i = 0; i < ROUNDS; i++)
        one_round();
    printf("after %d rounds: more descriptors %s, more threads %s, many more mappings %s\n", ROUNDS,
           yes(entries("/proc/self/fd") > descriptors), yes(entries("/proc/self/task") > threads),
           yes(mappings() > maps + 10));
    return 0;
}
