/* The main program has the addresses of what it calls in tables, which the linker filled (the relocations, elf(5)). */
#include "imports.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { BY_CALL = R_X86_64_JUMP_SLOT, BY_ADDRESS = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { BY_CALL = R_AARCH64_JUMP_SLOT, BY_ADDRESS = R_AARCH64_GLOB_DAT };
#else
enum { BY_CALL = 0, BY_ADDRESS = 0 };
#endif

struct wanted {
	const struct import *all;
	size_t count;
};

/* What to replace, by name. */
static void *replacement_of(const struct wanted *wanted, const char *name)
{
	for (size_t i = 0; i < wanted->count; i++) {
		if (!strcmp(name, wanted->all[i].name))
			return (void *)wanted->all[i].function;
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

static int look_at_main_program(struct dl_phdr_info *program, size_t size, void *wanted)
{
	const ElfW(Dyn) *dynamic = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	uintptr_t from = 0, to = 0;
	struct {
		const ElfW(Rela) *first;
		size_t bytes;
	} tables[2] = {{0}};

	(void)size;
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
				function = replacement_of(wanted, names + symbols[ELF64_R_SYM(one->r_info)].st_name);
			if (function)
				replace((void **)place, function, place >= from && place < to);
		}
	}
	/* the main program comes first */
	return 1;
}

void imports_replace(const struct import *all, size_t count)
{
	struct wanted wanted = {all, count};

	dl_iterate_phdr(look_at_main_program, &wanted);
}
