/* Loads every file that is named, all symbols bound at once, and says which does not load. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int failed = 0;

	for (int i = 1; i < argc; i++)
		if (!dlopen(argv[i], RTLD_NOW | RTLD_LOCAL)) {
			fprintf(stderr, "%s\n", dlerror());
			failed = 1;
		}
	return failed;
}
