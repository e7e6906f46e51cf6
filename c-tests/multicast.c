/* Multicast: datagrams to groups reach every attached QP of this process and of others, and nobody else. */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

#define GRH 40
#define GROUP_QPN 0xffffffu
#define CHILDREN 3
#define SENDERS 2
#define MESSAGES 300
#define LENGTH 1000

static struct side s, m[3];
static union ibv_gid group, other;

static union ibv_gid gid_of(const char *text)
{
    union ibv_gid gid;

    if (inet_pton(AF_INET6, text, &gid) != 1)
        die("%s", text);
    return gid;
}

static struct ibv_ah *ah_of(struct side *from, const union ibv_gid *gid)
{
    struct ibv_ah_attr attr = ah_to(gid);

    return NEED(ibv_create_ah(from->pd, &attr));
}

static int send_to(struct side *from, struct ibv_ah *ah, uint32_t qpn, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = sge_of(from, offset, length);
    struct ibv_send_wr wr = {
        .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = QKEY;
    return ibv_post_send(from->qp, &wr, &bad);
}

static void ready(struct side *side, struct ibv_context *context)
{
    make_side(side, context, IBV_QPT_UD, 8192);
    ZERO(to_init(side->qp));
    ZERO(to_rtr(side->qp, 0, 0, &side->gid));
    ZERO(to_rts(side->qp, 0));
}

/* Sends to a group and says who has received; local delivery is over when the send completes. */
static void round_of(const char *label, struct ibv_ah *ah, uint32_t qpn)
{
    static unsigned seed;
    struct ibv_wc wc;

    fill(s.buffer, 100, ++seed);
    ZERO(send_to(&s, ah, qpn, seed, 0, 100));
    wc = next_wc(s.cq);
    printf("%s: %s:", label, ibv_wc_status_str(wc.status));
    for (int i = 0; i < 3; i++) {
        if (ibv_poll_cq(m[i].cq, 1, &wc) == 1) {
            printf(" %d%s", i,
                   wc.status == IBV_WC_SUCCESS && wc.byte_len == 100 + GRH && wc.src_qp == s.qp->qp_num &&
                           filled(m[i].buffer + GRH, 100, seed)
                       ? ""
                       : " wrong");
            ZERO(recv_one(&m[i], 0, 0, 4096));
        }
    }
    printf("\n");
}

static void one_process(void)
{
    struct ibv_context *context = open_device();
    struct ibv_ah *to_group, *to_other;
    struct ibv_device_attr attr;
    union ibv_gid plain;
    struct side rc;
    struct ibv_wc wc;
    int rc1;

    ZERO(ibv_query_device(context, &attr));
    printf("limits: groups %s, QPs %s, in all %s\n", yes(attr.max_mcast_grp > 0), yes(attr.max_mcast_qp_attach > 0),
           yes(attr.max_total_mcast_qp_attach > 0));
    ready(&s, context);
    for (int i = 0; i < 3; i++) {
        ready(&m[i], context);
        ZERO(recv_one(&m[i], 0, 0, 4096));
    }
    to_group = ah_of(&s, &group);
    to_other = ah_of(&s, &other);
    round_of("nobody attached", to_group, GROUP_QPN);
    rc1 = ibv_attach_mcast(m[0].qp, &group, 0);
    printf("attach %s, again %s\n", rc_name(rc1), rc_name(ibv_attach_mcast(m[0].qp, &group, 0)));
    round_of("one, once", to_group, GROUP_QPN);
    ZERO(ibv_attach_mcast(m[1].qp, &group, 0));
    ZERO(ibv_attach_mcast(m[2].qp, &other, 0));
    round_of("two", to_group, GROUP_QPN);
    round_of("the other group", to_other, GROUP_QPN);
    round_of("a group, but a QP's number", to_group, m[0].qp->qp_num);
    plain = s.gid;
    printf("attach to an address that is none: %s\n", rc_name(ibv_attach_mcast(m[0].qp, &plain, 0)));
    make_side(&rc, context, IBV_QPT_RC, 4096);
    printf("attach an RC QP: %s\n", rc_name(ibv_attach_mcast(rc.qp, &group, 0)));
    drop_side(&rc);

    ZERO(ibv_attach_mcast(s.qp, &group, 0));
    ZERO(recv_one(&s, 77, 4096, 4096));
    ZERO(send_to(&s, to_group, GROUP_QPN, 78, 0, 10));
    wc = next_wc(s.cq);
    printf("to itself as well: %d", (int)wc.wr_id);
    wc = next_wc(s.cq);
    printf(" %d\n", (int)wc.wr_id);
    ZERO(ibv_detach_mcast(s.qp, &group, 0));

    printf("destroy while attached: %s\n", rc_name(ibv_destroy_qp(m[1].qp)));
    rc1 = ibv_detach_mcast(m[1].qp, &group, 0);
    printf("detach %s, again %s\n", rc_name(rc1), rc_name(ibv_detach_mcast(m[1].qp, &group, 0)));
    for (int i = 0; i < 3; i++)
        while (ibv_poll_cq(m[i].cq, 1, &wc) == 1)
            ZERO(recv_one(&m[i], 0, 0, 4096));
    round_of("one again", to_group, GROUP_QPN);
    ZERO(ibv_detach_mcast(m[0].qp, &group, 0));
    ZERO(ibv_detach_mcast(m[2].qp, &other, 0));
    ZERO(ibv_destroy_ah(to_group));
    ZERO(ibv_destroy_ah(to_other));
    for (int i = 0; i < 3; i++)
        drop_side(&m[i]);
    drop_side(&s);
    ZERO(ibv_close_device(context));
}

/* A QP that does not hear itself. */
static void no_loopback(void)
{
    struct ibv_context *context = open_device();
    struct ibv_qp_init_attr_ex init = {.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
                                       .qp_type = IBV_QPT_UD,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
                                       .create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB};
    struct ibv_ah *ah;
    struct ibv_wc wc;

    make_side(&s, context, IBV_QPT_UD, 8192);
    ZERO(ibv_destroy_qp(s.qp));
    init.send_cq = init.recv_cq = s.cq;
    init.pd = s.pd;
    s.qp = NEED(ibv_create_qp_ex(context, &init));
    ZERO(to_init(s.qp));
    ZERO(to_rtr(s.qp, 0, 0, &s.gid));
    ZERO(to_rts(s.qp, 0));
    ah = ah_of(&s, &group);
    ZERO(ibv_attach_mcast(s.qp, &group, 0));
    ZERO(recv_one(&s, 1, 4096, 4096));
    ZERO(send_to(&s, ah, GROUP_QPN, 2, 0, 10));
    wc = next_wc(s.cq);
    printf("loopback blocked: %d, more %s\n", (int)wc.wr_id, yes(ibv_poll_cq(s.cq, 1, &wc) != 0));
    ZERO(ibv_detach_mcast(s.qp, &group, 0));
    ZERO(ibv_destroy_ah(ah));
    drop_side(&s);
    ZERO(ibv_close_device(context));
}

/* The next completion, in whatever time a busy machine takes; NULL: it did not come. */
static struct ibv_wc *patient_wc(struct ibv_cq *cq, struct ibv_wc *wc)
{
    uint64_t end = now_ms() + 30000;
    int n;

    while ((n = ibv_poll_cq(cq, 1, wc)) == 0)
        if (now_ms() > end)
            return NULL;
    return n == 1 ? wc : NULL;
}

/* A process that has attached; says so, and checks that each of `senders` times MESSAGES comes once, and in order. */
static int member(int told, int go, int senders)
{
    struct ibv_context *context = open_device();
    int total = senders * MESSAGES, next[SENDERS] = {0};
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = 1, .max_recv_wr = (unsigned)total, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_UD};
    char c = 'x';

    make_side(&s, context, IBV_QPT_UD, 4096 + (size_t)total * 2048);
    ZERO(ibv_destroy_qp(s.qp));
    ZERO(ibv_destroy_cq(s.cq));
    s.cq = NEED(ibv_create_cq(context, total + 1, NULL, NULL, 0));
    init.send_cq = init.recv_cq = s.cq;
    s.qp = NEED(ibv_create_qp(s.pd, &init));
    ZERO(to_init(s.qp));
    ZERO(to_rtr(s.qp, 0, 0, &s.gid));
    ZERO(ibv_attach_mcast(s.qp, &group, 0));
    for (int i = 0; i < total; i++)
        ZERO(recv_one(&s, (uint64_t)i, (size_t)i * 2048, 2048));
    if (write(told, &c, 1) != 1)
        die("write");
    for (int i = 0; i < total; i++) {
        struct ibv_wc wc;
        unsigned number;

        errno = 0;
        if (!patient_wc(s.cq, &wc))
            die("member %d: %d of %d messages came, sender 0 up to %d, sender 1 up to %d", getpid(), i, total, next[0],
                next[1]);
        if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)i || wc.byte_len != LENGTH + GRH)
            die("member %d: message %d: %s, wr_id %d, %u bytes", getpid(), i, ibv_wc_status_str(wc.status),
                (int)wc.wr_id, wc.byte_len);
        number = ntohl(wc.imm_data);
        if (number >> 16 >= SENDERS || (int)(number & 0xffff) != next[number >> 16]++)
            die("member %d: message %d is number %x", getpid(), i, number);
        if (!filled(s.buffer + i * 2048 + GRH, LENGTH, number))
            die("member %d: message %d has wrong bytes", getpid(), i);
    }
    if (read(go, &c, 1) != 0)
        die("read");
    ZERO(ibv_detach_mcast(s.qp, &group, 0));
    drop_side(&s);
    ZERO(ibv_close_device(context));
    return 0;
}

