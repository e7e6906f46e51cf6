/*
 * mesh PORT ROUNDS may-lose|exact ME HOST...: one process on each host, ME its place in the list from 0. Each pair of hosts
 * is joined by LINES queue pairs of RC, UC and UD, all busy at once in both directions: SENDs, WRITEs, READs and atomics.
 * Every byte that arrives is compared. On RC everything arrives exactly once and in order; of UC and UD nothing arrives
 * wrong, twice or, on UC, out of order, and what is lost is counted: nothing may be where "exact" is said.
 */
#include "../common.h"

enum {
    HOSTS = 8,
    LINES = 32,
    WINDOW = 4,
    DEPTH = 4,
    MOST_ROUNDS = 60,
    LONGEST = 8192,
    DATAGRAM = 1000,
    GRH = 40,
    KINDS = 6,
    /* Parts of a line's memory: what it sends, what is written there, what it receives, and the word that is swapped. */
    IN = WINDOW * LONGEST,
    RECEIVED = IN + MOST_ROUNDS * LONGEST,
    WORD = RECEIVED + MOST_ROUNDS * (LONGEST + GRH),
    AREA = WORD + 4096 - WORD % 4096,
    /* What all hosts read, and what all add to, behind the lines. */
    SHARED = LONGEST + 8,
};

enum kind { SEND, WRITE, WRITE_IMM, READ, ADD, SWAP };

struct line {
    enum ibv_qp_type type;
    struct ibv_qp *qp;
    struct ibv_ah *ah;
    uint32_t remote_qpn;
    unsigned begun, done;
    /* The round whose message comes next, and how many came in all. */
    unsigned next, came;
    unsigned char seen[MOST_ROUNDS];
};

struct hello {
    uint64_t addr;
    uint32_t rkey, psn;
    union ibv_gid gid;
    uint32_t qpn[LINES];
};

struct link {
    int fd, is_done;
    struct hello theirs;
    struct line lines[LINES];
};

static struct link links[HOSTS];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *sends, *receives;
static struct ibv_mr *mr;
static unsigned char *memory;
static unsigned hosts, me, rounds;

static const uint32_t lengths[] = {1, 64, 1000, 1024, 4097, LONGEST};

static enum ibv_qp_type type_of(unsigned line)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_RC, IBV_QPT_UD};

    return types[line % 4];
}

static enum kind kind_of(enum ibv_qp_type type, unsigned round)
{
    if (type == IBV_QPT_UD)
        return SEND;
    if (type == IBV_QPT_UC)
        return round % 2 ? WRITE_IMM : SEND;
    return (enum kind)(round % KINDS);
}

static int is_received(enum kind kind)
{
    return kind == SEND || kind == WRITE_IMM;
}

static uint32_t length_of(enum ibv_qp_type type, unsigned line, unsigned round)
{
    uint32_t length = lengths[(round * 5 + line) % 6];

    return type == IBV_QPT_UD && length > DATAGRAM ? DATAGRAM : length;
}

/* Of the bytes that host `from` sends on a line in a round. */
static unsigned seed_of(unsigned from, unsigned line, unsigned round)
{
    return from * 101 + line * 31 + round * 3 + 1;
}

/* Where a line to `host` has its memory. */
static size_t area(unsigned host, unsigned line)
{
    return (size_t)(host * LINES + line) * AREA;
}

static size_t shared(void)
{
    return (size_t)hosts * LINES * AREA;
}

static uint64_t id_of(unsigned host, unsigned line, unsigned number)
{
    return (uint64_t)host << 32 | (uint64_t)line << 16 | number;
}

static void post_receive(unsigned host, unsigned line, unsigned slot)
{
    size_t at = area(host, line) + RECEIVED + (size_t)slot * (LONGEST + GRH);
    struct ibv_sge sge = {.addr = (uintptr_t)memory + at, .length = LONGEST + GRH, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id_of(host, line, slot), .sg_list = &sge, .num_sge = 1}, *bad;

    memset(memory + at, 0, sge.length);
    ZERO(ibv_post_recv(links[host].lines[line].qp, &wr, &bad));
}

static void make_line(unsigned host, unsigned number, struct hello *mine)
{
    struct line *l = &links[host].lines[number];
    struct ibv_qp_init_attr attr = {
        .send_cq = sends,
        .recv_cq = receives,
        .qp_type = type_of(number),
        .cap = {.max_send_wr = WINDOW, .max_recv_wr = MOST_ROUNDS, .max_send_sge = 1, .max_recv_sge = 1},
    };
    /* What is not reliable must find its receives; on RC some messages come too early. */
    unsigned depth = attr.qp_type == IBV_QPT_RC ? DEPTH : rounds;

    l->type = attr.qp_type;
    l->qp = NEED(ibv_create_qp(pd, &attr));
    ZERO(to_init(l->qp));
    mine->qpn[number] = l->qp->qp_num;
    for (unsigned slot = 0; slot < depth; slot++)
        post_receive(host, number, slot);
}

