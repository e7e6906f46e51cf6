/* Extended verbs asked by programs of other releases: unknown bits are refused with a reason, other sizes of structs honoured. */
#include "behaviour.h"

/* A bit that no release has given a meaning. */
#define UNKNOWN (1u << 31)

static struct side s;

static void set_up(void)
{
    make_side(&s, open_device(), IBV_QPT_RC, 65536);
}

/* EINVAL or EOPNOTSUPP, with one line that says why. */
static void one_of_both(const char *call, int line, int error)
{
    const char *text = said();

    if (error != EINVAL && error != EOPNOTSUPP)
        die("line %d: %s: %s, expected EINVAL or EOPNOTSUPP", line, call, rc_name(error));
    if (is_ours() && (!*text || strchr(text, '\n') != strrchr(text, '\n')))
        die("line %d: %s: one reason was expected: %s", line, call, text);
}

#define NOT_OFFERED(call)                                                                                             \
    do {                                                                                                              \
        int rc_;                                                                                                      \
        said();                                                                                                       \
        rc_ = (call);                                                                                                 \
        one_of_both(#call, __LINE__, rc_);                                                                            \
    } while (0)
#define NONE_OFFERED(call)                                                                                            \
    do {                                                                                                              \
        const void *made_;                                                                                            \
        said();                                                                                                       \
        errno = 0;                                                                                                    \
        made_ = (call);                                                                                               \
        if (made_)                                                                                                    \
            die("line %d: %s: made", __LINE__, #call);                                                                \
        one_of_both(#call, __LINE__, errno);                                                                          \
    } while (0)

TEST(query_device_ex_with_an_unknown_input_is_refused_and_without_is_never)
{
    struct ibv_query_device_ex_input input = {.comp_mask = UNKNOWN}, empty = {0};
    struct ibv_device_attr_ex attr;

    set_up();
    NOT_OFFERED(verbs_get_ctx(s.context)->query_device_ex(s.context, &input, &attr, sizeof(attr)));
    /* verbs.h itself looks at the input before it asks the library. */
    EXPECT(ibv_query_device_ex(s.context, &input, &attr) != 0);
    ZERO(ibv_query_device_ex(s.context, &empty, &attr));
    ZERO(ibv_query_device_ex(s.context, NULL, &attr));
    EXPECT(attr.orig_attr.max_qp > 0 && attr.orig_attr.vendor_id);
}

/* Every size from the first release's on: what fits is filled in, what does not exist yet is zero, nothing beyond is touched. */
TEST(query_device_ex_honours_every_size_of_its_struct)
{
    struct ibv_device_attr_ex whole;
    size_t smallest = offsetof(struct ibv_device_attr_ex, odp_caps);

    set_up();
    ZERO(ibv_query_device_ex(s.context, NULL, &whole));
    for (size_t size = smallest; size <= sizeof(whole) + 256; size += 4) {
        unsigned char *bytes = pages(16384);
        size_t known = size < sizeof(whole) ? size : sizeof(whole);

        memset(bytes, 0xee, 16384);
        ZERO(verbs_get_ctx(s.context)->query_device_ex(s.context, NULL, (void *)bytes, size));
        for (size_t i = size; i < 16384; i++)
            EXPECT(bytes[i] == 0xee, "byte %zu of %zu", i, size);
        for (size_t i = known; i < size; i++)
            EXPECT(bytes[i] == 0, "byte %zu of %zu", i, size);
        EXPECT(!memcmp(bytes, &whole.orig_attr.fw_ver, 64), "size %zu", size);
        munmap(bytes, 16384);
    }
}

TEST(query_port_honours_every_size_of_its_struct)
{
    struct ibv_port_attr whole;

    set_up();
    memset(&whole, 0, sizeof(whole));
    ZERO(ibv_query_port(s.context, PORT, &whole));
    for (size_t size = offsetof(struct ibv_port_attr, port_cap_flags2); size <= sizeof(whole) + 64; size++) {
        unsigned char bytes[512];

        memset(bytes, 0xee, sizeof(bytes));
        ZERO(verbs_get_ctx(s.context)->query_port(s.context, PORT, (void *)bytes, size));
        for (size_t i = size; i < sizeof(bytes); i++)
            EXPECT(bytes[i] == 0xee, "byte %zu of %zu", i, size);
        for (size_t i = 0; i < size; i++)
            EXPECT(bytes[i] == (i < sizeof(whole) ? ((unsigned char *)&whole)[i] : 0), "byte %zu of %zu", i, size);
    }
#undef ibv_query_port
    {
        /* The function of 2005, whose callers have the short struct. */
        unsigned char bytes[512];

        memset(bytes, 0xee, sizeof(bytes));
        ZERO(ibv_query_port(s.context, PORT, (void *)bytes));
        EXPECT(!memcmp(bytes, &whole, offsetof(struct ibv_port_attr, flags)));
        for (size_t i = sizeof(whole); i < sizeof(bytes); i++)
            EXPECT(bytes[i] == 0xee, "byte %zu", i);
        for (int port = 0; port < 256; port += port == 0 ? 2 : 50)
            REFUSED(ibv_query_port(s.context, (uint8_t)port, (void *)bytes), EINVAL, text_of("port_num=%d", port));
    }
}

static struct ibv_qp_init_attr_ex qp_attr(void)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC,
        .send_cq = s.cq,
        .recv_cq = s.cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = s.pd,
    };

    return attr;
}

TEST(create_qp_ex_refuses_what_it_does_not_know)
{
    struct ibv_qp_init_attr_ex attr;

    set_up();
    for (uint32_t bit = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS << 1; bit; bit <<= 1) {
        attr = qp_attr();
        attr.comp_mask |= bit;
        NONE_OFFERED(ibv_create_qp_ex(s.context, &attr));
    }
    for (int bit = 16; bit < 32; bit++) {
        attr = qp_attr();
        attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
        attr.create_flags = 1u << bit;
        NONE_OFFERED(ibv_create_qp_ex(s.context, &attr));
    }
    for (int bit = 16; bit < 64; bit++) {
        attr = qp_attr();
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = 1ull << bit;
        NONE_OFFERED(ibv_create_qp_ex(s.context, &attr));
    }
    for (int type = 0; type < 300; type++) {
        if (type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD || type == IBV_QPT_XRC_SEND ||
            type == IBV_QPT_XRC_RECV)
            continue;
        attr = qp_attr();
        attr.qp_type = (enum ibv_qp_type)type;
        NONE_OFFERED(ibv_create_qp_ex(s.context, &attr));
    }
    attr = qp_attr();
    attr.comp_mask = 0;
    NONE_OFFERED(ibv_create_qp_ex(s.context, &attr));
    attr = qp_attr();
    attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    attr.max_tso_header = 64;
    NONE_OFFERED(ibv_create_qp_ex(s.context, &attr));
    attr = qp_attr();
    attr.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE;
    NONE_OFFERED(ibv_create_qp_ex(s.context, &attr));
}

TEST(create_cq_ex_refuses_what_it_does_not_know)
{
    struct ibv_cq_init_attr_ex attr;

    set_up();
    for (int bit = 2; bit < 32; bit++) {
        attr = (struct ibv_cq_init_attr_ex){.cqe = 4, .comp_mask = 1u << bit};
        NONE_OFFERED(ibv_create_cq_ex(s.context, &attr));
    }
    for (int bit = 2; bit < 32; bit++) {
        attr = (struct ibv_cq_init_attr_ex){
            .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1u << bit};
        NONE_OFFERED(ibv_create_cq_ex(s.context, &attr));
    }
    for (int bit = 12; bit < 64; bit++) {
        attr = (struct ibv_cq_init_attr_ex){.cqe = 4, .wc_flags = 1ull << bit};
        NONE_OFFERED(ibv_create_cq_ex(s.context, &attr));
    }
    attr = (struct ibv_cq_init_attr_ex){.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = s.pd};
    NONE_OFFERED(ibv_create_cq_ex(s.context, &attr));
    attr = (struct ibv_cq_init_attr_ex){.cqe = 0};
    NONE_OFFERED(ibv_create_cq_ex(s.context, &attr));
    attr = (struct ibv_cq_init_attr_ex){.cqe = 4, .comp_vector = 100000};
    NONE_OFFERED(ibv_create_cq_ex(s.context, &attr));
    {
        struct ibv_modify_cq_attr modify = {.attr_mask = 0};

        NOT_OFFERED(ibv_modify_cq(s.cq, &modify));
        for (int bit = 1; bit < 32; bit++) {
            modify.attr_mask = 1u << bit;
            NOT_OFFERED(ibv_modify_cq(s.cq, &modify));
        }
    }
}

TEST(srqs_and_xrc_refuse_what_they_do_not_know)
{
    struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = 1, .max_sge = 1}, .pd = s.pd};
    struct ibv_xrcd_init_attr xrcd = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS | UNKNOWN, .fd = -1};
    struct ibv_qp_open_attr open = {0};
    struct ibv_xrcd *domain;

    set_up();
    attr.pd = s.pd;
    for (int bit = 5; bit < 32; bit++) {
        attr.comp_mask = IBV_SRQ_INIT_ATTR_PD | 1u << bit;
        NONE_OFFERED(ibv_create_srq_ex(s.context, &attr));
    }
    for (unsigned type = 2; type < 10; type++) {
        attr.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
        attr.srq_type = (enum ibv_srq_type)type;
        NONE_OFFERED(ibv_create_srq_ex(s.context, &attr));
    }
    attr.comp_mask = 0;
    NONE_OFFERED(ibv_create_srq_ex(s.context, &attr));
    NONE_OFFERED(ibv_open_xrcd(s.context, &xrcd));
    xrcd.comp_mask = 0;
    NONE_OFFERED(ibv_open_xrcd(s.context, &xrcd));
    xrcd = (struct ibv_xrcd_init_attr){
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    domain = NEED(ibv_open_xrcd(s.context, &xrcd));
    for (int bit = 4; bit < 32; bit++) {
        open = (struct ibv_qp_open_attr){
            .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | 1u << bit,
            .qp_num = s.qp->qp_num,
            .xrcd = domain,
            .qp_type = IBV_QPT_XRC_RECV};
        NONE_OFFERED(ibv_open_qp(s.context, &open));
    }
    open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    NONE_OFFERED(ibv_open_qp(s.context, &open));
    open.comp_mask = 0;
    NONE_OFFERED(ibv_open_qp(s.context, &open));
    ZERO(ibv_close_xrcd(domain));
    {
        uint32_t number;
        struct ibv_srq_init_attr init = {.attr = {.max_wr = 1, .max_sge = 1}};
        struct ibv_srq *srq = NEED(ibv_create_srq(s.pd, &init));
        struct ibv_ops_wr op = {.opcode = IBV_WR_TAG_ADD}, *bad = NULL;

        NOT_OFFERED(ibv_get_srq_num(srq, &number));
        NOT_OFFERED(ibv_post_srq_ops(srq, &op, &bad));
        EXPECT(bad == &op);
        ZERO(ibv_destroy_srq(srq));
    }
}

