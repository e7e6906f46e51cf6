/*
 * XRC between three processes: messages over a receiving QP of one to SRQs of it, of another, and of the sender. The
 * program executes itself for the other two, which do what it tells them.
 */
#include "partners.h"

#define BUFFER (4 << 20)

/* Where RDMA reaches. */
#define REACHED (3 << 20)

enum what { TARGET, CONNECT, POST, TAKE, LOOK, FAILED, ENDED };

struct order {
    enum what what;
    uint32_t number;
    union ibv_gid gid;
    /* Of a receive: its wr_id is the offset; of a message: its seed. */
    uint32_t offset, length, seed;
    /* CONNECT: the target allows no RDMA. */
    int closed;
};

struct answer {
    uint32_t number, srqn, private_srqn, rkey;
    uint64_t addr;
    struct ibv_wc wc;
    int filled;
    enum ibv_event_type event;
    enum ibv_qp_state state;
};

struct process {
    struct side s;
    struct ibv_srq *srq[2];
    uint32_t srqn[2];
    struct ibv_xrcd *xrcd[2];
    struct ibv_qp *target;
};

static void make_process(struct process *p, int fd)
{
    struct ibv_context *context = open_device();

    make_side(&p->s, context, IBV_QPT_RC, BUFFER);
    for (int i = 0; i < 2; i++) {
        struct ibv_xrcd_init_attr init = {
            .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = i ? -1 : fd, .oflags = O_CREAT};
        struct ibv_srq_init_attr_ex attr = {
            .attr = {.max_wr = 64, .max_sge = 1},
            .comp_mask =
                IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
            .srq_type = IBV_SRQT_XRC,
            .pd = p->s.pd,
            .cq = p->s.cq,
        };

        attr.xrcd = p->xrcd[i] = NEED(ibv_open_xrcd(context, &init));
        p->srq[i] = NEED(ibv_create_srq_ex(context, &attr));
        ZERO(ibv_get_srq_num(p->srq[i], &p->srqn[i]));
    }
}

static void obey(struct process *p, const struct order *o, struct answer *a)
{
    struct ibv_qp_attr closed = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_RECV, .xrcd = p->xrcd[0], .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_sge sge = sge_of(&p->s, o->offset, o->length);
    struct ibv_recv_wr wr = {.wr_id = o->offset, .sg_list = &sge, .num_sge = 1}, *bad;
    struct ibv_async_event event;
    uint64_t end = now_ms() + 10000;

    /* Also what is between the fields: it is sent. */
    memset(a, 0, sizeof(*a));
    a->srqn = p->srqn[0];
    a->private_srqn = p->srqn[1];
    a->rkey = p->s.mr->rkey;
    a->addr = (uintptr_t)p->s.buffer + REACHED;
    switch (o->what) {
    case TARGET:
        p->target = NEED(ibv_create_qp_ex(p->s.context, &init));
        a->number = p->target->qp_num;
        break;
    case CONNECT:
        if (o->closed)
            ZERO(ibv_modify_qp(p->target, &closed,
                               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
        else
            ZERO(to_init(p->target));
        ZERO(to_rtr(p->target, o->number, 10, &o->gid));
        break;
    case POST:
        ZERO(ibv_post_srq_recv(p->srq[0], &wr, &bad));
        break;
    case TAKE:
        copy_wc(&a->wc, next_wc(p->s.cq));
        if (a->wc.status == IBV_WC_SUCCESS)
            a->filled = filled(p->s.buffer + (o->offset ? o->offset : a->wc.wr_id), a->wc.byte_len, o->seed);
        break;
    case FAILED:
        do {
            event = next_event(p->s.context);
            a->event = event.event_type;
        } while (event.element.qp != p->target || a->event == IBV_EVENT_COMM_EST);
        a->state = state_of(p->target);
        break;
    case ENDED:
        while ((a->state = state_of(p->target)) != IBV_QPS_ERR && now_ms() < end)
            sched_yield();
        break;
    case LOOK:
        a->filled = filled(p->s.buffer + o->offset, o->length, o->seed);
        break;
    }
}

static struct process me;
static int domain;
static struct partner others[2];
static struct ibv_cq *cq;

/* Process 0 has the receiving QPs, 1 another SRQ; 2 is this one. */
static struct answer ask(int process, struct order o)
{
    struct answer a;

    if (process == 2) {
        obey(&me, &o, &a);
        return a;
    }
    tell(others[process].socket, &o, sizeof(o));
    hear(others[process].socket, &a, sizeof(a));
    return a;
}

static struct ibv_qp *connect_to(uint32_t *target, int closed)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_XRC_SEND,
        .send_cq = cq,
        .cap = {.max_send_wr = 64, .max_send_sge = 1},
        .pd = me.s.pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
    };
    struct ibv_qp *qp = NEED(ibv_create_qp_ex(me.s.context, &attr));

    *target = ask(0, (struct order){.what = TARGET}).number;
    ask(0, (struct order){.what = CONNECT, .number = qp->qp_num, .gid = me.s.gid, .closed = closed});
    ZERO(to_init(qp));
    ZERO(to_rtr(qp, *target, 20, &me.s.gid));
    ZERO(to_rts(qp, 10));
    return qp;
}

