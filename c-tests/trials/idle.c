/* idle server|client HOST PORT: an open device with a connected QP and a posted receive; one message each way, then nothing
 * for as long as it lives. Prints `idle` when it begins to do nothing. */
#include "pair.h"

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int server = !strcmp(argv[1], "server");
	struct pair p = {0};
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(120);
	pair_create(&p, 8192, 8);
	post_recv(&p, 0, 64, 1);
	post_recv(&p, 64, 64, 2);
	pair_connect(&p, server, argv[2], atoi(argv[3]));
	CHECK(!post_op(&p, IBV_WR_SEND, 4096, 64, 0, 10));
	good_wc(&p);
	good_wc(&p);
	tcp_sync(&p);
	printf("idle\n");
	pause();
	return 1;
}
