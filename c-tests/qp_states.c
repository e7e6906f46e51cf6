/* The state machine of a QP: which moves are allowed, and that a refused one changes nothing. */
#include "common.h"

static struct side s;

static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
static const char *const type_names[] = {"RC", "UC", "UD"};

static int to(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};

    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static struct ibv_qp *qp_in(enum ibv_qp_type type, enum ibv_qp_state state)
{
    struct ibv_qp *qp = make_qp(&s, type, NULL);

    if (state >= IBV_QPS_INIT)
        ZERO(to_init(qp));
    if (state == IBV_QPS_ERR) {
        ZERO(to(qp, IBV_QPS_ERR));
        return qp;
    }
    if (state >= IBV_QPS_RTR)
        ZERO(to_rtr(qp, qp->qp_num, 1, &s.gid));
    if (state >= IBV_QPS_RTS)
        ZERO(to_rts(qp, 1));
    if (state == IBV_QPS_SQD)
        ZERO(to(qp, IBV_QPS_SQD));
    return qp;
}

/* Every state to every state, with the attributes that the move needs where it is allowed. */
static void moves(void)
{
    static const enum ibv_qp_state from[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                             IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR};

    for (int t = 0; t < 3; t++) {
        for (unsigned f = 0; f < 6; f++) {
            printf("%s %s to:", type_names[t], state_name(from[f]));
            for (int target = IBV_QPS_RESET; target <= IBV_QPS_ERR; target++) {
                struct ibv_qp *qp = qp_in(types[t], from[f]);
                enum ibv_qp_state expected = from[f];
                int rc;

                if (target == IBV_QPS_INIT)
                    rc = to_init(qp);
                else if (target == IBV_QPS_RTR)
                    rc = to_rtr(qp, 5, 1, &s.gid);
                else if (target == IBV_QPS_RTS && from[f] < IBV_QPS_RTS)
                    rc = to_rts(qp, 1);
                else
                    rc = to(qp, (enum ibv_qp_state)target);
                if (rc == 0) {
                    expected = (enum ibv_qp_state)target;
                    printf(" %s", state_name(expected));
                } else if (rc != EINVAL) {
                    printf(" %s:%s", state_name((enum ibv_qp_state)target), rc_name(rc));
                }
                if (state_of(qp) != expected || qp->state != expected)
                    printf(" (is %s, seen %s)", state_name(state_of(qp)), state_name(qp->state));
                ZERO(ibv_destroy_qp(qp));
            }
            printf("\n");
        }
    }
}

static struct ibv_qp_attr good(enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {
        .qp_state = state,
        .path_mtu = IBV_MTU_1024,
        .qkey = QKEY,
        .rq_psn = 1,
        .sq_psn = 1,
        .dest_qp_num = 7,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
        .ah_attr = ah_to(&s.gid),
        .max_rd_atomic = 1,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .port_num = PORT,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
    };

    return attr;
}

static int required(int type, enum ibv_qp_state state)
{
    int rc = types[type] == IBV_QPT_RC, ud = types[type] == IBV_QPT_UD;

    switch (state) {
    case IBV_QPS_INIT:
        return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    case IBV_QPS_RTR:
        return ud ? 0
                  : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    default:
        return IBV_QP_SQ_PSN |
               (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
    }
}

/* One required attribute less, or one that has no business there. */
static void masks(void)
{
    for (int t = 0; t < 3; t++) {
        for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
            struct ibv_qp *qp = qp_in(types[t], (enum ibv_qp_state)(state - 1));
            struct ibv_qp_attr attr = good((enum ibv_qp_state)state);
            int mask = required(t, (enum ibv_qp_state)state), less = 0, refused = 0, more;

            for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
                if (!(mask & bit))
                    continue;
                less++;
                refused += ibv_modify_qp(qp, &attr, IBV_QP_STATE | (mask & ~bit)) == EINVAL;
            }
            more = ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask | (state == IBV_QPS_RTS ? IBV_QP_DEST_QPN : IBV_QP_SQ_PSN));
            printf("%s to %s: %d of %d incomplete refused, one too many %s, then %s", type_names[t],
                   state_name((enum ibv_qp_state)state), refused, less, rc_name(more), state_name(state_of(qp)));
            printf(", complete %s\n", rc_name(ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask)));
            ZERO(ibv_destroy_qp(qp));
        }
    }
}

static void try(const char *what, enum ibv_qp_state state, struct ibv_qp_attr attr)
{
    struct ibv_qp *qp = qp_in(IBV_QPT_RC, (enum ibv_qp_state)(state - 1));
    int rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | required(0, state));

    printf("%s: %s, %s\n", what, rc_name(rc), state_name(state_of(qp)));
    ZERO(ibv_destroy_qp(qp));
}

#define TRY(state, field, value)                                                                                      \
    do {                                                                                                              \
        struct ibv_qp_attr attr_ = good(state);                                                                       \
        attr_.field = value;                                                                                          \
        try(#field " = " #value, state, attr_);                                                                       \
    } while (0)

/* ENODATA where the table is long and this row is empty. */
static void row_of_gids(void)
{
    struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_INIT);
    struct ibv_qp_attr attr = good(IBV_QPS_RTR);
    int rc;

    attr.ah_attr.grh.sgid_index = 255;
    rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | required(0, IBV_QPS_RTR));
    printf("sgid_index = 255: refused %s, %s\n", yes(rc == EINVAL || rc == ENODATA), state_name(state_of(qp)));
    ZERO(ibv_destroy_qp(qp));
}

