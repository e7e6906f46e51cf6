/* Two ranks: blocking and non-blocking messages of all sizes both ways, one-sided accesses, and sums over both; every byte is checked. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST (4u << 20)

static int rank, wrong;

static void expect(int right, const char *what, unsigned size)
{
    if (!right) {
        printf("rank %d: %s of %u bytes is wrong\n", rank, what, size);
        wrong++;
    }
}

static void fill(uint8_t *p, unsigned size, unsigned seed)
{
    for (unsigned i = 0; i < size; i++)
        p[i] = (uint8_t)(i * 31 + i / 251 + seed);
}

static int filled(const uint8_t *p, unsigned size, unsigned seed)
{
    for (unsigned i = 0; i < size; i++)
        if (p[i] != (uint8_t)(i * 31 + i / 251 + seed))
            return 0;
    return 1;
}

static void messages(uint8_t *out, uint8_t *in)
{
    int other = 1 - rank;

    for (unsigned size = 0; size <= LARGEST; size = size ? size * 3 : 1) {
        fill(out, size, size + (unsigned)rank);
        memset(in, 0, size);
        if (rank == 0) {
            MPI_Send(out, (int)size, MPI_BYTE, other, 7, MPI_COMM_WORLD);
            MPI_Recv(in, (int)size, MPI_BYTE, other, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, (int)size, MPI_BYTE, other, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, (int)size, MPI_BYTE, other, 7, MPI_COMM_WORLD);
        }
        expect(filled(in, size, size + (unsigned)other), "a message", size);

        MPI_Request both[2];
        memset(in, 0, size);
        MPI_Irecv(in, (int)size, MPI_BYTE, other, 8, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(out, (int)size, MPI_BYTE, other, 8, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
        expect(filled(in, size, size + (unsigned)other), "an exchange", size);
    }
}

static void sums(void)
{
    for (int count = 1; count <= 1 << 18; count *= 8) {
        int64_t *mine = malloc((size_t)count * sizeof *mine), *sum = calloc((size_t)count, sizeof *sum);
        int right = 1;

        for (int i = 0; i < count; i++)
            mine[i] = (int64_t)i * (rank + 1);
        MPI_Allreduce(mine, sum, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            right &= sum[i] == (int64_t)i * 3;
        expect(right, "a sum", (unsigned)count * 8);
        free(mine);
        free(sum);
    }
}

static void windows(uint8_t *out, uint8_t *in)
{
    int64_t counter = 0, before;
    int64_t one = 1;
    MPI_Win memory, count;

    MPI_Win_create(in, 65536, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory);
    MPI_Win_create(&counter, sizeof counter, sizeof counter, MPI_INFO_NULL, MPI_COMM_WORLD, &count);
    fill(out, 65536, (unsigned)rank + 40);
    MPI_Win_fence(0, memory);
    MPI_Put(out, 65536, MPI_BYTE, 1 - rank, 0, 65536, MPI_BYTE, memory);
    MPI_Win_fence(0, memory);
    expect(filled(in, 65536, (unsigned)(1 - rank) + 40), "a put", 65536);
    MPI_Win_lock_all(0, count);
    for (int i = 0; i < 100; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, count);
        MPI_Win_flush(0, count);
    }
    MPI_Win_unlock_all(count);
    MPI_Barrier(MPI_COMM_WORLD);
    expect(rank != 0 || counter == 200, "a counter", 8);
    MPI_Win_free(&count);
    MPI_Win_free(&memory);
}

int main(int argc, char **argv)
{
    uint8_t *out = malloc(LARGEST), *in = malloc(LARGEST);
    int ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        MPI_Abort(MPI_COMM_WORLD, 2);
    messages(out, in);
    sums();
    if (argc > 1 && !strcmp(argv[1], "windows"))
        windows(out, in);
    printf("rank %d: %s\n", rank, wrong ? "wrong" : "all right");
    MPI_Finalize();
    free(out);
    free(in);
    return wrong != 0;
}
