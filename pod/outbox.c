#include "outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct outbox_entry {
	struct outbox_entry *next;
	struct message message;
};

/* False only when it has to be tried again later. */
static bool try_send(const struct peer *peer, const struct message *message)
{
	/* ETOOMANYREFS: too many descriptors are in flight; they are not once the peer has read some */
	return !message_send(peer->fd, message, MSG_DONTWAIT) || (errno != EAGAIN && errno != ENOBUFS && errno != ETOOMANYREFS);
}

void peer_post(struct peer *peer, struct message *message)
{
	struct outbox_entry *entry = NULL;

	if (peer->fd < 0 || (!peer->first && try_send(peer, message)))
		goto out;
	entry = malloc(sizeof(*entry));
	if (!entry)
		goto out;
	entry->next = NULL;
	entry->message = *message;
	memset(message, 0, sizeof(*message));
	if (peer->last)
		peer->last->next = entry;
	else
		peer->first = entry;
	peer->last = entry;
	peer->waiting++;
	return;
out:
	message_free(message);
}

static void drop_first(struct peer *peer)
{
	struct outbox_entry *entry = peer->first;

	peer->first = entry->next;
	if (!peer->first)
		peer->last = NULL;
	peer->waiting--;
	message_free(&entry->message);
	free(entry);
}

void peer_flush(struct peer *peer)
{
	while (peer->first && try_send(peer, &peer->first->message))
		drop_first(peer);
}

void peer_close(struct peer *peer)
{
	while (peer->first)
		drop_first(peer);
	if (peer->fd >= 0)
		close(peer->fd);
	peer->fd = -1;
}
