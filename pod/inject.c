#include "inject.h"

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#if defined(__x86_64__)
#include <sys/user.h>

enum { MAX_DATA = 4096, RED_ZONE = 128, SIGNAL_BYTES = 8, VDSO_BYTES = 16384 };
/* uapi/linux/ptrace.h; not every C library has them */
#define GET_SIGNAL_MASK 0x420a
#define SET_SIGNAL_MASK 0x420b
#define GET_RSEQ 0x420f
/* struct rseq of uapi/linux/rseq.h: where it has the critical section that the thread is in */
enum { RSEQ_SECTION = 8 };

typedef struct user_regs_struct registers;

/* A thread as it was. */
struct before {
	registers at;
	uint64_t mask;
	uint64_t section_place, section; /* 0: has none */
	unsigned char stack[MAX_DATA];
};

static bool read_memory(pid_t tid, uint64_t place, void *data, size_t size)
{
	struct iovec here = {data, size}, there = {(void *)(uintptr_t)place, size};

	return process_vm_readv(tid, &here, 1, &there, 1, 0) == (ssize_t)size;
}

static bool write_memory(pid_t tid, uint64_t place, const void *data, size_t size)
{
	struct iovec here = {(void *)(uintptr_t)data, size}, there = {(void *)(uintptr_t)place, size};

	return process_vm_writev(tid, &here, 1, &there, 1, 0) == (ssize_t)size;
}

/* The address of an instruction `syscall`, which every vdso has; 0 without one. */
static uint64_t find_instruction(pid_t tid)
{
	unsigned long begin = 0, end = 0;
	unsigned char code[VDSO_BYTES];
	char path[32], *line = NULL;
	const unsigned char *found = NULL;
	size_t room = 0, size = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)tid);
	maps = fopen(path, "re");
	while (maps && getline(&line, &room, maps) > 0) {
		if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &begin, &end) == 2) {
			size = end - begin < sizeof(code) ? end - begin : sizeof(code);
			break;
		}
	}
	if (maps)
		fclose(maps);
	free(line);
	if (size && read_memory(tid, begin, code, size))
		found = memmem(code, size, "\x0f\x05", 2);
	return found ? begin + (uint64_t)(found - code) : 0;
}

/* The kernel forgets the critical section of a thread that goes on elsewhere (rseq(2)). */
static void note_section(pid_t tid, struct before *before)
{
	struct {
		uint64_t place;
		uint32_t size, signature, flags, padding;
	} area = {0};

	before->section_place = 0;
	if (ptrace(GET_RSEQ, tid, sizeof(area), &area) > 0 && area.place && read_memory(tid, area.place + RSEQ_SECTION, &before->section, sizeof(before->section)))
		before->section_place = area.place + RSEQ_SECTION;
}

static bool set_registers(pid_t tid, registers *at)
{
	struct iovec set = {at, sizeof(*at)};

	return !ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &set);
}

/* One instruction. */
static bool step(pid_t tid)
{
	int status;

	return !ptrace(PTRACE_SINGLESTEP, tid, NULL, NULL) && waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

static bool make_call(pid_t tid, const struct before *before, uint64_t instruction, long number, const unsigned long *arguments, long *result)
{
	registers at = before->at;
	struct iovec set = {&at, sizeof(at)};
	const uint64_t all = ~0ULL;
	bool good;

	at.rip = instruction;
	at.rax = (unsigned long long)number;
	/* no call is under way that would have to begin again */
	at.orig_rax = ~0ULL;
	at.rdi = arguments[0];
	at.rsi = arguments[1];
	at.rdx = arguments[2];
	at.r10 = arguments[3];
	at.r8 = arguments[4];
	at.r9 = arguments[5];
	good = !ptrace(SET_SIGNAL_MASK, tid, SIGNAL_BYTES, &all) && set_registers(tid, &at) && step(tid) && !ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &set) &&
	       at.rip == instruction + 2;
	if (good)
		*result = (long)at.rax;
	return good;
}

bool inject_call(pid_t tid, long number, const unsigned long arguments[6], int place, void *data, size_t size, long *result)
{
	struct before before;
	struct iovec set = {&before.at, sizeof(before.at)};
	unsigned long with_data[6];
	uint64_t instruction, room;
	bool good = false;

	/* of another size: a thread of 32 bits */
	if (size > MAX_DATA || ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &set) || set.iov_len != sizeof(before.at) ||
	    ptrace(GET_SIGNAL_MASK, tid, SIGNAL_BYTES, &before.mask))
		return false;
	instruction = find_instruction(tid);
	room = (before.at.rsp - RED_ZONE - MAX_DATA) & ~15ULL;
	if (!instruction || !read_memory(tid, room, before.stack, size) || !write_memory(tid, room, data, size))
		return false;
	note_section(tid, &before);
	memcpy(with_data, arguments, sizeof(with_data));
	with_data[place] = room;
	good = make_call(tid, &before, instruction, number, with_data, result);
	good = read_memory(tid, room, data, size) && good;
	good = write_memory(tid, room, before.stack, size) && good;
	if (before.section_place)
		good = write_memory(tid, before.section_place, &before.section, sizeof(before.section)) && good;
	good = set_registers(tid, &before.at) && good;
	return !ptrace(SET_SIGNAL_MASK, tid, SIGNAL_BYTES, &before.mask) && good;
}
#else
bool inject_call(pid_t tid, long number, const unsigned long arguments[6], int place, void *data, size_t size, long *result)
{
	(void)tid, (void)number, (void)arguments, (void)place, (void)data, (void)size, (void)result;
	return false;
}
#endif
