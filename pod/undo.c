/*
 * The kernel shows to nobody what it has to undo for a process. But it refuses an operation by which that would leave its range, and undoes all
 * operations of a call of which one fails. So a call that the process makes itself tells, without any effect: it brings a semaphore to its highest
 * value, takes k away with SEM_UNDO, which fails with ERANGE when k and what is there already exceed the range, and in the end asks for what
 * there is not, which fails with EAGAIN.
 *
 * Threads share their list of adjustments (pthreads(7)), so one of them speaks for all.
 */
#include "undo.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inject.h"

/* uapi/linux/sem.h: SEMVMX and SEMAEM, the highest value and the highest adjustment; one adjustment lower is possible */
enum { HIGHEST = 32767, LOWEST = -32768 };
/* semaphores that are looked at by one call */
enum { AT_ONCE = 32, MAX_STEPS = 4 * AT_ONCE + 1 };
#define FILE_NAME "semaphore-undo"
#define FAILED_NAME "semaphore-undo.failed"

/* One semaphore; a table of them, as the processes of an IPC namespace see it, ends with the set -1. */
struct semaphore {
	int set;
	unsigned short number, value;
};

struct steps {
	struct sembuf one[MAX_STEPS];
	size_t count;
};

enum answer { IN_RANGE, OUT_OF_RANGE, NOT_ALLOWED, UNKNOWN };

static void add(struct steps *steps, unsigned short number, int change, int flags)
{
	/* a change of 0 would wait for the value 0 */
	if (change)
		steps->one[steps->count++] = (struct sembuf){number, (short)change, (short)(IPC_NOWAIT | flags)};
}

static bool call_semop(int pid, int set, const struct steps *steps, long *result)
{
	const unsigned long arguments[6] = {(unsigned long)set, 0, steps->count};
	struct steps given = *steps;

	return inject_call(pid, SYS_semop, arguments, 1, given.one, given.count * sizeof(given.one[0]), result);
}

/* Whether a call with these steps, of which the last cannot be done, leaves the range before. */
static enum answer ask(int pid, int set, const struct steps *steps)
{
	long result;

	if (!call_semop(pid, set, steps, &result))
		return UNKNOWN;
	switch (-result) {
	case EAGAIN:
		return IN_RANGE;
	case ERANGE:
		return OUT_OF_RANGE;
	case EACCES:
		return NOT_ALLOWED;
	default:
		return UNKNOWN;
	}
}

/* Does a semaphore have an adjustment above 0, then: below 0? Each ends with the value 0, and with 1. */
static void add_positive(struct steps *steps, const struct semaphore *one)
{
	add(steps, one->number, HIGHEST - one->value, 0);
	add(steps, one->number, -HIGHEST, SEM_UNDO);
}

static void add_negative(struct steps *steps, const struct semaphore *one)
{
	add(steps, one->number, -one->value, 0);
	add(steps, one->number, HIGHEST, SEM_UNDO);
	add(steps, one->number, -HIGHEST, 0);
	add(steps, one->number, 1, SEM_UNDO);
}

/* Whether any of `count` semaphores of one set has an adjustment. */
static enum answer any(int pid, const struct semaphore *first, size_t count)
{
	struct steps positive = {.count = 0}, negative = {.count = 0};
	enum answer answer;

	for (size_t i = 0; i < count; i++) {
		add_positive(&positive, &first[i]);
		add_negative(&negative, &first[i]);
	}
	add(&positive, first[count - 1].number, -1, 0);
	add(&negative, first[count - 1].number, -2, 0);
	answer = ask(pid, first->set, &positive);
	return answer == IN_RANGE ? ask(pid, first->set, &negative) : answer;
}

/* Whether the adjustment is above `limit` (0 to HIGHEST - 1), or, with sign -1, below -1 - limit. */
static enum answer exceeds(int pid, const struct semaphore *one, int sign, int limit)
{
	struct steps steps = {.count = 0};

	add(&steps, one->number, sign > 0 ? HIGHEST - one->value : -one->value, 0);
	add(&steps, one->number, sign > 0 ? limit - HIGHEST : HIGHEST - limit, SEM_UNDO);
	add(&steps, one->number, -HIGHEST, 0);
	add(&steps, one->number, -1, 0);
	return ask(pid, one->set, &steps);
}

/* The adjustment of a semaphore, of which it is known that it has one. */
static enum answer find(int pid, const struct semaphore *one, int *adjustment)
{
	enum answer answer = exceeds(pid, one, 1, 0);
	const int sign = answer == OUT_OF_RANGE ? 1 : -1;
	int low = 0, high = HIGHEST;

	/* it exceeds what is below `low`, and not `high` */
	while (low < high && (answer == IN_RANGE || answer == OUT_OF_RANGE)) {
		const int middle = (low + high) / 2;

		answer = exceeds(pid, one, sign, middle);
		if (answer == OUT_OF_RANGE)
			low = middle + 1;
		else
			high = middle;
	}
	*adjustment = sign > 0 ? low : -1 - low;
	return answer;
}

/* ---- the semaphores of an IPC namespace ---- */

