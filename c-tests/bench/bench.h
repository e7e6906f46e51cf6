/* What the programs that measure share: a core of one's own, medians of short chunks, `NAME VALUE` lines. */
#ifndef BENCH_H
#define BENCH_H

#include "../trials/pair.h"
#include <sched.h>

/* What a program does not use may be left. */
__attribute__((unused)) static uint64_t budget_ns = 150000000;

/* To the n-th core that this process may use, or the last. */
static inline void pin(int n)
{
	cpu_set_t all, one;
	CHECK(!sched_getaffinity(0, sizeof all, &all));
	CPU_ZERO(&one);
	int seen = 0, last = 0;
	for (int c = 0; c < CPU_SETSIZE; c++)
		if (CPU_ISSET(c, &all)) {
			last = c;
			if (seen++ == n)
				break;
		}
	CPU_SET(last, &one);
	CHECK(!sched_setaffinity(0, sizeof one, &one));
}

static inline int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

enum { CHUNKS = 100000 };
__attribute__((unused)) static double chunk_ns[CHUNKS];
/* Of the last measurement: the whole time by the rounds, which is what programs report that look at the clock twice. */
__attribute__((unused)) static double whole_ns;

/* Runs `body` in chunks until the budget is used; gives the median chunk's nanoseconds a round. A chunk in which somebody
 * else had the core then counts as one chunk, however long it took. */
#define TIMED(chunk, body)                                                                                                     \
	({                                                                                                                     \
		int chunks_ = 0;                                                                                               \
		uint64_t begin_ = now_ns(), at_ = begin_, then_;                                                               \
		do {                                                                                                           \
			for (int i_ = 0; i_ < (chunk); i_++) {                                                                 \
				body;                                                                                          \
			}                                                                                                      \
			then_ = now_ns();                                                                                      \
			chunk_ns[chunks_++] = (double)(then_ - at_) / (chunk);                                                 \
			at_ = then_;                                                                                           \
		} while (at_ - begin_ < budget_ns && chunks_ < CHUNKS);                                                        \
		whole_ns = (double)(at_ - begin_) / chunks_ / (chunk);                                                         \
		qsort(chunk_ns, chunks_, sizeof *chunk_ns, by_value);                                                          \
		chunk_ns[chunks_ / 2];                                                                                         \
	})

static inline void say(const char *name, double value)
{
	printf("%s %.4f\n", name, value);
}

#endif
