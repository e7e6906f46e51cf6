/* leave server|client HOST PORT: a talk, of which the server ends by exit(3) as soon as it has the last message, without a word to
 * its objects. The client's completion of that message must be a success: it was taken. */
#include "pair.h"

enum { SIZE = 64, TALK = 3000 };

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	int server = !strcmp(argv[1], "server");
	struct pair p = {0};
	alarm(30);
	pair_create(&p, 2 * SIZE, 8);
	for (int i = 0; i < 4; i++)
		post_recv(&p, SIZE, SIZE, 0);
	pair_connect(&p, server, argv[2], atoi(argv[3]));
	for (int i = 0; server; i++) {
		while (!(good_wc(&p).opcode & IBV_WC_RECV))
			;
		if (i == TALK - 1)
			exit(0);
		post_recv(&p, SIZE, SIZE, 0);
		CHECK(!post_op(&p, IBV_WR_SEND, 0, SIZE, 0, 1));
	}
	for (int i = 0; i < TALK; i++) {
		CHECK(!post_op(&p, IBV_WR_SEND, 0, SIZE, 0, 1));
		for (int left = i < TALK - 1 ? 2 : 1; left; left--)
			if (good_wc(&p).opcode & IBV_WC_RECV)
				post_recv(&p, SIZE, SIZE, 0);
	}
	return 0;
}
