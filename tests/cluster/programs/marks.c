/*
 * marks: what a program can set once, for its memory and its threads, and nothing reminds of afterwards: advice about mappings, locks of memory,
 * names and priorities of single threads, what the kernel does for the C library. `marks future` locks what is mapped from then on.
 */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/syscall.h>

#include "look.h"

enum { SIZE = 1 << 16, IOPRIO_WHO_PROCESS = 1 };
enum { PLAIN, DONTFORK, WIPEONFORK, DONTDUMP, HUGEPAGE, NOHUGEPAGE, MERGEABLE, SEQUENTIAL, RANDOM, LOCKED, GROWSDOWN, NORESERVE, NONE, SHARED, MAPPINGS };
static const char *const NAMES[] = {"plain",	  "dontfork", "wipeonfork", "dontdump",	 "hugepage",  "nohugepage", "mergeable",
				    "sequential", "random",   "locked",	    "growsdown", "noreserve", "none",	    "shared"};
/* struct sched_attr of sched_setattr(2): its header and the C library's exclude each other. */
static struct {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
	uint32_t util_min, util_max;
} attributes;
static char *mappings[MAPPINGS];
static pthread_barrier_t ready;
static pid_t thread_id;

/* The flags of the mapping that begins there, from smaps. */
static void tell_flags(const char *name, const char *address)
{
	char line[512], wanted[32];
	bool here = false;
	FILE *file = fopen("/proc/self/smaps", "r");

	if (!file)
		fail("smaps");
	snprintf(wanted, sizeof(wanted), "%lx-", (unsigned long)address);
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, wanted, strlen(wanted)))
			here = true;
		else if (here && !strncmp(line, "VmFlags:", 8)) {
			printf("%s %s", name, line);
			here = false;
		}
	}
	fclose(file);
}

static void tell_thread(const char *name, pid_t tid)
{
	char path[64], line[256] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/comm", tid);
	file = fopen(path, "r");
	if (!file || !fgets(line, sizeof(line), file))
		fail(path);
	fclose(file);
	if (syscall(SYS_sched_getattr, tid, &attributes, sizeof(attributes), 0))
		fail("sched_getattr");
	printf("%s policy %u flags %llx nice %d priority %u clamps %u %u io %ld name %s", name, attributes.policy, (unsigned long long)attributes.flags, attributes.nice,
	       attributes.priority, attributes.util_min, attributes.util_max, syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid), line);
}

static void tell_status(void)
{
	char line[512];
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof(line), file)) {
		if (!strncmp(line, "Specul", 6) || !strncmp(line, "x86_", 4) || !strncmp(line, "VmLck", 5))
			printf("%s", line);
	}
	if (file)
		fclose(file);
}

static void tell(void)
{
	const long again = syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset, __rseq_size < 32 ? 32 : __rseq_size, 0, RSEQ_SIG);

	for (int i = 0; i < MAPPINGS; i++)
		tell_flags(NAMES[i], mappings[i]);
	tell_thread("main", getpid());
	tell_thread("thread", thread_id);
	tell_status();
	printf("rseq again %ld %s\n", again, strerrorname_np(errno));
	printf("timer slack %d tsc %d mce %d\n", prctl(PR_GET_TIMERSLACK), prctl(PR_GET_TSC, &(int){0}), prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
}

static void *run(void *unused)
{
	thread_id = gettid();
	prctl(PR_SET_NAME, "a thread");
	setpriority(PRIO_PROCESS, thread_id, 11);
	syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 2 << 13 | 6);
	sched_setscheduler(0, SCHED_IDLE | SCHED_RESET_ON_FORK, &(struct sched_param){0});
	pthread_barrier_wait(&ready);
	while (!unused)
		pause();
	return NULL;
}

static void map(void)
{
	for (int i = 0; i < MAPPINGS; i++) {
		const int flags = i == GROWSDOWN ? MAP_GROWSDOWN : i == NORESERVE ? MAP_NORESERVE : 0;
		/* with a hole on both sides, so that none becomes one with another */
		char *place = mmap(NULL, 3 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		munmap(place, 3 * SIZE);
		mappings[i] = mmap(place + SIZE, SIZE, i == NONE ? PROT_NONE : PROT_READ | PROT_WRITE,
				   MAP_FIXED | MAP_ANONYMOUS | (i == SHARED ? MAP_SHARED : MAP_PRIVATE) | flags, -1, 0);
		if (mappings[i] == MAP_FAILED)
			fail("mmap");
		/* the next one is looked for further below */
		mmap(place + 2 * SIZE, SIZE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mmap(place, SIZE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (i != NONE)
			mappings[i][100] = 1;
	}
	madvise(mappings[DONTFORK], SIZE, MADV_DONTFORK);
	madvise(mappings[WIPEONFORK], SIZE, MADV_WIPEONFORK);
	madvise(mappings[DONTDUMP], SIZE, MADV_DONTDUMP);
	madvise(mappings[HUGEPAGE], SIZE, MADV_HUGEPAGE);
	madvise(mappings[NOHUGEPAGE], SIZE, MADV_NOHUGEPAGE);
	madvise(mappings[MERGEABLE], SIZE, MADV_MERGEABLE);
	madvise(mappings[SEQUENTIAL], SIZE, MADV_SEQUENTIAL);
	madvise(mappings[RANDOM], SIZE, MADV_RANDOM);
	if (mlock(mappings[LOCKED], SIZE))
		fail("mlock");
}

int main(void)
{
	pthread_t thread;

	pthread_barrier_init(&ready, NULL, 2);
	if (pthread_create(&thread, NULL, run, NULL))
		fail("pthread_create");
	pthread_barrier_wait(&ready);
	prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
	sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &(struct sched_param){0});
	map();
	look_loop(tell);
	return 0;
}