static void connect_line(unsigned host, unsigned number, uint32_t psn)
{
    struct link *k = &links[host];
    struct line *l = &k->lines[number];

    l->remote_qpn = k->theirs.qpn[number];
    ZERO(to_rtr(l->qp, l->remote_qpn, k->theirs.psn, &k->theirs.gid));
    ZERO(to_rts(l->qp, psn));
    if (l->type == IBV_QPT_UD) {
        struct ibv_ah_attr to = ah_to(&k->theirs.gid);

        l->ah = NEED(ibv_create_ah(pd, &to));
    }
}

static void post_round(unsigned host, unsigned number)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND,      IBV_WR_RDMA_WRITE,           IBV_WR_RDMA_WRITE_WITH_IMM,
                                                 IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
    struct link *k = &links[host];
    struct line *l = &k->lines[number];
    unsigned round = l->begun++;
    enum kind kind = kind_of(l->type, round);
    size_t out = area(host, number) + (size_t)(round % WINDOW) * LONGEST;
    uint64_t there = k->theirs.addr + area(me, number), all = k->theirs.addr + shared();
    struct ibv_sge sge = {.addr = (uintptr_t)memory + out, .length = length_of(l->type, number, round), .lkey = mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = id_of(host, number, round),
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = opcodes[kind],
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .imm_data = htonl(round)};

    if (kind <= WRITE_IMM)
        fill(memory + out, sge.length, seed_of(me, number, round));
    if (kind == SEND && l->type != IBV_QPT_RC)
        wr.opcode = IBV_WR_SEND_WITH_IMM;
    if (kind >= ADD) {
        sge.length = 8;
        wr.wr.atomic.rkey = k->theirs.rkey;
        wr.wr.atomic.remote_addr = kind == ADD ? all + LONGEST : there + WORD;
        /* Each swap finds what the one before it left. */
        wr.wr.atomic.compare_add = kind == ADD || round < KINDS ? kind == ADD : round - KINDS;
        wr.wr.atomic.swap = round;
    } else if (l->type == IBV_QPT_UD) {
        wr.wr.ud.ah = l->ah;
        wr.wr.ud.remote_qpn = l->remote_qpn;
        wr.wr.ud.remote_qkey = QKEY;
    } else {
        wr.wr.rdma.rkey = k->theirs.rkey;
        wr.wr.rdma.remote_addr = kind == READ ? all : there + IN + (uint64_t)round * LONGEST;
    }
    ZERO(ibv_post_send(l->qp, &wr, &bad));
}

static __attribute__((noreturn)) void wrong(unsigned host, unsigned line, unsigned round, const char *what)
{
    die("host %u, line %u to host %u, round %u: %s", me, line, host, round, what);
}

/* A request of ours is complete. */
static void sent(const struct ibv_wc *wc)
{
    unsigned host = (unsigned)(wc->wr_id >> 32), number = wc->wr_id >> 16 & 0xffff, round = wc->wr_id & 0xffff;
    struct line *l = &links[host].lines[number];
    const unsigned char *out = memory + area(host, number) + (size_t)(round % WINDOW) * LONGEST;
    uint64_t old;

    if (wc->status != IBV_WC_SUCCESS)
        wrong(host, number, round, ibv_wc_status_str(wc->status));
    if (round != l->done++)
        wrong(host, number, round, "it is not the next to complete");
    memcpy(&old, out, 8);
    switch (kind_of(l->type, round)) {
    case READ:
        if (!filled(out, length_of(l->type, number, round), seed_of(host, 0, 0)))
            wrong(host, number, round, "READ brought other bytes");
        break;
    case SWAP:
        if (old != (round < KINDS ? 0 : round - KINDS))
            wrong(host, number, round, "a swap was done twice or never");
        break;
    default:
        break;
    }
}

/* What WRITE of a round left here. */
static void check_written(unsigned host, unsigned number, unsigned round)
{
    const struct line *l = &links[host].lines[number];
    const unsigned char *in = memory + area(host, number) + IN + (size_t)round * LONGEST;
    uint32_t length = length_of(l->type, number, round);

    if (!filled(in, length, seed_of(host, number, round)) || (length < LONGEST && in[length]))
        wrong(host, number, round, "WRITE left other bytes");
}

