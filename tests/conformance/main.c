/* conformance: runs the cases on a device and says for each one what came of it. */
#include "conform.h"

#include <fnmatch.h>
#include <getopt.h>
#include <sys/wait.h>

#define PATTERNS 32
#define REASONS 64

static const char usage[] =
    "conformance [OPTIONS]                         both ends in this process\n"
    "conformance [OPTIONS] --fork                  each end in a process of its own\n"
    "conformance [OPTIONS] --listen ADDRESS:PORT   the passive end; prints nothing but errors\n"
    "conformance [OPTIONS] --connect ADDRESS:PORT  the active end; its peer listens there\n"
    "\n"
    "  --device NAME, --gid INDEX         of this end (else the first device, and 0)\n"
    "  --peer-device NAME, --peer-gid N   of the passive end with --fork\n"
    "  --deviations FILE   what this device is known to do otherwise; may be given often\n"
    "  --case PATTERN      only these cases (as a shell matches names); may be given often\n"
    "  --skip PATTERN      none of these\n"
    "  --list              print the names of the cases\n"
    "  --seed N            of all contents\n"
    "  --wait MS           how long to wait for what is expected (10000)\n"
    "  --quiet             no line for a case that passes or is skipped\n"
    "  --part I/N          only every Nth case, from the Ith on (0 to N-1); says which deviations it has not seen\n"
    "\n"
    "Exit status: 0 when nothing failed, 1 when something did, 2 for wrong options.\n";

/* A line of the file of deviations: cases, what is told instead, and why. */
struct deviation {
    char cases[128], told[192], why[256];
    int optional;
    unsigned used;
};

static struct {
    const char *device[ENDS], *gid[ENDS], *listen, *connect;
    const char *only[PATTERNS], *skip[PATTERNS];
    unsigned onlys, skips;
    unsigned seed, part, parts;
    int wait_ms, forks, quiet;
} options = {.wait_ms = 10000, .parts = 1};

static struct deviation *deviations;
static size_t deviation_count;

/* Devices may differ; what both must know before the first case. */
struct ends {
    uint32_t max_message, datagram, seed, cases;
    struct ibv_device_attr device;
};

static const char *const aspect_names[] = {"post", "send", "recv", "state", "events", "memory", "then", "rest"};

static void read_deviations(const char *path)
{
    char line[1024];
    FILE *f = fopen(path, "r");

    if (!f)
        die("%s", path);
    while (fgets(line, sizeof(line), f)) {
        struct deviation d = {.used = 0};

        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (sscanf(line, "%127[^\t]\t%191[^\t]\t%255[^\t\n]", d.cases, d.told, d.why) != 3)
            die("%s: not CASES<tab>END.ASPECT=TOLD...<tab>WHY: %s", path, line);
        /* `?`: depends on more than the device. */
        d.optional = d.cases[0] == '?';
        if (d.optional)
            memmove(d.cases, d.cases + 1, strlen(d.cases));
        deviations = NEED(realloc(deviations, (deviation_count + 1) * sizeof(d)));
        deviations[deviation_count++] = d;
    }
    fclose(f);
}

static const char *const end_names[] = {"active", "passive"};

/* What an aspect says, as deviations name it. */
static void word_for(char *word, size_t size, int end, enum aspect a, const char *is)
{
    snprintf(word, size, "%s.%s=%s", end_names[end], aspect_names[a], *is ? is : "none");
}

/* Is this word, END.ASPECT=TOLD, a known deviation of the case? */
static struct deviation *known(const struct kase *k, const char *word)
{
    for (size_t i = 0; i < deviation_count; i++) {
        char told[sizeof(deviations[i].told)], *rest = told, *pattern;

        if (fnmatch(deviations[i].cases, k->name, 0))
            continue;
        snprintf(told, sizeof(told), "%s", deviations[i].told);
        while ((pattern = strsep(&rest, " ")) != NULL)
            if (*pattern && !fnmatch(pattern, word, 0))
                return &deviations[i];
    }
    return NULL;
}

int is_listed(const struct end *e, enum aspect a, const char *is)
{
    char word[ASPECT_SIZE + 64];

    word_for(word, sizeof(word), e->role == PASSIVE, a, is);
    return known(e->kase, word) != NULL;
}

