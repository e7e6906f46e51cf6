/* What the trials of counters share: looking at them, telling the other end, and saying what is wrong. */
#ifndef COUNTING_H
#define COUNTING_H

#include "pair.h"
#include <anyverbs.h>

#define ROOM 256
#define MTU 1024

static struct anyverbs_counter mine[ROOM], theirs[ROOM];
static size_t n_mine, n_theirs;

static inline uint64_t value(const struct anyverbs_counter *all, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(all[i].name, name))
			return all[i].value;
	fprintf(stderr, "no counter %s\n", name);
	exit(1);
}

static inline uint64_t my(const char *name) { return value(mine, n_mine, name); }
static inline uint64_t their(const char *name) { return value(theirs, n_theirs, name); }

static inline void look(struct ibv_qp *qp, struct anyverbs_counter *all, size_t *n)
{
	*n = ROOM;
	CHECK(!anyverbs_query_qp_counters(qp, all, n) && *n > 40 && *n < ROOM);
}

static int wrong;

static inline void is(const char *what, uint64_t got, uint64_t expected)
{
	if (got != expected) {
		fprintf(stderr, "%s: %llu, expected %llu\n", what, (unsigned long long)got, (unsigned long long)expected);
		wrong = 1;
	}
}

static inline void at_least(const char *what, uint64_t got, uint64_t expected)
{
	if (got < expected)
		is(what, got, expected);
}

/* The server's counters go to the client, which compares. */
static inline void tell(struct pair *p)
{
	uint64_t values[ROOM];
	for (size_t i = 0; i < n_mine; i++)
		values[i] = mine[i].value;
	tcp_all(p->tcp, values, n_mine * sizeof *values, p->server);
	if (p->server)
		return;
	memcpy(theirs, mine, sizeof mine);
	for (size_t i = 0; i < n_mine; i++)
		theirs[i].value = values[i];
	n_theirs = n_mine;
}

#endif
