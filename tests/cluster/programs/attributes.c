/*
 * attributes: what a process is, beside its memory and its descriptors: limits, priorities, masks, flags, groups, relations.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "look.h"

enum { IOPRIO_WHO_PROCESS = 1 };
enum { STOPPED, ZOMBIE, GROUP, MEMBER, SESSION, ORPHANED, LOST, CHILDREN };
static const char *const NAMES[] = {"stopped", "zombie", "group leader", "group member", "session leader", "orphan", "lost"};
static pid_t children[CHILDREN];

static void tell_file(const char *path, const char *const *beginnings)
{
	char line[512];
	FILE *file = fopen(path, "r");

	if (!file)
		fail(path);
	while (fgets(line, sizeof(line), file)) {
		for (const char *const *one = beginnings; *one; one++) {
			if (!strncmp(line, *one, strlen(*one)))
				printf("%s", line);
		}
	}
	fclose(file);
}

static void tell_children(void)
{
	char path[64], line[512], state;
	int parent, group, session, terminal;
	FILE *file;

	for (int i = 0; i < CHILDREN; i++) {
		snprintf(path, sizeof(path), "/proc/%d/stat", children[i]);
		file = fopen(path, "r");
		if (!file || !fgets(line, sizeof(line), file))
			fail(path);
		sscanf(strrchr(line, ')') + 2, "%c %d %d %d %d", &state, &parent, &group, &session, &terminal);
		printf("%s pid=%d state=%c parent=%d group=%d session=%d terminal=%d\n", NAMES[i], children[i], state == 'R' ? 'S' : state, parent, group, session,
		       terminal);
		fclose(file);
	}
}

static void tell(void)
{
	static const char *const status[] = {"Name:", "Umask:", "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:",
					     "NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "Threads:", "NSpgid:", "NSsid:", "THP_enabled:", "Cpus_allowed:", NULL};
	static const char *const limits[] = {"Max", NULL};
	static const char *const all[] = {"", NULL};
	char path[300], target[300];
	int value = 0;
	unsigned long nodes = 0;
	cpu_set_t set;
	struct sched_param parameter;
	void *list;
	size_t length;

	tell_file("/proc/self/status", status);
	tell_file("/proc/self/limits", limits);
	tell_file("/proc/self/oom_score_adj", all);
	tell_file("/proc/self/coredump_filter", all);
	snprintf(path, sizeof(path), "/proc/%d/cwd", children[LOST]);
	memset(target, 0, sizeof(target));
	printf("\ncwd %s\n", readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, " (deleted)") ? "deleted" : "there");
	printf("nice %d policy %d priority %d\n", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), sched_getparam(0, &parameter) ? -1 : parameter.sched_priority);
	printf("io priority %ld\n", syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0));
	sched_getaffinity(0, sizeof(set), &set);
	printf("cpus %d\n", CPU_COUNT(&set));
	prctl(PR_GET_PDEATHSIG, &value);
	printf("pdeathsig %d", value);
	prctl(PR_GET_CHILD_SUBREAPER, &value);
	printf(" subreaper %d dumpable %d keepcaps %d", value, prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS));
	printf(" timerslack %d thp %d securebits %x\n", prctl(PR_GET_TIMERSLACK), prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), prctl(PR_GET_SECUREBITS));
	printf("robust list %ld", syscall(SYS_get_robust_list, 0, &list, &length));
	printf(" of %zu\n", length);
	printf("memory policy %ld", syscall(SYS_get_mempolicy, &value, &nodes, 64, NULL, 0));
	printf(" %d of %lx\n", value, nodes);
	printf("membarrier %d %d\n", (int)syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0), (int)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0));
	printf("filtered %d errno %d\n", chroot("/") != 0, errno);
	tell_children();
}

static void forever(void)
{
	for (;;)
		pause();
}

static pid_t start(int which)
{
	const char *const directory = "lost";
	int ends[2];
	pid_t pid, orphan;

	if (pipe(ends))
		fail("pipe");
	pid = fork();
	if (pid)
		goto out;
	switch (which) {
	case ZOMBIE:
		_exit(7);
	case GROUP:
		setpgid(0, 0);
		break;
	case MEMBER:
		setpgid(0, children[GROUP]);
		break;
	case SESSION:
		setsid();
		break;
	case ORPHANED:
		/* its parent ends, and it stays in the group of nobody */
		setpgid(0, 0);
		orphan = fork();
		if (orphan) {
			if (write(ends[1], &orphan, sizeof(orphan)) < 0)
				_exit(1);
			_exit(0);
		}
		break;
	case LOST:
		/* its working directory is gone */
		if (mkdir(directory, 0700) || chdir(directory) || rmdir("../lost"))
			_exit(1);
		break;
	default:
		break;
	}
	forever();
out:
	if (which == ORPHANED && (read(ends[0], &orphan, sizeof(orphan)) != sizeof(orphan) || waitpid(pid, NULL, 0) != pid))
		fail("orphan");
	close(ends[0]);
	close(ends[1]);
	return which == ORPHANED ? orphan : pid;
}

/* Makes chroot() fail with EXDEV, which it never does by itself. */
static void install_filter(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_chroot, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = rules};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		fail("seccomp");
}

static void set_limit(int which, rlim_t soft, rlim_t hard)
{
	if (setrlimit(which, &(struct rlimit){soft, hard}))
		fail("setrlimit");
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		fail(path);
	close(fd);
}

int main(void)
{
	cpu_set_t one;
	int wait_status;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < CHILDREN; i++)
		children[i] = start(i);
	kill(children[STOPPED], SIGSTOP);
	waitpid(children[STOPPED], &wait_status, WUNTRACED);
	prctl(PR_SET_NAME, "odd (name)\t");
	prctl(PR_SET_PDEATHSIG, SIGURG);
	prctl(PR_SET_TIMERSLACK, 123456);
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	umask(0137);
	set_limit(RLIMIT_NOFILE, 333, 444);
	set_limit(RLIMIT_CORE, 0, 5 << 20);
	set_limit(RLIMIT_STACK, 4 << 20, RLIM_INFINITY);
	set_limit(RLIMIT_CPU, 5000, 6000);
	nice(7);
	sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
	syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 2 << 13 | 5);
	sched_getaffinity(0, sizeof(one), &one);
	for (int i = CPU_SETSIZE - 1, left = CPU_COUNT(&one); i >= 0 && left > 1; i--) {
		if (CPU_ISSET(i, &one)) {
			CPU_CLR(i, &one);
			left--;
		}
	}
	sched_setaffinity(0, sizeof(one), &one);
	write_file("/proc/self/oom_score_adj", "321");
	write_file("/proc/self/coredump_filter", "0x11");
	syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &(unsigned long){1}, 64);
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
	install_filter();
	look_loop(tell);
	waitpid(children[ZOMBIE], &wait_status, 0);
	printf("zombie's status %d\n", WEXITSTATUS(wait_status));
	kill(children[STOPPED], SIGCONT);
	printf("continued %d\n", waitpid(children[STOPPED], &wait_status, WCONTINUED) == children[STOPPED] && WIFCONTINUED(wait_status));
	for (int i = 0; i < CHILDREN; i++)
		kill(children[i], SIGKILL);
	return 0;
}