/* How many aspects differ from this answer. */
static unsigned differences(const struct report answer[ENDS], const struct report got[ENDS])
{
    unsigned n = 0;

    for (int end = 0; end < ENDS; end++)
        for (int a = 0; a < ASPECTS; a++)
            n += !is_one_of(answer[end].text[a], got[end].text[a]);
    return n;
}

enum verdict { PASSED, FAILED, DEVIATING, SKIPPED, VERDICTS };

static enum verdict judge(const struct kase *k, const struct expected *x, const struct report got[ENDS])
{
    const struct report *best = x->answer[0];
    char line[2048] = "", why[1024] = "";
    enum verdict verdict = PASSED;

    for (int i = 1; i < x->count; i++)
        if (differences(x->answer[i], got) < differences(best, got))
            best = x->answer[i];
    for (int end = 0; end < ENDS; end++)
        for (int a = 0; a < ASPECTS; a++) {
            const char *is = got[end].text[a];
            struct deviation *d;
            char word[ASPECT_SIZE + 32];

            if (is_one_of(best[end].text[a], is))
                continue;
            word_for(word, sizeof(word), end, (enum aspect)a, is);
            d = known(k, word);
            if (d)
                d->used++;
            if (!d)
                verdict = FAILED;
            else if (verdict == PASSED)
                verdict = DEVIATING;
            snprintf(line + strlen(line), sizeof(line) - strlen(line), " %s%s(expected %s)", word, d ? "" : "!",
                     best[end].text[a][0] ? best[end].text[a] : "none");
            if (d && !strstr(why, d->why))
                snprintf(why + strlen(why), sizeof(why) - strlen(why), "%s%s", *why ? "; " : "", d->why);
        }
    if (verdict == PASSED && !options.quiet)
        printf("pass %s\n", k->name);
    if (verdict == DEVIATING)
        printf("deviates %s:%s: %s\n", k->name, line, why);
    if (verdict == FAILED)
        printf("FAIL %s:%s\n", k->name, line);
    return verdict;
}

static void run_case(struct end *e, const struct kase *k, struct expected *x)
{
    e->kase = k;
    (k->kind == OPERATION ? run_operation : k->kind == STATE ? run_state : run_event)(e, x);
    drop_queues(e);
}

static int chosen(const struct kase *k)
{
    int yes_ = options.onlys == 0;

    for (unsigned i = 0; i < options.onlys; i++)
        yes_ |= !fnmatch(options.only[i], k->name, 0);
    for (unsigned i = 0; i < options.skips; i++)
        yes_ &= fnmatch(options.skip[i], k->name, 0) != 0;
    return yes_;
}

/* Both ends know the smaller device. */
static struct ends agree(struct end *e, size_t count)
{
    struct ends mine = {e->max_message, e->datagram, e->seed, (uint32_t)count, e->device}, theirs;

    tell(e->control, &mine, sizeof(mine));
    hear(e->control, &theirs, sizeof(theirs));
    if (mine.cases != theirs.cases)
        die("the other end is another release of this program");
    if (theirs.max_message < e->max_message)
        e->max_message = theirs.max_message;
    if (theirs.datagram < e->datagram)
        e->datagram = theirs.datagram;
    if (e->role == PASSIVE)
        e->seed = theirs.seed;
    return theirs;
}

/* The passive end does what it is told: the number of a case, or -1. */
static void serve(int control)
{
    size_t count;
    struct kase *all = all_cases(&count);
    struct expected *x = NEED(malloc(sizeof(*x)));
    struct end *e = NEED(malloc(sizeof(*e)));
    int32_t n;

    open_end(e, PASSIVE, control, 0, options.wait_ms);
    agree(e, count);
    for (;;) {
        hear(control, &n, sizeof(n));
        if (n < 0)
            break;
        run_case(e, &all[n], x);
        tell(control, &e->report, sizeof(e->report));
    }
    close_end(e);
    free(e);
    free(x);
    free(all);
}

static unsigned passed[VERDICTS];
static struct {
    const char *why;
    unsigned count;
} reasons[REASONS];

