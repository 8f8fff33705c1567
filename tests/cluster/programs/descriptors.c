/*
 * descriptors: kernel objects behind descriptors, and what waits in them. Argument: a directory of its own for files.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "look.h"

static int counter, edge, semi, inner, outer, watch, child_fd, flocked, posix, ofd, full[2], sockets[2], unlinked, owner[2], path_only, leased;
static int directory_watch, file_watch;
static pid_t child;

static int make(const char *name)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || write(fd, "0123456789", 10) != 10)
		fail(name);
	return fd;
}

/* A child asks for locks, as only others are kept out. */
static void tell_lock(const char *what, const char *name, int (*try)(int))
{
	pid_t asker = fork();
	int wait_status;

	/* it opens the file by itself: whoever closes one of his own loses his record locks */
	if (asker == 0)
		_exit(try(open(name, O_RDWR)) ? errno : 0);
	waitpid(asker, &wait_status, 0);
	printf("%s kept out with %d\n", what, WEXITSTATUS(wait_status));
}

static int try_flock(int fd)
{
	return flock(fd, LOCK_EX | LOCK_NB);
}

static int try_posix(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2, .l_len = 3};

	return fcntl(fd, F_SETLK, &lock);
}

static int try_ofd(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1};

	return fcntl(fd, F_OFD_SETLK, &lock);
}

static void tell_epoll(int fd, const char *name)
{
	struct epoll_event events[8];
	int count = epoll_wait(fd, events, 8, 0), target;
	unsigned mask;
	unsigned long long data;
	char line[256];
	FILE *file;

	snprintf(line, sizeof(line), "/proc/self/fdinfo/%d", fd);
	file = fopen(line, "r");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "tfd: %d events: %x data: %llx", &target, &mask, &data) == 3)
			printf("%s watches for %x, %llu\n", name, mask, data & 0xffffffff);
	}
	fclose(file);
	printf("%s %d ready:", name, count);
	for (unsigned value = 0; value < 100; value++) {
		for (int i = 0; i < count; i++) {
			if (events[i].data.u32 == value)
				printf(" %u=%x", value, events[i].events);
		}
	}
	puts("");
}

/* What has happened in the directory since the last look: one file made and removed. */
static void tell_inotify(void)
{
	char buffer[4096];
	ssize_t length;

	close(open("watched/new", O_CREAT | O_WRONLY, 0600));
	unlink("watched/new");
	length = read(watch, buffer, sizeof(buffer));
	for (ssize_t at = 0; at < length;) {
		const struct inotify_event *event = (const void *)(buffer + at);

		printf("inotify watch=%d mask=%x name=%s\n", event->wd == directory_watch ? 1 : event->wd == file_watch ? 2 : event->wd, event->mask,
		       event->len ? event->name : "-");
		at += (ssize_t)(sizeof(*event) + event->len);
	}
}

static void tell(void)
{
	struct f_owner_ex owned = {0};
	struct stat status;
	char name[32];
	int again;

	printf("eventfd readable %d, takes %d\n", poll(&(struct pollfd){.fd = counter, .events = POLLIN}, 1, 0), fcntl(counter, F_GETFL) & O_ACCMODE);
	tell_epoll(inner, "inner epoll");
	tell_epoll(outer, "outer epoll");
	tell_inotify();
	printf("pidfd alive %d %ld\n", poll(&(struct pollfd){.fd = child_fd, .events = POLLIN}, 1, 0), syscall(SYS_pidfd_send_signal, child_fd, 0, NULL, 0));
	tell_lock("flock", "flocked", try_flock);
	tell_lock("record lock", "posix", try_posix);
	tell_lock("open file description lock", "ofd", try_ofd);
	printf("pipe size %d", fcntl(full[0], F_GETPIPE_SZ));
	printf(" writable %d\n", poll(&(struct pollfd){.fd = full[1], .events = POLLOUT}, 1, 0));
	/* as scripts do by /dev/stderr and <(...) */
	snprintf(name, sizeof(name), "/proc/self/fd/%d", full[0]);
	again = open(name, O_RDONLY | O_NONBLOCK);
	printf("pipe opened by its name %d\n", again >= 0);
	close(again);
	fcntl(owner[0], F_GETOWN_EX, &owned);
	printf("owner %d %d signal %d flags %o\n", owned.type, owned.pid == getpid(), fcntl(owner[0], F_GETSIG) - SIGRTMIN, fcntl(owner[0], F_GETFL));
	fstat(unlinked, &status);
	printf("unlinked file size=%ld links=%d at=%ld\n", (long)status.st_size, (int)status.st_nlink, (long)lseek(unlinked, 0, SEEK_CUR));
	printf("path only %o cloexec=%d\n", fcntl(path_only, F_GETFL) & O_PATH, fcntl(path_only, F_GETFD));
	printf("lease %d\n", fcntl(leased, F_GETLEASE));
}

