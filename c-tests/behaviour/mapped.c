/* Memory that two processes of a host can both map: a region over it is reached by plain copies, and behaves as any other. */
#include "behaviour.h"

#define SIZE 65536

enum kind { PRIVATE, ANONYMOUS, MEMFD, SEALED, NAMED, BUFFER, DEVICE, KINDS };

static const char *const kind_names[] = {"private", "anonymous", "memfd", "sealed", "named", "buffer", "device"};
/* What stands in the maps of a process that has it mapped. */
static const char *const map_names[] = {NULL, NULL, "memfd:behaved", "memfd:sealed", "/dev/shm/behaved", "memfd:anyverbs-buf",
                                        "memfd:anyverbs-dm"};

static enum kind kind;
#define EACH_KIND(from) for (kind = (from); kind < KINDS; kind++)

/* A region, and what it lies in. */
struct region {
    struct ibv_mr *mr;
    unsigned char *at;
    int file;
    struct ibv_buf *buf;
    struct ibv_dm *dm;
};

static int file_of_kind(void)
{
    static char name[64];
    int file;

    if (kind == NAMED) {
        snprintf(name, sizeof(name), "/behaved-%d", getpid());
        file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    } else {
        file = memfd_create(kind == SEALED ? "sealed" : "behaved", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    EXPECT(file >= 0);
    ZERO(ftruncate(file, SIZE));
    if (kind == SEALED)
        ZERO(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    return file;
}

static void unlink_named(void)
{
    char name[64];

    snprintf(name, sizeof(name), "/behaved-%d", getpid());
    if (kind == NAMED)
        ZERO(shm_unlink(name));
}

static void make_region(struct side *s, struct region *r, unsigned access)
{
    struct ibv_alloc_dm_attr attr = {.length = SIZE};
    int how = kind == PRIVATE ? MAP_PRIVATE | MAP_ANONYMOUS : kind == ANONYMOUS ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;

    memset(r, 0, sizeof(*r));
    r->file = -1;
    if (kind == DEVICE) {
        r->dm = NEED(ibv_alloc_dm(s->context, &attr));
        r->mr = NEED(ibv_reg_dm_mr(s->pd, r->dm, 0, SIZE, access | IBV_ACCESS_ZERO_BASED));
        return;
    }
    if (kind == BUFFER) {
        r->at = NEED(ibv_alloc_buf(s->pd, SIZE, &r->buf));
        r->mr = NEED(ibv_reg_buf_mr(s->pd, r->buf, r->at, SIZE, access));
        return;
    }
    if (kind >= MEMFD)
        r->file = file_of_kind();
    r->at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, how, r->file, 0);
    EXPECT(r->at != MAP_FAILED);
    /* Files with names are found by them. */
    if (kind == NAMED) {
        close(r->file);
        r->file = -1;
    }
    r->mr = NEED(ibv_reg_mr(s->pd, r->at, SIZE, access));
}

static void drop_memory(struct region *r)
{
    if (kind == DEVICE)
        ZERO(ibv_free_dm(r->dm));
    else if (kind == BUFFER)
        ibv_free_buf(r->buf);
    else
        munmap(r->at, SIZE);
    if (r->file >= 0)
        close(r->file);
    unlink_named();
}

static void look(struct region *r, unsigned char *to, size_t n)
{
    if (kind == DEVICE)
        ZERO(ibv_memcpy_from_dm(to, r->dm, 0, n));
    else
        memcpy(to, r->at, n);
}

/* The owner connects, and names the region in the place of the side's own. */
static void join_owner(int fd, struct side *s, struct region *r)
{
    struct address there = {.addr = (uintptr_t)r->at, .rkey = r->mr->rkey};

    join_over(fd, s);
    tell(fd, &there, sizeof(there));
}

static struct address join_writer(int fd, struct side *s)
{
    struct address theirs;

    make_side(s, open_device(), IBV_QPT_RC, SIZE);
    join_over(fd, s);
    hear(fd, &theirs, sizeof(theirs));
    return theirs;
}

static enum ibv_wc_status operate(struct side *s, enum ibv_wr_opcode opcode, uint32_t length, struct address *there, size_t offset)
{
    ZERO(rdma_one(s, 1, opcode, 0, length, there->addr + offset, there->rkey));
    return next_wc(s->cq).status;
}

static int is_mapped_here(const char *name)
{
    static char line[512];
    FILE *maps = NEED(fopen("/proc/self/maps", "r"));
    int found = 0;

    while (fgets(line, sizeof(line), maps))
        found |= strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

/* Writes until this process has mapped the memory, if it can; on other devices, some times. */
static void write_until_mapped(struct side *s, struct address *there)
{
    uint64_t end = now_ms() + 10000;

    for (int i = 0; i < 100 || (is_ours() && map_names[kind] && !is_mapped_here(map_names[kind])); i++) {
        EXPECT_EQ(operate(s, IBV_WR_RDMA_WRITE, 64, there, 0), IBV_WC_SUCCESS);
        EXPECT(now_ms() < end, "%s memory is not mapped", kind_names[kind]);
    }
}

static void check_owner(int fd)
{
    struct side s;
    struct region r;
    static unsigned char bytes[SIZE];

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    join_owner(fd, &s, &r);
    for (;;) {
        size_t n;
        unsigned char first;

        hear(fd, &n, sizeof(n));
        if (!n)
            break;
        hear(fd, &first, 1);
        look(&r, bytes, sizeof(bytes));
        for (size_t i = 0; i < n; i++)
            EXPECT_EQ(bytes[i], (unsigned char)(first + i));
        tell(fd, &first, 1);
    }
    ZERO(ibv_dereg_mr(r.mr));
    drop_memory(&r);
    together(fd);
    drop_side(&s);
}

static void counts_up(unsigned char *at, size_t n, unsigned char first)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (unsigned char)(first + i);
}

TEST(writes_reads_and_atomics_reach_memory_of_every_kind)
{
    static const size_t sizes[] = {8, 1, 2, 3, 7, 16, 17, 33, 64, 65, 100, 1024, 1025, 4096, 40001, SIZE};

    EACH_KIND(PRIVATE) {
        struct side s;
        struct address there;
        int fd;
        pid_t pid = with_other(check_owner, &fd);
        size_t none = 0;
        uint64_t *word;

        there = join_writer(fd, &s);
        write_until_mapped(&s, &there);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
            size_t n = sizes[i];
            unsigned char first = (unsigned char)(i * 7 + 3), back;

            counts_up(s.buffer, n, first);
            EXPECT_EQ(operate(&s, IBV_WR_RDMA_WRITE, n, &there, 0), IBV_WC_SUCCESS);
            tell(fd, &n, sizeof(n));
            tell(fd, &first, 1);
            hear(fd, &back, 1);
            memset(s.buffer, 0, n);
            EXPECT_EQ(operate(&s, IBV_WR_RDMA_READ, n, &there, 0), IBV_WC_SUCCESS);
            for (size_t b = 0; b < n; b++)
                EXPECT_EQ(s.buffer[b], (unsigned char)(first + b));
        }
        word = (uint64_t *)s.buffer;
        *word = 40;
        EXPECT_EQ(operate(&s, IBV_WR_RDMA_WRITE, 8, &there, 8), IBV_WC_SUCCESS);
        for (uint64_t i = 0; i < 3; i++) {
            struct ibv_sge sge = sge_of(&s, 0, 8);
            struct ibv_send_wr wr = send_wr(9, &sge, IBV_WR_ATOMIC_FETCH_AND_ADD), *bad;

            wr.wr.atomic.remote_addr = there.addr + 8;
            wr.wr.atomic.rkey = there.rkey;
            wr.wr.atomic.compare_add = 2;
            ZERO(ibv_post_send(s.qp, &wr, &bad));
            NEXT(s.cq, 9, IBV_WC_SUCCESS);
            EXPECT_EQ(*word, 40 + 2 * i);
        }
        EXPECT_EQ(operate(&s, IBV_WR_RDMA_READ, 8, &there, 8), IBV_WC_SUCCESS);
        EXPECT_EQ(*word, 46);
        tell(fd, &none, sizeof(none));
        together(fd);
        ends_well(pid);
        drop_side(&s);
        close(fd);
    }
}

static void owner_that_deregisters(int fd)
{
    struct side s;
    struct region r;
    static unsigned char bytes[SIZE], zeros[SIZE];

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    join_owner(fd, &s, &r);
    together(fd);
    ZERO(ibv_dereg_mr(r.mr));
    if (kind == DEVICE)
        ZERO(ibv_memcpy_to_dm(r.dm, 0, zeros, SIZE));
    else
        memset(r.at, 0, SIZE);
    together(fd);
    look(&r, bytes, SIZE);
    EXPECT(!memcmp(bytes, zeros, SIZE), "%s memory was written after its deregistration", kind_names[kind]);
    drop_memory(&r);
    together(fd);
    drop_side(&s);
}

TEST(a_region_that_goes_while_a_peer_writes_is_not_written_afterwards)
{
    EACH_KIND(PRIVATE) {
        struct side s;
        struct address there;
        int fd, n = 0;
        enum ibv_wc_status status;
        uint64_t end = now_ms() + 10000;
        pid_t pid = with_other(owner_that_deregisters, &fd);

        there = join_writer(fd, &s);
        memset(s.buffer, 1, SIZE);
        write_until_mapped(&s, &there);
        together(fd);
        while ((status = operate(&s, IBV_WR_RDMA_WRITE, SIZE, &there, 0)) == IBV_WC_SUCCESS)
            n++;
        EXPECT_EQ(status, IBV_WC_REM_ACCESS_ERR);
        together(fd);
        while (is_ours() && map_names[kind] && is_mapped_here(map_names[kind]))
            EXPECT(now_ms() < end, "%s memory stays mapped", kind_names[kind]);
        together(fd);
        ends_well(pid);
        drop_side(&s);
        close(fd);
    }
}

static void owner_that_moves(int fd)
{
    struct side s;
    struct region r, other;
    static unsigned char bytes[SIZE];

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    make_region(&s, &other, ALL_ACCESS);
    join_owner(fd, &s, &r);
    together(fd);
    ZERO(ibv_rereg_mr(r.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other.at, SIZE, 0));
    tell(fd, &other.at, sizeof(other.at));
    together(fd);
    look(&other, bytes, 8);
    EXPECT(!memcmp(bytes, "elsewher", 8), "%s memory", kind_names[kind]);
    look(&r, bytes, 8);
    EXPECT(memcmp(bytes, "elsewher", 8), "%s memory was written where the region was before", kind_names[kind]);
    ZERO(ibv_dereg_mr(r.mr));
    ZERO(ibv_dereg_mr(other.mr));
    together(fd);
}

TEST(a_region_that_moves_to_other_memory_is_written_there)
{
    EACH_KIND(PRIVATE) {
        struct side s;
        struct address there;
        unsigned char *at;
        int fd;
        pid_t pid;

        /* Device memory cannot be named by an address, and a name is one file's. */
        if (kind == DEVICE || kind == NAMED)
            continue;
        pid = with_other(owner_that_moves, &fd);
        there = join_writer(fd, &s);
        write_until_mapped(&s, &there);
        together(fd);
        hear(fd, &at, sizeof(at));
        there.addr = (uintptr_t)at;
        memcpy(s.buffer, "elsewhere", 8);
        EXPECT_EQ(operate(&s, IBV_WR_RDMA_WRITE, 8, &there, 0), IBV_WC_SUCCESS);
        together(fd);
        together(fd);
        ends_well(pid);
        drop_side(&s);
        close(fd);
    }
}

static void owner_that_cuts(int fd)
{
    struct side s;
    struct region r;

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    join_owner(fd, &s, &r);
    together(fd);
    ZERO(ftruncate(r.file, 4096));
    together(fd);
    together(fd);
}

/* A NIC has the old pages pinned; here they are gone. */
TEST(memory_that_its_owner_cuts_off_ends_no_writer)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    kind = MEMFD;
    for (int o = 0; o < 2; o++) {
        struct side s;
        struct address there;
        int fd;
        enum ibv_wc_status status;
        pid_t pid = with_other(owner_that_cuts, &fd);

        there = join_writer(fd, &s);
        write_until_mapped(&s, &there);
        together(fd);
        together(fd);
        EXPECT_EQ(operate(&s, opcodes[o], 64, &there, 0), IBV_WC_SUCCESS);
        status = operate(&s, opcodes[o], SIZE, &there, 0);
        EXPECT(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR || (!is_ours() && status == IBV_WC_SUCCESS), "%s",
               ibv_wc_status_str(status));
        together(fd);
        ends_well(pid);
        close(fd);
    }
}