/* A message has come. */
static void came(const struct ibv_wc *wc)
{
    unsigned host = (unsigned)(wc->wr_id >> 32), number = wc->wr_id >> 16 & 0xffff, slot = wc->wr_id & 0xffff, round;
    struct line *l = &links[host].lines[number];
    const unsigned char *in = memory + area(host, number) + RECEIVED + (size_t)slot * (LONGEST + GRH);
    uint32_t length, grh = l->type == IBV_QPT_UD ? GRH : 0;
    enum kind kind;

    if (wc->status != IBV_WC_SUCCESS)
        wrong(host, number, slot, ibv_wc_status_str(wc->status));
    if (l->type == IBV_QPT_RC)
        while (!is_received(kind_of(l->type, l->next)))
            l->next++;
    round = wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : l->next;
    if (round >= rounds || l->seen[round])
        wrong(host, number, round, "it came twice or never left");
    if (l->type == IBV_QPT_RC ? round != l->next : l->type == IBV_QPT_UC && round < l->next)
        wrong(host, number, round, "it is out of order");
    kind = kind_of(l->type, round);
    length = length_of(l->type, number, round);
    if (wc->opcode != (kind == SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM) || wc->byte_len != length + grh)
        wrong(host, number, round, "opcode or length are others");
    if (l->type == IBV_QPT_UD && wc->src_qp != l->remote_qpn)
        wrong(host, number, round, "it is from another queue pair");
    if (kind == SEND && !filled(in + grh, length, seed_of(host, number, round)))
        wrong(host, number, round, "SEND brought other bytes");
    if (kind == WRITE_IMM)
        check_written(host, number, round);
    if (kind == WRITE_IMM && l->type == IBV_QPT_RC)
        check_written(host, number, round - 1);
    l->seen[round] = 1;
    l->came++;
    l->next = round + 1;
    if (l->type == IBV_QPT_RC)
        post_receive(host, number, slot);
}

static int tcp_to(unsigned host, char **argv, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    uint64_t end = now_ms() + 10000;

    if (inet_pton(AF_INET, argv[host], &at.sin_addr) != 1)
        die("%s is no IPv4 address", argv[host]);
    for (;;) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

        if (host == me) {
            setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
            if (bind(s, (struct sockaddr *)&at, sizeof(at)) || listen(s, HOSTS))
                die("listening on %s", argv[host]);
            return s;
        }
        if (!connect(s, (struct sockaddr *)&at, sizeof(at)))
            return s;
        close(s);
        if (now_ms() > end)
            die("connecting to %s", argv[host]);
        usleep(5000);
    }
}

/* Who comes later in the list connects to who is earlier, and says who it is. */
static void meet_all(char **argv, int port)
{
    int listener = tcp_to(me, argv, port);

    for (unsigned host = 0; host < me; host++) {
        links[host].fd = tcp_to(host, argv, port);
        tell(links[host].fd, &me, sizeof(me));
    }
    for (unsigned n = me + 1; n < hosts; n++) {
        int fd = accept(listener, NULL, NULL);
        unsigned host;

        hear(fd, &host, sizeof(host));
        links[host].fd = fd;
    }
    close(listener);
}

#define EACH_PEER(host)                                                                                               \
    for (unsigned host = 0; host < hosts; host++)                                                                     \
        if (host != me)

static void set_up(void)
{
    size_t size;

    context = open_device();
    pd = NEED(ibv_alloc_pd(context));
    size = shared() + SHARED;
    memory = pages(size);
    mr = NEED(ibv_reg_mr(pd, memory, size, ALL_ACCESS));
    sends = NEED(ibv_create_cq(context, HOSTS * LINES * WINDOW, NULL, NULL, 0));
    receives = NEED(ibv_create_cq(context, HOSTS * LINES * MOST_ROUNDS, NULL, NULL, 0));
    fill(memory + shared(), LONGEST, seed_of(me, 0, 0));
    EACH_PEER(host)
    {
        struct hello mine = {.addr = (uintptr_t)memory, .rkey = mr->rkey, .psn = 0xfffff0 + me};

        ZERO(ibv_query_gid(context, PORT, gid_index(), &mine.gid));
        for (unsigned line = 0; line < LINES; line++)
            make_line(host, line, &mine);
        tell(links[host].fd, &mine, sizeof(mine));
    }
    EACH_PEER(host)
    {
        hear(links[host].fd, &links[host].theirs, sizeof(links[host].theirs));
        for (unsigned line = 0; line < LINES; line++)
            connect_line(host, line, 0xfffff0 + me);
    }
    EACH_PEER(host)
        together(links[host].fd);
}

/* Takes completions; true if there were any. */
static int take(struct ibv_cq *cq, void (*each)(const struct ibv_wc *))
{
    struct ibv_wc wc[32];
    int n = ibv_poll_cq(cq, 32, wc);

    if (n < 0)
        die("ibv_poll_cq = %d", n);
    for (int i = 0; i < n; i++)
        each(&wc[i]);
    return n > 0;
}