static struct ibv_qp *connect_sender(uint32_t *target)
{
    return connect_to(target, 0);
}

/* RDMA and atomics between the bytes at 2 MiB here and REACHED of the process that `there` is from. */
static void post_reach(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t srqn, const struct answer *there,
                       uint32_t length)
{
    struct ibv_sge sge = sge_of(&me.s, 2 << 20, length);
    struct ibv_send_wr wr = {.wr_id = 9,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .imm_data = htonl(77)};
    struct ibv_send_wr *bad;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = there->addr;
        wr.wr.atomic.rkey = there->rkey;
        wr.wr.atomic.compare_add = 5;
    } else {
        wr.wr.rdma.remote_addr = there->addr;
        wr.wr.rdma.rkey = there->rkey;
    }
    wr.qp_type.xrc.remote_srqn = srqn;
    ZERO(ibv_post_send(qp, &wr, &bad));
}

static void reach(const char *what, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t srqn,
                  const struct answer *there, uint32_t length)
{
    post_reach(qp, opcode, srqn, there, length);
    show_next(what, cq);
}

/* Whoever has refused a message, the target fails and its process hears of it. */
static void show_target(void)
{
    struct answer a = ask(0, (struct order){.what = FAILED});

    printf("  target %s, %s\n", state_name(a.state), ibv_event_type_str(a.event));
}

/* Everything beside SEND, to the memory of the owner of each SRQ. */
static void reach_all(struct ibv_qp *qp, const uint32_t *srqn)
{
    unsigned char *mine = me.s.buffer + (2 << 20);

    for (int i = 0; i < 3; i++) {
        struct answer there = ask(i, (struct order){.what = LOOK});
        unsigned seed = 70 + 10 * (unsigned)i;
        uint64_t before, after;

        printf("the memory of process %d\n", i);
        fill(mine, 100000, seed);
        reach("write", qp, IBV_WR_RDMA_WRITE, srqn[i], &there, 100000);
        printf("  data %s\n", yes(ask(i, (struct order){.what = LOOK, .offset = REACHED, .length = 100000, .seed = seed}).filled));
        memset(mine, 0, 100000);
        reach("read", qp, IBV_WR_RDMA_READ, srqn[i], &there, 100000);
        printf("  data %s\n", yes(filled(mine, 100000, seed)));
        memcpy(&before, mine, 8);
        reach("add", qp, IBV_WR_ATOMIC_FETCH_AND_ADD, srqn[i], &there, 8);
        memcpy(&after, mine, 8);
        printf("  before %s\n", yes(before == after));
        reach("read", qp, IBV_WR_RDMA_READ, srqn[i], &there, 8);
        memcpy(&after, mine, 8);
        printf("  after %s\n", yes(before + 5 == after));
        fill(mine, 50000, seed + 1);
        reach("write with immediate", qp, IBV_WR_RDMA_WRITE_WITH_IMM, srqn[i], &there, 50000);
        there = ask(i, (struct order){.what = TAKE, .offset = REACHED, .seed = seed + 1});
        show_wc("  recv", &there.wc);
        printf("  data %s\n", yes(there.filled));

        /* More than a ring holds, and without a receive at first. */
        fill(mine, 1 << 20, seed + 2);
        post_reach(qp, IBV_WR_RDMA_WRITE_WITH_IMM, srqn[i], &there, 1 << 20);
        ask(i, (struct order){.what = POST, .offset = 0, .length = 2 << 20});
        show_next("a long write with immediate", cq);
        there = ask(i, (struct order){.what = TAKE, .offset = REACHED, .seed = seed + 2});
        printf("  data %s\n", yes(there.filled && there.wc.byte_len == 1 << 20));
        memset(mine, 0, 1 << 20);
        reach("a long read", qp, IBV_WR_RDMA_READ, srqn[i], &there, 1 << 20);
        printf("  data %s\n", yes(filled(mine, 1 << 20, seed + 2)));
        ask(i, (struct order){.what = POST, .offset = 0, .length = 2 << 20});
    }
}

static void post_send(struct ibv_qp *qp, uint32_t srqn, uint32_t offset, uint32_t length, unsigned seed, int imm)
{
    struct ibv_sge sge = sge_of(&me.s, offset, length);
    struct ibv_send_wr wr = {.wr_id = seed,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .imm_data = htonl(seed)};
    struct ibv_send_wr *bad;

    wr.qp_type.xrc.remote_srqn = srqn;
    fill(me.s.buffer + offset, length, seed);
    ZERO(ibv_post_send(qp, &wr, &bad));
}

static void show_taken(int process, unsigned seed)
{
    struct answer a = ask(process, (struct order){.what = TAKE, .seed = seed});

    show_wc("  recv", &a.wc);
    if (a.wc.status == IBV_WC_SUCCESS)
        printf("  data %s\n", yes(a.filled));
}

