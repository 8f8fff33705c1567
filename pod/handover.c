#include "handover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "descriptors.h"
#include "payload.h"

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

int handover_send(int connection, struct message *message, struct reason *reason)
{
	int result = message_send(connection, message, 0) ? refuse(reason, "cannot reach the coordinator: %s", strerror(errno)) : 0;

	message_take_back_fds(message);
	return result;
}
