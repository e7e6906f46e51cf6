/* The device list, and opening: as often as one likes, in any order, without leaving anything behind. */
#include "behaviour.h"
#include <dirent.h>

static unsigned open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    if (!dir)
        die("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long kib = -1;

    if (!file)
        die("status");
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    fclose(file);
    return kib;
}

static unsigned mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    unsigned n = 0;
    int c;

    if (!file)
        die("maps");
    while ((c = getc(file)) != EOF)
        n += c == '\n';
    fclose(file);
    return n;
}

TEST(the_list_ends_with_null_and_its_count_may_be_null)
{
    struct ibv_device **list;
    int n = -1;

    list = NEED(ibv_get_device_list(&n));
    EXPECT(n > 0);
    for (int i = 0; i < n; i++)
        EXPECT(list[i] && *ibv_get_device_name(list[i]));
    EXPECT(!list[n]);
    ibv_free_device_list(list);
    list = NEED(ibv_get_device_list(NULL));
    EXPECT(list[0]);
    ibv_free_device_list(list);
}

TEST(without_a_device_the_list_is_empty_and_not_null)
{
    struct ibv_device **list;
    int n = -1;

    setenv("ANYVERBS_SOFT", "0", 1);
    errno = 0;
    list = ibv_get_device_list(&n);
    if (list && list[0])
        skip("the kernel has RDMA devices");
    EXPECT(list != NULL, "errno %s", rc_name(errno));
    EXPECT_EQ(n, 0);
    EXPECT(!list[0]);
    ibv_free_device_list(list);
}

TEST(there_may_be_several_devices_and_each_can_be_opened)
{
    struct ibv_device **list;
    int n;

    setenv("ANYVERBS_DEVICES", "3", 1);
    list = NEED(ibv_get_device_list(&n));
    EXPECT(n >= 3);
    for (int i = 0; i < n; i++) {
        struct ibv_context *context = NEED(ibv_open_device(list[i]));
        struct ibv_device_attr attr;

        EXPECT(context->device == list[i]);
        ZERO(ibv_query_device(context, &attr));
        EXPECT(ibv_get_device_guid(list[i]) != 0);
        for (int j = 0; j < i; j++)
            EXPECT(strcmp(ibv_get_device_name(list[i]), ibv_get_device_name(list[j])));
        ZERO(ibv_close_device(context));
    }
    ibv_free_device_list(list);
}

/* A device is good for as long as it is open, whatever becomes of the list it came from. */
TEST(a_device_outlives_the_list_it_was_opened_from)
{
    struct ibv_device **list = NEED(ibv_get_device_list(NULL)), **other = NEED(ibv_get_device_list(NULL)), *device = list[0];
    char name[64];
    struct ibv_context *context;

    EXPECT(list[0] == other[0], "a device has two addresses");
    snprintf(name, sizeof(name), "%s", ibv_get_device_name(device));
    context = NEED(ibv_open_device(device));
    ibv_free_device_list(list);
    ibv_free_device_list(other);
    EXPECT(!strcmp(ibv_get_device_name(context->device), name));
    for (int i = 0; i < 50; i++) {
        list = NEED(ibv_get_device_list(NULL));
        EXPECT(list[0] == device);
        ibv_free_device_list(list);
    }
    {
        struct side a, b;

        make_side(&a, context, IBV_QPT_RC, 4096);
        make_side(&b, context, IBV_QPT_RC, 4096);
        join(&a, &b);
        ZERO(rdma_one(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, (uintptr_t)b.buffer, b.mr->rkey));
        NEXT(a.cq, 1, IBV_WC_SUCCESS);
        drop_side(&a);
        drop_side(&b);
    }
    ZERO(ibv_close_device(context));
}

