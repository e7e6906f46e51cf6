/* Scatter and gather lists and inline data: the length is the sum, whatever the pieces, by both ways of posting. */
#include "route.h"

/* Pieces of a message; a zero ends the list. */
static const uint32_t shapes[][ROUTE_SGE + 1] = {
    {1}, {1, 64}, {64, 1}, {1, 64, 3000, 7}, {3000, 7, 64, 1}, {1000, 1, 1, 1}, {1, 1, 1, 1000}, {7, 7, 7, 7}, {2, 4000},
};
#define SHAPES (sizeof(shapes) / sizeof(*shapes))

/* A message of up to 4096 bytes from pieces that do not lie in order; returns its length, and its bytes. */
static uint32_t pieces(struct route *r, unsigned shape, size_t base, struct ibv_sge *sges, int *n, unsigned char *bytes)
{
    uint32_t length = 0;

    for (*n = 0; shapes[shape][*n]; ++*n) {
        uint32_t piece = shapes[shape][*n];
        size_t offset = base + (size_t)(ROUTE_SGE - 1 - *n) * 4100 + (size_t)*n;

        sges[*n] = route_sge(r, offset, piece);
        memcpy(bytes + length, r->buffer + offset, piece);
        length += piece;
    }
    return length;
}

/* Posts a request with this list by ibv_post_send or by ibv_wr_*. */
static void post(struct route *r, int by_calls, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    struct ibv_qp_ex *ex;

    if (!by_calls) {
        ZERO(ibv_post_send(r->out, wr, &bad));
        return;
    }
    ex = NEED(ibv_qp_to_qp_ex(r->out));
    ibv_wr_start(ex);
    ex->wr_id = wr->wr_id;
    ex->wr_flags = wr->send_flags & ~(unsigned)IBV_SEND_INLINE;
    if (wr->opcode == IBV_WR_RDMA_WRITE)
        ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
    else if (wr->opcode == IBV_WR_RDMA_READ)
        ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
    else
        ibv_wr_send(ex);
    if (is_ud(r))
        ibv_wr_set_ud_addr(ex, r->ah, r->in->qp_num, QKEY);
    if (r->kind == XRC)
        ibv_wr_set_xrc_srqn(ex, r->srqn);
    if (wr->send_flags & IBV_SEND_INLINE) {
        struct ibv_data_buf bufs[16];

        for (int i = 0; i < wr->num_sge; i++)
            bufs[i] = (struct ibv_data_buf){(void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length};
        if (wr->num_sge == 1)
            ibv_wr_set_inline_data(ex, bufs[0].addr, bufs[0].length);
        else
            ibv_wr_set_inline_data_list(ex, (size_t)wr->num_sge, bufs);
    } else if (wr->num_sge == 1) {
        ibv_wr_set_sge(ex, wr->sg_list[0].lkey, wr->sg_list[0].addr, wr->sg_list[0].length);
    } else {
        ibv_wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
    }
    ZERO(ibv_wr_complete(ex));
}

static void sent(struct route *r, unsigned shape, int by_calls)
{
    unsigned char bytes[8192];
    struct ibv_sge sges[ROUTE_SGE];
    struct ibv_send_wr wr;
    struct ibv_wc wc;
    uint32_t length;
    int n, grh = is_ud(r) ? 40 : 0;

    fill(r->buffer, ROUTE_IN, shape * 2 + (unsigned)by_calls);
    memset(r->buffer + ROUTE_IN, 0, ROUTE_IN);
    length = pieces(r, shape, 0, sges, &n, bytes);
    if (is_ud(r) && length > r->mtu)
        return;
    wr = route_wr(r, shape, sges);
    wr.num_sge = n;
    ZERO(route_recv(r, shape, 8192));
    post(r, by_calls, &wr);
    NEXT(r->send_cq, shape, IBV_WC_SUCCESS);
    wc = NEXT(r->recv_cq, shape, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, length + (uint32_t)grh);
    EXPECT(!memcmp(r->buffer + ROUTE_IN + grh, bytes, length), "%s, shape %u", kind_names[r->kind], shape);
}

TEST(lists_of_unequal_lengths_arrive_whole_by_post_send_and_by_wr_calls)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int by_calls = 0; by_calls < 2; by_calls++)
            for (unsigned shape = 0; shape < SHAPES; shape++) {
                struct route r;

                make_route(&r, kind);
                sent(&r, shape, by_calls);
                drop_route(&r);
            }
}

