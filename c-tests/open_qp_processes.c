/*
 * An XRC receiver with handles in several processes: seen and moved by all, it goes on while anybody has it open, also
 * when the process that made it, and the one that took it over, are killed. The program executes itself for the others.
 */
#include "partners.h"

#include <dirent.h>

#define BUFFER (1 << 20)
#define SOURCE (512 << 10)
#define ROOM 2048
#define RECEIVES 64

enum what { MAKE, OPEN, MOVE, STATE, DROP, POST, TAKE, EVENT, FORK, DOMAIN, COUNT };

struct order {
    enum what what;
    /* OPEN: the QP; MOVE: the sender, and to which state. */
    uint32_t number;
    int other_domain;
    enum ibv_qp_state state;
    union ibv_gid gid;
    unsigned seed;
};

struct answer {
    uint32_t number, srqn;
    int error, filled;
    enum ibv_qp_state state;
    enum ibv_event_type event;
    struct ibv_wc wc;
};

struct process {
    struct side s;
    struct ibv_xrcd *xrcd, *other;
    struct ibv_srq *srq;
    uint32_t srqn;
    struct ibv_qp *qp;
    unsigned posted;
    int file;
};

static struct process me;
static struct partner others[3];
static struct ibv_cq *cq;

static void make_process(struct process *p, int fd)
{
    struct ibv_context *context = open_device();
    struct ibv_xrcd_init_attr shared = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT};
    struct ibv_xrcd_init_attr own = shared;
    struct ibv_srq_init_attr_ex attr = {
        .attr = {.max_wr = RECEIVES, .max_sge = 1},
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
        .srq_type = IBV_SRQT_XRC,
    };

    own.fd = -1;
    p->file = fd;
    make_side(&p->s, context, IBV_QPT_RC, BUFFER);
    attr.xrcd = p->xrcd = NEED(ibv_open_xrcd(context, &shared));
    p->other = NEED(ibv_open_xrcd(context, &own));
    attr.pd = p->s.pd;
    attr.cq = p->s.cq;
    p->srq = NEED(ibv_create_srq_ex(context, &attr));
    ZERO(ibv_get_srq_num(p->srq, &p->srqn));
}

/* To INIT, RTR or RTS from the state before, or from any to RESET. */
static int move(struct process *p, const struct order *o)
{
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

    switch (o->state) {
    case IBV_QPS_INIT:
        return to_init(p->qp);
    case IBV_QPS_RTR:
        return to_rtr(p->qp, o->number, 10, &o->gid);
    case IBV_QPS_RTS:
        return to_rts(p->qp, 20);
    default:
        return ibv_modify_qp(p->qp, &reset, IBV_QP_STATE);
    }
}

static uint32_t descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;

    if (!dir)
        die("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void obey(struct process *p, const struct order *o, struct answer *a)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_RECV, .xrcd = p->xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_qp_open_attr open = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
                                    .qp_num = o->number,
                                    .xrcd = o->other_domain ? p->other : p->xrcd,
                                    .qp_type = IBV_QPT_XRC_RECV};
    struct ibv_recv_wr wr = {.num_sge = 1}, *bad;
    struct ibv_xrcd_init_attr init_domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = p->file};
    struct ibv_xrcd *domain;
    struct ibv_sge sge;
    struct ibv_qp *qp;
    pid_t child;

    /* Also what is between the fields: it is sent. */
    memset(a, 0, sizeof(*a));
    a->srqn = p->srqn;
    switch (o->what) {
    case MAKE:
        p->qp = NEED(ibv_create_qp_ex(p->s.context, &init));
        a->number = p->qp->qp_num;
        break;
    case OPEN:
        qp = ibv_open_qp(p->s.context, &open);
        a->error = qp ? 0 : errno;
        a->number = qp ? qp->qp_num : 0;
        p->qp = qp ? qp : p->qp;
        break;
    case MOVE:
        a->error = move(p, o);
        break;
    case STATE:
        a->state = state_of(p->qp);
        break;
    case DROP:
        a->error = ibv_destroy_qp(p->qp);
        break;
    case POST:
        sge = sge_of(&p->s, p->posted++ % RECEIVES * ROOM, ROOM);
        wr.wr_id = sge.addr - (uintptr_t)p->s.buffer;
        wr.sg_list = &sge;
        ZERO(ibv_post_srq_recv(p->srq, &wr, &bad));
        break;
    case TAKE:
        copy_wc(&a->wc, next_wc(p->s.cq));
        a->filled = a->wc.status == IBV_WC_SUCCESS && filled(p->s.buffer + a->wc.wr_id, a->wc.byte_len, o->seed);
        break;
    case FORK:
        child = fork();
        if (child == 0)
            exit(ibv_destroy_qp(p->qp) + ibv_close_xrcd(p->other));
        if (waitpid(child, &a->error, 0) != child)
            die("waitpid");
        break;
    case DOMAIN:
        init_domain.oflags = (int)o->number;
        domain = ibv_open_xrcd(p->s.context, &init_domain);
        a->error = domain ? ibv_close_xrcd(domain) : errno;
        break;
    case COUNT:
        a->number = descriptors();
        break;
    case EVENT:
        do
            a->event = next_event(p->s.context).event_type;
        while (a->event == IBV_EVENT_COMM_EST);
        break;
    }
}

