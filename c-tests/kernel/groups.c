/*
 * groups [-a] [-j INTERFACE] server [ADDRESS] | client PORT [ADDRESS]: two hosts with a UD queue pair each in one multicast group, and one
 * each in another. Either sends to the first group; the other one gets each message once, with the GRH of its packet, and nobody gets
 * anything in the second. What a host hears of itself does not count. -a: attached first, then in RTS; else the other way round.
 * -j: the host joins the IP groups on the interface, where it has one of this name. The groups are of the family of the GID
 * that C_TESTS_GID names.
 */
#include "../common.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

enum { COUNT = 50, ROOM = 1100, LENGTH = 1000, DEPTH = 128, GRH = 40, GROUP_QPN = 0xffffff, HOPS = 64 };
/* Nothing more comes then, milliseconds; the first must come within LIMIT. */
enum { QUIET = 500, LIMIT = 15000 };

struct message {
    uint32_t number, qpn;
    unsigned char rest[LENGTH - 8];
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp[2];
static unsigned char *buffer;
static unsigned seen[COUNT], own, wrong;
static union ibv_gid gid, peer_gid, group[2];
static uint32_t peer;
static int is_v4;

static void post(uint64_t slot)
{
    struct ibv_sge sge = {(uintptr_t)buffer + slot * ROOM, ROOM, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;

    ZERO(ibv_post_recv(qp[slot / DEPTH], &wr, &bad));
}

static int is_from(const unsigned char *grh, const union ibv_gid *src, const union ibv_gid *dst)
{
    if (is_v4)
        return grh[20] >> 4 == 4 && !memcmp(grh + 32, src->raw + 12, 4) && !memcmp(grh + 36, dst->raw + 12, 4);
    return grh[0] >> 4 == 6 && !memcmp(grh + 8, src->raw, 16) && !memcmp(grh + 24, dst->raw, 16);
}

static void take(const struct ibv_wc *wc)
{
    unsigned char *at = buffer + wc->wr_id * ROOM;
    struct message m;

    memcpy(&m, at + GRH, sizeof(m));
    if (wc->status == IBV_WC_SUCCESS && m.qpn == qp[0]->qp_num && wc->src_qp == qp[0]->qp_num &&
        is_from(at, &gid, &group[0])) {
        own++;
    } else if (wc->status != IBV_WC_SUCCESS || wc->byte_len != GRH + LENGTH || !(wc->wc_flags & IBV_WC_GRH) ||
               m.qpn != peer || wc->src_qp != peer || m.number >= COUNT || !filled(m.rest, sizeof(m.rest), m.number) ||
               !is_from(at, &peer_gid, &group[0]) || wc->wr_id >= DEPTH || seen[m.number]) {
        if (!wrong++)
            fprintf(stderr, "queue pair %d: %s, %u bytes, flags %x, from %06x (%06x), number %u\n", (int)(wc->wr_id / DEPTH),
                    ibv_wc_status_str(wc->status), wc->byte_len, wc->wc_flags, wc->src_qp, m.qpn, m.number);
    } else {
        seen[m.number] = 1;
    }
    post(wc->wr_id);
}

static void send_message(struct ibv_ah *ah, uint32_t number)
{
    struct message *m = (struct message *)(buffer + 2 * DEPTH * ROOM);
    struct ibv_sge sge = {(uintptr_t)m, LENGTH, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 2 * DEPTH, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    struct ibv_wc wc;

    m->number = number;
    m->qpn = qp[0]->qp_num;
    fill(m->rest, sizeof(m->rest), number);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = GROUP_QPN;
    wr.wr.ud.remote_qkey = QKEY;
    ZERO(ibv_post_send(qp[0], &wr, &bad));
    while ((wc = next_wc(cq)).wr_id < 2 * DEPTH)
        take(&wc);
    if (wc.status != IBV_WC_SUCCESS)
        die("sending: %s", ibv_wc_status_str(wc.status));
}

/* As a connection manager does; kept until the program ends. */
static void join_ip(const char *interface, const union ibv_gid *to)
{
    unsigned index = if_nametoindex(interface);
    int s = socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

    if (!index)
        return;
    if (is_v4) {
        struct ip_mreqn m = {.imr_ifindex = (int)index};

        memcpy(&m.imr_multiaddr, to->raw + 12, 4);
        rc = setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof(m));
    } else {
        struct ipv6_mreq m = {.ipv6mr_interface = index};

        memcpy(&m.ipv6mr_multiaddr, to->raw, 16);
        rc = setsockopt(s, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m, sizeof(m));
    }
    if (rc)
        die("joining on %s", interface);
}

static void make_qps(int attach_first)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
        .cap = {.max_send_wr = 4, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };

    for (int i = 0; i < 2; i++) {
        qp[i] = NEED(ibv_create_qp(pd, &init));
        if (attach_first)
            ZERO(ibv_attach_mcast(qp[i], &group[i], 0));
        ZERO(to_init(qp[i]));
        ZERO(to_rtr(qp[i], 0, 0, NULL));
        ZERO(to_rts(qp[i], 7));
        if (!attach_first)
            ZERO(ibv_attach_mcast(qp[i], &group[i], 0));
        for (uint64_t slot = 0; slot < DEPTH; slot++)
            post((uint64_t)i * DEPTH + slot);
    }
}

int main(int argc, char **argv)
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    const char *interface = NULL;
    int o, fd, attach_first = 0;
    unsigned got = 0;
    struct ibv_wc wc;

