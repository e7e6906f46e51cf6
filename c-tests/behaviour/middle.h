/*
 * A wire between two hosts that does as it is told: it loses, repeats or delays chosen packets of RoCE v2, and remembers
 * what it has seen. The near host is the test, the far one a child; the wire is a process between their namespaces.
 */
#ifndef MIDDLE_H
#define MIDDLE_H

#include "behaviour.h"
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>

enum from { NEAR, FAR };

enum deed { PASS, LOSE, TWICE, LATE, AGAIN };

/* Operations of BTH, of which the upper three bits are the transport (RC: 0). */
enum { WRITE_ONLY = 0x0a, READ_REQUEST = 0x0c, READ_FIRST = 0x0d, READ_MIDDLE = 0x0e, ACK = 0x11 };

#define ANY 0xffffffffu

/* One packet that is treated: the `nth` of its side, from 0, of those with this opcode and PSN. */
struct rule {
    enum deed deed;
    enum from from;
    uint32_t opcode, psn, nth;
    /* LATE, or AGAIN in a second copy: behind so many packets of its side that follow it. LATE waits a few milliseconds
       at most. */
    uint32_t behind;
};

struct seen {
    enum from from;
    unsigned char opcode, syndrome;
    /* MigReq of BTH is set, the ICRC is right. */
    unsigned char migrated, icrc_right;
    uint32_t psn, length;
    uint64_t va;
};

#define SEEN 4096
#define FRAME 70000

/* What wire and test share. The rule holds from `armed` on; who arms waits until nothing is under way. */
struct wire {
    struct rule rule;
    unsigned armed, fired, matched;
    unsigned count;
    struct seen seen[SEEN];
};

static struct wire *wire;

static uint32_t be(const unsigned char *p, int bytes)
{
    uint32_t value = 0;

    while (bytes--)
        value = value << 8 | *p++;
    return value;
}

static uint32_t crc_on(uint32_t crc, const unsigned char *p, size_t n)
{
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return crc;
}

/* Over eight bytes of ones, then the packet from its IP header on with what routers change set to ones (IBA Annex A17.3). */
static int icrc_right(const unsigned char *ip, size_t header, size_t size)
{
    unsigned char copy[128];
    uint32_t crc = crc_on(~0u, (const unsigned char *)"\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    const unsigned char *end = ip + size - 4;
    size_t head = header + 8 + 12;

    memcpy(copy, ip, head);
    if (ip[0] >> 4 == 4) {
        copy[1] = copy[8] = copy[10] = copy[11] = 0xff;
    } else {
        copy[0] |= 0x0f;
        copy[1] = copy[2] = copy[3] = copy[7] = 0xff;
    }
    copy[header + 6] = copy[header + 7] = 0xff;
    copy[header + 8 + 4] = 0xff;
    crc = ~crc_on(crc_on(crc, copy, head), ip + head, (size_t)(end - (ip + head)));
    return end[0] == (crc & 0xff) && end[1] == (crc >> 8 & 0xff) && end[2] == (crc >> 16 & 0xff) && end[3] == crc >> 24;
}

/* A frame as a packet of RoCE v2; false if it is none. */
static int look_at(const unsigned char *frame, size_t size, struct seen *s)
{
    const unsigned char *ip = frame + 14, *bth;
    size_t header = size > 14 && ip[0] >> 4 == 4 ? (ip[0] & 15u) * 4 : 40, length;
    int protocol;

    if (size < 14 + header + 8 + 12 + 4)
        return 0;
    protocol = ip[0] >> 4 == 4 ? ip[9] : ip[6];
    length = ip[0] >> 4 == 4 ? be(ip + 2, 2) : be(ip + 4, 2) + 40;
    if (protocol != 17 || be(ip + header + 2, 2) != 4791 || 14 + length > size)
        return 0;
    bth = ip + header + 8;
    *s = (struct seen){.opcode = bth[0],
                       .migrated = bth[1] >> 6 & 1,
                       .psn = be(bth + 9, 3),
                       .icrc_right = (unsigned char)icrc_right(ip, header, length)};
    if (s->opcode == READ_REQUEST) {
        s->va = (uint64_t)be(bth + 12, 4) << 32 | be(bth + 16, 4);
        s->length = be(bth + 24, 4);
    }
    if (s->opcode >= READ_FIRST && s->opcode <= 0x12 && s->opcode != READ_MIDDLE)
        s->syndrome = bth[12];
    return 1;
}

static int port_on(const char *interface)
{
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)), one = 1;

    at.sll_ifindex = (int)if_nametoindex(interface);
    /* With that header, checksums that the kernel has yet to make go on as such. */
    if (fd < 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)) ||
        bind(fd, (struct sockaddr *)&at, sizeof(at)))
        skip("no packet sockets");
    return fd;
}

/* What is to be done with a frame. */
static enum deed judge(const unsigned char *frame, size_t size, enum from from)
{
    const struct rule *r = &wire->rule;
    struct seen s;

