/* Datagrams: the 40 bytes in front, Q_Keys, GIDs and address handles. */
#include "route.h"

static int v4_mapped(const union ibv_gid *gid)
{
    static const unsigned char prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

    return !memcmp(gid->raw, prefix, 12);
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

static int send_by(struct route *r, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t length)
{
    struct ibv_sge sge = route_sge(r, 0, length);
    struct ibv_send_wr wr = route_wr(r, 1, &sge), *bad;

    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = qkey;
    return ibv_post_send(r->out, &wr, &bad);
}

/* The 40 bytes at p of a datagram with traffic class 0xb8 and hop limit 17. */
static void header_is_right(const unsigned char *p, const struct ibv_wc *wc, const union ibv_gid *from,
                            const union ibv_gid *to)
{
    const struct ibv_grh *grh = (const void *)p;

    if (v4_mapped(from)) {
        EXPECT_EQ(p[20], 0x45);
        EXPECT(checksum_right(p + 20));
        EXPECT_EQ(p[29], 17);
        EXPECT_EQ(p[21], 0xb8);
        EXPECT_EQ(p[28], 17);
        EXPECT(!memcmp(p + 32, from->raw + 12, 4) && !memcmp(p + 36, to->raw + 12, 4));
        EXPECT_EQ(wc->sl & 7, 2);
    } else {
        EXPECT_EQ(ntohl(grh->version_tclass_flow) >> 20, 0x6b8);
        EXPECT_EQ(grh->next_hdr, 17);
        EXPECT_EQ(grh->hop_limit, 17);
        EXPECT(!memcmp(&grh->sgid, from, 16) && !memcmp(&grh->dgid, to, 16));
        EXPECT_EQ(wc->sl & 7, 1);
    }
}

/* From each address of this host to each of the same family: the header that comes, and the answer to it. */
static void headers(void)
{
    static const uint32_t sizes[] = {0, 1, 100, 4096};
    struct ibv_gid_entry gids[64];
    struct route r;
    ssize_t n;
    int v4 = 0, v6 = 0;

    make_route(&r, UD);
    n = ibv_query_gid_table(r.context, gids, 64, 0);
    EXPECT(n > 0);
    for (ssize_t from = 0; from < n; from++)
        for (ssize_t to = 0; to < n; to++) {
            struct ibv_ah_attr attr = {.is_global = 1,
                                       .port_num = PORT,
                                       .sl = 3,
                                       .grh = {.dgid = gids[to].gid,
                                               .sgid_index = (uint8_t)gids[from].gid_index,
                                               .hop_limit = 17,
                                               .traffic_class = 0xb8,
                                               .flow_label = 0x12345}};
            int four = v4_mapped(&gids[from].gid);
            struct ibv_ah *ah;

            if (four != v4_mapped(&gids[to].gid))
                continue;
            ah = NEED(ibv_create_ah(r.pd, &attr));
            for (int s = 0; s < 4; s++) {
                uint32_t size = sizes[s] < r.mtu ? sizes[s] : r.mtu;
                unsigned char *p = r.buffer + ROUTE_IN;
                struct ibv_ah_attr back;
                struct ibv_recv_wr rwr = {.wr_id = 8}, *rbad;
                struct ibv_sge in, reply_sge;
                struct ibv_send_wr reply, *bad;
                struct ibv_ah *answer;
                struct ibv_wc wc;

                fill(r.buffer, size, (unsigned)s);
                memset(p, 0xee, 8192);
                ZERO(route_recv(&r, 2, size));
                ZERO(send_by(&r, ah, r.in->qp_num, QKEY, size));
                NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
                wc = NEXT(r.recv_cq, 2, IBV_WC_SUCCESS);
                EXPECT_EQ(wc.byte_len, size + 40);
                EXPECT(wc.wc_flags & IBV_WC_GRH);
                EXPECT_EQ(wc.src_qp, r.out->qp_num);
                EXPECT_EQ(wc.qp_num, r.in->qp_num);
                EXPECT(filled(p + 40, size, (unsigned)s));
                EXPECT(p[40 + size] == 0xee, "a byte behind the datagram was written");
                header_is_right(p, &wc, &gids[from].gid, &gids[to].gid);
                EXPECT(four || ntohl(((const struct ibv_grh *)(const void *)p)->version_tclass_flow) == 0x6b812345);
                *(four ? &v4 : &v6) += 1;
                memset(&back, 0, sizeof(back));
                ZERO(ibv_init_ah_from_wc(r.context, PORT, &wc, (void *)p, &back));
                EXPECT(back.is_global && back.port_num == PORT);
                EXPECT(!memcmp(&back.grh.dgid, &gids[from].gid, 16));
                EXPECT_EQ(back.grh.sgid_index, gids[to].gid_index);
                answer = NEED(ibv_create_ah_from_wc(r.pd, &wc, (void *)p, PORT));
                in = route_sge(&r, ROUTE_IN + 16384, 4200);
                rwr.sg_list = &in;
                rwr.num_sge = 1;
                ZERO(ibv_post_recv(r.out, &rwr, &rbad));
                reply_sge = route_sge(&r, 0, 50);
                reply = send_wr(9, &reply_sge, IBV_WR_SEND);
                reply.wr.ud.ah = answer;
                reply.wr.ud.remote_qpn = wc.src_qp;
                reply.wr.ud.remote_qkey = QKEY;
                ZERO(ibv_post_send(r.in, &reply, &bad));
                NEXT(r.send_cq, 9, IBV_WC_SUCCESS);
                EXPECT_EQ(NEXT(r.recv_cq, 8, IBV_WC_SUCCESS).byte_len, 90);
                ZERO(ibv_destroy_ah(answer));
            }
            ZERO(ibv_destroy_ah(ah));
        }
    EXPECT(v4 + v6 > 0);
    drop_route(&r);
}

TEST(grh_area_of_datagrams_and_their_answers_on_this_machine)
{
    headers();
}

TEST(grh_area_of_datagrams_and_their_answers_by_ipv4_and_ipv6)
{
    own_network();
    headers();
}

/* Two rows of each table at most: between hosts, an IPv4 and an IPv6 address. */
#define ROWS 2

static int rows(struct ibv_context *context, union ibv_gid *gids)
{
    int n = between_hosts() ? ROWS : 1;

    for (int i = 0; i < n; i++)
        ZERO(ibv_query_gid(context, PORT, between_hosts() ? i : gid_index(), &gids[i]));
    return n;
}

static const uint32_t wire_sizes[] = {0, 1, 100, 1024};
#define WIRE_SIZES 4

/* Answers every datagram to where it came from. */
static void answerer(int fd)
{
    union ibv_gid mine[ROWS], theirs[ROWS];
    struct side s;
    int n;

    make_side(&s, open_device(), IBV_QPT_UD, 8192);
    ZERO(to_init(s.qp));
    n = rows(s.context, mine);
    for (unsigned i = 0; i < WIRE_SIZES; i++)
        ZERO(recv_one(&s, i, i * 2048, 2048));
    ZERO(to_rtr(s.qp, 0, 0, NULL));
    ZERO(to_rts(s.qp, 0));
    tell(fd, mine, sizeof(mine));
    tell(fd, &s.qp->qp_num, 4);
    hear(fd, theirs, sizeof(theirs));
    for (int row = 0; row < n; row++)
        for (unsigned i = 0; i < WIRE_SIZES; i++) {
            unsigned char *p = s.buffer + i * 2048;
            struct ibv_sge sge = sge_of(&s, i * 2048 + 40, wire_sizes[i]);
            struct ibv_send_wr wr = send_wr(10, &sge, IBV_WR_SEND), *bad;
            struct ibv_wc wc = NEXT(s.cq, i, IBV_WC_SUCCESS);

            EXPECT_EQ(wc.byte_len, wire_sizes[i] + 40);
            EXPECT(wc.wc_flags & IBV_WC_GRH);
            header_is_right(p, &wc, &theirs[row], &mine[row]);
            EXPECT(filled(p + 40, wire_sizes[i], (unsigned)row + i));
            wr.wr.ud.ah = NEED(ibv_create_ah_from_wc(s.pd, &wc, (void *)p, PORT));
            wr.wr.ud.remote_qpn = wc.src_qp;
            wr.wr.ud.remote_qkey = QKEY;
            ZERO(ibv_post_send(s.qp, &wr, &bad));
            NEXT(s.cq, 10, IBV_WC_SUCCESS);
            ZERO(ibv_destroy_ah(wr.wr.ud.ah));
            ZERO(recv_one(&s, i, i * 2048, 2048));
        }
    together(fd);
    drop_side(&s);
}

TEST_BETWEEN(grh_area_of_datagrams_and_their_answers_between_processes)
{
    union ibv_gid mine[ROWS] = {0}, theirs[ROWS];
    struct side s;
    uint32_t qpn;
    int n, fd;
    pid_t pid = with_other(answerer, &fd);

    make_side(&s, open_device(), IBV_QPT_UD, 8192);
    ZERO(to_init(s.qp));
    ZERO(to_rtr(s.qp, 0, 0, NULL));
    ZERO(to_rts(s.qp, 0));
    n = rows(s.context, mine);
    hear(fd, theirs, sizeof(theirs));
    hear(fd, &qpn, 4);
    tell(fd, mine, sizeof(mine));
    for (int row = 0; row < n; row++) {
        struct ibv_ah_attr to = ah_to(&theirs[row]);

        to.grh.sgid_index = (uint8_t)(between_hosts() ? row : gid_index());
        to.grh.hop_limit = 17;
        to.grh.traffic_class = 0xb8;
        for (unsigned i = 0; i < WIRE_SIZES; i++) {
            struct ibv_sge sge = sge_of(&s, 0, wire_sizes[i]);
            struct ibv_send_wr wr = send_wr(1, &sge, IBV_WR_SEND), *bad;

            fill(s.buffer, wire_sizes[i], (unsigned)row + i);
            wr.wr.ud.ah = NEED(ibv_create_ah(s.pd, &to));
            wr.wr.ud.remote_qpn = qpn;
            wr.wr.ud.remote_qkey = QKEY;
            ZERO(recv_one(&s, 2, 4096, 2048));
            ZERO(ibv_post_send(s.qp, &wr, &bad));
            /* The answer may come before the request's completion has been written. */
            for (unsigned seen = 0; seen != 3;) {
                struct ibv_wc wc = next_wc(s.cq);

                EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
                EXPECT((wc.wr_id == 1 || wc.wr_id == 2) && !(seen & wc.wr_id));
                EXPECT(wc.wr_id == 1 || wc.byte_len == wire_sizes[i] + 40);
                seen |= (unsigned)wc.wr_id;
            }
            EXPECT(filled(s.buffer + 4096 + 40, wire_sizes[i], (unsigned)row + i));
            ZERO(ibv_destroy_ah(wr.wr.ud.ah));
        }
    }
    together(fd);
    ends_well(pid);
    drop_side(&s);
}

/* The first 40 bytes may be a piece of their own. */
TEST(grh_area_may_lie_apart_from_the_data)
{
    for (int with_srq = 0; with_srq < 2; with_srq++)
        for (uint32_t first = 1; first <= 60; first += 13) {
            struct ibv_recv_wr wr = {.wr_id = 2, .num_sge = 2}, *bad;
            struct ibv_sge sges[2];
            unsigned char whole[200];
            struct route r;

            make_route(&r, with_srq ? UD_SRQ : UD);
            fill(r.buffer, 100, 5);
            sges[0] = route_sge(&r, ROUTE_IN + 8000, first);
            sges[1] = route_sge(&r, ROUTE_IN, 200 - first);
            wr.sg_list = sges;
            ZERO(post_receives(&r, &wr, &bad));
            ZERO(route_send(&r, 1, 100, IBV_SEND_SIGNALED));
            NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
            EXPECT_EQ(NEXT(r.recv_cq, 2, IBV_WC_SUCCESS).byte_len, 140);
            memcpy(whole, r.buffer + ROUTE_IN + 8000, first);
            memcpy(whole + first, r.buffer + ROUTE_IN, 200 - first);
            EXPECT(filled(whole + 40, 100, 5));
            drop_route(&r);
        }
}

/* A datagram that does not fit, with its 40 bytes, takes no receive and tells nobody but the log. */
TEST(grh_area_counts_towards_the_room_of_a_receive)
{
    for (int with_srq = 0; with_srq < 2; with_srq++) {
        struct route r;

        make_route(&r, with_srq ? UD_SRQ : UD);
        ZERO(route_recv(&r, 2, 99));
        for (int i = 0; i < 3; i++) {
            said();
            ZERO(route_send(&r, 1, 100, IBV_SEND_SIGNALED));
            NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
            EXPECT(!is_ours() || strstr(said(), "needs 140 bytes"));
        }
        EXPECT(quiet(r.recv_cq));
        ZERO(route_send(&r, 1, 99, IBV_SEND_SIGNALED));
        EXPECT_EQ(NEXT(r.recv_cq, 2, IBV_WC_SUCCESS).byte_len, 139);
        EXPECT_EQ(state_of(r.in), IBV_QPS_RTS);
        drop_route(&r);
    }
}

static void set_qkey(struct ibv_qp *qp, uint32_t qkey)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .qkey = qkey};

    ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY));
}