TEST(domains_refuse_what_they_do_not_know)
{
    struct ibv_parent_domain_init_attr parent = {0};
    struct ibv_td_init_attr td = {0};

    set_up();
    for (int bit = 0; bit < 32; bit++) {
        td.comp_mask = 1u << bit;
        NONE_OFFERED(ibv_alloc_td(s.context, &td));
    }
    for (int bit = 3; bit < 32; bit++) {
        parent = (struct ibv_parent_domain_init_attr){.pd = s.pd, .comp_mask = 1u << bit};
        NONE_OFFERED(ibv_alloc_parent_domain(s.context, &parent));
    }
    parent = (struct ibv_parent_domain_init_attr){0};
    NONE_OFFERED(ibv_alloc_parent_domain(s.context, &parent));
}

TEST(memory_refuses_what_it_does_not_know)
{
    struct ibv_alloc_dm_attr dm = {.length = 64, .comp_mask = UNKNOWN};
    struct ibv_dmah_init_attr hints = {.comp_mask = UNKNOWN};
    struct ibv_mr_init_attr attr;
    struct ibv_sge sge;

    set_up();
    NONE_OFFERED(ibv_alloc_dm(s.context, &dm));
    NONE_OFFERED(ibv_alloc_dmah(s.context, &hints));
    for (int bit = 6; bit < 64; bit++) {
        attr = (struct ibv_mr_init_attr){.length = 4096, .addr = s.buffer, .comp_mask = IBV_REG_MR_MASK_ADDR | 1ull << bit};
        NONE_OFFERED(ibv_reg_mr_ex(s.pd, &attr));
    }
    attr = (struct ibv_mr_init_attr){.length = 4096};
    NONE_OFFERED(ibv_reg_mr_ex(s.pd, &attr));
    sge = sge_of(&s, 0, 4096);
    for (int bit = 1; bit < 32; bit++)
        NOT_OFFERED(ibv_advise_mr(s.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1u << bit, &sge, 1));
    for (unsigned advice = 3; advice < 40; advice++)
        NOT_OFFERED(ibv_advise_mr(s.pd, (enum ibv_advise_mr_advice)advice, 0, &sge, 1));
    /* Access flags: those of the optional range may be passed over, others may not. */
    for (int bit = 10; bit < 20; bit++)
        NONE_OFFERED(ibv_reg_mr(s.pd, s.buffer, 4096, (unsigned)(IBV_ACCESS_LOCAL_WRITE | 1 << bit)));
    NONE_OFFERED(ibv_reg_mr(s.pd, s.buffer, 4096, (unsigned)IBV_ACCESS_LOCAL_WRITE | UNKNOWN));
    for (int bit = 20; bit < 30; bit++)
        ZERO(ibv_dereg_mr(NEED(ibv_reg_mr(s.pd, s.buffer, 4096, (unsigned)(IBV_ACCESS_LOCAL_WRITE | 1 << bit)))));
    NONE_OFFERED(ibv_reg_mr(s.pd, s.buffer, 4096, IBV_ACCESS_REMOTE_WRITE));
    NONE_OFFERED(ibv_reg_mr(s.pd, s.buffer, 4096, IBV_ACCESS_REMOTE_ATOMIC));
}

