/*
 * A CQ is resized with completions in it. Fewer entries than completions are refused and change nothing; more keep what is
 * there, in its order, and take what comes. Whether a completion has come yet is up to the kernel, which works on requests in
 * threads of its own: the program asks until it has.
 */
#include "../common.h"

enum { FIRST = 6, LATER = 20 };

/* Sends `count` messages, the first of them with this number. */
static void messages(struct side *from, struct side *to, unsigned first, unsigned count)
{
    for (unsigned i = first; i < first + count; i++)
        ZERO(recv_one(to, i, 0, 64));
    for (unsigned i = first; i < first + count; i++)
        ZERO(send_one(from, i, 64, 8, IBV_SEND_SIGNALED));
}

/* Asks for one entry fewer than there will be completions, until that is refused. A queue of soft-RoCE has room for one more
 * than this, so nothing is lost where it is granted. */
static void refused(struct ibv_cq *cq, int completions, const char *whose)
{
    uint64_t end = now_ms() + 20000;
    int before = cq->cqe, rc;

    while ((rc = ibv_resize_cq(cq, completions - 1)) == 0) {
        before = cq->cqe;
        if (before < completions)
            die("%d entries cannot hold %d completions", before, completions);
        if (now_ms() > end)
            die("%s: fewer entries than completions are never refused", whose);
        usleep(5000);
    }
    printf("%s: fewer entries than completions: %s\n", whose, rc_name(rc));
    if (rc != EINVAL || cq->cqe != before)
        die("%s: a refusal leaves %d entries of %d", whose, cq->cqe, before);
}

static void grows(struct ibv_cq *cq, const char *whose)
{
    ZERO(ibv_resize_cq(cq, 100));
    printf("%s: grows to %d\n", whose, cq->cqe);
    if (cq->cqe < 100)
        die("%s: too few entries", whose);
}

static void all(struct ibv_cq *cq, const char *whose)
{
    struct ibv_wc wc;

    for (unsigned i = 0; i < FIRST + LATER; i++) {
        wc = next_wc(cq);
        if (wc.status || wc.wr_id != i)
            die("%s: completion %u is %d of request %" PRIu64, whose, i, wc.status, wc.wr_id);
    }
    if (ibv_poll_cq(cq, 1, &wc))
        die("%s: one completion too many", whose);
    ZERO(ibv_resize_cq(cq, 1));
    printf("%s: all completions in order, then shrinks to %d\n", whose, cq->cqe);
}

int main(void)
{
    struct ibv_context *context;
    struct side a, b;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 4096);
    make_side(&b, context, IBV_QPT_RC, 4096);
    join(&a, &b);
    messages(&a, &b, 0, FIRST);
    refused(a.cq, FIRST, "sender");
    refused(b.cq, FIRST, "receiver");
    grows(a.cq, "sender");
    grows(b.cq, "receiver");
    messages(&a, &b, FIRST, LATER);
    all(a.cq, "sender");
    all(b.cq, "receiver");
    messages(&a, &b, 0, 1);
    show_next("sender", a.cq);
    show_next("receiver", b.cq);
    drop_side(&a);
    drop_side(&b);
    printf("close %s\n", rc_name(ibv_close_device(context)));
    return 0;
}
