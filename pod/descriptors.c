#include "descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "number.h"

static int compare(const void *a, const void *b)
{
	int left = *(const int *)a, right = *(const int *)b;

	return (left > right) - (left < right);
}

static bool contains(const int *numbers, size_t count, int number)
{
	bool found = false;

	for (size_t i = 0; i < count && !found; i++)
		found = numbers[i] == number;
	return found;
}

int descriptors_list(int **numbers, int except)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	uint64_t number;
	int count = 0, room = 0, *list = NULL;

	while (dir && (entry = readdir(dir))) {
		if (!parse_number(entry->d_name, 10, INT_MAX, &number) || (int)number == except || (int)number == dirfd(dir))
			continue;
		if (count == room) {
			int *grown = realloc(list, (size_t)(room + 256) * sizeof(*list));

			if (!grown) {
				count = -1;
				break;
			}
			list = grown;
			room += 256;
		}
		list[count++] = (int)number;
	}
	if (dir)
		closedir(dir);
	if (!dir || count < 0) {
		free(list);
		return -1;
	}
	if (count)
		qsort(list, (size_t)count, sizeof(*list), compare);
	*numbers = list;
	return count;
}

/* Where the kernel has no close_range (before 5.9). */
static int close_listed(int first, int last)
{
	int *numbers = NULL;
	int count = descriptors_list(&numbers, -1);

	for (int i = 0; i < count; i++) {
		if (numbers[i] >= first && numbers[i] <= last)
			close(numbers[i]);
	}
	if (count >= 0)
		free(numbers);
	return count < 0 ? -1 : 0;
}

static int close_between(int first, int last)
{
	int result = 0;

	if (first <= last) {
		result = (int)syscall(SYS_close_range, first, last, 0);
		if (result < 0 && errno == ENOSYS)
			result = close_listed(first, last);
	}
	return result;
}

int descriptors_close_others(const int *keep, size_t count)
{
	int *sorted = malloc((count + 1) * sizeof(*sorted));
	int first = 0, result = -1;

	if (!sorted)
		goto out;
	if (count)
		memcpy(sorted, keep, count * sizeof(*sorted));
	qsort(sorted, count, sizeof(*sorted), compare);
	for (size_t i = 0; i < count; i++) {
		if (close_between(first, sorted[i] - 1))
			goto out;
		if (sorted[i] == INT_MAX) {
			result = 0;
			goto out;
		}
		first = sorted[i] + 1;
	}
	result = close_between(first, INT_MAX);
out:
	free(sorted);
	return result;
}

int descriptor_lift(int fd)
{
	int lifted = fd;

	if (fd >= 3) {
		if (fcntl(fd, F_SETFD, FD_CLOEXEC))
			lifted = -1;
	} else {
		lifted = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		if (lifted >= 0)
			close(fd);
	}
	return lifted;
}

int descriptor_lift_to(int fd, int from)
{
	int lifted = fcntl(fd, F_DUPFD_CLOEXEC, from);

	if (lifted >= 0)
		close(fd);
	else
		lifted = descriptor_lift(fd);
	return lifted >= 0 ? lifted : fd;
}

int descriptors_silence(bool with_stderr, struct reason *reason)
{
	int null = open("/dev/null", O_RDWR);
	int result = 0;

	if (null < 0)
		return refuse(reason, "cannot open /dev/null: %s", strerror(errno));
	for (int fd = 0; fd < (with_stderr ? 3 : 2) && !result; fd++) {
		if (null != fd && dup2(null, fd) < 0)
			result = refuse(reason, "cannot replace descriptor %d: %s", fd, strerror(errno));
	}
	if (null > 2)
		close(null);
	return result;
}

int descriptors_place(int *sources, const int *targets, size_t count, struct reason *reason)
{
	/* No source may sit on a number that is somebody's target: move it off, to the lowest number that is nobody's. */
	for (size_t i = 0; i < count; i++) {
		int from = 0;

		while (contains(targets, count, sources[i])) {
			int moved = fcntl(sources[i], F_DUPFD_CLOEXEC, from);

			if (moved < 0)
				return refuse(reason, "cannot move descriptor %d: %s", sources[i], strerror(errno));
			if (contains(targets, count, moved)) {
				close(moved);
				from = moved + 1;
			} else {
				sources[i] = moved;
			}
		}
	}
	for (size_t i = 0; i < count; i++) {
		if (dup2(sources[i], targets[i]) < 0)
			return refuse(reason, "cannot place descriptor %d: %s", targets[i], strerror(errno));
	}
	if (descriptors_close_others(targets, count))
		return refuse(reason, "cannot close descriptors: %s", strerror(errno));
	return 0;
}

void descriptors_raise_limit(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}
