/*
 * timers: every kind of timer. What is left of each is told as the time at which it ends; a difference of less than the tolerance is "kept".
 */
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#include "look.h"

enum { FAR = 5000 };
/* a freeze counts as time for some, and CRIU sets the time of day in whole seconds */
static const double TOLERANCE = 3;
enum { MONOTONIC, REALTIME, RELATIVE_REALTIME, BOOTTIME, PERIODIC, EXPIRED, FDS };
static const char *const FD_NAMES[] = {"monotonic absolute", "realtime absolute", "realtime relative", "boottime", "periodic", "expired"};
enum { SIGNAL, VALUE, THREAD, NONE, WALL, CPU, TICKING, TIMERS };
static const char *const TIMER_NAMES[] = {"signal", "value", "thread", "none", "wall clock", "cpu time", "ticking"};
static int fds[FDS];
static timer_t timers[TIMERS];
static double fd_ends[FDS], timer_ends[TIMERS], itimer_ends[3];
static volatile sig_atomic_t ticks, values;

static void tick(int number, siginfo_t *information, void *context)
{
	(void)number, (void)context;
	ticks++;
	values = information->si_value.sival_int;
}

static double now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double fd_end(int which)
{
	const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC};
	const double before = now(clocks[which]);
	struct itimerspec left;

	timerfd_gettime(fds[which], &left);
	return before + (double)left.it_value.tv_sec + (double)left.it_value.tv_nsec / 1e9;
}

static double timer_end(int which)
{
	/* also for one of the time of day: what is left is what counts */
	const double before = which == CPU ? 0 : now(CLOCK_MONOTONIC);
	struct itimerspec left;

	timer_gettime(timers[which], &left);
	return before + (double)left.it_value.tv_sec + (double)left.it_value.tv_nsec / 1e9;
}

static double itimer_end(int which)
{
	const double before = which == ITIMER_REAL ? now(CLOCK_MONOTONIC) : 0;
	struct itimerval left;

	getitimer(which, &left);
	return before + (double)left.it_value.tv_sec + (double)left.it_value.tv_usec / 1e6;
}

/* The nearest of several looks: on a busy machine time passes between two calls. */
static void tell_end(const char *kind, const char *name, double (*end)(int), int which, double wanted, double tolerance)
{
	double best = 1e9;

	for (int i = 0; i < 20 && (best > tolerance || best < -tolerance); i++) {
		const double difference = end(which) - wanted;

		if (difference * difference < best * best)
			best = difference;
	}
	if (best <= tolerance && best >= -tolerance)
		printf("%s %s kept\n", kind, name);
	else
		printf("%s %s off by %.3f s\n", kind, name, best);
}

static void tell(void)
{
	const char *const itimers[] = {"real", "virtual", "prof"};
	const int before = ticks;
	unsigned long long expirations = 0;

	for (int i = 0; i < 3; i++)
		tell_end("itimer", itimers[i], itimer_end, i, itimer_ends[i], i == ITIMER_REAL ? TOLERANCE : 2);
	for (int i = 0; i < PERIODIC; i++)
		tell_end("timerfd", FD_NAMES[i], fd_end, i, fd_ends[i], TOLERANCE);
	for (int i = 0; i < TICKING; i++)
		tell_end("timer", TIMER_NAMES[i], timer_end, i, timer_ends[i], i == CPU ? 2 : TOLERANCE);
	printf("expired readable %d\n", poll(&(struct pollfd){.fd = fds[EXPIRED], .events = POLLIN}, 1, 0));
	/* one that is full of what has come until now, and goes on */
	for (int i = 0; i < 2; i++) {
		if (read(fds[PERIODIC], &expirations, sizeof(expirations)) < 0)
			fail("read");
	}
	printf("periodic goes on %d\n", expirations >= 1);
	while (ticks == before)
		look_wait();
	printf("ticking goes on, value %d\n", values);
}

static void make_timer(int which, clockid_t clock, int notify, int number, double seconds, double period)
{
	struct sigevent event = {.sigev_notify = notify, .sigev_signo = number, .sigev_value.sival_int = 77 + which};
	struct itimerspec time = {
		{(time_t)period, (long)((period - (double)(time_t)period) * 1e9)},
		{(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)},
	};

	if (notify == SIGEV_THREAD_ID)
		event._sigev_un._tid = getpid();
	if (timer_create(clock, &event, &timers[which]) || timer_settime(timers[which], clock == CLOCK_REALTIME ? TIMER_ABSTIME : 0, &time, NULL))
		fail(TIMER_NAMES[which]);
}

static void make_fd(int which, clockid_t clock, int flags, double seconds, double period)
{
	const struct itimerspec time = {
		{(time_t)period, (long)((period - (double)(time_t)period) * 1e9)},
		{(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)},
	};

	fds[which] = timerfd_create(clock, TFD_CLOEXEC);
	if (fds[which] < 0 || timerfd_settime(fds[which], flags, &time, NULL))
		fail(FD_NAMES[which]);
}

int main(void)
{
	const struct itimerval far = {.it_value.tv_sec = FAR, .it_interval.tv_sec = 7};
	struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART};
	unsigned long long expirations = 0;

	sigaction(SIGRTMIN, &action, NULL);
	for (int i = 0; i < 3; i++) {
		setitimer(i, &far, NULL);
		itimer_ends[i] = itimer_end(i);
	}
	make_fd(MONOTONIC, CLOCK_MONOTONIC, TFD_TIMER_ABSTIME, now(CLOCK_MONOTONIC) + FAR, 0);
	make_fd(REALTIME, CLOCK_REALTIME, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, now(CLOCK_REALTIME) + FAR, 0);
	make_fd(RELATIVE_REALTIME, CLOCK_REALTIME, 0, FAR, 3);
	make_fd(BOOTTIME, CLOCK_BOOTTIME, 0, FAR, 0);
	make_fd(PERIODIC, CLOCK_MONOTONIC, 0, 0.05, 0.05);
	make_fd(EXPIRED, CLOCK_MONOTONIC, 0, 0.01, 0);
	make_timer(SIGNAL, CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGUSR1, FAR, 1);
	make_timer(VALUE, CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 2, FAR, 0);
	make_timer(THREAD, CLOCK_MONOTONIC, SIGEV_THREAD_ID, SIGRTMIN + 3, FAR, 0);
	make_timer(NONE, CLOCK_MONOTONIC, SIGEV_NONE, 0, FAR, 0);
	make_timer(WALL, CLOCK_REALTIME, SIGEV_SIGNAL, SIGUSR1, now(CLOCK_REALTIME) + FAR, 0);
	make_timer(CPU, CLOCK_PROCESS_CPUTIME_ID, SIGEV_SIGNAL, SIGUSR1, FAR, 0);
	make_timer(TICKING, CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN, 0.05, 0.05);
	for (int i = 0; i < PERIODIC; i++)
		fd_ends[i] = fd_end(i);
	for (int i = 0; i < TICKING; i++)
		timer_ends[i] = timer_end(i);
	while (poll(&(struct pollfd){.fd = fds[EXPIRED], .events = POLLIN}, 1, 1000) < 1)
		;
	look_loop(tell);
	printf("expired %d\n", read(fds[EXPIRED], &expirations, sizeof(expirations)) == 8 && expirations == 1);
	for (int i = 0; i < TIMERS; i++)
		printf("%d", timer_delete(timers[i]));
	puts("");
	return 0;
}
