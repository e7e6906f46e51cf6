/*
 * memory [qp | mr]: what an open device costs, and a QP or a region, by difference, as "NAME BYTES" lines. Counted is what
 * is private or of a file and resident, and what is committed in shared memory files, mapped or not. A process measures
 * one of them: what it frees would hide the next.
 */
#include "heavy.h"

enum { WARM = 64, QPS = 1000, REGIONS = 60000, DEPTH = 128, LENGTH = 64 };

static void show(const char *what, long before, long n)
{
    printf("%s %ld\n", what, (used() - before + n - 1) / n);
}

static struct ibv_qp *qp_of(struct side *s, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = s->cq, .recv_cq = s->cq, .qp_type = type,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};

    return NEED(ibv_create_qp(s->pd, &init));
}

/* Every place of both queues has been used: two by two, each other's peer. */
static void use_all(struct side *s, struct ibv_qp **qps, long n)
{
    for (long i = 0; i < n; i += 2)
        for (int turn = 0; turn < DEPTH; turn++)
            for (int side = 0; side < 2; side++) {
                struct ibv_sge sge = sge_of(s, 0, LENGTH);
                struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;
                struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                                           .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad_send;

                ZERO(ibv_post_recv(qps[i + side], &receive, &bad_receive));
                ZERO(ibv_post_send(qps[i + !side], &send, &bad_send));
                for (int wc = 0; wc < 2; wc++)
                    if (next_wc(s->cq).status)
                        die("a completion in error");
            }
}

static void pair_up(struct side *s, struct ibv_qp **qps, long n)
{
    struct about about[2] = {{.gid = s->gid}, {.gid = s->gid}};

    for (long i = 0; i < n; i += 2) {
        for (int side = 0; side < 2; side++) {
            about[side].qpn = qps[i + side]->qp_num;
            ZERO(to_init(qps[i + side]));
        }
        for (int side = 0; side < 2; side++)
            connect_qp(qps[i + side], &about[side], &about[!side], 14, 7, 7);
    }
}

static void queue_pairs(struct side *s)
{
    static struct ibv_qp *qps[WARM + QPS];
    long before;

    for (long i = 0; i < WARM; i++)
        qps[i] = qp_of(s, IBV_QPT_RC);
    pair_up(s, qps, WARM);
    use_all(s, qps, WARM);
    before = used();
    for (long i = WARM; i < WARM + QPS; i++)
        qps[i] = qp_of(s, IBV_QPT_RC);
    show("qp-new", before, QPS);
    pair_up(s, qps + WARM, QPS);
    show("qp-connected", before, QPS);
    use_all(s, qps + WARM, QPS);
    show("qp-used", before, QPS);
    for (long i = 0; i < WARM + QPS; i++)
        ZERO(ibv_destroy_qp(qps[i]));
}

static void regions(struct side *s)
{
    struct ibv_mr **mrs = pages((WARM + REGIONS) * sizeof(*mrs));
    long before = 0;

    memset(mrs, 1, (WARM + REGIONS) * sizeof(*mrs));
    for (long i = 0; i < WARM + REGIONS; i++) {
        if (i == WARM)
            before = used();
        mrs[i] = NEED(ibv_reg_mr(s->pd, s->buffer + i % 4096, LENGTH, ALL_ACCESS));
    }
    show("mr", before, REGIONS);
    for (long i = 0; i < WARM + REGIONS; i++)
        ZERO(ibv_dereg_mr(mrs[i]));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    struct ibv_context *context;
    struct side s;
    long before;

    limit_time(60);
    used();
    before = used();
    context = open_device();
    show("open", before, 1);
    make_side(&s, context, IBV_QPT_RC, 64 * 1024);
    show("first-objects", before, 1);
    if (!strcmp(what, "qp"))
        queue_pairs(&s);
    if (!strcmp(what, "mr"))
        regions(&s);
    drop_side(&s);
    ZERO(ibv_close_device(context));
    return 0;
}
