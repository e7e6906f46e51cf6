/* trace server|client HOST PORT FILE|-: ten SENDs before, during and after a trace of this process at run time; `-`: none. */
#include "pair.h"
#include <anyverbs.h>

enum { COUNT = 10, SIZE = 100 };

static void ten(struct pair *p)
{
	for (int i = 0; i < COUNT; i++) {
		if (p->server)
			post_recv(p, i * SIZE, SIZE, i);
	}
	tcp_sync(p);
	for (int i = 0; i < COUNT; i++) {
		if (!p->server)
			CHECK(!post_op(p, IBV_WR_SEND, i * SIZE, SIZE, 0, i));
		good_wc(p);
	}
	/* What acknowledges them has come, too. */
	tcp_sync(p);
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	int traces = strcmp(argv[4], "-") != 0;
	struct pair p = {0};
	alarm(60);
	pair_create(&p, COUNT * SIZE, 2 * COUNT);
	pair_connect(&p, !strcmp(argv[1], "server"), argv[2], atoi(argv[3]));
	ten(&p);
	CHECK(anyverbs_start_trace(NULL) == EINVAL && errno == EINVAL);
	CHECK(anyverbs_start_trace(argv[0]) == EEXIST);
	CHECK(anyverbs_start_trace("/nowhere/at/all") == ENOENT);
	anyverbs_stop_trace();
	if (traces)
		CHECK(!anyverbs_start_trace(argv[4]));
	ten(&p);
	if (traces)
		anyverbs_stop_trace();
	ten(&p);
	pair_destroy(&p);
	printf("ok\n");
	return 0;
}
