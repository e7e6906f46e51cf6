/*
 * A conformance suite for any verbs device. It knows the public C interface only, so it runs on every libibverbs since
 * rdma-core 44. Each case has two ends: the active one posts what is tested, the passive one is its peer. Both tell
 * what they saw in a few words (the aspects), and the active end compares that with what the InfiniBand Architecture
 * specification and the man pages promise (expect.c).
 */
#ifndef CONFORM_H
#define CONFORM_H

#include "../../c-tests/common.h"

enum transport { RC, UC, UD, XRC, TRANSPORTS };
enum api { POST, WR, APIS };
enum op {
    SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, CMP_SWAP, FETCH_ADD, ATOMIC_WRITE, FLUSH, BIND_MW, LOCAL_INV, OPS
};

/* What is right or wrong with the request that is tested. */
enum condition {
    GOOD,
    UNSIGNALED,
    ZERO_LENGTH,
    ZERO_BAD_RKEY,
    /* The requester's memory. */
    BAD_LKEY,
    DEAD_LKEY,
    OTHER_PD_LKEY,
    LOCAL_BEFORE,
    LOCAL_AFTER,
    LOCAL_READ_ONLY,
    /* The responder's memory. */
    BAD_RKEY,
    DEAD_RKEY,
    OTHER_PD_RKEY,
    REMOTE_BEFORE,
    REMOTE_AFTER,
    REMOTE_FORBIDDEN,
    QP_FORBIDDEN,
    UNALIGNED,
    /* Lengths and lists. */
    SHORT_SGE,
    LONG_SGE,
    MAX_MESSAGE,
    OVER_MAX_MESSAGE,
    INLINE_MAX,
    INLINE_OVER,
    SGE_0,
    SGE_1,
    SGE_MAX,
    SGE_OVER,
    /* The responder's receive request. */
    NO_RECEIVE,
    RECV_SHORT,
    RECV_BAD_LKEY,
    RECV_OTHER_PD,
    RECV_BEFORE,
    RECV_AFTER,
    RECV_READ_ONLY,
    RECV_SGE_0,
    RECV_SGE_MAX,
    RECV_SGE_OVER,
    /* A datagram with another Q_Key than the receiver's. */
    BAD_QKEY,
    /* Its address handle belongs to another PD. */
    OTHER_PD_AH,
    /* The transport does not have this opcode. */
    ILLEGAL,
    CONDITIONS
};

enum kind { OPERATION, STATE, EVENT };

/* Which queue a case of kind STATE posts to. */
enum queue { SEND_QUEUE, RECEIVE_QUEUE, SHARED_QUEUE, QUEUES };

enum event {
    COMM_EST,
    SQ_DRAINED,
    LAST_WQE,
    SRQ_LIMIT,
    SRQ_LIMIT_ONCE,
    CQ_OVERRUN,
    ARM_ANY,
    ARM_ONCE,
    ARM_LATE,
    NOT_ARMED,
    ARM_SOLICITED_PLAIN,
    ARM_SOLICITED,
    ARM_SOLICITED_IMM,
    ARM_SOLICITED_ERROR,
    ARM_SEND,
    EVENTS_KINDS
};

struct kase {
    char name[64];
    enum kind kind;
    enum transport transport;
    enum api api;
    enum op op;
    enum condition condition;
    enum ibv_qp_state state;
    enum queue queue;
    enum event event;
};

/* What an end tells about a case. */
enum aspect {
    /* What posting returned: 0 or the name of an errno. */
    A_POST,
    /* Completions of the send queue and of the receive queue, in order. */
    A_SEND,
    A_RECV,
    /* State of the QP afterwards. */
    A_STATE,
    /* Asynchronous events of this QP, CQ or SRQ. */
    A_EVENTS,
    /* untouched, done, inside (only bytes that the request may touch have changed), or wrong@OFFSET. */
    A_MEMORY,
    /* A second look: what the bound window, the armed channel or the next message did. */
    A_THEN,
    /* clean, or completions beyond those that are due when the QP is flushed. */
    A_REST,
    ASPECTS
};
#define ASPECT_SIZE 160

/* One end's words; empty where the aspect says nothing. */
struct report {
    char text[ASPECTS][ASPECT_SIZE];
};

enum { ACTIVE, PASSIVE, ENDS };

/* Results that are right for a case; most cases have one. */
#define ANSWERS 4
struct expected {
    int count;
    struct report answer[ANSWERS][ENDS];
};

/* The buffer of an end: guard bytes, the region, guard bytes. The region begins and ends at odd addresses, so that an
   aligned access of 8 bytes can reach one byte beyond it. */
#define GUARD 16384u
#define BUFFER 65536u
#define REGION_START (GUARD + 1u)
#define REGION_END (BUFFER - GUARD - 1u)
/* Where in the buffer things are. */
#define AT_DATA (GUARD + 512u)
#define AT_MARKER (GUARD + 24576u)
#define AT_WINDOW (GUARD + 25600u)
#define MARKER_LENGTH 16u
#define GRH 40u

/* Numbers of work requests; wr_id carries them under a tag, so that all 64 bits are checked. */
#define TAG UINT64_C(0xc0de5eed00000000)
enum { SUBJECT = 1, MARKER = 2, LAST = 3, PREPARE = 4, RECV_SUBJECT = 101, RECV_MARKER = 102, RECV_LAST = 103 };