TEST(qkey_that_is_wrong_drops_the_datagram_in_silence)
{
    static const uint32_t wrong[] = {0, 1, QKEY + 1, QKEY ^ 0x40000000, 0x7fffffff};

    for (int with_srq = 0; with_srq < 2; with_srq++) {
        struct route r;

        make_route(&r, with_srq ? UD_SRQ : UD);
        ZERO(route_recv(&r, 2, 64));
        for (int i = 0; i < 5; i++) {
            said();
            ZERO(send_by(&r, r.ah, r.in->qp_num, wrong[i], 8));
            NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
            EXPECT(quiet(r.recv_cq), "Q_Key 0x%x", wrong[i]);
            EXPECT(!is_ours() || strstr(said(), text_of("Q_Key is 0x%08x", wrong[i])));
        }
        ZERO(send_by(&r, r.ah, r.in->qp_num, QKEY, 8));
        NEXT(r.recv_cq, 2, IBV_WC_SUCCESS);
        EXPECT_EQ(state_of(r.out), IBV_QPS_RTS);
        EXPECT_EQ(state_of(r.in), IBV_QPS_RTS);
        EXPECT(no_event(r.context));
        drop_route(&r);
    }
}

/* The high bit means the sending QP's own, whatever the other bits are. */
TEST(qkey_with_the_high_bit_means_the_senders_own)
{
    static const uint32_t high[] = {0x80000000, 0x80000001, 0xffffffff, 0x80000000 | QKEY};

    for (int i = 0; i < 4; i++) {
        struct route r;

        make_route(&r, UD);
        ZERO(route_recv(&r, 2, 64));
        ZERO(send_by(&r, r.ah, r.in->qp_num, high[i], 8));
        NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
        NEXT(r.recv_cq, 2, IBV_WC_SUCCESS);
        set_qkey(r.out, 77);
        ZERO(route_recv(&r, 3, 64));
        ZERO(send_by(&r, r.ah, r.in->qp_num, high[i], 8));
        NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
        EXPECT(quiet(r.recv_cq));
        set_qkey(r.in, 77);
        ZERO(send_by(&r, r.ah, r.in->qp_num, high[i], 8));
        NEXT(r.recv_cq, 3, IBV_WC_SUCCESS);
        drop_route(&r);
    }
}