/* Receives of several pieces that match none of the sender's. */
TEST(messages_scatter_over_receive_lists_of_unequal_lengths)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (unsigned to = 0; to < SHAPES; to++) {
            unsigned char bytes[8192], got[8192], layout[8192];
            struct ibv_sge out[ROUTE_SGE], in[ROUTE_SGE];
            struct ibv_recv_wr rwr = {.wr_id = to, .sg_list = in}, *rbad;
            struct ibv_send_wr wr, *bad;
            struct ibv_wc wc;
            struct route r;
            uint32_t length, room, at = 0;
            int n, m, grh;

            make_route(&r, kind);
            grh = is_ud(&r) ? 40 : 0;
            fill(r.buffer, ROUTE_IN, to);
            memset(r.buffer + ROUTE_IN, 0, ROUTE_IN);
            room = pieces(&r, to, ROUTE_IN, in, &m, layout);
            rwr.num_sge = m;
            if (room < (uint32_t)grh + 1) {
                drop_route(&r);
                continue;
            }
            /* As much as fits, in two pieces. */
            length = room - (uint32_t)grh;
            if (length > 4000)
                length = 4000;
            if (grh && length > r.mtu)
                length = r.mtu;
            out[0] = route_sge(&r, 5000, length / 3);
            out[1] = route_sge(&r, 100, length - length / 3);
            n = 2;
            memcpy(bytes, r.buffer + 5000, length / 3);
            memcpy(bytes + length / 3, r.buffer + 100, length - length / 3);
            wr = route_wr(&r, to, out);
            wr.num_sge = n;
            ZERO(post_receives(&r, &rwr, &rbad));
            ZERO(ibv_post_send(r.out, &wr, &bad));
            NEXT(r.send_cq, to, IBV_WC_SUCCESS);
            wc = NEXT(r.recv_cq, to, IBV_WC_SUCCESS);
            EXPECT_EQ(wc.byte_len, length + (uint32_t)grh);
            for (int i = 0; i < m; i++) {
                memcpy(got + at, (void *)(uintptr_t)in[i].addr, in[i].length);
                at += in[i].length;
            }
            EXPECT(!memcmp(got + grh, bytes, length), "%s, shape %u", kind_names[kind], to);
            drop_route(&r);
        }
}

TEST(writes_gather_and_reads_scatter_lists_of_unequal_lengths)
{
    static const enum kind kinds[] = {RC, UC, XRC};

    for (int k = 0; k < 3; k++)
        for (int read = 0; read < 2; read++)
            for (int by_calls = 0; by_calls < 2; by_calls++)
                for (unsigned shape = 0; shape < SHAPES; shape++) {
                    unsigned char bytes[8192], now[8192];
                    struct ibv_sge sges[ROUTE_SGE];
                    struct ibv_send_wr wr;
                    struct route r;
                    uint32_t length;
                    int n;

                    if (read && kinds[k] == UC)
                        continue;
                    make_route(&r, kinds[k]);
                    fill(r.buffer, ROUTE_SIZE, shape + 3);
                    length = pieces(&r, shape, 0, sges, &n, bytes);
                    wr = route_wr(&r, shape, sges);
                    wr.num_sge = n;
                    wr.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
                    wr.wr.rdma.rkey = r.mr->rkey;
                    wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + ROUTE_IN + 13;
                    post(&r, by_calls, &wr);
                    NEXT(r.send_cq, shape, IBV_WC_SUCCESS);
                    pieces(&r, shape, 0, sges, &n, now);
                    EXPECT(!memcmp(read ? now : bytes, r.buffer + ROUTE_IN + 13, length), "%s %s, shape %u",
                           kind_names[kinds[k]], read ? "read" : "write", shape);
                    drop_route(&r);
                }
}

