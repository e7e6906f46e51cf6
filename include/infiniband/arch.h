/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* 64-bit byte order conversions for old programs; new ones use <endian.h>. */
#ifndef INFINIBAND_ARCH_H
#define INFINIBAND_ARCH_H

#include <endian.h>
#include <stdint.h>

#ifndef ntohll
#undef htonll

static inline uint64_t htonll(uint64_t x)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(x);
#else
    return x;
#endif
}

static inline uint64_t ntohll(uint64_t x)
{
    return htonll(x);
}

#define htonll htonll
#define ntohll ntohll
#endif

#endif