/* Processes 0 to 2; 3 is this one. */
static struct answer ask(int process, struct order o)
{
    struct answer a;

    if (process == 3) {
        obey(&me, &o, &a);
        return a;
    }
    tell(others[process].socket, &o, sizeof(o));
    hear(others[process].socket, &a, sizeof(a));
    return a;
}

static struct ibv_qp *make_sender(void)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_XRC_SEND,
        .send_cq = cq,
        .cap = {.max_send_wr = 64, .max_send_sge = 1},
        .pd = me.s.pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
    };

    return NEED(ibv_create_qp_ex(me.s.context, &attr));
}

/* Connects a new sender with the target, which process `by` moves. */
static struct ibv_qp *join_target(int by, uint32_t target)
{
    struct ibv_qp *qp = make_sender();
    static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};

    for (int i = 0; i < 4; i++)
        ZERO(ask(by, (struct order){.what = MOVE, .state = states[i], .number = qp->qp_num, .gid = me.s.gid}).error);
    ZERO(to_init(qp));
    ZERO(to_rtr(qp, target, 20, &me.s.gid));
    ZERO(to_rts(qp, 10));
    return qp;
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t srqn, unsigned seed)
{
    size_t offset = SOURCE + seed % RECEIVES * ROOM;
    struct ibv_sge sge = sge_of(&me.s, offset, 1000 + seed);
    struct ibv_send_wr wr = {
        .wr_id = seed, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    fill(me.s.buffer + offset, sge.length, seed);
    wr.qp_type.xrc.remote_srqn = srqn;
    ZERO(ibv_post_send(qp, &wr, &bad));
}

/* A message to each of these processes' SRQs. */
static void send_to(struct ibv_qp *qp, const int *to, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        uint32_t srqn = ask(to[i], (struct order){.what = POST}).srqn;
        struct answer a;

        post(qp, IBV_WR_SEND, srqn, seed + (unsigned)i);
        show_next("  send", cq);
        a = ask(to[i], (struct order){.what = TAKE, .seed = seed + (unsigned)i});
        printf("  process %d has it: %s\n", to[i], yes(a.filled));
    }
}

static void show_states(const int *of, int n)
{
    printf("  states");
    for (int i = 0; i < n; i++)
        printf(" %s", state_name(ask(of[i], (struct order){.what = STATE}).state));
    printf("\n");
}

static uint32_t make_shared(int openers)
{
    uint32_t number = ask(0, (struct order){.what = MAKE}).number;

    for (int i = 1; i <= openers; i++) {
        struct answer a = ask(i, (struct order){.what = OPEN, .number = number});

        if (a.error || a.number != number)
            die("process %d does not open 0x%06x: %s", i, number, rc_name(a.error));
    }
    return number;
}