/* Posts what may be; true while a request is under way. */
static int post_all(void)
{
    int busy = 0;

    EACH_PEER(host)
        for (unsigned line = 0; line < LINES; line++) {
            struct line *l = &links[host].lines[line];

            while (l->begun < rounds && l->begun - l->done < WINDOW)
                post_round(host, line);
            busy |= l->done < rounds;
        }
    return busy;
}

/* Lines that still wait for messages: reliable ones, or others. */
static unsigned waiting(int reliable)
{
    unsigned lines = 0;

    EACH_PEER(host)
        for (unsigned line = 0; line < LINES; line++) {
            const struct line *l = &links[host].lines[line];
            unsigned due = 0;

            for (unsigned round = 0; round < rounds; round++)
                due += is_received(kind_of(l->type, round));
            lines += (l->type == IBV_QPT_RC) == reliable && l->came < due;
        }
    return lines;
}

/* Whether all peers have said that nothing more leaves them. */
static int all_done(void)
{
    int done = 1;

    EACH_PEER(host)
    {
        struct pollfd fd = {.fd = links[host].fd, .events = POLLIN};
        char c;

        if (!links[host].is_done && poll(&fd, 1, 0) == 1) {
            hear(fd.fd, &c, 1);
            links[host].is_done = 1;
        }
        done &= links[host].is_done;
    }
    return done;
}

/* All rounds, until everything has come that ever will. */
static void run(void)
{
    uint64_t quiet_since = now_ms();
    int told = 0;

    for (;;) {
        int any = take(sends, sent) | take(receives, came);

        if (any)
            quiet_since = now_ms();
        if (!told && !post_all()) {
            told = 1;
            EACH_PEER(host)
                tell(links[host].fd, "d", 1);
        }
        if (!any && told && all_done() && !waiting(1) && (!waiting(0) || now_ms() > quiet_since + 300))
            return;
    }
}

static void report(int exact)
{
    static const char *const names[] = {[IBV_QPT_RC] = "RC", [IBV_QPT_UC] = "UC", [IBV_QPT_UD] = "UD"};
    uint64_t counter, adds = 0;

    for (enum ibv_qp_type type = IBV_QPT_RC; type <= IBV_QPT_UD; type++) {
        unsigned due = 0, got = 0;

        if (!names[type])
            continue;
        EACH_PEER(host)
            for (unsigned line = 0; line < LINES; line++) {
                const struct line *l = &links[host].lines[line];

                for (unsigned round = 0; round < rounds && l->type == type; round++) {
                    due += is_received(kind_of(type, round));
                    adds += kind_of(type, round) == ADD;
                }
                got += l->type == type ? l->came : 0;
            }
        printf("%s: %u of %u messages\n", names[type], got, due);
        if (got != due && (exact || type == IBV_QPT_RC))
            die("host %u: %s has %u messages of %u", me, names[type], got, due);
    }
    memcpy(&counter, memory + shared() + LONGEST, 8);
    if (counter != adds)
        die("host %u: the counter is %" PRIu64 " after %" PRIu64 " additions", me, counter, adds);
}

static void drop_all(void)
{
    EACH_PEER(host)
        for (unsigned line = 0; line < LINES; line++) {
            ZERO(ibv_destroy_qp(links[host].lines[line].qp));
            if (links[host].lines[line].ah)
                ZERO(ibv_destroy_ah(links[host].lines[line].ah));
        }
    ZERO(ibv_destroy_cq(sends));
    ZERO(ibv_destroy_cq(receives));
    ZERO(ibv_dereg_mr(mr));
    ZERO(ibv_dealloc_pd(pd));
    ZERO(ibv_close_device(context));
}

int main(int argc, char **argv)
{
    start();
    limit_time(100);
    if (argc < 7 || argc - 5 > HOSTS)
        die("usage: mesh PORT ROUNDS may-lose|exact ME HOST HOST...");
    hosts = (unsigned)argc - 5;
    rounds = (unsigned)atoi(argv[2]);
    me = (unsigned)atoi(argv[4]);
    if (me >= hosts || rounds > MOST_ROUNDS || rounds % KINDS)
        die("ME is a place in the list, ROUNDS a multiple of %d and %d at most", KINDS, MOST_ROUNDS);
    meet_all(argv + 5, atoi(argv[1]));
    set_up();
    run();
    /* Everybody's requests are complete: what they did here can be looked at. */
    report(!strcmp(argv[3], "exact"));
    EACH_PEER(host)
        together(links[host].fd);
    drop_all();
    printf("ok\n");
    return 0;
}