/* What this device does not have at all. */
TEST(verbs_that_the_device_does_not_have_say_so)
{
    struct ibv_wq_init_attr wq = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = s.pd};
    struct ibv_rwq_ind_table_init_attr table = {.comp_mask = UNKNOWN};
    struct ibv_flow_attr flow = {.size = sizeof(flow), .port = PORT};
    struct ibv_flow_action_esp_attr esp = {.comp_mask = UNKNOWN};
    struct ibv_counters_init_attr counters = {.comp_mask = UNKNOWN};
    struct ibv_comp_cntr_init_attr counter = {.comp_mask = UNKNOWN};
    struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1};
    struct ibv_ece ece = {0};

    set_up();
    wq.pd = s.pd;
    wq.cq = s.cq;
    NONE_OFFERED(ibv_create_wq(s.context, &wq));
    NONE_OFFERED(ibv_create_rwq_ind_table(s.context, &table));
    NONE_OFFERED(ibv_create_flow(s.qp, &flow));
    NONE_OFFERED(ibv_create_flow_action_esp(s.context, &esp));
    NONE_OFFERED(ibv_create_counters(s.context, &counters));
    NONE_OFFERED(ibv_create_comp_cntr(s.context, &counter));
    NOT_OFFERED(ibv_modify_qp_rate_limit(s.qp, &rate));
    NOT_OFFERED(ibv_set_ece(s.qp, &ece));
    NOT_OFFERED(ibv_query_ece(s.qp, &ece));
    EXPECT_EQ(ibv_query_qp_data_in_order(s.qp, IBV_WR_SEND, 0), 0);
}

