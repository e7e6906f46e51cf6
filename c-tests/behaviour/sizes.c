/* Messages of every size up to the largest, far offsets, and the bytes of immediate data. */
#include "route.h"

#define MTU 1024
#define ALIAS (16u << 20)

/* So many bytes of address space over 16 MiB of memory: large messages without as much memory. */
static unsigned char *aliased(size_t size)
{
    int fd = memfd_create("alias", MFD_CLOEXEC);
    unsigned char *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (fd < 0 || ftruncate(fd, ALIAS) || base == MAP_FAILED)
        die("a mapping of %zu bytes", size);
    for (size_t at = 0; at < size; at += ALIAS)
        if (mmap(base + at, size - at < ALIAS ? size - at : ALIAS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                 0) == MAP_FAILED)
            die("mmap");
    close(fd);
    return base;
}

static const uint32_t sizes[] = {0,           1,           MTU - 1,      MTU,        MTU + 1,        2 * MTU - 1,
                                 2 * MTU,     2 * MTU + 1, 4095,         4096,       4097,           65535,
                                 65536,       65537,       (1u << 20) - 1, 1u << 20, (1u << 20) + 1, 1u << 24};
#define SIZES (sizeof(sizes) / sizeof(*sizes))

enum how { SEND, WRITE, READ };

static struct ibv_send_wr request(enum how how, unsigned id, struct ibv_sge *sge, uint64_t remote, uint32_t rkey)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
    struct ibv_send_wr wr = send_wr(id, sge, opcodes[how]);

    wr.num_sge = sge->length ? 1 : 0;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    return wr;
}

/* All sizes between two buffers of `d`, checked to the byte in front of and behind them. */
static void all_sizes(enum ibv_qp_type type, enum how how)
{
    struct duo d;

    make_duo_of(&d, type, (1u << 24) + 8192);
    for (unsigned i = 0; i < SIZES; i++) {
        struct side *from = how == READ ? &d.b : &d.a, *to = how == READ ? &d.a : &d.b;
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;
        uint32_t n = sizes[i];

        fill(from->buffer + 3, n, i);
        memset(to->buffer, 0xee, n + 200);
        sge = sge_of(&d.a, how == READ ? 100 : 3, n);
        wr = request(how, i, &sge, (uintptr_t)d.b.buffer + (how == READ ? 3 : 100), d.b.mr->rkey);
        if (how == SEND)
            ZERO(recv_one(&d.b, i, 100, n + 7));
        ZERO(ibv_post_send(d.a.qp, &wr, &bad));
        NEXT(d.a.cq, i, IBV_WC_SUCCESS);
        if (how == SEND)
            EXPECT_EQ(NEXT(d.b.cq, i, IBV_WC_SUCCESS).byte_len, n);
        EXPECT(filled(to->buffer + 100, n, i), "%u bytes", n);
        EXPECT(to->buffer[99] == 0xee && to->buffer[100 + n] == 0xee, "bytes beside %u were written", n);
    }
    drop_duo(&d);
}

TEST(sends_of_every_size_arrive_exactly)
{
    all_sizes(IBV_QPT_RC, SEND);
    all_sizes(IBV_QPT_UC, SEND);
}

TEST(writes_of_every_size_arrive_exactly)
{
    all_sizes(IBV_QPT_RC, WRITE);
    all_sizes(IBV_QPT_UC, WRITE);
}

TEST(reads_of_every_size_arrive_exactly)
{
    all_sizes(IBV_QPT_RC, READ);
}