/* An error at the receiver is told to everybody who has it open. */
static void one_error_for_all(void)
{
    uint32_t target = make_shared(2);
    struct ibv_qp *qp = join_target(1, target);

    printf("a bad request\n");
    post(qp, IBV_WR_RDMA_WRITE, ask(0, (struct order){.what = POST}).srqn, 1);
    show_next("  write", cq);
    for (int i = 0; i < 3; i++)
        printf("  process %d: %s\n", i, ibv_event_type_str(ask(i, (struct order){.what = EVENT}).event));
    show_states((int[]){0, 1, 2}, 3);
    for (int i = 0; i < 3; i++)
        ZERO(ask(i, (struct order){.what = DROP}).error);
    printf("  after the last handle: %s\n", rc_name(ask(1, (struct order){.what = OPEN, .number = target}).error));
    ZERO(ibv_destroy_qp(qp));
}

/* Two of one maker, which different processes have open: both go on, though one process takes over the numbers of both. */
static void two_targets(void)
{
    static const int rest[] = {1, 2, 3};
    uint32_t target[2], srqn;
    uint64_t end;
    struct ibv_qp *qp[2];
    struct ibv_wc wc;

    printf("two of one maker\n");
    for (int i = 0; i < 2; i++) {
        target[i] = ask(0, (struct order){.what = MAKE}).number;
        ZERO(ask(1 + i, (struct order){.what = OPEN, .number = target[i]}).error);
        qp[i] = join_target(1 + i, target[i]);
        send_to(qp[i], rest, 3, 10);
    }
    kill_partner(&others[0]);
    for (int i = 0; i < 2; i++)
        send_to(qp[i], rest, 3, 20);
    show_states(rest, 2);
    printf("one of them is open nowhere any more\n");
    kill_partner(&others[1]);
    /* What is on its way past the target may arrive for a while. */
    end = now_ms() + 20000;
    do {
        srqn = ask(2, (struct order){.what = POST}).srqn;
        post(qp[0], IBV_WR_SEND, srqn, 30);
        wc = next_wc(cq);
        if (wc.status == IBV_WC_SUCCESS)
            ask(2, (struct order){.what = TAKE, .seed = 30});
    } while (wc.status == IBV_WC_SUCCESS && now_ms() < end);
    show_wc("  send", &wc);
    send_to(qp[1], rest + 2, 1, 40);
    show_states(rest + 1, 1);
    kill_partner(&others[2]);
    for (int i = 0; i < 2; i++)
        ZERO(ibv_destroy_qp(qp[i]));
}

static void spawn_partners(int fd)
{
    for (int i = 0; i < 3; i++)
        others[i] = spawn_partner("open_qp_processes", fd);
}

/* Handles that come and go leave nothing behind, neither here nor there. */
static void many_handles(void)
{
    uint32_t target = make_shared(1), before[2], after[2];
    uint64_t end;

    for (int i = 0; i < 2; i++)
        before[i] = ask(i, (struct order){.what = COUNT}).number;
    for (int i = 0; i < 500; i++) {
        struct answer a;

        ZERO(ask(1, (struct order){.what = DROP}).error);
        a = ask(1, (struct order){.what = OPEN, .number = target});
        if (a.error)
            die("open %d: %s", i, rc_name(a.error));
    }
    /* The end of the last connection may still be on its way. */
    end = now_ms() + 20000;
    for (int i = 0; i < 2; i++)
        do
            after[i] = ask(i, (struct order){.what = COUNT}).number;
        while (after[i] != before[i] && now_ms() < end);
    printf("500 handles later: as many descriptors %s %s\n", yes(before[0] == after[0]), yes(before[1] == after[1]));
    for (int i = 0; i < 2; i++)
        ZERO(ask(i, (struct order){.what = DROP}).error);
}

