/* Prints a chain of numbers from two threads' worth of state: memory on the heap, a timer, a signal handler. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { CELLS = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int turn;
static int count;
static uint64_t *cells;

static void *mix(void *unused)
{
    (void)unused;
    for (int round = 0; round < count; round++) {
        pthread_mutex_lock(&lock);
        while (turn != 1)
            pthread_cond_wait(&moved, &lock);
        for (int i = 0; i < CELLS; i++)
            cells[i] = cells[i] * UINT64_C(6364136223846793005) + (uint64_t)i + (uint64_t)round;
        turn = 0;
        pthread_cond_signal(&moved);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    count = argc > 1 ? atoi(argv[1]) : 100;
    struct timespec pause = { 0, 50000000 };
    pthread_t helper;

    cells = calloc(CELLS, sizeof(*cells));
    if (!cells || pthread_create(&helper, NULL, mix, NULL))
        return 1;
    for (int round = 0; round < count; round++) {
        uint64_t sum = 0;
        /* see programs/holding.py */
        while (round >= count * 3 / 4 && access("hold", F_OK) == 0)
            nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
        turn = 1;
        pthread_cond_signal(&moved);
        while (turn != 0)
            pthread_cond_wait(&moved, &lock);
        for (int i = 0; i < CELLS; i++)
            sum ^= cells[i];
        pthread_mutex_unlock(&lock);
        printf("%d %016" PRIx64 "\n", round, sum);
        fflush(stdout);
        nanosleep(&pause, NULL);
    }
    pthread_join(helper, NULL);
    free(cells);
    return 0;
}
