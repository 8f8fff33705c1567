/*
 * undo: what semaphores have to undo when a process ends (SEM_UNDO), of one with threads, one without, and one that waits in semop(2). Only their
 * ends show it.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/sem.h>
#include <sys/wait.h>

#include "look.h"

enum { SEMAPHORES = 40, THREADED = 0, SINGLE, WAITING, PROCESSES };
enum { START = 10 };
static const char *const NAMES[] = {"with threads", "without", "waiting"};
static int set;
static pid_t processes[PROCESSES];

static void change(unsigned short number, short by, short flags)
{
	if (semop(set, &(struct sembuf){number, by, flags}, 1))
		fail("semop");
}

static void tell(void)
{
	printf("values");
	for (int i = 0; i < SEMAPHORES; i++)
		printf(" %d", semctl(set, i, GETVAL));
	puts("");
}

static void *change_in_thread(void *unused)
{
	(void)unused;
	change(0, -1, SEM_UNDO);
	change(1, 1, SEM_UNDO);
	change(2, -10, SEM_UNDO);
	change(39, 7, SEM_UNDO);
	/* no adjustment is left of these */
	change(3, -5, SEM_UNDO);
	change(3, 5, SEM_UNDO);
	change(4, -5, 0);
	for (;;)
		pause();
	return NULL;
}

static void run(int which, int ready)
{
	pthread_t thread;

	if (which == THREADED && pthread_create(&thread, NULL, change_in_thread, NULL))
		_exit(1);
	if (which == SINGLE) {
		change(10, -2, SEM_UNDO);
		change(11, 32000, SEM_UNDO);
	}
	if (which == WAITING)
		change(20, -4, SEM_UNDO);
	if (which != THREADED && write(ready, "!", 1) != 1)
		_exit(1);
	if (which == WAITING)
		change(21, -1000, SEM_UNDO);
	for (;;)
		pause();
}

int main(void)
{
	int ready[2];
	char byte;

	set = semget(IPC_PRIVATE, SEMAPHORES, 0600);
	if (set < 0 || pipe(ready))
		fail("semget");
	for (int i = 0; i < SEMAPHORES; i++)
		semctl(set, i, SETVAL, START);
	/* one that has none, and one at its limit */
	semget(IPC_PRIVATE, 1, 0600);
	semctl(set, 5, SETVAL, 32767);
	for (int i = 0; i < PROCESSES; i++) {
		processes[i] = fork();
		if (processes[i] == 0)
			run(i, ready[1]);
	}
	if (read(ready[0], &byte, 1) != 1 || read(ready[0], &byte, 1) != 1)
		fail("read");
	while (semctl(set, 4, GETVAL) != START - 5 || semctl(set, 21, GETNCNT) != 1)
		look_wait();
	look_loop(tell);
	for (int i = 0; i < PROCESSES; i++) {
		kill(processes[i], SIGKILL);
		waitpid(processes[i], NULL, 0);
		printf("%s: ", NAMES[i]);
		tell();
	}
	return 0;
}
