/* UD: the 40 bytes before the data, address handles, Q_Keys, and what is dropped in silence. */
#include "common.h"

#define GRH 40

static struct side a, b;

static int send_to(struct side *s, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint64_t wr_id, uint32_t length)
{
    struct ibv_sge sge = sge_of(s, 8192, length);
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_IMM,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    wr.imm_data = htonl(0xcafe0001);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = qkey;
    return ibv_post_send(s->qp, &wr, &bad);
}

static int checksum_right(const unsigned char *ip)
{
    uint32_t sum = 0;

    for (int i = 0; i < 20; i += 2)
        sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum == 0xffff;
}

static int v4_mapped(const union ibv_gid *gid)
{
    static const unsigned char prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

    return !memcmp(gid->raw, prefix, 12);
}

/* The header that came: IPv4 in its last 20 bytes or IPv6 in all of them. */
static void header(const unsigned char *p)
{
    if (v4_mapped(&a.gid)) {
        printf("  header: version %s, checksum %s, UDP %s, from here %s, to here %s\n", yes(p[20] == 0x45),
               yes(checksum_right(p + 20)), yes(p[29] == 17), yes(!memcmp(p + 32, a.gid.raw + 12, 4)),
               yes(!memcmp(p + 36, b.gid.raw + 12, 4)));
    } else {
        const struct ibv_grh *grh = (const void *)p;

        printf("  header: version %s, checksum yes, UDP %s, from here %s, to here %s\n", yes(p[0] >> 4 == 6),
               yes(grh->next_hdr == 17), yes(!memcmp(&grh->sgid, &a.gid, 16)), yes(!memcmp(&grh->dgid, &b.gid, 16)));
    }
}

static void there_and_back(struct ibv_ah *ah)
{
    static const uint32_t sizes[] = {0, 1, 256, 1000};
    struct ibv_ah *back;
    struct ibv_wc wc;

    for (unsigned i = 0; i < 4; i++) {
        fill(a.buffer + 8192, sizes[i], i);
        ZERO(recv_one(&b, 10 + i, 0, 4096));
        ZERO(send_to(&a, ah, b.qp->qp_num, QKEY, i, sizes[i]));
        show_next("send", a.cq);
        wc = next_wc(b.cq);
        show_wc("  recv", &wc);
        printf("  GRH %s, source %s, data %s\n", yes((wc.wc_flags & IBV_WC_GRH) != 0), yes(wc.src_qp == a.qp->qp_num),
               yes(filled(b.buffer + GRH, sizes[i], i)));
    }
    header(b.buffer);
    /* On Ethernet the completion tells in `sl` that the header is RoCE v2's (8) and whether it is IPv4 (2) or IPv6 (1). */
    printf("  told of it %s\n", yes(wc.sl == (8 | (v4_mapped(&b.gid) ? 2 : 1))));

    back = NEED(ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)(void *)b.buffer, PORT));
    ZERO(recv_one(&a, 20, 0, 4096));
    fill(b.buffer + 8192, 100, 9);
    ZERO(send_to(&b, back, wc.src_qp, QKEY, 21, 100));
    show_next("back", b.cq);
    show_next("  recv", a.cq);
    printf("  data %s\n", yes(filled(a.buffer + GRH, 100, 9)));
    ZERO(ibv_destroy_ah(back));
}

/* The sender is happy; nothing comes. */
static void dropped(struct ibv_ah *ah)
{
    struct ibv_wc wc;

    ZERO(recv_one(&b, 30, 0, 4096));
    ZERO(send_to(&a, ah, b.qp->qp_num, QKEY + 1, 31, 10));
    show_next("wrong Q_Key", a.cq);
    ZERO(send_to(&a, ah, b.qp->qp_num ^ 0xfff, QKEY, 32, 10));
    show_next("no such QP", a.cq);
    ZERO(send_to(&a, ah, b.qp->qp_num, 0x80000000u | 7, 33, 10));
    show_next("Q_Key of the QP itself", a.cq);
    wc = next_wc(b.cq);
    printf("  the first that came: %u bytes\n", wc.byte_len);
    for (int i = 0; i < 3; i++) {
        ZERO(send_to(&a, ah, b.qp->qp_num, QKEY, 34, 10));
        show_next("nobody receives", a.cq);
    }
    ZERO(recv_one(&b, 35, 0, 4096));
    printf("  and nothing was kept %s\n", yes(ibv_poll_cq(b.cq, 1, &wc) == 0));
}

static void refused(void)
{
    struct ibv_ah_attr attr = ah_to(&b.gid);
    struct ibv_ah *ah;
    struct ibv_port_attr port;
    int rc;

    attr.is_global = 0;
    printf("AH without GRH: %s\n", pointer_name(ibv_create_ah(a.pd, &attr)));
    attr = ah_to(&b.gid);
    attr.port_num = 9;
    printf("AH of port 9: %s\n", pointer_name(ibv_create_ah(a.pd, &attr)));
    attr = ah_to(&b.gid);
    attr.grh.sgid_index = 255;
    printf("AH of GID 255: %s\n", pointer_name(ibv_create_ah(a.pd, &attr)));

    attr = ah_to(&b.gid);
    ah = NEED(ibv_create_ah(a.pd, &attr));
    ZERO(ibv_query_port(a.context, PORT, &port));
    rc = send_to(&a, ah, b.qp->qp_num, QKEY, 40, (128u << port.max_mtu) + 1);
    if (rc == 0) {
        struct ibv_wc wc = next_wc(a.cq);

        rc = wc.status != IBV_WC_SUCCESS;
    }
    printf("a message larger than the MTU fails: %s\n", yes(rc != 0));
    ZERO(ibv_destroy_ah(ah));
}

int main(void)
{
    struct ibv_context *context;
    struct ibv_ah_attr attr;
    struct ibv_ah *ah;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_UD, 65536);
    make_side(&b, context, IBV_QPT_UD, 65536);
    for (int i = 0; i < 2; i++) {
        struct side *s = i ? &b : &a;

        ZERO(to_init(s->qp));
        ZERO(to_rtr(s->qp, 0, 0, NULL));
        ZERO(to_rts(s->qp, 0));
    }
    attr = ah_to(&b.gid);
    ah = NEED(ibv_create_ah(a.pd, &attr));
    there_and_back(ah);
    dropped(ah);
    refused();
    ZERO(ibv_destroy_ah(ah));
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
