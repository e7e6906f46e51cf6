/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls on flow steering rules, their actions and counters. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

static inline struct ibv_flow *ibv_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *flow)
{
    struct verbs_context *vctx = verbs_get_ctx_op(qp->context, ibv_create_flow);

    if (vctx)
        return vctx->ibv_create_flow(qp, flow);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_destroy_flow(struct ibv_flow *flow_id)
{
    struct verbs_context *vctx = verbs_get_ctx_op(flow_id->context, ibv_destroy_flow);

    return vctx ? vctx->ibv_destroy_flow(flow_id) : EOPNOTSUPP;
}

static inline struct ibv_flow_action *ibv_create_flow_action_esp(struct ibv_context *ctx,
                                                                 struct ibv_flow_action_esp_attr *esp)
{
    struct verbs_context *vctx = verbs_get_ctx_op(ctx, create_flow_action_esp);

    if (vctx)
        return vctx->create_flow_action_esp(ctx, esp);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_modify_flow_action_esp(struct ibv_flow_action *action, struct ibv_flow_action_esp_attr *esp)
{
    struct verbs_context *vctx = verbs_get_ctx_op(action->context, modify_flow_action_esp);

    return vctx ? vctx->modify_flow_action_esp(action, esp) : EOPNOTSUPP;
}

static inline int ibv_destroy_flow_action(struct ibv_flow_action *action)
{
    struct verbs_context *vctx = verbs_get_ctx_op(action->context, destroy_flow_action);

    return vctx ? vctx->destroy_flow_action(action) : EOPNOTSUPP;
}

static inline struct ibv_counters *ibv_create_counters(struct ibv_context *context,
                                                       struct ibv_counters_init_attr *init_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, create_counters);

    if (vctx)
        return vctx->create_counters(context, init_attr);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_destroy_counters(struct ibv_counters *counters)
{
    struct verbs_context *vctx = verbs_get_ctx_op(counters->context, destroy_counters);

    return vctx ? vctx->destroy_counters(counters) : EOPNOTSUPP;
}

static inline int ibv_attach_counters_point_flow(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr,
                                                 struct ibv_flow *flow)
{
    struct verbs_context *vctx = verbs_get_ctx_op(counters->context, attach_counters_point_flow);

    return vctx ? vctx->attach_counters_point_flow(counters, attr, flow) : EOPNOTSUPP;
}

static inline int ibv_read_counters(struct ibv_counters *counters, uint64_t *counters_value, uint32_t ncounters,
                                    uint32_t flags)
{
    struct verbs_context *vctx = verbs_get_ctx_op(counters->context, read_counters);

    return vctx ? vctx->read_counters(counters, counters_value, ncounters, flags) : EOPNOTSUPP;
}