static void owner_that_unmaps(int fd)
{
    struct side s;
    struct region r;
    unsigned char byte;

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    join_owner(fd, &s, &r);
    together(fd);
    ZERO(munmap(r.at, SIZE));
    together(fd);
    together(fd);
    EXPECT(pread(r.file, &byte, 1, 100) == 1 && byte == 'u');
}

TEST(memory_that_its_owner_unmaps_is_still_that_of_its_file)
{
    EACH_KIND(MEMFD) {
        struct side s;
        struct address there;
        int fd;
        pid_t pid;

        if (kind > SEALED)
            break;
        pid = with_other(owner_that_unmaps, &fd);
        there = join_writer(fd, &s);
        write_until_mapped(&s, &there);
        together(fd);
        together(fd);
        s.buffer[0] = 'u';
        EXPECT_EQ(operate(&s, IBV_WR_RDMA_WRITE, 1, &there, 100), IBV_WC_SUCCESS);
        together(fd);
        ends_well(pid);
        close(fd);
    }
}

TEST(writes_to_the_memory_of_a_dead_process_end)
{
    EACH_KIND(MEMFD) {
        struct side s;
        struct address there;
        int fd, status;
        uint64_t end;
        pid_t pid = with_other(check_owner, &fd);

        there = join_writer(fd, &s);
        write_until_mapped(&s, &there);
        ZERO(kill(pid, SIGKILL));
        EXPECT(waitpid(pid, &status, 0) == pid);
        end = now_ms() + 20000;
        while (operate(&s, IBV_WR_RDMA_WRITE, 8, &there, 0) == IBV_WC_SUCCESS)
            EXPECT(now_ms() < end, "%s memory", kind_names[kind]);
        while (is_ours() && is_mapped_here(map_names[kind]))
            EXPECT(now_ms() < end, "%s memory stays mapped", kind_names[kind]);
        if (kind == NAMED) {
            char name[64];

            snprintf(name, sizeof(name), "/behaved-%d", pid);
            shm_unlink(name);
        }
        drop_side(&s);
        close(fd);
    }
}

