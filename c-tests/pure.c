/*
 * Prints what a libibverbs (the first argument) answers where no device is asked: texts, rates, and structures copied
 * from and to the kernel's. Two libraries that agree print the same lines.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *lib;

static void texts(const char *name, int last)
{
	const char *(*f)(int) = dlsym(lib, name);

	for (int i = -1; f && i <= last; i++)
		printf("%s(%d) = %s\n", name, i, f(i));
}

static void numbers(const char *name, const int *values, int count)
{
	int (*f)(int) = dlsym(lib, name);

	for (int i = 0; f && i < count; i++)
		printf("%s(%d) = %d\n", name, values[i], f(values[i]));
}

/* Every byte of the source differs, and the target is filled, so each byte of the result says where it came from. */
static void copy(const char *name)
{
	void (*f)(void *, const void *) = dlsym(lib, name);
	uint8_t from[256] __attribute__((aligned(16))), to[256] __attribute__((aligned(16)));

	for (int i = 0; i < 256; i++)
		from[i] = i + 1;
	memset(to, 0xee, sizeof(to));
	f(to, from);
	printf("%s =", name);
	for (int i = 0; i < 160; i++)
		printf(" %02x", to[i]);
	printf("\n");
}

int main(int argc, char **argv)
{
	static const int rates[] = { -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
				     22, 23, 24, 25, 99 };
	static const int mults[] = { -1, 0, 1, 2, 3, 4, 8, 11, 12, 16, 20, 24, 32, 48, 160, 240, 320, 480, 481 };
	static const int mbps[] = { -1, 0, 2500, 5000, 10000, 14062, 20000, 25781, 28125, 30000, 40000, 53125, 56250,
				    60000, 80000, 103125, 112500, 120000, 168750, 206250, 309375, 425000, 637500,
				    850000, 1275000, 1 };

	if (argc < 2 || !(lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))) {
		fprintf(stderr, "%s\n", argc < 2 ? "which library?" : dlerror());
		return 1;
	}
	texts("ibv_node_type_str", 9);
	texts("ibv_port_state_str", 8);
	texts("ibv_event_type_str", 24);
	texts("ibv_wc_status_str", 26);
	texts("ibv_wr_opcode_str", 17);
	numbers("ibv_rate_to_mult", rates, sizeof(rates) / sizeof(*rates));
	numbers("ibv_rate_to_mbps", rates, sizeof(rates) / sizeof(*rates));
	numbers("mult_to_ibv_rate", mults, sizeof(mults) / sizeof(*mults));
	numbers("mbps_to_ibv_rate", mbps, sizeof(mbps) / sizeof(*mbps));
	copy("ibv_copy_ah_attr_from_kern");
	copy("ibv_copy_qp_attr_from_kern");
	copy("ibv_copy_path_rec_from_kern");
	copy("ibv_copy_path_rec_to_kern");
	return 0;
}
