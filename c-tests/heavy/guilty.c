/* guilty after | leak: what a checker must find: a look at an object after its end, or an object that is forgotten. */
#include "../common.h"

int main(int argc, char **argv)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = NEED(ibv_alloc_pd(context));
    volatile uint32_t *handle = &pd->handle;

    if (argc > 1 && !strcmp(argv[1], "leak")) {
        pd = NULL;
        handle = NULL;
    } else {
        ZERO(ibv_dealloc_pd(pd));
        printf("%u\n", *handle);
    }
    return 0;
}