int main(int argc, char **argv)
{
    static const int all[] = {0, 1, 2, 3};
    char name[] = "/tmp/anyverbs-open-XXXXXX";
    uint32_t target, srqn[4];
    struct ibv_qp *qp;
    int fd, wrong = 0;

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
    fd = mkstemp(name);
    if (fd < 0)
        die("mkstemp");
    unlink(name);
    spawn_partners(fd);
    make_process(&me, fd);
    cq = NEED(ibv_create_cq(me.s.context, 128, NULL, NULL, 0));
    two_targets();
    spawn_partners(fd);
    one_error_for_all();
    many_handles();

    printf("the domain exists: made anew %s", rc_name(ask(1, (struct order){.what = DOMAIN, .number = O_CREAT | O_EXCL}).error));
    printf(", opened %s\n", rc_name(ask(1, (struct order){.what = DOMAIN}).error));
    target = make_shared(2);
    printf("another domain: %s", rc_name(ask(1, (struct order){.what = OPEN, .number = target, .other_domain = 1}).error));
    printf(", no such number: %s\n", rc_name(ask(1, (struct order){.what = OPEN, .number = target ^ 1}).error));
    printf("moved by one, seen by all\n");
    ZERO(ask(1, (struct order){.what = MOVE, .state = IBV_QPS_INIT}).error);
    show_states(all, 3);
    printf("  a move that does not exist: %s\n", rc_name(ask(2, (struct order){.what = MOVE, .state = IBV_QPS_RTS}).error));
    qp = join_target(2, target);
    show_states(all, 3);
    send_to(qp, all, 4, 10);

    printf("children that end take nothing along\n");
    for (int i = 0; i < 3; i++)
        ZERO(ask(i, (struct order){.what = FORK}).error);
    show_states(all, 3);
    send_to(qp, all, 4, 15);

    printf("the maker is stopped\n");
    kill(others[0].pid, SIGSTOP);
    if (waitpid(others[0].pid, NULL, WUNTRACED) != others[0].pid)
        die("waitpid");
    printf("  a move: %s\n", rc_name(ask(1, (struct order){.what = MOVE, .state = IBV_QPS_RTS}).error));
    kill(others[0].pid, SIGCONT);
    show_states(all, 3);

    printf("the maker's handle is destroyed\n");
    ZERO(ask(0, (struct order){.what = DROP}).error);
    send_to(qp, all, 4, 20);

    printf("the maker is killed, with messages under way\n");
    srqn[0] = ask(0, (struct order){.what = POST}).srqn;
    for (int i = 1; i < 4; i++)
        for (int k = 0; k < 10; k++)
            srqn[i] = ask(i, (struct order){.what = POST}).srqn;
    for (unsigned k = 0; k < 30; k++) {
        if (k == 15)
            kill_partner(&others[0]);
        post(qp, IBV_WR_SEND, srqn[1 + k % 3], k);
    }
    for (unsigned k = 0; k < 30; k++) {
        struct ibv_wc wc = next_wc(cq);

        wrong += wc.status != IBV_WC_SUCCESS || wc.wr_id != k;
        wrong += !ask(1 + (int)k % 3, (struct order){.what = TAKE, .seed = k}).filled;
    }
    printf("  30 messages, wrong %d\n", wrong);
    show_states(all + 1, 2);
    send_to(qp, all + 1, 3, 30);

    printf("its SRQ is gone with it\n");
    post(qp, IBV_WR_SEND, srqn[0], 40);
    show_next("  send", cq);
    ZERO(ibv_destroy_qp(qp));

    printf("another sender, and one more handle\n");
    qp = join_target(2, target);
    ZERO(ask(3, (struct order){.what = OPEN, .number = target}).error);
    show_states(all + 1, 3);
    send_to(qp, all + 1, 3, 50);

    printf("one that may have taken it over is killed\n");
    kill_partner(&others[1]);
    send_to(qp, all + 2, 2, 60);
    show_states(all + 2, 2);
    printf("and the other\n");
    kill_partner(&others[2]);
    send_to(qp, all + 3, 1, 70);
    show_states(all + 3, 1);
    printf("and that handle is the last: %s", rc_name(ask(3, (struct order){.what = DROP}).error));
    printf(", %s\n", rc_name(ask(3, (struct order){.what = OPEN, .number = target}).error));
    ZERO(ibv_destroy_qp(qp));
    ZERO(ibv_destroy_srq(me.srq));
    ZERO(ibv_close_xrcd(me.xrcd));
    ZERO(ibv_close_xrcd(me.other));
    ZERO(ibv_destroy_cq(cq));
    drop_side(&me.s);
    ZERO(ibv_close_device(me.s.context));
    close(fd);
    return 0;
}
