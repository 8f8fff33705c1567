/* crowd ROUNDS MILLISECONDS: 1,000 threads, each of which adds to one sum in each round, in turns that a mutex gives; one line a round. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 1000 };
static pthread_barrier_t begin, end;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned long sum;
static int rounds;
static __thread unsigned long own;

static void *run(void *argument)
{
	own = (unsigned long)argument;
	for (int round = 0; round < rounds; round++) {
		pthread_barrier_wait(&begin);
		own = own * 6364136223846793005ul + 1;
		pthread_mutex_lock(&mutex);
		sum += own;
		pthread_mutex_unlock(&mutex);
		pthread_barrier_wait(&end);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const int pause = argc > 2 ? atoi(argv[2]) : 0;
	pthread_attr_t attributes;
	pthread_t threads[THREADS];

	rounds = argc > 1 ? atoi(argv[1]) : 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	pthread_barrier_init(&begin, NULL, THREADS + 1);
	pthread_barrier_init(&end, NULL, THREADS + 1);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 65536);
	for (unsigned long i = 0; i < THREADS; i++) {
		if (pthread_create(&threads[i], &attributes, run, (void *)i))
			return 2;
	}
	for (int round = 0; round < rounds; round++) {
		/* see holding.py */
		while (round >= rounds * 3 / 4 && access("hold", F_OK) == 0)
			usleep(50000);
		pthread_barrier_wait(&begin);
		pthread_barrier_wait(&end);
		printf("%d %016lx\n", round, sum);
		usleep((useconds_t)pause * 1000);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