/* Other processes that are in the group. */
struct members {
    int count, go;
    pid_t pid[CHILDREN];
};

static struct members start_members(int count, int senders)
{
    struct members all = {.count = count};
    int told[2], go[2];
    char c;

    if (pipe(told) || pipe(go))
        die("pipe");
    for (int i = 0; i < count; i++) {
        all.pid[i] = fork();
        if (all.pid[i] == 0) {
            close(go[1]);
            exit(member(told[1], go[0], senders));
        }
    }
    close(go[0]);
    close(told[1]);
    for (int i = 0; i < count; i++)
        if (read(told[0], &c, 1) != 1)
            die("a member");
    close(told[0]);
    all.go = go[1];
    return all;
}

/* They have got everything, or say on stderr what not. */
static void end_members(struct members *all)
{
    int status, good = 0;

    close(all->go);
    for (int i = 0; i < all->count; i++) {
        if (waitpid(all->pid[i], &status, 0) != all->pid[i])
            die("waitpid");
        good += status == 0;
    }
    if (good != all->count)
        die("%d of %d members got all messages", good, all->count);
}

/* Sends all messages, one after the other. */
static void send_all(struct side *from, unsigned sender)
{
    struct ibv_ah *ah = ah_of(from, &group);

    for (unsigned i = 0; i < MESSAGES; i++) {
        struct ibv_sge sge = sge_of(from, 0, LENGTH);
        struct ibv_send_wr *bad, wr = {.wr_id = i,
                                       .sg_list = &sge,
                                       .num_sge = 1,
                                       .opcode = IBV_WR_SEND_WITH_IMM,
                                       .send_flags = IBV_SEND_SIGNALED,
                                       .imm_data = htonl(sender << 16 | i)};
        struct ibv_wc wc;

        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = GROUP_QPN;
        wr.wr.ud.remote_qkey = QKEY;
        fill(from->buffer, LENGTH, sender << 16 | i);
        ZERO(ibv_post_send(from->qp, &wr, &bad));
        if (!patient_wc(from->cq, &wc) || wc.status != IBV_WC_SUCCESS)
            die("sender %u: message %u", sender, i);
    }
    ZERO(ibv_destroy_ah(ah));
}