/* Datagrams to QPs of other types, and connected QPs whose peer is of another type. */
TEST(datagrams_to_a_connected_qp_are_dropped)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC};

    for (int i = 0; i < 2; i++) {
        struct side a, b;
        struct route r;

        make_route(&r, UD);
        make_side(&a, r.context, types[i], 4096);
        make_side(&b, r.context, types[i], 4096);
        join(&a, &b);
        ZERO(recv_one(&b, 5, 0, 1024));
        for (int n = 0; n < 5; n++) {
            ZERO(send_by(&r, r.ah, b.qp->qp_num, QKEY, 8));
            NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
        }
        EXPECT(quiet(b.cq));
        ZERO(send_one(&a, 6, 0, 8, IBV_SEND_SIGNALED));
        NEXT(a.cq, 6, IBV_WC_SUCCESS);
        EXPECT_EQ(NEXT(b.cq, 5, IBV_WC_SUCCESS).byte_len, 8);
        drop_side(&a);
        drop_side(&b);
        drop_route(&r);
    }
}

TEST(messages_from_a_connected_qp_to_one_of_another_type_are_not_taken)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 3; to++) {
            struct ibv_qp_attr rts = {
                .qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 10, .retry_cnt = 2, .rnr_retry = 7, .max_rd_atomic = 1};
            struct side a, b;

            if (from == to)
                continue;
            make_side(&a, open_device(), types[from], 4096);
            make_side(&b, a.context, types[to], 4096);
            ZERO(to_init(a.qp));
            ZERO(to_init(b.qp));
            ZERO(to_rtr(a.qp, b.qp->qp_num, 1, &b.gid));
            ZERO(to_rtr(b.qp, a.qp->qp_num, 1, &a.gid));
            ZERO(to_rts(b.qp, 1));
            ZERO(ibv_modify_qp(a.qp, &rts,
                               IBV_QP_STATE | IBV_QP_SQ_PSN |
                                   (from == 0 ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                                              : 0)));
            ZERO(recv_one(&b, 5, 0, 1024));
            ZERO(send_one(&a, 6, 0, 8, IBV_SEND_SIGNALED));
            NEXT(a.cq, 6, from == 0 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS);
            EXPECT(quiet(b.cq), "type %d took a message of type %d", to, from);
            EXPECT_EQ(state_of(b.qp), IBV_QPS_RTS);
            drop_side(&a);
            drop_side(&b);
        }
}