/* Requests of both ways, so many that the library knows the region well. */
static void use_often(struct side *s, struct address *there)
{
    write_until_mapped(s, there);
    for (int i = 0; i < 200; i++)
        EXPECT_EQ(operate(s, i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, 8, there, 0), IBV_WC_SUCCESS);
}

static void owner_that_receives(int fd)
{
    struct side s;
    struct region r;

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    join_owner(fd, &s, &r);
    ZERO(recv_one(&s, 70, 0, 64));
    NEXT(s.cq, 70, IBV_WC_SUCCESS);
    together(fd);
    ZERO(ibv_dereg_mr(r.mr));
    drop_memory(&r);
    together(fd);
    drop_side(&s);
}

TEST(lists_of_all_kinds_of_requests_take_effect_and_complete_in_their_order)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                 IBV_WR_RDMA_READ};
    enum { N = sizeof(opcodes) / sizeof(*opcodes) };

    EACH_KIND(PRIVATE) {
        struct side s;
        struct address there;
        struct ibv_sge sges[N];
        struct ibv_send_wr wrs[N], *bad = NULL;
        uint64_t *words;
        int fd;
        pid_t pid = with_other(owner_that_receives, &fd);

        there = join_writer(fd, &s);
        use_often(&s, &there);
        words = (uint64_t *)s.buffer;
        for (int i = 0; i < N; i++) {
            words[i] = 100 + (uint64_t)i;
            sges[i] = sge_of(&s, (size_t)i * 8, 8);
            wrs[i] = send_wr(10 + (uint64_t)i, &sges[i], opcodes[i]);
            wrs[i].wr.rdma.remote_addr = there.addr;
            wrs[i].wr.rdma.rkey = there.rkey;
            wrs[i].next = i + 1 < N ? &wrs[i + 1] : NULL;
        }
        /* The second WRITE says nothing, and the READ behind it waits for nothing. */
        wrs[3].send_flags = 0;
        wrs[4].send_flags |= IBV_SEND_FENCE;
        ZERO(ibv_post_send(s.qp, wrs, &bad));
        for (int i = 0; i < N; i++)
            if (i != 3)
                NEXT(s.cq, 10 + (uint64_t)i, IBV_WC_SUCCESS);
        EXPECT_EQ(words[1], 100);
        EXPECT_EQ(words[4], 103);
        EXPECT_EQ(words[5], 103);
        /* Where one is refused those before it go, and none behind it. */
        words[0] = 7;
        words[2] = 8;
        wrs[0].next = &wrs[1];
        wrs[1].send_flags |= IBV_SEND_INLINE;
        wrs[1].next = &wrs[3];
        wrs[3].next = NULL;
        sges[3] = sge_of(&s, 16, 8);
        REFUSED(ibv_post_send(s.qp, wrs, &bad), EINVAL, "INLINE");
        EXPECT(bad == &wrs[1]);
        NEXT(s.cq, 10, IBV_WC_SUCCESS);
        EXPECT_EQ(operate(&s, IBV_WR_RDMA_READ, 8, &there, 0), IBV_WC_SUCCESS);
        EXPECT_EQ(words[0], 7);
        together(fd);
        together(fd);
        ends_well(pid);
        drop_side(&s);
        close(fd);
    }
}

