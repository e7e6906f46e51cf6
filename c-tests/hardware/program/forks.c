/* Fork protection on a kernel that does not copy pinned pages: which pages of registered memory a child would not get.
 * `late`: memory is registered before anybody asks; `asked`: only the environment asks. */
#include <infiniband/verbs.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGES 8

/* For providers, in no header that is installed. */
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

static char *memory;
static size_t page;

/* A letter for each page: `x` where children do not get it. */
static void show(const char *when)
{
	char line[512], marks[PAGES + 1] = "????????";
	uintptr_t from = 0, to = 0;
	FILE *f = fopen("/proc/self/smaps", "r");

	while (f && fgets(line, sizeof(line), f)) {
		uintptr_t a, b;

		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &a, &b) == 2) {
			from = a;
			to = b;
		} else if (!strncmp(line, "VmFlags:", 8)) {
			for (int i = 0; i < PAGES; i++) {
				uintptr_t at = (uintptr_t)memory + (uintptr_t)i * page;

				if (from <= at && at < to)
					marks[i] = strstr(line, " dc") ? 'x' : '.';
			}
		}
	}
	if (f)
		fclose(f);
	printf("%s: %s\n", when, marks);
}

static struct ibv_mr *reg(struct ibv_pd *pd, size_t from, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory + from, length, IBV_ACCESS_LOCAL_WRITE);

	if (!mr)
		exit(3);
	return mr;
}

int main(int argc, char **argv)
{
	int late = argc > 1 && !strcmp(argv[1], "late"), asked = argc > 1 && !strcmp(argv[1], "asked");
	struct ibv_device **list;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *a, *b;

	page = (size_t)sysconf(_SC_PAGESIZE);
	memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	printf("at first: %d\n", ibv_is_fork_initialized());
	if (!late && !asked)
		printf("init: %d\n", ibv_fork_init());
	list = ibv_get_device_list(NULL);
	printf("with a list: %d\n", ibv_is_fork_initialized());
	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd)
		return 2;
	show("before");
	a = reg(pd, page + 100, 2 * page);
	show("three pages touched");
	b = reg(pd, 3 * page, 3 * page);
	show("three more, one of them again");
	printf("init again: %d\n", ibv_fork_init());
	printf("by hand: %d", ibv_dontfork_range(memory, 1));
	show("");
	printf("dereg: %d", ibv_dereg_mr(a));
	show("");
	printf("dereg: %d", ibv_dereg_mr(b));
	show("");
	printf("by hand: %d", ibv_dofork_range(memory, 1));
	show("");
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(list);
	return 0;
}