/* A dense table: gid_tbl_len rows, all of them valid, by every call that reads it. */
static void gid_table(struct ibv_context *context)
{
    struct ibv_gid_entry entries[256], entry;
    struct ibv_port_attr port;
    union ibv_gid gid;
    ssize_t n;

    ZERO(ibv_query_port(context, PORT, &port));
    n = ibv_query_gid_table(context, entries, 256, 0);
    EXPECT_EQ(n, port.gid_tbl_len);
    for (ssize_t i = 0; i < n; i++) {
        static const union ibv_gid zero;

        EXPECT_EQ(entries[i].gid_index, i);
        EXPECT_EQ(entries[i].port_num, PORT);
        EXPECT_EQ(entries[i].gid_type, IBV_GID_TYPE_ROCE_V2);
        EXPECT(memcmp(&entries[i].gid, &zero, 16));
        ZERO(ibv_query_gid(context, PORT, (int)i, &gid));
        EXPECT(!memcmp(&gid, &entries[i].gid, 16));
        ZERO(ibv_query_gid_ex(context, PORT, (uint32_t)i, &entry, 0));
        EXPECT(!memcmp(&entry, &entries[i], sizeof(entry)));
        for (ssize_t j = 0; j < i; j++)
            EXPECT(memcmp(&entries[i].gid, &entries[j].gid, 16), "rows %d and %d are the same", (int)i, (int)j);
    }
    REFUSED(-ibv_query_gid(context, PORT, (int)n, &gid) * errno, EINVAL, "ibv_query_gid");
    REFUSED(-ibv_query_gid(context, PORT, -1, &gid) * errno, EINVAL, "ibv_query_gid");
    REFUSED(-ibv_query_gid(context, 2, 0, &gid) * errno, EINVAL, "ibv_query_gid");
    REFUSED(ibv_query_gid_ex(context, PORT, (uint32_t)n, &entry, 0), EINVAL, "ibv_query_gid_ex");
    REFUSED(ibv_query_gid_ex(context, 0, 0, &entry, 0), EINVAL, "ibv_query_gid_ex");
    REFUSED(ibv_query_gid_ex(context, PORT, 0, &entry, 1), EOPNOTSUPP, "flags=0x1");
}