static void values(void)
{
    row_of_gids();
    TRY(IBV_QPS_INIT, port_num, 0);
    TRY(IBV_QPS_INIT, port_num, 2);
    TRY(IBV_QPS_INIT, pkey_index, 1000);
    TRY(IBV_QPS_RTR, path_mtu, (enum ibv_mtu)0);
    TRY(IBV_QPS_RTR, path_mtu, (enum ibv_mtu)6);
    TRY(IBV_QPS_RTR, ah_attr.is_global, 0);
    TRY(IBV_QPS_RTR, ah_attr.port_num, 2);
    TRY(IBV_QPS_RTR, min_rnr_timer, 32);
    TRY(IBV_QPS_RTR, min_rnr_timer, 31);
    TRY(IBV_QPS_RTR, rq_psn, 0xff000001);
    TRY(IBV_QPS_RTS, timeout, 32);
    TRY(IBV_QPS_RTS, retry_cnt, 8);
    TRY(IBV_QPS_RTS, rnr_retry, 8);
    TRY(IBV_QPS_RTS, max_rd_atomic, 255);
    TRY(IBV_QPS_RTS, timeout, 31);
}

/* What a QP tells about itself afterwards. */
static void told(void)
{
    struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    memset(&attr, 0xee, sizeof(attr));
    memset(&init, 0xee, sizeof(init));
    ZERO(ibv_query_qp(qp, &attr, 2 * IBV_QP_DEST_QPN - 1, &init));
    printf("query: %s, mtu %d, dest %s, rq_psn %u, sq_psn %u, rd_atomic %s, timeout %d, retry %d %d, timer %d, port %d\n",
           state_name(attr.qp_state), attr.path_mtu, yes(attr.dest_qp_num == qp->qp_num), attr.rq_psn, attr.sq_psn,
           yes(attr.max_rd_atomic >= 4 && attr.max_dest_rd_atomic >= 4), attr.timeout, attr.retry_cnt, attr.rnr_retry,
           attr.min_rnr_timer, attr.port_num);
    printf("init: type %d, CQs %s, cap %s, SRQ %s, access %#x, gid %s\n", init.qp_type,
           yes(init.send_cq == s.cq && init.recv_cq == s.cq), yes(init.cap.max_send_wr >= 32), yes(init.srq != NULL),
           attr.qp_access_flags, yes(!memcmp(&attr.ah_attr.grh.dgid, &s.gid, 16) && attr.ah_attr.is_global));
    ZERO(ibv_destroy_qp(qp));
}

/* A QP that goes to RESET takes along its completions that nobody has polled, and no other's. */
static void reset_clears(void)
{
    struct ibv_qp *one = qp_in(IBV_QPT_RC, IBV_QPS_INIT), *two = qp_in(IBV_QPT_RC, IBV_QPS_INIT);
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    struct ibv_wc wc[8];
    int n, others = 0;

    for (int i = 0; i < 3; i++) {
        ZERO(ibv_post_recv(one, &wr, &bad));
        ZERO(ibv_post_recv(two, &wr, &bad));
    }
    ZERO(to(one, IBV_QPS_ERR));
    ZERO(to(two, IBV_QPS_ERR));
    ZERO(to(one, IBV_QPS_RESET));
    n = ibv_poll_cq(s.cq, 8, wc);
    for (int i = 0; i < n; i++)
        others += wc[i].qp_num == two->qp_num && wc[i].status == IBV_WC_WR_FLUSH_ERR;
    printf("after RESET: %d completions left, %d of the other QP\n", n, others);
    ZERO(ibv_destroy_qp(one));
    ZERO(ibv_destroy_qp(two));
}

static void not_made(void)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = s.cq, .recv_cq = s.cq, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}, .qp_type = IBV_QPT_RC};
    struct ibv_qp_init_attr bad = attr;

    bad.cap.max_send_wr = 1u << 30;
    printf("a billion sends: %s\n", pointer_name(ibv_create_qp(s.pd, &bad)));
    bad = attr;
    bad.cap.max_send_sge = 5000;
    printf("5000 SGEs: %s\n", pointer_name(ibv_create_qp(s.pd, &bad)));
    bad = attr;
    bad.send_cq = NULL;
    printf("no CQ: refused %s\n", yes(ibv_create_qp(s.pd, &bad) == NULL));
    bad = attr;
    bad.qp_type = (enum ibv_qp_type)77;
    printf("type 77: refused %s\n", yes(ibv_create_qp(s.pd, &bad) == NULL));
    printf("CQ of 0: %s", pointer_name(ibv_create_cq(s.context, 0, NULL, NULL, 0)));
    printf(", of -1: %s", pointer_name(ibv_create_cq(s.context, -1, NULL, NULL, 0)));
    printf(", vector 9999: %s\n", pointer_name(ibv_create_cq(s.context, 1, NULL, NULL, 9999)));
    printf("CQ destroyed under a QP: %s\n", rc_name(ibv_destroy_cq(s.cq)));
    printf("PD freed under a QP: %s\n", rc_name(ibv_dealloc_pd(s.pd)));
    printf("write access for peers only: %s\n",
           pointer_name(ibv_reg_mr(s.pd, s.buffer, 64, IBV_ACCESS_REMOTE_WRITE)));
    printf("unknown access bit: %s\n", pointer_name(ibv_reg_mr(s.pd, s.buffer, 64, 1 << 19)));
}

int main(void)
{
    struct ibv_context *context;

    start();
    context = open_device();
    make_side(&s, context, IBV_QPT_RC, 4096);
    moves();
    masks();
    values();
    told();
    reset_clears();
    not_made();
    drop_side(&s);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
