/* XRC receivers opened a second time, by number and domain. */
#include "common.h"

static struct ibv_context *context;
static struct ibv_xrcd *xrcd;

static struct ibv_qp *open_it(uint32_t number, enum ibv_qp_type type, struct ibv_xrcd *domain, unsigned mask)
{
    struct ibv_qp_open_attr attr = {
        .comp_mask = mask, .qp_num = number, .xrcd = domain, .qp_context = &context, .qp_type = type};

    return ibv_open_qp(context, &attr);
}

int main(void)
{
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    const unsigned all =
        IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT;
    struct ibv_xrcd *other;
    struct ibv_qp *qp, *second;
    uint32_t number;

    start();
    context = open_device();
    xrcd = NEED(ibv_open_xrcd(context, &domain));
    other = NEED(ibv_open_xrcd(context, &domain));
    init.xrcd = xrcd;
    qp = NEED(ibv_create_qp_ex(context, &init));
    number = qp->qp_num;
    printf("another domain: %s", pointer_name(open_it(number, IBV_QPT_XRC_RECV, other, all)));
    printf(", no such number: %s", pointer_name(open_it(number ^ 1, IBV_QPT_XRC_RECV, xrcd, all)));
    printf(", an RC QP: %s", pointer_name(open_it(number, IBV_QPT_RC, xrcd, all)));
    printf(", no number: %s\n",
           pointer_name(open_it(number, IBV_QPT_XRC_RECV, xrcd, all & ~(unsigned)IBV_QP_OPEN_ATTR_NUM)));
    second = NEED(open_it(number, IBV_QPT_XRC_RECV, xrcd, all));
    printf("another object %s, the same number %s, its own context %s\n", yes(second != qp),
           yes(second->qp_num == number), yes(second->qp_context == &context));
    ZERO(to_init(second));
    printf("moved by one, seen by the other: %s\n", state_name(state_of(qp)));
    ZERO(ibv_destroy_qp(qp));
    printf("the first is gone: %s, its domain %s\n", state_name(state_of(second)), rc_name(ibv_close_xrcd(xrcd)));
    ZERO(ibv_destroy_qp(second));
    printf("both are gone: %s\n", pointer_name(open_it(number, IBV_QPT_XRC_RECV, xrcd, all)));
    ZERO(ibv_close_xrcd(xrcd));
    ZERO(ibv_close_xrcd(other));
    ZERO(ibv_close_device(context));
    return 0;
}