TEST(gid_table_is_dense_and_every_call_reads_the_same)
{
    gid_table(open_device());
}

/* The row of an address that goes stays, empty; others keep their index. */
TEST(gid_rows_that_are_empty_are_told_as_such)
{
    struct ibv_gid_entry before[64], after[64], entry;
    struct ibv_context *context;
    union ibv_gid gid, zero = {.raw = {0}}, wanted;
    struct ibv_port_attr port;
    struct ibv_ah_attr attr;
    struct ibv_pd *pd;
    ssize_t n, m;
    uint32_t row = 99;

    own_network();
    if (system("ip addr add 192.0.2.7/24 dev be0 && ip addr add 192.0.2.8/24 dev be0"))
        skip("no second address");
    context = open_device();
    gid_table(context);
    inet_pton(AF_INET6, "::ffff:192.0.2.7", &wanted);
    n = ibv_query_gid_table(context, before, 64, 0);
    for (ssize_t i = 0; i < n; i++)
        if (!memcmp(&before[i].gid, &wanted, 16))
            row = before[i].gid_index;
    EXPECT(row != 99);
    if (system("ip addr del 192.0.2.7/24 dev be0"))
        die("ip");
    EXPECT_EQ(next_event(context).event_type, IBV_EVENT_GID_CHANGE);
    ZERO(ibv_query_gid(context, PORT, (int)row, &gid));
    EXPECT(!memcmp(&gid, &zero, 16));
    REFUSED(ibv_query_gid_ex(context, PORT, row, &entry, 0), ENODATA, "the row is empty");
    m = ibv_query_gid_table(context, after, 64, 0);
    EXPECT_EQ(m, n - 1);
    for (ssize_t i = 0, j = 0; i < n; i++)
        if (before[i].gid_index != row)
            EXPECT(!memcmp(&before[i], &after[j++], sizeof(entry)), "row %d", (int)i);
    ZERO(ibv_query_port(context, PORT, &port));
    EXPECT_EQ(port.gid_tbl_len, n);
    pd = NEED(ibv_alloc_pd(context));
    attr = ah_to(&before[0].gid);
    attr.grh.sgid_index = (uint8_t)row;
    NOT_MADE(ibv_create_ah(pd, &attr), ENODATA, "empty");
    if (system("ip addr add 192.0.2.9/24 dev be0"))
        die("ip");
    EXPECT_EQ(next_event(context).event_type, IBV_EVENT_GID_CHANGE);
    EXPECT_EQ(ibv_query_gid_table(context, after, 64, 0), n);
}

