/* How the last process of a step is known to be the last: one that is about to end says so, and the other waits until it has. */
#ifndef SLURMCKPT_FAREWELL_H
#define SLURMCKPT_FAREWELL_H

/* GOING, with the descriptor by which the end of this process is seen. A failure leaves the end of the connection, which comes a little earlier. */
void farewell_say(int socket);

/*
 * Waits for GOING, and then until whoever has sent it is dead and no more in any cgroup; or for the end of the connection. For each of the two
 * at most patience_ms.
 */
void farewell_await(int socket, int patience_ms);

#endif