/* Pieces of no bytes add nothing, wherever they stand, and a message may have none at all. */
TEST(empty_pieces_add_nothing)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (unsigned empty = 0; empty < 8; empty++) {
            struct ibv_sge sges[3];
            unsigned char bytes[64];
            struct ibv_send_wr wr;
            struct route r;
            struct ibv_wc wc;
            uint32_t length = 0;
            int grh;

            make_route(&r, kind);
            grh = is_ud(&r) ? 40 : 0;
            fill(r.buffer, 4096, empty);
            for (unsigned i = 0; i < 3; i++) {
                sges[i] = route_sge(&r, i * 100, empty & 1 << i ? 0 : 10 + i);
                memcpy(bytes + length, r.buffer + i * 100, sges[i].length);
                length += sges[i].length;
            }
            wr = route_wr(&r, 1, sges);
            wr.num_sge = 3;
            ZERO(route_recv(&r, 1, 64));
            post(&r, (int)(empty & 1), &wr);
            NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
            wc = NEXT(r.recv_cq, 1, IBV_WC_SUCCESS);
            EXPECT_EQ(wc.byte_len, length + (uint32_t)grh);
            EXPECT(!memcmp(r.buffer + ROUTE_IN + grh, bytes, length));
            wr.num_sge = 0;
            ZERO(route_recv(&r, 2, 64));
            post(&r, 1, &wr);
            wc = NEXT(r.recv_cq, 2, IBV_WC_SUCCESS);
            EXPECT_EQ(wc.byte_len, (uint32_t)grh);
            drop_route(&r);
        }
}

/* k pieces whose sum is the limit, or one byte above it. */
static void inline_list(enum kind kind, int by_calls, int k, uint32_t extra)
{
    unsigned char *bytes = malloc(4096);
    struct ibv_sge sges[16];
    struct ibv_send_wr wr, *bad = NULL;
    struct route r;
    uint32_t total = 0;
    int grh;

    make_route(&r, kind);
    grh = is_ud(&r) ? 40 : 0;
    fill(bytes, 4096, (unsigned)k);
    for (int i = 0; i < k; i++) {
        uint32_t length = i + 1 < k ? r.max_inline / (uint32_t)k : r.max_inline + extra - total;

        sges[i] = (struct ibv_sge){.addr = (uintptr_t)bytes + total, .length = length};
        total += length;
    }
    wr = route_wr(&r, 5, sges);
    wr.num_sge = k;
    wr.send_flags |= IBV_SEND_INLINE;
    ZERO(route_recv(&r, 6, 4096));
    if (extra && !by_calls) {
        REFUSED(ibv_post_send(r.out, &wr, &bad), EINVAL, "max_inline_data");
        EXPECT(bad == &wr);
    } else if (extra) {
        struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(r.out));
        struct ibv_data_buf bufs[16];

        for (int i = 0; i < k; i++)
            bufs[i] = (struct ibv_data_buf){(void *)(uintptr_t)sges[i].addr, sges[i].length};
        said();
        ibv_wr_start(ex);
        ibv_wr_send(ex);
        ibv_wr_set_inline_data_list(ex, (size_t)k, bufs);
        EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
        EXPECT(!is_ours() || strstr(said(), "max_inline_data"));
    } else {
        struct ibv_wc wc;

        post(&r, by_calls, &wr);
        NEXT(r.send_cq, 5, IBV_WC_SUCCESS);
        wc = NEXT(r.recv_cq, 6, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.byte_len, total + (uint32_t)grh);
        EXPECT(!memcmp(r.buffer + ROUTE_IN + grh, bytes, total), "%s, %d pieces", kind_names[kind], k);
    }
    EXPECT(quiet(r.send_cq) && quiet(r.recv_cq));
    drop_route(&r);
    free(bytes);
}

TEST(inline_lists_up_to_the_limit_arrive_whole)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int by_calls = 0; by_calls < 2; by_calls++)
            for (int k = 1; k <= ROUTE_SGE; k++)
                inline_list(kind, by_calls, k, 0);
}

TEST(inline_lists_one_byte_above_the_limit_are_refused_whole)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int by_calls = 0; by_calls < 2; by_calls++)
            for (int k = 1; k <= ROUTE_SGE; k++)
                inline_list(kind, by_calls, k, 1);
}

