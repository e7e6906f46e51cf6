/* The device list, and every query of a device, a port, its GIDs and its P_Keys. */
#include "common.h"

static int is_zero(const union ibv_gid *gid)
{
    static const union ibv_gid zero;

    return !memcmp(gid, &zero, sizeof(zero));
}

static void devices(void)
{
    int n = -1, m = 0;
    struct ibv_device **list = NEED(ibv_get_device_list(&n));
    struct ibv_device **again = NEED(ibv_get_device_list(NULL));

    while (list[m])
        m++;
    printf("list: at least one %s, count is right %s, same devices again %s\n", yes(n > 0), yes(n == m),
           yes(list[0] == again[0]));
    printf("name %s, node name %s, GUID %s\n", yes(ibv_get_device_name(list[0])[0] != 0), yes(list[0]->dev_name[0] != 0),
           yes(ibv_get_device_guid(list[0]) != 0));
    printf("%s, transport %d\n", ibv_node_type_str(list[0]->node_type), list[0]->transport_type);
    ibv_free_device_list(again);
    ibv_free_device_list(list);
}

static void device(struct ibv_context *context)
{
    struct ibv_device_attr attr;
    struct ibv_device_attr_ex ex;
    struct ibv_query_device_ex_input input = {.comp_mask = 1};

    memset(&attr, 0xee, sizeof(attr));
    memset(&ex, 0xee, sizeof(ex));
    printf("query_device %s, query_device_ex %s\n", rc_name(ibv_query_device(context, &attr)),
           rc_name(ibv_query_device_ex(context, NULL, &ex)));
    printf("both agree %s\n", yes(!memcmp(&attr, &ex.orig_attr, sizeof(attr))));
    printf("query_device_ex with an unknown input: %s\n", rc_name(ibv_query_device_ex(context, &input, &ex)));
    printf("ports %d, vendor %s, guid %s\n", attr.phys_port_cnt, yes(attr.vendor_id && attr.vendor_id != 0x02c9),
           yes(attr.node_guid && attr.node_guid == ibv_get_device_guid(context->device)));
    printf("max_qp_wr %s, max_sge %s, max_srq_sge %s, max_qp_rd_atom %s, max_cqe %s, atomic_cap %d\n",
           yes(attr.max_qp_wr >= 1024), yes(attr.max_sge >= 30), yes(attr.max_srq_sge >= 16),
           yes(attr.max_qp_rd_atom >= 16), yes(attr.max_cqe >= 3072), attr.atomic_cap);
    printf("descriptors %s %s, vectors %s\n", yes(fcntl(context->cmd_fd, F_GETFD) >= 0),
           yes(fcntl(context->async_fd, F_GETFD) >= 0), yes(context->num_comp_vectors > 0));
}

static void port(struct ibv_context *context)
{
    struct ibv_port_attr attr, exported;
    int rc;

    memset(&attr, 0xee, sizeof(attr));
    memset(&exported, 0xee, sizeof(exported));
    printf("query_port %s\n", rc_name(ibv_query_port(context, PORT, &attr)));
    /* The function behind the macro, which writes the first 48 bytes only. */
    rc = (ibv_query_port)(context, PORT, (struct _compat_ibv_port_attr *)&exported);
    printf("the exported one %s, agrees %s, stops at 48 bytes %s\n", rc_name(rc), yes(!memcmp(&attr, &exported, 48)),
           yes(exported.port_cap_flags2 == 0xeeee));
    printf("%s, link layer %d, physical state %d, max_mtu %d, active_mtu fits %s\n", ibv_port_state_str(attr.state),
           attr.link_layer, attr.phys_state, attr.max_mtu, yes(attr.active_mtu >= 1 && attr.active_mtu <= attr.max_mtu));
    printf("gid_tbl_len %s, pkey_tbl_len %d, max_msg_sz %s\n", yes(attr.gid_tbl_len > 0), attr.pkey_tbl_len,
           yes(attr.max_msg_sz >= 1u << 30));
    printf("port 0: %s, port 2: %s\n", rc_name(ibv_query_port(context, 0, &attr)),
           rc_name(ibv_query_port(context, 2, &attr)));
}

static void gids(struct ibv_context *context)
{
    struct ibv_port_attr attr;
    struct ibv_gid_entry *table, entry;
    union ibv_gid gid;
    int used = 0, agree = 1;
    ssize_t n;

    ZERO(ibv_query_port(context, PORT, &attr));
    table = NEED(calloc((size_t)attr.gid_tbl_len, sizeof(*table)));
    n = ibv_query_gid_table(context, table, (size_t)attr.gid_tbl_len, 0);
    for (int i = 0; i < attr.gid_tbl_len; i++) {
        int rc;

        ZERO(ibv_query_gid(context, PORT, i, &gid));
        memset(&entry, 0, sizeof(entry));
        rc = ibv_query_gid_ex(context, PORT, (uint32_t)i, &entry, 0);
        if (is_zero(&gid)) {
            agree &= rc == ENODATA;
            continue;
        }
        agree &= rc == 0 && !memcmp(&entry.gid, &gid, sizeof(gid)) && entry.gid_index == (uint32_t)i &&
                 entry.port_num == PORT && used < n && !memcmp(&table[used].gid, &gid, sizeof(gid));
        used++;
    }
    printf("GIDs: some %s, table has them all %s, all queries agree %s\n", yes(used > 0), yes(n == used), yes(agree));
    ZERO(ibv_query_gid_ex(context, PORT, 0, &entry, 0));
    printf("GID 0: type %u, of an interface %s\n", entry.gid_type, yes(entry.ndev_ifindex != 0));
    errno = 0;
    printf("index too large: query_gid %d", ibv_query_gid(context, PORT, attr.gid_tbl_len + 1000, &gid));
    printf(", query_gid_ex fails %s", yes(ibv_query_gid_ex(context, PORT, 100000, &entry, 0) > 0));
    printf(", unknown flag %s\n", rc_name(ibv_query_gid_ex(context, PORT, 0, &entry, 1)));
    free(table);
}

static void pkeys(struct ibv_context *context)
{
    __be16 pkey = 0;

    printf("pkey 0: %d", ibv_query_pkey(context, PORT, 0, &pkey));
    printf(", %04x", ntohs(pkey));
    printf("; index of ffff %d, of 1234 %d, index 1000: %d\n", ibv_get_pkey_index(context, PORT, htons(0xffff)),
           ibv_get_pkey_index(context, PORT, htons(0x1234)), ibv_query_pkey(context, PORT, 1000, &pkey));
}

int main(void)
{
    struct ibv_context *context;
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};

    start();
    devices();
    context = open_device();
    device(context);
    port(context);
    gids(context);
    pkeys(context);
    printf("clock %s\n", rc_name(ibv_query_rt_values_ex(context, &values)));
    printf("fork_init %d, fork %s\n", ibv_fork_init(),
           yes(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED || ibv_is_fork_initialized() == IBV_FORK_ENABLED));
    printf("close %d\n", ibv_close_device(context));
    for (int i = 0; i < 200; i++)
        ZERO(ibv_close_device(open_device()));
    printf("opened and closed 200 times\n");
    return 0;
}
