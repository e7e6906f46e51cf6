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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ANYVERBS_H */
