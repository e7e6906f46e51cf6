/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls on devices, ports, GIDs, events, and what turns numbers into text. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

#if defined(__GNUC__)
#define __verbs_pure_number __attribute__((__const__))
#else
#define __verbs_pure_number
#endif

/* A NULL-terminated array, empty when there are no devices; num_devices may be NULL. */
struct ibv_device **ibv_get_device_list(int *num_devices);

/*
 * Static linking: RDMA_STATIC_PROVIDERS is a comma-separated list of provider names (at most 20) that listing the
 * devices then pulls into the program. Unused places are filled with "none".
 */
#ifdef RDMA_STATIC_PROVIDERS
struct verbs_device_ops;
extern const struct verbs_device_ops verbs_provider_all;
extern const struct verbs_device_ops verbs_provider_bnxt_re;
extern const struct verbs_device_ops verbs_provider_cxgb4;
extern const struct verbs_device_ops verbs_provider_efa;
extern const struct verbs_device_ops verbs_provider_erdma;
extern const struct verbs_device_ops verbs_provider_hfi1verbs;
extern const struct verbs_device_ops verbs_provider_hns;
extern const struct verbs_device_ops verbs_provider_ionic;
extern const struct verbs_device_ops verbs_provider_ipathverbs;
extern const struct verbs_device_ops verbs_provider_irdma;
extern const struct verbs_device_ops verbs_provider_mana;
extern const struct verbs_device_ops verbs_provider_mlx4;
extern const struct verbs_device_ops verbs_provider_mlx5;
extern const struct verbs_device_ops verbs_provider_mthca;
extern const struct verbs_device_ops verbs_provider_none;
extern const struct verbs_device_ops verbs_provider_ocrdma;
extern const struct verbs_device_ops verbs_provider_qedr;
extern const struct verbs_device_ops verbs_provider_rxe;
extern const struct verbs_device_ops verbs_provider_siw;
extern const struct verbs_device_ops verbs_provider_vmw_pvrdma;
void ibv_static_providers(void *unused, ...);

#define __verbs_provider(name) &verbs_provider_##name
#define __verbs_providers(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, ...)                            \
    __verbs_provider(a), __verbs_provider(b), __verbs_provider(c), __verbs_provider(d), __verbs_provider(e),          \
        __verbs_provider(f), __verbs_provider(g), __verbs_provider(h), __verbs_provider(i), __verbs_provider(j),      \
        __verbs_provider(k), __verbs_provider(l), __verbs_provider(m), __verbs_provider(n), __verbs_provider(o),      \
        __verbs_provider(p), __verbs_provider(q), __verbs_provider(r), __verbs_provider(s), __verbs_provider(t)
#define __verbs_provider_list(...)                                                                                    \
    __verbs_providers(__VA_ARGS__, none, none, none, none, none, none, none, none, none, none, none, none, none,      \
                      none, none, none, none, none, none, none)

static inline struct ibv_device **__ibv_get_device_list(int *num_devices)
{
    ibv_static_providers(NULL, __verbs_provider_list(RDMA_STATIC_PROVIDERS), NULL);
    return ibv_get_device_list(num_devices);
}

#define ibv_get_device_list(num_devices) __ibv_get_device_list(num_devices)
#endif

/* Devices that are not open become invalid. */
void ibv_free_device_list(struct ibv_device **list);

const char *ibv_get_device_name(struct ibv_device *device);

/* The kernel's index of the device; -1: it has none. */
int ibv_get_device_index(struct ibv_device *device);

__be64 ibv_get_device_guid(struct ibv_device *device);

struct ibv_context *ibv_open_device(struct ibv_device *device);
int ibv_close_device(struct ibv_context *context);

/* Shares the kernel objects of another process, whose command descriptor was passed to this one. */
struct ibv_context *ibv_import_device(int cmd_fd);

/* Waits for an event unless async_fd has O_NONBLOCK. 0, or -1 and errno. */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event);

/* Destroying the object that an event names waits until every event on it is acknowledged. */
void ibv_ack_async_event(struct ibv_async_event *event);

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr);

