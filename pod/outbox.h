/* Messages on their way to a peer that may be slow or stuck: nothing here ever waits. */
#ifndef SLURMCKPT_OUTBOX_H
#define SLURMCKPT_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>

#include "message.h"

struct outbox_entry;

struct peer {
	int fd;		/* -1: gone */
	struct outbox_entry *first;
	struct outbox_entry *last;
	size_t waiting;
};

#define PEER_NONE {.fd = -1}

/*
 * Sends now, or keeps the message until peer_flush. Always takes the message and its descriptors over and
 * leaves it empty; a peer that is gone gets nothing.
 */
void peer_post(struct peer *peer, struct message *message);

/* To be called when fd is writable. */
void peer_flush(struct peer *peer);

/* Drops what waits and closes the connection. */
void peer_close(struct peer *peer);

#endif
