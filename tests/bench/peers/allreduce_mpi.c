/* The peer of tests/bench/allreduce.c: MPI_Allreduce of float sums, median microseconds per size.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_us(size_t bytes, int rounds)
{
    int n = (int)(bytes / sizeof(float));
    float *in = calloc((size_t)n, sizeof *in), *out = calloc((size_t)n, sizeof *out);
    double *us = calloc((size_t)rounds, sizeof *us);
    for (int i = 0; i < rounds + 20; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double t = MPI_Wtime();
        MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 20)
            us[i - 20] = (MPI_Wtime() - t) * 1e6;
    }
    qsort(us, (size_t)rounds, sizeof *us, by_value);
    double m = us[rounds / 2];
    free(in);
    free(out);
    free(us);
    return m;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double a = median_us(4096, 2001), b = median_us(409600, 501), c = median_us(4194304, 101);
    if (rank == 0)
        printf("{\"4096\":%.2f,\"409600\":%.2f,\"4194304\":%.2f}\n", a, b, c);
    MPI_Finalize();
    return 0;
}