static void use_once(int with_traffic)
{
    struct ibv_context *context = open_device();
    struct side a, b;

    if (with_traffic) {
        make_side(&a, context, IBV_QPT_RC, 4096);
        make_side(&b, context, IBV_QPT_RC, 4096);
        join(&a, &b);
        ZERO(recv_one(&b, 1, 0, 64));
        ZERO(send_one(&a, 1, 0, 8, IBV_SEND_SIGNALED));
        NEXT(a.cq, 1, IBV_WC_SUCCESS);
        NEXT(b.cq, 1, IBV_WC_SUCCESS);
        drop_side(&a);
        drop_side(&b);
    }
    ZERO(ibv_close_device(context));
}

/*
 * A thousand times, with nothing or with traffic in between: descriptors, mappings and memory stay. Numbers of QPs are not
 * given again soon: for every 4096 the process takes one descriptor and 256 KiB more, up to a bound.
 */
static void a_thousand_times(int with_traffic)
{
    unsigned fds, maps;
    long kib;

    for (int i = 0; i < 100; i++)
        use_once(with_traffic);
    fds = open_descriptors();
    maps = mappings();
    kib = resident_kib();
    for (int i = 0; i < 1000; i++)
        use_once(with_traffic);
    EXPECT(open_descriptors() <= fds + (with_traffic ? 1 : 0), "%u descriptors have become %u", fds, open_descriptors());
    EXPECT(mappings() <= maps + 4, "%u mappings have become %u", maps, mappings());
    EXPECT(resident_kib() <= kib + 1024, "%ld KiB have become %ld", kib, resident_kib());
}

TEST(listing_opening_and_closing_a_thousand_times_leaves_nothing)
{
    a_thousand_times(0);
}

TEST(opening_with_traffic_and_closing_a_thousand_times_leaves_nothing)
{
    a_thousand_times(1);
}

TEST(many_contexts_may_be_open_at_once)
{
    struct ibv_context *contexts[200];
    unsigned fds = open_descriptors();

    for (int i = 0; i < 200; i++)
        contexts[i] = open_device();
    for (int i = 0; i < 200; i++) {
        struct ibv_port_attr port;

        for (int j = 0; j < i; j++)
            EXPECT(contexts[i] != contexts[j] && contexts[i]->async_fd != contexts[j]->async_fd);
        ZERO(ibv_query_port(contexts[i], PORT, &port));
        EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
    }
    for (int i = 0; i < 200; i++)
        ZERO(ibv_close_device(contexts[i]));
    EXPECT(open_descriptors() <= fds + 16, "%u descriptors have become %u", fds, open_descriptors());
}

/* Threads that list, open and close at the same time. */
static void *opener(void *arg)
{
    for (int i = 0; i < 200; i++)
        use_once(i % 4 == 0);
    return arg;
}

TEST(threads_may_list_open_and_close_at_once)
{
    pthread_t threads[6];

    for (int i = 0; i < 6; i++)
        ZERO(pthread_create(&threads[i], NULL, opener, NULL));
    for (int i = 0; i < 6; i++)
        ZERO(pthread_join(threads[i], NULL));
}

TEST(a_device_that_is_none_is_refused)
{
    struct ibv_device fake;

    memset(&fake, 0, sizeof(fake));
    NOT_MADE(ibv_open_device(NULL), EINVAL, "NULL");
    NOT_MADE(ibv_open_device(&fake), EINVAL, "ibv_open_device");
}

/* What memcheck runs: list, open, use, close, free. */
TEST(one_use_of_everything)
{
    use_once(1);
    use_once(0);
}

TEST(memcheck_finds_no_error_and_no_leak_in_one_use)
{
    const char *lib = getenv("LD_LIBRARY_PATH");
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    int status;
    pid_t pid;

    if (system("valgrind --version >/dev/null 2>&1"))
        skip("valgrind is not installed");
    EXPECT(n > 0 && lib);
    self[n] = 0;
    pid = fork();
    if (pid == 0) {
        alarm(55);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(words, STDOUT_FILENO);
        execlp("valgrind", "valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite",
               self, "one_use_of_everything", (char *)NULL);
        _exit(1);
    }
    EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status 0x%x", status);
    EXPECT(!strstr(said(), "=="), "memcheck has something to say");
}