/* Datagrams: up to the MTU and not one byte more. */
TEST(datagrams_of_every_size_up_to_the_mtu_arrive_exactly)
{
    struct ibv_port_attr port;
    struct route r;
    uint32_t mtu;

    make_route(&r, UD);
    ZERO(ibv_query_port(r.context, PORT, &port));
    mtu = 128u << port.active_mtu;
    for (unsigned i = 0; i < SIZES && sizes[i] <= mtu; i++) {
        fill(r.buffer, mtu, i);
        memset(r.buffer + ROUTE_IN, 0xee, mtu + 100);
        ZERO(route_recv(&r, i, mtu));
        ZERO(route_send(&r, i, sizes[i], IBV_SEND_SIGNALED));
        NEXT(r.send_cq, i, IBV_WC_SUCCESS);
        EXPECT_EQ(NEXT(r.recv_cq, i, IBV_WC_SUCCESS).byte_len, sizes[i] + 40);
        EXPECT(filled(r.buffer + ROUTE_IN + 40, sizes[i], i) && r.buffer[ROUTE_IN + 40 + sizes[i]] == 0xee);
    }
    ZERO(route_recv(&r, 50, 8192));
    ZERO(route_send(&r, 50, 4097, IBV_SEND_SIGNALED));
    NEXT(r.send_cq, 50, IBV_WC_LOC_LEN_ERR);
    EXPECT(quiet(r.recv_cq));
    EXPECT(!is_ours() || strstr(said(), "4097"));
    drop_route(&r);
}

/* What `largest` sends, and how many READs it makes of it. */
static size_t large = (size_t)2 << 30;
static int reads = 1;

/* The completion of a message that takes its time. */
static struct ibv_wc large_done(struct ibv_cq *cq, uint64_t id)
{
    uint64_t end = now_ms() + 45000;
    struct ibv_wc wc;

    while (ibv_poll_cq(cq, 1, &wc) != 1)
        EXPECT(now_ms() < end, "no completion");
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    return wc;
}

/* A peer process: its memory is aliased, so that the largest message fits. */
static void large_peer(int fd)
{
    struct address mine;
    struct side s;
    size_t size = large;
    unsigned char *memory = aliased(size + ALIAS);
    struct ibv_mr *mr;
    struct ibv_sge sge;
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

    make_side(&s, open_device(), IBV_QPT_RC, 4096);
    mr = NEED(ibv_reg_mr(s.pd, memory, size + ALIAS, ALL_ACCESS));
    join_over(fd, &s);
    mine = (struct address){.rkey = mr->rkey, .addr = (uintptr_t)memory};
    tell(fd, &mine, sizeof(mine));
    sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = (uint32_t)size, .lkey = mr->lkey};
    ZERO(ibv_post_recv(s.qp, &wr, &bad));
    together(fd);
    EXPECT_EQ(large_done(s.cq, 1).byte_len, size);
    together(fd);
    ZERO(ibv_dereg_mr(mr));
    drop_side(&s);
}

static void largest(int two_processes)
{
    size_t size = large;
    unsigned char *memory;
    struct address there;
    struct ibv_mr *mr;
    struct ibv_sge sge;
    struct ibv_send_wr wr, *bad;
    struct duo d;
    pid_t other = 0;
    int fd = -1;

    if (two_processes)
        other = with_other(large_peer, &fd);
    memory = aliased(size + ALIAS);
    if (two_processes) {
        d.context = open_device();
        make_side(&d.a, d.context, IBV_QPT_RC, 4096);
        join_over(fd, &d.a);
        hear(fd, &there, sizeof(there));
        together(fd);
    } else {
        make_duo_of(&d, IBV_QPT_RC, 4096);
    }
    mr = NEED(ibv_reg_mr(d.a.pd, memory, size + ALIAS, ALL_ACCESS));
    if (!two_processes) {
        struct ibv_recv_wr rwr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *rbad;
        struct ibv_mr *in = NEED(ibv_reg_mr(d.b.pd, memory, size + ALIAS, ALL_ACCESS));

        there = (struct address){.rkey = in->rkey, .addr = (uintptr_t)memory};
        sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = (uint32_t)size, .lkey = in->lkey};
        ZERO(ibv_post_recv(d.b.qp, &rwr, &rbad));
    }
    sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = (uint32_t)size, .lkey = mr->lkey};
    for (enum how how = SEND; how <= READ; how++) {
        wr = request(how, how, &sge, there.addr, there.rkey);
        for (int i = 0; i < (how == READ ? reads : 1); i++) {
            ZERO(ibv_post_send(d.a.qp, &wr, &bad));
            large_done(d.a.cq, how);
        }
    }
    if (two_processes) {
        together(fd);
        ends_well(other);
    } else {
        EXPECT_EQ(large_done(d.b.cq, 1).byte_len, size);
    }
}

