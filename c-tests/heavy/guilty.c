/*
 * guilty after | leak | race: what a checker must find: a look at an object after its end, an object that is forgotten, or
 * a number that two threads count up.
 */
#include "../common.h"

static void *count_up(void *number)
{
    ++*(volatile int *)number;
    return NULL;
}

static void race(void)
{
    static int number;
    pthread_t other;

    ZERO(pthread_create(&other, NULL, count_up, &number));
    count_up(&number);
    ZERO(pthread_join(other, NULL));
}

int main(int argc, char **argv)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = NEED(ibv_alloc_pd(context));
    volatile uint32_t *handle = &pd->handle;

    if (argc > 1 && !strcmp(argv[1], "race")) {
        race();
    } else if (argc > 1 && !strcmp(argv[1], "leak")) {
        pd = NULL;
        handle = NULL;
    } else {
        ZERO(ibv_dealloc_pd(pd));
        printf("%u\n", *handle);
    }
    return 0;
}