TEST(an_address_handle_needs_a_grh_a_port_and_a_gid_that_are_there)
{
    struct ibv_ah_attr attr;
    struct ibv_ah *ah;
    struct route r;

    make_route(&r, UD);
    attr = ah_to(&r.gid);
    attr.is_global = 0;
    NOT_MADE(ibv_create_ah(r.pd, &attr), EINVAL, "is_global=0");
    attr = ah_to(&r.gid);
    attr.port_num = 0;
    NOT_MADE(ibv_create_ah(r.pd, &attr), EINVAL, "port_num=0");
    attr.port_num = 2;
    NOT_MADE(ibv_create_ah(r.pd, &attr), EINVAL, "port_num=2");
    attr = ah_to(&r.gid);
    attr.grh.sgid_index = 200;
    NOT_MADE(ibv_create_ah(r.pd, &attr), EINVAL, "sgid_index=200");
    attr = ah_to(&r.gid);
    memset(&attr.grh.dgid, 0, 16);
    NOT_MADE(ibv_create_ah(r.pd, &attr), EINVAL, "dgid");
    NOT_MADE(ibv_create_ah(r.pd, NULL), EINVAL, "NULL");
    attr = ah_to(&r.gid);
    ah = NEED(ibv_create_ah(r.pd, &attr));
    EXPECT(ah->pd == r.pd && ah->context == r.context);
    ZERO(ibv_destroy_ah(ah));
    drop_route(&r);
}

/* An address handle serves many QPs of its domain, and may go while they live. */
TEST(an_address_handle_is_free_once_its_sends_are_complete)
{
    struct route r;

    make_route(&r, UD);
    for (unsigned i = 0; i < 200; i++) {
        struct ibv_ah_attr attr = ah_to(&r.gid);
        struct ibv_ah *ah = NEED(ibv_create_ah(r.pd, &attr));

        ZERO(route_recv(&r, i, 64));
        ZERO(send_by(&r, ah, r.in->qp_num, QKEY, 8));
        NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
        ZERO(ibv_destroy_ah(ah));
        NEXT(r.recv_cq, i, IBV_WC_SUCCESS);
    }
    drop_route(&r);
}

/* The LIDs of two InfiniBand-looking hosts. */
#define NEAR_LID 0x11
#define FAR_LID 0x12

static struct ibv_ah_attr by_lid(uint16_t lid)
{
    return (struct ibv_ah_attr){.dlid = lid, .sl = 3, .port_num = PORT};
}

