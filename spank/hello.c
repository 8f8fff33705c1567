#include "hello.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "launch.h"

enum { TIMEOUT_SECONDS = 2, MESSAGE_MAX_BYTES = 256 };

/* The message with a NUL after each string; returns its length, always far below MESSAGE_MAX_BYTES. */
static size_t format_hello(const struct hello *h, char *buffer, size_t size)
{
	int length = snprintf(buffer, size,
			      "HELLO%cv=1%cjob=%u%cstep=%u%ctask=%u%cgtask=%u%cntasks=%u%cnnodes=%u%cuid=%u%cgid=%u", 0, 0,
			      h->job, 0, h->step, 0, h->task, 0, h->gtask, 0, h->ntasks, 0, h->nnodes, 0, h->uid, 0,
			      h->gid);

	length++; /* the last string's NUL */
	if (h->launch != LAUNCH_NONE)
		length += snprintf(buffer + length, size - (size_t)length, "launch=%d", h->launch) + 1;
	if (h->off)
		length += snprintf(buffer + length, size - (size_t)length, "off=1") + 1;
	return (size_t)length;
}

static const char *connect_failure(int error)
{
	switch (error) {
	case ENOENT:
		return "there is no coordinator for this job on this node";
	case ECONNREFUSED:
		return "the coordinator of this job has ended";
	case EAGAIN:
		return "the coordinator of this job does not answer";
	default:
		return NULL;
	}
}

static bool send_hello(int sock, char *message, size_t length, int anchor)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec text = { .iov_base = message, .iov_len = length };
	struct msghdr packet = { .msg_iov = &text, .msg_iovlen = 1 };

	if (anchor >= 0) {
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &anchor, sizeof(int));
		packet.msg_control = &control;
		packet.msg_controllen = sizeof(control);
	}
	return sendmsg(sock, &packet, MSG_NOSIGNAL) == (ssize_t)length;
}

int hello_connect(const char *run, const struct hello *hello, int anchor, char *why, size_t size)
{
	/*
	 * On a unix socket SO_SNDTIMEO bounds connect() too, while the listen queue is full (unix(7), socket(7));
	 * O_NONBLOCK would fail at once there, and such a connect cannot be polled for.
	 */
	const struct timeval limit = { .tv_sec = TIMEOUT_SECONDS };
	const struct timeval unlimited = { 0 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer;
	socklen_t peer_size = sizeof(peer);
	char message[MESSAGE_MAX_BYTES];
	size_t length = format_hello(hello, message, sizeof(message));
	const char *known;
	int fd;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%u/task.sock", run, hello->job);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0) {
		snprintf(why, size, "socket: %s", strerror(errno));
		goto fail;
	}
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		known = connect_failure(errno);
		snprintf(why, size, "%s%s%s", known ? known : address.sun_path, known ? "" : ": ",
			 known ? "" : strerror(errno));
		goto fail;
	}
	/* The environment and descriptors of this task will go through here. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) < 0 || peer.uid != 0) {
		snprintf(why, size, "%s is not root's", address.sun_path);
		goto fail;
	}
	if (!send_hello(fd, message, length, anchor)) {
		snprintf(why, size, "the coordinator of this job takes no message: %s", strerror(errno));
		goto fail;
	}
	/* The shim inherits the socket, and it waits for as long as it takes. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &unlimited, sizeof(unlimited)) < 0) {
		snprintf(why, size, "socket: %s", strerror(errno));
		goto fail;
	}
	return fd;

fail:
	if (fd >= 0)
		close(fd);
	return -1;
}
