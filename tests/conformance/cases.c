/* The cases: products of opcodes, transports, ways of posting and conditions, less what makes no sense. */
#include "conform.h"

const char *const transport_names[] = {"rc", "uc", "ud", "xrc"};
const char *const api_names[] = {"post", "wr"};
const char *const op_names[] = {"send",     "send-imm",  "send-inv",     "write", "write-imm", "read",
                                "cmp-swap", "fetch-add", "atomic-write", "flush", "bind-mw",   "local-inv"};
const char *const condition_names[] = {
    [GOOD] = "good",
    [UNSIGNALED] = "unsignaled",
    [ZERO_LENGTH] = "zero-length",
    [ZERO_BAD_RKEY] = "zero-length-bad-rkey",
    [BAD_LKEY] = "bad-lkey",
    [DEAD_LKEY] = "deregistered-lkey",
    [OTHER_PD_LKEY] = "other-pd-lkey",
    [LOCAL_BEFORE] = "local-one-before",
    [LOCAL_AFTER] = "local-one-beyond",
    [LOCAL_READ_ONLY] = "local-without-permission",
    [BAD_RKEY] = "bad-rkey",
    [DEAD_RKEY] = "deregistered-rkey",
    [OTHER_PD_RKEY] = "other-pd-rkey",
    [REMOTE_BEFORE] = "remote-one-before",
    [REMOTE_AFTER] = "remote-one-beyond",
    [REMOTE_FORBIDDEN] = "remote-without-permission",
    [QP_FORBIDDEN] = "qp-without-permission",
    [UNALIGNED] = "unaligned",
    [SHORT_SGE] = "seven-bytes",
    [LONG_SGE] = "nine-bytes",
    [MAX_MESSAGE] = "max-message",
    [OVER_MAX_MESSAGE] = "max-message-and-one",
    [INLINE_MAX] = "inline-max",
    [INLINE_OVER] = "inline-max-and-one",
    [SGE_0] = "sge-0",
    [SGE_1] = "sge-1",
    [SGE_MAX] = "sge-max",
    [SGE_OVER] = "sge-max-and-one",
    [NO_RECEIVE] = "no-receive",
    [RECV_SHORT] = "recv-one-short",
    [RECV_BAD_LKEY] = "recv-bad-lkey",
    [RECV_OTHER_PD] = "recv-other-pd-lkey",
    [RECV_BEFORE] = "recv-one-before",
    [RECV_AFTER] = "recv-one-beyond",
    [RECV_READ_ONLY] = "recv-without-permission",
    [RECV_SGE_0] = "recv-sge-0",
    [RECV_SGE_MAX] = "recv-sge-max",
    [RECV_SGE_OVER] = "recv-sge-max-and-one",
    [BAD_QKEY] = "bad-qkey",
    [OTHER_PD_AH] = "other-pd-ah",
    [ILLEGAL] = "illegal",
};
static const char *const state_words[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err"};
static const char *const queue_names[] = {"send", "recv", "srq"};
static const char *const event_names[] = {
    [COMM_EST] = "comm-est",
    [SQ_DRAINED] = "sq-drained",
    [LAST_WQE] = "last-wqe-reached",
    [SRQ_LIMIT] = "srq-limit-reached",
    [SRQ_LIMIT_ONCE] = "srq-limit-once",
    [CQ_OVERRUN] = "cq-overrun",
    [ARM_ANY] = "arm-any",
    [ARM_ONCE] = "arm-once",
    [ARM_LATE] = "arm-late",
    [NOT_ARMED] = "not-armed",
    [ARM_SOLICITED_PLAIN] = "arm-solicited-plain-send",
    [ARM_SOLICITED] = "arm-solicited-solicited-send",
    [ARM_SOLICITED_IMM] = "arm-solicited-solicited-write-imm",
    [ARM_SOLICITED_ERROR] = "arm-solicited-error",
    [ARM_SEND] = "arm-any-send-completion",
};

/* The table of ibv_post_send(3); FLUSH and ATOMIC_WRITE: IBA 1.6 has them for RC (and RD). */
int legal(enum op op, enum transport t)
{
    switch (op) {
    case SEND:
    case SEND_IMM:
        return 1;
    case SEND_INV:
    case WRITE:
    case WRITE_IMM:
    case BIND_MW:
    case LOCAL_INV:
        return t != UD;
    case READ:
    case CMP_SWAP:
    case FETCH_ADD:
        return t == RC || t == XRC;
    default:
        return t == RC;
    }
}

int one_sided(enum op op)
{
    return op >= WRITE && op <= FLUSH;
}

int takes_receive(enum op op)
{
    return op == SEND || op == SEND_IMM || op == SEND_INV || op == WRITE_IMM;
}

/* The answer goes to the requester's memory. */
int reads_back(enum op op)
{
    return op == READ || op == CMP_SWAP || op == FETCH_ADD;
}

int is_8_bytes(enum op op)
{
    return op == CMP_SWAP || op == FETCH_ADD || op == ATOMIC_WRITE;
}

/* Does the condition mean anything for the opcode? */
static int applies(enum op op, enum api api, enum condition c)
{
    int sends = op <= SEND_INV, gathers = op <= FETCH_ADD || (op == ATOMIC_WRITE && api == POST);
    int stream = op <= READ;

    switch (c) {
    case GOOD:
    case ILLEGAL:
        return 1;
    case UNSIGNALED:
        return 1;
    case ZERO_LENGTH:
        return stream || op == BIND_MW;
    case ZERO_BAD_RKEY:
        return stream && one_sided(op);
    case OTHER_PD_LKEY:
    case LOCAL_BEFORE:
    case LOCAL_AFTER:
    case LOCAL_READ_ONLY:
        return gathers || op == BIND_MW;
    case BAD_LKEY:
    case DEAD_LKEY:
        return gathers;
    case BAD_RKEY:
        return one_sided(op) || op == SEND_INV || op == LOCAL_INV;
    case DEAD_RKEY:
    case OTHER_PD_RKEY:
    case REMOTE_BEFORE:
    case REMOTE_AFTER:
    case REMOTE_FORBIDDEN:
        return one_sided(op);
    case QP_FORBIDDEN:
        return one_sided(op);
    case UNALIGNED:
        return is_8_bytes(op);
    case SHORT_SGE:
    case LONG_SGE:
        return op == CMP_SWAP || op == FETCH_ADD;
    case MAX_MESSAGE:
    case OVER_MAX_MESSAGE:
        return stream && op != SEND_INV;
    case SGE_MAX:
        return stream;
    case SGE_0:
    case SGE_1:
        return gathers && op != ATOMIC_WRITE;
    case SGE_OVER:
        return gathers;
    case INLINE_MAX:
    case INLINE_OVER:
        return op <= WRITE_IMM;
    case NO_RECEIVE:
        return takes_receive(op);
    case BAD_QKEY:
    case OTHER_PD_AH:
        return op <= SEND_IMM;
    default:
        return sends || (op == WRITE_IMM && c == RECV_BAD_LKEY);
    }
}

/* Cases of ibv_wr_* that a transport lacks cannot be posted: the QP that would allow them is not made. */
static int exists(enum op op, enum transport t, enum api api, enum condition c)
{
    int possible = legal(op, t) && !(op == FLUSH && api == POST);

    if (!applies(op, api, c) || possible != (c != ILLEGAL))
        return 0;
    /* These are a datagram's. */
    if ((c == BAD_QKEY || c == OTHER_PD_AH) && t != UD)
        return 0;
    /* The header of a datagram needs its place. */
    if (c == RECV_SGE_0 && t == UD)
        return 0;
    /* An XRC receive QP sends nothing, so it cannot bind a window that a peer could invalidate. */
    if (op == SEND_INV && t == XRC && c != BAD_RKEY)
        return 0;
    /* Nothing says whether XRC has these two. */
    if ((op == FLUSH || op == ATOMIC_WRITE) && t == XRC)
        return 0;
    /* 2 GiB each: once a transport and opcode; the way of posting makes no difference to the device. */
    if (c == MAX_MESSAGE && api == WR && t != UD)
        return 0;
    return 1;
}

static struct kase *add(struct kase **list, size_t *count, size_t *room)
{
    if (*count == *room) {
        *room = *room ? *room * 2 : 512;
        *list = NEED(realloc(*list, *room * sizeof(**list)));
    }
    memset(&(*list)[*count], 0, sizeof(**list));
    return &(*list)[(*count)++];
}

struct kase *all_cases(size_t *count)
{
    struct kase *list = NULL;
    size_t room = 0;

    *count = 0;
    for (int t = 0; t < TRANSPORTS; t++)
        for (int op = 0; op < OPS; op++)
            for (int api = 0; api < APIS; api++)
                for (int c = 0; c < CONDITIONS; c++) {
                    struct kase *k;

                    if (!exists(op, t, api, c))
                        continue;
                    k = add(&list, count, &room);
                    *k = (struct kase){.kind = OPERATION, .transport = t, .op = op, .api = api, .condition = c};
                    snprintf(k->name, sizeof(k->name), "%s/%s/%s/%s", transport_names[t], op_names[op], api_names[api],
                             condition_names[c]);
                }
    for (int t = 0; t < TRANSPORTS; t++)
        for (int state = IBV_QPS_RESET; state <= IBV_QPS_ERR; state++)
            for (int queue = 0; queue < QUEUES; queue++)
                for (int api = 0; api < APIS; api++) {
                    struct kase *k;

                    /* Send errors leave RC and XRC QPs in ERR; receives have one API; XRC has no receive queue. */
                    if (state == IBV_QPS_SQE && (t == RC || t == XRC))
                        continue;
                    if (queue != SEND_QUEUE && api == WR)
                        continue;
                    if (queue == RECEIVE_QUEUE && t == XRC)
                        continue;
                    /* UC has no SRQ. XRC: the receiving QP has only four of the states. */
                    if (queue == SHARED_QUEUE && (t == UC || (t == XRC && state > IBV_QPS_RTS && state != IBV_QPS_ERR)))
                        continue;
                    k = add(&list, count, &room);
                    *k = (struct kase){
                        .kind = STATE, .transport = t, .state = (enum ibv_qp_state)state, .queue = queue, .api = api};
                    snprintf(k->name, sizeof(k->name), "state/%s/%s/%s/%s", transport_names[t], state_words[state],
                             queue_names[queue], api_names[api]);
                }
    for (int t = 0; t < TRANSPORTS; t++)
        for (int event = 0; event < EVENTS_KINDS; event++) {
            struct kase *k;

            if (event == COMM_EST && t == UD)
                continue;
            if (event == SQ_DRAINED && t == XRC)
                continue;
            if ((event == LAST_WQE || event == SRQ_LIMIT || event == SRQ_LIMIT_ONCE) && (t == UC || t == UD))
                continue;
            if (event == LAST_WQE && t == XRC)
                continue;
            if (event == ARM_SOLICITED_IMM && t == UD)
                continue;
            if (event == ARM_SOLICITED_ERROR && t == XRC)
                continue;
            k = add(&list, count, &room);
            *k = (struct kase){.kind = EVENT, .transport = t, .event = event, .op = event == ARM_SOLICITED_IMM ? WRITE_IMM : SEND};
            snprintf(k->name, sizeof(k->name), "event/%s/%s", transport_names[t], event_names[event]);
        }
    return list;
}

const char *unable(const struct kase *k, const struct ibv_device_attr *a, const struct ibv_device_attr *b)
{
    unsigned both = a->device_cap_flags & b->device_cap_flags;
    int illegal = k->kind == OPERATION && k->condition == ILLEGAL;

    if (k->transport == XRC && !(both & IBV_DEVICE_XRC))
        return "the device has no XRC";
    if (k->kind != OPERATION || illegal)
        return NULL;
    if ((k->op == CMP_SWAP || k->op == FETCH_ADD) && (!a->atomic_cap || !b->atomic_cap))
        return "the device has no atomics";
    if ((k->op == BIND_MW || k->op == LOCAL_INV || k->op == SEND_INV) && !(both & IBV_DEVICE_MEM_WINDOW_TYPE_2B))
        return "the device has no memory windows of type 2B";
    return NULL;
}
