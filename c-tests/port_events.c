/* A port goes down and comes up with its interface, and its GIDs change with the addresses; in a network of its own. */
#include "common.h"

static struct ibv_context *contexts[2];

static void ip(const char *arguments)
{
    char command[256];

    snprintf(command, sizeof(command), "ip %s", arguments);
    if (system(command))
        die("%s", command);
}

static const char *port_state(void)
{
    struct ibv_port_attr port;

    ZERO(ibv_query_port(contexts[0], PORT, &port));
    return ibv_port_state_str(port.state);
}

/* Both contexts hear of it; other events in between are not of interest. */
static void until(enum ibv_event_type wanted)
{
    for (int i = 0; i < 2; i++) {
        struct ibv_async_event event;

        do
            event = next_event(contexts[i]);
        while (event.event_type != wanted);
        if (event.element.port_num != PORT)
            die("port %d", event.element.port_num);
    }
    printf("%s, %s\n", ibv_event_type_str(wanted), port_state());
}

static int has_gid(const char *text)
{
    struct ibv_gid_entry entries[64];
    union ibv_gid gid;
    ssize_t n = ibv_query_gid_table(contexts[0], entries, 64, 0);

    inet_pton(AF_INET6, text, &gid);
    for (ssize_t i = 0; i < n; i++)
        if (!memcmp(&entries[i].gid, &gid, sizeof(gid)))
            return 1;
    return 0;
}

int main(void)
{
    struct side a, b;

    start();
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        die("unshare");
    ip("link set lo up");
    ip("link add pe0 type veth peer name pe1");
    ip("addr add 10.79.0.1/24 dev pe0");
    ip("link set pe1 up");
    ip("link set pe0 up");
    contexts[0] = open_device();
    contexts[1] = open_device();
    printf("at first %s, its GID %s\n", port_state(), yes(has_gid("::ffff:10.79.0.1")));
    ip("addr add 10.79.0.2/24 dev pe0");
    until(IBV_EVENT_GID_CHANGE);
    printf("new GID %s\n", yes(has_gid("::ffff:10.79.0.2")));
    ip("link set pe0 down");
    until(IBV_EVENT_PORT_ERR);
    printf("its GIDs %s\n", yes(has_gid("::ffff:10.79.0.1") || has_gid("::ffff:10.79.0.2")));

    /* This host is reached all the same. */
    ip("link set pe0 up");
    until(IBV_EVENT_PORT_ACTIVE);
    printf("its GIDs %s %s\n", yes(has_gid("::ffff:10.79.0.1")), yes(has_gid("::ffff:10.79.0.2")));
    make_side(&a, contexts[0], IBV_QPT_RC, 4096);
    make_side(&b, contexts[0], IBV_QPT_RC, 4096);
    join(&a, &b);
    ip("link set pe0 down");
    until(IBV_EVENT_PORT_ERR);
    ZERO(recv_one(&b, 1, 0, 64));
    ZERO(send_one(&a, 2, 0, 8, IBV_SEND_SIGNALED));
    show_next("within the host", a.cq);
    show_next("recv", b.cq);
    drop_side(&a);
    drop_side(&b);
    ip("link del pe0");
    until(IBV_EVENT_PORT_ACTIVE);
    ZERO(ibv_close_device(contexts[1]));
    ZERO(ibv_close_device(contexts[0]));
    return 0;
}