enum change { NO_CHANGE, WRONG_KEY, BEYOND, BEFORE, REVOKED, OWNER_FAILED, NO_LOCAL_KEY, OWN_FAILED, CHANGES };

static void owner_that_changes(int fd)
{
    struct side s;
    struct region r;
    enum change change;
    struct ibv_qp_attr none = {.qp_access_flags = IBV_ACCESS_LOCAL_WRITE}, err = {.qp_state = IBV_QPS_ERR};

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    join_owner(fd, &s, &r);
    hear(fd, &change, sizeof(change));
    if (change == REVOKED)
        ZERO(ibv_modify_qp(s.qp, &none, IBV_QP_ACCESS_FLAGS));
    if (change == OWNER_FAILED)
        ZERO(ibv_modify_qp(s.qp, &err, IBV_QP_STATE));
    together(fd);
    together(fd);
    ZERO(ibv_dereg_mr(r.mr));
    drop_memory(&r);
    drop_side(&s);
}

static void changed(enum change change, enum ibv_wr_opcode opcode)
{
    static const enum ibv_wc_status ends[CHANGES] = {
        IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR};
    struct side s;
    struct address there;
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
    struct ibv_sge sge;
    struct ibv_send_wr wr, *bad;
    enum ibv_wc_status status;
    int fd;
    pid_t pid = with_other(owner_that_changes, &fd);

    there = join_writer(fd, &s);
    use_often(&s, &there);
    tell(fd, &change, sizeof(change));
    together(fd);
    if (change == OWN_FAILED)
        ZERO(ibv_modify_qp(s.qp, &err, IBV_QP_STATE));
    sge = sge_of(&s, 0, 8);
    sge.lkey ^= change == NO_LOCAL_KEY;
    wr = send_wr(5, &sge, opcode);
    wr.wr.rdma.rkey = there.rkey ^ (change == WRONG_KEY);
    wr.wr.rdma.remote_addr = there.addr + (change == BEYOND ? SIZE - 7 : 0) - (change == BEFORE);
    ZERO(ibv_post_send(s.qp, &wr, &bad));
    status = next_wc(s.cq).status;
    /* A device without a right of its own for each way of a QP refuses with another word. */
    EXPECT(status == ends[change] || (change == REVOKED && status == IBV_WC_REM_INV_REQ_ERR), "%s memory, change %d, opcode %d: %s",
           kind_names[kind], change, opcode, ibv_wc_status_str(status));
    together(fd);
    ends_well(pid);
    drop_side(&s);
    close(fd);
}

