/*
 * Other processes of a test: on this host, or with C_TESTS_HOSTS (the MTU between them) each on a host of its own: in a
 * network namespace joined to ours. The first row of each GID table is an IPv4 address then, the second an IPv6 one.
 */
#ifndef HOSTS_H
#define HOSTS_H

#include "../common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define SKIPPED 77

/* The machine lacks what the test needs. */
MAYBE __attribute__((noreturn)) void skip(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(SKIPPED);
}

MAYBE int between_hosts(void)
{
    return getenv("C_TESTS_HOSTS") != NULL;
}

/* A network namespace of one's own, for others than root within a user namespace. */
MAYBE void own_namespace(void)
{
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        skip("no network namespaces");
}

/* Sets up interfaces by a line of the shell. */
MAYBE __attribute__((format(printf, 1, 2))) void network(const char *format, ...)
{
    char line[512];
    va_list args;

    va_start(args, format);
    if (vsnprintf(line, sizeof(line), format, args) >= (int)sizeof(line))
        die("too long a line");
    va_end(args);
    if (system(line))
        skip("no veth pairs or bridges");
}

/* A network of one's own, with an interface that has 192.0.2.1 and fd00:1::1. */
MAYBE void own_network(void)
{
    own_namespace();
    network("ip link set lo up && ip link add be0 type veth peer name be1 && ip addr add 192.0.2.1/24 dev be0 && "
            "ip -6 addr add fd00:1::1/64 dev be0 nodad && ip link set be1 up && ip link set be0 up");
}

/* Gives the interface eth0, or another one, the addresses of host n; no address of its own making comes between them. */
MAYBE void set_address(const char *interface, int n, const char *mtu)
{
    network("ip link set lo up && ip link set %s addrgenmode none mtu %s && ip addr add 192.0.2.%d/24 dev %s && "
            "ip -6 addr add fd00:2::%d/64 dev %s nodad && ip link set %s up",
            interface, mtu, n, interface, n, interface, interface);
}

/* A child of a test, which ends with it and after 50 seconds; 0 in the child. */
MAYBE pid_t child(void)
{
    pid_t pid = fork();

    if (pid < 0)
        die("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(50);
    }
    return pid;
}

/* The child must end with exit status 0. */
MAYBE void ends_well(pid_t pid)
{
    int status;

    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        die("a child ended with status 0x%x", status);
}

/* How many hosts hang on the bridge of this one. */
static int hosts_made = 1;

/* This process is on a host of its own from now on, with a bridge to those of its children. */
MAYBE void be_a_host(void)
{
    if (hosts_made++ > 1)
        return;
    own_namespace();
    /* With an address of its own, which does not change with those of its ports. */
    network("ip link add hub address 02:00:c0:00:02:01 type bridge");
    set_address("hub", 1, getenv("C_TESTS_HOSTS"));
}

/* The child's host is joined to ours, over a socket by which both tell how far they are. */
MAYBE void join_host(int fd, pid_t pid)
{
    hear(fd, (char[1]){0}, 1);
    network("ip link add port%d type veth peer name eth0 netns %d && "
            "ip link set port%d addrgenmode none mtu %s master hub up",
            hosts_made, pid, hosts_made, getenv("C_TESTS_HOSTS"));
    tell(fd, "h", 1);
    together(fd);
}

/* The way to a host is open both ways: it refuses a datagram, and says so. Timeouts of tests are short for that. */
MAYBE void reach(int family, const char *host)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(9)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
    const void *to = family == AF_INET ? (void *)&four : (void *)&six;
    socklen_t length = family == AF_INET ? sizeof(four) : sizeof(six);
    struct timeval patience = {.tv_usec = 200000};
    int s = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint64_t end = now_ms() + 10000;

    inet_pton(family, host, family == AF_INET ? (void *)&four.sin_addr : (void *)&six.sin6_addr);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(s, to, length))
        die("no route to %s", host);
    do {
        (void)!send(s, "?", 1, 0);
        if (now_ms() > end)
            die("%s does not answer", host);
    } while (recv(s, (char[1]){0}, 1, 0) >= 0 || errno != ECONNREFUSED);
    close(s);
}

/* The child moves to a host of its own. */
MAYBE void move_away(int fd)
{
    own_namespace();
    together(fd);
    set_address("eth0", hosts_made, getenv("C_TESTS_HOSTS"));
    reach(AF_INET, "192.0.2.1");
    reach(AF_INET6, "fd00:2::1");
    together(fd);
}

/* Runs `other` in a process of its own, which talks to this one through a socket; to be called before the device is opened. */
MAYBE pid_t with_other(void (*other)(int fd), int *fd)
{
    int fds[2];
    pid_t pid;

    ZERO(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    if (between_hosts())
        be_a_host();
    pid = child();
    if (pid == 0) {
        close(fds[0]);
        if (between_hosts())
            move_away(fds[1]);
        other(fds[1]);
        exit(0);
    }
    close(fds[1]);
    if (between_hosts())
        join_host(fds[0], pid);
    *fd = fds[0];
    return pid;
}

#endif
