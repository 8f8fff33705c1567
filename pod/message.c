#include "message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "number.h"

union descriptor_buffer {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(MESSAGE_MAX_FDS * sizeof(int))];
};

bool message_is_socket(int fd)
{
	int type = 0, domain = 0;
	socklen_t size = sizeof(int);

	return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_SEQPACKET &&
	       !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_UNIX;
}

static void append(struct message *message, const char *text, size_t size)
{
	char *grown = NULL;

	if (!message->broken && size <= MESSAGE_MAX_BYTES - message->size)
		grown = realloc(message->bytes, message->size + size);
	if (grown) {
		memcpy(grown + message->size, text, size);
		message->bytes = grown;
		message->size += size;
	} else {
		message->broken = true;
	}
}

void message_start(struct message *message, const char *verb)
{
	memset(message, 0, sizeof(*message));
	append(message, verb, strlen(verb) + 1);
}

void message_add(struct message *message, const char *key, const char *format, ...)
{
	char *text = NULL;
	va_list values;
	int size;

	va_start(values, format);
	size = vasprintf(&text, format, values);
	va_end(values);
	if (size < 0) {
		message->broken = true;
	} else {
		append(message, key, strlen(key));
		append(message, "=", 1);
		append(message, text, (size_t)size + 1);
		free(text);
	}
}

void message_add_fd(struct message *message, int fd)
{
	if (fd < 0 || message->fd_count == MESSAGE_MAX_FDS)
		message->broken = true;
	else
		message->fds[message->fd_count++] = fd;
}

void message_take_back_fds(struct message *message)
{
	message->fd_count = 0;
}

int message_send(int socket, const struct message *message, int flags)
{
	union descriptor_buffer control = {0};
	struct iovec part = {.iov_base = message->bytes, .iov_len = message->size};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t sent;

	if (message->broken) {
		errno = EMSGSIZE;
		return -1;
	}
	if (message->fd_count) {
		header.msg_control = &control;
		header.msg_controllen = CMSG_SPACE(message->fd_count * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(message->fd_count * sizeof(int));
		memcpy(CMSG_DATA(&control.header), message->fds, message->fd_count * sizeof(int));
	}
	do {
		sent = sendmsg(socket, &header, flags | MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent < 0 ? -1 : 0;
}

void message_send_failed(int socket, const struct reason *reason)
{
	struct message failed;

	message_start(&failed, "FAILED");
	message_add(&failed, "reason", "%s", reason->text);
	message_send(socket, &failed, MSG_DONTWAIT);
	message_free(&failed);
}

static void collect_descriptors(struct message *message, struct msghdr *header)
{
	for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
		size_t count;

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		/* the buffer has room for MESSAGE_MAX_FDS in all */
		count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(message->fds + message->fd_count, CMSG_DATA(part), count * sizeof(int));
		message->fd_count += count;
	}
}

bool message_is_well_formed(const char *bytes, size_t size)
{
	bool good = size > 1 && bytes[0] != '\0' && bytes[size - 1] == '\0';

	for (size_t at = good ? strlen(bytes) + 1 : size; good && at < size; at += strlen(bytes + at) + 1) {
		const char *equals = strchr(bytes + at, '=');

		good = equals && equals != bytes + at;
	}
	return good;
}

enum message_result message_receive(int socket, struct message *message, bool take_fds, int flags)
{
	union descriptor_buffer control;
	struct iovec part = {.iov_len = MESSAGE_MAX_BYTES};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	enum message_result result = MESSAGE_FAILED;
	int unexpected = MSG_TRUNC | (take_fds ? MSG_CTRUNC : 0);
	char *fitted;
	ssize_t size;

	memset(message, 0, sizeof(*message));
	message->bytes = part.iov_base = malloc(MESSAGE_MAX_BYTES);
	if (!message->bytes)
		goto out;
	do {
		header.msg_control = take_fds ? &control : NULL;
		header.msg_controllen = take_fds ? sizeof(control) : 0;
		header.msg_flags = 0;
		size = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
		/* ECONNRESET: the peer left without reading all; it is told once, then what the peer had sent can still be read */
	} while (size < 0 && (errno == EINTR || errno == ECONNRESET));
	if (size < 0)
		goto out;
	if (take_fds)
		collect_descriptors(message, &header);
	if (size == 0) {
		result = MESSAGE_END;
		goto out;
	}
	message->size = (size_t)size;
	if ((header.msg_flags & unexpected) || !message_is_well_formed(message->bytes, message->size)) {
		errno = EBADMSG;
		goto out;
	}
	fitted = realloc(message->bytes, message->size);
	if (fitted)
		message->bytes = fitted;
	result = MESSAGE_GOT;
out:
	return result;
}

bool message_is(const struct message *message, const char *verb)
{
	return !strcmp(message->bytes, verb);
}

const char *message_next_value(const struct message *message, const char *key, const char *previous)
{
	const char *end = message->bytes + message->size;
	const char *at = previous ? previous : message->bytes;
	const char *value = NULL;
	size_t length = strlen(key);

	for (at += strlen(at) + 1; at < end && !value; at += strlen(at) + 1) {
		if (!strncmp(at, key, length) && at[length] == '=')
			value = at + length + 1;
	}
	return value;
}

const char *message_value(const struct message *message, const char *key)
{
	return message_next_value(message, key, NULL);
}

bool message_number(const struct message *message, const char *key, uint64_t max, uint64_t *value)
{
	return parse_number(message_value(message, key), 10, max, value);
}

int message_take_fd(struct message *message, size_t i)
{
	int fd = -1;

	if (i < message->fd_count) {
		fd = message->fds[i];
		message->fds[i] = -1;
	}
	return fd;
}

void message_free(struct message *message)
{
	for (size_t i = 0; i < message->fd_count; i++) {
		if (message->fds[i] >= 0)
			close(message->fds[i]);
	}
	free(message->bytes);
	memset(message, 0, sizeof(*message));
}
