/*
 * heat STEPS MILLISECONDS: an explicit heat equation on a ring of MPI ranks. Every step exchanges halos both ways and sums the
 * heat of all ranks; rank 0 prints step and sum, exactly.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CELLS = 1000 };

static void rest(long milliseconds)
{
	struct timespec pause = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};

	nanosleep(&pause, NULL);
}

static void step(double *now, double *next, int left, int right)
{
	MPI_Sendrecv(&now[1], 1, MPI_DOUBLE, left, 0, &now[CELLS + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Sendrecv(&now[CELLS], 1, MPI_DOUBLE, right, 1, &now[0], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 1; i <= CELLS; i++)
		next[i] = now[i] + 0.25 * (now[i - 1] - 2 * now[i] + now[i + 1]) + 1e-6 * i;
}

int main(int argc, char **argv)
{
	static double cells[2][CELLS + 2];
	int rank, size, now = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int i = 1; i <= CELLS; i++)
		cells[0][i] = rank + 1.0 / i;
	for (int number = 0; argc > 2 && number < atoi(argv[1]); number++) {
		double mine = 0, all = 0;

		step(cells[now], cells[!now], (rank + size - 1) % size, (rank + 1) % size);
		now = !now;
		for (int i = 1; i <= CELLS; i++)
			mine += cells[now][i] * i;
		MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
		if (rank == 0) {
			printf("%d %.17g\n", number, all);
			fflush(stdout);
		}
		rest(atol(argv[2]));
	}
	MPI_Finalize();
	return 0;
}
