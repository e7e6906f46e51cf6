/* pin N PROGRAM ARGUMENTS: runs a program on the N-th core that it may use. */
#include "bench.h"

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	pin(atoi(argv[1]));
	execvp(argv[2], argv + 2);
	die(argv[2], __LINE__);
}