TEST(values_that_are_not_known_are_not_told)
{
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK | UNKNOWN};

    set_up();
    ZERO(ibv_query_rt_values_ex(s.context, &values));
    EXPECT_EQ(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
    EXPECT(values.raw_clock.tv_sec || values.raw_clock.tv_nsec);
}

/* Binaries of 2013 reach flow steering through two placeholders, and ask for the size before they take a slot. */
TEST(the_context_has_the_size_and_the_slots_of_every_release)
{
    struct verbs_context *v;
    void (**slot)(void);
    typedef struct ibv_flow *create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr);
    struct ibv_flow_attr flow = {.size = sizeof(flow), .port = PORT};

    set_up();
    v = NEED(verbs_get_ctx(s.context));
    EXPECT(v->sz >= sizeof(*v));
    EXPECT(v->ABI_placeholder1 && v->ABI_placeholder2);
    NONE_OFFERED(((create_flow *)v->ABI_placeholder1)(s.qp, &flow));
    for (slot = (void (**)(void))v; slot < (void (**)(void))&v->_ABI_placeholder3; slot++)
        EXPECT(*slot, "slot %d is empty", (int)(slot - (void (**)(void))v));
    EXPECT(s.context->abi_compat == __VERBS_ABI_IS_EXTENDED);
    EXPECT(s.context->ops.post_send && s.context->ops.post_recv && s.context->ops.poll_cq &&
           s.context->ops.req_notify_cq && s.context->ops.post_srq_recv);
}
