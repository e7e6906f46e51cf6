/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The verbs API, source- and binary-compatible with rdma-core's <infiniband/verbs.h> (release 65).
 *
 * Types first, in order of use, then the calls. A call is either a function that libibverbs exports or an inline
 * that reaches the device through a table in its context; an application binary contains the latter, so their
 * behaviour is part of the ABI. Unless a line says otherwise a call that returns a pointer gives NULL and sets errno
 * on failure, and a call that returns int gives 0 or a positive errno value.
 */
#ifndef INFINIBAND_VERBS_H
#define INFINIBAND_VERBS_H

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include <infiniband/verbs_api.h>

#ifdef __cplusplus
#include <limits>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#include <infiniband/verbs/device.h>
#include <infiniband/verbs/port.h>
#include <infiniband/verbs/address.h>
#include <infiniband/verbs/memory.h>
#include <infiniband/verbs/completion.h>
#include <infiniband/verbs/srq_wq.h>
#include <infiniband/verbs/qp.h>
#include <infiniband/verbs/work_request.h>
#include <infiniband/verbs/qp_ex.h>
#include <infiniband/verbs/cq.h>
#include <infiniband/verbs/flow.h>
#include <infiniband/verbs/counters.h>
#include <infiniband/verbs/context.h>
#include <infiniband/verbs/device_calls.h>
#include <infiniband/verbs/memory_calls.h>
#include <infiniband/verbs/cq_calls.h>
#include <infiniband/verbs/srq_wq_calls.h>
#include <infiniband/verbs/qp_calls.h>
#include <infiniband/verbs/flow_calls.h>

#ifdef __cplusplus
}
#endif

#endif
