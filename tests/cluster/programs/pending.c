/*
 * pending: signals that wait to be delivered, to the process and to single threads; masks, handlers, alternate stacks. In the end it takes them.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

#include "look.h"

static pthread_barrier_t told;
static pthread_t thread;
static pid_t thread_id;
static char stack[2 * 65536];
static bool ending;

static void handle(int number, siginfo_t *information, void *context)
{
	(void)number, (void)information, (void)context;
}

/* The lines of /proc that begin with Sig or Shd: pending, blocked, ignored, caught. */
static void tell_status(const char *who, pid_t tid)
{
	char path[64], line[256];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
	file = fopen(path, "r");
	if (!file)
		fail(path);
	while (fgets(line, sizeof(line), file)) {
		if ((!strncmp(line, "Sig", 3) && line[3] != 'Q') || !strncmp(line, "Shd", 3))
			printf("%s %s", who, line);
	}
	fclose(file);
}

static void tell_stack(const char *who)
{
	stack_t now;

	sigaltstack(NULL, &now);
	printf("%s stack at %ld size=%zu flags=%d\n", who, (long)((char *)now.ss_sp - stack), now.ss_size, now.ss_flags);
}

static void take(const char *who, const sigset_t *set)
{
	const struct timespec none = {0};
	siginfo_t got;

	while (sigtimedwait(set, &got, &none) > 0)
		printf("%s got %d code=%d value=%d from me=%d uid=%d\n", who, got.si_signo >= SIGRTMIN ? got.si_signo - SIGRTMIN + 100 : got.si_signo,
		       got.si_code, got.si_code == SI_QUEUE ? got.si_value.sival_int : 0, got.si_pid == getpid(), got.si_uid == getuid());
}

static void *run(void *argument)
{
	const stack_t own = {.ss_sp = stack + 65536, .ss_size = 40000};
	sigset_t blocked;

	thread_id = (pid_t)syscall(SYS_gettid);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	sigaddset(&blocked, SIGRTMIN + 5);
	sigaddset(&blocked, SIGRTMIN + 1);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	sigaltstack(&own, NULL);
	pthread_barrier_wait(&told);
	for (;;) {
		pthread_barrier_wait(&told);
		if (ending)
			break;
		tell_stack("thread");
		fflush(stdout);
		pthread_barrier_wait(&told);
	}
	take("thread", &blocked);
	return argument;
}

static void tell(void)
{
	struct sigaction action;

	tell_status("process", getpid());
	tell_status("thread", thread_id);
	tell_stack("process");
	pthread_barrier_wait(&told);
	pthread_barrier_wait(&told);
	sigaction(SIGUSR1, NULL, &action);
	printf("usr1 flags=%x handler=%d mask=%d%d\n", action.sa_flags & ~0x04000000, action.sa_sigaction == handle,
	       sigismember(&action.sa_mask, SIGHUP), sigismember(&action.sa_mask, SIGINT));
}

int main(void)
{
	const stack_t own = {.ss_sp = stack, .ss_size = 50000};
	struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER};
	sigset_t blocked, descriptor;
	struct signalfd_siginfo read_one;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGCHLD);
	for (int i = 0; i < 4; i++)
		sigaddset(&blocked, SIGRTMIN + i);
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	sigaddset(&action.sa_mask, SIGHUP);
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTSTP, SIG_IGN);
	sigaltstack(&own, NULL);
	sigemptyset(&descriptor);
	sigaddset(&descriptor, SIGRTMIN + 3);
	const int fd = signalfd(-1, &descriptor, SFD_NONBLOCK | SFD_CLOEXEC);

	pthread_barrier_init(&told, NULL, 2);
	pthread_create(&thread, NULL, run, NULL);
	pthread_barrier_wait(&told);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGTERM);
	for (int i = 0; i < 3; i++) {
		sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 10 + i});
		sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 20 + i});
		sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 30 + i});
		pthread_sigqueue(thread, SIGRTMIN + 5, (union sigval){.sival_int = 40 + i});
	}
	pthread_kill(thread, SIGUSR2);
	look_loop(tell);
	while (read(fd, &read_one, sizeof(read_one)) == sizeof(read_one))
		printf("signalfd got %d value=%d\n", read_one.ssi_signo - SIGRTMIN + 100, read_one.ssi_int);
	take("process", &blocked);
	ending = true;
	pthread_barrier_wait(&told);
	pthread_join(thread, NULL);
	return 0;
}