#define IMMEDIATE 0x01020304u
#define CONFORM_QKEY 0x22222222u

/* What an end tells the other one about a case. */
struct hello {
    uint32_t qpn, psn, srqn;
    uint32_t max_send_sge, max_recv_sge, max_inline;
    uint32_t rkey, other_pd, dead, forbidden, alias, window;
    uint64_t addr, alias_addr;
    union ibv_gid gid;
    /* Not 0: an errno of setting up; `what` names the call. */
    int32_t refused;
    char what[32];
};

/* One end. The first part lives as long as the run. */
struct end {
    int role, control;
    struct ibv_context *context;
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct ibv_pd *pd, *other_pd;
    struct ibv_mr *mr, *other, *forbidden, *read_only, *alias_mr, *bindable;
    uint32_t dead_lkey, dead_rkey;
    unsigned char *buffer, *alias;
    uint64_t alias_size;
    uint32_t max_message, datagram;
    unsigned seed;
    int wait_ms;
    struct ibv_xrcd *xrcd;

    /* The case. */
    const struct kase *kase;
    struct ibv_comp_channel *channel;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_qp *qp;
    struct ibv_srq *srq;
    struct ibv_ah *ah, *other_ah;
    struct ibv_mw *mw;
    struct ibv_qp_cap cap;
    struct hello me, peer;
    /* Receives that are posted and not complete, and where each one's data goes. */
    unsigned pending[16], pendings;
    unsigned marker_received;
    uint32_t depth;
    /* Something was not as expected: what else is expected may never come, and is not waited for as long. */
    int hurried;
    struct report report;
};

/* cases.c */
extern const char *const transport_names[], *const api_names[], *const op_names[], *const condition_names[];
int legal(enum op op, enum transport transport);
int one_sided(enum op op);
int takes_receive(enum op op);
int reads_back(enum op op);
int is_8_bytes(enum op op);
/* All cases in their order; the caller frees them. */
struct kase *all_cases(size_t *count);
/* Why these two devices cannot run the case; NULL: they can. */
const char *unable(const struct kase *k, const struct ibv_device_attr *a, const struct ibv_device_attr *b);

/* expect.c, expect_states.c */
void expect(const struct kase *k, const struct end *e, struct expected *x);
void expect_state(const struct kase *k, struct expected *x);
void expect_event(const struct kase *k, struct expected *x);
struct report *new_answer(struct expected *x);
void say(struct report *r, enum aspect a, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* end.c */
void open_end(struct end *e, int role, int control, unsigned seed, int wait_ms);
void close_end(struct end *e);
/* CQs, QP and SRQ of a case; returns an errno, and names the call that gave it in e->me.what. */
int make_queues(struct end *e, const struct kase *k, int with_srq);
/* Exchanges hellos and makes what needs the peer's address; 0, or the errno that either end had, after which there is no case. */
int greet(struct end *e);
int qp_to(struct end *e, enum ibv_qp_state state);
int attr_to(struct end *e, enum ibv_qp_state state);
int up_to(struct end *e, enum ibv_qp_state state);
void drop_queues(struct end *e);
void map_alias(struct end *e);
int post_receive(struct end *e, unsigned number, const struct ibv_sge *list, int n);
int receive_at(struct end *e, unsigned number, uint32_t offset, uint32_t length);
unsigned own_seed(const struct end *e, int role);
struct ibv_sge place(const struct end *e, uint32_t offset, uint32_t length);

/* main.c */
/* Does the device's list have this in place of what is promised? Then it is not waited for long. */
int is_listed(const struct end *e, enum aspect a, const char *is);

/* collect.c */
const char *status_word(enum ibv_wc_status status);
/* Appends completions to an aspect until it has `count` of them, waiting e->wait_ms at most. */
void collect(struct end *e, struct ibv_cq *cq, enum aspect a, unsigned count);
unsigned words_in(const char *list);
/* Is it one of these, which `|` separates? `*` is anything. */
int is_one_of(const char *alternatives, const char *got);
void collect_events(struct end *e, const char *expected);
/* Waits for what one of the answers says of completions and events, as long as it can still come; then asks for the state. */
void observe(struct end *e, const struct expected *x);
/* How long to wait for something, in milliseconds. */
uint64_t patience(const struct end *e);
/* Both ends have come here; one that was disappointed makes the other one hurry. */
void meet_again(struct end *e);
/* The QP to ERR, then everything that is still due must be flushed, a last request behind it, and nothing else. */
void flush_rest(struct end *e);

/* post.c */
/* Posts the requests of a case's kind through its API; `flags` beside IBV_SEND_SIGNALED. */
struct request {
    enum op op;
    unsigned number;
    unsigned flags;
    struct ibv_sge list[512];
    int n;
    int is_inline;
    uint64_t remote;
    uint32_t rkey, length;
    uint64_t compare, swap;
    struct ibv_mw *mw;
    struct ibv_mw_bind_info bind;
};
int post(struct end *e, const struct request *r);
int post_marker(struct end *e, unsigned number, unsigned flags);
uint64_t send_ops(enum op op);

/* ops.c, states.c, events.c: one case on one end. */
/* What is expected may depend on what both ends told: it is filled in on the way. */
void run_operation(struct end *e, struct expected *x);
void run_state(struct end *e, struct expected *x);
void run_event(struct end *e, struct expected *x);

#endif
