#include "handover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "descriptors.h"
#include "message.h"

int handover_list(int **fds, int connection, struct reason *reason)
{
	int count = descriptors_list(fds, connection);

	if (count < 0) {
		refuse(reason, "cannot list the open descriptors: %s", strerror(errno));
	} else if (count > PAYLOAD_MAX_FDS) {
		refuse(reason, "%d open descriptors, at most %d can be handed over", count, PAYLOAD_MAX_FDS);
		free(*fds);
		*fds = NULL;
		count = -1;
	}
	return count;
}

int handover_send(int connection, const char *verb, const struct payload_source *source, const int *given, int held, struct reason *reason)
{
	struct message message;
	int payload = payload_write(source, reason), result = -1;

	if (payload < 0)
		return -1;
	message_start(&message, verb);
	message_add(&message, "v", "1");
	message_add_fd(&message, payload);
	if (held >= 0)
		message_add_fd(&message, held);
	for (size_t i = 0; i < source->fd_count; i++)
		message_add_fd(&message, given[i]);
	for (size_t i = 0; i < source->relay_count; i++)
		message_add_fd(&message, source->relays[i]);
	result = message_send(connection, &message, 0) ? refuse(reason, "cannot reach the coordinator: %s", strerror(errno)) : 0;
	message_take_back_fds(&message);
	message_free(&message);
	close(payload);
	return result;
}
