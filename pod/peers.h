/* Who is at the other end of a restored unix socket (SO_PEERCRED, unix(7)): the job's user, and not root. */
#ifndef SLURMCKPT_PEERS_H
#define SLURMCKPT_PEERS_H

/* From now on the calls of this program by which the kernel notes that are made with these ids: socketpair(2), connect(2) and listen(2) on a unix
 * socket. For a program of single-threaded processes that may change its ids. Without any such call in it, nothing happens. */
void peers_are(unsigned uid, unsigned gid);

#endif