/* Fields that neither the device nor the library knows are 0; input may be NULL. */
static inline int ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                                      struct ibv_device_attr_ex *attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, query_device_ex);

    if (input && input->comp_mask != 0)
        return EINVAL;
    if (vctx) {
        int rc = vctx->query_device_ex(context, input, attr, sizeof(*attr));

        if (rc != EOPNOTSUPP && rc != ENOSYS)
            return rc;
    }
    memset(attr, 0, sizeof(*attr));
    return ibv_query_device(context, &attr->orig_attr);
}

/* The device's clock. */
static inline int ibv_query_rt_values_ex(struct ibv_context *context, struct ibv_values_ex *values)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, query_rt_values);

    return vctx ? vctx->query_rt_values(context, values) : EOPNOTSUPP;
}

/* The exported function knows the first 48 bytes of ibv_port_attr only. */
int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *port_attr);

static inline int ___ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr)
{
    struct verbs_context *vctx = verbs_get_ctx_op(context, query_port);

    if (vctx)
        return vctx->query_port(context, port_num, port_attr, sizeof(*port_attr));
    memset(port_attr, 0, sizeof(*port_attr));
    return ibv_query_port(context, port_num, (struct _compat_ibv_port_attr *)port_attr);
}

#define ibv_query_port(context, port_num, port_attr) ___ibv_query_port(context, port_num, port_attr)

/* In units of 100 Mbit/s. */
int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *port_speed);

/* 0, or -1 and errno; a GID of zeros for an empty entry. */
int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid);

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t entry_size);

/* ENODATA for an empty entry. */
static inline int ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
                                   struct ibv_gid_entry *entry, uint32_t flags)
{
    return _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, sizeof(*entry));
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
                             uint32_t flags, size_t entry_size);

/* The entries in use, of all ports: how many, or a negative errno value. */
static inline ssize_t ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                                          size_t max_entries, uint32_t flags)
{
    return _ibv_query_gid_table(context, entries, max_entries, flags, sizeof(*entries));
}

/* 0, or -1 and errno. */
int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey);

/* The index, or -1. */
int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey);

int ibv_fork_init(void);
enum ibv_fork_status ibv_is_fork_initialized(void);

/* Multiples of 2.5 Gbit/s, -1 for a rate that is none; IBV_RATE_MAX for an unknown multiple. */
int __verbs_pure_number ibv_rate_to_mult(enum ibv_rate rate);
enum ibv_rate __verbs_pure_number mult_to_ibv_rate(int mult);

/* Mbit/s, with the same failures. */
int __verbs_pure_number ibv_rate_to_mbps(enum ibv_rate rate);
enum ibv_rate __verbs_pure_number mbps_to_ibv_rate(int mbps);

/* "unknown" for a value without a name. */
const char *ibv_wc_status_str(enum ibv_wc_status status);
const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode);
const char *ibv_node_type_str(enum ibv_node_type node_type);
const char *ibv_port_state_str(enum ibv_port_state port_state);
const char *ibv_event_type_str(enum ibv_event_type event);

/* Whether a mask of QP types, 1 << ibv_qp_type, has this one. */
static inline int ibv_is_qpt_supported(uint32_t caps, enum ibv_qp_type qpt)
{
    return (unsigned int)qpt < 32 && ((caps >> (unsigned int)qpt) & 1) != 0;
}

#define IB_ROCE_UDP_ENCAP_VALID_PORT_MIN (0xC000)
#define IB_ROCE_UDP_ENCAP_VALID_PORT_MAX (0xFFFF)
#define IB_GRH_FLOWLABEL_MASK (0x000FFFFF)

/* RoCEv2's UDP source port: the 20-bit flow label folded to 14 bits. */
static inline uint16_t ibv_flow_label_to_udp_sport(uint32_t fl)
{
    uint32_t low = fl & 0x3fff;
    uint32_t high = (fl & IB_GRH_FLOWLABEL_MASK) >> 14;

    return (uint16_t)(IB_ROCE_UDP_ENCAP_VALID_PORT_MIN | (low ^ high));
}

#undef __verbs_pure_number