static void finish(void)
{
	unsigned long long value;
	char buffer[70000];
	ssize_t length;
	struct msghdr message = {0};
	struct iovec part = {.iov_base = buffer, .iov_len = sizeof(buffer)};
	char control[CMSG_SPACE(sizeof(int))];
	int got, wait_status;

	printf("eventfd holds %llu\n", read(counter, &value, 8) == 8 ? value : 0);
	printf("another holds %llu\n", read(edge, &value, 8) == 8 ? value : 0);
	for (size_t total = 0; total < 200000; total += (size_t)length) {
		length = read(full[0], buffer, sizeof(buffer));
		if (length <= 0) {
			printf("pipe held %zu\n", total);
			break;
		}
	}
	message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	length = recvmsg(sockets[0], &message, 0);
	memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(got));
	printf("message %.*s", (int)length, buffer);
	length = pread(got, buffer, sizeof(buffer), 0);
	printf(" with a file %.*s\n", (int)length, buffer);
	kill(child, SIGKILL);
	printf("pidfd ends %d", poll(&(struct pollfd){.fd = child_fd, .events = POLLIN}, 1, 10000));
	waitpid(child, &wait_status, 0);
	printf(" %d\n", WTERMSIG(wait_status));
}

static void add(int set, int fd, unsigned events, unsigned data)
{
	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = events, .data.u32 = data}))
		fail("epoll_ctl");
}

static void make_locks(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 5};

	flocked = make("flocked");
	posix = make("posix");
	ofd = make("ofd");
	if (flock(flocked, LOCK_EX) || fcntl(posix, F_SETLK, &lock) || fcntl(ofd, F_OFD_SETLK, &lock))
		fail("lock");
}

static void make_message(void)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, text[] = "hello";
	struct iovec part = {.iov_base = text, .iov_len = 5};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int sent = make("sent");

	*header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
	memcpy(CMSG_DATA(header), &sent, sizeof(sent));
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || sendmsg(sockets[1], &message, 0) != 5)
		fail("sendmsg");
	close(sent);
}

int main(int argc, char **argv)
{
	unsigned long long value = 5;
	char block[4096] = "block";
	int removed;

	if (argc != 2 || mkdir(argv[1], 0700) || chdir(argv[1]) || mkdir("watched", 0700))
		fail("mkdir");
	counter = eventfd(12345, EFD_NONBLOCK);
	edge = eventfd(3, EFD_NONBLOCK | EFD_CLOEXEC);
	semi = eventfd(0, 0);
	inner = epoll_create1(EPOLL_CLOEXEC);
	outer = epoll_create1(0);
	add(inner, counter, EPOLLIN | EPOLLOUT, 1);
	add(inner, edge, EPOLLOUT | EPOLLRDHUP, 2);
	add(inner, semi, EPOLLIN | EPOLLET | EPOLLONESHOT, 5);
	add(outer, inner, EPOLLIN, 3);
	removed = dup(counter);
	add(outer, removed, EPOLLIN, 4);
	close(removed);
	watch = inotify_init1(IN_NONBLOCK);
	directory_watch = inotify_add_watch(watch, "watched", IN_CREATE | IN_DELETE);
	close(make("kept"));
	file_watch = inotify_add_watch(watch, "kept", IN_ATTRIB | IN_MODIFY);
	child = fork();
	if (child == 0) {
		for (;;)
			pause();
	}
	child_fd = (int)syscall(SYS_pidfd_open, child, 0);
	make_locks();
	if (pipe2(full, O_NONBLOCK) || fcntl(full[1], F_SETPIPE_SZ, 4096) < 0 || pipe(owner))
		fail("pipe");
	while (write(full[1], block, sizeof(block)) > 0)
		;
	fcntl(owner[0], F_SETOWN_EX, &(struct f_owner_ex){F_OWNER_PID, getpid()});
	fcntl(owner[0], F_SETSIG, SIGRTMIN + 4);
	fcntl(owner[0], F_SETFL, O_NONBLOCK | O_ASYNC);
	make_message();
	unlinked = make("unlinked");
	unlink("unlinked");
	lseek(unlinked, 4, SEEK_SET);
	path_only = open("kept", O_PATH | O_CLOEXEC);
	close(make("leased"));
	leased = open("leased", O_RDONLY);
	if (fcntl(leased, F_SETLEASE, F_RDLCK))
		fail("lease");
	if (write(counter, &value, 8) != 8)
		fail("eventfd");
	signal(SIGRTMIN + 4, SIG_IGN);
	if (symlink("../stop", "stop"))
		fail("symlink");
	for (int i = 0; i < 6; i++) {
		char name[32], target[32];

		snprintf(name, sizeof(name), "look.%d", i);
		snprintf(target, sizeof(target), "../look.%d", i);
		if (symlink(target, name))
			fail("symlink");
	}
	look_loop(tell);
	finish();
	return 0;
}
