/* Limits are true: as many as the device says can be made, and one more is refused. */
#include "common.h"

#define MANY(what, max, make, drop)                                                                                   \
    do {                                                                                                              \
        uint32_t n_ = 0, max_ = (uint32_t)(max);                                                                      \
        void **all_ = NEED(calloc(max_ + 1, sizeof(void *)));                                                         \
        while (n_ <= max_ && (all_[n_] = (make)) != NULL)                                                             \
            n_++;                                                                                                     \
        printf("%s: as many as said %s, one more %s", what, yes(n_ == max_), rc_name(n_ <= max_ ? errno : 0));        \
        for (uint32_t i_ = 0; i_ < n_; i_++)                                                                          \
            ZERO(drop(all_[i_]));                                                                                     \
        void *again_ = (make);                                                                                        \
        printf(", and then again %s\n", pointer_name(again_));                                                        \
        if (again_)                                                                                                   \
            ZERO(drop(again_));                                                                                       \
        free(all_);                                                                                                   \
    } while (0)

int main(void)
{
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_recv_wr = 1}};
    struct ibv_context *context;
    struct ibv_cq *cq;
    struct ibv_device_attr attr;
    struct ibv_ah_attr address;
    union ibv_gid gid;
    struct ibv_pd *pd;
    char byte;

    start();
    context = open_device();
    ZERO(ibv_query_device(context, &attr));
    ZERO(ibv_query_gid(context, PORT, gid_index(), &gid));
    pd = NEED(ibv_alloc_pd(context));
    ZERO(ibv_dealloc_pd(pd));
    MANY("PDs", attr.max_pd, ibv_alloc_pd(context), ibv_dealloc_pd);
    pd = NEED(ibv_alloc_pd(context));
    MANY("CQs", attr.max_cq, ibv_create_cq(context, 1, NULL, NULL, 0), ibv_destroy_cq);
    MANY("SRQs", attr.max_srq, ibv_create_srq(pd, &srq), ibv_destroy_srq);
    MANY("MRs", attr.max_mr, ibv_reg_mr(pd, &byte, 1, 0), ibv_dereg_mr);
    MANY("MWs", attr.max_mw, ibv_alloc_mw(pd, IBV_MW_TYPE_2), ibv_dealloc_mw);
    qp.send_cq = qp.recv_cq = cq = NEED(ibv_create_cq(context, 1, NULL, NULL, 0));
    MANY("QPs", attr.max_qp, ibv_create_qp(pd, &qp), ibv_destroy_qp);
    ZERO(ibv_destroy_cq(cq));
    address = ah_to(&gid);
    MANY("AHs", attr.max_ah, ibv_create_ah(pd, &address), ibv_destroy_ah);
    ZERO(ibv_dealloc_pd(pd));
    ZERO(ibv_close_device(context));
    return 0;
}
