/* openmp ROUNDS MILLISECONDS: threads of OpenMP share sums, in parallel loops and with tasks; one line a round. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 100000 };
static unsigned long values[COUNT];

static unsigned long tree(int from, int to)
{
	unsigned long left, right;

	if (to - from < 5000) {
		unsigned long sum = 0;

		for (int i = from; i < to; i++)
			sum += values[i];
		return sum;
	}
#pragma omp task shared(left)
	left = tree(from, (from + to) / 2);
#pragma omp task shared(right)
	right = tree((from + to) / 2, to);
#pragma omp taskwait
	return left + right;
}

int main(int argc, char **argv)
{
	const int rounds = argc > 1 ? atoi(argv[1]) : 1, pause = argc > 2 ? atoi(argv[2]) : 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int round = 0; round < rounds; round++) {
		/* see holding.py */
		while (round >= rounds * 3 / 4 && access("hold", F_OK) == 0)
			usleep(50000);
		unsigned long sum = 0, other = 0;

#pragma omp parallel for reduction(+ : sum) schedule(dynamic, 1000)
		for (int i = 0; i < COUNT; i++)
			sum += values[i] = values[i] * 6364136223846793005ul + (unsigned long)(i + round);
#pragma omp parallel
#pragma omp single
		other = tree(0, COUNT);
		printf("%d %016lx %d\n", round, sum, sum == other);
		usleep((useconds_t)pause * 1000);
	}
	return 0;
}