static void skip(const struct kase *k, const char *why)
{
    unsigned i = 0;

    while (i < REASONS - 1 && reasons[i].why && strcmp(reasons[i].why, why))
        i++;
    reasons[i].why = why;
    reasons[i].count++;
    passed[SKIPPED]++;
    if (!options.quiet)
        printf("skip %s: %s\n", k->name, why);
}

/* A device need not offer an opcode: then the QP that would have it is not made, or ibv_post_send says so. */
static int not_offered(const struct kase *k, const struct report got[ENDS])
{
    const char *why = k->api == WR ? "ibv_create_qp:EOPNOTSUPP" : "EOPNOTSUPP";

    return k->kind == OPERATION && k->condition != ILLEGAL && (k->api == WR || k->op == ATOMIC_WRITE) &&
           !strcmp(got[ACTIVE].text[A_POST], why);
}

static int lead(int control)
{
    size_t count;
    struct kase *all = all_cases(&count);
    struct expected *x = NEED(malloc(sizeof(*x)));
    struct end *e = NEED(malloc(sizeof(*e)));
    struct ends peer;
    int32_t n;
    int whole = 1;

    open_end(e, ACTIVE, control, options.seed, options.wait_ms);
    peer = agree(e, count);
    for (size_t i = 0; i < count; i++) {
        const char *why = unable(&all[i], &e->device, &peer.device);
        struct report got[ENDS];

        if (i % options.parts != options.part)
            continue;
        if (!chosen(&all[i])) {
            whole = 0;
            continue;
        }
        if (why) {
            skip(&all[i], why);
            continue;
        }
        n = (int32_t)i;
        tell(control, &n, sizeof(n));
        run_case(e, &all[i], x);
        got[ACTIVE] = e->report;
        hear(control, &got[PASSIVE], sizeof(got[PASSIVE]));
        if (not_offered(&all[i], got))
            skip(&all[i], "the device does not offer this opcode");
        else
            passed[judge(&all[i], x, got)]++;
    }
    n = -1;
    tell(control, &n, sizeof(n));
    close_end(e);
    for (size_t i = 0; i < deviation_count && whole; i++)
        if (!deviations[i].used && !deviations[i].optional && options.parts > 1) {
            printf("unused %s %s\n", deviations[i].cases, deviations[i].told);
        } else if (!deviations[i].used && !deviations[i].optional) {
            printf("FAIL the deviation of %s, %s, is not there any more\n", deviations[i].cases, deviations[i].told);
            passed[FAILED]++;
        }
    for (int i = 0; i < REASONS && reasons[i].why; i++)
        printf("skipped %u: %s\n", reasons[i].count, reasons[i].why);
    printf("seed %u\n", options.seed);
    printf("%u passed, %u failed, %u deviating, %u skipped\n", passed[PASSED], passed[FAILED], passed[DEVIATING], passed[SKIPPED]);
    free(e);
    free(x);
    free(all);
    return passed[FAILED] != 0 || passed[PASSED] + passed[DEVIATING] == 0;
}

static void take_device(int role)
{
    if (options.device[role])
        setenv("C_TESTS_DEVICE", options.device[role], 1);
    if (options.gid[role])
        setenv("C_TESTS_GID", options.gid[role], 1);
}

static void *serve_in_thread(void *control)
{
    serve((int)(intptr_t)control);
    return NULL;
}

