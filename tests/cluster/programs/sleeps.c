/*
 * sleeps: threads and children in calls that wait with a time limit. A checkpoint, or a restore, must neither end a call early nor make it fail.
 * `look` tells how many calls of each kind have gone wrong.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>

#include "look.h"

enum { NANOSLEEP, ABSOLUTE, POLL, SELECT, PSELECT, EPOLL, FUTEX, SIGTIMEDWAIT, CONDITION, KINDS };
static pid_t children[KINDS];
static const char *const NAMES[] = {"nanosleep", "clock_nanosleep", "poll", "select", "pselect", "epoll_wait", "sem_timedwait", "sigtimedwait", "cond_timedwait"};
enum { MILLISECONDS = 700 };

static struct {
	int calls, failed, error;
	double shortest;
} *counts;

/* On the clock of a call's limit: between a checkpoint and its restore the time of day goes on, and the other clock stands still. */
static double now(int kind)
{
	struct timespec time;

	clock_gettime(kind == FUTEX || kind == CONDITION ? CLOCK_REALTIME : CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static struct timespec after(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	time.tv_nsec += MILLISECONDS * 1000000L;
	if (time.tv_nsec >= 1000000000L) {
		time.tv_sec++;
		time.tv_nsec -= 1000000000L;
	}
	return time;
}

/* 0, or the errno of a call that did not wait to its end. */
static int wait_once(int kind)
{
	const struct timespec span = {.tv_nsec = MILLISECONDS * 1000000L};
	struct timeval value = {.tv_usec = MILLISECONDS * 1000};
	struct timespec end;
	struct epoll_event event;
	static sem_t never;
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
	sigset_t set;
	int result = 0, fd;

	errno = 0;
	switch (kind) {
	case NANOSLEEP:
		return nanosleep(&span, NULL) ? errno : 0;
	case ABSOLUTE:
		end = after(CLOCK_MONOTONIC);
		return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
	case POLL:
		return poll(NULL, 0, MILLISECONDS) ? errno : 0;
	case SELECT:
		return select(0, NULL, NULL, NULL, &value) ? errno : 0;
	case PSELECT:
		return pselect(0, NULL, NULL, NULL, &span, NULL) ? errno : 0;
	case EPOLL:
		fd = epoll_create1(0);
		result = epoll_wait(fd, &event, 1, MILLISECONDS) ? errno : 0;
		close(fd);
		return result;
	case FUTEX:
		end = after(CLOCK_REALTIME);
		result = sem_timedwait(&never, &end);
		return errno == ETIMEDOUT ? 0 : result ? errno : -1;
	case CONDITION:
		end = after(CLOCK_REALTIME);
		pthread_mutex_lock(&mutex);
		result = pthread_cond_timedwait(&condition, &mutex, &end);
		pthread_mutex_unlock(&mutex);
		return result == ETIMEDOUT ? 0 : result ? result : -1;
	default:
		sigemptyset(&set);
		sigaddset(&set, SIGUSR2);
		result = sigtimedwait(&set, NULL, &span);
		return errno == EAGAIN ? 0 : result ? errno : -1;
	}
}

static void *run(void *argument)
{
	const long which = (long)argument;
	const int kind = (int)(which % KINDS);

	for (;;) {
		const double began = now(kind);
		const int error = wait_once(kind);
		const double took = now(kind) - began;

		counts[which].calls++;
		if (error || took < MILLISECONDS / 1000.0 - 0.005) {
			counts[which].failed++;
			counts[which].error = error;
			counts[which].shortest = took;
		}
	}
	return NULL;
}

static void tell(void)
{
	static int seen[2 * KINDS];
	int before[2 * KINDS];

	/* each call that is under way comes to its end first */
	for (int i = 0; i < 2 * KINDS; i++)
		before[i] = counts[i].calls;
	for (int i = 0; i < 2 * KINDS; i++) {
		while (counts[i].calls < before[i] + 2)
			look_wait();
	}
	for (int i = 0; i < 2 * KINDS; i++) {
		printf("%s in a %s: failed=%d error=%d", NAMES[i % KINDS], i < KINDS ? "thread" : "process", counts[i].failed - seen[i], counts[i].error);
		printf(counts[i].failed > seen[i] ? " after %.3f s\n" : "\n", counts[i].shortest);
		seen[i] = counts[i].failed;
	}
}

int main(void)
{
	pthread_t thread;

	counts = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (long i = 0; i < KINDS; i++) {
		children[i] = fork();
		if (children[i] == 0)
			run((void *)(i + KINDS));
	}
	for (long i = 0; i < KINDS; i++)
		pthread_create(&thread, NULL, run, (void *)i);
	look_loop(tell);
	for (int i = 0; i < KINDS; i++)
		kill(children[i], SIGKILL);
	return 0;
}