TEST(messages_of_2_gib_go_within_a_process)
{
    struct ibv_port_attr port;

    ZERO(ibv_query_port(open_device(), PORT, &port));
    EXPECT_EQ(port.max_msg_sz, 1u << 31);
    largest(0);
}

TEST(messages_of_2_gib_go_between_processes)
{
    largest(1);
}

/* The peer has nothing to do but to answer a READ, and sleeps whenever the way to this process is full. */
TEST(large_reads_end_where_both_processes_have_one_processor)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    ZERO(sched_getaffinity(0, sizeof(one), &one));
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &one) && kept++)
            CPU_CLR(cpu, &one);
    ZERO(sched_setaffinity(0, sizeof(one), &one));
    /* Through the ring. */
    setenv("ANYVERBS_DIRECT", "0", 1);
    large = (size_t)256 << 20;
    reads = 8;
    largest(1);
}

/* One byte more than 2 GiB, 4 GiB and 8 GiB as the sum of a list: sums do not wrap to something small. */
TEST(messages_above_the_limit_fail_with_local_length_error)
{
    static const uint32_t pieces[][4] = {
        {1u << 31, 1}, {1u << 31, 1u << 31}, {1u << 31, 1u << 31, 5}, {1u << 31, 1u << 31, 1u << 31, 1u << 31},
        {0x80000001u}, {0xffffffffu}, {0xffffffffu, 1}, {0xffffffffu, 0x11},
    };
    unsigned char *memory = aliased(((size_t)4 << 30) + ALIAS);

    for (unsigned i = 0; i < sizeof(pieces) / sizeof(*pieces); i++)
        for (enum how how = SEND; how <= READ; how++) {
            struct ibv_sge sges[4];
            struct ibv_send_wr wr, *bad;
            struct ibv_mr *mr;
            struct duo d;
            int n = 0;

            make_duo_of(&d, IBV_QPT_RC, 4096);
            mr = NEED(ibv_reg_mr(d.a.pd, memory, ((size_t)4 << 30) + ALIAS, ALL_ACCESS));
            for (; n < 4 && pieces[i][n]; n++)
                sges[n] = (struct ibv_sge){.addr = (uintptr_t)memory, .length = pieces[i][n], .lkey = mr->lkey};
            wr = request(how, 1, sges, (uintptr_t)memory, mr->rkey);
            wr.num_sge = n;
            ZERO(recv_one(&d.b, 2, 0, 4096));
            said();
            ZERO(ibv_post_send(d.a.qp, &wr, &bad));
            NEXT(d.a.cq, 1, IBV_WC_LOC_LEN_ERR);
            EXPECT(!is_ours() || strstr(said(), "2147483648"));
            EXPECT_EQ(state_of(d.a.qp), IBV_QPS_ERR);
            ZERO(ibv_dereg_mr(mr));
            drop_duo(&d);
        }
}