/* No end waits for ever for the other one. */
static void bound(int control)
{
    struct timeval limit = {.tv_sec = 60 + options.wait_ms / 250};
    int on = 1;

    setsockopt(control, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(control, IPPROTO_TCP, 1 /* TCP_NODELAY */, &on, sizeof(on));
}

static int one_host(void)
{
    int pair[2], rc, status = 0;
    pthread_t thread;
    pid_t child = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    bound(pair[0]);
    bound(pair[1]);
    fflush(stdout);
    if (options.forks) {
        child = fork();
        if (child < 0)
            die("fork");
        if (child == 0) {
            close(pair[0]);
            take_device(options.device[PASSIVE] || options.gid[PASSIVE] ? PASSIVE : ACTIVE);
            serve(pair[1]);
            exit(0);
        }
        close(pair[1]);
        take_device(ACTIVE);
        rc = lead(pair[0]);
        waitpid(child, &status, 0);
        return rc || status;
    }
    take_device(ACTIVE);
    ZERO(pthread_create(&thread, NULL, serve_in_thread, (void *)(intptr_t)pair[1]));
    rc = lead(pair[0]);
    ZERO(pthread_join(thread, NULL));
    return rc;
}

/* ADDRESS:PORT; the passive end listens, the active one tries for ten seconds. */
static int meet_at(const char *where, int listens)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    char address[64];
    const char *colon = strrchr(where, ':');
    uint64_t end = now_ms() + 10000;
    int s, peer, on = 1;

    if (!colon || colon - where >= (int)sizeof(address))
        die("%s is not ADDRESS:PORT", where);
    snprintf(address, sizeof(address), "%.*s", (int)(colon - where), where);
    at.sin_port = htons((uint16_t)atoi(colon + 1));
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
        die("%s is no IPv4 address", address);
    for (;;) {
        s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (listens) {
            setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
            if (bind(s, (struct sockaddr *)&at, sizeof(at)) || listen(s, 1))
                die("listening on %s", where);
            peer = accept(s, NULL, NULL);
            close(s);
            if (peer < 0)
                die("accept");
            return peer;
        }
        if (connect(s, (struct sockaddr *)&at, sizeof(at)) == 0)
            return s;
        if (now_ms() > end)
            die("connecting to %s", where);
        close(s);
        usleep(20000);
    }
}

static void list(void)
{
    size_t count;
    struct kase *all = all_cases(&count);

    for (size_t i = 0; i < count; i++)
        if (chosen(&all[i]))
            printf("%s\n", all[i].name);
    free(all);
}

static void add(const char **to, unsigned *count, const char *pattern)
{
    if (*count == PATTERNS)
        die("too many patterns");
    to[(*count)++] = pattern;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"device", 1, 0, 'd'}, {"gid", 1, 0, 'g'},     {"peer-device", 1, 0, 'D'}, {"peer-gid", 1, 0, 'G'},
        {"listen", 1, 0, 'l'}, {"connect", 1, 0, 'c'}, {"deviations", 1, 0, 'x'},  {"case", 1, 0, 'k'},
        {"skip", 1, 0, 'K'},   {"list", 0, 0, 'L'},    {"seed", 1, 0, 's'},        {"wait", 1, 0, 'w'},
        {"fork", 0, 0, 'f'},   {"quiet", 0, 0, 'q'},   {"part", 1, 0, 'p'},        {0, 0, 0, 0}};
    int only_list = 0, option, fd, rc = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    options.seed = (unsigned)(now_ms() ^ (uint64_t)getpid() << 16) & 0xffffff;
    while ((option = getopt_long(argc, argv, "q", names, NULL)) != -1)
        switch (option) {
        case 'd': options.device[ACTIVE] = optarg; break;
        case 'g': options.gid[ACTIVE] = optarg; break;
        case 'D': options.device[PASSIVE] = optarg; break;
        case 'G': options.gid[PASSIVE] = optarg; break;
        case 'l': options.listen = optarg; break;
        case 'c': options.connect = optarg; break;
        case 'x': read_deviations(optarg); break;
        case 'k': add(options.only, &options.onlys, optarg); break;
        case 'K': add(options.skip, &options.skips, optarg); break;
        case 'L': only_list = 1; break;
        case 's': options.seed = (unsigned)strtoul(optarg, NULL, 0); break;
        case 'w': options.wait_ms = atoi(optarg); break;
        case 'f': options.forks = 1; break;
        case 'p':
            if (sscanf(optarg, "%u/%u", &options.part, &options.parts) != 2 || options.part >= options.parts)
                die("%s is not I/N", optarg);
            break;
        case 'q': options.quiet = 1; break;
        default: fputs(usage, stderr); return 2;
        }
    if (optind < argc) {
        fputs(usage, stderr);
        return 2;
    }
    if (only_list) {
        list();
    } else if (options.listen || options.connect) {
        take_device(ACTIVE);
        fd = meet_at(options.listen ? options.listen : options.connect, options.listen != NULL);
        bound(fd);
        if (options.listen)
            serve(fd);
        else
            rc = lead(fd);
        close(fd);
    } else {
        rc = one_host();
    }
    free(deviations);
    return rc;
}