static void connect_by_lid(struct ibv_qp *qp, uint32_t qpn, uint16_t lid)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = IBV_MTU_1024,
                               .dest_qp_num = qpn,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 1,
                               .ah_attr = by_lid(lid)};
    struct ibv_qp_init_attr init;

    ZERO(to_init(qp));
    ZERO(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    ZERO(to_rts(qp, 0));
    ZERO(ibv_query_qp(qp, &attr, IBV_QP_AV, &init));
    EXPECT_EQ(attr.ah_attr.dlid, lid);
    EXPECT(!attr.ah_attr.is_global);
}

/* A connected message each way, then a datagram each way, from `mine` to `theirs`. */
static void talk_by_lid(int fd, uint16_t mine, uint16_t theirs)
{
    struct ibv_context *context = open_device();
    struct ibv_ah_attr to = by_lid(theirs);
    struct ibv_port_attr port;
    struct side rc, ud;
    struct ibv_send_wr wr, *bad;
    struct ibv_sge sge;
    struct ibv_wc wc;
    uint32_t qpns[2];

    ZERO(ibv_query_port(context, PORT, &port));
    EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
    EXPECT_EQ(port.lid, mine);
    EXPECT_EQ(port.active_mtu, IBV_MTU_1024);
    make_side(&rc, context, IBV_QPT_RC, 8192);
    make_side(&ud, context, IBV_QPT_UD, 8192);
    tell(fd, &rc.qp->qp_num, 4);
    tell(fd, &ud.qp->qp_num, 4);
    hear(fd, qpns, 8);
    /* One of the two: what either is told goes to the same place. */
    if (mine < theirs)
        NOT_MADE(ibv_create_ah(ud.pd, &(struct ibv_ah_attr){.dlid = 0x13, .port_num = PORT}), EINVAL, "dlid=0x0013");
    connect_by_lid(rc.qp, qpns[0], theirs);
    ZERO(to_init(ud.qp));
    ZERO(to_rtr(ud.qp, 0, 0, NULL));
    ZERO(to_rts(ud.qp, 0));
    ZERO(recv_one(&rc, 1, 4096, 4096));
    ZERO(recv_one(&ud, 1, 4096, 4096));
    together(fd);
    fill(rc.buffer, 3000, mine);
    ZERO(send_one(&rc, 2, 0, 3000, IBV_SEND_SIGNALED));
    for (int i = 0; i < 2; i++) {
        wc = next_wc(rc.cq);
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    }
    EXPECT(filled(rc.buffer + 4096, 3000, theirs));
    sge = sge_of(&ud, 0, 1024);
    wr = send_wr(2, &sge, IBV_WR_SEND);
    wr.wr.ud.ah = NEED(ibv_create_ah(ud.pd, &to));
    wr.wr.ud.remote_qpn = qpns[1];
    wr.wr.ud.remote_qkey = QKEY;
    fill(ud.buffer, 1024, mine + 1u);
    ZERO(ibv_post_send(ud.qp, &wr, &bad));
    for (int i = 0; i < 2; i++) {
        wc = next_wc(ud.cq);
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        EXPECT(!(wc.opcode & IBV_WC_RECV) || (wc.slid == theirs && wc.src_qp == qpns[1]));
    }
    EXPECT(filled(ud.buffer + 4096 + 40, 1024, theirs + 1u));
    together(fd);
}

static void far_by_lid(int fd)
{
    talk_by_lid(fd, FAR_LID, NEAR_LID);
}

static void hosts_have_lids(const char *near, const char *far)
{
    pid_t pid;
    int fd;

    setenv("C_TESTS_HOSTS", "1500", 1);
    setenv("ANYVERBS_LINK_LAYER", "infiniband", 1);
    setenv("ANYVERBS_LIDS", text_of("0x%x=%s, %d=%s", NEAR_LID, near, FAR_LID, far), 1);
    pid = with_other(far_by_lid, &fd);
    talk_by_lid(fd, NEAR_LID, FAR_LID);
    ends_well(pid);
}

TEST(lids_lead_to_the_hosts_that_have_them)
{
    hosts_have_lids("192.0.2.1", "192.0.2.2");
}

TEST(lids_lead_to_the_hosts_that_have_them_by_ipv6)
{
    hosts_have_lids("fd00:2::1", "fd00:2::2");
}