/* Offsets beyond 4 GiB in regions larger than that reach the right bytes, and only these. */
TEST(offsets_beyond_4_gib_reach_the_right_bytes)
{
    static const uint64_t offsets[] = {0, 4096, (1ull << 31) - 5, 1ull << 31, (1ull << 32) - 3, 1ull << 32, (5ull << 30) + 7};
    size_t size = (size_t)6 << 30;
    unsigned char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct ibv_mr *mr, *zero_based;
    struct duo d;

    EXPECT(memory != MAP_FAILED);
    make_duo(&d, IBV_QPT_RC);
    mr = NEED(ibv_reg_mr(d.b.pd, memory, size, ALL_ACCESS));
    zero_based = NEED(ibv_reg_mr_iova(d.b.pd, memory, size, 1ull << 40, ALL_ACCESS));
    EXPECT_EQ(mr->length, size);
    for (unsigned i = 0; i < sizeof(offsets) / sizeof(*offsets); i++) {
        fill(d.a.buffer, 5000, i);
        ZERO(rdma_one(&d.a, 1, IBV_WR_RDMA_WRITE, 0, 5000, (uintptr_t)memory + offsets[i], mr->rkey));
        NEXT(d.a.cq, 1, IBV_WC_SUCCESS);
        EXPECT(filled(memory + offsets[i], 5000, i), "offset 0x%llx", (unsigned long long)offsets[i]);
        ZERO(rdma_one(&d.a, 2, IBV_WR_RDMA_READ, 6000, 5000, (1ull << 40) + offsets[i], zero_based->rkey));
        NEXT(d.a.cq, 2, IBV_WC_SUCCESS);
        EXPECT(filled(d.a.buffer + 6000, 5000, i), "offset 0x%llx", (unsigned long long)offsets[i]);
        memset(memory + offsets[i], 0, 5000);
    }
    ZERO(ibv_dereg_mr(mr));
    ZERO(ibv_dereg_mr(zero_based));
    drop_duo(&d);
}

/* Immediate data is the same four bytes on both sides. */
static void immediate(struct route *r, enum ibv_wr_opcode opcode, int by_calls)
{
    static const uint8_t bytes[4] = {1, 2, 3, 4};
    struct ibv_sge sge = route_sge(r, 0, 100);
    struct ibv_send_wr wr = route_wr(r, 1, &sge), *bad;
    struct ibv_wc wc;
    uint32_t imm;
    int grh = is_ud(r) ? 40 : 0, write = opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

    memcpy(&imm, bytes, 4);
    wr.opcode = opcode;
    wr.imm_data = imm;
    fill(r->buffer, 100, 9);
    memset(r->buffer + ROUTE_IN, 0, 1000);
    if (write) {
        wr.wr.rdma.rkey = r->mr->rkey;
        wr.wr.rdma.remote_addr = (uintptr_t)r->buffer + ROUTE_IN + 500;
    }
    ZERO(route_recv(r, 2, 200));
    if (by_calls) {
        struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(r->out));

        ibv_wr_start(ex);
        ex->wr_id = 1;
        ex->wr_flags = IBV_SEND_SIGNALED;
        if (write)
            ibv_wr_rdma_write_imm(ex, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, imm);
        else
            ibv_wr_send_imm(ex, imm);
        if (is_ud(r))
            ibv_wr_set_ud_addr(ex, r->ah, r->in->qp_num, QKEY);
        if (r->kind == XRC)
            ibv_wr_set_xrc_srqn(ex, r->srqn);
        ibv_wr_set_sge(ex, sge.lkey, sge.addr, sge.length);
        ZERO(ibv_wr_complete(ex));
    } else {
        ZERO(ibv_post_send(r->out, &wr, &bad));
    }
    wc = NEXT(r->send_cq, 1, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND);
    wc = NEXT(r->recv_cq, 2, IBV_WC_SUCCESS);
    EXPECT(!memcmp(&wc.imm_data, bytes, 4), "%s: 0x%08x", kind_names[r->kind], ntohl(wc.imm_data));
    EXPECT(wc.wc_flags & IBV_WC_WITH_IMM);
    EXPECT_EQ(wc.opcode, write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
    EXPECT_EQ(wc.byte_len, 100 + (uint32_t)grh);
    EXPECT(filled(r->buffer + ROUTE_IN + (write ? 500 : grh), 100, 9));
    EXPECT(!write || r->buffer[ROUTE_IN] == 0, "a WRITE touched the receive's own buffer");
}

TEST(immediate_data_keeps_its_four_bytes)
{
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int by_calls = 0; by_calls < 2; by_calls++) {
            struct route r;

            make_route(&r, kind);
            immediate(&r, IBV_WR_SEND_WITH_IMM, by_calls);
            if (!is_ud(&r))
                immediate(&r, IBV_WR_RDMA_WRITE_WITH_IMM, by_calls);
            drop_route(&r);
        }
}

