/*
 * The kernel notes a process's effective ids when it makes a pair, connects or listens, and nobody can change them afterwards. CRIU restores
 * sockets by these calls, in the very process that shall have them, but with root's ids. So the three are replaced in CRIU.
 */
#include "peers.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "imports.h"

static unsigned user, group;

/* Of this thread alone, unlike the C library's. The group first: without root's id it could not be changed. */
static bool become_user(void)
{
	return !syscall(SYS_setresgid, -1, group, -1) && !syscall(SYS_setresuid, -1, user, -1);
}

/* The saved ids are root's all the time. */
static void become_root(void)
{
	const int kept = errno;

	syscall(SYS_setresuid, -1, 0, -1);
	syscall(SYS_setresgid, -1, 0, -1);
	errno = kept;
}

static int pair_as_user(int family, int type, int protocol, int ends[2])
{
	int result = -1;

	if (become_user())
		result = socketpair(family, type, protocol, ends);
	become_root();
	return result < 0 ? socketpair(family, type, protocol, ends) : result;
}

static int connect_as_user(int fd, const struct sockaddr *address, socklen_t length)
{
	int result = -1;

	if (address->sa_family != AF_UNIX)
		return connect(fd, address, length);
	if (become_user())
		result = connect(fd, address, length);
	become_root();
	/* a directory may be root's alone at this time */
	return result < 0 ? connect(fd, address, length) : result;
}

static int listen_as_user(int fd, int backlog)
{
	struct sockaddr address = {0};
	socklen_t length = sizeof(address);
	int result = -1;

	if (getsockname(fd, &address, &length) || address.sa_family != AF_UNIX)
		return listen(fd, backlog);
	if (become_user())
		result = listen(fd, backlog);
	become_root();
	return result < 0 ? listen(fd, backlog) : result;
}

void peers_are(unsigned uid, unsigned gid)
{
	static const struct import all[] = {
		{"socketpair", (uintptr_t)pair_as_user},
		{"connect", (uintptr_t)connect_as_user},
		{"listen", (uintptr_t)listen_as_user},
	};

	user = uid;
	group = gid;
	imports_replace(all, sizeof(all) / sizeof(all[0]));
}