/* In a process of its own, as it joins the namespace for good. */
static void list_semaphores(int namespace, int to)
{
	struct seminfo all;
	struct semid_ds set;
	union {
		int value;
		struct semid_ds *set;
		struct seminfo *all;
		unsigned short *values;
	} argument = {.all = &all};
	int highest, id = -1;

	if (setns(namespace, CLONE_NEWIPC))
		_exit(1);
	highest = semctl(0, 0, SEM_INFO, argument);
	for (int index = 0; index <= highest; index++) {
		argument.set = &set;
		id = semctl(index, 0, SEM_STAT, argument);
		if (id < 0)
			continue;
		for (unsigned short number = 0; number < set.sem_nsems; number++) {
			const struct semaphore one = {id, number, (unsigned short)semctl(id, number, GETVAL, argument)};

			if (write(to, &one, sizeof(one)) != sizeof(one))
				_exit(1);
		}
	}
	_exit(0);
}

/* NULL when they cannot be listed. */
static struct semaphore *read_semaphores(int pid)
{
	struct semaphore *table = NULL, *more;
	size_t count = 0, room = 0;
	int ends[2], namespace, status = -1;
	char path[64];
	pid_t child;

	snprintf(path, sizeof(path), "/proc/%d/ns/ipc", pid);
	namespace = open(path, O_RDONLY | O_CLOEXEC);
	if (namespace < 0 || pipe2(ends, O_CLOEXEC)) {
		if (namespace >= 0)
			close(namespace);
		return NULL;
	}
	child = fork();
	if (child == 0)
		list_semaphores(namespace, ends[1]);
	close(ends[1]);
	close(namespace);
	do {
		if (count == room) {
			room = room ? 2 * room : 256;
			more = realloc(table, room * sizeof(*table));
			if (!more)
				break;
			table = more;
		}
	} while (read(ends[0], &table[count], sizeof(*table)) == sizeof(*table) && ++count);
	close(ends[0]);
	if (child > 0)
		waitpid(child, &status, 0);
	if (status || count == room) {
		free(table);
		return NULL;
	}
	table[count].set = -1;
	return table;
}

/* The same for all processes of a pod, and it does not change while they stand still. */
static const struct semaphore *semaphores_of(int pid)
{
	static struct semaphore *table;

	if (!table)
		table = read_semaphores(pid);
	return table;
}

/* ---- a process ---- */

static bool has_list(int pid)
{
	/* this program has none */
	return syscall(SYS_kcmp, getpid(), pid, KCMP_SYSVSEM, 0, 0) != 0;
}

static bool save_all(int pid, const struct semaphore *table, FILE *file)
{
	bool good = true;
	int adjustment;

	for (const struct semaphore *one = table; good && one->set >= 0;) {
		size_t count = 1;
		enum answer answer;

		while (count < AT_ONCE && one[count].set == one->set)
			count++;
		answer = any(pid, one, count);
		for (size_t i = 0; answer == OUT_OF_RANGE && good && i < count; i++) {
			const enum answer own = any(pid, &one[i], 1);

			good = own == IN_RANGE || (own == OUT_OF_RANGE && find(pid, &one[i], &adjustment) != UNKNOWN);
			if (good && own == OUT_OF_RANGE)
				fprintf(file, "%d %d %d %d\n", pid, one->set, one[i].number, adjustment);
		}
		/* what it may not change has nothing to be undone */
		good = good && answer != UNKNOWN;
		one += count;
	}
	return good;
}

static FILE *open_in(int images, const char *name, int flags, const char *mode)
{
	const int fd = openat(images, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	FILE *file = fd < 0 ? NULL : fdopen(fd, mode);

	if (!file && fd >= 0)
		close(fd);
	return file;
}

void undo_save(int pid, int images)
{
	const struct semaphore *table;
	FILE *file;

	if (!has_list(pid))
		return;
	table = semaphores_of(pid);
	if (table && table->set < 0)
		return;
	file = open_in(images, FILE_NAME, O_WRONLY | O_CREAT | O_APPEND, "a");
	if (file && (!table || !save_all(pid, table, file)))
		fprintf(file, "%d ?\n", pid);
	if (file)
		fclose(file);
}

/* To the end of its range, from there with SEM_UNDO, and back. */
static bool set_adjustment(int pid, const struct semaphore *one, int adjustment)
{
	const int first = adjustment < -HIGHEST ? -HIGHEST : adjustment;
	const int end = adjustment > 0 ? HIGHEST : 0;
	struct steps steps = {.count = 0};
	int value = one->value;
	long result;

	for (int part = first, left = adjustment - first; part; part = left, left = 0) {
		add(&steps, one->number, end - value, 0);
		add(&steps, one->number, -part, SEM_UNDO);
		value = end - part;
	}
	add(&steps, one->number, one->value - value, 0);
	return call_semop(pid, one->set, &steps, &result) && !result;
}

static const struct semaphore *find_semaphore(const struct semaphore *table, int set, unsigned short number)
{
	for (; table && table->set >= 0; table++) {
		if (table->set == set && table->number == number)
			return table;
	}
	return NULL;
}

void undo_restore(int pid, int images)
{
	FILE *file = open_in(images, FILE_NAME, O_RDONLY, "r");
	const struct semaphore *one;
	int whose, set, adjustment;
	unsigned short number;
	bool good = true;

	while (file && fscanf(file, "%d %d %hu %d", &whose, &set, &number, &adjustment) == 4) {
		if (whose != pid)
			continue;
		one = find_semaphore(semaphores_of(pid), set, number);
		good = one && set_adjustment(pid, one, adjustment) && good;
	}
	if (file)
		fclose(file);
	if (!good)
		close(openat(images, FAILED_NAME, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
}
