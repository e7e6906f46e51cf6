/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What anyverbs offers beyond verbs: to programs that link with libibverbs.so.1 of anyverbs, or look the names up with
 * dlsym(3). Calls that return int give 0 or a positive errno value, which errno has as well: EINVAL for an argument that
 * is NULL or wrong, EOPNOTSUPP for objects of devices that are not anyverbs' own, EIO in a forked child for objects of
 * its parent. With ANYVERBS_EXPLAIN=1 a refused call says why in one line.
 *
 * Made by cbindgen: ANYVERBS_UPDATE_HEADER=1 cargo test --test extension.
 */

#ifndef ANYVERBS_H
#define ANYVERBS_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

/**
 * How the messages of a queue pair reach its peer.
 */
enum anyverbs_path {
    /**
     * Not connected, or a UD queue pair, whose address handles tell.
     */
    ANYVERBS_PATH_NONE = 0,
    /**
     * The peer is in this process.
     */
    ANYVERBS_PATH_LOCAL = 1,
    /**
     * The peer is another process of this host: memory rings, and cross-memory attach for RDMA READ and WRITE.
     */
    ANYVERBS_PATH_SHM = 2,
    /**
     * The peer is on another host: RoCE v2 on UDP.
     */
    ANYVERBS_PATH_UDP = 3,
};

/**
 * What faults on request have done so far. On the wire these are packets, in memory messages. Later versions may add
 * counts at the end: callers tell the size that they know.
 */
struct anyverbs_fault_counts {
    /**
     * Lost, also where a lossy path had no room for what was held back.
     */
    uint64_t lost;
    /**
     * Sent twice.
     */
    uint64_t duplicated;
    /**
     * Sent behind those after them.
     */
    uint64_t reordered;
    /**
     * Sent damaged; in memory, lost as what is damaged is.
     */
    uint64_t corrupted;
    /**
     * Sent later.
     */
    uint64_t delayed;
    /**
     * RNR answers to requests for which a receive was posted.
     */
    uint64_t rnr;
    /**
     * Queue pairs that failed because of kill_qp_after.
     */
    uint64_t killed;
};

/**
 * A counter of a port or of a queue pair.
 */
struct anyverbs_counter {
    /**
     * Folder and file that it has below the port's folder in sysfs, as "hw_counters/rcvd_rnr_err". It lives as long as
     * the library.
     */
    const char *name;
    /**
     * What it has grown to; it wraps at 2^64. In the unit that sysfs has: data in words of 4 bytes.
     */
    uint64_t value;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of this library, as `MAJOR.MINOR.PATCH`.
 */
const char *anyverbs_version(void);

/**
 * Tells how a queue pair reaches its peer, from the move to RTR on.
 */
int anyverbs_qp_path(struct ibv_qp *qp, enum anyverbs_path *path);

/**
 * Has the messages of all queue pairs of a context go wrong, of those that it has and those that it gets: `faults` is a
 * string as ANYVERBS_FAULTS takes it, for example "loss=1%,delay=200us,seed=7". Chance begins anew with the seed, and
 * kill_qp_after counts from now on. NULL or "" ends all faults.
 *
 * EINVAL: the string is wrong, and the faults stay as they were.
 */
int anyverbs_set_faults(struct ibv_context *context,
                        const char *faults);

/**
 * The same for one queue pair.
 */
int anyverbs_set_qp_faults(struct ibv_qp *qp, const char *faults);

/**
 * Tells what faults have done to the queue pairs of a context so far, to those that are gone as well. `size` is
 * sizeof(struct anyverbs_fault_counts).
 */
int anyverbs_read_faults(struct ibv_context *context,
                         struct anyverbs_fault_counts *counts,
                         size_t size);

/**
 * Tells what faults have done to a queue pair so far.
 */
int anyverbs_read_qp_faults(struct ibv_qp *qp, struct anyverbs_fault_counts *counts, size_t size);

/**
 * Writes from now on what goes over every path to a pcapng file, as ANYVERBS_PCAP does from the beginning: `%p` in the
 * name is the process's number, a pcapng file that is there is continued. A trace that goes on ends.
 *
 * EEXIST: the file is there, and no pcapng file. Else what open(2) and write(2) give; an older trace goes on then.
 */
int anyverbs_start_trace(const char *file);

/**
 * Ends the trace of this process, if there is one; all that it has seen is in its file.
 */
void anyverbs_stop_trace(void);

/**
 * Reads what this process has counted on a port: the sum over its queue pairs, also those that are gone.
 *
 * Give room for `*count` counters; `*count` then tells how many there are, of which as many as had room are filled
 * in. `counters` may be NULL where `*count` is 0. Look for counters by name: later releases have more of them, in any
 * order. `anyverbs stats` and sysfs under `anyverbs run` show the sum over all processes of a user instead.
 */
int anyverbs_query_port_counters(struct ibv_context *context,
                                 uint32_t port_num,
                                 struct anyverbs_counter *counters,
                                 size_t *count);

/**
 * Reads what a queue pair has counted since it was created, as anyverbs_query_port_counters.
 */
int anyverbs_query_qp_counters(struct ibv_qp *qp, struct anyverbs_counter *counters, size_t *count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ANYVERBS_H */
