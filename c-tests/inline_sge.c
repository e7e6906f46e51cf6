/* Scatter and gather lists, and inline data, by both ways of posting. */
#include "common.h"

static struct side a, b;

static struct ibv_qp *qp_with_calls(uint32_t *max_inline)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = a.cq,
        .recv_cq = a.cq,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 100},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = a.pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    struct ibv_qp *qp = NEED(ibv_create_qp_ex(a.context, &attr));

    *max_inline = attr.cap.max_inline_data;
    printf("caps at least what was asked for: %s\n",
           yes(attr.cap.max_send_wr >= 8 && attr.cap.max_recv_wr >= 8 && attr.cap.max_send_sge >= 4 &&
               attr.cap.max_recv_sge >= 4 && attr.cap.max_inline_data >= 100));
    return qp;
}

/* Lists of unequal lengths on both sides that do not match each other. */
static void lists(void)
{
    static const uint32_t out[4] = {1, 64, 4096, 7}, in[4] = {100, 3, 4000, 1000};
    struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(a.qp));
    struct ibv_sge from[4], to[4];
    struct ibv_recv_wr rwr = {.wr_id = 1, .sg_list = to, .num_sge = 4}, *rbad;
    struct ibv_send_wr swr = {
        .wr_id = 2, .sg_list = from, .num_sge = 4, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *sbad;

    for (int way = 0; way < 2; way++) {
        unsigned char expected[4168], got[4168];
        size_t at = 0, n = 0;

        fill(a.buffer, a.size, (unsigned)way);
        memset(b.buffer, 0, b.size);
        for (int i = 0; i < 4; i++) {
            from[i] = sge_of(&a, (size_t)(3 - i) * 8192 + (size_t)i, out[i]);
            to[i] = sge_of(&b, (size_t)i * 8192 + 5, in[i]);
            memcpy(expected + at, a.buffer + (3 - i) * 8192 + i, out[i]);
            at += out[i];
        }
        ZERO(ibv_post_recv(b.qp, &rwr, &rbad));
        if (way == 0) {
            ZERO(ibv_post_send(a.qp, &swr, &sbad));
        } else {
            ibv_wr_start(ex);
            ex->wr_id = 2;
            ex->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_send(ex);
            ibv_wr_set_sge_list(ex, 4, from);
            ZERO(ibv_wr_complete(ex));
        }
        show_next("four pieces", a.cq);
        show_next("  recv", b.cq);
        for (int i = 0; i < 4; i++) {
            size_t take = at - n < in[i] ? at - n : in[i];

            memcpy(got + n, b.buffer + i * 8192 + 5, take);
            n += take;
        }
        printf("  data %s\n", yes(!memcmp(expected, got, at)));
    }
}

/* Neither the lkey nor the buffer matter after the call. */
static void released(uint32_t max_inline)
{
    unsigned char stack[64];
    struct ibv_sge sge = {.addr = (uintptr_t)stack, .length = sizeof(stack), .lkey = 0xdeadbeef};
    struct ibv_send_wr wr = {.wr_id = 3,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};
    struct ibv_send_wr *bad;

    fill(stack, sizeof(stack), 77);
    ZERO(recv_one(&b, 4, 0, 4096));
    ZERO(ibv_post_send(a.qp, &wr, &bad));
    memset(stack, 0, sizeof(stack));
    show_next("inline from unregistered memory", a.cq);
    show_next("  recv", b.cq);
    printf("  data %s\n", yes(filled(b.buffer, sizeof(stack), 77)));

    sge = sge_of(&a, 0, max_inline + 1);
    bad = NULL;
    printf("one byte too many: refused %s", yes(ibv_post_send(a.qp, &wr, &bad) > 0));
    printf(", bad_wr %s\n", yes(bad == &wr));
}

/* The sum of an inline list counts, not each piece. */
static void inline_lists(uint32_t max_inline)
{
    struct ibv_qp_ex *ex = NEED(ibv_qp_to_qp_ex(a.qp));
    unsigned char *local = NEED(malloc(max_inline + 2));
    struct ibv_data_buf parts[2];
    struct ibv_wc wc;

    for (uint32_t extra = 0; extra < 2; extra++) {
        int rc;

        fill(local, max_inline + 1, 55);
        parts[0] = (struct ibv_data_buf){local, max_inline / 2};
        parts[1] = (struct ibv_data_buf){local + max_inline / 2, max_inline - max_inline / 2 + extra};
        if (!extra)
            ZERO(recv_one(&b, 6, 0, 8192));
        ibv_wr_start(ex);
        ex->wr_id = 5;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(ex);
        ibv_wr_set_inline_data_list(ex, 2, parts);
        rc = ibv_wr_complete(ex);
        memset(local, 0, max_inline + 1);
        printf("inline list of %s: %s\n", extra ? "one byte more" : "as much as fits", rc ? "refused" : "posted");
        if (rc)
            continue;
        show_next("  send", a.cq);
        wc = next_wc(b.cq);
        printf("  received all %s, data %s\n", yes(wc.byte_len == max_inline), yes(filled(b.buffer, max_inline, 55)));
    }
    printf("nothing of the refused one was sent: %s\n", yes(ibv_poll_cq(a.cq, 1, &wc) == 0));
    free(local);
}

int main(void)
{
    struct ibv_context *context;
    uint32_t max_inline;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 65536);
    make_side(&b, context, IBV_QPT_RC, 65536);
    ZERO(ibv_destroy_qp(a.qp));
    a.qp = qp_with_calls(&max_inline);
    join(&a, &b);
    lists();
    released(max_inline);
    inline_lists(max_inline);
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