/* An error within a batch ends it; the next batch is good. */
TEST(an_inline_list_too_long_leaves_the_next_batch_good)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct ibv_data_buf bufs[2];
        struct ibv_sge sge;
        struct ibv_send_wr wr;
        struct ibv_qp_ex *ex;
        struct route r;

        make_route(&r, kind);
        bufs[0] = (struct ibv_data_buf){r.buffer, r.max_inline};
        bufs[1] = bufs[0];
        ex = NEED(ibv_qp_to_qp_ex(r.out));
        ZERO(route_recv(&r, 1, 64));
        ibv_wr_start(ex);
        ibv_wr_send(ex);
        ibv_wr_set_inline_data_list(ex, 2, bufs);
        EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
        sge = route_sge(&r, 0, 8);
        wr = route_wr(&r, 3, &sge);
        post(&r, 1, &wr);
        NEXT(r.send_cq, 3, IBV_WC_SUCCESS);
        NEXT(r.recv_cq, 1, IBV_WC_SUCCESS);
        EXPECT(quiet(r.send_cq) && quiet(r.recv_cq));
        drop_route(&r);
    }
}

/* The lkey means nothing, the memory is registered nowhere, and it may change as soon as the call is over. */
static void inline_from_the_stack(enum kind kind, int by_calls, enum ibv_wr_opcode opcode, int late_receive)
{
    unsigned char stack[64];
    struct ibv_sge sges[2] = {{.addr = (uintptr_t)stack, .length = 40, .lkey = 0xdeadbeef},
                              {.addr = (uintptr_t)stack + 40, .length = 24, .lkey = 0}};
    struct ibv_send_wr wr;
    struct route r;
    int grh;

    make_route(&r, kind);
    grh = is_ud(&r) ? 40 : 0;
    fill(stack, sizeof(stack), 77);
    memset(r.buffer, 0, ROUTE_SIZE);
    wr = route_wr(&r, 3, sges);
    wr.num_sge = 2;
    wr.opcode = opcode;
    wr.send_flags |= IBV_SEND_INLINE;
    if (opcode == IBV_WR_RDMA_WRITE) {
        wr.wr.rdma.rkey = r.mr->rkey;
        wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + ROUTE_IN;
    } else if (!late_receive) {
        ZERO(route_recv(&r, 4, 64));
    }
    post(&r, by_calls, &wr);
    memset(stack, 0x99, sizeof(stack));
    if (opcode == IBV_WR_SEND && late_receive) {
        EXPECT(quiet(r.send_cq), "it completed without a receive");
        ZERO(route_recv(&r, 4, 64));
    }
    NEXT(r.send_cq, 3, IBV_WC_SUCCESS);
    if (opcode == IBV_WR_SEND)
        NEXT(r.recv_cq, 4, IBV_WC_SUCCESS);
    EXPECT(filled(r.buffer + ROUTE_IN + grh, sizeof(stack), 77), "%s: other bytes arrived", kind_names[kind]);
    drop_route(&r);
}

TEST(inline_data_needs_no_lkey_and_is_taken_before_the_call_returns)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int by_calls = 0; by_calls < 2; by_calls++) {
            inline_from_the_stack(kind, by_calls, IBV_WR_SEND, 0);
            if (type_of(kind) != IBV_QPT_UD)
                inline_from_the_stack(kind, by_calls, IBV_WR_RDMA_WRITE, 0);
        }
}

TEST(inline_data_outlives_its_buffer_while_the_receiver_is_not_ready)
{
    static const enum kind kinds[] = {RC, RC_SRQ, XRC};

    for (int k = 0; k < 3; k++)
        for (int by_calls = 0; by_calls < 2; by_calls++)
            inline_from_the_stack(kinds[k], by_calls, IBV_WR_SEND, 1);
}

TEST(inline_is_refused_where_data_comes_in)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD};
    static const enum kind kinds[] = {RC, XRC};

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++) {
            struct ibv_sge sge;
            struct ibv_send_wr wr, *bad = NULL;
            struct route r;

            make_route(&r, kinds[k]);
            sge = route_sge(&r, 0, 8);
            wr = route_wr(&r, 1, &sge);
            wr.opcode = opcodes[i];
            wr.send_flags |= IBV_SEND_INLINE;
            REFUSED(ibv_post_send(r.out, &wr, &bad), EINVAL, "IBV_SEND_INLINE");
            EXPECT(bad == &wr && quiet(r.send_cq));
            drop_route(&r);
        }
}