TEST(what_is_not_allowed_is_refused_also_where_all_before_was_allowed)
{
    EACH_KIND(PRIVATE) {
        if (kind == ANONYMOUS || kind == SEALED || kind == NAMED)
            continue;
        for (enum change change = NO_CHANGE; change < CHANGES; change++) {
            changed(change, IBV_WR_RDMA_WRITE);
            changed(change, IBV_WR_RDMA_READ);
        }
    }
}

static void owner_with_window(int fd)
{
    struct side s;
    struct region r;
    struct ibv_mw *mw;
    struct ibv_mw_bind bind = {.wr_id = 3, .send_flags = IBV_SEND_SIGNALED};
    struct address there;

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS | IBV_ACCESS_MW_BIND);
    join_over(fd, &s);
    mw = NEED(ibv_alloc_mw(s.pd, IBV_MW_TYPE_1));
    bind.bind_info =
        (struct ibv_mw_bind_info){.mr = r.mr, .addr = (uintptr_t)r.at + 4096, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    ZERO(ibv_bind_mw(s.qp, mw, &bind));
    NEXT(s.cq, 3, IBV_WC_SUCCESS);
    there = (struct address){.addr = (uintptr_t)r.at + 4096, .rkey = mw->rkey};
    tell(fd, &there, sizeof(there));
    together(fd);
    EXPECT(r.at[4096 + 63] == 'w' && r.at[4096 + 64] == 0 && r.at[4095] == 0);
    ZERO(ibv_dealloc_mw(mw));
    together(fd);
    together(fd);
    EXPECT(r.at[4096] == 'w');
    unlink_named();
}

