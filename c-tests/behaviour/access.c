/* Keys, bounds, permissions, protection domains: who is told what, and that no byte moves. */
#include "route.h"

#define SIZE 8192

static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
                                             IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
#define OPCODES 5

enum mistake {
    NO_KEY, WRONG_TAG, KEY_0, DEREGISTERED, PAST_THE_END, ONE_PAST, BEFORE, FAR, WRAPS, READ_ONLY, OTHER_RIGHT,
    OTHER_PD, MISTAKES
};

/* What a target is: a region of `b`, and others over the same memory. */
struct target {
    struct ibv_mr *good, *read_only, *other_right, *other_pd;
    struct ibv_pd *pd;
    uint32_t gone;
};

static int is_atomic(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static void make_target(struct target *t, struct side *b, enum ibv_wr_opcode opcode)
{
    struct ibv_mr *mr = NEED(ibv_reg_mr(b->pd, b->buffer + 4096, SIZE, ALL_ACCESS));
    int others = opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC
                 : is_atomic(opcode)        ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
                                            : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

    t->gone = mr->rkey;
    ZERO(ibv_dereg_mr(mr));
    t->good = NEED(ibv_reg_mr(b->pd, b->buffer + 4096, SIZE, ALL_ACCESS));
    t->read_only = NEED(ibv_reg_mr(b->pd, b->buffer + 4096, SIZE, 0));
    t->other_right = NEED(ibv_reg_mr(b->pd, b->buffer + 4096, SIZE, IBV_ACCESS_LOCAL_WRITE | others));
    t->pd = NEED(ibv_alloc_pd(b->context));
    t->other_pd = NEED(ibv_reg_mr(t->pd, b->buffer + 4096, SIZE, ALL_ACCESS));
}

static void drop_target(struct target *t)
{
    ZERO(ibv_dereg_mr(t->good));
    ZERO(ibv_dereg_mr(t->read_only));
    ZERO(ibv_dereg_mr(t->other_right));
    ZERO(ibv_dereg_mr(t->other_pd));
    ZERO(ibv_dealloc_pd(t->pd));
}

/* Where a request with this mistake goes. */
static struct address aim(const struct target *t, unsigned char *memory, enum mistake mistake, uint32_t length)
{
    struct address a = {.addr = (uintptr_t)memory, .rkey = t->good->rkey};

    switch (mistake) {
    case NO_KEY:
        a.rkey = 0x7fffff00 | (a.rkey & 0xff);
        break;
    case WRONG_TAG:
        a.rkey ^= 0x55;
        break;
    case KEY_0:
        a.rkey = 0;
        break;
    case DEREGISTERED:
        a.rkey = t->gone;
        break;
    case PAST_THE_END:
        a.addr += SIZE;
        break;
    case ONE_PAST:
        a.addr += SIZE - length + (length == 8 ? 8 : 1);
        break;
    case BEFORE:
        a.addr -= length == 8 ? 8 : 1;
        break;
    case FAR:
        a.addr += 1ull << 40;
        break;
    case WRAPS:
        a.addr = -8ull;
        break;
    case READ_ONLY:
        a.rkey = t->read_only->rkey;
        break;
    case OTHER_RIGHT:
        a.rkey = t->other_right->rkey;
        break;
    default:
        a.rkey = t->other_pd->rkey;
        break;
    }
    return a;
}

static int request(struct side *s, enum ibv_wr_opcode opcode, const struct address *to, uint32_t length)
{
    struct ibv_sge sge = sge_of(s, 0, length);
    struct ibv_send_wr wr = send_wr(1, &sge, opcode), *bad;

    if (is_atomic(opcode)) {
        wr.wr.atomic.remote_addr = to->addr;
        wr.wr.atomic.rkey = to->rkey;
        wr.wr.atomic.compare_add = 0xbbbbbbbbbbbbbbbbull;
        wr.wr.atomic.swap = 1;
    } else {
        wr.wr.rdma.remote_addr = to->addr;
        wr.wr.rdma.rkey = to->rkey;
    }
    return ibv_post_send(s->qp, &wr, &bad);
}

static int untouched(const unsigned char *memory, size_t size, unsigned char value)
{
    for (size_t i = 0; i < size; i++)
        if (memory[i] != value)
            return 0;
    return 1;
}

/* The peer in its own process: it hands out addresses with a mistake, then looks at what has become of it. */
static enum mistake mistake_used;
static enum ibv_wr_opcode opcode_used;

static void responder_fails(struct side *b)
{
    struct ibv_async_event event = next_event(b->context);

    EXPECT(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b->qp, "%s",
           ibv_event_type_str(event.event_type));
    EXPECT_EQ(state_of(b->qp), IBV_QPS_ERR);
    NEXT(b->cq, 9, IBV_WC_WR_FLUSH_ERR);
    EXPECT(untouched(b->buffer, 4 * SIZE, 0xbb), "memory was touched");
}

static void peer(int fd)
{
    struct target t;
    struct side b;
    struct address to;

    make_side(&b, open_device(), IBV_QPT_RC, 4 * SIZE);
    memset(b.buffer, 0xbb, 4 * SIZE);
    make_target(&t, &b, opcode_used);
    join_over(fd, &b);
    ZERO(recv_one(&b, 9, 0, 64));
    to = aim(&t, b.buffer + 4096, mistake_used, is_atomic(opcode_used) ? 8 : 64);
    tell(fd, &to, sizeof(to));
    together(fd);
    responder_fails(&b);
    together(fd);
    drop_target(&t);
    drop_side(&b);
}

static void refused_remotely(enum ibv_wr_opcode opcode, enum mistake mistake, int two_processes)
{
    struct target t;
    struct side a, b;
    struct address to;
    uint32_t length = is_atomic(opcode) ? 8 : 64;
    pid_t pid = 0;
    int fd = -1;

    mistake_used = mistake;
    opcode_used = opcode;
    if (two_processes)
        pid = with_other(peer, &fd);
    make_side(&a, open_device(), IBV_QPT_RC, SIZE);
    memset(a.buffer, 0xaa, SIZE);
    if (two_processes) {
        join_over(fd, &a);
        hear(fd, &to, sizeof(to));
    } else {
        make_side(&b, a.context, IBV_QPT_RC, 4 * SIZE);
        memset(b.buffer, 0xbb, 4 * SIZE);
        make_target(&t, &b, opcode);
        join(&a, &b);
        ZERO(recv_one(&b, 9, 0, 64));
        to = aim(&t, b.buffer + 4096, mistake, length);
    }
    ZERO(request(&a, opcode, &to, length));
    ZERO(send_one(&a, 2, 0, 8, 0));
    NEXT(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
    NEXT(a.cq, 2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(state_of(a.qp), IBV_QPS_ERR);
    EXPECT(untouched(a.buffer, SIZE, 0xaa), "the requester's memory was touched");
    if (is_ours()) {
        const char *text = said();

        EXPECT(strstr(text, text_of("0x%llx", (unsigned long long)to.addr)), "no address in: %s", text);
        EXPECT(strstr(text, text_of("%x", to.rkey)), "no rkey in: %s", text);
    }
    if (two_processes) {
        together(fd);
        together(fd);
        ends_well(pid);
    } else {
        responder_fails(&b);
        drop_target(&t);
        drop_side(&b);
    }
    drop_side(&a);
}

#define EACH_MISTAKE(first, last)                                                                                     \
    for (int o = 0; o < OPCODES; o++)                                                                                 \
        for (enum mistake mistake = first; mistake <= last; mistake++)

TEST(remote_accesses_that_are_not_allowed_leave_both_qps_in_err_and_memory_as_it_was)
{
    EACH_MISTAKE(NO_KEY, OTHER_RIGHT)
        refused_remotely(opcodes[o], mistake, 0);
}

TEST_BETWEEN(remote_accesses_that_are_not_allowed_between_processes_do_the_same)
{
    EACH_MISTAKE(NO_KEY, OTHER_RIGHT)
        refused_remotely(opcodes[o], mistake, 1);
}

TEST(an_rkey_of_another_pd_is_a_remote_access_error)
{
    EACH_MISTAKE(OTHER_PD, OTHER_PD)
        refused_remotely(opcodes[o], mistake, 0);
}

TEST_BETWEEN(an_rkey_of_another_pd_in_another_process_is_a_remote_access_error)
{
    EACH_MISTAKE(OTHER_PD, OTHER_PD)
        refused_remotely(opcodes[o], mistake, 1);
}

/* The QP's own access flags are asked before the region's. */
TEST(a_qp_that_does_not_allow_remote_access_refuses_it_as_invalid)
{
    for (int o = 0; o < OPCODES; o++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .qp_access_flags = 0};
        struct address to;
        struct duo d;

        make_duo(&d, IBV_QPT_RC);
        ZERO(ibv_modify_qp(d.b.qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
        memset(d.b.buffer, 0xbb, d.b.size);
        to = (struct address){.addr = (uintptr_t)d.b.buffer, .rkey = d.b.mr->rkey};
        ZERO(request(&d.a, opcodes[o], &to, 8));
        NEXT(d.a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
        expect_event(d.context, IBV_EVENT_QP_REQ_ERR, d.b.qp);
        EXPECT_EQ(state_of(d.b.qp), IBV_QPS_ERR);
        EXPECT(untouched(d.b.buffer, d.b.size, 0xbb));
        EXPECT(!is_ours() || strstr(said(), "qp_access_flags"));
        drop_duo(&d);
    }
}

/* UC: nobody is told, nothing moves, both go on. */
TEST(writes_of_uc_that_are_not_allowed_are_dropped)
{
    for (enum mistake mistake = 0; mistake < MISTAKES; mistake++) {
        struct target t;
        struct address to;
        struct duo d;

        make_duo(&d, IBV_QPT_UC);
        memset(d.b.buffer, 0xbb, d.b.size);
        make_target(&t, &d.b, IBV_WR_RDMA_WRITE);
        to = aim(&t, d.b.buffer + 4096, mistake, 64);
        ZERO(request(&d.a, IBV_WR_RDMA_WRITE, &to, 64));
        NEXT(d.a.cq, 1, IBV_WC_SUCCESS);
        ZERO(recv_one(&d.b, 2, 0, 64));
        ZERO(send_one(&d.a, 3, 0, 8, IBV_SEND_SIGNALED));
        NEXT(d.a.cq, 3, IBV_WC_SUCCESS);
        NEXT(d.b.cq, 2, IBV_WC_SUCCESS);
        EXPECT(untouched(d.b.buffer + 64, d.b.size - 64, 0xbb), "mistake %d", mistake);
        EXPECT(no_event(d.context));
        drop_target(&t);
        drop_duo(&d);
    }
}

/* Without bytes there is nothing to protect. */
TEST(requests_of_no_bytes_ask_for_no_key)
{
    static const enum ibv_wr_opcode empty[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (int i = 0; i < 2; i++) {
        struct duo d;

        make_duo(&d, IBV_QPT_RC);
        ZERO(rdma_one(&d.a, 1, empty[i], 0, 0, 0, 0));
        NEXT(d.a.cq, 1, IBV_WC_SUCCESS);
        EXPECT_EQ(state_of(d.b.qp), IBV_QPS_RTS);
        drop_duo(&d);
    }
}

/* The first and the last byte of a region belong to it. */
TEST(accesses_at_the_edges_of_a_region_are_allowed)
{
    for (int o = 0; o < OPCODES; o++)
        for (int last = 0; last < 2; last++) {
            uint32_t length = is_atomic(opcodes[o]) ? 8 : 1;
            struct target t;
            struct address to;
            struct duo d;

            make_duo(&d, IBV_QPT_RC);
            make_target(&t, &d.b, opcodes[o]);
            ZERO(recv_one(&d.b, 5, 0, 64));
            to = (struct address){.addr = (uintptr_t)d.b.buffer + 4096 + (last ? SIZE - length : 0), .rkey = t.good->rkey};
            ZERO(request(&d.a, opcodes[o], &to, length));
            NEXT(d.a.cq, 1, IBV_WC_SUCCESS);
            drop_target(&t);
            drop_duo(&d);
        }
}

/* Local keys: each opcode, each mistake; the sender alone fails. */
TEST(an_lkey_that_is_not_allowed_is_a_local_protection_error)
{
    static const enum ibv_wr_opcode all[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                             IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};

    for (int o = 0; o < 5; o++)
        for (int mistake = 0; mistake < 6; mistake++) {
            struct ibv_mr *no_write;
            struct ibv_sge sge;
            struct ibv_send_wr wr, *bad;
            struct duo d;

            if (mistake == 5 && o < 2)
                continue;
            make_duo(&d, IBV_QPT_RC);
            no_write = NEED(ibv_reg_mr(d.a.pd, d.a.buffer, d.a.size, 0));
            memset(d.b.buffer, 0xbb, d.b.size);
            ZERO(recv_one(&d.b, 2, 0, 64));
            sge = sge_of(&d.a, 0, 8);
            if (mistake == 0)
                sge.lkey = 0;
            if (mistake == 1)
                sge.lkey ^= 0x5a5a00;
            if (mistake == 2)
                sge.lkey ^= 0x5a;
            if (mistake == 3)
                sge.addr += d.a.size - 7;
            if (mistake == 4)
                sge.addr -= 1;
            if (mistake == 5)
                sge.lkey = no_write->lkey;
            wr = send_wr(1, &sge, all[o]);
            if (o >= 3) {
                wr.wr.atomic.remote_addr = (uintptr_t)d.b.buffer;
                wr.wr.atomic.rkey = d.b.mr->rkey;
            } else {
                wr.wr.rdma.remote_addr = (uintptr_t)d.b.buffer;
                wr.wr.rdma.rkey = d.b.mr->rkey;
            }
            ZERO(ibv_post_send(d.a.qp, &wr, &bad));
            NEXT(d.a.cq, 1, IBV_WC_LOC_PROT_ERR);
            EXPECT_EQ(state_of(d.a.qp), IBV_QPS_ERR);
            EXPECT_EQ(state_of(d.b.qp), IBV_QPS_RTS);
            EXPECT(!is_ours() || strstr(said(), text_of("0x%llx+8", (unsigned long long)sge.addr)));
            if (o < 3)
                EXPECT(untouched(d.b.buffer, d.b.size, 0xbb));
            EXPECT(quiet(d.b.cq), "the receiver has seen it");
            ZERO(ibv_dereg_mr(no_write));
            drop_duo(&d);
        }
}

/* A domain is a wall: local keys of another one, for what goes out and what comes in. */
TEST(an_lkey_of_another_pd_is_a_local_protection_error)
{
    static const enum ibv_wr_opcode all[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                             IBV_WR_ATOMIC_FETCH_AND_ADD};

    for (enum kind kind = 0; kind < KINDS; kind++)
        for (int o = 0; o < 4; o++) {
            struct ibv_pd *pd;
            struct ibv_mr *mr;
            struct ibv_sge sge;
            struct ibv_send_wr wr, *bad;
            struct route r;

            if (o && (is_ud(&(struct route){.kind = kind}) || (o > 1 && type_of(kind) == IBV_QPT_UC)))
                continue;
            make_route(&r, kind);
            ZERO(route_recv(&r, 2, 64));
            pd = NEED(ibv_alloc_pd(r.context));
            mr = NEED(ibv_reg_mr(pd, r.buffer, ROUTE_SIZE, ALL_ACCESS));
            sge = route_sge(&r, 0, 8);
            sge.lkey = mr->lkey;
            wr = route_wr(&r, 1, &sge);
            wr.opcode = all[o];
            if (o == 3) {
                wr.wr.atomic.remote_addr = (uintptr_t)r.buffer;
                wr.wr.atomic.rkey = r.mr->rkey;
            } else if (o) {
                wr.wr.rdma.remote_addr = (uintptr_t)r.buffer;
                wr.wr.rdma.rkey = r.mr->rkey;
            }
            said();
            ZERO(ibv_post_send(r.out, &wr, &bad));
            NEXT(r.send_cq, 1, IBV_WC_LOC_PROT_ERR);
            EXPECT(!is_ours() || strstr(said(), "another protection domain"));
            EXPECT(quiet(r.recv_cq));
            ZERO(ibv_dereg_mr(mr));
            ZERO(ibv_dealloc_pd(pd));
            drop_route(&r);
        }
}

TEST(a_receive_with_an_lkey_of_another_pd_fails_both_sides)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct ibv_pd *pd;
        struct ibv_mr *mr;
        struct ibv_sge sge;
        struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad;
        struct route r;
        int reliable = type_of(kind) == IBV_QPT_RC || kind == XRC;

        make_route(&r, kind);
        memset(r.buffer, 0xbb, ROUTE_SIZE);
        pd = NEED(ibv_alloc_pd(r.context));
        mr = NEED(ibv_reg_mr(pd, r.buffer, ROUTE_SIZE, ALL_ACCESS));
        sge = route_sge(&r, ROUTE_IN, 128);
        sge.lkey = mr->lkey;
        ZERO(post_receives(&r, &wr, &bad));
        ZERO(route_send(&r, 1, 8, IBV_SEND_SIGNALED));
        NEXT(r.send_cq, 1, reliable ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS);
        NEXT(r.recv_cq, 2, IBV_WC_LOC_PROT_ERR);
        EXPECT(untouched(r.buffer, ROUTE_SIZE, 0xbb));
        EXPECT(!is_ours() || strstr(said(), "another protection domain"));
        ZERO(ibv_dereg_mr(mr));
        ZERO(ibv_dealloc_pd(pd));
        drop_route(&r);
    }
}

/* The SRQ's domain counts for its requests, not the QP's. */
TEST(requests_of_an_srq_are_of_the_pd_of_the_srq)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC};

    for (int i = 0; i < 2; i++)
        for (int of_srq = 0; of_srq < 2; of_srq++) {
            struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
            struct ibv_sge sge;
            struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad;
            struct side a, b;
            struct ibv_pd *pd;
            struct ibv_mr *mr;
            struct ibv_srq *srq;

            make_side(&a, open_device(), types[i], 4096);
            make_side(&b, a.context, types[i], 4096);
            pd = NEED(ibv_alloc_pd(a.context));
            mr = NEED(ibv_reg_mr(pd, b.buffer, 4096, ALL_ACCESS));
            srq = NEED(ibv_create_srq(pd, &init));
            ZERO(ibv_destroy_qp(b.qp));
            b.qp = make_qp(&b, types[i], srq);
            join(&a, &b);
            sge = sge_of(&b, 0, 64);
            sge.lkey = of_srq ? mr->lkey : b.mr->lkey;
            ZERO(ibv_post_srq_recv(srq, &wr, &bad));
            ZERO(send_one(&a, 1, 0, 8, IBV_SEND_SIGNALED));
            NEXT(a.cq, 1, of_srq || i ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR);
            NEXT(b.cq, 2, of_srq ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR);
            ZERO(ibv_destroy_qp(b.qp));
            ZERO(ibv_destroy_srq(srq));
            ZERO(ibv_dereg_mr(mr));
            ZERO(ibv_dealloc_pd(pd));
        }
}

TEST(an_address_handle_of_another_pd_is_a_local_protection_error)
{
    for (int by_calls = 0; by_calls < 2; by_calls++) {
        struct ibv_ah_attr to;
        struct ibv_pd *pd;
        struct ibv_ah *ah;
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;
        struct route r;

        make_route(&r, UD);
        to = ah_to(&r.gid);
        pd = NEED(ibv_alloc_pd(r.context));
        ah = NEED(ibv_create_ah(pd, &to));
        ZERO(route_recv(&r, 2, 64));
        sge = route_sge(&r, 0, 8);
        if (by_calls) {
            struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(r.out));

            ibv_wr_start(ex);
            ex->wr_id = 1;
            ex->wr_flags = 0;
            ibv_wr_send(ex);
            ibv_wr_set_ud_addr(ex, ah, r.in->qp_num, QKEY);
            ibv_wr_set_sge(ex, sge.lkey, sge.addr, 8);
            ZERO(ibv_wr_complete(ex));
        } else {
            wr = route_wr(&r, 1, &sge);
            wr.wr.ud.ah = ah;
            ZERO(ibv_post_send(r.out, &wr, &bad));
        }
        NEXT(r.send_cq, 1, IBV_WC_LOC_PROT_ERR);
        EXPECT(quiet(r.recv_cq));
        EXPECT(!is_ours() || strstr(said(), "wr.ud.ah belongs to another protection domain"));
        ZERO(ibv_destroy_ah(ah));
        ZERO(ibv_dealloc_pd(pd));
        drop_route(&r);
    }
}

TEST(a_pd_that_is_in_use_is_not_deallocated)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct route r;

        make_route(&r, kind);
        REFUSED(ibv_dealloc_pd(r.pd), EBUSY, "ibv_dealloc_pd");
        ZERO(route_recv(&r, 1, 64));
        ZERO(route_send(&r, 2, 8, IBV_SEND_SIGNALED));
        NEXT(r.send_cq, 2, IBV_WC_SUCCESS);
        NEXT(r.recv_cq, 1, IBV_WC_SUCCESS);
        drop_route(&r);
    }
}

TEST(a_message_that_fails_at_its_sender_establishes_no_connection)
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct route r;
        struct ibv_sge sge;
        struct ibv_send_wr wr, *bad;

        if (type_of(kind) == IBV_QPT_UD)
            continue;
        make_route_in_reset(&r, kind);
        ZERO(to_init(r.in));
        ZERO(to_init(r.out));
        ZERO(to_rtr(r.in, r.out->qp_num, 10, &r.gid));
        ZERO(to_rtr(r.out, r.in->qp_num, 20, &r.gid));
        ZERO(to_rts(r.out, 10));
        ZERO(route_recv(&r, 1, 64));
        sge = route_sge(&r, 0, 8);
        sge.lkey ^= 0x5a5a00;
        wr = route_wr(&r, 2, &sge);
        ZERO(ibv_post_send(r.out, &wr, &bad));
        NEXT(r.send_cq, 2, IBV_WC_LOC_PROT_ERR);
        EXPECT(quiet(r.recv_cq));
        EXPECT(no_event(r.context), "%s", kind_names[kind]);
        ZERO(to_rts(r.in, 20));
        drop_route(&r);
    }
}
