/*
 * Programs of named tests. Each test runs in a process of its own, so that one that crashes or hangs takes no other with
 * it, and asserts by itself: "ok NAME", "FAIL NAME: why" or "skip NAME: why" is all that is printed. With names as arguments only those run;
 * --list names all. The tests use verbs.h alone; on another device than ours (C_TESTS_DEVICE) reasons are not asked for.
 */
#ifndef BEHAVIOUR_H
#define BEHAVIOUR_H

#include "hosts.h"

struct test {
    const char *name;
    void (*run)(void);
    /* Of two processes, which may be on two hosts. */
    int is_between;
};

static struct test tests[128];
static int test_count;
/* Standard error of a test, and how much of it has been read. */
static int words = -1;
static off_t words_read;

#define ADD_TEST(name, is_between)                                                                                    \
    static void name(void);                                                                                           \
    __attribute__((constructor)) static void add_##name(void)                                                         \
    {                                                                                                                 \
        tests[test_count++] = (struct test){#name, name, is_between};                                                 \
    }                                                                                                                 \
    static void name(void)
#define TEST(name) ADD_TEST(name, 0)
/* A test whose processes, by with_other, may as well be on two hosts: there, only such tests run. */
#define TEST_BETWEEN(name) ADD_TEST(name, 1)

/* A condition that must hold; further arguments say with which values it does not. */
#define EXPECT(condition, ...)                                                                                        \
    do {                                                                                                              \
        if (!(condition))                                                                                             \
            die("%s:%d: %s; " __VA_OPT__("%s"), __FILE__, __LINE__, #condition __VA_OPT__(, text_of(__VA_ARGS__)));   \
    } while (0)
#define EXPECT_EQ(got, wanted)                                                                                        \
    do {                                                                                                              \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                                             \
        if (got_ != wanted_)                                                                                          \
            die("%s:%d: %s is %lld, expected %s = %lld", __FILE__, __LINE__, #got, got_, #wanted, wanted_);           \
    } while (0)

MAYBE __attribute__((format(printf, 1, 2))) const char *text_of(const char *format, ...)
{
    static char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return text;
}

/* What the library has said since the last time. */
MAYBE const char *said(void)
{
    static char text[4096];
    ssize_t n = pread(words, text, sizeof(text) - 1, words_read);

    text[n > 0 ? n : 0] = 0;
    words_read += n > 0 ? n : 0;
    return text;
}

MAYBE int is_ours(void)
{
    return !getenv("C_TESTS_DEVICE");
}

/* A call that must return this errno value and say why, with this text in the reason. */
#define REFUSED(call, error, reason)                                                                                  \
    do {                                                                                                              \
        int rc_;                                                                                                      \
        said();                                                                                                       \
        rc_ = (call);                                                                                                 \
        refused(__FILE__, __LINE__, #call, rc_, error, reason);                                                       \
    } while (0)
/* The same for a call that returns a pointer. */
#define NOT_MADE(call, error, reason)                                                                                 \
    do {                                                                                                              \
        said();                                                                                                       \
        errno = 0;                                                                                                    \
        refused(__FILE__, __LINE__, #call, (call) ? 0 : errno, error, reason);                                        \
    } while (0)

MAYBE void refused(const char *file, int line, const char *call, int got, int error, const char *reason)
{
    const char *text = said();

    if (got != error)
        die("%s:%d: %s: %s, expected %s", file, line, call, rc_name(got), rc_name(error));
    if (is_ours() && !strstr(text, reason))
        die("%s:%d: %s: the reason lacks \"%s\": %s", file, line, call, reason, *text ? text : "nothing was said");
    if (is_ours() && strchr(text, '\n') != strrchr(text, '\n'))
        die("%s:%d: %s: more than one line: %s", file, line, call, text);
}

/* Both ends of a connection in one process, or of datagrams. */
struct duo {
    struct ibv_context *context;
    struct side a, b;
};

MAYBE void make_duo_of(struct duo *d, enum ibv_qp_type type, size_t size)
{
    d->context = open_device();
    make_side(&d->a, d->context, type, size);
    make_side(&d->b, d->context, type, size);
    join(&d->a, &d->b);
}

MAYBE void make_duo(struct duo *d, enum ibv_qp_type type)
{
    make_duo_of(d, type, 65536);
}

MAYBE void drop_duo(struct duo *d)
{
    drop_side(&d->a);
    drop_side(&d->b);
    ZERO(ibv_close_device(d->context));
}

MAYBE int quiet(struct ibv_cq *cq)
{
    struct ibv_wc wc;

    return ibv_poll_cq(cq, 1, &wc) == 0;
}

/* The next completion must have this wr_id and this status. */
#define NEXT(cq, id, wanted)                                                                                          \
    ({                                                                                                                \
        struct ibv_wc wc_ = next_wc(cq);                                                                              \
        if (wc_.wr_id != (uint64_t)(id) || wc_.status != (wanted))                                                    \
            die("%s:%d: wr_id %" PRIu64 " with %s, expected %" PRIu64 " with %s", __FILE__, __LINE__, wc_.wr_id,      \
                ibv_wc_status_str(wc_.status), (uint64_t)(id), ibv_wc_status_str(wanted));                            \
        wc_;                                                                                                          \
    })

/* A send request from the start of the buffer. */
MAYBE struct ibv_send_wr send_wr(uint64_t wr_id, struct ibv_sge *sge, enum ibv_wr_opcode opcode)
{
    struct ibv_send_wr wr = {
        .wr_id = wr_id, .sg_list = sge, .num_sge = sge ? 1 : 0, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};

    return wr;
}

/* An event of this type on this object (a QP, CQ or SRQ) comes within ten seconds; it is acknowledged. */
MAYBE void expect_event(struct ibv_context *context, enum ibv_event_type type, const void *object)
{
    struct ibv_async_event event = next_event(context);

    if (event.event_type != type || (const void *)event.element.qp != object)
        die("event %s on %p, expected %s on %p", ibv_event_type_str(event.event_type), (void *)event.element.qp,
            ibv_event_type_str(type), object);
}

MAYBE int no_event(struct ibv_context *context)
{
    struct pollfd fd = {.fd = context->async_fd, .events = POLLIN};

    return poll(&fd, 1, 0) == 0;
}

/* What a test that failed has said last, in one line. */
MAYBE void tell_failure(const char *name, int status)
{
    static char text[2048];
    off_t size = lseek(words, 0, SEEK_END);
    ssize_t n = pread(words, text, sizeof(text) - 1, size > 2047 ? size - 2047 : 0);

    text[n > 0 ? n : 0] = 0;
    for (char *c = text; *c; c++)
        if (*c == '\n')
            *c = c[1] ? '|' : 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
        printf("skip %s: %s\n", name, text);
    else if (WIFSIGNALED(status))
        printf("FAIL %s: %s: %s\n", name, strsignal(WTERMSIG(status)), text);
    else
        printf("FAIL %s: %s\n", name, text);
}

int main(int argc, char **argv)
{
    int failed = 0, ran = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("ANYVERBS_EXPLAIN", "1", 1);
    for (int i = 0; i < test_count; i++) {
        int chosen = argc == 1, status;
        pid_t pid;

        if (between_hosts() && !tests[i].is_between)
            continue;
        for (int a = 1; a < argc; a++)
            chosen |= !strcmp(argv[a], tests[i].name);
        if (argc == 2 && !strcmp(argv[1], "--list"))
            printf("%s\n", tests[i].name);
        if (!chosen)
            continue;
        words = memfd_create("words", MFD_CLOEXEC);
        pid = fork();
        if (words < 0 || pid < 0)
            die("a process for %s", tests[i].name);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            dup2(words, STDERR_FILENO);
            alarm(60);
            tests[i].run();
            exit(0);
        }
        if (waitpid(pid, &status, 0) != pid)
            die("waitpid");
        ran++;
        if (status) {
            failed += !WIFEXITED(status) || WEXITSTATUS(status) != SKIPPED;
            tell_failure(tests[i].name, status);
        } else {
            printf("ok %s\n", tests[i].name);
        }
        close(words);
    }
    return failed || (argc > 1 && !ran && strcmp(argv[1], "--list")) ? 1 : 0;
}

#endif
