/*
 * The kernel notes a process's effective ids when it makes a pair, connects or listens, and nobody can change them afterwards. CRIU restores
 * sockets by these calls, in the very process that shall have them, but with root's ids. So the three are replaced in CRIU, where it has their
 * addresses (the relocations of the main program, elf(5)).
 */
#include "peers.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { BY_CALL = R_X86_64_JUMP_SLOT, BY_ADDRESS = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { BY_CALL = R_AARCH64_JUMP_SLOT, BY_ADDRESS = R_AARCH64_GLOB_DAT };
#else
enum { BY_CALL = 0, BY_ADDRESS = 0 };
#endif

static unsigned user, group;

/* Of this thread alone, unlike the C library's. The group first: without root's id it could not be changed. */
static bool become_user(void)
{
	return !syscall(SYS_setresgid, -1, group, -1) && !syscall(SYS_setresuid, -1, user, -1);
}

/* The saved ids are root's all the time. */
static void become_root(void)
{
	const int kept = errno;

	syscall(SYS_setresuid, -1, 0, -1);
	syscall(SYS_setresgid, -1, 0, -1);
	errno = kept;
}

static int pair_as_user(int family, int type, int protocol, int ends[2])
{
	int result = -1;

	if (become_user())
		result = socketpair(family, type, protocol, ends);
	become_root();
	return result < 0 ? socketpair(family, type, protocol, ends) : result;
}

static int connect_as_user(int fd, const struct sockaddr *address, socklen_t length)
{
	int result = -1;

	if (address->sa_family != AF_UNIX)
		return connect(fd, address, length);
	if (become_user())
		result = connect(fd, address, length);
	become_root();
	/* a directory may be root's alone at this time */
	return result < 0 ? connect(fd, address, length) : result;
}

static int listen_as_user(int fd, int backlog)
{
	struct sockaddr address = {0};
	socklen_t length = sizeof(address);
	int result = -1;

	if (getsockname(fd, &address, &length) || address.sa_family != AF_UNIX)
		return listen(fd, backlog);
	if (become_user())
		result = listen(fd, backlog);
	become_root();
	return result < 0 ? listen(fd, backlog) : result;
}

/* What to replace, by name. */
static void *replacement_of(const char *name)
{
	static const struct {
		const char *name;
		uintptr_t function;
	} all[] = {
		{"socketpair", (uintptr_t)pair_as_user},
		{"connect", (uintptr_t)connect_as_user},
		{"listen", (uintptr_t)listen_as_user},
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (!strcmp(name, all[i].name))
			return (void *)all[i].function;
	}
	return NULL;
}

/* read_only: the linker has made the place so (RELRO). */
static void replace(void **place, void *function, bool read_only)
{
	const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
	void *page = (void *)((uintptr_t)place & ~(size - 1));

	if (read_only && mprotect(page, size, PROT_READ | PROT_WRITE))
		return;
	*place = function;
	if (read_only)
		mprotect(page, size, PROT_READ);
}

static int look_at_main_program(struct dl_phdr_info *program, size_t size, void *unused)
{
	const ElfW(Dyn) *dynamic = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	uintptr_t from = 0, to = 0;
	struct {
		const ElfW(Rela) *first;
		size_t bytes;
	} tables[2] = {{0}};

	(void)size, (void)unused;
	for (int i = 0; i < program->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &program->dlpi_phdr[i];

		if (header->p_type == PT_DYNAMIC)
			dynamic = (const void *)(program->dlpi_addr + header->p_vaddr);
		if (header->p_type == PT_GNU_RELRO) {
			from = program->dlpi_addr + header->p_vaddr;
			to = from + header->p_memsz;
		}
	}
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		switch (dynamic->d_tag) {
		case DT_SYMTAB:
			symbols = (const void *)dynamic->d_un.d_ptr;
			break;
		case DT_STRTAB:
			names = (const void *)dynamic->d_un.d_ptr;
			break;
		case DT_JMPREL:
			tables[0].first = (const void *)dynamic->d_un.d_ptr;
			break;
		case DT_PLTRELSZ:
			tables[0].bytes = dynamic->d_un.d_val;
			break;
		case DT_RELA:
			tables[1].first = (const void *)dynamic->d_un.d_ptr;
			break;
		case DT_RELASZ:
			tables[1].bytes = dynamic->d_un.d_val;
			break;
		}
	}
	for (int table = 0; table < 2 && symbols && names; table++) {
		for (size_t i = 0; tables[table].first && i < tables[table].bytes / sizeof(ElfW(Rela)); i++) {
			const ElfW(Rela) *one = &tables[table].first[i];
			const uintptr_t place = program->dlpi_addr + one->r_offset;
			void *function = NULL;

			if (ELF64_R_TYPE(one->r_info) == BY_CALL || ELF64_R_TYPE(one->r_info) == BY_ADDRESS)
				function = replacement_of(names + symbols[ELF64_R_SYM(one->r_info)].st_name);
			if (function)
				replace((void **)place, function, place >= from && place < to);
		}
	}
	/* the main program comes first */
	return 1;
}

void peers_are(unsigned uid, unsigned gid)
{
	user = uid;
	group = gid;
	dl_iterate_phdr(look_at_main_program, NULL);
}
