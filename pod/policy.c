/*
 * A thread's memory policy is shown to itself alone, and CRIU does not carry it: a program under `numactl --interleave` got all its memory from
 * one node after a restore. Whether there is one the first line of numa_maps tells, at little cost; which one, the thread has to ask itself.
 */
#include "policy.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inject.h"

/* the most nodes of a kernel (CONFIG_NODES_SHIFT), and one, as the kernel takes one off */
enum { MASK_WORDS = 16, MAX_NODES = 64 * MASK_WORDS + 1 };
/* An address, a blank, and the policy, with the beginning of its nodes; the kernel looks at no more mappings than it is asked for. */
enum { FIRST_LINE = 32 };
#define FILE_NAME "memory-policy"

static bool is_usual(int pid, const char *tid)
{
	char path[96], line[FIRST_LINE] = "";
	ssize_t length = 0;
	int maps;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/numa_maps", pid, tid);
	maps = open(path, O_RDONLY | O_CLOEXEC);
	if (maps >= 0) {
		length = read(maps, line, sizeof(line) - 1);
		close(maps);
	}
	/* a kernel without NUMA has no such file */
	return length <= 0 || strstr(line, " default");
}

static void save(int tid, FILE *file)
{
	const unsigned long for_mode[6] = {0}, for_mask[6] = {0, 0, MAX_NODES};
	unsigned long mask[MASK_WORDS] = {0};
	int mode = 0;
	long result;

	if (!inject_call(tid, SYS_get_mempolicy, for_mode, 0, &mode, sizeof(mode), &result) || result || !mode)
		return;
	if (!inject_call(tid, SYS_get_mempolicy, for_mask, 1, mask, sizeof(mask), &result) || result)
		return;
	fprintf(file, "%d %d", tid, mode);
	for (int i = 0; i < MASK_WORDS; i++)
		fprintf(file, " %lx", mask[i]);
	fprintf(file, "\n");
}

void policy_save(int pid, int images)
{
	const struct dirent *entry;
	char path[32];
	FILE *file = NULL;
	DIR *tasks;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && (entry = readdir(tasks))) {
		if (entry->d_name[0] == '.' || is_usual(pid, entry->d_name))
			continue;
		if (!file) {
			fd = openat(images, FILE_NAME, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
			file = fd < 0 ? NULL : fdopen(fd, "a");
		}
		if (!file)
			break;
		save(atoi(entry->d_name), file);
	}
	if (tasks)
		closedir(tasks);
	if (file)
		fclose(file);
}

static bool is_thread(int pid, int tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d", pid, tid);
	return !access(path, F_OK);
}

void policy_restore(int pid, int images)
{
	const int fd = openat(images, FILE_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	unsigned long mask[MASK_WORDS];
	int tid, mode, words;
	long result;

	while (file && fscanf(file, "%d %d", &tid, &mode) == 2) {
		const unsigned long arguments[6] = {(unsigned long)mode, 0, MAX_NODES};

		for (words = 0; words < MASK_WORDS && fscanf(file, "%lx", &mask[words]) == 1;)
			words++;
		if (words == MASK_WORDS && is_thread(pid, tid))
			inject_call(tid, SYS_set_mempolicy, arguments, 1, mask, sizeof(mask), &result);
	}
	if (file)
		fclose(file);
}
