/* fork in the middle of traffic: children write every page, exit, exec or open the device themselves; the parent notices nothing. */
#include "common.h"

#include <sys/wait.h>

#define CHILDREN 40

static struct side a, b;
static int stop;

static void *traffic(void *argument)
{
    uint64_t *count = argument;

    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        struct ibv_wc wc;

        ZERO(recv_one(&b, 1, 4096, 1024));
        ZERO(send_one(&a, 2, 0, 1024, IBV_SEND_SIGNALED));
        wc = next_wc(a.cq);
        if (wc.status != IBV_WC_SUCCESS)
            die("send: %s", ibv_wc_status_str(wc.status));
        wc = next_wc(b.cq);
        if (wc.status != IBV_WC_SUCCESS || b.buffer[4096] != a.buffer[0])
            die("recv: %s", ibv_wc_status_str(wc.status));
        ++*count;
    }
    return NULL;
}

/* A child's own traffic on a context of its own. */
static void own_traffic(void)
{
    struct ibv_context *context = open_device();
    struct side c, d;
    struct ibv_wc wc;

    make_side(&c, context, IBV_QPT_RC, 4096);
    make_side(&d, context, IBV_QPT_RC, 4096);
    join(&c, &d);
    ZERO(recv_one(&d, 1, 0, 64));
    ZERO(send_one(&c, 1, 0, 64, IBV_SEND_SIGNALED));
    wc = next_wc(c.cq);
    if (wc.status != IBV_WC_SUCCESS)
        die("child: %s", ibv_wc_status_str(wc.status));
    drop_side(&c);
    drop_side(&d);
    ZERO(ibv_close_device(context));
}

static void child(int kind)
{
    alarm(30);
    memset(a.buffer, 0x55, a.size);
    memset(b.buffer, 0x55, b.size);
    switch (kind) {
    case 0:
        exit(0); /* with the library's exit handlers */
    case 1:
        _exit(0);
    case 2:
        execl("/bin/true", "true", NULL);
        _exit(1);
    default:
        own_traffic();
        exit(0);
    }
}

int main(void)
{
    struct ibv_context *context;
    uint64_t count = 0, before;
    pthread_t thread;
    int good = 0;

    start();
    context = open_device();
    make_side(&a, context, IBV_QPT_RC, 8192);
    make_side(&b, context, IBV_QPT_RC, 8192);
    join(&a, &b);
    memset(a.buffer, 0x11, a.size);
    ZERO(pthread_create(&thread, NULL, traffic, &count));
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        pid_t pid = fork();

        if (pid < 0)
            die("fork");
        if (pid == 0)
            child(i % 4);
        if (waitpid(pid, &status, 0) != pid)
            die("waitpid");
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    before = __atomic_load_n(&count, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&count, __ATOMIC_SEQ_CST) < before + 100)
        sched_yield();
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    ZERO(pthread_join(thread, NULL));
    printf("%d of %d children fine, traffic goes on yes\n", good, CHILDREN);
    drop_side(&a);
    drop_side(&b);
    printf("close %d\n", ibv_close_device(context));
    return 0;
}