    if (!look_at(frame, size, &s))
        return PASS;
    s.from = from;
    wire->seen[wire->count % SEEN] = s;
    __atomic_store_n(&wire->count, wire->count + 1, __ATOMIC_RELEASE);
    if (!__atomic_load_n(&wire->armed, __ATOMIC_ACQUIRE) || r->from != from || (r->opcode != ANY && r->opcode != s.opcode) ||
        (r->psn != ANY && r->psn != s.psn) || wire->matched++ != r->nth)
        return PASS;
    __atomic_store_n(&wire->fired, 1, __ATOMIC_RELEASE);
    return r->deed;
}

static void carry(int fds[2])
{
    static unsigned char frame[FRAME], held[FRAME];
    struct pollfd ports[2] = {{.fd = fds[NEAR], .events = POLLIN}, {.fd = fds[FAR], .events = POLLIN}};
    ssize_t held_size = 0;
    enum from held_from = NEAR;
    unsigned behind = 0;
    int waits = -1;

    for (;;) {
        if (poll(ports, 2, held_size ? waits : -1) == 0) {
            (void)!write(fds[!held_from], held, (size_t)held_size);
            held_size = 0;
        }
        for (enum from from = NEAR; from <= FAR; from++) {
            struct sockaddr_ll at;
            socklen_t length = sizeof(at);
            ssize_t n;

            if (!ports[from].revents)
                continue;
            n = recvfrom(fds[from], frame, FRAME, 0, (struct sockaddr *)&at, &length);
            if (n <= (ssize_t)sizeof(struct virtio_net_hdr) || at.sll_pkttype == PACKET_OUTGOING)
                continue;
            switch (judge(frame + sizeof(struct virtio_net_hdr), (size_t)n - sizeof(struct virtio_net_hdr), from)) {
            case LATE:
            case AGAIN:
                memcpy(held, frame, (size_t)n);
                held_size = n, held_from = from;
                behind = wire->rule.behind + (wire->rule.deed == AGAIN);
                waits = wire->rule.deed == LATE ? 3 : -1;
                if (wire->rule.deed == LATE)
                    continue;
                break;
            case TWICE:
                (void)!write(fds[!from], frame, (size_t)n);
                break;
            case LOSE:
                continue;
            case PASS:
                break;
            }
            (void)!write(fds[!from], frame, (size_t)n);
            if (held_size && from == held_from && --behind == 0) {
                (void)!write(fds[!from], held, (size_t)held_size);
                held_size = 0;
            }
        }
    }
}

/* The process between the hosts. */
static void be_the_wire(int fd)
{
    int fds[2];

    own_namespace();
    together(fd);
    together(fd);
    network("ip link set m0 addrgenmode none up && ip link set m1 addrgenmode none up");
    fds[NEAR] = port_on("m0");
    fds[FAR] = port_on("m1");
    together(fd);
    carry(fds);
}

/* This process becomes the near host; `far` is run on the other one, and talks to this one through the socket. */
MAYBE pid_t with_far(void (*far)(int fd), int *fd)
{
    int fds[2], control[2];
    pid_t pid, between;

    /* Each packet is one frame then. */
    setenv("ANYVERBS_GSO", "0", 1);
    wire = mmap(NULL, sizeof(*wire), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (wire == MAP_FAILED)
        die("mmap");
    own_namespace();
    ZERO(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control));
    between = child();
    if (between == 0) {
        be_the_wire(control[1]);
        exit(1);
    }
    together(control[0]);
    ZERO(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    pid = child();
    if (pid == 0) {
        close(fds[0]);
        own_namespace();
        together(fds[1]);
        together(fds[1]);
        set_address("eth0", 2, "1500");
        together(fds[1]);
        far(fds[1]);
        exit(0);
    }
    close(fds[1]);
    *fd = fds[0];
    together(*fd);
    network("ip link add eth0 type veth peer name m0 netns %d && ip link add far type veth peer name m1 netns %d && "
            "ip link set far name eth0 netns %d",
            between, between, pid);
    set_address("eth0", 1, "1500");
    together(control[0]);
    together(*fd);
    together(control[0]);
    together(*fd);
    return pid;
}

/* From now on a packet is treated so. */
MAYBE void arm(struct rule rule)
{
    __atomic_store_n(&wire->armed, 0, __ATOMIC_SEQ_CST);
    wire->rule = rule;
    wire->matched = wire->fired = 0;
    __atomic_store_n(&wire->armed, 1, __ATOMIC_SEQ_CST);
}

/* Whether the rule has met its packet. */
MAYBE int fired(void)
{
    return (int)__atomic_load_n(&wire->fired, __ATOMIC_ACQUIRE);
}

/* How many packets have passed so far, and the ones since then. */
MAYBE unsigned mark(void)
{
    return __atomic_load_n(&wire->count, __ATOMIC_ACQUIRE);
}

/* The nth packet since `since` from a side with this opcode and PSN; NULL if there was none. */
MAYBE const struct seen *packet(unsigned since, enum from from, uint32_t opcode, uint32_t psn, unsigned nth)
{
    unsigned end = mark();

    EXPECT(end - since <= SEEN, "the wire has forgotten packets");
    for (unsigned i = since; i < end; i++) {
        const struct seen *s = &wire->seen[i % SEEN];

        if (s->from == from && (opcode == ANY || s->opcode == opcode) && (psn == ANY || s->psn == psn) && !nth--)
            return s;
    }
    return NULL;
}

#endif