TEST(a_window_over_such_memory_gives_its_range_until_it_goes)
{
    EACH_KIND(PRIVATE) {
        struct side s;
        struct address there;
        int fd;
        pid_t pid;

        /* A window cannot lie over a zero-based region. */
        if (kind == DEVICE)
            continue;
        pid = with_other(owner_with_window, &fd);
        there = join_writer(fd, &s);
        memset(s.buffer, 'w', 128);
        write_until_mapped(&s, &there);
        together(fd);
        together(fd);
        s.buffer[0] = 'x';
        EXPECT_EQ(operate(&s, IBV_WR_RDMA_WRITE, 1, &there, 0), IBV_WC_REM_ACCESS_ERR);
        together(fd);
        ends_well(pid);
        close(fd);
    }
}

static void owner_that_forks(int fd)
{
    struct side s;
    struct region r;
    unsigned char bytes[8];
    pid_t pid;

    make_side(&s, open_device(), IBV_QPT_RC, SIZE);
    make_region(&s, &r, ALL_ACCESS);
    join_owner(fd, &s, &r);
    together(fd);
    /* The child looks after its own affairs, and lets go what it has inherited. */
    pid = child();
    if (pid == 0) {
        ZERO(ibv_dereg_mr(r.mr));
        if (kind == DEVICE)
            ZERO(ibv_free_dm(r.dm));
        else if (kind == BUFFER)
            ibv_free_buf(r.buf);
        exit(0);
    }
    ends_well(pid);
    together(fd);
    together(fd);
    look(&r, bytes, 8);
    EXPECT(!memcmp(bytes, "afterfor", 8), "%s memory", kind_names[kind]);
    ZERO(ibv_dereg_mr(r.mr));
    drop_memory(&r);
}

TEST(a_forked_child_takes_nothing_away)
{
    EACH_KIND(PRIVATE) {
        struct side s;
        struct address there;
        int fd;
        pid_t pid = with_other(owner_that_forks, &fd);

        there = join_writer(fd, &s);
        write_until_mapped(&s, &there);
        together(fd);
        together(fd);
        memcpy(s.buffer, "afterfork", 8);
        EXPECT_EQ(operate(&s, IBV_WR_RDMA_WRITE, 8, &there, 0), IBV_WC_SUCCESS);
        together(fd);
        ends_well(pid);
        close(fd);
    }
}
