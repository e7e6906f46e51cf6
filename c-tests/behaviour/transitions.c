/* ibv_modify_qp: a call with anything wrong changes nothing, and the reason names the attribute. */
#include "behaviour.h"

static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV};
static const char *const type_names[] = {"RC", "UC", "UD", "XRC_SEND", "XRC_RECV"};
#define TYPES 5

static struct side s;
static struct ibv_xrcd *xrcd;

static const struct {
    int bit;
    const char *name;
} bits[] = {
    {IBV_QP_STATE, "IBV_QP_STATE"},
    {IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE"},
    {IBV_QP_EN_SQD_ASYNC_NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"},
    {IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"},
    {IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"},
    {IBV_QP_PORT, "IBV_QP_PORT"},
    {IBV_QP_QKEY, "IBV_QP_QKEY"},
    {IBV_QP_AV, "IBV_QP_AV"},
    {IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"},
    {IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"},
    {IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"},
    {IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"},
    {IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"},
    {IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"},
    {IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH"},
    {IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"},
    {IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"},
    {IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"},
    {IBV_QP_PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"},
    {IBV_QP_CAP, "IBV_QP_CAP"},
    {IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"},
};
#define BITS (sizeof(bits) / sizeof(*bits))

/* What ibv_modify_qp(3) demands of a move, by type. */
static int required(int type, enum ibv_qp_state from, enum ibv_qp_state to)
{
    enum ibv_qp_type t = types[type];
    int path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

    if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
        return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (t == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR && t != IBV_QPT_UD)
        return t == IBV_QPT_RC || t == IBV_QPT_XRC_RECV ? path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : path;
    if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
        if (t == IBV_QPT_RC || t == IBV_QPT_XRC_SEND)
            return IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        return t == IBV_QPT_XRC_RECV ? IBV_QP_SQ_PSN | IBV_QP_TIMEOUT : IBV_QP_SQ_PSN;
    }
    return 0;
}

/* What may come along besides. */
static int optional(int type, enum ibv_qp_state from, enum ibv_qp_state to)
{
    enum ibv_qp_type t = types[type];
    int ud = t == IBV_QPT_UD, moving = ud ? IBV_QP_QKEY : IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
    int responds = t == IBV_QPT_RC || t == IBV_QPT_XRC_RECV;

    if (responds)
        moving |= IBV_QP_MIN_RNR_TIMER;
    if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
        return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
        return ud ? IBV_QP_PKEY_INDEX | IBV_QP_QKEY : IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
    if (to == IBV_QPS_RTS && (from == IBV_QPS_RTR || from == IBV_QPS_RTS || from == IBV_QPS_SQD))
        return IBV_QP_CUR_STATE | moving;
    if (from == IBV_QPS_RTS && to == IBV_QPS_SQD)
        return IBV_QP_EN_SQD_ASYNC_NOTIFY;
    if (from == IBV_QPS_SQD && to == IBV_QPS_SQD)
        return -1; /* nearly everything; not looked at here */
    return 0;
}

static int exists(enum ibv_qp_state from, enum ibv_qp_state to)
{
    switch (to) {
    case IBV_QPS_RESET:
        return 1;
    case IBV_QPS_INIT:
        return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
    case IBV_QPS_RTR:
        return from == IBV_QPS_INIT;
    case IBV_QPS_RTS:
        return from == IBV_QPS_RTR || from == IBV_QPS_RTS || from == IBV_QPS_SQD;
    case IBV_QPS_SQD:
        return from == IBV_QPS_RTS || from == IBV_QPS_SQD;
    case IBV_QPS_ERR:
        return from != IBV_QPS_RESET;
    default:
        return 0;
    }
}

/* An XRC QP has one half only; what belongs to the other is passed over, as by the kernel. */
static int passed_over(int type)
{
    if (types[type] == IBV_QPT_XRC_SEND)
        return IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (types[type] == IBV_QPT_XRC_RECV)
        return IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    return 0;
}

static struct ibv_qp_attr good(enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {
        .qp_state = state,
        .path_mtu = IBV_MTU_1024,
        .qkey = QKEY,
        .rq_psn = 0x123456,
        .sq_psn = 0x654321,
        .dest_qp_num = 7,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
        .ah_attr = ah_to(&s.gid),
        .max_rd_atomic = 1,
        .max_dest_rd_atomic = 2,
        .min_rnr_timer = 12,
        .port_num = PORT,
        .timeout = 14,
        .retry_cnt = 6,
        .rnr_retry = 5,
    };

    return attr;
}

static void set_up(void)
{
    struct ibv_xrcd_init_attr init = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};

    make_side(&s, open_device(), IBV_QPT_RC, 4096);
    xrcd = NEED(ibv_open_xrcd(s.context, &init));
}

static struct ibv_qp *qp_in(int type, enum ibv_qp_state state)
{
    struct ibv_qp_init_attr_ex attr = {.qp_type = types[type], .send_cq = s.cq, .recv_cq = s.cq, .pd = s.pd,
                                       .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
                                       .comp_mask = IBV_QP_INIT_ATTR_PD};
    struct ibv_qp_attr next;
    struct ibv_qp *qp;

    if (types[type] == IBV_QPT_XRC_RECV) {
        memset(&attr, 0, sizeof(attr));
        attr.qp_type = IBV_QPT_XRC_RECV;
        attr.xrcd = xrcd;
        attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    }
    qp = NEED(ibv_create_qp_ex(s.context, &attr));
    for (enum ibv_qp_state at = IBV_QPS_INIT; at <= state && at <= IBV_QPS_RTS; at++) {
        next = good(at);
        if (state == IBV_QPS_ERR && at > IBV_QPS_INIT)
            break;
        ZERO(ibv_modify_qp(qp, &next, IBV_QP_STATE | required(type, (enum ibv_qp_state)(at - 1), at)));
    }
    if (state == IBV_QPS_SQD || state == IBV_QPS_ERR) {
        next = good(state);
        ZERO(ibv_modify_qp(qp, &next, IBV_QP_STATE));
    }
    EXPECT_EQ(state_of(qp), state);
    return qp;
}

struct picture {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
};

static struct picture picture_of(struct ibv_qp *qp)
{
    struct picture p;

    memset(&p, 0, sizeof(p));
    ZERO(ibv_query_qp(qp, &p.attr, 2 * IBV_QP_DEST_QPN - 1, &p.init));
    return p;
}

/* The call is refused for `reason` and has changed nothing. */
static void refuse(int type, enum ibv_qp_state from, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                   const char *reason)
{
    struct picture before = picture_of(qp), after;
    enum ibv_qp_state shown = qp->state;
    int rc;

    said();
    rc = ibv_modify_qp(qp, attr, mask);
    after = picture_of(qp);
    if (rc != EINVAL && rc != ENODATA)
        die("%s %s->%s mask 0x%x: %s, expected a refusal for %s", type_names[type], state_name(from),
            state_name(attr->qp_state), mask, rc_name(rc), reason);
    if (memcmp(&before, &after, sizeof(before)) || qp->state != shown)
        die("%s %s->%s mask 0x%x was refused and has changed the QP", type_names[type], state_name(from),
            state_name(attr->qp_state), mask);
    if (is_ours()) {
        const char *text = said();

        if (!strstr(text, reason))
            die("%s %s->%s mask 0x%x: the reason does not name %s: %s", type_names[type], state_name(from),
                state_name(attr->qp_state), mask, reason, text);
    }
}

static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR};
#define EACH(type, from, to)                                                                                          \
    for (int type = 0; type < TYPES; type++)                                                                          \
        for (unsigned f_ = 0; f_ < 6; f_++)                                                                           \
            for (unsigned t_ = 0; t_ < 6; t_++)                                                                       \
                for (enum ibv_qp_state from = states[f_], to = states[t_], once_ = 0; !once_; once_ = 1)

TEST(a_move_that_does_not_exist_is_refused_and_changes_nothing)
{
    set_up();
    EACH(type, from, to) {
        struct ibv_qp_attr attr = good(to);
        struct ibv_qp *qp;

        if (exists(from, to))
            continue;
        qp = qp_in(type, from);
        refuse(type, from, qp, &attr, IBV_QP_STATE, "no such transition");
        refuse(type, from, qp, &attr, IBV_QP_STATE | required(type, IBV_QPS_RTR, IBV_QPS_RTS), "no such transition");
        ZERO(ibv_destroy_qp(qp));
    }
}

TEST(a_move_without_one_of_its_attributes_is_refused_and_names_it)
{
    int moves = 0;

    set_up();
    EACH(type, from, to) {
        struct ibv_qp_attr attr = good(to);
        int mask = required(type, from, to);
        struct ibv_qp *qp;

        if (!exists(from, to) || !mask)
            continue;
        qp = qp_in(type, from);
        for (unsigned i = 0; i < BITS; i++)
            if (mask & bits[i].bit) {
                refuse(type, from, qp, &attr, IBV_QP_STATE | (mask & ~bits[i].bit), bits[i].name);
                moves++;
            }
        ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask));
        EXPECT_EQ(state_of(qp), to);
        ZERO(ibv_destroy_qp(qp));
    }
    EXPECT(moves > 40, "only %d were tried", moves);
}

TEST(a_move_with_an_attribute_of_another_one_is_refused_and_names_it)
{
    set_up();
    EACH(type, from, to) {
        struct ibv_qp_attr attr = good(to);
        int mask = required(type, from, to), allowed = mask | optional(type, from, to) | passed_over(type) | IBV_QP_STATE;
        struct ibv_qp *qp;

        if (!exists(from, to))
            continue;
        attr.cur_qp_state = from;
        qp = qp_in(type, from);
        for (unsigned i = 0; i < BITS; i++)
            if (!(allowed & bits[i].bit))
                refuse(type, from, qp, &attr, IBV_QP_STATE | mask | bits[i].bit,
                       bits[i].name);
        if (optional(type, from, to) != -1)
            refuse(type, from, qp, &attr, IBV_QP_STATE | mask | 1 << 30, "0x40000000");
        ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask));
        EXPECT_EQ(state_of(qp), to);
        ZERO(ibv_destroy_qp(qp));
    }
}

/* A value that is out of its range, and the attribute that the reason must name. */
struct wrong {
    int bit;
    const char *name;
    void (*spoil)(struct ibv_qp_attr *attr);
};

#define SPOIL(function, assignment)                                                                                   \
    static void function(struct ibv_qp_attr *a)                                                                       \
    {                                                                                                                 \
        assignment;                                                                                                   \
    }
SPOIL(port_0, a->port_num = 0)
SPOIL(port_2, a->port_num = 2)
SPOIL(port_255, a->port_num = 255)
SPOIL(pkey_1, a->pkey_index = 1)
SPOIL(pkey_max, a->pkey_index = 0xffff)
SPOIL(access_bits, a->qp_access_flags = 1u << 29)
SPOIL(mtu_0, a->path_mtu = 0)
SPOIL(mtu_6, a->path_mtu = 6)
SPOIL(mtu_max, a->path_mtu = 255)
SPOIL(mtu_bytes, a->path_mtu = 4096)
SPOIL(timeout_32, a->timeout = 32)
SPOIL(timeout_255, a->timeout = 255)
SPOIL(retry_8, a->retry_cnt = 8)
SPOIL(retry_255, a->retry_cnt = 255)
SPOIL(rnr_8, a->rnr_retry = 8)
SPOIL(rnr_255, a->rnr_retry = 255)
SPOIL(timer_32, a->min_rnr_timer = 32)
SPOIL(timer_255, a->min_rnr_timer = 255)
SPOIL(rd_255, a->max_rd_atomic = 255)
SPOIL(dest_rd_255, a->max_dest_rd_atomic = 255)
SPOIL(no_grh, a->ah_attr.is_global = 0)
SPOIL(av_port_0, a->ah_attr.port_num = 0)
SPOIL(av_port_2, a->ah_attr.port_num = 2)
SPOIL(av_gid_255, a->ah_attr.grh.sgid_index = 255)
SPOIL(av_dgid_0, memset(&a->ah_attr.grh.dgid, 0, 16))
SPOIL(mig_3, a->path_mig_state = 3)
SPOIL(alternate, a->alt_port_num = 1)

static const struct wrong wrongs[] = {
    {IBV_QP_PORT, "port_num=0", port_0},
    {IBV_QP_PORT, "port_num=2", port_2},
    {IBV_QP_PORT, "port_num=255", port_255},
    {IBV_QP_PKEY_INDEX, "pkey_index=1", pkey_1},
    {IBV_QP_PKEY_INDEX, "pkey_index=65535", pkey_max},
    {IBV_QP_ACCESS_FLAGS, "qp_access_flags=0x20000000", access_bits},
    {IBV_QP_PATH_MTU, "path_mtu=0", mtu_0},
    {IBV_QP_PATH_MTU, "path_mtu=6", mtu_6},
    {IBV_QP_PATH_MTU, "path_mtu=255", mtu_max},
    {IBV_QP_PATH_MTU, "path_mtu=4096", mtu_bytes},
    {IBV_QP_TIMEOUT, "timeout=32", timeout_32},
    {IBV_QP_TIMEOUT, "timeout=255", timeout_255},
    {IBV_QP_RETRY_CNT, "retry_cnt=8", retry_8},
    {IBV_QP_RETRY_CNT, "retry_cnt=255", retry_255},
    {IBV_QP_RNR_RETRY, "rnr_retry=8", rnr_8},
    {IBV_QP_RNR_RETRY, "rnr_retry=255", rnr_255},
    {IBV_QP_MIN_RNR_TIMER, "min_rnr_timer=32", timer_32},
    {IBV_QP_MIN_RNR_TIMER, "min_rnr_timer=255", timer_255},
    {IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic=255", rd_255},
    {IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic=255", dest_rd_255},
    {IBV_QP_AV, "ah_attr.is_global=0", no_grh},
    {IBV_QP_AV, "ah_attr.port_num=0", av_port_0},
    {IBV_QP_AV, "ah_attr.port_num=2", av_port_2},
    {IBV_QP_AV, "ah_attr.grh.sgid_index=255", av_gid_255},
    {IBV_QP_AV, "ah_attr.grh.dgid", av_dgid_0},
    {IBV_QP_PATH_MIG_STATE, "path_mig_state=3", mig_3},
    {IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH", alternate},
};

TEST(a_value_out_of_its_range_is_refused_and_named)
{
    int tried = 0;

    set_up();
    EACH(type, from, to) {
        int mask = required(type, from, to), more = optional(type, from, to);
        struct ibv_qp *qp;

        if (!exists(from, to))
            continue;
        if (more == -1)
            more = 0;
        qp = qp_in(type, from);
        for (unsigned i = 0; i < sizeof(wrongs) / sizeof(*wrongs); i++) {
            struct ibv_qp_attr attr = good(to);

            if (!((mask | more) & wrongs[i].bit) || (wrongs[i].bit & passed_over(type)))
                continue;
            wrongs[i].spoil(&attr);
            refuse(type, from, qp, &attr, IBV_QP_STATE | mask | wrongs[i].bit, wrongs[i].name);
            tried++;
        }
        ZERO(ibv_destroy_qp(qp));
    }
    EXPECT(tried > 150, "only %d were tried", tried);
}

/* Several wrong values, and good ones beside them: none of the good ones is taken over. */
TEST(good_values_beside_a_wrong_one_are_not_taken_over)
{
    static const int in_rts[] = {IBV_QP_MIN_RNR_TIMER, IBV_QP_ACCESS_FLAGS};

    set_up();
    for (int wrong = 0; wrong < 2; wrong++) {
        struct ibv_qp *qp = qp_in(0, IBV_QPS_RTS);
        struct ibv_qp_attr attr = good(IBV_QPS_RTS);

        attr.min_rnr_timer = wrong == 0 ? 99 : 1;
        attr.qp_access_flags = wrong == 1 ? 1u << 29 : 0;
        refuse(0, IBV_QPS_RTS, qp, &attr, IBV_QP_STATE | in_rts[0] | in_rts[1],
               wrong ? "qp_access_flags" : "min_rnr_timer");
        ZERO(ibv_destroy_qp(qp));
    }
    for (int type = 0; type < TYPES; type++) {
        struct ibv_qp *qp = qp_in(type, IBV_QPS_INIT);
        struct ibv_qp_attr attr = good(IBV_QPS_INIT);

        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
        attr.qkey = 5;
        attr.port_num = 9;
        refuse(type, IBV_QPS_INIT, qp, &attr,
               IBV_QP_STATE | IBV_QP_PORT | (types[type] == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS), "port_num=9");
        ZERO(ibv_destroy_qp(qp));
    }
}

TEST(a_state_that_is_none_and_a_wrong_current_state_are_refused)
{
    static const unsigned none[] = {7, 8, 100, 0x7fffffff};

    set_up();
    for (int type = 0; type < TYPES; type++)
        for (unsigned f = 0; f < 6; f++) {
            struct ibv_qp *qp = qp_in(type, states[f]);

            for (unsigned i = 0; i < 4; i++) {
                struct ibv_qp_attr attr = good(states[f]);
                char reason[32];

                attr.qp_state = (enum ibv_qp_state)none[i];
                snprintf(reason, sizeof(reason), "qp_state=%u", none[i]);
                refuse(type, states[f], qp, &attr, IBV_QP_STATE, reason);
            }
            for (enum ibv_qp_state current = IBV_QPS_RESET; current <= IBV_QPS_ERR; current++) {
                struct ibv_qp_attr attr = good(IBV_QPS_RTS);

                attr.cur_qp_state = current;
                if (current != states[f])
                    refuse(type, states[f], qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE, "cur_qp_state");
            }
            ZERO(ibv_destroy_qp(qp));
        }
}

/* The bounds themselves are good, and are told as they were set. */
TEST(values_at_their_bounds_are_accepted_and_told)
{
    set_up();
    for (int high = 0; high < 2; high++) {
        struct ibv_qp *qp = qp_in(0, IBV_QPS_INIT);
        struct ibv_qp_attr attr = good(IBV_QPS_RTR);
        struct ibv_device_attr device;
        struct picture p;

        ZERO(ibv_query_device(s.context, &device));
        attr.path_mtu = high ? IBV_MTU_4096 : IBV_MTU_256;
        attr.min_rnr_timer = high ? 31 : 0;
        attr.max_dest_rd_atomic = high ? (uint8_t)device.max_qp_rd_atom : 0;
        attr.rq_psn = high ? 0xffffff : 0;
        attr.dest_qp_num = high ? 0xffffff : 0;
        ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required(0, IBV_QPS_INIT, IBV_QPS_RTR)));
        p = picture_of(qp);
        EXPECT_EQ(p.attr.path_mtu, attr.path_mtu);
        EXPECT_EQ(p.attr.min_rnr_timer, attr.min_rnr_timer);
        EXPECT_EQ(p.attr.max_dest_rd_atomic, attr.max_dest_rd_atomic);
        EXPECT_EQ(p.attr.rq_psn, attr.rq_psn);
        EXPECT_EQ(p.attr.dest_qp_num, attr.dest_qp_num);
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = high ? 31 : 0;
        attr.retry_cnt = high ? 7 : 0;
        attr.rnr_retry = high ? 7 : 0;
        attr.max_rd_atomic = high ? (uint8_t)device.max_qp_init_rd_atom : 0;
        attr.sq_psn = high ? 0xffffff : 0;
        ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required(0, IBV_QPS_RTR, IBV_QPS_RTS)));
        p = picture_of(qp);
        EXPECT_EQ(p.attr.timeout, attr.timeout);
        EXPECT_EQ(p.attr.retry_cnt, attr.retry_cnt);
        EXPECT_EQ(p.attr.rnr_retry, attr.rnr_retry);
        EXPECT_EQ(p.attr.max_rd_atomic, attr.max_rd_atomic);
        EXPECT_EQ(p.attr.sq_psn, attr.sq_psn);
        ZERO(ibv_destroy_qp(qp));
    }
}

/* On this host every MTU goes; towards another one the route decides. */
TEST(a_path_mtu_that_the_route_does_not_carry_is_refused_and_the_fitting_one_named)
{
    static const char *const neighbours[] = {"::ffff:192.0.2.9", "fd00:1::9"}, *const own[] = {"::ffff:192.0.2.1", "fd00:1::1"};

    own_network();
    set_up();
    for (int i = 0; i < 2; i++)
        for (int type = 0; type < 2; type++) {
            struct ibv_qp_attr attr = good(IBV_QPS_RTR);
            struct ibv_gid_entry gids[64];
            ssize_t n = ibv_query_gid_table(s.context, gids, 64, 0);
            struct ibv_qp *qp = qp_in(type, IBV_QPS_INIT);
            union ibv_gid mine;
            int found = 0;

            inet_pton(AF_INET6, own[i], &mine);
            for (ssize_t g = 0; g < n; g++)
                if (!memcmp(&gids[g].gid, &mine, 16)) {
                    attr.ah_attr.grh.sgid_index = (uint8_t)gids[g].gid_index;
                    found = 1;
                }
            EXPECT(found);
            inet_pton(AF_INET6, neighbours[i], &attr.ah_attr.grh.dgid);
            for (enum ibv_mtu mtu = IBV_MTU_2048; mtu <= IBV_MTU_4096; mtu++) {
                attr.path_mtu = mtu;
                refuse(type, IBV_QPS_INIT, qp, &attr, IBV_QP_STATE | required(type, IBV_QPS_INIT, IBV_QPS_RTR), "1024");
            }
            attr.path_mtu = IBV_MTU_1024;
            ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required(type, IBV_QPS_INIT, IBV_QPS_RTR)));
            ZERO(ibv_destroy_qp(qp));
        }
}