    start();
    while ((o = getopt(argc, argv, "+aj:")) != -1) {
        attach_first |= o == 'a';
        if (o == 'j')
            interface = optarg;
    }
    argv[optind - 1] = argv[0];
    context = open_device();
    ZERO(ibv_query_gid(context, PORT, gid_index(), &gid));
    is_v4 = !memcmp(gid.raw, mapped, sizeof(mapped));
    for (int i = 0; i < 2; i++) {
        char text[40];

        snprintf(text, sizeof(text), is_v4 ? "::ffff:239.77.3.%d" : "ff15::77:3:%d", i + 1);
        inet_pton(AF_INET6, text, &group[i]);
        if (interface)
            join_ip(interface, &group[i]);
    }
    fd = meet(argc - optind + 1, argv + optind - 1);
    pd = NEED(ibv_alloc_pd(context));
    cq = NEED(ibv_create_cq(context, 2 * DEPTH + 8, NULL, NULL, 0));
    buffer = pages((2 * DEPTH + 1) * ROOM);
    mr = NEED(ibv_reg_mr(pd, buffer, (2 * DEPTH + 1) * ROOM, ALL_ACCESS));
    make_qps(attach_first);
    tell(fd, &qp[0]->qp_num, sizeof(peer));
    hear(fd, &peer, sizeof(peer));
    tell(fd, &gid, sizeof(gid));
    hear(fd, &peer_gid, sizeof(gid));
    together(fd);
    struct ibv_ah_attr to = ah_to(&group[0]);
    struct ibv_ah *ah = NEED(ibv_create_ah(pd, &to));
    for (uint32_t i = 0; i < COUNT; i++)
        send_message(ah, i);
    for (uint64_t last = now_ms(); now_ms() < last + (got < COUNT ? LIMIT : QUIET);) {
        if (ibv_poll_cq(cq, 1, &wc) == 1) {
            take(&wc);
            last = now_ms();
        }
        got = 0;
        for (int i = 0; i < COUNT; i++)
            got += seen[i];
    }
    together(fd);
    for (int i = 0; i < 2; i++) {
        ZERO(ibv_detach_mcast(qp[i], &group[i], 0));
        ZERO(ibv_destroy_qp(qp[i]));
    }
    printf("%u of %d messages, %u wrong, %u of its own\n", got, COUNT, wrong, own);
    return got != COUNT || wrong;
}
