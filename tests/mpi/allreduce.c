/* Adds up rank + 1 over all ranks. With a word as argument it goes on for ever; unless rank 1 is told to "abort", to
   "exit" or to "crash". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int add_up(int mine) {
    int total;
    MPI_Allreduce(&mine, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return total;
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("rank %d of %d: %d\n", rank, size, add_up(rank + 1));
    fflush(stdout);
    if (argc > 1 && rank == 1) {
        if (!strcmp(argv[1], "abort")) MPI_Abort(MPI_COMM_WORLD, 3);
        if (!strcmp(argv[1], "exit")) exit(4);
        if (!strcmp(argv[1], "crash")) *(volatile int *)0 = 0;
    }
    for (int step = 1; argc > 1; step++) {
        add_up(step);
        if (step == 3) { printf("ready\n"); fflush(stdout); }
        usleep(1000);
    }
    MPI_Finalize();
    return 0;
}
