/* Packet numbers on a wire between two hosts, where packets are lost, repeated and late: every request is done once. */
#include "middle.h"

#define MTU 256
#define FIRST 40
#define SIZE 16384
/* Parts of the far host's memory: what is written, read, counted, and where messages come in. */
#define WRITTEN 0
#define READABLE 4096
#define COUNTER 8192
#define INBOX 12288
#define ROOM 2048

/* What the far host has taken in: both see it. */
struct log {
    unsigned messages;
    struct ibv_wc last;
};

static unsigned char *far_memory;
static struct log *far_log;

static int to_connected(struct side *s, const struct address *theirs, uint32_t psn)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_256,
        .dest_qp_num = theirs->qpn,
        .rq_psn = psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = ah_to(&theirs->gid),
    };

    ZERO(to_init(s->qp));
    ZERO(ibv_modify_qp(s->qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    return to_rts(s->qp, psn);
}

static uint32_t first_psn;

/* Each side tells the other where it is; both begin at the same PSN. */
static struct address connect_by(int fd, struct side *s)
{
    struct address theirs,
        mine = {.qpn = s->qp->qp_num, .rkey = s->mr->rkey, .addr = (uintptr_t)s->buffer, .gid = s->gid};

    tell(fd, &mine, sizeof(mine));
    hear(fd, &theirs, sizeof(theirs));
    ZERO(to_connected(s, &theirs, first_psn));
    together(fd);
    return theirs;
}

static void make_host(struct side *s, unsigned char *memory)
{
    make_side(s, open_device(), IBV_QPT_RC, SIZE);
    ZERO(ibv_dereg_mr(s->mr));
    if (memory)
        s->buffer = memory;
    s->mr = NEED(ibv_reg_mr(s->pd, s->buffer, SIZE, ALL_ACCESS));
}

/* The far host receives until the socket closes. */
static void far(int fd)
{
    struct pollfd near = {.fd = fd, .events = POLLIN};
    struct side s;

    make_host(&s, far_memory);
    ZERO(to_init(s.qp));
    for (unsigned i = 0; i < 8; i++)
        ZERO(recv_one(&s, i, INBOX, ROOM));
    connect_by(fd, &s);
    while (!poll(&near, 1, 0)) {
        struct ibv_wc wc;

        if (ibv_poll_cq(s.cq, 1, &wc) != 1)
            continue;
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        far_log->last = wc;
        __atomic_add_fetch(&far_log->messages, 1, __ATOMIC_RELEASE);
        ZERO(recv_one(&s, wc.wr_id, INBOX, ROOM));
    }
}

struct pair {
    struct side near;
    struct address there;
    pid_t pid;
    int fd;
    uint64_t posted, counted;
    unsigned messages;
};

static void set_up(struct pair *p, uint32_t psn)
{
    memset(p, 0, sizeof(*p));
    first_psn = psn;
    far_memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    far_log = mmap(NULL, sizeof(*far_log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(far_memory != MAP_FAILED && far_log != MAP_FAILED);
    p->pid = with_far(far, &p->fd);
    make_host(&p->near, NULL);
    p->there = connect_by(p->fd, &p->near);
}

static void take_down(struct pair *p)
{
    EXPECT(quiet(p->near.cq));
    close(p->fd);
    ends_well(p->pid);
}

static uint64_t counter(void)
{
    return __atomic_load_n((uint64_t *)(void *)(far_memory + COUNTER), __ATOMIC_ACQUIRE);
}

/* A request from or to the start of the near buffer. */
static void post(struct pair *p, enum ibv_wr_opcode opcode, uint32_t length)
{
    struct ibv_sge sge = sge_of(&p->near, 0, length);
    struct ibv_send_wr wr = send_wr(p->posted++, &sge, opcode), *bad;

    wr.imm_data = htonl(0x01020304);
    wr.wr.rdma.rkey = p->there.rkey;
    wr.wr.rdma.remote_addr = p->there.addr + (opcode == IBV_WR_RDMA_READ ? READABLE : WRITTEN);
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = p->there.addr + COUNTER;
        wr.wr.atomic.rkey = p->there.rkey;
        wr.wr.atomic.compare_add = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 1 : p->counted;
        wr.wr.atomic.swap = p->counted + 1;
    }
    ZERO(ibv_post_send(p->near.qp, &wr, &bad));
}

static void completes(struct pair *p, uint64_t id)
{
    NEXT(p->near.cq, id, IBV_WC_SUCCESS);
}

/* A message that has been acknowledged is in the far host's CQ. */
static void far_has(unsigned messages)
{
    uint64_t end = now_ms() + 10000;

    while (__atomic_load_n(&far_log->messages, __ATOMIC_ACQUIRE) < messages)
        EXPECT(now_ms() < end, "%u messages of %u", far_log->messages, messages);
    EXPECT_EQ(far_log->messages, messages);
}

/* One request with its effect there and here, exactly once. */
static void does_once(struct pair *p, enum ibv_wr_opcode opcode, uint32_t length)
{
    int atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    int immediate = opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    int comes = opcode == IBV_WR_SEND || immediate;
    unsigned seed = (unsigned)p->posted + 1;
    const unsigned char *where = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ? far_memory + INBOX
                                                                                         : far_memory + WRITTEN;
    uint64_t old;

    if (opcode == IBV_WR_RDMA_READ)
        fill(far_memory + READABLE, length, seed);
    else
        fill(p->near.buffer, length, seed);
    post(p, opcode, length);
    completes(p, p->posted - 1);
    if (opcode == IBV_WR_RDMA_READ) {
        EXPECT(filled(p->near.buffer, length, seed), "READ of %u bytes", length);
    } else if (atomic) {
        memcpy(&old, p->near.buffer, 8);
        EXPECT_EQ(old, p->counted);
        p->counted++;
        EXPECT_EQ(counter(), p->counted);
    } else {
        far_has(p->messages += (unsigned)comes);
        EXPECT(filled(where, length, seed), "opcode %d, %u bytes", opcode, length);
        EXPECT(!immediate || ntohl(far_log->last.imm_data) == 0x01020304);
    }
}

static const struct request {
    enum ibv_wr_opcode opcode;
    uint32_t length;
} requests[] = {
    {IBV_WR_SEND, 100},
    {IBV_WR_SEND, 5 * MTU},
    {IBV_WR_SEND_WITH_IMM, 2 * MTU + 1},
    {IBV_WR_RDMA_WRITE, 100},
    {IBV_WR_RDMA_WRITE, 5 * MTU - 1},
    {IBV_WR_RDMA_WRITE_WITH_IMM, 3 * MTU},
    {IBV_WR_RDMA_READ, 100},
    {IBV_WR_RDMA_READ, 5 * MTU},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, 8},
    {IBV_WR_ATOMIC_CMP_AND_SWP, 8},
};
#define REQUESTS (sizeof(requests) / sizeof(requests[0]))

/* Every packet of every request, and of its answer, is treated so, one after the other. */
static void treat_each_packet(enum deed deed, enum from from, uint32_t behind, uint32_t psn)
{
    struct pair p;
    unsigned treated = 0;
    pid_t pid = child();

    /* Hosts and device are a process's own. */
    if (pid) {
        ends_well(pid);
        return;
    }
    set_up(&p, psn);
    for (unsigned r = 0; r < REQUESTS; r++)
        for (unsigned nth = 0;; nth++) {
            /* One that cannot be disturbed any more ends the request before it. */
            does_once(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
            arm((struct rule){.deed = deed, .from = from, .opcode = ANY, .psn = ANY, .nth = nth, .behind = behind});
            does_once(&p, requests[r].opcode, requests[r].length);
            does_once(&p, IBV_WR_SEND, 300);
            if (!fired())
                break;
            treated++;
            EXPECT(nth < 40, "request %u never ends", r);
        }
    EXPECT(treated >= 2 * REQUESTS, "%u packets were treated", treated);
    EXPECT_EQ(state_of(p.near.qp), IBV_QPS_RTS);
    take_down(&p);
    exit(0);
}

TEST(a_request_of_which_any_packet_is_lost_is_done_once)
{
    treat_each_packet(LOSE, NEAR, 0, FIRST);
}

TEST(a_request_of_whose_answer_any_packet_is_lost_is_done_once)
{
    treat_each_packet(LOSE, FAR, 0, FIRST);
}

TEST(a_request_of_which_any_packet_comes_twice_is_done_once)
{
    treat_each_packet(TWICE, NEAR, 0, FIRST);
}

TEST(a_request_of_whose_answer_any_packet_comes_twice_is_done_once)
{
    treat_each_packet(TWICE, FAR, 0, FIRST);
}

TEST(a_request_of_which_any_packet_comes_late_is_done_once)
{
    treat_each_packet(LATE, NEAR, 1, FIRST);
    treat_each_packet(LATE, NEAR, 3, FIRST);
}

TEST(a_request_of_whose_answer_any_packet_comes_late_is_done_once)
{
    treat_each_packet(LATE, FAR, 1, FIRST);
    treat_each_packet(LATE, FAR, 3, FIRST);
}

/* The same where numbers wrap around. */
TEST(lost_packets_around_the_wrap_of_the_psn_are_sent_again)
{
    for (uint32_t psn = 0xffffff; psn >= 0xfffff0; psn -= 5)
        treat_each_packet(LOSE, psn % 2 ? NEAR : FAR, 0, psn);
}

/* WRITE 40, READ 41, WRITE 42: the answer of the READ, which acknowledges 40 and 41, is lost, that of 42 comes. */
TEST(a_read_between_two_writes_whose_answer_is_lost_is_asked_for_again)
{
    const struct seen *again;
    struct pair p;

    set_up(&p, FIRST);
    fill(far_memory + READABLE, 100, 9);
    arm((struct rule){.deed = LOSE, .from = FAR, .opcode = 0x10, .psn = FIRST + 1});
    post(&p, IBV_WR_RDMA_WRITE, 100);
    post(&p, IBV_WR_RDMA_READ, 100);
    post(&p, IBV_WR_RDMA_WRITE, 200);
    for (unsigned i = 0; i < 3; i++)
        completes(&p, i);
    EXPECT(fired());
    EXPECT(filled(p.near.buffer, 100, 9), "the READ");
    again = packet(0, NEAR, READ_REQUEST, FIRST + 1, 1);
    EXPECT(again, "the READ was not asked for again");
    EXPECT_EQ(again->va, p.there.addr + READABLE);
    EXPECT_EQ(again->length, 100);
    does_once(&p, IBV_WR_SEND, 10);
    take_down(&p);
}

/* The same with requests behind the READ that would show if they were done twice. */
TEST(requests_behind_a_read_whose_answer_is_lost_are_done_once)
{
    struct pair p;
    uint64_t old;

    set_up(&p, FIRST);
    fill(far_memory + READABLE, 100, 9);
    arm((struct rule){.deed = LOSE, .from = FAR, .opcode = 0x10, .psn = FIRST + 1});
    post(&p, IBV_WR_RDMA_WRITE, 100);
    post(&p, IBV_WR_RDMA_READ, 100);
    post(&p, IBV_WR_SEND, 50);
    post(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
    post(&p, IBV_WR_SEND, 50);
    for (unsigned i = 0; i < 5; i++)
        completes(&p, i);
    EXPECT(fired());
    memcpy(&old, p.near.buffer, 8);
    EXPECT_EQ(old, 0);
    EXPECT_EQ(counter(), 1);
    far_has(2);
    take_down(&p);
}

/* A READ request comes twice at once; another comes again when three packets of the WRITE behind it are in. */
TEST(a_repeated_read_request_within_a_write_disturbs_neither)
{
    for (unsigned length = 100; length <= 4 * MTU; length += 3 * MTU) {
        unsigned reads = (length + MTU - 1) / MTU;
        struct pair p;
        pid_t pid = child();

        if (pid) {
            ends_well(pid);
            continue;
        }
        set_up(&p, FIRST);
        fill(far_memory + READABLE, length, 9);
        fill(p.near.buffer, 2048, 3);
        arm((struct rule){.deed = TWICE, .from = NEAR, .opcode = READ_REQUEST, .psn = FIRST});
        post(&p, IBV_WR_RDMA_READ, length);
        completes(&p, 0);
        EXPECT(fired());
        EXPECT(filled(p.near.buffer, length, 9));
        fill(p.near.buffer, 2048, 3);
        arm((struct rule){.deed = AGAIN, .from = NEAR, .opcode = READ_REQUEST, .psn = FIRST + reads, .behind = 3});
        post(&p, IBV_WR_RDMA_READ, length);
        completes(&p, 1);
        fill(p.near.buffer, 2048, 4);
        post(&p, IBV_WR_RDMA_WRITE, 8 * MTU);
        completes(&p, 2);
        EXPECT(fired());
        EXPECT(filled(far_memory + WRITTEN, 8 * MTU, 4), "the WRITE");
        EXPECT(filled(p.near.buffer, 8 * MTU, 4), "an answer that nobody waits for has come into memory");
        does_once(&p, IBV_WR_RDMA_READ, length);
        take_down(&p);
        exit(0);
    }
}

/* Of sixteen packets the answer has, each is lost once: the READ is asked for from there on, in its old numbers. Where the machine is
 * too busy to bring what was not lost in time, it may be asked for from an earlier one on. */
TEST(a_read_that_broke_off_is_asked_for_from_there_on)
{
    struct pair p;
    uint32_t psn = FIRST, exact = 0;

    set_up(&p, psn);
    for (uint32_t lost = 0; lost < 16; lost++, psn += 16) {
        unsigned since = mark();
        const struct seen *again;

        fill(far_memory + READABLE, 16 * MTU, lost);
        arm((struct rule){.deed = LOSE, .from = FAR, .opcode = ANY, .psn = psn + lost});
        post(&p, IBV_WR_RDMA_READ, 16 * MTU);
        completes(&p, lost);
        EXPECT(fired());
        EXPECT(filled(p.near.buffer, 16 * MTU, lost), "packet %u was lost", lost);
        again = packet(since, NEAR, READ_REQUEST, ANY, 1);
        EXPECT(again, "the READ was not asked for again");
        uint32_t from = again->psn - psn;

        EXPECT(from <= lost, "packet %u was lost, and asked for is what follows %u", lost, from);
        EXPECT_EQ(again->va, p.there.addr + READABLE + from * MTU);
        EXPECT_EQ(again->length, (16 - from) * MTU);
        exact += from == lost;
    }
    EXPECT(exact >= 4, "only %u of 16 were asked for from the lost packet on", exact);
    take_down(&p);
}

/* A gap is told once, with the number that is missing, and all from there on comes again. */
TEST(a_gap_is_answered_by_one_nak_with_the_missing_number)
{
    struct pair p;
    uint32_t psn = FIRST;

    set_up(&p, psn);
    for (uint32_t lost = 0; lost < 7; lost++, psn += 8) {
        unsigned since = mark(), naks = 0;
        const struct seen *s;

        fill(p.near.buffer, 8 * MTU, lost);
        arm((struct rule){.deed = LOSE, .from = NEAR, .opcode = ANY, .psn = psn + lost});
        post(&p, IBV_WR_RDMA_WRITE, 8 * MTU);
        completes(&p, lost);
        EXPECT(fired());
        EXPECT(filled(far_memory + WRITTEN, 8 * MTU, lost));
        for (unsigned n = 0; (s = packet(since, FAR, ACK, ANY, n)) != NULL; n++)
            if (s->syndrome == 0x60) {
                naks++;
                EXPECT_EQ(s->psn, psn + lost);
            }
        EXPECT_EQ(naks, 1);
        EXPECT(packet(since, NEAR, ANY, psn + 7, 1), "the last packet did not come again");
    }
    take_down(&p);
}

/* A WRITE that comes again is acknowledged again, with the number of what is done, and changes nothing. */
TEST(a_repeated_write_is_acknowledged_and_not_done)
{
    const struct seen *s;
    struct pair p;
    unsigned since;

    set_up(&p, FIRST);
    arm((struct rule){.deed = AGAIN, .from = NEAR, .opcode = WRITE_ONLY, .psn = FIRST, .behind = 2});
    does_once(&p, IBV_WR_RDMA_WRITE, 100);
    does_once(&p, IBV_WR_RDMA_WRITE, 100);
    since = mark();
    does_once(&p, IBV_WR_RDMA_WRITE, 200);
    /* The repetition comes behind the third WRITE and before this. */
    does_once(&p, IBV_WR_SEND, 10);
    EXPECT(fired());
    for (unsigned n = 0; (s = packet(since, FAR, ACK, ANY, n)) != NULL; n++) {
        EXPECT(s->psn == FIRST + 2 || s->psn == FIRST + 3, "PSN %u", s->psn);
        EXPECT(s->syndrome >> 5 == 0, "syndrome 0x%x", s->syndrome);
    }
    EXPECT(filled(far_memory + WRITTEN, 200, 3), "the WRITE was done again");
    take_down(&p);
}

/* MigReq is set, or NICs refuse what comes; the ICRC is what the specification says. */
TEST(every_packet_has_the_bits_that_network_cards_ask_for)
{
    for (int row = 0; row < 2; row++) {
        struct pair p;
        pid_t pid = child();
        unsigned packets;

        if (pid) {
            ends_well(pid);
            continue;
        }
        setenv("C_TESTS_GID", row ? "1" : "0", 1);
        set_up(&p, FIRST);
        for (unsigned r = 0; r < REQUESTS; r++)
            does_once(&p, requests[r].opcode, requests[r].length);
        packets = mark();
        EXPECT(packets >= 2 * REQUESTS);
        for (unsigned i = 0; i < packets; i++) {
            const struct seen *s = &wire->seen[i];

            EXPECT(s->migrated, "packet %u, opcode 0x%02x", i, s->opcode);
            EXPECT(s->icrc_right, "packet %u, opcode 0x%02x", i, s->opcode);
        }
        take_down(&p);
        exit(0);
    }
}
