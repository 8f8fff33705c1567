#include "farewell.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "message.h"

void farewell_say(int socket)
{
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct message going;

	if (self < 0)
		return;
	message_start(&going, "GOING");
	message_add_fd(&going, self);
	message_send(socket, &going, MSG_DONTWAIT);
	message_free(&going);
}

void farewell_await(int socket, int patience_ms)
{
	struct message message = MESSAGE_EMPTY;
	struct pollfd wait = {.fd = socket, .events = POLLIN};

	/* the end of the connection alone is not enough: it comes before the process leaves its cgroups */
	if (poll(&wait, 1, patience_ms) == 1 && message_receive(socket, &message, true, MSG_DONTWAIT) == MESSAGE_GOT &&
	    message_is(&message, "GOING") && message.fd_count > 0) {
		wait.fd = message.fds[0];
		poll(&wait, 1, patience_ms);
	}
	message_free(&message);
}
