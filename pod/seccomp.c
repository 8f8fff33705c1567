#include "seccomp.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* the same number on every architecture */
#define IO_URING_SETUP 425
#define X32_BIT 0x40000000

#ifndef SECCOMP_FILTER_FLAG_SPEC_ALLOW
#define SECCOMP_FILTER_FLAG_SPEC_ALLOW (1UL << 2)
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF_EQUAL(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (then), (otherwise))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, (action))

int seccomp_deny_io_uring(struct reason *reason)
{
	struct sock_filter filter[] = {
		LOAD(arch),
		IF_EQUAL(AUDIT_ARCH_X86_64, 3, 0),
		IF_EQUAL(AUDIT_ARCH_I386, 2, 0),
		IF_EQUAL(AUDIT_ARCH_AARCH64, 1, 0),
		IF_EQUAL(AUDIT_ARCH_ARM, 0, 3),
		LOAD(nr),
		IF_EQUAL(IO_URING_SETUP, 2, 0),
		IF_EQUAL(IO_URING_SETUP | X32_BIT, 1, 0),
		RETURN(SECCOMP_RET_ALLOW),
		RETURN(SECCOMP_RET_ERRNO | ENOSYS),
	};
	struct sock_fprog program = {.len = sizeof(filter) / sizeof(*filter), .filter = filter};

	/* SPEC_ALLOW: before Linux 5.16 a filter would otherwise switch on slow side-channel mitigations for the whole job */
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) &&
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
		return refuse(reason, "cannot install the seccomp filter: %s", strerror(errno));
	return 0;
}