static void many_processes(void)
{
    struct members all = start_members(CHILDREN, 1);
    struct ibv_context *context = open_device();
    struct ibv_ah *ah;

    ready(&s, context);
    send_all(&s, 0);
    end_members(&all);
    printf("%d other processes got all %d messages\n", all.count, MESSAGES);
    /* Those members are gone; a message to the group still goes out. */
    ah = ah_of(&s, &group);
    ZERO(send_to(&s, ah, GROUP_QPN, 1, 0, LENGTH));
    show_next("to nobody", s.cq);
    ZERO(ibv_destroy_ah(ah));
    drop_side(&s);
    ZERO(ibv_close_device(context));
}

/* Stops a process for a while, as a machine does that has other things to do: what is sent meanwhile fills its ring. The
 * process that wakes it up. */
static pid_t stop_for_a_while(pid_t pid)
{
    pid_t waker;

    kill(pid, SIGSTOP);
    waker = fork();
    if (waker == 0) {
        usleep(800000);
        kill(pid, SIGCONT);
        _exit(0);
    }
    return waker;
}

static void await(pid_t waker)
{
    if (waitpid(waker, NULL, 0) != waker)
        die("waitpid");
}

/* A member that does not run for a while and one that does. */
static void slow_member(void)
{
    struct members all = start_members(2, 1);
    struct ibv_context *context = open_device();
    pid_t waker;

    ready(&s, context);
    waker = stop_for_a_while(all.pid[0]);
    send_all(&s, 0);
    await(waker);
    end_members(&all);
    printf("a slow process and another got all %d messages\n", MESSAGES);
    drop_side(&s);
    ZERO(ibv_close_device(context));
}

static void *send_as_second(void *context)
{
    struct side second;

    ready(&second, context);
    send_all(&second, 1);
    drop_side(&second);
    return NULL;
}

/* Two threads whose messages go to one process, and wait for room there. */
static void two_senders(void)
{
    struct members all = start_members(1, SENDERS);
    struct ibv_context *context = open_device();
    pthread_t thread;
    pid_t waker;

    ready(&s, context);
    waker = stop_for_a_while(all.pid[0]);
    ZERO(pthread_create(&thread, NULL, send_as_second, context));
    send_all(&s, 0);
    ZERO(pthread_join(thread, NULL));
    await(waker);
    end_members(&all);
    printf("all messages of %d senders came\n", SENDERS);
    drop_side(&s);
    ZERO(ibv_close_device(context));
}

int main(void)
{
    char text[64];

    start();
    /* Groups of this run's own. */
    snprintf(text, sizeof(text), "ff05:%x::7", (unsigned)getpid() & 0xffff);
    group = gid_of(text);
    snprintf(text, sizeof(text), "::ffff:239.7.%u.%u", (unsigned)getpid() >> 8 & 0xff, (unsigned)getpid() & 0xff);
    other = gid_of(text);
    many_processes();
    slow_member();
    two_senders();
    one_process();
    no_loopback();
    return 0;
}
