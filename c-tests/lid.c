/* An InfiniBand-looking port: a LID, and addresses without GRH, connected and by datagram. */
#include "common.h"

#define GRH 40

static struct side a, b;
static uint16_t lid;

static int rtr_by_lid(struct ibv_qp *qp, uint32_t dest, uint16_t dlid)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = dest,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.dlid = dlid, .sl = 3, .port_num = PORT},
    };

    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static void connected(struct ibv_context *context)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    ZERO(to_init(a.qp));
    ZERO(to_init(b.qp));
    printf("another LID: %s\n", rc_name(rtr_by_lid(a.qp, b.qp->qp_num, (uint16_t)(lid ^ 1))));
    ZERO(rtr_by_lid(a.qp, b.qp->qp_num, lid));
    ZERO(rtr_by_lid(b.qp, a.qp->qp_num, lid));
    ZERO(to_rts(a.qp, 0));
    ZERO(to_rts(b.qp, 0));
    ZERO(ibv_query_qp(a.qp, &attr, IBV_QP_AV, &init));
    printf("queried: LID %s, sl %d, is_global %d\n", yes(attr.ah_attr.dlid == lid), attr.ah_attr.sl,
           attr.ah_attr.is_global);
    fill(a.buffer, 100, 1);
    ZERO(recv_one(&b, 2, 0, 4096));
    ZERO(send_one(&a, 1, 0, 100, IBV_SEND_SIGNALED));
    show_next("send", a.cq);
    show_next("recv", b.cq);
    printf("data %s\n", yes(filled(b.buffer, 100, 1)));
    drop_side(&a);
    drop_side(&b);
}

static void datagrams(struct ibv_context *context)
{
    struct ibv_ah_attr attr = {.dlid = lid, .sl = 2, .port_num = PORT};
    struct ibv_send_wr wr = {.wr_id = 1, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_sge sge;
    struct ibv_ah *ah, *back;
    struct ibv_wc wc;

    make_side(&a, context, IBV_QPT_UD, 4096);
    make_side(&b, context, IBV_QPT_UD, 4096);
    join(&a, &b);
    ah = NEED(ibv_create_ah(a.pd, &attr));
    fill(a.buffer, 100, 2);
    sge = sge_of(&a, 0, 100);
    wr.sg_list = &sge;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = b.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    ZERO(recv_one(&b, 2, 0, 4096));
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    show_next("datagram", a.cq);
    wc = next_wc(b.cq);
    show_wc("recv", &wc);
    printf("GRH %s, slid %s, sl %d, data %s\n", yes((wc.wc_flags & IBV_WC_GRH) != 0), yes(wc.slid == lid), wc.sl,
           yes(filled(b.buffer + GRH, 100, 2)));
    back = NEED(ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)(void *)b.buffer, PORT));
    fill(b.buffer, 50, 3);
    sge = sge_of(&b, 0, 50);
    wr.wr.ud.ah = back;
    wr.wr.ud.remote_qpn = wc.src_qp;
    ZERO(recv_one(&a, 3, 1024, 2048));
    ZERO(ibv_post_send(b.qp, &wr, &bad));
    show_next("back", b.cq);
    show_next("recv", a.cq);
    printf("data %s\n", yes(filled(a.buffer + 1024 + GRH, 50, 3)));
    ZERO(ibv_destroy_ah(back));
    ZERO(ibv_destroy_ah(ah));
    drop_side(&a);
    drop_side(&b);
}

int main(void)
{
    struct ibv_context *context;
    struct ibv_port_attr port;
    struct ibv_gid_entry entry;

    start();
    setenv("ANYVERBS_LINK_LAYER", "infiniband", 1);
    context = open_device();
    ZERO(ibv_query_port(context, PORT, &port));
    lid = port.lid;
    printf("link layer %s, LID %s, sm_lid %s, GRH required %s\n",
           port.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "other", yes(lid > 0 && lid < 0xc000),
           yes(port.sm_lid == lid), yes((port.flags & IBV_QPF_GRH_REQUIRED) != 0));
    ZERO(ibv_query_gid_ex(context, PORT, gid_index(), &entry, 0));
    printf("GID type %s, of an interface %s\n", entry.gid_type == IBV_GID_TYPE_IB ? "IB" : "other",
           yes(entry.ndev_ifindex != 0));
    connected(context);
    datagrams(context);
    ZERO(ibv_close_device(context));
    return 0;
}
