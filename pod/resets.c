/*
 * A connection whose other side has ended it is restored by a packet that CRIU makes up: the end, coming from that side. The kernel
 * acknowledges it, at once or up to 200 ms later. Where nobody is at that address, because it was closed before the checkpoint or CRIU makes
 * that socket later, the kernel's answer to this is a reset: what was to be read ends with an error, and what was to be sent is lost. CRIU
 * expects firewall rules that stop such packets. Here each such socket has a filter (SO_ATTACH_FILTER, socket(7)) that drops resets and
 * nothing else. CRIU binds a socket that it repairs before all else, so that is the place.
 */
#include "resets.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "guarded.h"
#include "imports.h"

enum {
	/* Where the flags are in a TCP header, and RST among them (RFC 9293, 3.1). */
	FLAGS = 13,
	RST = 0x04,
	/* All of any packet. By this number the filter is known again: slurmckpt.capture.resets. */
	ALL = 0x736c6d63,
};

static struct sock_filter no_reset[] = {
	BPF_STMT(BPF_LD | BPF_B | BPF_ABS, FLAGS),
	BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, RST, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, 0),
	BPF_STMT(BPF_RET | BPF_K, ALL),
};

static int bind_without_resets(int fd, const struct sockaddr *address, socklen_t length)
{
	const struct sock_fprog filter = {sizeof(no_reset) / sizeof(no_reset[0]), no_reset};
	const int kept = errno;
	socklen_t size = sizeof(int);
	int repairs = 0;

	/* Without the filter the restore is what it would be without us. */
	if ((address->sa_family == AF_INET || address->sa_family == AF_INET6) && !getsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &repairs, &size) && repairs == 1)
		setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter));
	errno = kept;
	return guarded_bind(fd, address, length);
}

void resets_ignore(void)
{
	static const struct import all[] = {{"bind", (uintptr_t)bind_without_resets}};

	imports_replace(all, sizeof(all) / sizeof(all[0]));
}
