/* Thread domains, parent domains and their allocators. */
#include "common.h"

struct bank {
    struct ibv_pd *pd;
    int out, given, wrong, refuse, use_default;
};

static void *take(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
    struct bank *bank = context;
    void *p;

    if (bank->refuse)
        return NULL;
    if (bank->use_default)
        return IBV_ALLOCATOR_USE_DEFAULT;
    bank->wrong += (bank->pd && pd != bank->pd) || !size || !(type >> 32);
    if (posix_memalign(&p, alignment < sizeof(void *) ? sizeof(void *) : alignment, size))
        return NULL;
    memset(p, 0, size);
    bank->out++;
    bank->given++;
    return p;
}

static void give(struct ibv_pd *pd, void *context, void *p, uint64_t type)
{
    struct bank *bank = context;

    bank->wrong += pd != bank->pd || !(type >> 32);
    bank->out--;
    free(p);
}

static struct ibv_cq *make_cq(struct ibv_context *context, struct ibv_pd *parent)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 16,
                                       .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD | IBV_CQ_INIT_ATTR_MASK_FLAGS,
                                       .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
                                       .parent_domain = parent};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);

    return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

int main(void)
{
    struct ibv_parent_domain_init_attr attr = {0};
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 10, .max_sge = 2}};
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2}, .qp_type = IBV_QPT_RC};
    struct ibv_td_init_attr td_init = {0};
    struct ibv_context *context;
    struct ibv_pd *pd, *parent, *plain;
    struct ibv_srq *srq;
    struct ibv_td *td;
    struct bank bank = {0};
    struct side a, b;

    start();
    context = open_device();
    pd = NEED(ibv_alloc_pd(context));
    td = NEED(ibv_alloc_td(context, &td_init));
    td_init.comp_mask = 1;
    printf("unknown bits: thread domain %s", pointer_name(ibv_alloc_td(context, &td_init)));
    attr.pd = pd;
    attr.comp_mask = 1u << 20;
    printf(", parent domain %s\n", pointer_name(ibv_alloc_parent_domain(context, &attr)));
    attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    printf("allocators that are NULL: %s\n", pointer_name(ibv_alloc_parent_domain(context, &attr)));
    attr.comp_mask = 0;
    attr.pd = NULL;
    printf("no PD: %s\n", pointer_name(ibv_alloc_parent_domain(context, &attr)));

    attr.pd = pd;
    plain = NEED(ibv_alloc_parent_domain(context, &attr));
    printf("its PD: %s, of the same number %s\n", rc_name(ibv_dealloc_pd(pd)), yes(plain->handle == pd->handle));

    attr.td = td;
    attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    attr.alloc = take;
    attr.free = give;
    attr.pd_context = &bank;
    parent = NEED(ibv_alloc_parent_domain(context, &attr));
    bank.pd = parent;
    printf("its thread domain: %s\n", rc_name(ibv_dealloc_td(td)));
    printf("CQ on a plain PD: %s\n", pointer_name(make_cq(context, pd)));

    memset(&a, 0, sizeof(a));
    a.context = context;
    a.size = 4096;
    a.buffer = pages(a.size);
    a.pd = parent;
    a.mr = NEED(ibv_reg_mr(plain, a.buffer, a.size, ALL_ACCESS));
    ZERO(ibv_query_gid(context, PORT, gid_index(), &a.gid));
    a.cq = NEED(make_cq(context, parent));
    printf("CQ: %d\n", bank.out);
    init.send_cq = init.recv_cq = a.cq;
    a.qp = NEED(ibv_create_qp(parent, &init));
    printf("QP: %d\n", bank.out);
    srq = NEED(ibv_create_srq(parent, &srq_init));
    printf("SRQ: %d\n", bank.out);
    printf("in use: %s\n", rc_name(ibv_dealloc_pd(parent)));
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    fill(a.buffer, 100, 1);
    ZERO(recv_one(&b, 1, 0, 4096));
    ZERO(send_one(&a, 2, 0, 100, IBV_SEND_SIGNALED));
    show_next("send", a.cq);
    show_next("recv", b.cq);
    ZERO(recv_one(&a, 3, 0, 4096));
    ZERO(send_one(&b, 4, 0, 100, 0));
    show_next("recv", a.cq);
    ZERO(ibv_resize_cq(a.cq, 100));
    printf("CQ resized: %d in use, %d given\n", bank.out, bank.given);

    bank.refuse = 1;
    printf("no memory: CQ %s", pointer_name(make_cq(context, parent)));
    printf(", QP %s", pointer_name(ibv_create_qp(parent, &init)));
    printf(", SRQ %s\n", pointer_name(ibv_create_srq(parent, &srq_init)));
    bank.refuse = 0;
    bank.use_default = 1;
    ZERO(ibv_destroy_srq(srq));
    srq = NEED(ibv_create_srq(parent, &srq_init));
    printf("the default: %d\n", bank.out);
    ZERO(ibv_destroy_srq(srq));
    ZERO(ibv_destroy_qp(a.qp));
    ZERO(ibv_destroy_cq(a.cq));
    ZERO(ibv_dereg_mr(a.mr));
    munmap(a.buffer, a.size);
    drop_side(&b);
    printf("all gone: %d in use, %d wrong\n", bank.out, bank.wrong);
    printf("parent %s, ", rc_name(ibv_dealloc_pd(parent)));
    printf("plain parent %s, ", rc_name(ibv_dealloc_pd(plain)));
    printf("thread domain %s, ", rc_name(ibv_dealloc_td(td)));
    printf("PD %s\n", rc_name(ibv_dealloc_pd(pd)));
    ZERO(ibv_close_device(context));
    return 0;
}