/* Immediate data through an extended CQ, and none where none was sent. */
TEST(completions_without_immediate_data_do_not_say_that_they_have_some)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct ibv_wc wc;
        struct route r;

        make_route(&r, kind);
        ZERO(route_recv(&r, 1, 64));
        ZERO(route_send(&r, 1, 64, IBV_SEND_SIGNALED));
        NEXT(r.send_cq, 1, IBV_WC_SUCCESS);
        wc = NEXT(r.recv_cq, 1, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV), 0);
        drop_route(&r);
    }
}

static void imm_peer(int fd)
{
    struct side s;

    make_side(&s, open_device(), IBV_QPT_RC, 65536);
    ZERO(to_init(s.qp));
    for (unsigned i = 0; i < 2; i++)
        ZERO(recv_one(&s, i, 0, 64));
    join_over(fd, &s);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = NEXT(s.cq, i, IBV_WC_SUCCESS);

        EXPECT_EQ(ntohl(wc.imm_data), 0x01020304);
        EXPECT_EQ(wc.opcode, i ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
        EXPECT_EQ(wc.byte_len, 40 + (uint32_t)i);
    }
    together(fd);
    EXPECT(quiet(s.cq));
}

TEST_BETWEEN(immediate_data_keeps_its_four_bytes_between_processes)
{
    struct ibv_sge sge;
    struct ibv_send_wr wr, *bad;
    struct address there;
    struct side s;
    int fd;
    pid_t other = with_other(imm_peer, &fd);

    make_side(&s, open_device(), IBV_QPT_RC, 65536);
    there = join_over(fd, &s);
    sge = sge_of(&s, 0, 40);
    wr = send_wr(0, &sge, IBV_WR_SEND_WITH_IMM);
    wr.imm_data = htonl(0x01020304);
    ZERO(ibv_post_send(s.qp, &wr, &bad));
    NEXT(s.cq, 0, IBV_WC_SUCCESS);
    ZERO(rdma_one(&s, 1, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 41, there.addr, there.rkey));
    NEXT(s.cq, 1, IBV_WC_SUCCESS);
    together(fd);
    ends_well(other);
}

/* SEND_WITH_INV tells which key it ended. */
TEST(send_with_inv_tells_the_invalidated_key)
{
    struct ibv_mw_bind_info info = {.length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    struct ibv_wc wc;
    struct duo d;
    uint32_t rkey;

    make_duo(&d, IBV_QPT_RC);
    mr = NEED(ibv_reg_mr(d.b.pd, d.b.buffer, d.b.size, ALL_ACCESS | IBV_ACCESS_MW_BIND));
    mw = NEED(ibv_alloc_mw(d.b.pd, IBV_MW_TYPE_2));
    info.mr = mr;
    info.addr = (uintptr_t)d.b.buffer;
    rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = info;
    ZERO(ibv_post_send(d.b.qp, &wr, &bad));
    NEXT(d.b.cq, 1, IBV_WC_SUCCESS);
    ZERO(rdma_one(&d.a, 2, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)d.b.buffer, rkey));
    NEXT(d.a.cq, 2, IBV_WC_SUCCESS);
    ZERO(recv_one(&d.b, 3, 0, 64));
    wr = (struct ibv_send_wr){.wr_id = 4, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED};
    wr.invalidate_rkey = rkey;
    ZERO(ibv_post_send(d.a.qp, &wr, &bad));
    NEXT(d.a.cq, 4, IBV_WC_SUCCESS);
    wc = NEXT(d.b.cq, 3, IBV_WC_SUCCESS);
    EXPECT(wc.wc_flags & IBV_WC_WITH_INV);
    EXPECT(!(wc.wc_flags & IBV_WC_WITH_IMM));
    EXPECT_EQ(wc.invalidated_rkey, rkey);
    ZERO(rdma_one(&d.a, 5, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)d.b.buffer, rkey));
    NEXT(d.a.cq, 5, IBV_WC_REM_ACCESS_ERR);
    ZERO(ibv_dealloc_mw(mw));
    ZERO(ibv_dereg_mr(mr));
    drop_duo(&d);
}