int main(int argc, char **argv)
{
    static const int way[] = {1, 0, 1, 1, 2, 0, 2, 1};
    static const uint32_t sizes[] = {0, 1, 4096, 65536, 1 << 20};
    char name[] = "/tmp/anyverbs-xrc-XXXXXX";
    uint32_t srqn[3], private_srqn = 0, target, again;
    struct ibv_qp *qp;

    start();
    if (argc == 3) {
        struct order o;

        make_process(&me, atoi(argv[2]));
        for (;;) {
            struct answer a;

            hear(atoi(argv[1]), &o, sizeof(o));
            obey(&me, &o, &a);
            tell(atoi(argv[1]), &a, sizeof(a));
        }
    }
    domain = mkstemp(name);
    if (domain < 0)
        die("mkstemp");
    unlink(name);
    for (int i = 0; i < 2; i++)
        others[i] = spawn_partner("xrc_processes", domain);
    make_process(&me, domain);
    cq = NEED(ibv_create_cq(me.s.context, 128, NULL, NULL, 0));
    qp = connect_sender(&target);
    for (int i = 0; i < 3; i++) {
        struct answer a = ask(i, (struct order){.what = POST, .offset = 0, .length = 2 << 20});

        srqn[i] = a.srqn;
        if (i == 1)
            private_srqn = a.private_srqn;
    }
    printf("numbers differ %s\n", yes(srqn[0] != srqn[1] && srqn[1] != srqn[2] && srqn[0] != srqn[2]));

    for (int i = 0; i < 3; i++)
        for (unsigned n = 0; n < sizeof(sizes) / sizeof(*sizes); n++) {
            printf("process %d, %u bytes\n", i, sizes[n]);
            post_send(qp, srqn[i], 2 << 20, sizes[n], 10 * (unsigned)i + n, n == 1);
            show_next("send", cq);
            show_taken(i, 10 * (unsigned)i + n);
            ask(i, (struct order){.what = POST, .offset = 0, .length = 2 << 20});
        }

    printf("many, one behind the other\n");
    for (unsigned n = 0; n < 8; n++)
        post_send(qp, srqn[way[n]], (2 << 20) + n * 200000, 150000, 50 + n, 1);
    /* All but the first of each process find no receive request at first. */
    for (unsigned n = 0; n < 8; n++) {
        ask(way[n], (struct order){.what = POST, .offset = (n + 1) * 200000, .length = 200000});
        show_taken(way[n], 50 + n);
        show_next("send", cq);
    }

    reach_all(qp, srqn);
    for (int i = 0; i < 2; i++) {
        struct answer other = ask(i, (struct order){.what = LOOK});

        printf("the key of a process, the SRQ of another\n");
        reach("write", qp, IBV_WR_RDMA_WRITE, srqn[!i], &other, 100);
        printf("  state %s\n", state_name(state_of(qp)));
        show_target();
        ZERO(ibv_destroy_qp(qp));
        qp = connect_sender(&again);
    }
    printf("a target that allows no RDMA\n");
    for (int i = 0; i < 3; i++) {
        struct answer there = ask(i, (struct order){.what = LOOK});

        ZERO(ibv_destroy_qp(qp));
        qp = connect_to(&again, 1);
        reach("write", qp, IBV_WR_RDMA_WRITE, srqn[i], &there, 100);
        show_target();
        ZERO(ibv_destroy_qp(qp));
        qp = connect_to(&again, 1);
        reach("read", qp, IBV_WR_RDMA_READ, srqn[i], &there, 100);
        show_target();
    }
    ZERO(ibv_destroy_qp(qp));
    qp = connect_sender(&again);

    printf("a third one's own domain\n");
    post_send(qp, private_srqn, 2 << 20, 100, 60, 0);
    show_next("send", cq);
    printf("  state %s\n", state_name(state_of(qp)));
    show_target();

    printf("a receive too short, behind one that is not\n");
    ZERO(ibv_destroy_qp(qp));
    qp = connect_sender(&again);
    printf("another target %s\n", yes(target != again));
    ask(1, (struct order){.what = POST, .offset = 7, .length = 99});
    post_send(qp, srqn[1], 2 << 20, 100, 61, 0);
    show_taken(1, 61);
    printf("its turn\n");
    post_send(qp, srqn[1], 2 << 20, 100, 62, 0);
    show_taken(1, 62);
    show_next("send", cq);
    show_next("send", cq);
    /* The completion of the receive told of it: there is no event. */
    printf("  target %s\n", state_name(ask(0, (struct order){.what = ENDED}).state));

    printf("the owner is killed\n");
    ZERO(ibv_destroy_qp(qp));
    qp = connect_sender(&again);
    kill_partner(&others[1]);
    post_send(qp, srqn[1], 2 << 20, 100, 63, 0);
    post_send(qp, srqn[0], 2 << 20, 100, 64, 0);
    show_next("send", cq);
    show_next("send", cq);
    printf("  state %s\n", state_name(state_of(qp)));

    printf("the others go on\n");
    ZERO(ibv_destroy_qp(qp));
    qp = connect_sender(&again);
    post_send(qp, srqn[0], 2 << 20, 100, 65, 0);
    show_next("send", cq);
    show_taken(0, 65);
    ZERO(ibv_destroy_qp(qp));
    kill_partner(&others[0]);
    return 0;
}
