/*
 * The messages of the wire: one packet of NUL-ended strings on a SOCK_SEQPACKET socket, first the verb, then key=value in any order, with
 * descriptors beside it.
 */
#ifndef SLURMCKPT_MESSAGE_H
#define SLURMCKPT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reason.h"

#define MESSAGE_MAX_BYTES (128 * 1024)
/* the kernel's SCM_MAX_FD */
#define MESSAGE_MAX_FDS 253

struct message {
	char *bytes;
	size_t size;
	bool broken;	/* an addition did not fit: it will not be sent */
	size_t fd_count;
	int fds[MESSAGE_MAX_FDS];
};

enum message_result {
	MESSAGE_FAILED = -1,	/* errno; EBADMSG when it is not a message, EAGAIN when there is none */
	MESSAGE_END = 0,	/* the other side is gone */
	MESSAGE_GOT = 1,
};

#define MESSAGE_EMPTY {0}

/* Whether a descriptor is a socket for messages. */
bool message_is_socket(int fd);

/* Building. Additions need no check: a message that failed on the way makes message_send fail with EMSGSIZE. */
void message_start(struct message *message, const char *verb);
void message_add(struct message *message, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The message owns fd from here on: message_free closes it, unless the caller takes all of them back. */
void message_add_fd(struct message *message, int fd);
void message_take_back_fds(struct message *message);

/* flags as of sendmsg. 0, or -1 with errno. The message stays as it is. */
int message_send(int socket, const struct message *message, int flags);

/* FAILED reason=, if the other side is there and takes it. */
void message_send_failed(int socket, const struct reason *reason);

/*
 * flags as of recvmsg. Descriptors are close-on-exec; without take_fds the kernel drops them. Whatever is returned, message may be given to
 * message_free.
 */
enum message_result message_receive(int socket, struct message *message, bool take_fds, int flags);

/* Reads bytes as a message: false when they are not one. For message_receive and for the tests. */
bool message_is_well_formed(const char *bytes, size_t size);

bool message_is(const struct message *message, const char *verb);
/* The value of the first such key, or NULL. */
const char *message_value(const struct message *message, const char *key);
/* The value of the next such key behind `previous` (NULL: the first), or NULL. */
const char *message_next_value(const struct message *message, const char *key, const char *previous);
/* False when the key is missing, or is not a decimal number of at most max. */
bool message_number(const struct message *message, const char *key, uint64_t max, uint64_t *value);

/* Takes descriptor i out of the message: -1 when there is none. */
int message_take_fd(struct message *message, size_t i);

void message_free(struct message *message);

#endif
