/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An opened device and the tables through which inline calls reach it. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

struct _compat_ibv_port_attr;
struct verbs_ex_private;

/* Slots named _compat_* are there for binaries of 2006 to 2012 only. */
struct ibv_context_ops {
    int (*_compat_query_device)(struct ibv_context *context, struct ibv_device_attr *device_attr);
    int (*_compat_query_port)(struct ibv_context *context, uint8_t port_num,
                              struct _compat_ibv_port_attr *port_attr);
    void *(*_compat_alloc_pd)(void);
    void *(*_compat_dealloc_pd)(void);
    void *(*_compat_reg_mr)(void);
    void *(*_compat_rereg_mr)(void);
    void *(*_compat_dereg_mr)(void);
    struct ibv_mw *(*alloc_mw)(struct ibv_pd *pd, enum ibv_mw_type type);
    int (*bind_mw)(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind);
    int (*dealloc_mw)(struct ibv_mw *mw);
    void *(*_compat_create_cq)(void);
    int (*poll_cq)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
    int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
    void *(*_compat_cq_event)(void);
    void *(*_compat_resize_cq)(void);
    void *(*_compat_destroy_cq)(void);
    void *(*_compat_create_srq)(void);
    void *(*_compat_modify_srq)(void);
    void *(*_compat_query_srq)(void);
    void *(*_compat_destroy_srq)(void);
    int (*post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr);
    void *(*_compat_create_qp)(void);
    void *(*_compat_query_qp)(void);
    void *(*_compat_modify_qp)(void);
    void *(*_compat_destroy_qp)(void);
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
    int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
    void *(*_compat_create_ah)(void);
    void *(*_compat_destroy_ah)(void);
    void *(*_compat_attach_mcast)(void);
    void *(*_compat_detach_mcast)(void);
    void *(*_compat_async_event)(void);
};

struct ibv_context {
    struct ibv_device *device;
    struct ibv_context_ops ops;
    int cmd_fd;
    int async_fd; /* readable when ibv_get_async_event would not wait */
    int num_comp_vectors;
    pthread_mutex_t mutex;
    void *abi_compat; /* __VERBS_ABI_IS_EXTENDED: this context is the tail of a verbs_context */
};

#ifdef __cplusplus
#define __VERBS_ABI_IS_EXTENDED ((void *)std::numeric_limits<uintptr_t>::max())
#else
#define __VERBS_ABI_IS_EXTENDED ((void *)UINTPTR_MAX)
#endif

/* Grows at its head: a slot keeps its distance from context for ever. */
struct verbs_context {
    void (*free_buf)(struct ibv_buf *buf);
    void *(*alloc_buf)(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
    int (*dm_export_dmabuf_fd)(struct ibv_dm *dm);
    struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *pd, struct ibv_mr_init_attr *mr_init_attr);
    int (*dealloc_dmah)(struct ibv_dmah *dmah);
    struct ibv_dmah *(*alloc_dmah)(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
    int (*query_port)(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr,
                      size_t port_attr_len);
    int (*advise_mr)(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg_list,
                     uint32_t num_sges);
    struct ibv_mr *(*alloc_null_mr)(struct ibv_pd *pd);
    int (*read_counters)(struct ibv_counters *counters, uint64_t *counters_value, uint32_t ncounters,
                         uint32_t flags);
    int (*attach_counters_point_flow)(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr,
                                      struct ibv_flow *flow);
    struct ibv_counters *(*create_counters)(struct ibv_context *context, struct ibv_counters_init_attr *init_attr);
    int (*destroy_counters)(struct ibv_counters *counters);
    struct ibv_mr *(*reg_dm_mr)(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t dm_offset, size_t length,
                                unsigned int access);
    struct ibv_dm *(*alloc_dm)(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
    int (*free_dm)(struct ibv_dm *dm);
    int (*modify_flow_action_esp)(struct ibv_flow_action *action, struct ibv_flow_action_esp_attr *attr);
    int (*destroy_flow_action)(struct ibv_flow_action *action);
    struct ibv_flow_action *(*create_flow_action_esp)(struct ibv_context *context,
                                                      struct ibv_flow_action_esp_attr *attr);
    int (*modify_qp_rate_limit)(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr);
    struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);
    int (*dealloc_td)(struct ibv_td *td);
    struct ibv_td *(*alloc_td)(struct ibv_context *context, struct ibv_td_init_attr *init_attr);
    int (*modify_cq)(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
    int (*post_srq_ops)(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op);
    int (*destroy_rwq_ind_table)(struct ibv_rwq_ind_table *rwq_ind_table);
    struct ibv_rwq_ind_table *(*create_rwq_ind_table)(struct ibv_context *context,
                                                      struct ibv_rwq_ind_table_init_attr *init_attr);
    int (*destroy_wq)(struct ibv_wq *wq);
    int (*modify_wq)(struct ibv_wq *wq, struct ibv_wq_attr *wq_attr);
    struct ibv_wq *(*create_wq)(struct ibv_context *context, struct ibv_wq_init_attr *wq_init_attr);
    int (*query_rt_values)(struct ibv_context *context, struct ibv_values_ex *values);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *context, struct ibv_cq_init_attr_ex *init_attr);
    struct verbs_ex_private *priv;
    int (*query_device_ex)(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr, size_t attr_size);
    int (*ibv_destroy_flow)(struct ibv_flow *flow);
    void (*ABI_placeholder2)(void); /* destroy_flow of 2013's inlines */
    struct ibv_flow *(*ibv_create_flow)(struct ibv_qp *qp, struct ibv_flow_attr *flow_attr);
    void (*ABI_placeholder1)(void); /* create_flow of 2013's inlines */
    struct ibv_qp *(*open_qp)(struct ibv_context *context, struct ibv_qp_open_attr *attr);
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *context, struct ibv_qp_init_attr_ex *qp_init_attr_ex);
    int (*get_srq_num)(struct ibv_srq *srq, uint32_t *srq_num);
    struct ibv_srq *(*create_srq_ex)(struct ibv_context *context, struct ibv_srq_init_attr_ex *srq_init_attr_ex);
    struct ibv_xrcd *(*open_xrcd)(struct ibv_context *context, struct ibv_xrcd_init_attr *xrcd_init_attr);
    int (*close_xrcd)(struct ibv_xrcd *xrcd);
    uint64_t _ABI_placeholder3;
    size_t sz; /* bytes of this structure as the library knows it */
    struct ibv_context context;
};

/* Descriptors of one process passed to another along with a context. */
struct ibv_fd_arr {
    int *arr;
    uint32_t count;
};

/* The extended context around ctx, or NULL when there is none. */
static inline struct verbs_context *verbs_get_ctx(struct ibv_context *ctx)
{
    uintptr_t tail = (uintptr_t)ctx;

    if (ctx->abi_compat != __VERBS_ABI_IS_EXTENDED)
        return NULL;
    return (struct verbs_context *)(tail - offsetof(struct verbs_context, context));
}

/* The same, but NULL also when the library is too old for the slot at this offset or left it empty. */
static inline struct verbs_context *__verbs_ctx_with_slot(struct ibv_context *ctx, size_t slot)
{
    struct verbs_context *vctx = verbs_get_ctx(ctx);
    void (*op)(void) = NULL;

    if (!vctx || vctx->sz < sizeof(*vctx) - slot)
        return NULL;
    memcpy(&op, (const char *)vctx + slot, sizeof(op));
    return op ? vctx : NULL;
}

#define verbs_get_ctx_op(ctx, op) __verbs_ctx_with_slot(ctx, offsetof(struct verbs_context, op))
