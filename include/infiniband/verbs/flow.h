/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Flow steering: rules that send packets to a QP. */
#ifndef INFINIBAND_VERBS_H
#error "include <infiniband/verbs.h>, which takes its parts in order"
#endif

#define ETHERNET_LL_SIZE ETH_ALEN

enum ibv_flow_flags {
    IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1,
    IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2,
};

enum ibv_flow_attr_type {
    IBV_FLOW_ATTR_NORMAL = 0,
    IBV_FLOW_ATTR_ALL_DEFAULT = 1, /* what no other rule takes */
    IBV_FLOW_ATTR_MC_DEFAULT = 2,  /* the same, multicast only */
    IBV_FLOW_ATTR_SNIFFER = 3,
};

enum ibv_flow_spec_type {
    IBV_FLOW_SPEC_ETH = 0x20,
    IBV_FLOW_SPEC_IPV4 = 0x30,
    IBV_FLOW_SPEC_IPV6 = 0x31,
    IBV_FLOW_SPEC_IPV4_EXT = 0x32,
    IBV_FLOW_SPEC_ESP = 0x34,
    IBV_FLOW_SPEC_TCP = 0x40,
    IBV_FLOW_SPEC_UDP = 0x41,
    IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50,
    IBV_FLOW_SPEC_GRE = 0x51,
    IBV_FLOW_SPEC_MPLS = 0x60,
    IBV_FLOW_SPEC_INNER = 0x100,
    IBV_FLOW_SPEC_ACTION_TAG = 0x1000,
    IBV_FLOW_SPEC_ACTION_DROP = 0x1001,
    IBV_FLOW_SPEC_ACTION_HANDLE = 0x1002,
    IBV_FLOW_SPEC_ACTION_COUNT = 0x1003,
};

struct ibv_flow_action;
struct ibv_counters;

/* Filters hold packet bytes: multi-byte fields are big-endian. */
struct ibv_flow_eth_filter {
    uint8_t dst_mac[ETHERNET_LL_SIZE];
    uint8_t src_mac[ETHERNET_LL_SIZE];
    uint16_t ether_type;
    uint16_t vlan_tag; /* 802.1Q TCI */
};

struct ibv_flow_spec_eth {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_eth_filter val;
    struct ibv_flow_eth_filter mask;
};

struct ibv_flow_ipv4_filter {
    uint32_t src_ip;
    uint32_t dst_ip;
};

struct ibv_flow_spec_ipv4 {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_ipv4_filter val;
    struct ibv_flow_ipv4_filter mask;
};

struct ibv_flow_ipv4_ext_filter {
    uint32_t src_ip;
    uint32_t dst_ip;
    uint8_t proto;
    uint8_t tos;
    uint8_t ttl;
    uint8_t flags;
};

struct ibv_flow_spec_ipv4_ext {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_ipv4_ext_filter val;
    struct ibv_flow_ipv4_ext_filter mask;
};

struct ibv_flow_ipv6_filter {
    uint8_t src_ip[16];
    uint8_t dst_ip[16];
    uint32_t flow_label;
    uint8_t next_hdr;
    uint8_t traffic_class;
    uint8_t hop_limit;
};

struct ibv_flow_spec_ipv6 {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_ipv6_filter val;
    struct ibv_flow_ipv6_filter mask;
};

struct ibv_flow_esp_filter {
    uint32_t spi;
    uint32_t seq;
};

struct ibv_flow_spec_esp {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_esp_filter val;
    struct ibv_flow_esp_filter mask;
};

struct ibv_flow_tcp_udp_filter {
    uint16_t dst_port;
    uint16_t src_port;
};

struct ibv_flow_spec_tcp_udp {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_tcp_udp_filter val;
    struct ibv_flow_tcp_udp_filter mask;
};

struct ibv_flow_gre_filter {
    uint16_t c_ks_res0_ver; /* first two bytes of the GRE header */
    uint16_t protocol;
    uint32_t key;
};

struct ibv_flow_spec_gre {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_gre_filter val;
    struct ibv_flow_gre_filter mask;
};

struct ibv_flow_mpls_filter {
    uint32_t label; /* one whole label stack entry */
};

struct ibv_flow_spec_mpls {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_mpls_filter val;
    struct ibv_flow_mpls_filter mask;
};

struct ibv_flow_tunnel_filter {
    uint32_t tunnel_id;
};

struct ibv_flow_spec_tunnel {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_flow_tunnel_filter val;
    struct ibv_flow_tunnel_filter mask;
};

struct ibv_flow_spec_action_tag {
    enum ibv_flow_spec_type type;
    uint16_t size;
    uint32_t tag_id;
};

struct ibv_flow_spec_action_drop {
    enum ibv_flow_spec_type type;
    uint16_t size;
};

struct ibv_flow_spec_action_handle {
    enum ibv_flow_spec_type type;
    uint16_t size;
    const struct ibv_flow_action *action;
};

struct ibv_flow_spec_counter_action {
    enum ibv_flow_spec_type type;
    uint16_t size;
    struct ibv_counters *counters;
};

struct ibv_flow_spec {
    union {
        struct {
            enum ibv_flow_spec_type type;
            uint16_t size;
        } hdr;
        struct ibv_flow_spec_eth eth;
        struct ibv_flow_spec_ipv4 ipv4;
        struct ibv_flow_spec_tcp_udp tcp_udp;
        struct ibv_flow_spec_ipv4_ext ipv4_ext;
        struct ibv_flow_spec_ipv6 ipv6;
        struct ibv_flow_spec_esp esp;
        struct ibv_flow_spec_tunnel tunnel;
        struct ibv_flow_spec_gre gre;
        struct ibv_flow_spec_mpls mpls;
        struct ibv_flow_spec_action_tag flow_tag;
        struct ibv_flow_spec_action_drop drop;
        struct ibv_flow_spec_action_handle handle;
        struct ibv_flow_spec_counter_action flow_count;
    };
};

/* num_of_specs structures ibv_flow_spec_* follow it in memory. */
struct ibv_flow_attr {
    uint32_t comp_mask;
    enum ibv_flow_attr_type type;
    uint16_t size; /* bytes, with the specs */
    uint16_t priority;
    uint8_t num_of_specs;
    uint8_t port;
    uint32_t flags; /* ibv_flow_flags */
};

struct ibv_flow {
    uint32_t comp_mask;
    struct ibv_context *context;
    uint32_t handle;
};

struct ibv_flow_action {
    struct ibv_context *context;
};

enum ibv_flow_action_esp_mask {
    IBV_FLOW_ACTION_ESP_MASK_ESN = 1UL << 0,
};

struct ibv_flow_action_esp_attr {
    struct ibv_flow_action_esp *esp_attr;
    enum ibv_flow_action_esp_keymat keymat_proto;
    uint16_t keymat_len;
    void *keymat_ptr;
    enum ibv_flow_action_esp_replay replay_proto;
    uint16_t replay_len;
    void *replay_ptr;
    struct ibv_flow_action_esp_encap *esp_encap;
    uint32_t comp_mask; /* ibv_flow_action_esp_mask */
    uint32_t esn;
};
